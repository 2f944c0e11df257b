"""Footprint: what a model needs besides its weights, read off the stock mlx-lm class with nothing computed.

MLX arrays are lazy: the class is built with its random weights and a token is fed through it, but nothing is
evaluated, so 80 billion parameters cost a few kilobytes and a tenth of a second. Shapes and types are all
that is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .checkpoint.spec import text_config
from .errors import CheckpointError, EngineError

if TYPE_CHECKING:
    import mlx.nn as nn

_KV_GROUP_BITS = 32 / 64  # a 16-bit scale and bias for each group of 64


@dataclass(frozen=True)
class GrowingCache:
    """Keys and values of one layer: bytes per token, tokens per allocation, the most it keeps (or None)."""

    key_bytes: int
    value_bytes: int
    step: int
    limit: int | None

    def tokens(self, context: int) -> int:
        """Tokens that are allocated once `context` tokens were seen."""
        allocated = -(-context // self.step) * self.step
        return allocated if self.limit is None else min(allocated, self.limit)


@dataclass(frozen=True)
class Footprint:
    """State and activations of a model, independent of its weights.

    recurrent_bytes: state that does not grow. widest_layer: values per token that all matrices of the widest
    layer's trunk put out. float_bytes: bytes of one such value. heads, head_dim: of the attention.
    """

    growing: tuple[GrowingCache, ...]
    recurrent_bytes: int
    widest_layer: int
    float_bytes: int
    heads: int
    head_dim: int

    def kv_bytes(self, context: int, key_bits: float = 16, value_bits: float = 16) -> int:
        """Keys and values of `context` tokens; the bits are per 16-bit value, scales included."""
        return sum(
            int(c.tokens(context) * (c.key_bytes * key_bits + c.value_bytes * value_bits) / 16)
            for c in self.growing
        )


def footprint(config: dict[str, Any], dtype: str | None = None) -> Footprint:
    """The footprint of the model that `config` (a whole config.json) describes.

    Raises:
        CheckpointError: mlx-lm does not know the model type or cannot build it from this config.
    """
    import mlx.core as mx
    from mlx_lm.utils import _get_classes

    try:
        model_class, args_class = _get_classes(config)
        model = model_class(args_class.from_dict(config))
        model.set_dtype(getattr(mx, dtype or _float_type(config)))
        return trace(model, config)
    except (ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise CheckpointError(
            f"mlx-lm cannot build a {config.get('model_type')} from its config"
            f" ({' '.join(str(error).split())[:200]}); upgrade mlx-lm, or check config.json."
        ) from error


def trace(model: nn.Module, config: dict[str, Any]) -> Footprint:
    """The footprint of a stock model whose weights need not be evaluated; its experts are taken out."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.cache import make_prompt_cache

    text = text_config(config)
    _without_experts(model)
    cache = make_prompt_cache(model)
    logits = model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    growing, fixed = [], []
    for entry in _leaves(cache):
        keys, values = getattr(entry, "keys", None), getattr(entry, "values", None)
        if isinstance(keys, mx.array):
            limit = getattr(entry, "max_size", None) or getattr(entry, "chunk_size", None)
            step = getattr(entry, "step", 1)
            growing.append(GrowingCache(_per_token(keys), _per_token(values), step, limit))
        else:
            arrays = [a for _, a in tree_flatten(entry.state) if isinstance(a, mx.array)]
            fixed.append(sum(a.nbytes for a in arrays))
    heads = int(text.get("num_attention_heads") or 1)
    return Footprint(
        growing=tuple(growing),
        recurrent_bytes=sum(fixed),
        widest_layer=max(map(_width, model.layers)),
        float_bytes=logits.dtype.size,
        heads=heads,
        head_dim=int(text.get("head_dim") or text["hidden_size"] // heads),
    )


def kv_bits(text: str) -> tuple[float, float]:
    """Bits per key value and per value value of a format such as "k4v3", scales included; "" is 16 and 16.

    Raises:
        EngineError: not such a format.
    """
    if not text:
        return 16, 16
    match = re.fullmatch(r"k(\d+)v(\d+)", text.lower())
    if match is None:
        raise EngineError(f"{text!r} is not a KV format; write it like k4v3, or leave it empty.")
    key, value = (int(b) for b in match.groups())
    return key + _KV_GROUP_BITS, value + _KV_GROUP_BITS


def _leaves(cache: list[Any]) -> list[Any]:
    """The entries of a cache, with nested lists of caches opened."""
    found = []
    for entry in cache:
        nested = getattr(entry, "caches", None)
        found += _leaves(nested) if nested is not None else [entry]
    return found


def _per_token(array: Any) -> int:
    """Bytes per token of keys or values (batch, heads, tokens, width)."""
    return array.nbytes // array.shape[2] if array is not None and array.ndim == 4 else 0


def _width(layer: nn.Module) -> int:
    """Output values per token of all matrices below `layer`."""
    leaves = [m for _, m in layer.named_modules() if "weight" in m and m["weight"].ndim == 2]
    return sum(m["weight"].shape[0] for m in leaves)


def _without_experts(module: nn.Module) -> None:
    """Put shape-only stand-ins in place of the routed experts, so that no expert enters the graph."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

    class NoExperts(nn.Module):
        def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
            return mx.broadcast_to(x[..., None, :], (*indices.shape, x.shape[-1]))

    for name, child in list(module.items()):
        if isinstance(child, SwitchGLU | SwitchMLP):
            module[name] = NoExperts()
        for inner in child if isinstance(child, list) else [child]:
            if isinstance(inner, nn.Module):
                _without_experts(inner)


def _float_type(config: dict[str, Any]) -> str:
    text = text_config(config)
    named = str(text.get("torch_dtype") or text.get("dtype") or "bfloat16")
    return named if named in ("float16", "bfloat16", "float32") else "bfloat16"
