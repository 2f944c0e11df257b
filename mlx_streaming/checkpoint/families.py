"""Which checkpoints can be streamed, from config and tensor names alone; others are refused with the reason.

What streams is not a list of families: any model of mlx-lm whose experts sit in a SwitchGLU or SwitchMLP
does, as long as the files hold the stacked experts that mlx-lm writes (`...switch_mlp.gate_proj.weight` and
the like, with the experts along the first axis).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

_COUNT_KEYS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)
_ONE_BY_ONE = re.compile(r"\.experts\.\d+\.|\.experts\.(mlp\.)?(w1|v1|w2|gate_up_proj|down_proj)(_blocks)?$")
_CONVERT = "convert it with `mlx_lm.convert -q`, or use an MLX conversion of it"


def check(config: Mapping[str, Any], name: str, tensors: Iterable[str] | None = None) -> None:
    """Refuse what cannot be streamed.

    Args:
        config: the parsed `config.json`. name: path or repository, for the message. tensors: all tensor
            names, where the files (or their index) are at hand; without them only the config is judged.

    Raises:
        CheckpointError: the reason and the next step, in one sentence.
    """
    reason = refusal(config, None if tensors is None else list(tensors))
    if reason:
        raise CheckpointError(f"{name} cannot be streamed: {reason}.")


def refusal(config: Mapping[str, Any], tensors: list[str] | None = None) -> str | None:
    """Why this checkpoint cannot be streamed, with the next step; None when nothing speaks against it."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        return "its config.json names no model_type; download it again"
    if config.get("model_file"):
        return (
            f"it needs code of its own ({config['model_file']}), which is not run (trust_remote_code);"
            " use a checkpoint of a type that mlx-lm has"
        )
    source = _module(model_type)
    if source is None:
        return _unknown(config, model_type)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
    merged = {**config, **text}
    if "vision_config" in config and not text and "vocab_size" not in config:
        return f"{model_type} is a vision model without a language part; use mlx-vlm"
    if expert_count(merged) < 2:
        return f"{model_type} is dense, it has no routed experts; use the llm-mlx plugin"
    if not _uses_switch(source):
        return (
            f"mlx-lm computes the experts of {model_type} one by one and not in a SwitchGLU,"
            " so they cannot be kept in slots; use the llm-mlx plugin"
        )
    return _foreign_format(merged) or _layout(tensors)


def expert_count(text: Mapping[str, Any]) -> int:
    """Routed experts of each layer according to the config; 0 when it names none."""
    counts = [0]
    for key in _COUNT_KEYS:
        outer, _, inner = key.rpartition(".")
        place = text.get(outer) if outer else text
        value = place.get(inner) if isinstance(place, Mapping) else None
        counts += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return max(counts)


def _unknown(config: Mapping[str, Any], model_type: str) -> str:
    from importlib.metadata import version

    if config.get("auto_map"):
        return (
            f"mlx-lm {version('mlx-lm')} has no {model_type}, and the code that comes with it is not run"
            " (trust_remote_code); upgrade mlx-lm once it supports the type"
        )
    return (
        f"mlx-lm {version('mlx-lm')} does not know the model type {model_type};"
        " if it is newer than that, upgrade mlx-lm"
    )


def _foreign_format(config: Mapping[str, Any]) -> str | None:
    """Refuse weights in a quantisation other than MLX's (mlx-lm would rewrite them whole while loading)."""
    if config.get("quantization"):
        return None
    method = (config.get("quantization_config") or {}).get("quant_method")
    if not method:
        return None
    return f"its weights are in the {method} format and not in MLX's; {_CONVERT}"


def _layout(tensors: list[str] | None) -> str | None:
    if tensors is None or any(re.search(r"\.(gate_proj|fc1)\.weight$", n) for n in tensors if _stackable(n)):
        return None
    if any(_ONE_BY_ONE.search(name) for name in tensors):
        return f"its files hold the experts in the layout of the original release and not stacked; {_CONVERT}"
    return f"its files hold no stacked experts; {_CONVERT}"


def _stackable(name: str) -> bool:
    return not re.search(r"\.experts\.\d+\.", name)


@cache
def _module(model_type: str) -> Path | None:
    """The file of mlx-lm that implements `model_type`, found without importing mlx-lm where possible."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or not spec.submodule_search_locations:
        raise CheckpointError("mlx-lm is not installed; run `pip install mlx-lm`.")
    models = Path(spec.submodule_search_locations[0]) / "models"
    if not re.fullmatch(r"\w+", model_type):
        return None
    file = models / f"{model_type}.py"
    if not file.exists():
        from mlx_lm.utils import MODEL_REMAPPING

        file = models / f"{MODEL_REMAPPING.get(model_type, '')}.py"
    return file if file.exists() and "class ModelArgs" in file.read_text() else None


@cache
def _uses_switch(source: Path) -> bool:
    """Whether this file of mlx-lm, or one that it imports, has its experts in a switch layer."""
    text = source.read_text()
    if "Switch" in text and ".switch_layers import" in text:
        return True
    imported = re.findall(r"^from \.(\w+) import", text, re.MULTILINE)
    for line in re.findall(r"^from \. import (.+)$", text, re.MULTILINE):
        imported += re.findall(r"\w+", line)
    files = (source.parent / f"{name}.py" for name in imported if name not in ("base", "cache"))
    return any(_uses_switch(file) for file in files if file.exists())
