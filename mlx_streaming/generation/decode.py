"""Plain decoding, one token per forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from .sampling import Sampler

CLEAR_EVERY = 256  # tokens between releases of mlx's buffer cache, as in mlx-lm


class Grammar(Protocol):
    """Which tokens may come next."""

    finished: bool

    def mask(self) -> mx.array | None:
        """True where a token is allowed, shape (vocab,); None when all are."""
        ...

    def advance(self, token: int) -> None: ...

    def fork(self) -> Grammar:
        """An independent copy at the same point."""
        ...


def decode(
    model: nn.Module,
    cache: list[Any],
    logits: mx.array,
    sampler: Sampler,
    *,
    history: Sequence[int] = (),
    grammar: Grammar | None = None,
) -> Iterator[int]:
    """Yields token after token, without end: the caller stops at end-of-turn, limit or interruption.

    `logits` (1, vocab) are those after the prompt, `history` the tokens so far. When a token is yielded,
    the cache covers everything up to and including it (its forward is dispatched), and nothing beyond.

    Without a grammar the next token is computed while the caller handles this one, as in mlx-lm's
    `generate_step`. A grammar needs each token on the host before the next mask; then only the forward
    overlaps with the computation of the mask.
    """
    step = _masked if grammar is not None else _pipelined
    yield from step(model, cache, logits, sampler, history, grammar)


def _pipelined(model, cache, logits, sampler, history, _grammar) -> Iterator[int]:
    keep = sampler.sampling.repetition_context
    recent = mx.array(list(history[-keep:]), mx.uint32) if sampler.needs_history else ()
    token = sampler.sample(logits, recent)
    mx.async_eval(token)
    count = 0
    while True:
        if sampler.needs_history:
            recent = mx.concatenate([recent, token])[-keep:]
        logits = model(token[None], cache=cache)[:, -1, :]
        following = sampler.sample(logits, recent)
        mx.async_eval(following)
        yield token.item()
        count += 1
        if count % CLEAR_EVERY == 0:
            mx.clear_cache()
        token = following


def _masked(model, cache, logits, sampler, history, grammar) -> Iterator[int]:
    keep = sampler.sampling.repetition_context
    recent = list(history[-keep:])
    count = 0
    while True:
        token = sampler.sample(logits, recent, grammar.mask()).item()
        grammar.advance(token)
        recent = [*recent, token][-keep:]
        logits = model(mx.array([[token]]), cache=cache)[:, -1, :]
        mx.async_eval(logits, [c.state for c in cache])
        yield token
        count += 1
        if count % CLEAR_EVERY == 0:
            mx.clear_cache()
