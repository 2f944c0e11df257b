"""Packed experts on disk: one file per layer, one aligned record per expert, and a manifest.

A record is the expert's segments one after the other, then zeros up to the next multiple of ALIGNMENT. Its
checksum covers all of it, so every byte of a layer file is accounted for.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .index import DTYPE_BYTES
from .spec import Quantization, Segment

FORMAT = "mlx-streaming-experts"
VERSION = 1
MANIFEST = "manifest.json"
# Apple's page size, and a multiple of Linux's: an uncached read of one record never shares a page with a
# neighbour. It costs nothing at real sizes (one Qwen3-Next expert at 4 bits is 108 such pages).
ALIGNMENT = 16384
# The fastest sum of the standard library (3.2 GB/s on an x86 core; sha256 1.5, blake2b 0.7); it is meant for
# damage, not for malice.
CHECKSUM = "crc32"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PackedLayer:
    """One layer's file. `segments` are per expert, in record order; `checksums[e]` is the crc32 of record e.

    quantization: per projection (None: not quantised), or None where the checkpoint's config still holds.
    """

    layer: int
    file: str
    record_bytes: int
    segments: tuple[Segment, ...]
    quantization: dict[str, Quantization | None] | None
    checksums: tuple[int, ...]

    @property
    def num_experts(self) -> int:
        return len(self.checksums)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert, without padding."""
        return sum(s.nbytes for s in self.segments)

    @property
    def file_bytes(self) -> int:
        return self.num_experts * self.record_bytes

    def to_json(self) -> dict[str, Any]:
        quantization = self.quantization and {k: q and vars(q) for k, q in self.quantization.items()}
        return {
            "layer": self.layer,
            "file": self.file,
            "record_bytes": self.record_bytes,
            "segments": [vars(s) | {"shape": list(s.shape)} for s in self.segments],
            "quantization": quantization,
            "checksums": [f"{c:08x}" for c in self.checksums],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PackedLayer:
        """The inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: not what `to_json` writes.
        """
        quantization = data["quantization"]
        if quantization is not None:
            quantization = {k: q and Quantization(**q) for k, q in quantization.items()}
        layer = cls(
            layer=int(data["layer"]),
            file=str(data["file"]),
            record_bytes=int(data["record_bytes"]),
            segments=tuple(Segment(**(s | {"shape": tuple(s["shape"])})) for s in data["segments"]),
            quantization=quantization,
            checksums=tuple(int(c, 16) for c in data["checksums"]),
        )
        for segment in layer.segments:
            if math.prod(segment.shape) * DTYPE_BYTES[segment.dtype] != segment.nbytes:
                raise ValueError(f"segment {segment.proj}.{segment.tensor} has the wrong size")
        if not layer.checksums or layer.record_bytes != aligned(layer.expert_bytes):
            raise ValueError(f"layer {layer.layer} has impossible records")
        if Path(layer.file).name != layer.file:
            raise ValueError(f"{layer.file!r} is not a file name")
        return layer


@dataclass(frozen=True)
class Manifest:
    """What a packed directory holds. `source` is the `TensorIndex.digest()` of its checkpoint."""

    source: str
    recipe: dict[str, Any]
    layers: dict[int, PackedLayer]

    @property
    def nbytes(self) -> int:
        """Bytes of all layer files."""
        return sum(layer.file_bytes for layer in self.layers.values())

    @property
    def unchanged(self) -> bool:
        """Whether every expert is byte for byte the checkpoint's."""
        return all(layer.quantization is None for layer in self.layers.values())

    def identity(self) -> str:
        """Identity of the experts' values: the source's own where nothing was requantised."""
        if self.unchanged:
            return self.source
        sums = "".join(f"{layer.layer}:{layer.checksums}" for layer in self.layers.values())
        return hashlib.sha256(f"{self.source}|{sums}".encode()).hexdigest()

    def write(self, directory: Path) -> None:
        """Write `manifest.json` into `directory`, whole or not at all."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "recipe": self.recipe,
            "alignment": ALIGNMENT,
            "checksum": CHECKSUM,
            "layers": [layer.to_json() for layer in self.layers.values()],
        }
        write_json(directory / MANIFEST, body | {"sha256": _digest(body)})

    @classmethod
    def read(cls, directory: str | Path) -> Manifest:
        """The manifest of a packed directory.

        Raises:
            CheckpointError: missing, damaged, or of another format version.
        """
        file = Path(directory) / MANIFEST
        body = _read_body(file)
        again = "pack the checkpoint again"
        if body.get("format") != FORMAT:
            raise CheckpointError(f"{file} does not describe packed experts; {again}.")
        if body.get("version") != VERSION:
            raise CheckpointError(
                f"{file} has format version {body.get('version')}, this program reads {VERSION}; {again}."
            )
        if body.pop("sha256", None) != _digest(body):
            raise CheckpointError(f"{file} is damaged (its own checksum differs); {again}.")
        try:
            layers = [PackedLayer.from_json(entry) for entry in body["layers"]]
            source, recipe = str(body["source"]), dict(body["recipe"])
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{file} is malformed ({error}); {again}.") from error
        if not layers or body.get("checksum") != CHECKSUM:
            raise CheckpointError(
                f"{file} lists no layers, or sums of another kind than {CHECKSUM}; {again}."
            )
        return cls(source, recipe, {layer.layer: layer for layer in layers})

    def check_files(self, directory: str | Path) -> None:
        """Compare the layer files' sizes with the manifest.

        Raises:
            CheckpointError: a file is missing, unreadable or of another size.
        """
        for layer in self.layers.values():
            file = Path(directory) / layer.file
            try:
                size = file.stat().st_size
            except OSError as error:
                raise CheckpointError(
                    f"Packed experts of layer {layer.layer}: {file} cannot be read ({error.strerror});"
                    " pack the checkpoint again."
                ) from error
            if size != layer.file_bytes:
                raise CheckpointError(
                    f"Packed experts of layer {layer.layer}: {file} has {size} bytes instead of"
                    f" {layer.file_bytes}, it is truncated or was replaced; pack the checkpoint again."
                )


@dataclass(frozen=True)
class Verified:
    """What `verify` compared, and what was wrong (one sentence each)."""

    layers: int
    records: int
    nbytes: int
    problems: tuple[str, ...] = field(default=())


def verify(directory: str | Path, on_progress: Progress | None = None) -> Verified:
    """Read every record again and compare its checksum; `on_progress(bytes so far, all bytes)` after each.

    Raises:
        CheckpointError: no usable manifest, or nothing to compare.
    """
    directory = Path(directory)
    manifest = Manifest.read(directory)
    problems: list[str] = []
    records = done = 0
    for layer in manifest.layers.values():
        try:
            with open(directory / layer.file, "rb", buffering=0) as file:
                for expert, expected in enumerate(layer.checksums):
                    record = file.read(layer.record_bytes)
                    records += 1
                    done += len(record)
                    if len(record) != layer.record_bytes:
                        problems.append(f"Layer {layer.layer} expert {expert}: {layer.file} ends early.")
                        break
                    if zlib.crc32(record) != expected:
                        problems.append(f"Layer {layer.layer} expert {expert}: {layer.file} is damaged.")
                    if on_progress:
                        on_progress(done, manifest.nbytes)
                if file.read(1):
                    problems.append(f"Layer {layer.layer}: {layer.file} is longer than its records.")
        except OSError as error:
            problems.append(f"Layer {layer.layer}: {layer.file} cannot be read ({error.strerror}).")
    if not records and not problems:
        raise CheckpointError(f"Nothing was verified in {directory}; pack the checkpoint again.")
    return Verified(len(manifest.layers), records, done, tuple(problems))


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Write `data` to `file`, durable and whole or not at all."""
    partial = file.with_name(file.name + ".partial")
    with open(partial, "w") as handle:
        json.dump(data, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, file)
    sync_directory(file.parent)


def sync_directory(directory: Path) -> None:
    """Make renames inside `directory` durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _read_body(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{file} is missing, so {file.parent} is not a finished pack; run `llm mlx-streaming pack` again."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); pack the checkpoint again.") from error
    if not isinstance(body, dict):
        raise CheckpointError(f"{file} is not a JSON object; pack the checkpoint again.")
    return body


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
