"""Values for synthetic tensors: random, reproducible, such that logits are finite and depend on the token.

Weights have variance gain^2 / inputs, norms lie around one, the decay of recurrent layers covers short and
long memories (A in 1..16 and a step in 0.001..0.1, as the Mamba releases are initialised).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PIECE = 1 << 22  # values drawn at once
_SHARP = 4.0  # gain of routers and of the vocabulary: choices clearly depend on the input
_MXFP4_RMS = math.sqrt(68.5 / 8)  # of the eight magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6


@dataclass(frozen=True)
class Drawing:
    """How one tensor is drawn.

    kind: "codes" (random bits), "scales", "biases" (affine; the biases centre the codes), "exponents" (mxfp4
    scales), "normal", "norm", "decay" (log A) or "step" (inverse softplus of the step).
    key: what the random stream is derived from; a module's scales and biases share it. scale: standard
    deviation, or step between codes. bits: of the codes. mean: of a norm. rows: rows drawn, those beyond stay
    zero (0: all).
    """

    kind: str
    key: str
    scale: float = 1.0
    bits: int = 0
    mean: float = 1.0
    rows: int = 0

    @classmethod
    def of(
        cls, owner: str, leaf: str, shape: tuple[int, ...], module: Any, tokens: int, norm_mean: float = 1.0
    ) -> Drawing:
        """Decide from the name `owner.leaf`, the shape and the (possibly quantised) module that owns it.

        tokens: rows of the vocabulary that are used.
        """
        name = f"{owner}.{leaf}"
        vocabulary = owner.endswith(("lm_head", "embed_tokens"))
        router = owner.endswith((".gate", ".router"))
        gain = _SHARP if vocabulary or router else 1.0
        rows = tokens if vocabulary else 0
        quantized = module is not None and getattr(module, "bits", None) and "scales" in module
        if quantized and leaf in ("weight", "scales", "biases"):
            if leaf == "weight":
                return cls("codes", name)
            inputs = module.weight.shape[-1] * 32 // module.bits
            spread = gain / math.sqrt(inputs)
            if module.mode == "mxfp4":
                return cls("exponents", name, spread / _MXFP4_RMS)
            step = spread / math.sqrt((4**module.bits - 1) / 12)
            return cls(leaf, f"{owner}.scales", step, bits=module.bits, rows=rows)
        if leaf == "A_log":
            return cls("decay", name)
        if leaf == "dt_bias":
            return cls("step", name)
        if len(shape) == 1 and "norm" in name:
            return cls("norm", name, 0.1, mean=norm_mean)
        if leaf != "weight":
            return cls("normal", name, 0.1)
        inputs = shape[-1] if shape[-1] > 1 else shape[-2]  # a depthwise convolution ends in 1
        return cls("normal", name, gain / math.sqrt(inputs), rows=rows)


def draw(drawing: Drawing, shape: tuple[int, ...], dtype: str, seed: int) -> Iterator[Any]:
    """The tensor's values in order, as one-dimensional numpy arrays of at most a few million.

    dtype: safetensors code; bfloat16 comes as its bits in uint16.
    """
    import numpy as np

    stream = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(drawing.key.encode())]))
    generator = np.random.Generator(stream)
    total = math.prod(shape)
    filled = total if not drawing.rows else min(total, drawing.rows * math.prod(shape[1:]))
    for start in range(0, total, _PIECE):
        count = min(_PIECE, total - start)
        values = _values(drawing, generator, count)
        if start + count > filled:
            values[max(0, filled - start) :] = 0
        yield _encoded(values, dtype)


def _values(drawing: Drawing, generator: Any, count: int) -> Any:
    import numpy as np

    kind, scale = drawing.kind, np.float32(drawing.scale)
    if kind == "codes":
        return generator.integers(0, 1 << 64, (count + 1) // 2, np.uint64).view(np.uint32)[:count]
    if kind == "exponents":
        return (127 + round(math.log2(drawing.scale)) + generator.integers(-1, 1, count)).astype(np.uint8)
    if kind in ("scales", "biases"):
        steps = scale * (np.float32(0.75) + np.float32(0.5) * generator.random(count, np.float32))
        return steps if kind == "scales" else -steps * np.float32((2**drawing.bits - 1) / 2)
    if kind == "decay":
        return np.log(1 + 15 * generator.random(count, np.float32))
    if kind == "step":
        step = np.exp(np.log(0.001) + (np.log(0.1) - np.log(0.001)) * generator.random(count, np.float32))
        return (step + np.log(-np.expm1(-step))).astype(np.float32)
    normal = generator.standard_normal(count, np.float32) * scale
    return normal + np.float32(drawing.mean) if kind == "norm" else normal


def _encoded(values: Any, dtype: str) -> Any:
    import numpy as np

    if dtype == "F32":
        return values.astype(np.float32, copy=False)
    if dtype == "BF16":  # round half up; the values are finite
        return ((values.astype(np.float32, copy=False).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    return values
