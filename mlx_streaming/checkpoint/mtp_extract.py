"""The MTP head on disk: finding it, reading raw release tensors, writing the packed form.

Raw: `mtp.*` as in the release (one tensor per expert, norms zero-centred), in a file of its own or among
the shards. Packed: one safetensors file with the experts stacked (expert e of a tensor is contiguous, so
it can be streamed in place), norms shifted by one as mlx-lm has them, everything quantised as its
metadata says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ..errors import CheckpointError
from .index import TensorIndex
from .spec import PROJECTIONS

PACKED_NAME = "mtp.safetensors"
PREFIX = "mtp."
EXPERTS = "mtp.layers.0.mlp.experts."
STACKED = "mtp.layers.0.mlp.switch_mlp"
FORMAT = "1"
GATE_BITS = 8  # router and shared-expert gate: small, and their errors choose other experts
_GATES = (".mlp.gate.weight", ".mlp.shared_expert_gate.weight")


@dataclass(frozen=True)
class HeadBits:
    """Quantisation of a head: `trunk` bits (16: not quantised) and `experts` bits, affine, one group
    size."""

    trunk: int = 8
    experts: int = 4
    group_size: int = 64

    def of(self, name: str) -> int | None:
        """Bits for the 2-D weight `name`, or None to keep it as it is."""
        bits = self.experts if name.startswith((EXPERTS, STACKED)) else self.trunk
        if bits < 16 and name.endswith(_GATES):
            bits = max(bits, GATE_BITS)
        return bits if bits < 16 else None


@dataclass(frozen=True)
class HeadFile:
    """Where a head lies: `index` covers the files with `mtp.*` tensors."""

    path: Path
    index: TensorIndex
    packed: bool

    @property
    def names(self) -> list[str]:
        return [n for n in self.index.tensors if n.startswith(PREFIX)]

    def metadata(self) -> dict[str, str]:
        """The safetensors metadata of a packed file."""
        return mx.load(str(self.index.files[0]), return_metadata=True)[1]


def find_head(path: Path) -> HeadFile | None:
    """The MTP head in a file or checkpoint directory, packed form first; None if there is none.

    Raises:
        CheckpointError: a file that holds the head is damaged.
    """
    path = Path(path)
    if path.is_file():
        candidates = [[path]]
    else:
        extra = sorted(p for p in path.glob("mtp*.safetensors") if p.name != PACKED_NAME)
        shards = sorted(path.glob("model*.safetensors"))
        candidates = [[path / PACKED_NAME], extra, _shards_with_head(path, shards)]
    for files in candidates:
        files = [f for f in files if f.is_file()]
        if not files:
            continue
        index = TensorIndex.of_files(path, files)
        head = HeadFile(path, index, f"{STACKED}.gate_proj.weight" in index.tensors)
        if head.names:
            return head
    return None


def _shards_with_head(path: Path, shards: list[Path]) -> list[Path]:
    return [f for f in shards if any(n.startswith(PREFIX) for n in TensorIndex.of_files(path, [f]).tensors)]


def extract(
    source: Path,
    target: Path,
    bits: HeadBits = HeadBits(),
    dtype: mx.Dtype | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the head in `source` (a raw file or a directory) as a packed file; returns its bytes.

    Experts pass through one at a time, so memory holds little more than the packed form. `dtype` is the
    type of norms, scales and unquantised weights (None: as released). The file appears whole or not at
    all.

    Raises:
        CheckpointError: no raw head there, or it lacks tensors.
    """
    head = find_head(source)
    if head is None:
        raise CheckpointError(
            f"{source} holds no mtp.* tensors (conversions for MLX drop them); give the shard of the release"
            " that has them."
        )
    if head.packed:
        raise CheckpointError(f"{source} is a packed head already; use it as it is.")
    weights, quantization = convert(head, bits, dtype, on_progress)
    metadata = {
        "format": "mlx",
        "mtp_format": FORMAT,
        "quantization": json.dumps(quantization),
        "source": head.index.digest(),
    }
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.stem}.{os.getpid()}.safetensors")
    try:
        mx.save_safetensors(str(partial), weights, metadata=metadata)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def convert(
    head: HeadFile,
    bits: HeadBits,
    dtype: mx.Dtype | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, mx.array], dict[str, dict]]:
    """A raw head in packed naming: (arrays by name, {module path: quantisation}).

    Raises:
        CheckpointError: the experts are not numbered 0..n-1 in all three projections.
    """
    arrays: dict[str, mx.array] = {}
    for file in head.index.files:
        arrays |= {k: v for k, v in mx.load(str(file)).items() if k.startswith(PREFIX)}
    experts = _expert_numbers(head)
    weights: dict[str, mx.array] = {}
    quantization: dict[str, dict] = {}
    done, total = 0, len(arrays)
    for name in [n for n in arrays if not n.startswith(EXPERTS)]:
        parts, entry = _converted(name, arrays.pop(name), bits, dtype)
        weights |= parts
        if entry:
            quantization[name.removesuffix(".weight")] = entry
        done += 1
        on_progress(done, total)
    for proj in PROJECTIONS:
        stacks: dict[str, list[mx.array]] = {}
        for e in range(experts):
            name = f"{EXPERTS}{e}.{proj}.weight"
            parts, entry = _converted(name, arrays.pop(name), bits, dtype)
            for key, value in parts.items():
                stacks.setdefault(key.rsplit(".", 1)[1], []).append(value)
            done += 1
            on_progress(done, total)
        for tensor, values in stacks.items():
            weights[f"{STACKED}.{proj}.{tensor}"] = mx.stack(values)
            mx.eval(weights[f"{STACKED}.{proj}.{tensor}"])
        if entry:
            quantization[f"{STACKED}.{proj}"] = entry
    return weights, quantization


def _converted(
    name: str, value: mx.array, bits: HeadBits, dtype: mx.Dtype | None
) -> tuple[dict[str, mx.array], dict | None]:
    dtype = dtype or value.dtype
    if value.ndim == 1:
        shifted = (value.astype(mx.float32) + 1.0).astype(dtype)  # release norms are zero-centred
        mx.eval(shifted)
        return {name: shifted}, None
    wanted = bits.of(name)
    if wanted is None or value.shape[-1] % bits.group_size:
        value = value.astype(dtype)
        mx.eval(value)
        return {name: value}, None
    base = name.removesuffix(".weight")
    parts = mx.quantize(value.astype(dtype), group_size=bits.group_size, bits=wanted)
    mx.eval(parts)
    named = {f"{base}.{k}": v for k, v in zip(("weight", "scales", "biases"), parts, strict=True)}
    return named, {"group_size": bits.group_size, "bits": wanted, "mode": "affine"}


def _expert_numbers(head: HeadFile) -> int:
    found: dict[str, set[int]] = {proj: set() for proj in PROJECTIONS}
    for number, proj in _expert_names(head):
        found[proj].add(number)
    count = len(found[PROJECTIONS[0]])
    if not count or any(numbers != set(range(count)) for numbers in found.values()):
        raise CheckpointError(
            f"{head.path} does not hold a complete set of {EXPERTS}N.* tensors;"
            " extract from the complete release."
        )
    return count


def _expert_names(head: HeadFile) -> Iterator[tuple[int, str]]:
    for name in head.names:
        if name.startswith(EXPERTS):
            number, proj, *_ = name.removeprefix(EXPERTS).split(".")
            if number.isdigit() and proj in PROJECTIONS:
                yield int(number), proj
