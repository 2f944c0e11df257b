"""TensorIndex: where every tensor of a checkpoint lies, read from the safetensors headers alone.

Format: https://huggingface.co/docs/safetensors (8-byte little-endian header length, JSON header, data).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SHARD_PATTERN = "model*.safetensors"
_MAX_HEADER = 100_000_000
DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor on disk: `dtype` is a safetensors code, `offset` is its first byte in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class TensorIndex:
    """All tensors of a checkpoint directory, by name."""

    path: Path
    tensors: dict[str, TensorInfo] = field(repr=False)
    files: tuple[Path, ...] = ()

    @classmethod
    def open(cls, path: str | Path) -> TensorIndex:
        """Index the shards of the checkpoint directory `path` (`model*.safetensors`).

        Raises:
            CheckpointError: no shards, a shard missing or truncated, or a header that contradicts itself.
        """
        path = Path(path)
        try:
            present = path.is_dir()
        except OSError as error:
            raise CheckpointError(f"Cannot read {path}: {error.strerror}; check its permissions.") from error
        if not present:
            raise CheckpointError(
                f"No checkpoint directory at {path}; check the path, or run `llm mlx-streaming download`."
            )
        expected = _weight_map(path)
        files = sorted(path.glob(SHARD_PATTERN))
        missing = sorted({*expected.values()} - {f.name for f in files})
        if missing:
            raise CheckpointError(f"Shard {missing[0]} of {path} is missing; download the checkpoint again.")
        if not files:
            raise CheckpointError(
                f"No {SHARD_PATTERN} files in {path}; give a directory with an mlx-lm checkpoint, or get one"
                " with: llm mlx-streaming download"
            )
        index = cls.of_files(path, files)
        for name, shard in expected.items():
            found = index.tensors.get(name)
            if found is None or found.file.name != shard:
                raise CheckpointError(
                    f"{path / INDEX_NAME} says that {shard} holds {name}, but it does not;"
                    " download the checkpoint again."
                )
        return index

    @classmethod
    def of_files(cls, path: Path, files: Iterable[Path]) -> TensorIndex:
        """Index just `files`.

        Raises:
            CheckpointError: as `open`, and for a tensor name that two files hold.
        """
        tensors: dict[str, TensorInfo] = {}
        files = tuple(files)
        for file in files:
            for info in read_header(file):
                if info.name in tensors:
                    raise CheckpointError(
                        f"{info.name} is in {tensors[info.name].file.name} and again in {file.name};"
                        " remove the shards that do not belong to the checkpoint."
                    )
                tensors[info.name] = info
        return cls(path=path, tensors=tensors, files=files)

    def digest(self) -> str:
        """Identity of the weights: sha256 (hex) over names, types, shapes, places, file sizes and ends.

        Computed at the first call; open the index again to see whether the files have changed since.
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        hasher = hashlib.sha256()
        for info in sorted(self.tensors.values(), key=lambda t: t.name):
            hasher.update(f"{info.name}|{info.dtype}|{info.shape}|{info.file.name}|{info.offset}\n".encode())
        for file in self.files:
            stat = file.stat()
            hasher.update(f"{file.name}|{stat.st_size}|{_edges(file, stat.st_size)}\n".encode())
        return hasher.hexdigest()


def read_header(file: Path) -> list[TensorInfo]:
    """The tensors that the header of one safetensors file lists.

    Raises:
        CheckpointError: unreadable, truncated or inconsistent file; the message names it.
    """
    try:
        size = file.stat().st_size
        with open(file, "rb") as handle:
            prefix = handle.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise _damaged(file, f"its header length {length} does not fit a file of {size} bytes")
            header = json.loads(handle.read(length), object_pairs_hook=_distinct)
    except _Repeated as error:
        raise _damaged(file, f"its header names {error} twice") from error
    except OSError as error:
        raise CheckpointError(
            f"Cannot read {file}: {error.strerror}; check its permissions or download it again."
        ) from error
    except ValueError as error:
        raise _damaged(file, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _damaged(file, "its header is not a JSON object")
    header.pop("__metadata__", None)
    found = [_tensor(file, name, entry, 8 + length, size) for name, entry in header.items()]
    _check_overlap(file, found)
    return found


class _Repeated(ValueError):
    """A JSON object with one key twice, of which `json` would keep the last."""


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in found if names.count(name) > 1))
    return found


def _tensor(file: Path, name: str, entry: object, start: int, size: int) -> TensorInfo:
    try:
        dtype = entry["dtype"]
        shape = tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(file, f"its entry for {name} is malformed") from error
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _damaged(file, f"{name} has the unknown type {dtype}")
    if not 0 <= begin <= end or start + end > size:
        raise _damaged(file, f"{name} should end at byte {start + end}, but the file has {size}")
    if min(shape, default=0) < 0 or math.prod(shape) * DTYPE_BYTES[dtype] != end - begin:
        raise _damaged(
            file, f"{name} of shape {list(shape)} and type {dtype} cannot take {end - begin} bytes"
        )
    return TensorInfo(name, dtype, shape, file, start + begin, end - begin)


def _check_overlap(file: Path, tensors: list[TensorInfo]) -> None:
    end, last = 0, ""
    for info in sorted((t for t in tensors if t.nbytes), key=lambda t: t.offset):
        if info.offset < end:
            raise _damaged(file, f"{last} and {info.name} overlap")
        end, last = info.offset + info.nbytes, info.name


def _damaged(file: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{file} is damaged or truncated: {why}; download it again.")


def _weight_map(path: Path) -> dict[str, str]:
    file = path / INDEX_NAME
    if not file.exists():
        return {}
    try:
        weight_map = json.loads(file.read_text())["weight_map"]
        return {str(k): str(v) for k, v in weight_map.items()}
    except OSError as error:
        raise CheckpointError(f"Cannot read {file}: {error.strerror}; check its permissions.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is not an index of shards; download it again.") from error


def _edges(file: Path, size: int) -> str:
    """A cheap content mark: hash of the last 4 KiB, so that two trainings of one shape differ."""
    with open(file, "rb") as handle:
        handle.seek(max(0, size - 4096))
        return hashlib.sha256(handle.read()).hexdigest()
