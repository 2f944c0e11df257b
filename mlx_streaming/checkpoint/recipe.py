"""Recipe: which bits each projection of each layer gets when experts are packed, and the records so made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import CheckpointError
from .index import DTYPE_BYTES
from .packed import PackedLayer, aligned
from .spec import ExpertLayer, ModelSpec, Quantization, Segment

# What mx.quantize takes in its affine mode (1 bit is left out: it cannot represent trained experts).
BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
_DEFAULT_GROUP = 64
_OWN_DTYPE = ("F16", "BF16", "F32")


@dataclass(frozen=True)
class Recipe:
    """Bits to pack with; None everywhere keeps the checkpoint's own, byte for byte.

    bits: all projections; gate_bits, up_bits, down_bits: one projection, stronger than `bits`.
    edge_layers: that many streamed layers at each end get `edge_bits` in all projections (None: their own).
    group_size: values per scale of whatever is requantised (None: the checkpoint's, or 64).

    Raises:
        CheckpointError: bits or a group size that MLX does not support.
    """

    bits: int | None = None
    gate_bits: int | None = None
    up_bits: int | None = None
    down_bits: int | None = None
    edge_layers: int = 0
    edge_bits: int | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        for bits in (self.bits, self.gate_bits, self.up_bits, self.down_bits, self.edge_bits):
            if bits is not None and bits not in BITS:
                raise CheckpointError(f"Experts cannot have {bits} bits; choose one of {_listed(BITS)}.")
        if self.group_size is not None and self.group_size not in GROUP_SIZES:
            raise CheckpointError(
                f"Experts cannot have groups of {self.group_size}; choose one of {_listed(GROUP_SIZES)}."
            )
        if self.edge_layers < 0 or (self.edge_bits is not None and self.edge_layers == 0):
            raise CheckpointError("edge_bits needs edge_layers of 1 or more; give --edge-layers N too.")

    def target(
        self, position: int, count: int, proj: str, source: Quantization | None
    ) -> Quantization | None:
        """How `proj` of streamed layer number `position` (of `count`) is to be quantised."""
        if position < self.edge_layers or position >= count - self.edge_layers:
            bits, group_size = self.edge_bits, self.group_size if self.edge_bits else None
        else:
            own = {"gate_proj": self.gate_bits, "up_proj": self.up_bits, "down_proj": self.down_bits}
            bits, group_size = own.get(proj) or self.bits, self.group_size
        affine = source is not None and source.mode == "affine"
        if bits is None and not (group_size and affine):
            return source
        return Quantization(
            group_size=group_size or (source.group_size if affine else _DEFAULT_GROUP),
            bits=bits or source.bits,
            mode="affine",
        )


def source_quantization(spec: ModelSpec, experts: ExpertLayer) -> dict[str, Quantization | None]:
    """How the checkpoint's config says each projection is quantised (the rule of `mlx_lm.utils.load_model`).

    Raises:
        CheckpointError: there are scales, but the config does not say how they were made, or is wrong.
    """
    scaled = {s.proj for s in experts.segments if s.tensor == "scales"}
    found: dict[str, Quantization | None] = {}
    for proj in dict.fromkeys(s.proj for s in experts.segments):
        own = spec.quantization.get(f"{experts.prefix}.{proj}", spec.quantization)
        if proj not in scaled:
            found[proj] = None
        elif isinstance(own, dict) and "bits" in own and "group_size" in own:
            found[proj] = Quantization(own["group_size"], own["bits"], own.get("mode", "affine"))
            _check_shapes(experts, proj, found[proj])
        else:
            raise CheckpointError(
                f"The config of {spec.path} does not say how {experts.prefix}.{proj} is quantised;"
                " pack it without changing bits."
            )
    return found


def planned_layers(spec: ModelSpec, recipe: Recipe) -> dict[int, PackedLayer]:
    """The layer files that `recipe` makes of `spec`, with zeros for checksums.

    Raises:
        CheckpointError: a projection's width does not divide by the group size, or its source is unknown.
    """
    planned = {}
    for position, (number, experts) in enumerate(spec.experts.items()):
        if recipe == Recipe():
            segments, quantization = experts.segments, None
        else:
            old = source_quantization(spec, experts)
            new = {p: recipe.target(position, len(spec.experts), p, q) for p, q in old.items()}
            segments, quantization = _segments(experts, old, new), new if new != old else None
        planned[number] = PackedLayer(
            layer=number,
            file=f"layer-{number:04d}.experts",
            record_bytes=aligned(sum(s.nbytes for s in segments)),
            segments=segments,
            quantization=quantization,
            checksums=(0,) * experts.num_experts,
        )
    return planned


def _segments(
    experts: ExpertLayer, old: dict[str, Quantization | None], new: dict[str, Quantization | None]
) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for proj in old:
        own = [s for s in experts.segments if s.proj == proj]
        if not own or old[proj] == new[proj]:
            segments += own
            continue
        parts = {s.tensor: s for s in own}
        rows, width = _matrix_shape(parts["weight"], old[proj])
        target = new[proj]
        if width % target.group_size or width * target.bits % 32:
            raise CheckpointError(
                f"{experts.prefix}.{proj} is {width} values wide, which groups of {target.group_size} at"
                f" {target.bits} bits do not divide; choose another --group-size."
            )
        floats = (parts["scales"] if "scales" in parts else parts["weight"]).dtype
        floats = floats if floats in _OWN_DTYPE else "BF16"
        segments.append(_segment(proj, "weight", "U32", (rows, width * target.bits // 32)))
        segments += [
            _segment(proj, name, floats, (rows, width // target.group_size)) for name in ("scales", "biases")
        ]
        segments += [parts["bias"]] if "bias" in parts else []
    return tuple(segments)


def _segment(proj: str, tensor: str, dtype: str, shape: tuple[int, ...]) -> Segment:
    return Segment(proj, tensor, dtype, shape, math.prod(shape) * DTYPE_BYTES[dtype])


def _matrix_shape(weight: Segment, quantization: Quantization | None) -> tuple[int, int]:
    rows, columns = weight.shape
    return (rows, columns) if quantization is None else (rows, columns * 32 // quantization.bits)


def _check_shapes(experts: ExpertLayer, proj: str, quantization: Quantization) -> None:
    shapes = {s.tensor: s.shape for s in experts.segments if s.proj == proj}
    packed, groups = shapes["weight"][-1], shapes["scales"][-1]
    if packed * 32 != groups * quantization.group_size * quantization.bits:
        raise CheckpointError(
            f"{experts.prefix}.{proj} does not have the {quantization.bits} bits in groups of"
            f" {quantization.group_size} that the config names; download the checkpoint again."
        )


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
