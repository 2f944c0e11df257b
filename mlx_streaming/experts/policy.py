"""Eviction: which slots of a pool to give up when new experts come in."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..errors import EngineError


class Policy(Protocol):
    """Ranks the slots of one pool. Slots are numbered from 0; arrays of slots are integer numpy arrays."""

    def touch(self, slots: np.ndarray) -> None:
        """The experts in `slots` (distinct) were chosen by the router."""

    def admit(self, slots: np.ndarray) -> None:
        """New experts came into `slots`."""

    def victims(self, count: int, allowed: np.ndarray) -> np.ndarray:
        """The `count` slots to give up, out of those where the boolean array `allowed` is true."""


class _Keyed:
    """Evicts the smallest key; ties go to the lower slot."""

    def __init__(self, slots: int):
        self.key = np.zeros(slots)

    def victims(self, count: int, allowed: np.ndarray) -> np.ndarray:
        key = np.where(allowed, self.key, np.inf)
        if count == 1:
            return np.array([int(key.argmin())])
        return np.argsort(key, kind="stable")[:count]


class LRU(_Keyed):
    """Least recently used first."""

    def __init__(self, slots: int):
        super().__init__(slots)
        self._clock = 0

    def touch(self, slots: np.ndarray) -> None:
        self._clock += 1
        self.key[slots] = self._clock

    admit = touch


class LFU(_Keyed):
    """Least frequently used first, counted since the expert came in."""

    def touch(self, slots: np.ndarray) -> None:
        self.key[slots] += 1

    def admit(self, slots: np.ndarray) -> None:
        self.key[slots] = 1


class LFUDA(_Keyed):
    """LFU with dynamic ageing: a newcomer starts from the key of the last victim, so old fame fades.

    Source: Arlitt et al., "Evaluating content management techniques for Web proxy caches" (2000).
    """

    def __init__(self, slots: int):
        super().__init__(slots)
        self._age = 0.0

    def touch(self, slots: np.ndarray) -> None:
        self.key[slots] += 1

    def admit(self, slots: np.ndarray) -> None:
        self.key[slots] = self._age + 1

    def victims(self, count: int, allowed: np.ndarray) -> np.ndarray:
        chosen = super().victims(count, allowed)
        self._age = max(self._age, float(self.key[chosen].max()))
        return chosen


class Clock:
    """Second chance: a hand passes over recently used slots once before it takes them."""

    def __init__(self, slots: int):
        self._used = np.zeros(slots, dtype=bool)
        self._hand = 0

    def touch(self, slots: np.ndarray) -> None:
        self._used[slots] = True

    admit = touch

    def victims(self, count: int, allowed: np.ndarray) -> np.ndarray:
        chosen: list[int] = []
        size = len(self._used)
        taken = np.zeros(size, dtype=bool)
        while len(chosen) < count:
            slot = self._hand
            self._hand = (slot + 1) % size
            if not allowed[slot] or taken[slot]:
                continue
            if self._used[slot]:
                self._used[slot] = False
                continue
            taken[slot] = True
            chosen.append(slot)
        return np.array(chosen)


POLICIES = {"lru": LRU, "lfu": LFU, "lfuda": LFUDA, "clock": Clock}


def make_policy(name: str, slots: int) -> Policy:
    """The policy called `name` for a pool of `slots`.

    Raises:
        EngineError: no such policy.
    """
    if name not in POLICIES:
        raise EngineError(f"Unknown eviction policy {name!r}; choose one of {', '.join(POLICIES)}.")
    return POLICIES[name](slots)
