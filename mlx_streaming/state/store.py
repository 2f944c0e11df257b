"""StateStore: a tree of snapshots in memory and on disk, found by the longest exact prefix of token ids.

Whatever is doubtful is ignored, removed and counted with its reason in `stats`; nothing here fails a turn.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .disk import DiskTier, Write
from .entry import Entry, entry_ids, tokens_of
from .files import Stale
from .fingerprint import Fingerprint
from .index import Row
from .memory import Held, MemoryTier
from .snapshot import capture, rebuild

Hot = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Match:
    """The longest usable snapshot for some token ids, not yet read.

    length: tokens it covers. source: "memory" or "disk" (any part of it). hot: experts to read at once.
    """

    store: StateStore
    chain: tuple[Held | Row, ...]
    length: int
    source: str

    @property
    def entry(self) -> Entry:
        return self.chain[-1].entry

    @property
    def hot(self) -> dict[int, list[int]]:
        return self.entry.hot

    def load(self, fresh: Sequence[Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """(cache list, extra) as `snapshot.rebuild` gives them.

        Raises:
            Stale: a file is missing or damaged; `stale.entry` names it. `StateStore.restore` handles that.
        """
        return self.store.load(self, fresh)


@dataclass(frozen=True)
class Restored:
    """State put back into caches that nobody shares."""

    cache: list[Any]
    length: int
    extra: dict[str, Any]
    hot: dict[int, list[int]]
    source: str


class StateStore:
    """Snapshots of one model, in memory and (with a directory) on disk.

    Args:
        directory: of the disk tier, shared by all models and processes; None: memory only.
        memory_bytes: limit of the memory tier. quota_bytes: limit of the whole directory.
        mark: what must match, see fingerprint.py. label: the model's name, for people.

    Use it from the thread that owns the engine.
    """

    def __init__(
        self,
        directory: Path | str | None,
        memory_bytes: int,
        quota_bytes: int,
        mark: Fingerprint,
        label: str = "",
    ):
        self.mark = mark
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._dead: set[str] = set()  # removed here, perhaps not yet from the index
        self.memory = MemoryTier(memory_bytes)
        self.disk: DiskTier | None = None
        self.disk_state = "off"
        if directory is not None:
            try:
                self.disk = DiskTier(Path(directory), quota_bytes, mark, label, self._count)
                self.disk_state = "on"
            except (OSError, sqlite3.Error) as error:
                self.disk_state = f"off: {_unusable(Path(directory), error)}"
                self._count("errors: directory", 1)

    def _count(self, reason: str, n: int) -> None:
        if n:
            with self._lock:
                self._counts[reason] += n

    @property
    def stats(self) -> dict[str, Any]:
        """Counts by reason ("hits: disk", "dropped: checksum", "errors: ENOSPC"), state and size of tiers."""
        with self._lock:
            counts = dict(sorted(self._counts.items()))
        return {"disk": self.disk_state, "memory_bytes": self.memory.nbytes, **counts}

    # -- finding -----------------------------------------------------------------------------------------

    def find(self, ids: Sequence[int], *, equal: bool = False, need_state: bool = True) -> Match | None:
        """The longest entry whose every token is that of `ids`, shorter than `ids` unless `equal`.

        `need_state` False also finds entries that gave up their state and only supply rows.
        """
        tokens = tokens_of(ids)
        limit = len(tokens) if equal else len(tokens) - 1
        found = set(self.memory.candidates(limit, need_state))
        if self.disk is not None:
            found |= {(e, i) for e, i in self.disk.candidates(limit, need_state) if i not in self._dead}
        names = entry_ids(self.mark.key, tokens, (end for end, _ in found))
        for end in sorted(names, reverse=True):
            if (end, names[end]) not in found:
                continue
            try:
                chain = self._chain(names[end], tokens, end)
            except Stale as stale:
                self.discard(stale.entry, stale.reason)
                continue
            if need_state and not _has_state(chain[-1]):  # another process has just taken it
                continue
            in_memory = all(isinstance(link, Held) for link in chain)
            return Match(self, chain, end, "memory" if in_memory else "disk")
        return None

    def _chain(self, entry_id: str, tokens: np.ndarray, end: int) -> tuple[Held | Row, ...]:
        """The entries from the root to this one; every token of each is compared."""
        chain: list[Held | Row] = []
        child = entry_id
        while entry_id:
            link = self._link(entry_id, need_state=not chain)
            if link is None:
                raise Stale("parent" if chain else "missing", child)
            entry = link.entry
            if entry.end != end or entry.tokens != tokens[entry.start : end].tobytes():
                raise Stale("tokens", entry_id)
            chain.append(link)
            child, entry_id, end = entry_id, entry.parent, entry.start
        if end != 0:
            raise Stale("parent", child)
        _ = chain[0].entry.layout  # of the tip, which is needed: raises Stale if damaged
        return tuple(reversed(chain))

    def _link(self, entry_id: str, need_state: bool) -> Held | Row | None:
        held = self.memory.get(entry_id)
        if held is not None and (held.has_state or not need_state):
            return held
        if self.disk is not None and entry_id not in self._dead:
            row = self.disk.get(entry_id)
            if row is not None and (row.state_file or held is None):
                return row
        return held

    def load(self, match: Match, fresh: Sequence[Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Read a match; see `Match.load`."""
        tip = match.chain[-1]
        links = [
            link if isinstance(link, Held) else self.disk.open(link, with_state=link is tip)
            for link in match.chain
        ]
        return rebuild(links, fresh)

    def restore(
        self, ids: Sequence[int], fresh: Callable[[], Sequence[Any]], equal: bool = False
    ) -> Restored | None:
        """Find and load, falling back to shorter snapshots for as long as something is wrong with one."""
        while (match := self.find(ids, equal=equal)) is not None:
            try:
                cache, extra = match.load(fresh())
            except Stale as stale:
                if not self._changed(match, stale.entry):
                    self.discard(stale.entry or match.entry.id, stale.reason)
                continue
            self.memory.touch(match.entry.id)
            if self.disk is not None:
                self.disk.touch(match.entry.id)
            self._count(f"hits: {match.source}", 1)
            return Restored(cache, match.length, extra, match.hot, match.source)
        self._count("misses", 1)
        return None

    def _changed(self, match: Match, entry_id: str) -> bool:
        """Whether another process has given up files of this entry since the match was found."""
        used = next((link for link in match.chain if link.entry.id == entry_id), None)
        now = self.disk.get(entry_id) if self.disk is not None and isinstance(used, Row) else None
        return now is not None and now.files != used.files

    def discard(self, entry_id: str, reason: str) -> None:
        """Remove an entry and all that extend it, here and on disk."""
        self._count(f"dropped: {reason}", 1)
        gone = {entry_id} if self.disk is None else set(self.disk.descendants(entry_id))
        self._dead |= self.memory.remove(gone)
        if self.disk is not None:
            self.disk.remove(entry_id)

    # -- filing ------------------------------------------------------------------------------------------

    def put(
        self,
        ids: Sequence[int],
        cache: Sequence[Any],
        kind: str,
        *,
        extra: Mapping[str, Any] | None = None,
        hot: Hot | Callable[[], Hot] | None = None,
        disk: bool = True,
    ) -> int:
        """File the state of `cache` after exactly `ids`; returns the bytes it took (0: it was there already).

        Copies to the host at once; the disk (unless `disk` is False) is written in the background, see
        `flush`. For the other arguments see `Session.snapshot`.

        Raises:
            UnsupportedCache: this cache cannot be saved exactly.
        """
        tokens = tokens_of(ids)
        end = len(tokens)
        if end == 0:
            return 0
        there = self.find(tokens, equal=True, need_state=False)
        chain = there.chain if there else ()
        if there is not None and there.length == end:
            self._again(there.entry, kind)
            if _has_state(chain[-1]):
                return 0
            chain = chain[:-1]  # its rows are known, its state was given up: file it again
        parent = chain[-1].entry if chain else None
        snapshot = capture(cache, end, parent=parent.layout if parent else None, extra=extra)
        entry = Entry(
            id=entry_ids(self.mark.key, tokens, [end])[end],
            parent=parent.id if parent else "",
            start=parent.end if parent else 0,
            end=end,
            kind=kind,
            tokens=tokens[parent.end if parent else 0 :].tobytes(),
            layout_text=json.dumps(snapshot.layout),
            hot_text=json.dumps(_plain(hot() if callable(hot) else hot or {})),
        )
        held = Held(entry, snapshot)
        self._dead.discard(entry.id)
        self.memory.put(held)
        if self.disk is not None and disk:
            self._write(held, chain)
        for link in chain:
            if link.entry.kind == "partial":
                self._supersede(link.entry.id)
        self._evict(entry.id)
        return snapshot.nbytes

    def _evict(self, newest: str) -> None:
        forgotten, thinned = self.memory.evict(newest)
        self._count("forgotten", forgotten)
        self._count("thinned", thinned)

    def _write(self, held: Held, chain: Sequence[Held | Row]) -> None:
        held.pending = True

        def done(filed: bool) -> None:
            held.durable, held.pending = filed, False

        links = [self.memory.get(link.entry.id) or link for link in chain] + [held]
        self.disk.write(
            [
                Write(link.entry, link.snapshot, link.has_state)
                if isinstance(link, Held)
                else Write(link.entry, None, False)
                for link in links
            ],
            done,
        )

    def _again(self, entry: Entry, kind: str) -> None:
        """An entry filed twice: it is in use, and no longer partial if it ends something now."""
        self.memory.touch(entry.id)
        if self.disk is not None:
            self.disk.touch(entry.id)
        if entry.kind == "partial" and kind != "partial":
            self.memory.set_kind(entry.id, kind)
            if self.disk is not None:
                self.disk.set_kind(entry.id, kind)

    def _supersede(self, entry_id: str) -> None:
        self.memory.thin(entry_id)
        if self.disk is not None:
            self.disk.thin(entry_id)
        self._count("superseded", 1)

    def flush(self) -> None:
        """Wait until everything filed so far is on disk."""
        if self.disk is not None:
            self.disk.flush()
            self._dead.clear()
            self._evict("")

    def close(self) -> None:
        """Flush, then let go of the index."""
        if self.disk is not None:
            self.disk.close()
            self.disk = None
            self.disk_state = "closed"


def _unusable(directory: Path, error: Exception) -> str:
    """Why there is no disk tier, in words."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{directory} is not a directory"
    return f"{directory}: {getattr(error, 'strerror', None) or error}"


def _has_state(link: Held | Row) -> bool:
    return link.has_state if isinstance(link, Held) else bool(link.state_file)


def _plain(hot: Hot) -> dict[int, list[int]]:
    return {int(layer): [int(expert) for expert in experts] for layer, experts in hot.items()}
