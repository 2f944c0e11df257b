"""shares: how many slots each layer gets from a number of bytes."""

from __future__ import annotations

from dataclasses import dataclass

# The cost of one token in a streamed layer, from a run of the 80B shape: what the host's look at the router's
# choice costs (62-64 ms against 37.7 ms for 48 layers), and reading a missing expert at a good disk's rate.
_SYNC_SECONDS = 0.5e-3
_READ_BYTES_PER_SECOND = 5e9
# hit rate = (slots / experts) ** this: Qwen3-Next hit 0.829 with 64 of 512 slots.
_HIT_EXPONENT = 0.09
# A mix of resident and streamed layers must promise this much over equal slots, as these numbers are rough.
_WORTH = 0.95


@dataclass(frozen=True)
class LayerNeed:
    """One layer: how many experts it has, the bytes of one, and how many a token uses."""

    experts: int
    expert_bytes: int
    top_k: int

    @property
    def least(self) -> int:
        """Slots below which one token no longer fits."""
        return min(self.top_k, self.experts)

    def seconds(self, slots: int) -> float:
        """Expected cost per token with that many slots, beyond the resident layer's."""
        if slots >= self.experts:
            return 0.0
        misses = self.top_k * (1 - (slots / self.experts) ** _HIT_EXPONENT)
        return _SYNC_SECONDS + misses * self.expert_bytes / _READ_BYTES_PER_SECOND


def smallest_pools(needs: dict[int, LayerNeed], slots: int | None, resident: int | None) -> int:
    """Bytes of the smallest pools that are allowed: `slots` each, or one token's experts."""
    first = set(sorted(needs)[: resident or 0])
    return sum(
        n.expert_bytes * (n.experts if layer in first else min(slots or n.least, n.experts))
        for layer, n in needs.items()
    )


def spread(needs: dict[int, LayerNeed], left: int, slots: int | None, resident: int | None) -> dict[int, int]:
    """Slots per layer from `left` bytes, which must be at least `smallest_pools`.

    `slots` per layer is taken as it is when given. Otherwise the first `resident` layers (None: as many as
    promise to pay) get all their experts and the others equal slots: layers near the input route most evenly,
    and no earlier layer could predict their choice.
    """
    order = sorted(needs)
    if slots is not None:
        first = set(order[: resident or 0])
        return {n: needs[n].experts if n in first else min(slots, needs[n].experts) for n in order}
    if resident is not None:
        return _mixed(needs, order, left, resident)
    equal = best = _mixed(needs, order, left, 0)
    goal = _seconds(needs, equal) * _WORTH
    for count in range(1, len(order)):
        if smallest_pools(needs, None, count) > left:
            break
        mixed = _mixed(needs, order, left, count)
        if _seconds(needs, mixed) < min(goal, _seconds(needs, best)):
            best = mixed
    return best


def _mixed(needs: dict[int, LayerNeed], order: list[int], left: int, resident: int) -> dict[int, int]:
    """The first `resident` layers whole, the others with equal slots from what remains."""
    found = {n: needs[n].experts for n in order[:resident]}
    left -= sum(needs[n].experts * needs[n].expert_bytes for n in found)
    rest = order[resident:]
    while rest:
        share = left // sum(needs[n].expert_bytes for n in rest)
        full = [n for n in rest if needs[n].experts <= share]
        if not full:
            found |= {n: max(needs[n].least, share) for n in rest}
            break
        found |= {n: needs[n].experts for n in full}
        left -= sum(needs[n].experts * needs[n].expert_bytes for n in full)
        rest = [n for n in rest if n not in full]
    return dict(sorted(found.items()))


def _seconds(needs: dict[int, LayerNeed], slots: dict[int, int]) -> float:
    return sum(need.seconds(slots[n]) for n, need in needs.items())
