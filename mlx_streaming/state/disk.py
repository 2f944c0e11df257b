"""Disk tier: entry files and their index. The owner's thread reads, one writer thread changes.

The writer only ever sees bytes. It is a pool thread that Python joins at exit, so what was handed over before
the process ends is written; what a killed process leaves half done is a temporary file that nobody reads.
"""

from __future__ import annotations

import errno
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .entry import Entry
from .files import EntryFile, Stale, entry_file_name, entry_files, write_entry
from .files import unlink as unlink_file
from .fingerprint import SCHEMA, Fingerprint
from .index import Index, Row, VersionMismatch, reset

GARBAGE_AGE_S = 3600.0  # an unknown file may belong to another process that has yet to file it
LOCKED_TRIES = 5


@dataclass(frozen=True)
class Write:
    """An entry handed to the writer. `snapshot` None: it should be on disk already."""

    entry: Entry
    snapshot: Any
    has_state: bool


class StoredLink:
    """One link of a chain on disk; of its state only what `with_state` asks for.

    Raises:
        Stale: the files are missing or not what the index says.
    """

    def __init__(self, directory: Path, row: Row, with_state: bool):
        self.starts: dict[str, int] = {}
        self.rows: Mapping[str, Any] = {}
        self.whole: Mapping[str, Any] = {}
        if row.rows_file:
            file = _header(directory / row.rows_file, row.rows_check, row.entry)
            self.rows, self.starts = file.tensors, json.loads(file.meta["starts"])
        if with_state:
            if not row.state_file:
                raise Stale("state", row.entry.id)
            self.whole = _header(directory / row.state_file, row.state_check, row.entry).tensors
        self.entry = row.entry

    @property
    def layout(self) -> dict:
        return self.entry.layout


def _header(path: Path, check: str, entry: Entry) -> EntryFile:
    file = EntryFile.read(path, check, entry.id)
    if file.meta["entry"] != entry.id or file.meta["layout"] != entry.layout_text:
        raise Stale("layout", entry.id)
    return file


class DiskTier:
    """The part of a store that other processes see. `count(reason, n)` takes the statistics.

    Raises:
        OSError, sqlite3.OperationalError: the directory cannot be used; run without it.
    """

    def __init__(
        self, directory: Path, quota: int, mark: Fingerprint, label: str, count: Callable[[str, int], None]
    ):
        self.directory, self.quota, self.mark, self.label, self.count = directory, quota, mark, label, count
        self.index = self._open()
        self.writer: Index | None = None
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="snapshot-writer")
        self.jobs: list[Future] = []
        self._submit(self._collect)

    def _open(self) -> Index:
        for attempt in range(LOCKED_TRIES):
            try:
                return Index(self.directory)
            except VersionMismatch:
                self.count("dropped: version", 1)
                reset(self.directory)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                time.sleep(0.02 * 2**attempt)
            except sqlite3.DatabaseError:
                self.count("dropped: index", 1)
                reset(self.directory)
        return Index(self.directory)

    # -- the owner's thread ------------------------------------------------------------------------------

    def candidates(self, limit: int, need_state: bool) -> list[tuple[int, str]]:
        """(end, id) of entries with this fingerprint; nothing when the index fails."""
        try:
            return self.index.candidates(self.mark.key, limit, need_state)
        except sqlite3.Error:
            self.count("errors: index", 1)
            return []

    def get(self, entry_id: str) -> Row | None:
        """The row of an entry; None when it is not there or the index fails."""
        try:
            return self.index.get(entry_id)
        except sqlite3.Error:
            self.count("errors: index", 1)
            return None

    def descendants(self, entry_id: str) -> list[str]:
        try:
            return self.index.descendants(entry_id)
        except sqlite3.Error:
            self.count("errors: index", 1)
            return [entry_id]

    def open(self, row: Row, with_state: bool) -> StoredLink:
        """An entry as a link of a chain.

        Raises:
            Stale: they are missing or not what the index says.
        """
        return StoredLink(self.directory, row, with_state)

    def write(self, chain: Sequence[Write], done: Callable[[bool], None]) -> None:
        """Queue a chain, the oldest first: what of it is not on disk gets written; then `done(success)`."""
        tip = chain[-1].entry.id

        def job() -> None:
            filed = False
            try:
                filed = all(self._write(item) for item in chain)
                self._enforce(tip)
            finally:
                done(filed)

        self._submit(job)

    def touch(self, entry_id: str) -> None:
        self._submit(lambda: self._index().touch(entry_id))

    def set_kind(self, entry_id: str, kind: str) -> None:
        self._submit(lambda: self._index().set_kind(entry_id, kind))

    def thin(self, entry_id: str) -> None:
        self._submit(lambda: self._unlink(self._index().thin(entry_id)))

    def remove(self, entry_id: str) -> None:
        self._submit(lambda: self._unlink(self._index().remove(entry_id)[1]))

    def flush(self) -> None:
        """Wait until everything handed over is on disk (or has failed)."""
        for job in self.jobs:
            job.result()
        self.jobs = []

    def close(self) -> None:
        self.flush()
        self.pool.shutdown()
        self.index.close()
        if self.writer is not None:
            self.writer.close()

    # -- the writer's thread -----------------------------------------------------------------------------

    def _submit(self, work: Callable[[], Any]) -> None:
        self.jobs = [job for job in self.jobs if not job.done()]
        self.jobs.append(self.pool.submit(self._guarded, work))

    def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except OSError as error:
            self.count(f"errors: {errno.errorcode.get(error.errno or 0, 'io')}", 1)
        except (sqlite3.Error, VersionMismatch):
            self.count("errors: index", 1)
        except (MemoryError, ValueError, KeyError) as error:  # a damaged row, or no room to hash
            self.count(f"errors: {type(error).__name__}", 1)

    def _index(self) -> Index:
        if self.writer is None:
            self.writer = Index(self.directory)
        return self.writer

    def _unlink(self, names: Sequence[str]) -> None:
        for name in names:
            unlink_file(self.directory / name)

    def _write(self, item: Write) -> bool:
        index, entry, snapshot = self._index(), item.entry, item.snapshot
        row = index.get(entry.id)
        if row is not None:
            if snapshot is not None and item.has_state and not row.state_file:
                name, check, size = self._file(item, "state", snapshot.whole)
                if not index.set_state(entry.id, name, check, size):
                    self._unlink([name])
            return True
        rows, state = ("", "", 0), ("", "", 0)
        filed = False
        try:
            if snapshot is not None:
                rows = self._file(item, "rows", snapshot.rows) if snapshot.rows else rows
                state = self._file(item, "state", snapshot.whole) if item.has_state else state
                row = Row(entry, self.mark.key, self.label, *rows, *state, created=time.time(), used=0)
                filed = index.insert(row, self.mark)
        finally:
            if not filed:
                self._unlink([name for name in (rows[0], state[0]) if name])
        self.count("written" if filed else "unwritten: parent", 1)
        return filed or index.exists(entry.id)

    def _file(self, item: Write, part: str, tensors: Mapping[str, Any]) -> tuple[str, str, int]:
        entry = item.entry
        name = entry_file_name(entry.id, part)
        meta = {
            "schema": str(SCHEMA),
            "entry": entry.id,
            "parent": entry.parent,
            "fingerprint": self.mark.key,
            "layout": entry.layout_text,
            "starts": json.dumps(dict(item.snapshot.starts)),
        }
        check, size = write_entry(self.directory / name, tensors, meta)
        return name, check, size

    def _enforce(self, newest: str) -> None:
        """Stay within the quota: the least recently used leaf goes; an entry that others extend gives up its
        state but keeps the rows they need. The entry just written goes last."""
        index = self._index()
        while index.total_bytes() > self.quota:
            victim = index.victim(newest) or index.victim("")
            if victim is None:
                return
            if victim[1]:
                removed, files = index.remove(victim[0], only_leaf=True)
                self.count("evicted", removed)
            else:
                files = index.thin(victim[0])
                self.count("thinned", 1)
            self._unlink(files)

    def _collect(self) -> None:
        """Remove what nobody will use again: dead entries, and files that no row names."""
        index = self._index()
        for entry_id, reason in index.dead(self.mark):
            removed, files = index.remove(entry_id)
            self._unlink(files)
            if removed:
                self.count(f"dropped: {reason}", removed)
        for path in garbage(self.directory, index):
            try:
                age = abs(time.time() - path.stat().st_mtime)
            except OSError:
                continue
            if age > GARBAGE_AGE_S:
                unlink_file(path)
                self.count("dropped: garbage", 1)


def garbage(directory: Path, index: Index) -> list[Path]:
    """Entry files and temporary files that no row names."""
    files = entry_files(directory)  # before the index is read: what is filed meanwhile is not garbage
    known = {name for row in index.rows() for name in row.files}
    return [path for path in files if path.name not in known]
