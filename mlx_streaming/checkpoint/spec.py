"""ModelSpec: what a checkpoint is, read from `config.json` and the tensor index; nothing is assumed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..demo import checkpoint_path
from ..errors import CheckpointError
from . import families
from .index import TensorIndex, TensorInfo

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")  # of a SwitchGLU
_ALL_PROJECTIONS = (*PROJECTIONS, "fc1", "fc2")  # and of a SwitchMLP
TENSORS = ("weight", "scales", "biases", "bias", "global_scale")
_EXPERT_TENSOR = re.compile(
    rf"^(?P<prefix>.*?\.?layers\.(?P<layer>\d+)\..+)\.(?P<proj>{'|'.join(_ALL_PROJECTIONS)})\.weight$"
)
# Parts that mlx-lm leaves out of a language model.
_NOT_LOADED = re.compile(r"(^|\.)(mtp|vision_tower|vision_model|visual|audio_tower|multi_modal_projector)\.")
_TOP_K_KEYS = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
)


@dataclass(frozen=True)
class Segment:
    """One expert's part of one stacked tensor: `shape` and `nbytes` are per expert."""

    proj: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Quantization:
    """How a projection is quantised: what mlx's `gather_qmm` takes."""

    group_size: int
    bits: int
    mode: str


@dataclass(frozen=True)
class ExpertLayer:
    """The routed experts of one layer. `prefix` is the module path, which is also the tensors' prefix."""

    layer: int
    prefix: str
    num_experts: int
    top_k: int
    segments: tuple[Segment, ...]

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert."""
        return sum(s.nbytes for s in self.segments)


@dataclass(frozen=True)
class ModelSpec:
    """A checkpoint's facts. `experts` maps a layer number to its routed experts.

    `called`: the name it was asked for by ("": none).
    """

    path: Path
    config: dict[str, Any]
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_context: int
    experts: dict[int, ExpertLayer]
    trunk_bytes: int
    quantization: dict[str, Any]
    generation_config: dict[str, Any]
    eos_ids: tuple[int, ...]
    called: str = ""

    @property
    def expert_bytes(self) -> int:
        """Bytes of all routed experts."""
        return sum(e.num_experts * e.expert_bytes for e in self.experts.values())

    @property
    def name(self) -> str:
        """What to call it: as it was asked for, else its directory or, in the hub cache, its repository."""
        if self.called or self.path == checkpoint_path():
            return self.called or "demo"
        folder = self.path.parent.parent.name
        if self.path.parent.name == "snapshots" and folder.startswith("models--"):
            return folder.removeprefix("models--").replace("--", "/")
        return self.path.name

    @classmethod
    def read(cls, path: str | Path, index: TensorIndex | None = None, called: str = "") -> ModelSpec:
        """Describe the checkpoint in directory `path`, that messages call `called` ("": see `name`).

        Raises:
            CheckpointError: missing or malformed config, or no routed experts to stream.
        """
        path = Path(path)
        index = index or TensorIndex.open(path)
        config = _read_json(path / "config.json", required=True)
        generation = _read_json(path / "generation_config.json", required=False)
        families.check(config, str(path), index.tensors)
        text = text_config(config)
        experts = find_experts(index, text)
        if not experts:
            raise CheckpointError(
                f"{path} has no stacked experts in its weights; use an MLX conversion of it."
            )
        expert_bytes = sum(e.num_experts * e.expert_bytes for e in experts.values())
        loaded = [t for name, t in index.tensors.items() if not _NOT_LOADED.search(name)]
        return cls(
            path=path,
            config=config,
            model_type=config["model_type"],
            num_layers=text.get("num_hidden_layers") or 1 + max(map(_layer_number, index.tensors)),
            hidden_size=_number(text, "hidden_size", path),
            vocab_size=_number(text, "vocab_size", path),
            max_context=int(text.get("max_position_embeddings") or 2**31),
            experts=experts,
            trunk_bytes=sum(t.nbytes for t in loaded) - expert_bytes,
            quantization=config.get("quantization") or {},
            generation_config=generation,
            eos_ids=_eos_ids(config, text, generation),
            called=called,
        )


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config: `text_config` where a multimodal config nests it."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, dict) else config


def find_experts(index: TensorIndex, text: dict[str, Any]) -> dict[int, ExpertLayer]:
    """The stacked expert tensors (first axis = expert) of every layer that has them.

    Raises:
        CheckpointError: a layer's stacked tensors disagree about the number of experts.
    """
    top_k = next((text[k] for k in _TOP_K_KEYS if text.get(k)), 1)
    top_k = max(top_k) if isinstance(top_k, list) else int(top_k)
    prefixes: dict[str, int] = {}
    for name, info in index.tensors.items():
        match = _EXPERT_TENSOR.match(name)
        if match and len(info.shape) == 3 and not _NOT_LOADED.search(name):
            prefixes[match["prefix"]] = int(match["layer"])
    found = {}
    for prefix, layer in sorted(prefixes.items(), key=lambda item: item[1]):
        if layer in found:
            raise CheckpointError(
                f"Layer {layer} has two groups of experts ({found[layer].prefix} and {prefix});"
                " this layout cannot be streamed."
            )
        tensors = layer_tensors(index, prefix)
        counts = {info.shape[0] for info in tensors.values()}
        if len(counts) != 1:
            raise CheckpointError(
                f"The expert tensors of {prefix} disagree on their number ({sorted(counts)});"
                " download the checkpoint again."
            )
        if top_k > max(counts):
            raise CheckpointError(
                f"config.json asks for {top_k} experts a token, but {prefix} has {max(counts)};"
                " it does not belong to these weights, download both again."
            )
        found[layer] = ExpertLayer(
            layer=layer,
            prefix=prefix,
            num_experts=counts.pop(),
            top_k=top_k,
            segments=tuple(_segment(proj, tensor, info) for (proj, tensor), info in tensors.items()),
        )
    return found


def layer_tensors(index: TensorIndex, prefix: str) -> dict[tuple[str, str], TensorInfo]:
    """The stacked tensors below `prefix`, keyed by (projection, tensor), in a fixed order."""
    names = {(p, t): f"{prefix}.{p}.{t}" for p in _ALL_PROJECTIONS for t in TENSORS}
    return {key: index.tensors[name] for key, name in names.items() if name in index.tensors}


def _segment(proj: str, tensor: str, info: TensorInfo) -> Segment:
    return Segment(proj, tensor, info.dtype, info.shape[1:], info.nbytes // info.shape[0])


def _layer_number(name: str) -> int:
    match = re.search(r"\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


def _number(text: dict[str, Any], key: str, path: Path) -> int:
    try:
        return int(text[key])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path / 'config.json'} has no {key}; download it again.") from None


def _eos_ids(*configs: dict[str, Any]) -> tuple[int, ...]:
    ids: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return tuple(sorted(ids))


def _read_json(file: Path, required: bool) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except FileNotFoundError:
        if not required:
            return {}
        raise CheckpointError(f"{file} is missing; download the checkpoint again.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); download it again.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} is not a JSON object; download it again.")
    return data
