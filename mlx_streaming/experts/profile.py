"""Profile: how many slots each layer gets out of a common budget, from how its routing is spread."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import EngineError


def by_usage(
    budget: int,
    usage: Mapping[int, np.ndarray],
    experts: Mapping[int, int],
    least: Mapping[int, int],
    most: Mapping[int, int],
) -> dict[int, int]:
    """Slots per layer that catch the most routing: each further slot goes where it adds most.

    The gain of a layer's k-th slot is the share of its k-th most used expert, which falls with k, so giving
    slots greedily is optimal (a knapsack with equal weights and concave gains). Layers without usage count
    as evenly used. Every layer gets at least `least` and at most `most` slots. Returns exactly `budget` slots
    in total unless these bounds forbid it.
    """
    gains = {}
    for layer, count in experts.items():
        counts = usage.get(layer)
        if counts is None or counts.shape != (count,) or counts.sum() <= 0:
            counts = np.ones(count)
        gains[layer] = np.sort(counts / counts.sum())[::-1]
    slots = {layer: min(least[layer], most[layer]) for layer in experts}
    heap = [(-gains[n][slots[n]], n) for n in experts if slots[n] < most[n]]
    heapq.heapify(heap)
    for _ in range(budget - sum(slots.values())):
        if not heap:
            break
        _, layer = heapq.heappop(heap)
        slots[layer] += 1
        if slots[layer] < most[layer]:
            heapq.heappush(heap, (-gains[layer][slots[layer]], layer))
    return slots


def from_file(path: Path, slots: Mapping[int, int], experts: Mapping[int, int]) -> dict[int, int]:
    """`slots` with the counts that the JSON file {"slots": {"0": 12, ...}} gives for some layers.

    Raises:
        EngineError: unreadable, or a layer or count that does not exist.
    """
    try:
        given = {int(n): int(count) for n, count in json.loads(path.read_text())["slots"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f'The profile {path} cannot be read; it must be JSON like {{"slots": {{"0": 12}}}};'
            " auto and off need no file."
        ) from error
    for layer, count in given.items():
        if layer not in experts or not 1 <= count <= experts[layer]:
            raise EngineError(
                f"The profile {path} asks for {count} slots in layer {layer}; layers are"
                f" {min(experts)}-{max(experts)} with up to {max(experts.values())} slots."
            )
    return dict(slots) | given
