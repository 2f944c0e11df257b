"""Reader: fills slots from disk with parallel vectored reads. Its threads touch bytes only, never mx."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_all
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..errors import CheckpointError
from .source import Read
from .staging import Staging

# Below this many bytes a hand-over to threads costs more than the reads (page-cache copies run at GB/s).
_INLINE_BYTES = 256 * 1024
# Linux has no F_NOCACHE, but pages can be given back once they are read.
_DONTNEED = getattr(os, "POSIX_FADV_DONTNEED", None)
# A read is cut for several threads down to this size; handing over smaller ones costs more than it saves.
_PIECE_BYTES = 2 * 1024 * 1024
# So many bytes of demand reads are staged at once; more go thread by thread, one expert at a time.
_STAGED_BYTES = 64 * 1024 * 1024


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
        return sum([r.nbytes for r in self.reads])


class Piece(NamedTuple):
    """`nbytes` at `offset` of `path` that fill `views` in order: one system call for (a part of) a read."""

    fill: Fill
    path: Path
    offset: int
    nbytes: int
    views: list[memoryview]


def whole(fill: Fill) -> list[Piece]:
    """One piece for each read of `fill`.

    Raises:
        CheckpointError: a read does not fit its slot.
    """
    pieces = []
    for path, offset, nbytes, segments in fill.reads:
        views = [fill.targets[i] for i in segments]
        if sum([v.nbytes for v in views]) != nbytes:
            raise CheckpointError(
                f"Layer {fill.layer} expert {fill.expert}: {nbytes} bytes do not fit its slot of"
                f" {sum(v.nbytes for v in views)}; check that {path} belongs to this checkpoint."
            )
        pieces.append(Piece(fill, path, offset, nbytes, views))
    return pieces


def cut(pieces: list[Piece], size: int) -> list[Piece]:
    """The same bytes in pieces of at most `size` bytes, the largest first."""
    found = []
    for piece in pieces:
        offset, views = piece.offset, piece.views
        end = offset + piece.nbytes
        while offset < end:
            taken = min(size, end - offset)
            found.append(Piece(piece.fill, piece.path, offset, taken, _first(views, taken)))
            offset, views = offset + taken, _advance(views, taken)
    return sorted(found, key=lambda p: -p.nbytes)


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
    """Reads under way (none: they have ended); `wait` returns when all bytes are in place.

    `fault` is what such an ended read met, `then` what is left to do when all went well.
    """

    def __init__(
        self,
        futures: Sequence[Future] = (),
        then: Callable[[], None] | None = None,
        fault: CheckpointError | None = None,
    ):
        self._futures = futures
        self._then = then
        self._fault = fault

    def wait(self) -> float:
        """Wait for the reads and return the seconds that this took.

        Raises:
            CheckpointError: a short read or an I/O error in any of them (after all have ended).
        """
        start = time.perf_counter()
        try:
            if not self.done:
                wait_all(self._futures)
        except BaseException:  # Ctrl-C: bytes must not go on arriving in slots that look empty
            wait_all(self._futures)
            raise
        for future in self._futures:
            future.result()
        if self._fault is not None:
            raise self._fault
        if self._then is not None:
            self._then()
        return time.perf_counter() - start

    def give_up(self) -> bool:
        """Cancel a read of `Reader.later` that has not begun; False when there is something to `wait` for."""
        return bool(self._futures) and all(future.cancel() for future in self._futures)

    @property
    def done(self) -> bool:
        """Whether all reads have ended."""
        return all(f.done() for f in self._futures)


class Reader:
    """Parallel reads, at most `threads` in flight, and as many in the background.

    Background reads have threads of their own, so that thousands of them do not stand before a demand read.
    `uncached` asks the system to bypass its page cache. With `staging` the bytes reach the slots through it,
    and it is closed with the reader.
    """

    def __init__(self, threads: int = 8, uncached: bool = False, staging: Staging | None = None):
        self._threads = max(1, threads)
        self.staging = staging
        self._uncached = uncached
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="expert-reader")
        self._behind = ThreadPoolExecutor(self._threads, thread_name_prefix="background-reader")
        self._waiting: deque[tuple[Fill, Future]] = deque()
        self._working = 0  # background threads that look for work
        self._files: dict[Path, OpenFile] = {}
        self._lock = threading.Lock()

    def submit(self, fills: Sequence[Fill]) -> Pending:
        """Start filling (small jobs are done before this returns); faults are raised by `Pending.wait`.

        With staging wait for one batch before the next is submitted: they share this thread's pinned memory.

        Raises:
            CheckpointError: a read of a large job does not fit its slot; nothing was begun.
        """
        total = sum([f.nbytes for f in fills])
        then = None
        if self.staging is not None:
            if total > _STAGED_BYTES:
                parts = [fills[i :: self._threads] for i in range(min(self._threads, len(fills)))]
                return Pending([self._pool.submit(self._stage, part, self.staging) for part in parts])
            targets = [view for fill in fills for view in fill.targets]
            buffers = self.staging.buffers(targets)
            left = iter(buffers)
            fills = [replace(f, targets=tuple([next(left) for _ in f.targets])) for f in fills]
            then = partial(self.staging.deliver, buffers, targets)
        if total <= _INLINE_BYTES:
            try:
                for fill in fills:
                    self._bring(whole(fill))
            except CheckpointError as error:
                return Pending(fault=error)
            return Pending(then=then)
        parts = self._parts(fills, total)
        return Pending([self._pool.submit(self._bring, part) for part in parts], then)

    def later(self, fill: Fill) -> Pending:
        """Start filling in the background, in the order asked for (a small one as `submit` does)."""
        if fill.nbytes <= _INLINE_BYTES and self.staging is None:
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
        if self.staging is not None:
            self.staging.close()

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
                if self.staging is None:
                    self._bring(whole(fill))
                else:
                    self._stage([fill], self.staging)
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

    def _parts(self, fills: Sequence[Fill], total: int) -> list[list[Piece]]:
        """What each thread reads; few large experts are cut, so that every thread has a part."""
        if len(fills) < self._threads and total > len(fills) * _PIECE_BYTES:
            size = max(_PIECE_BYTES, -(-total // self._threads))
            return _dealt(cut([piece for fill in fills for piece in whole(fill)], size), self._threads)
        hands = min(self._threads, len(fills))
        return [[piece for fill in fills[i::hands] for piece in whole(fill)] for i in range(hands)]

    def _stage(self, fills: Sequence[Fill], staging: Staging) -> None:
        """Fill one after the other through the pinned memory of the thread that runs this."""
        for fill in fills:
            buffers = staging.buffers(fill.targets)
            self._bring(whole(replace(fill, targets=tuple(buffers))))
            staging.deliver(buffers, fill.targets)

    def _bring(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._read(piece)
        # One look per file and run of pieces (about 2 us), after the bytes came.
        last = None
        for piece in pieces:
            if piece.path is not last:
                last = piece.path
                self._files[last].check()

    def _read(self, piece: Piece) -> None:
        file = self._files.get(piece.path) or self.open(piece.path)
        views, left, offset = piece.views, piece.nbytes, piece.offset
        while True:
            try:
                got = os.preadv(file.fd, views, offset)
            except OSError as error:
                raise CheckpointError(
                    f"Reading layer {piece.fill.layer} expert {piece.fill.expert} from {piece.path} failed"
                    f" ({error.strerror}); check the disk."
                ) from error
            if got <= 0:
                raise CheckpointError(
                    f"{piece.path} ended {left} bytes before the end of layer {piece.fill.layer} expert"
                    f" {piece.fill.expert}; it is truncated or was replaced: download or pack it again."
                )
            left -= got
            if not left:
                break
            offset += got
            views = _advance(views, got)
        if self._uncached and _DONTNEED is not None:
            with suppress(OSError):  # advice only
                os.posix_fadvise(file.fd, piece.offset, piece.nbytes, _DONTNEED)

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


def _first(views: list[memoryview], count: int) -> list[memoryview]:
    """The first `count` bytes of `views`."""
    found = []
    for view in views:
        if not count:
            break
        found.append(view[:count])
        count -= found[-1].nbytes
    return found


def _advance(views: list[memoryview], count: int) -> list[memoryview]:
    """What remains to be filled after `count` bytes."""
    rest = []
    for view in views:
        skipped = min(count, view.nbytes)
        count -= skipped
        if skipped < view.nbytes:
            rest.append(view[skipped:])
    return rest


def _dealt(pieces: list[Piece], hands: int) -> list[list[Piece]]:
    """Pieces, the largest first, for at most `hands` threads with about the same bytes each."""
    dealt: list[list[Piece]] = [[] for _ in range(min(hands, len(pieces)))]
    load = [0] * len(dealt)
    for piece in pieces:
        least = load.index(min(load))
        dealt[least].append(piece)
        load[least] += piece.nbytes
    return dealt
