"""What speculation brings: acceptance of the head, costs of rows and drafts, speed beside plain decoding."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from ..request import Sampling
from .decode import decode
from .depth import MAX_DEPTH, DepthControl
from .mtp import MTPHead
from .prefill import prefill
from .sampling import Sampler
from .speculative import Speculator

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Sample:
    """A prompt and the model's own greedy answer to it, as token ids."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Acceptance:
    """Teacher-forced on greedy text: of `tested[i]` drafts i + 1 (after right ones) `right[i]` were right."""

    hidden: str
    bits: str
    tested: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def rates(self) -> list[float]:
        return [r / t for r, t in zip(self.right, self.tested, strict=True) if t]


@dataclass(frozen=True)
class Costs:
    """Median milliseconds: a forward of 1..4 rows; 1..3 drafts; their ceilings in plain decoding's speed.

    ceiling[k-1] is the speed-up of depth k if every draft stood, expected[k-1] with the measured acceptance.
    """

    rows_ms: tuple[float, ...]
    drafts_ms: tuple[float, ...]
    ceiling: tuple[float, ...]
    expected: tuple[float, ...]


@dataclass(frozen=True)
class Speed:
    """One kind of sampling, plain and `auto` alternating: tokens per second, medians over the samples."""

    kind: str
    plain_tps: float
    auto_tps: float
    ratio: float
    tokens_per_verify: float | None
    accepted_per_position: tuple[float, ...]
    same_words: bool | None
    reason: str | None


def greedy_samples(
    model: nn.Module, prompts: Sequence[list[int]], ends: frozenset[int], tokens: int
) -> list[Sample]:
    """The model's greedy answers, at most `tokens` each."""
    samples = []
    for prompt in prompts:
        cache = make_prompt_cache(model)
        logits = prefill(model, prompt, cache, chunk=512)
        answer: list[int] = []
        for token in decode(model, cache, logits, Sampler(GREEDY, logits.shape[-1])):
            answer.append(token)
            if token in ends or len(answer) >= tokens:
                break
        samples.append(Sample(prompt, answer))
    return samples


def acceptance(
    model: nn.Module, head: MTPHead, samples: Sequence[Sample], hidden: str, bits: str
) -> Acceptance:
    """How many of the head's greedy drafts are the next tokens of the model's own greedy text."""
    tested, right = [0] * MAX_DEPTH, [0] * MAX_DEPTH
    for sample in samples:
        head.restore({})
        cache = make_prompt_cache(model)
        prefill(model, sample.prompt, cache, chunk=512, mtp=head)
        for place, token in enumerate(sample.answer):
            following = sample.answer[place + 1 : place + 1 + MAX_DEPTH]
            logits, state = head.first(mx.array([token], mx.uint32))
            for depth, wanted in enumerate(following):
                draft = mx.argmax(logits, axis=-1)
                tested[depth] += 1
                if draft.item() != wanted:
                    break
                right[depth] += 1
                if depth + 1 < len(following):
                    logits, state = head.more(draft, state)
            head.rewind()
            tokens = mx.array([[token]])
            head.observe(tokens, head.run(tokens, cache)[0])
    return Acceptance(hidden, bits, tuple(tested), tuple(right))


def costs(model: nn.Module, head: MTPHead, sample: Sample, rates: Sequence[float], rounds: int = 15) -> Costs:
    """Times forwards of 1..4 rows and chains of 1..3 drafts after a prompt, taking turns."""
    head.restore({})
    cache = make_prompt_cache(model)
    prefill(model, sample.prompt, cache, chunk=512, mtp=head)
    text = (sample.answer * (1 + (MAX_DEPTH + 1) // max(1, len(sample.answer))))[: MAX_DEPTH + 1]
    rows: list[list[float]] = [[] for _ in range(MAX_DEPTH + 1)]
    drafts: list[list[float]] = [[] for _ in range(MAX_DEPTH)]

    def forward(count: int) -> None:
        logits = model(mx.array(text[:count])[None], cache=cache)
        mx.eval(mx.argmax(logits, axis=-1), [c.state for c in cache])

    def chain(count: int) -> None:
        token = mx.array(text[:1], mx.uint32)
        logits, state = head.first(token)
        for _ in range(count - 1):
            logits, state = head.more(mx.argmax(logits, axis=-1), state)
        mx.eval(mx.argmax(logits, axis=-1))
        head.rewind()

    for _ in range(rounds):
        for i, times in enumerate(rows):
            times.append(_seconds(lambda i=i: forward(i + 1)))
        for i, times in enumerate(drafts):
            times.append(_seconds(lambda i=i: chain(i + 1)))
    row_ms = tuple(1e3 * statistics.median(t) for t in rows)
    draft_ms = tuple(1e3 * statistics.median(t) for t in drafts)
    steps = [row_ms[k] + draft_ms[k - 1] for k in range(1, MAX_DEPTH + 1)]
    ceiling = tuple((k + 2) * row_ms[0] / step for k, step in enumerate(steps))
    tokens, standing, expected = 1.0, 1.0, []
    for k, step in enumerate(steps):
        standing *= rates[k] if k < len(rates) else 0.0
        tokens += standing
        expected.append(tokens * row_ms[0] / step)
    return Costs(row_ms, draft_ms, ceiling, tuple(expected))


def speed(
    model: nn.Module,
    head: MTPHead,
    samples: Sequence[Sample],
    sampling: Sampling,
    tokens: int,
    ends: frozenset[int],
    control: DepthControl,
) -> Speed:
    """Plain and `auto` decoding of the same prompts, alternating; `control` keeps learning through them."""
    plain_tps, auto_tps, same = [], [], []
    tested, accepted = [0] * MAX_DEPTH, [0] * MAX_DEPTH
    verifies = verify_tokens = 0
    report: dict[str, Any] = {}
    for sample in samples:
        plain, seconds = _plain(model, sample.prompt, sampling, tokens, ends)
        plain_tps.append((len(plain) - 1) / seconds if seconds else 0.0)
        auto, seconds, report = _auto(model, head, sample.prompt, sampling, tokens, ends, control)
        auto_tps.append(seconds)
        same.append(plain == auto)
        stats = control.stats
        verifies, verify_tokens = verifies + stats.verifies, verify_tokens + stats.verify_tokens
        tested = [a + b for a, b in zip(tested, stats.tested, strict=True)]
        accepted = [a + b for a, b in zip(accepted, stats.accepted, strict=True)]
    exact = sampling.temperature == 0 or sampling.seed is not None
    return Speed(
        kind="greedy" if sampling.temperature == 0 else f"temperature {sampling.temperature}",
        plain_tps=statistics.median(plain_tps),
        auto_tps=statistics.median(auto_tps),
        ratio=statistics.median(a / p for a, p in zip(auto_tps, plain_tps, strict=True) if p),
        tokens_per_verify=verify_tokens / verifies if verifies else None,
        accepted_per_position=tuple(a / t for a, t in zip(accepted, tested, strict=True) if t),
        same_words=all(same) if exact else None,
        reason=report.get("reason"),
    )


def as_dict(part: Acceptance | Costs | Speed) -> dict[str, Any]:
    """Plain data for JSON."""
    found = asdict(part)
    return {**found, "rates": part.rates} if isinstance(part, Acceptance) else found


def _plain(model, prompt, sampling, tokens, ends) -> tuple[list[int], float]:
    cache = make_prompt_cache(model)
    logits = prefill(model, prompt, cache, chunk=512)
    answer: list[int] = []
    for token in decode(model, cache, logits, Sampler(sampling, logits.shape[-1]), history=prompt):
        if not answer:
            start = time.perf_counter()
        answer.append(token)
        if token in ends or len(answer) >= tokens:
            break
    return answer, time.perf_counter() - start


def _auto(model, head, prompt, sampling, tokens, ends, control) -> tuple[list[int], float, dict[str, Any]]:
    """(answer, tokens per second after the first run, report)."""
    head.restore({})
    cache = make_prompt_cache(model)
    logits = prefill(model, prompt, cache, chunk=512, mtp=head)
    sampler = Sampler(sampling, logits.shape[-1])
    speculator = Speculator(head, cache, sampler, control, history=prompt, limit=tokens, ends=ends)
    answer: list[int] = []
    first = 0
    for run in speculator.decode(logits):
        if not answer:
            start, first = time.perf_counter(), len(run)
        answer += run
    seconds = time.perf_counter() - start
    return answer, (len(answer) - first) / seconds if len(answer) > first else 0.0, speculator.report()


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
