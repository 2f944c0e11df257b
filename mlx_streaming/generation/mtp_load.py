"""Loading an MTP head: raw or packed, its experts resident or streamed through a pool of their own."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..checkpoint.mtp_extract import STACKED, HeadBits, HeadFile, convert, extract, find_head
from ..checkpoint.spec import ExpertLayer, Quantization, Segment, layer_tensors
from ..config import EngineConfig
from ..errors import CheckpointError
from ..experts.memory import ExpertMemory, open_reader
from ..experts.source import InPlaceSource
from .mtp import MTPHead, MTPModule, build_module


class HeadSource(InPlaceSource):
    """The experts of a packed head, read in place; its quantisation comes from the file's metadata."""

    def __init__(self, head: HeadFile, experts: dict[int, ExpertLayer], quantization: dict[str, dict]):
        super().__init__(SimpleNamespace(experts=experts), head.index)
        self._quantization = quantization

    def quantization(self, layer: int) -> dict[str, Quantization | None]:
        prefix = self._experts[layer].prefix
        found = {}
        for proj in {s.proj for s in self.segments(layer)}:
            entry = self._quantization.get(f"{prefix}.{proj}")
            found[proj] = Quantization(**entry) if entry else None
        return found


def load_head(
    model: nn.Module,
    path: Path,
    config: EngineConfig | None = None,
    bits: HeadBits | None = None,
    cache_dir: Path | None = None,
) -> MTPHead:
    """The head in `path` (a file, or a checkpoint directory with one) for the stock or streamed `model`.

    A packed head streams its experts from `config.mtp_slots` slots (None: all resident). A raw head is
    extracted once to `cache_dir` when given and streamed from there; otherwise it is converted in memory.
    Floats take the model's own type.

    Raises:
        CheckpointError: no head there, or it does not fit the model.
    """
    head = find_head(path)
    if head is None:
        raise CheckpointError(f"{path} has no MTP head; use mtp=off, or see `llm mlx-streaming mtp extract`.")
    config = config or EngineConfig()
    bits = bits or HeadBits(trunk=config.mtp_bits)
    dtype = getattr(model, "language_model", model).model.norm.weight.dtype
    if not head.packed and cache_dir is not None:
        kind = f"{bits.trunk}-{bits.experts}-{bits.group_size}-{str(dtype).rsplit('.', 1)[1]}"
        packed = Path(cache_dir) / f"mtp-{head.index.digest()[:16]}-{kind}.safetensors"
        with suppress(OSError):  # a home that cannot be written costs memory, not the answer
            if not packed.is_file():
                extract(path, packed, bits, dtype)
            head = find_head(packed)
    module = build_module(model)
    if head.packed:
        weights, quantization = _read_packed(head, dtype)
    else:
        weights, quantization = convert(head, bits, dtype)
    _load(module, weights, quantization, head)
    # Last: a streamed layer may wrap other modules too, which then are no longer where their names say.
    experts = _install_experts(module, head, quantization, config) if head.packed else None
    return MTPHead(model, module, config.mtp_hidden, experts)


def _read_packed(head: HeadFile, dtype: mx.Dtype) -> tuple[dict[str, mx.array], dict[str, dict]]:
    """The resident weights of a packed head; expert tensors are left on disk."""
    arrays, metadata = mx.load(str(head.index.files[0]), return_metadata=True)
    try:
        quantization = json.loads(metadata["quantization"])
    except (KeyError, ValueError):
        raise CheckpointError(
            f"{head.path} has stacked experts but not the metadata of a packed head; extract it again."
        ) from None
    trunk = {k: v for k, v in arrays.items() if k.startswith("mtp.") and not k.startswith(STACKED)}
    floats = (mx.float16, mx.bfloat16, mx.float32)
    return {k: v.astype(dtype) if v.dtype in floats else v for k, v in trunk.items()}, quantization


def _install_experts(
    module: MTPModule, head: HeadFile, quantization: dict, config: EngineConfig
) -> ExpertMemory:
    layer = _expert_layer(head, module.layers[0].mlp.top_k)
    source = HeadSource(head, {layer.layer: layer}, quantization)
    memory = ExpertMemory(source, open_reader(config), config.policy)
    slots = min(config.mtp_slots or layer.num_experts, layer.num_experts)
    memory.add_layer(Root(mtp=module), layer, slots, slots == layer.num_experts)
    return memory


def _expert_layer(head: HeadFile, top_k: int) -> ExpertLayer:
    tensors = layer_tensors(head.index, STACKED)
    counts = {info.shape[0] for info in tensors.values()}
    if len(counts) != 1 or not top_k <= min(counts):
        raise CheckpointError(
            f"The experts of the MTP head in {head.path} do not fit together; extract it again."
        )
    count = counts.pop()
    segments = tuple(
        Segment(proj, tensor, info.dtype, info.shape[1:], info.nbytes // count)
        for (proj, tensor), info in tensors.items()
    )
    return ExpertLayer(0, STACKED, count, top_k, segments)


class Root(nn.Module):
    """A root under which the head lies at `mtp`, as its tensor names say."""

    def __init__(self, **children: nn.Module):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def _load(module: MTPModule, weights: dict[str, mx.array], quantization: dict, head: HeadFile) -> None:
    """Load `weights` into `module`; those of a packed head lack the experts, which come from its pool."""
    weights = {k.removeprefix("mtp."): v for k, v in weights.items()}
    entries = {k.removeprefix("mtp."): v for k, v in quantization.items()}

    def how(name: str, child: nn.Module) -> bool | dict:
        return dict(entries[name]) if name in entries and f"{name}.weight" in weights else False

    nn.quantize(module, class_predicate=how)
    expected = dict(tree_flatten(module.parameters()))
    experts = {k for k in expected if ".switch_mlp." in k} if head.packed else set()
    wrong = (set(expected) - experts) ^ set(weights)
    wrong |= {k for k in weights if k in expected and expected[k].shape != weights[k].shape}
    if wrong:
        raise CheckpointError(
            f"The MTP head in {head.path} does not fit this model at {min(wrong)}; use mtp=off."
        )
    module.load_weights(list(weights.items()), strict=False)
    module.eval()
    mx.eval(weights)
