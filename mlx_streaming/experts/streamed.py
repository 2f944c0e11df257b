"""StreamedExperts: takes the place of a stock SwitchGLU and computes the same from slots."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from .early import EarlyModule
from .lookahead import LookAhead
from .pool import Pool
from .reader import Pending, Reader

# A result of more rows than this is evaluated at once: keeping it for the next call would hold much memory.
_KEEP_ROWS = 8
# The share of calls that needed no read (a moving average over about 1 / _PACE calls) from which on the
# experts are computed before the choice is known: a miss then costs computing them again.
_HOPEFUL = 0.8
_PACE = 1 / 16


class StreamedExperts(nn.Module):
    """A SwitchGLU whose experts live in the slots of a pool.

    `inner` is the stock SwitchGLU with the pool's arrays as its weights; called with slot numbers in place of
    expert numbers it gives the stock result. `early` is what the block adds to the routed experts, if any.
    """

    def __init__(self, inner: nn.Module, pool: Pool, reader: Reader, early: EarlyModule | None = None):
        super().__init__()
        self.inner = inner
        self._pool = pool
        self._reader = reader
        self._last: mx.array | None = None
        self._counts = np.zeros(pool.num_experts, dtype=np.int64)
        self._listener: Callable[[np.ndarray], None] | None = None
        self._ahead: LookAhead | None = None
        self._early = early
        # What may be computed before the choice is known; switched off to measure what it brings.
        self.begins_early = early is not None
        self.begins_experts = True
        self._hope = 0.0

    @property
    def pool(self) -> Pool:
        """The layer's slots."""
        return self._pool

    @property
    def counts(self) -> np.ndarray:
        """Router choices per expert, (num_experts,), since the layer was made."""
        return self._counts

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """x (..., hidden), indices (..., top_k) -> (..., top_k, hidden), bit-identical to the stock module.

        Raises:
            CheckpointError: an expert could not be read; nothing was computed with it.
        """
        pool, stats = self._pool, self._pool.stats
        start = time.perf_counter()
        self.quiesce()
        few = indices.size <= _KEEP_ROWS * indices.shape[-1]
        guess = self._ahead.guess(x) if self._ahead is not None else None
        mx.async_eval(indices, *([] if guess is None else [guess]))
        # While the host waits, the device computes what does not need the choice and, where misses are rare,
        # the experts too. Their graph is built in any case: it reads the lookup only when it is evaluated.
        # For a missing expert it reads some other slot, maybe one that is filling: that is thrown away.
        y = self._compute(x, indices)
        early = self._early.begin(x) if self.begins_early else []
        begun = few and self.begins_experts and self._hope > _HOPEFUL
        if begun:
            self._last = y
            early.append(y)
        mx.async_eval(*early)
        chosen = np.array(indices)  # the one host read
        stats.sync_s += time.perf_counter() - start
        flat = chosen.reshape(-1)
        # One token's choices are distinct, except where a router maps its empty choices to one expert.
        distinct = flat.size == chosen.shape[-1] == len(set(flat.tolist()))
        needed = flat if distinct else np.unique(flat)
        pool.chosen(chosen.reshape(-1, chosen.shape[-1]))
        pool.settle(needed)
        pool.confirm(needed)
        misses = int(np.count_nonzero(pool.table[needed] < 0))
        stats.hits += len(needed) - misses
        stats.misses += misses
        foreseen = misses == 0 and pool.shows(needed)
        self._hope += _PACE * (foreseen - self._hope)
        if begun and not foreseen:  # computed with slots that were not those of its experts
            self.quiesce()
            y, begun = self._compute(x, indices), False
        if len(needed) > pool.slots:
            self._note(chosen)
            return self._in_waves(x, flat, chosen.shape)
        if misses:
            self._demand(needed)
        if not begun:
            pool.lookup()  # brings it up to date
            if few:
                mx.async_eval(y)
            else:
                mx.eval(y)
        self._last = y if few else None
        self._note(chosen)  # now that the device has work
        if guess is not None:
            self._ahead.fetch(np.array(guess), self._reader)
        return y

    def _note(self, chosen: np.ndarray) -> None:
        """Count the router's choice, and tell the listener."""
        self._counts += np.bincount(chosen.reshape(-1), minlength=len(self._counts))
        if self._listener is not None:
            self._listener(chosen)

    def _compute(self, x: mx.array, indices: mx.array) -> mx.array:
        """The stock result, if the chosen experts are in the slots that the pool's lookup names."""
        return self.inner(x, self._pool.lookup()[indices])

    def listen(self, listener: Callable[[np.ndarray], None]) -> None:
        """Call `listener` with the router's choice (..., top_k) of every call."""
        self._listener = listener

    def predict(self, ahead: LookAhead) -> None:
        """Let `ahead` guess a later layer's experts whenever this layer runs."""
        self._ahead = ahead

    def quiesce(self) -> None:
        """Evaluate every graph that could read the slots, so that they may be overwritten."""
        if self._last is not None:
            mx.eval(self._last)
            self._last = None

    def _demand(self, needed: np.ndarray) -> None:
        pool = self._pool
        pool.make_way(len(needed))
        placements = pool.reserve(needed)
        pending = self._submit(placements)
        pool.stats.wait_s += pending.wait()
        pool.commit(placements)

    def _submit(self, placements: list[tuple[int, int]]) -> Pending:
        fills = [self._pool.fill(expert, slot) for expert, slot in placements]
        stats = self._pool.stats
        stats.reads += len(fills)
        stats.bytes_read += len(fills) * self._pool.expert_bytes
        start = time.perf_counter()
        pending = self._reader.submit(fills)
        stats.wait_s += time.perf_counter() - start
        return pending

    def _in_waves(self, x: mx.array, flat: np.ndarray, shape: tuple[int, ...]) -> mx.array:
        """More experts than slots: each missing expert is read once, the hottest ones stay behind.

        The next wave is read while this one computes, so a wave takes half of the slots that may be
        overwritten.
        """
        pool = self._pool
        pool.settle_all()
        rows = x.reshape(-1, x.shape[-1])
        counts = np.bincount(flat, minlength=pool.num_experts)
        stay, waves, working = _plan_waves(counts, pool)
        order = np.argsort(flat, kind="stable")
        starts = np.concatenate([[0], np.cumsum(counts)])
        positions: list[np.ndarray] = []
        outputs: list[mx.array] = []

        def compute(experts: np.ndarray) -> None:
            at = np.concatenate([order[starts[e] : starts[e + 1]] for e in experts])
            picked = rows[mx.array((at // shape[-1]).astype(np.int32))]
            slots = mx.array(pool.table[flat[at]][:, None])
            outputs.append(self.inner(picked, slots).squeeze(1))
            positions.append(at)
            mx.async_eval(outputs[-1])

        if len(stay):
            compute(stay)
        buffers = np.array_split(working, 2) if len(working) > 1 else [working]
        size = min(len(b) for b in buffers)
        groups = [waves[i : i + size] for i in range(0, len(waves), size)]

        def read(number: int) -> tuple[list[tuple[int, int]], Pending]:
            # What still reads these slots must be done: with two buffers that is all but the last wave. The
            # first may overwrite experts that were computed just now.
            mx.eval(outputs[:-1] if number and len(buffers) > 1 else outputs)
            slots = buffers[number % len(buffers)][: len(groups[number])]
            pool.evict(slots)
            placements = list(zip(groups[number].tolist(), slots.tolist(), strict=True))
            return placements, self._submit(placements)

        placements, pending = read(0)
        for number, group in enumerate(groups):
            pool.stats.wait_s += pending.wait()
            pool.commit(placements)
            compute(group)
            pool.stats.waves += 1
            if number + 1 < len(groups):
                placements, pending = read(number + 1)
        inverse = np.argsort(np.concatenate(positions))
        y = mx.concatenate(outputs)[mx.array(inverse.astype(np.int32))].reshape(*shape, -1)
        mx.eval(y)
        return y


def _plan_waves(counts: np.ndarray, pool: Pool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split the experts with a non-zero count.

    Returns (stay, missing, working): experts that are present now, the missing ones in reading order (the
    hottest last, so that they remain), and the slots that the missing ones may overwrite, empty ones first.
    """
    needed = np.flatnonzero(counts)
    here = pool.table[needed]
    stay = needed[here >= 0]
    missing = needed[here < 0]
    missing = missing[np.argsort(counts[missing], kind="stable")]
    hottest = set(needed[np.argsort(-counts[needed], kind="stable")][: pool.slots].tolist())
    hot = sorted((e for e in stay if e in hottest), key=lambda e: -counts[e])
    pinned = np.flatnonzero(pool.pinned).tolist()
    keep = list(dict.fromkeys([*pinned, *pool.table[np.array(hot, dtype=np.int64)].tolist()]))
    # At least a quarter of the slots must work, or the waves become too small to read in parallel.
    keep = keep[: pool.slots - max(1, pool.slots // 4)]
    working = np.setdiff1d(np.arange(pool.slots), keep)
    held = pool.holds[working]
    working = working[np.argsort(np.where(held < 0, -1, counts[held]), kind="stable")]
    return stay, missing, working
