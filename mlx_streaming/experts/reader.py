"""Reader: fills slots from disk with parallel vectored reads. Its threads touch bytes only, never mx."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_all
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .source import Read

# Below this many bytes a hand-over to threads costs more than the reads (page-cache copies run at GB/s).
_INLINE_BYTES = 256 * 1024
# Linux has no F_NOCACHE, but pages can be given back once they are read.
_DONTNEED = getattr(os, "POSIX_FADV_DONTNEED", None)


@dataclass(frozen=True)
class Fill:
    """One expert on its way into a slot: `targets[i]` is the writable byte view of segment i in the slot."""

    layer: int
    expert: int
    reads: tuple[Read, ...]
    targets: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the fill reads."""
        return sum(r.nbytes for r in self.reads)


@dataclass(frozen=True)
class OpenFile:
    """A descriptor, and the size and modification time (ns) that the file had when it was opened."""

    path: Path
    fd: int
    size: int
    modified: int

    def check(self) -> None:
        """Raise CheckpointError if the file was written to since; a new file of its name does not matter."""
        try:
            stat = os.fstat(self.fd)
        except OSError as error:  # a network drive that went away, say
            raise CheckpointError(
                f"Cannot look at {self.path} ({error.strerror}); check the disk."
            ) from error
        if (stat.st_size, stat.st_mtime_ns) != (self.size, self.modified):
            raise CheckpointError(
                f"{self.path} was changed while it was in use; restore or download it again, then restart."
            )


class Pending:
    """Reads under way; `wait` returns when all bytes are in place."""

    def __init__(self, futures: list[Future]):
        self._futures = futures

    def wait(self) -> float:
        """Wait for the reads and return the seconds that this took.

        Raises:
            CheckpointError: a short read or an I/O error in any of them (after all have ended).
        """
        start = time.perf_counter()
        try:
            wait_all(self._futures)
        except BaseException:  # Ctrl-C: bytes must not go on arriving in slots that look empty
            wait_all(self._futures)
            raise
        for future in self._futures:
            future.result()
        return time.perf_counter() - start

    def give_up(self) -> bool:
        """Cancel a read of `Reader.later` that has not begun; False when there is something to `wait` for."""
        return all(future.cancel() for future in self._futures)

    @property
    def done(self) -> bool:
        """Whether all reads have ended."""
        return all(f.done() for f in self._futures)


class Reader:
    """Parallel reads, at most `threads` in flight, and as many in the background.

    Background reads have threads of their own, so that thousands of them do not stand before a demand read.
    `uncached` asks the system to bypass its page cache.
    """

    def __init__(self, threads: int = 8, uncached: bool = False):
        self._threads = max(1, threads)
        self._uncached = uncached
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="expert-reader")
        self._behind = ThreadPoolExecutor(self._threads, thread_name_prefix="background-reader")
        self._waiting: deque[tuple[Fill, Future]] = deque()
        self._working = 0  # background threads that look for work
        self._files: dict[Path, OpenFile] = {}
        self._lock = threading.Lock()

    def submit(self, fills: Sequence[Fill]) -> Pending:
        """Start filling (small jobs are done before this returns); faults are raised by `Pending.wait`."""
        if sum(f.nbytes for f in fills) <= _INLINE_BYTES:
            done: Future = Future()
            try:
                self._run(fills)
                done.set_result(None)
            except CheckpointError as error:
                done.set_exception(error)
            return Pending([done])
        parts = min(self._threads, len(fills))
        return Pending([self._pool.submit(self._run, fills[i::parts]) for i in range(parts)])

    def later(self, fill: Fill) -> Pending:
        """Start filling in the background, in the order asked for (a small one as `submit` does)."""
        if fill.nbytes <= _INLINE_BYTES:
            return self.submit([fill])
        future: Future = Future()
        with self._lock:
            self._waiting.append((fill, future))
            start = self._working < self._threads
            self._working += start
        if start:
            self._next()
        return Pending([future])

    def close(self) -> None:
        """Drop what waits in the background, end the threads and close the files."""
        self._drop()
        self._behind.shutdown(wait=True)
        self._pool.shutdown(wait=True)
        with self._lock:
            for file in self._files.values():
                os.close(file.fd)
            self._files.clear()

    def _next(self) -> None:
        """One job per read and no loop, because an interpreter that exits waits for jobs that have begun."""
        try:
            self._behind.submit(self._one)
        except RuntimeError:  # closed, or the interpreter exits
            self._drop()

    def _one(self) -> None:
        """The next background read, then a job for the one after it."""
        with self._lock:
            if not self._waiting:
                self._working -= 1
                return
            fill, future = self._waiting.popleft()
        if future.set_running_or_notify_cancel():
            try:
                self._run([fill])
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)
        self._next()

    def _drop(self) -> None:
        with self._lock:
            dropped = list(self._waiting)
            self._waiting.clear()
        for fill, future in dropped:
            if future.set_running_or_notify_cancel():
                future.set_exception(
                    CheckpointError(
                        f"Layer {fill.layer} expert {fill.expert} was not read because the engine was closed;"
                        " load it again."
                    )
                )

    def _run(self, fills: Sequence[Fill]) -> None:
        for fill in fills:
            for read in fill.reads:
                self._read(fill, read)
            # One look per file and expert (about 1 us), after the bytes came.
            for path in {read.path for read in fill.reads}:
                self.open(path).check()

    def _read(self, fill: Fill, read: Read) -> None:
        views = [fill.targets[i] for i in read.segments]
        if sum(v.nbytes for v in views) != read.nbytes:
            raise CheckpointError(
                f"Layer {fill.layer} expert {fill.expert}: {read.nbytes} bytes do not fit its slot of"
                f" {sum(v.nbytes for v in views)}; check that {read.path} belongs to this checkpoint."
            )
        file = self.open(read.path)
        offset, left = read.offset, read.nbytes
        while left:
            try:
                got = os.preadv(file.fd, views, offset)
            except OSError as error:
                raise CheckpointError(
                    f"Reading layer {fill.layer} expert {fill.expert} from {read.path} failed"
                    f" ({error.strerror}); check the disk."
                ) from error
            if got <= 0:
                raise CheckpointError(
                    f"{read.path} ended {left} bytes before the end of layer {fill.layer} expert"
                    f" {fill.expert}; it is truncated or was replaced: download or pack it again."
                )
            left -= got
            offset += got
            views = _advance(views, got)
        if self._uncached and _DONTNEED is not None:
            with suppress(OSError):  # advice only
                os.posix_fadvise(file.fd, read.offset, read.nbytes, _DONTNEED)

    def open(self, path: Path) -> OpenFile:
        """The descriptor for `path`, opened at the first call and kept.

        Raises:
            CheckpointError: it cannot be opened.
        """
        file = self._files.get(path)
        if file is not None:
            return file
        with self._lock:
            if path not in self._files:
                self._files[path] = _open_file(path, self._uncached)
            return self._files[path]


def _open_file(path: Path, uncached: bool) -> OpenFile:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(
            f"Cannot open {path} ({error.strerror}); check that it exists and is readable."
        ) from error
    if uncached and hasattr(fcntl, "F_NOCACHE"):
        fcntl.fcntl(fd, fcntl.F_NOCACHE, 1)
    stat = os.fstat(fd)
    return OpenFile(path, fd, stat.st_size, stat.st_mtime_ns)


def _advance(views: list[memoryview], count: int) -> list[memoryview]:
    """What remains to be filled after `count` bytes."""
    rest = []
    for view in views:
        skipped = min(count, view.nbytes)
        count -= skipped
        if skipped < view.nbytes:
            rest.append(view[skipped:])
    return rest
