"""Entry files: safetensors written so that they are whole or absent, and read straight into given buffers.

The header's `__metadata__` holds one CRC-32 per tensor; the SHA-256 of the header is kept by the index, so
the two together cover every byte. Nothing here knows MLX: bfloat16 travels as its 16-bit pattern.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CODES = {
    "BF16": np.dtype("uint16"),
    "F16": np.dtype("float16"),
    "F32": np.dtype("float32"),
    "F64": np.dtype("float64"),
    "U8": np.dtype("uint8"),
    "U16": np.dtype("uint16"),
    "U32": np.dtype("uint32"),
    "U64": np.dtype("uint64"),
    "I8": np.dtype("int8"),
    "I16": np.dtype("int16"),
    "I32": np.dtype("int32"),
    "I64": np.dtype("int64"),
    "BOOL": np.dtype("bool"),
}
MAX_HEADER = 1 << 26  # bytes
TEMPORARY = ".partial"
_OURS = re.compile(r"[0-9a-f]{32}-(rows|state)-[0-9a-f]{8}\.safetensors|\.[0-9a-f]{16}\.partial")


class Stale(Exception):
    """A stored entry cannot be used; `reason` is one word for the statistics."""

    def __init__(self, reason: str, entry: str = ""):
        super().__init__(f"{reason} {entry}".strip())
        self.reason = reason
        self.entry = entry


@dataclass(frozen=True)
class Tensor:
    """One array on the host: safetensors dtype code and C-contiguous data of the matching numpy dtype."""

    code: str
    data: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def read_into(self, views: Iterable[np.ndarray]) -> None:
        """Copy the data, in order, into flat byte views that add up to its size."""
        flat = self.data.reshape(-1).view(np.uint8)
        at = 0
        for view in views:
            view[:] = flat[at : at + view.size]
            at += view.size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of an entry file: where it lies and the checksum it must have.

    The file is opened for each read: a long conversation has more entries than a process may have open files.
    """

    code: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int
    crc: int
    path: Path
    entry: str

    def read_into(self, views: Iterable[np.ndarray]) -> None:
        """Read into flat byte views that add up to its size, checking the CRC-32 on the way.

        Raises:
            Stale: the file is gone or shorter than its header says, or its bytes have changed.
        """
        at, crc = self.offset, 0
        with _opened(self.path, self.entry) as fd:
            for view in views:
                part = memoryview(view)
                while len(part):
                    got = os.preadv(fd, [part], at)
                    if got <= 0:
                        raise Stale("truncated", self.entry)
                    crc = zlib.crc32(part[:got], crc)
                    part = part[got:]
                    at += got
        if crc != self.crc:
            raise Stale("checksum", self.entry)


@dataclass(frozen=True)
class EntryFile:
    """The header of an entry file: `meta` as given to `write_entry`, and where its tensors are."""

    meta: dict[str, str]
    tensors: dict[str, StoredTensor]

    @classmethod
    def read(cls, path: Path, check: str, entry: str) -> EntryFile:
        """Read and check the header; `check` is the SHA-256 hex it must have, `entry` whose file it is.

        Raises:
            Stale: missing, truncated, or not the file that the index describes.
        """
        with _opened(path, entry) as fd:
            size = os.fstat(fd).st_size
            prefix = os.pread(fd, 8, 0)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 0 < length <= min(MAX_HEADER, size):
                raise Stale("truncated", entry)
            text = os.pread(fd, length, 8)
        if hashlib.sha256(prefix + text).hexdigest() != check:
            raise Stale("checksum", entry)
        header = json.loads(text)
        meta = header.pop("__metadata__")
        crcs = json.loads(meta["crc32"])
        tensors, end = {}, 0
        for name, spec in header.items():
            start, end = spec["data_offsets"]
            place = (end - start, 8 + length + start, crcs[name], path, entry)
            tensors[name] = StoredTensor(spec["dtype"], tuple(spec["shape"]), *place)
        if size != 8 + length + end:
            raise Stale("truncated", entry)
        return cls(meta, tensors)

    def verify(self) -> int:
        """Read everything and check it; returns the bytes compared.

        Raises:
            Stale: as `StoredTensor.read_into`.
        """
        for tensor in self.tensors.values():
            tensor.read_into([np.empty(tensor.nbytes, np.uint8)])
        return sum(tensor.nbytes for tensor in self.tensors.values())


@contextmanager
def _opened(path: Path, entry: str) -> Iterator[int]:
    """A file descriptor; every failure of the system is a reason not to use the entry."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        yield fd
    except FileNotFoundError:
        raise Stale("missing", entry) from None
    except OSError:
        raise Stale("unreadable", entry) from None
    finally:
        if fd >= 0:
            os.close(fd)


def write_entry(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> tuple[str, int]:
    """Write a safetensors file that appears under `path` only when it is whole and on the disk.

    The rename itself need not be durable: a row whose file is missing is dropped.

    Returns:
        (SHA-256 hex of the header, size in bytes).

    Raises:
        OSError: disk full, read-only and the like; nothing is left behind.
    """
    header: dict = {}
    crcs, at = {}, 0
    for name, tensor in tensors.items():
        crcs[name] = zlib.crc32(_flat(tensor))
        header[name] = {
            "dtype": tensor.code,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    header["__metadata__"] = {**meta, "crc32": json.dumps(crcs)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)  # tensors start 8 bytes past a multiple of 64
    head = struct.pack("<Q", len(text)) + text
    temporary = path.with_name(f".{secrets.token_hex(8)}{TEMPORARY}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        try:
            _write_all(fd, head)
            for tensor in tensors.values():
                _write_all(fd, _flat(tensor))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        unlink(temporary)
        raise
    return hashlib.sha256(head).hexdigest(), len(head) + at


def entry_files(directory: Path) -> list[Path]:
    """Every file in `directory` that `write_entry` made or began, going by its name."""
    return [path for path in directory.iterdir() if _OURS.fullmatch(path.name)]


def entry_file_name(entry_id: str, part: str) -> str:
    """A name that nobody has: two processes may write the same entry at once."""
    return f"{entry_id}-{part}-{secrets.token_hex(4)}.safetensors"


def _flat(tensor: Tensor) -> memoryview:
    return memoryview(tensor.data.reshape(-1).view(np.uint8))


def _write_all(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(fd, rest[: 1 << 26]) :]


def unlink(path: Path) -> None:
    """Remove a file if it is there; never raises."""
    try:
        os.unlink(path)
    except OSError:
        pass
