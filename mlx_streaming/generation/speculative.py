"""Speculative decoding with the model's own MTP head.

Between steps one token is pending: drawn, but neither yielded nor in the cache. A step drafts K tokens
after it, runs the model over all K + 1, keeps the drafts that stand and draws the next pending token. So
a step always brings at least the pending token, and what it yields is what the cache covers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx

from .accept import accept_equal, accept_rejection
from .decode import CLEAR_EVERY, Grammar
from .depth import DepthControl
from .mtp import MTPHead
from .rollback import Tape
from .sampling import ACCEPT, DRAFT, RESIDUAL, Sampler


class Drafts:
    """The drafts of one step: tokens (device), the masks they were drawn under, the head's view of them."""

    def __init__(self):
        self.tokens: list[mx.array] = []
        self.logprobs: list[mx.array] = []  # rejection rule only
        self.masks: list[mx.array | None] = []
        self.confidences: list[float] = []

    def __len__(self) -> int:
        return len(self.tokens)


class Speculator:
    """Decodes one turn; `model` runs through `head`.

    The rule: greedy, or seeded by the caller, drafts stand while they equal what the target draws with
    its fixed noise, so the words are those of plain decoding at any depth; otherwise min(1, p/q) with
    residual resampling. Both keep the target's distribution exactly.
    """

    def __init__(
        self,
        head: MTPHead,
        cache: list[Any],
        sampler: Sampler,
        control: DepthControl,
        *,
        history: Sequence[int] = (),
        grammar: Grammar | None = None,
        limit: int | None = None,
        ends: Collection[int] = (),
        clock: Callable[[], float] = time.perf_counter,
    ):
        """`history` are the tokens so far, `limit` the most tokens to produce, `ends` the tokens that end
        it.

        Raises:
            CheckpointError: the model's cache cannot be taken back.
        """
        layers = list(head.backbone.trunk.layers)
        self._head, self._cache, self._sampler = head, cache, sampler
        self._control, self._grammar, self._clock = control, grammar, clock
        self._tape = Tape(layers, cache, head.hidden_size)
        self._context = sampler.sampling.repetition_context
        self._recent = list(history[-self._context :])
        self._room = limit if limit is not None else 2**62
        self._ends = frozenset(ends)
        self._coupled = sampler.greedy or sampler.seeded
        self._drawn = 0
        self._pending = -1
        self._undo: tuple[Any, mx.array, mx.array] | None = None
        control.begin()

    @property
    def rule(self) -> str:
        """How drafts are accepted: "equal" or "min(1, p/q)"."""
        return "equal" if self._coupled else "min(1, p/q)"

    def decode(self, logits: mx.array) -> Iterator[list[int]]:
        """Yields runs of tokens, given the logits (1, vocab) after the prompt.

        Ends after `limit` tokens or a token of `ends`. Whenever a run is yielded, cache and head cover
        exactly what was yielded; `truncate` shortens the last run.
        """
        mask = self._grammar.mask() if self._grammar is not None else None
        self._pending = self._sampler.sample(logits, self._history(), mask).item()
        self._advance([self._pending])
        produced = 0
        while self._room > 0:
            for run in self._next_runs():
                self._room -= len(run)
                yield run
                if run[-1] in self._ends:
                    return
                produced += len(run)
            if produced >= CLEAR_EVERY:
                produced = 0
                mx.clear_cache()

    def _next_runs(self) -> Iterator[list[int]]:
        if self._pending in self._ends:
            return iter([self._verify(0)])
        step = self._control.next(self._room if self._head.ready else 1)
        if step.depth:
            return iter([self._verify(step.depth)])
        return self._plain(step.tokens) if self._grammar is None else self._plain_masked(step.tokens)

    def truncate(self, count: int) -> None:
        """Only the first `count` tokens (at least one) of the last run count; decode no further."""
        if self._undo is None:
            if count != 1:
                raise ValueError("the last run has one token")
            return
        mark, tokens, hidden = self._undo
        if not 1 <= count <= tokens.shape[1]:
            raise ValueError(f"the last run has {tokens.shape[1]} tokens, not {count}")
        self._tape.keep(self._cache, count)
        self._head.back_to(mark)
        self._head.observe(tokens[:, :count], hidden[:, :count])

    def report(self) -> dict[str, Any]:
        """For response_json.mtp."""
        return {**self._control.report(), "rule": self.rule}

    # Plain decoding

    def _plain(self, count: int) -> Iterator[list[int]]:
        """Up to `count` tokens, one forward each, the next computed while the caller handles one."""
        self._undo = None
        start, away = self._clock(), 0.0
        done = 0
        token = mx.array([self._pending], mx.uint32)
        recent = mx.array(self._recent, mx.uint32) if self._sampler.needs_history else ()
        while done < count:
            hidden, logits = self._head.run(token[None], self._cache)
            self._head.observe(token[None], hidden)
            if self._sampler.needs_history:
                recent = mx.concatenate([recent, token])[-self._context :]
            following = self._sampler.sample(logits[:, -1, :], recent)
            mx.async_eval(following, hidden)
            number = token.item()
            self._recent = [*self._recent, number][-self._context :]
            done += 1
            left = self._clock()
            yield [number]
            away += self._clock() - left
            if number in self._ends:
                return
            token = following
        self._pending = token.item()
        self._control.plain(done, self._clock() - start - away)

    def _plain_masked(self, count: int) -> Iterator[list[int]]:
        """As `_plain`, where every mask needs the token before it on the host."""
        start, away = self._clock(), 0.0
        done = 0
        while done < count:
            done += 1
            run = self._verify(0)
            left = self._clock()
            yield run
            away += self._clock() - left
            if self._pending in self._ends:
                break
        self._control.plain(done, self._clock() - start - away)

    # Draft and verify

    def _verify(self, depth: int) -> list[int]:
        start = self._clock()
        drafts = self._draft(depth) if depth else Drafts()
        rows = len(drafts) + 1
        tokens = mx.concatenate([mx.array([self._pending], mx.uint32), *drafts.tokens])[None]
        with self._tape.recording(self._cache, rows):
            hidden, logits = self._head.run(tokens, self._cache)
        count, following = self._judge(logits[0], drafts)
        values = mx.concatenate([count[None], following[None], tokens[0].astype(mx.int32)])
        stood, following, *run = values.astype(mx.int32).tolist()
        run = run[: stood + 1]
        cut = next((i + 1 for i, t in enumerate(run) if t in self._ends), len(run))
        run = run[:cut]
        self._commit(run, tokens, hidden, following)
        if depth:
            seconds = self._clock() - start
            self._control.verified(len(drafts), stood, len(run), seconds, drafts.confidences)
        return run

    def _commit(self, run: list[int], tokens: mx.array, hidden: mx.array, following: int) -> None:
        """Cache, head, history and grammar move on by `run`; `following` is the new pending token."""
        kept = len(run)
        self._tape.keep(self._cache, kept)
        self._head.rewind()
        self._undo = (self._head.mark(), tokens[:, :kept], hidden[:, :kept])
        self._head.observe(tokens[:, :kept], hidden[:, :kept])
        mx.async_eval([c.state for c in self._cache])
        self._sampler.position += kept
        self._recent = [*self._recent, *run][-self._context :]
        self._pending = following
        if run[-1] not in self._ends:
            self._advance([*run[1:], following])

    def _draft(self, depth: int) -> Drafts:
        """Up to `depth` drafts after the pending token; fewer where confidence or the grammar ends them."""
        drafts, gated = Drafts(), self._control.gated
        grammar = self._grammar.fork() if self._grammar is not None else None
        recent = self._history(self._pending)
        standing, hidden = 1.0, None
        token = mx.array([self._pending], mx.uint32)
        while len(drafts) < depth:
            begun = self._clock()
            logits, hidden = self._head.first(token) if hidden is None else self._head.more(token, hidden)
            mask = grammar.mask() if grammar is not None else None
            if gated:  # before the draft is drawn: which tokens are tested must not depend on their values
                confidence = _confidence(logits)
                self._control.draft(self._clock() - begun)
                worth, standing = self._control.worth(len(drafts), standing, confidence)
                if not worth:
                    break
                drafts.confidences.append(confidence)
            token, logprobs = self._draw_draft(logits, recent, mask, len(drafts))
            drafts.tokens.append(token)
            drafts.masks.append(mask)
            if logprobs is not None:
                drafts.logprobs.append(logprobs)
            if grammar is not None or gated:
                if token.item() in self._ends:
                    break
                if grammar is not None:
                    grammar.advance(token.item())
            recent = mx.concatenate([mx.array(recent), token]) if self._sampler.needs_history else ()
        if grammar is not None:
            over = len(drafts) and drafts.tokens[-1].item() in self._ends
            drafts.masks.append(None if over else grammar.mask())
        return drafts

    def _draw_draft(
        self, logits: mx.array, recent: Any, mask: mx.array | None, number: int
    ) -> tuple[mx.array, mx.array | None]:
        if self._coupled:
            return self._sampler.pick(logits, recent, mask, offset=number), None
        logprobs = self._sampler.filtered(logits, recent, mask)
        self._drawn += 1
        return mx.random.categorical(logprobs, key=self._sampler.key(DRAFT, self._drawn)), logprobs

    def _judge(self, logits: mx.array, drafts: Drafts) -> tuple[mx.array, mx.array]:
        """(drafts that stand, next token) from the target's logits (K + 1, vocab)."""
        masks = drafts.masks or [self._mask()]
        if self._coupled or not len(drafts):
            targets = self._by_row(self._sampler.pick, logits, drafts, masks, places=True)
            tokens = mx.concatenate(drafts.tokens) if len(drafts) else mx.zeros((0,), mx.uint32)
            return accept_equal(targets, tokens)
        target = self._by_row(self._sampler.filtered, logits, drafts, masks)
        self._drawn += 1
        uniforms = mx.random.uniform(shape=(len(drafts),), key=self._sampler.key(ACCEPT, self._drawn))
        key = self._sampler.key(RESIDUAL, self._drawn)
        draft, tokens = mx.concatenate(drafts.logprobs), mx.concatenate(drafts.tokens)
        return accept_rejection(target, draft, tokens, uniforms, key)

    def _by_row(
        self, function, logits: mx.array, drafts: Drafts, masks: list, places: bool = False
    ) -> mx.array:
        """`function` over all rows at once, or row by row where rows have their own history or mask."""
        if not self._sampler.needs_history and all(mask is None for mask in masks):
            return function(logits)
        recent = self._history(self._pending)
        rows = []
        for i in range(logits.shape[0]):
            mask = masks[i] if i < len(masks) else None
            offset = {"offset": i} if places else {}
            rows.append(function(logits[i : i + 1], recent, mask, **offset))
            if self._sampler.needs_history and i < len(drafts):
                recent = mx.concatenate([mx.array(recent), drafts.tokens[i]])
        return mx.concatenate(rows)

    # Small things

    def _history(self, *pending: int) -> list[int] | tuple:
        return [*self._recent, *pending] if self._sampler.needs_history else ()

    def _mask(self) -> mx.array | None:
        over = self._grammar is None or self._pending in self._ends
        return None if over else self._grammar.mask()

    def _advance(self, tokens: list[int]) -> None:
        if self._grammar is None:
            return
        for token in tokens:
            if token in self._ends:
                break
            self._grammar.advance(token)


def _confidence(logits: mx.array) -> float:
    """The head's probability (before any filter) of what it holds likeliest, from logits (1, vocab)."""
    logits = logits.astype(mx.float32)
    return mx.exp(logits.max() - mx.logsumexp(logits)).item()
