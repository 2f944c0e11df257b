"""Eviction: which experts of a pool to give up when new ones come in."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ..errors import EngineError


class Policy(Protocol):
    """Ranks the experts of one layer. Arrays of experts are integer numpy arrays of distinct experts."""

    def chosen(self, rows: np.ndarray) -> None:
        """The router chose rows (tokens, top_k), one row for each of the next tokens; told before they run.

        All of it counts, whether the experts are in slots or not.
        """

    def admit(self, experts: np.ndarray) -> None:
        """These experts came into slots: on demand, or read ahead of any choice."""

    def victims(self, count: int, held: np.ndarray) -> np.ndarray:
        """Which `count` of the experts `held` to give up, as places in `held`."""


class _Keyed:
    """Evicts the smallest key; ties go to the one that stands first in `held`."""

    def __init__(self, experts: int):
        self.key = np.zeros(experts)

    def victims(self, count: int, held: np.ndarray) -> np.ndarray:
        return _smallest(self.key[held], count)


def _smallest(keys: np.ndarray, count: int) -> np.ndarray:
    if count == 1:
        return np.array([int(keys.argmin())])
    return np.argsort(keys, kind="stable")[:count]


class LRU(_Keyed):
    """Least recently used first."""

    def __init__(self, experts: int):
        super().__init__(experts)
        self._clock = 0

    def chosen(self, rows: np.ndarray) -> None:
        # Of a repeated expert numpy keeps what was assigned last.
        self.key[rows] = self._clock + np.arange(1, len(rows) + 1)[:, None]
        self._clock += len(rows)

    def admit(self, experts: np.ndarray) -> None:
        self._clock += 1
        self.key[experts] = self._clock


class LFU(_Keyed):
    """Least frequently used first, counted since the expert came in."""

    def chosen(self, rows: np.ndarray) -> None:
        np.add.at(self.key, rows, 1)

    def admit(self, experts: np.ndarray) -> None:
        self.key[experts] = 1


class LFUDA(LFU):
    """LFU with dynamic ageing: a newcomer starts from the key of the last victim, so old fame fades.

    Source: Arlitt et al., "Evaluating content management techniques for Web proxy caches" (2000).
    """

    def __init__(self, experts: int):
        super().__init__(experts)
        self._age = 0.0

    def admit(self, experts: np.ndarray) -> None:
        self.key[experts] = self._age + 1

    def victims(self, count: int, held: np.ndarray) -> np.ndarray:
        places = super().victims(count, held)
        self._age = max(self._age, float(self.key[held[places]].max()))
        return places


class Clock:
    """Second chance: a hand goes round the experts and passes over recently used ones once."""

    def __init__(self, experts: int):
        self._used = np.zeros(experts, dtype=bool)
        self._hand = 0

    def chosen(self, rows: np.ndarray) -> None:
        self._used[rows] = True

    def admit(self, experts: np.ndarray) -> None:
        self._used[experts] = True

    def victims(self, count: int, held: np.ndarray) -> np.ndarray:
        size = len(self._used)
        order = np.argsort((held - self._hand) % size).tolist()
        places: list[int] = []
        for place in [*order, *order]:
            if len(places) == count:
                break
            expert = int(held[place])
            self._hand = (expert + 1) % size
            if self._used[expert]:
                self._used[expert] = False
            elif place not in places:
                places.append(place)
        return np.array(places)


class LRFU(_Keyed):
    """Least popular first: each choice counts half after HALF_LIFE further tokens, also while evicted.

    Counts that outlive eviction give a popular expert that returns its rank back at once; the half-life lets
    a change of topic displace old fame.
    Source: Lee et al., "LRFU: a spectrum of policies that subsumes the LRU and LFU policies" (2001).
    """

    HALF_LIFE = 512  # tokens
    _PER_TOKEN = 2 ** (1 / HALF_LIFE)

    def __init__(self, experts: int):
        super().__init__(experts)
        self._weight = 1.0

    def chosen(self, rows: np.ndarray) -> None:
        # Later choices weigh more instead of all keys being made smaller: the order is the same.
        if len(rows) == 1:
            self._weight *= self._PER_TOKEN
            self.key[rows[0]] += self._weight
        else:
            weights = self._weight * self._PER_TOKEN ** np.arange(1, len(rows) + 1)
            np.add.at(self.key, rows, weights[:, None])
            self._weight = float(weights[-1])
        if self._weight > 1e100:
            self.key /= self._weight
            self._weight = 1.0

    def admit(self, experts: np.ndarray) -> None:
        # What was read ahead counts as chosen once, or it would leave before it can be of use.
        self.key[experts] = np.maximum(self.key[experts], self._weight)


class Echo(LRFU):
    """Least expected first: what followed when the last tokens were routed like now is expected again.

    Looks for the moments, among the last HISTORY tokens, whose routing was most like that of the newest
    tokens, and expects what came after them, the soonest most; popularity (LRFU) counts like one more such
    moment, so that it decides where nothing comes back.
    Belady's rule with a guess for the future, as in Jain and Lin, "Back to the future: leveraging Belady's
    algorithm for improved cache replacement" (2016); the guess is that of Wenisch et al., "Temporal streaming
    of shared memory" (2005), with likeness in place of equality.
    """

    HISTORY = 1024  # tokens
    MOMENTS = 8  # how many to follow
    AHEAD = 16  # tokens to follow each of them
    FADE = 0.87  # of what is expected, per token that it lies ahead
    CONTEXT = 0.5  # how much likeness of the token before counts, of that before again the half
    SHARP = 8.0  # a moment weighs exp(SHARP * likeness); 1 is the same choice for one token
    POPULARITY = 0.8  # likeness at which a moment weighs as much as popularity does
    _WARM_UP = 8  # tokens whose likeness matters: CONTEXT ** 8 is next to nothing

    def __init__(self, experts: int):
        super().__init__(experts)
        self._none = experts  # stands for a choice that was not made yet
        self._rows = np.empty((0, 0), dtype=np.int64)
        self._end = self.HISTORY  # of what is known of the rows, which are in order of time
        self._like = np.zeros(self.HISTORY)  # how much each moment before the newest token is like that one
        self._member = np.zeros(experts + 1)
        self._even = self._fade = np.empty(0)

    def chosen(self, rows: np.ndarray) -> None:
        super().chosen(rows)
        if not self._rows.size:
            top_k = rows.shape[1]
            self._rows = np.full((2 * self.HISTORY + self.AHEAD, top_k), self._none, dtype=np.int64)
            self._even = np.full(top_k, 1 / top_k)
            fade = np.repeat(self.FADE ** np.arange(self.AHEAD), top_k)
            self._fade = fade / fade.sum()
        long_ago, late = rows[: -self._WARM_UP], rows[-self._WARM_UP :]
        if len(long_ago):
            self._append(long_ago[-self.HISTORY :])
            self._like[:] = 0
        for row in late:
            self._compare(row)
            self._append(row[None])

    def victims(self, count: int, held: np.ndarray) -> np.ndarray:
        popular = self.key[held]
        if not self._rows.size:
            return _smallest(popular, count)
        return _smallest(self._after_alike()[held] * self.key.sum() + popular, count)

    def _append(self, rows: np.ndarray) -> None:
        keep = self.HISTORY
        if self._end + len(rows) > 2 * keep:
            self._rows[:keep] = self._rows[self._end - keep : self._end]
            self._rows[keep:] = self._none
            self._end = keep
        self._rows[self._end : self._end + len(rows)] = rows
        self._end += len(rows)

    def _compare(self, row: np.ndarray) -> None:
        """Find out how much the moments of the past are like the one when `row` is chosen."""
        # Time goes on by one for the past and for now, so the likeness of the tokens before is in place.
        self._like *= self.CONTEXT
        self._member[row] = 1
        self._like += self._member.take(self._rows[self._end - self.HISTORY : self._end]) @ self._even
        self._member[row] = 0

    def _after_alike(self) -> np.ndarray:
        """How often each expert (experts,) came after the moments most like now, weighed."""
        best = np.argpartition(self._like, -self.MOMENTS)[-self.MOMENTS :]
        weights = np.exp(self.SHARP * (self._like[best] - self.POPULARITY))
        first = best + (self._end - self.HISTORY)
        after = self._rows.take(first[:, None] + np.arange(self.AHEAD), axis=0)
        shares = weights[:, None] * self._fade
        return np.bincount(after.ravel(), shares.ravel(), minlength=self._none + 1)[:-1]


POLICIES = {"lru": LRU, "lfu": LFU, "lfuda": LFUDA, "clock": Clock, "lrfu": LRFU, "echo": Echo}


def make_policy(name: str, experts: int) -> Policy:
    """The policy called `name` for a layer with `experts` experts.

    Raises:
        EngineError: no such policy.
    """
    if name not in POLICIES:
        raise EngineError(f"Unknown eviction policy {name!r}; choose one of {', '.join(POLICIES)}.")
    return POLICIES[name](experts)
