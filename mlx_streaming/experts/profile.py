"""Profile: how many slots each layer gets out of a common budget, from how its routing is spread."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np


def uniform(budget: int, experts: Mapping[int, int], least: int = 1) -> dict[int, int]:
    """The same number of slots for every layer, the remainder to the first ones."""
    layers = sorted(experts)
    share, rest = divmod(budget, len(layers))
    return {n: max(least, min(experts[n], share + (i < rest))) for i, n in enumerate(layers)}


def by_usage(
    budget: int, usage: Mapping[int, np.ndarray], experts: Mapping[int, int], least: Mapping[int, int]
) -> dict[int, int]:
    """Slots per layer that catch the most routing: each further slot goes where it adds most.

    The gain of a layer's k-th slot is the share of its k-th most used expert, which falls with k, so giving
    slots greedily is optimal (a knapsack with equal weights and concave gains). Layers without usage count
    as evenly used. `least` slots (at least top-k) are given first. Returns exactly `budget` slots in total
    unless `least` needs more or every expert has one.
    """
    gains = {}
    for layer, count in experts.items():
        counts = usage.get(layer)
        if counts is None or counts.shape != (count,) or counts.sum() <= 0:
            counts = np.ones(count)
        gains[layer] = np.sort(counts / counts.sum())[::-1]
    slots = {layer: min(least[layer], experts[layer]) for layer in experts}
    heap = [(-gains[n][slots[n]], n) for n in experts if slots[n] < experts[n]]
    heapq.heapify(heap)
    for _ in range(budget - sum(slots.values())):
        if not heap:
            break
        _, layer = heapq.heappop(heap)
        slots[layer] += 1
        if slots[layer] < experts[layer]:
            heapq.heappush(heap, (-gains[layer][slots[layer]], layer))
    return slots
