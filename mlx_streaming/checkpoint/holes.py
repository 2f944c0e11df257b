"""Holes: give the blocks of a byte range back to the disk; the file keeps its size and reads zeros there."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys
import tempfile
from pathlib import Path

from ..errors import CheckpointError

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_F_PUNCHHOLE = 99  # sys/fcntl.h of macOS, with struct fpunchhole {uint flags, reserved; off_t offset, length}
_LEAST_BLOCK = 4096


def block_size(path: Path) -> int:
    """Bytes of the smallest piece that the filesystem of `path` frees; holes start and end at multiples."""
    return max(_LEAST_BLOCK, os.statvfs(path).f_frsize)


def punch(fd: int, offset: int, nbytes: int) -> None:
    """Free the blocks of `nbytes` at `offset`, both multiples of `block_size`.

    Raises:
        OSError: the filesystem cannot do it.
    """
    if sys.platform == "darwin":
        fcntl.fcntl(fd, _F_PUNCHHOLE, struct.pack("=IIqq", 0, 0, offset, nbytes))
        return
    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, nbytes) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def require_punching(directory: Path) -> None:
    """Try it on a temporary file in `directory`.

    Raises:
        CheckpointError: the filesystem cannot punch holes, or the directory cannot be written.
    """
    block = block_size(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".hole-") as file:
            file.write(b"\xff" * 3 * block)
            file.flush()
            os.fsync(file.fileno())
            punch(file.fileno(), block, block)
            found = os.pread(file.fileno(), 4 * block, 0)
    except OSError as error:
        raise CheckpointError(
            f"The filesystem of {directory} cannot free parts of a file ({error.strerror}), so nothing was"
            " changed; keep the experts, or move the checkpoint to another filesystem."
        ) from error
    if found != b"\xff" * block + bytes(block) + b"\xff" * block:
        raise CheckpointError(
            f"The filesystem of {directory} does not free parts of a file as asked, so nothing was changed;"
            " keep the experts, or move the checkpoint to another filesystem."
        )


def allocated(path: Path) -> int:
    """Bytes that the file takes on its disk."""
    return path.stat().st_blocks * 512  # the unit of st_blocks, whatever the filesystem's block is
