"""Pool: the slots of one layer. Its arrays are allocated once and never rebound; a miss overwrites bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np

from ..checkpoint.spec import Segment
from ..errors import CapacityError, CheckpointError, EngineError
from .policy import make_policy
from .reader import Fill, Pending, Reader
from .source import ExpertSource
from .staging import Staging
from .stats import LayerStats

_MX_TYPES = {
    "U8": mx.uint8,
    "F8_E4M3": mx.uint8,
    "F8_E8M0": mx.uint8,
    "U16": mx.uint16,
    "U32": mx.uint32,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "F32": mx.float32,
}
EMPTY = -1


def stacked_array(segment: Segment, slots: int) -> mx.array:
    """A zeroed, evaluated array of shape (slots, *segment.shape).

    Raises:
        CheckpointError: a type that mlx has no array for.
    """
    if segment.dtype not in _MX_TYPES:
        raise CheckpointError(f"Experts of type {segment.dtype} cannot be streamed; use another conversion.")
    array = mx.zeros((slots, *segment.shape), dtype=_MX_TYPES[segment.dtype])
    mx.eval(array)
    return array


class Pool:
    """Which expert is in which slot of one layer, and the bytes of the slots.

    `table` (num_experts,) int32 maps an expert to its slot, `holds` (slots,) back; -1 is none. A slot that is
    being filled in the background is locked: it holds nothing yet and cannot be given away. `spare` slots are
    kept empty for guesses; a guess that the router does not confirm at the layer's next call is dropped.
    `staging` writes to memory that only the device should touch.
    """

    def __init__(
        self,
        layer: int,
        num_experts: int,
        slots: int,
        source: ExpertSource,
        policy: str,
        spare: int = 0,
        staging: Staging | None = None,
    ):
        self.layer = layer
        self.slots = slots
        self.num_experts = num_experts
        self.source = source
        self.segments = source.segments(layer)
        self.arrays = [stacked_array(s, slots) for s in self.segments]
        self.expert_bytes = sum(s.nbytes for s in self.segments)
        views = [memoryview(a).cast("B") for a in self.arrays]
        self._windows = list(zip(views, [s.nbytes for s in self.segments], strict=True))
        self.staging = staging
        self._lookup = mx.zeros(num_experts, dtype=mx.int32)
        mx.eval(self._lookup)
        self._lookup_bytes = memoryview(self._lookup).cast("B")
        self._shown = np.zeros(num_experts, dtype=np.int32)  # what the lookup says
        self._lookup_stale = False
        self.table = np.full(num_experts, EMPTY, dtype=np.int32)
        self.holds = np.full(slots, EMPTY, dtype=np.int32)
        self.pinned = np.zeros(slots, dtype=bool)
        self.locked = np.zeros(slots, dtype=bool)
        self._pins = False  # whether any slot is pinned
        self._empty = slots  # slots that hold no expert, locked ones included
        self.policy = make_policy(policy, num_experts)
        self.stats = LayerStats()
        self.spare = spare
        self._guesses: set[int] = set()
        self._inflight: dict[int, tuple[int, Pending]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(a.nbytes for a in self.arrays)

    def fill(self, expert: int, slot: int) -> Fill:
        """The reads that put `expert` into `slot`."""
        views = tuple([view[slot * size : (slot + 1) * size] for view, size in self._windows])
        return Fill(self.layer, expert, self.source.reads(self.layer, expert), views)

    def lookup(self) -> mx.array:
        """The table on the device, (num_experts,) int32; an expert without a slot has some wrong one.

        The caller has made sure that no pending graph reads it, as with slots.
        """
        if self._lookup_stale:
            self._shown = np.maximum(self.table, 0)
            if self.staging is None:
                self._lookup_bytes[:] = self._shown.view(np.uint8)
            else:
                self.staging.write(self._lookup_bytes, self._shown.tobytes())
            self._lookup_stale = False
        return self._lookup

    def shows(self, experts: np.ndarray) -> bool:
        """Whether `lookup`, as it was given last, names the slots that these experts are in now."""
        return bool((self._shown[experts] == self.table[experts]).all())

    def chosen(self, rows: np.ndarray) -> None:
        """The router chose rows (tokens, top_k) of experts, in slots or not: tell the policy."""
        self.policy.chosen(rows)

    def reserve(self, needed: np.ndarray) -> list[tuple[int, int]]:
        """Make room so that all `needed` experts (distinct) can be present at once.

        Returns the (expert, slot) pairs that must be filled and then committed; their slots are empty.

        Raises:
            CapacityError: more experts are needed than there are slots.
        """
        if len(needed) > self.slots:
            raise CapacityError(
                f"Layer {self.layer} needs {len(needed)} experts in {self.slots} slots at once;"
                " give it more slots."
            )
        slots = self.table[needed]
        missing = needed[slots == EMPTY]
        if not len(missing):
            return []
        keep = slots[slots != EMPTY]
        free = self.make_room(len(missing), keep)
        return list(zip(missing.tolist(), free.tolist(), strict=True))

    def make_room(self, count: int, keep: np.ndarray) -> np.ndarray:
        """`count` empty slots, evicting what the policy gives up; never the slots in `keep` or locked ones.

        Pinned slots are given up only when there is no other way.
        """
        allowed = ~self.locked
        allowed[keep] = False
        if self._pins:
            loose = allowed & ~self.pinned
            if int(loose.sum()) >= count:
                allowed = loose
        empty = np.empty(0, dtype=np.int64)
        if self._empty:
            holding = self.holds != EMPTY
            empty = np.flatnonzero(allowed & ~holding)[:count]
            allowed &= holding
        if len(empty) == count:
            return empty
        victims = self._victims(count - len(empty), allowed)
        self.evict(victims)
        return np.concatenate([empty, victims]) if len(empty) else victims

    def _victims(self, count: int, allowed: np.ndarray) -> np.ndarray:
        """The `count` slots that the policy gives up, of the `allowed` ones, which all hold an expert."""
        full = np.flatnonzero(allowed)
        return full[self.policy.victims(count, self.holds[full])]

    def evict(self, slots: np.ndarray) -> None:
        """Empty these slots; before they are filled no pending graph may read them."""
        held = self.holds[slots]
        held = held[held != EMPTY]
        self.table[held] = EMPTY
        self.holds[slots] = EMPTY
        if self._pins:
            self.pinned[slots] = False
            self._pins = bool(self.pinned.any())
        self._empty += len(held)
        self.stats.evictions += len(held)

    def commit(self, placements: Sequence[tuple[int, int]]) -> None:
        """These (expert, slot) pairs are filled: the table may name them from now on."""
        if not placements:
            return
        self._lookup_stale = True  # first: an interrupt must not leave the lookup behind the table
        for expert, slot in placements:
            self.holds[slot] = expert
            self.table[expert] = slot
        self._empty -= len(placements)
        self.policy.admit(np.array([expert for expert, _ in placements]))

    def start(self, experts: Iterable[int], reader: Reader) -> None:
        """Read `experts` in the background, as many as there are empty slots.

        The caller has made sure that no pending graph reads this pool.
        """
        wanted = [e for e in dict.fromkeys(experts) if self.table[e] == EMPTY and e not in self._inflight]
        free = np.flatnonzero((self.holds == EMPTY) & ~self.locked)
        for expert, slot in zip(wanted, free.tolist(), strict=False):
            self.locked[slot] = True
            self._inflight[expert] = (slot, reader.later(self.fill(expert, slot)))

    def settle(self, needed: np.ndarray | None = None) -> int:
        """Take in background reads that have ended, and clear the way for the experts in `needed`.

        Of these, reads that have begun are waited for and others given up: a demand read is sooner there.
        Returns how many experts came in. A failed background read only frees its slot: should the expert be
        needed, the demand read meets the same fault and reports it.
        """
        if not self._inflight:
            return 0
        must = set() if needed is None else set(needed.tolist())
        ended = [e for e, (_, pending) in self._inflight.items() if e in must or pending.done]
        return sum(self._take_in(expert, give_up=expert in must) for expert in ended)

    def settle_all(self) -> int:
        """As `settle`, for every background read: afterwards no slot is locked."""
        return sum(self._take_in(expert, give_up=True) for expert in list(self._inflight))

    def make_way(self, count: int) -> None:
        """End background reads, the last started first, until `count` slots are not locked."""
        for expert in reversed(list(self._inflight)):
            if int((~self.locked).sum()) >= count:
                return
            self._take_in(expert, give_up=True)

    def finish(self, experts: Iterable[int] | None = None) -> None:
        """Wait for the background reads of `experts` (None: for all)."""
        wanted = list(self._inflight) if experts is None else [e for e in experts if e in self._inflight]
        for expert in wanted:
            self._take_in(expert, give_up=False)

    def _take_in(self, expert: int, give_up: bool) -> bool:
        """End one background read; whether the expert is now in its slot."""
        slot, pending = self._inflight[expert]
        came = not (give_up and pending.give_up())
        if came:
            try:
                self.stats.wait_s += pending.wait()
            except EngineError:
                came = False
        # After the wait: until the read has ended nobody else may have the slot.
        del self._inflight[expert]
        self.locked[slot] = False
        if came:
            self.commit([(expert, slot)])
            if expert in self._guesses:
                self.stats.lookahead_read += 1
                self.stats.lookahead_bytes += self.expert_bytes
            else:
                self.stats.warmed += 1
        return came

    def guess(self, experts: Iterable[int], reader: Reader) -> None:
        """Read guessed experts (the likeliest first) into the spare slots, as far as these are free."""
        wanted = [e for e in experts if self.table[e] == EMPTY and e not in self._inflight]
        free = int(((self.holds == EMPTY) & ~self.locked).sum())
        wanted = wanted[: min(free, self.spare - len(self._guesses))]
        self._guesses.update(wanted)
        self.start(wanted, reader)

    def confirm(self, needed: np.ndarray) -> None:
        """The router chose `needed`: keep the guesses among them, drop the others, free spare slots again.

        Call it after `settle(needed)`. Nothing is overwritten here: slots are only emptied.
        """
        if not self.spare:
            return
        if self._guesses:
            right = self._guesses.intersection(needed.tolist())
            self.stats.lookahead_promoted += sum(1 for e in right if self.table[e] != EMPTY)
            wrong = [e for e in self._guesses - right if e not in self._inflight]
            slots = self.table[np.array(wrong, dtype=np.int64)]
            self.evict(slots[slots != EMPTY])
            self._guesses = {e for e in self._guesses - right if e in self._inflight}
        taken = self.slots - int((self.holds == EMPTY).sum())
        excess = taken - (self.slots - self.spare)
        if excess > 0:
            keep = self.table[needed]
            allowed = ~self.locked & ~self.pinned & (self.holds != EMPTY)
            allowed[keep[keep != EMPTY]] = False
            count = min(excess, int(allowed.sum()))
            if count:
                self.evict(self._victims(count, allowed))

    def pin(self, experts: Iterable[int]) -> None:
        """Never evict these experts (those that are present) while others can be given up."""
        slots = self.table[np.array(list(experts), dtype=np.int64)] if experts else np.array([], dtype=int)
        self.pinned[slots[slots != EMPTY]] = True
        self._pins = bool(self.pinned.any())
