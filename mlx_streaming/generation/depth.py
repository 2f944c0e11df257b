"""How far to draft: costs measured live, acceptance learnt, and plain decoding where that is faster.

A step of depth k drafts k tokens and verifies k + 1 rows. It brings 1 + a1 + a1 a2 + ... tokens, a_i
being how often draft i stands when those before it do, and takes as long as such steps were measured to
take, expert misses included. Depth 0 is plain decoding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

MAX_DEPTH = 3
MODES = ("off", "auto", "1", "2", "3")
GAIN = 1.02  # speculation must be this much faster than plain decoding
PLAIN_PROBE = 4  # tokens of plain decoding to measure its cost
SAMPLES = 2  # measurements of a depth before its cost counts as known
WINDOW = 9  # measurements that count: the median of them is robust against one disturbed step
REMEASURE = 96  # tokens between measurements of plain decoding when it is close
CLOSE = 1.25
FIRST_REST, LONGEST_REST = 32, 512  # tokens of plain decoding after speculation lost, doubling
HOPELESS = 0.8  # of plain speed: below that a lost depth is only tried again after the longest rest
PRIOR, PRIOR_WEIGHT, MEMORY = 0.8, 4.0, 0.98
BUCKETS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.01)  # upper ends of the head's own probability of a draft


@dataclass
class Share:
    """How often something happened lately: an average that forgets, starting from a guess."""

    value: float = PRIOR
    weight: float = PRIOR_WEIGHT

    def add(self, happened: bool) -> None:
        self.weight = self.weight * MEMORY + 1
        self.value += (happened - self.value) / self.weight


@dataclass(frozen=True)
class Step:
    """What to do next: `depth` drafts, or with depth 0 `tokens` of plain decoding."""

    depth: int
    tokens: int = 1


@dataclass
class SpeculationStats:
    """One turn's counts. Index i of the lists is draft i + 1."""

    steps: list[int] = field(default_factory=lambda: [0] * (MAX_DEPTH + 1))
    tested: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * MAX_DEPTH)
    verifies: int = 0
    verify_tokens: int = 0
    drafted: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For response_json: steps by depth, drafts and their acceptance, tokens per verify."""
        per_position = [a / t for a, t in zip(self.accepted, self.tested, strict=True) if t]
        tokens = self.verify_tokens / self.verifies if self.verifies else None
        return {
            "depth_histogram": {str(d): n for d, n in enumerate(self.steps) if n},
            "drafted": self.drafted,
            "accepted": sum(self.accepted),
            "accepted_per_position": [round(a, 4) for a in per_position],
            "tokens_per_verify": tokens if tokens is None else round(tokens, 3),
        }


class DepthControl:
    """Chooses the depth of every step; keep one per model, what it learns outlives a turn."""

    def __init__(self, mode: str = "auto"):
        if mode not in MODES:
            raise ValueError(f"mtp is one of {', '.join(MODES)}, not {mode!r}")
        self.mode = mode
        self.stats = SpeculationStats()
        self.acceptance = [Share() for _ in range(MAX_DEPTH)]
        self.by_confidence = [Share(min(b, 1.0) - 0.07, 2.0) for b in BUCKETS]
        self._seconds: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(MAX_DEPTH + 1)]
        self._draft_seconds: deque[float] = deque(maxlen=WINDOW)
        self._rest = FIRST_REST
        self._since_plain = 0
        self._retry = 0

    def begin(self) -> None:
        """A new turn: counts start again, what was learnt stays."""
        self.stats = SpeculationStats()

    # Choosing

    def next(self, room: int) -> Step:
        """The next step, when at most `room` more tokens may be produced."""
        if self.mode == "off":
            return Step(0, room)
        step = self._auto() if self.mode == "auto" else Step(int(self.mode))
        depth = min(step.depth, room - 1)
        return Step(depth, min(step.tokens, room))

    def _auto(self) -> Step:
        if not self.known(0):
            return Step(0, PLAIN_PROBE)
        for depth in range(1, MAX_DEPTH + 1):
            if not self.known(depth) and self._promising(depth):
                return Step(depth)
        best = self.best()
        if best == 0:
            if self._retry:
                self._retry -= 1
                return Step(max(self._known_depths()[1:], key=self.rate))
            return self._rested()
        self._rest = FIRST_REST
        self._retry = 0
        if self._since_plain >= REMEASURE and self.rate(best) < CLOSE * self.rate(0):
            return Step(0, PLAIN_PROBE)
        return Step(best)

    def _rested(self) -> Step:
        """Plain decoding for a while; after it speculation gets another chance."""
        others = self._known_depths()[1:]
        hopeless = not others or max(map(self.rate, others)) < HOPELESS * self.rate(0)
        tokens = LONGEST_REST if hopeless else self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
        self._retry = SAMPLES if others else 0
        return Step(0, tokens)

    def _promising(self, depth: int) -> bool:
        """Whether an unmeasured depth may pay, should its last row cost a little less than the row before.

        (The first row pays for all that speculation costs once: the loss of overlap, the reads on the host.)
        """
        if depth == 1:
            return True
        below = depth - 1
        if not self.known(below):
            return False
        row = 0.7 * (self.cost(below) - self.cost(below - 1))
        return self.expected(depth) / (self.cost(below) + row) > 0.9 * max(
            map(self.rate, self._known_depths())
        )

    def best(self) -> int:
        """The fastest depth that was measured; 0 unless another is clearly faster."""
        best = max(self._known_depths(), key=self.rate)
        return best if self.rate(best) > GAIN * self.rate(0) else 0

    def known(self, depth: int) -> bool:
        return len(self._seconds[depth]) >= SAMPLES

    def _known_depths(self) -> list[int]:
        return [d for d in range(MAX_DEPTH + 1) if self.known(d)]

    def cost(self, depth: int) -> float:
        """Median seconds of a step (of a token, for depth 0)."""
        ordered = sorted(self._seconds[depth])
        return ordered[(len(ordered) - 1) // 2]

    def expected(self, depth: int) -> float:
        """Tokens that a step of this depth brings on average."""
        total, standing = 1.0, 1.0
        for share in self.acceptance[:depth]:
            standing *= share.value
            total += standing
        return total

    def rate(self, depth: int) -> float:
        """Tokens per second."""
        return self.expected(depth) / self.cost(depth)

    # Draft confidence

    @property
    def gated(self) -> bool:
        """Whether single drafts are weighed by their confidence: in auto mode, once costs are known."""
        return self.mode == "auto" and self.known(0) and self.known(1)

    def worth(self, drafts: int, standing: float, confidence: float) -> tuple[bool, float]:
        """Should one more draft be verified after `drafts` others that stand with probability `standing`?

        `confidence` is the head's own probability of it. Returns the answer and the probability that all
        stand. A row is worth its time when the tokens it is expected to bring would take longer otherwise.
        """
        standing *= self.by_confidence[_bucket(confidence)].value
        if not self.known(drafts + 1) or not self.known(drafts):
            return True, standing
        draft = sorted(self._draft_seconds)[len(self._draft_seconds) // 2] if self._draft_seconds else 0.0
        row = max(0.0, self.cost(drafts + 1) - self.cost(drafts) - draft)
        return standing > row * max(map(self.rate, self._known_depths())), standing

    # Learning

    def plain(self, tokens: int, seconds: float) -> None:
        """`tokens` were decoded plainly in `seconds`."""
        self.stats.steps[0] += tokens
        self._seconds[0].extend([seconds / tokens] * min(tokens, SAMPLES))
        self._since_plain = 0

    def draft(self, seconds: float) -> None:
        """One draft took `seconds`."""
        self._draft_seconds.append(seconds)

    def verified(
        self, drafts: int, stood: int, tokens: int, seconds: float, confidences: list[float]
    ) -> None:
        """A step with `drafts` drafts of which `stood` did, that brought `tokens` tokens in `seconds`."""
        self.stats.steps[drafts] += 1
        if not drafts:
            return
        self.stats.verifies += 1
        self.stats.verify_tokens += tokens
        self.stats.drafted += drafts
        self._since_plain += tokens
        for i in range(min(stood + 1, drafts)):
            self.stats.tested[i] += 1
            self.stats.accepted[i] += i < stood
            self.acceptance[i].add(i < stood)
            if i < len(confidences):
                self.by_confidence[_bucket(confidences[i])].add(i < stood)
        self._seconds[drafts].append(seconds)

    def report(self) -> dict[str, Any]:
        """The turn's stats with mode, costs in ms and, when speculation rests, why."""
        found = {"mode": self.mode, **self.stats.as_dict()}
        known = self._known_depths()
        found["cost_ms"] = {str(d): round(1e3 * self.cost(d), 3) for d in known}
        if self.mode == "off":
            found["reason"] = "off"
        elif self.mode == "auto" and len(known) > 1 and 0 in known and self.best() == 0:
            depth = max(known[1:], key=self.rate)
            found["reason"] = (
                f"plain decoding is faster: a step with {depth} draft(s) takes"
                f" {self.cost(depth) / self.cost(0):.2f} times a plain token and brings"
                f" {self.expected(depth):.2f} tokens"
            )
        return found


def _bucket(confidence: float) -> int:
    return next(i for i, end in enumerate(BUCKETS) if confidence < end)
