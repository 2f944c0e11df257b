"""requantise: one projection of one expert from one quantisation to another, bytes in and bytes out."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from .spec import Quantization, Segment

_NUMPY = {"U32": np.uint32, "U8": np.uint8, "F16": np.float16, "F32": np.float32, "BF16": np.uint16}
_MLX = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}


def requantise(
    parts: dict[str, bytes],
    old: dict[str, Segment],
    new: dict[str, Segment],
    source: Quantization | None,
    target: Quantization,
) -> dict[str, bytes]:
    """`parts` (tensor name -> bytes, described by `old`) as `target` asks; the result is described by `new`.

    The values go through float32, so that the only rounding is the new grid's and that of its scales to their
    stored type. A "bias" (added after the product) passes through.
    """
    arrays = {name: _array(parts[name], segment) for name, segment in old.items() if name != "bias"}
    if source is None:
        values = arrays["weight"].astype(mx.float32)
    else:
        scales = arrays["scales"]
        scales = scales if scales.dtype == mx.uint8 else scales.astype(mx.float32)
        biases = arrays.get("biases")
        values = mx.dequantize(
            arrays["weight"],
            scales,
            None if biases is None else biases.astype(mx.float32),
            group_size=source.group_size,
            bits=source.bits,
            mode=source.mode,
            global_scale=arrays.get("global_scale"),
        ).astype(mx.float32)
    weight, scales, biases = mx.quantize(values, target.group_size, target.bits, mode=target.mode)
    floats = _MLX[new["scales"].dtype]
    made = {"weight": weight, "scales": scales.astype(floats), "biases": biases.astype(floats)}
    mx.eval(made)
    result = {name: bytes(memoryview(array).cast("B")) for name, array in made.items()}
    return result | ({"bias": parts["bias"]} if "bias" in parts else {})


def _array(data: bytes, segment: Segment) -> mx.array:
    array = mx.array(np.frombuffer(data, _NUMPY[segment.dtype]).reshape(segment.shape))
    return array.view(mx.bfloat16) if segment.dtype == "BF16" else array
