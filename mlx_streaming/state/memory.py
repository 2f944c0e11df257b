"""Memory tier: recent entries with their arrays, least recently used first out, bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .entry import Entry
from .files import Tensor
from .snapshot import Snapshot


@dataclass
class Held:
    """An entry in memory. `has_state`: its recurrent state is there too, not only its rows.

    `pending`: a writer still has it in hand. `durable`: it is on disk, so memory may forget it.
    """

    entry: Entry
    snapshot: Snapshot
    has_state: bool = True
    pending: bool = False
    durable: bool = False

    @property
    def layout(self) -> dict:
        return self.entry.layout

    @property
    def starts(self) -> Mapping[str, int]:
        return self.snapshot.starts

    @property
    def rows(self) -> Mapping[str, Tensor]:
        return self.snapshot.rows

    @property
    def whole(self) -> Mapping[str, Tensor]:
        return self.snapshot.whole


class MemoryTier:
    """Entries by id, in order of use (the last one is the most recent)."""

    def __init__(self, limit: int):
        self.limit = limit  # bytes
        self.held: dict[str, Held] = {}

    @property
    def nbytes(self) -> int:
        return sum(held.snapshot.nbytes for held in self.held.values())

    def candidates(self, limit: int, need_state: bool) -> list[tuple[int, str]]:
        """(end, id) of the entries that end at or before `limit`."""
        found = self.held.values()
        return [
            (h.entry.end, h.entry.id)
            for h in found
            if h.entry.end <= limit and (h.has_state or not need_state)
        ]

    def get(self, entry_id: str) -> Held | None:
        return self.held.get(entry_id)

    def put(self, held: Held) -> None:
        self.held.pop(held.entry.id, None)
        self.held[held.entry.id] = held

    def touch(self, entry_id: str) -> None:
        if entry_id in self.held:
            self.held[entry_id] = self.held.pop(entry_id)

    def set_kind(self, entry_id: str, kind: str) -> None:
        held = self.held.get(entry_id)
        if held is not None:
            held.entry = replace(held.entry, kind=kind)

    def thin(self, entry_id: str) -> None:
        """Give up an entry's state; those that extend it keep the rows they need."""
        held = self.held.get(entry_id)
        if held is not None and held.has_state:
            held.snapshot = replace(held.snapshot, whole={})
            held.has_state = False

    def remove(self, ids: Iterable[str]) -> set[str]:
        """Forget these entries and all that extend them; returns what was forgotten or asked for."""
        gone = set(ids)
        while True:
            more = {h.entry.id for h in self.held.values() if h.entry.parent in gone} - gone
            if not more:
                break
            gone |= more
        for entry_id in gone:
            self.held.pop(entry_id, None)
        return gone

    def evict(self, newest: str) -> tuple[int, int]:
        """Come back under the limit, `newest` last; (forgotten, thinned) of what is nowhere else."""
        forgotten = thinned = 0
        total = self.nbytes
        for spare in (newest, ""):
            while total > self.limit:
                victim = self._victim(spare)
                if victim is None:
                    break
                if victim.durable or self._is_leaf(victim):
                    del self.held[victim.entry.id]
                    forgotten += not victim.durable
                else:
                    self.thin(victim.entry.id)
                    thinned += 1
                total = self.nbytes
        return forgotten, thinned

    def _victim(self, spare: str) -> Held | None:
        free = [h for h in self.held.values() if not h.pending and h.entry.id != spare]
        useless = (h for h in free if not h.has_state and self._is_leaf(h))
        other = (h for h in free if h.durable or h.has_state)
        return next(useless, None) or next(other, None)

    def _is_leaf(self, held: Held) -> bool:
        return all(other.entry.parent != held.entry.id for other in self.held.values())
