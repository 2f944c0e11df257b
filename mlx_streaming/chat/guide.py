"""Follows one answer through free words and grammars, and says which tokens may come next."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..errors import GrammarError
from .markers import MarkerGuard
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import llguidance
    import mlx.core as mx


class TokenMask(Protocol):
    """Decides, token by token, what may come next."""

    finished: bool  # nothing but an end-of-turn token may follow
    free: bool  # unconstrained words: no JSON or call has been begun that would have to be completed

    def mask(self) -> mx.array | None:
        """bool (vocab,), or None when everything is allowed."""

    def advance(self, token: int) -> None:
        """Take `token`. Raises GrammarError, unchanged, when it was not allowed."""

    def fork(self) -> TokenMask:
        """An independent copy, for drafts that may be thrown away."""


_LONG_NUMBER = 24  # digit tokens in a row (no 64-bit number has more), after which a number must end


class Phase(enum.Enum):
    """Where in an answer the model is."""

    TEXT = enum.auto()  # free words; a call may open
    THINKING = enum.auto()  # free words that must end before the turn does
    GRAMMAR = enum.auto()  # the matcher decides
    LOOSE = enum.auto()  # a call of a family without a grammar: anything goes
    DONE = enum.auto()  # only end of turn


class Guide:
    """A TokenMask made of free words and grammars.

    `call` is the grammar after a call's opening marker, `answer` the one that the turn must end with (None:
    a turn of free words), `after_thinking` the same behind a think tag. `doors` are token sequences that may
    come instead of the answer's first word, with the phase they lead to.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        guard: MarkerGuard,
        *,
        call: str | None = None,
        answer: str | None = None,
        after_thinking: str | None = None,
        doors: Sequence[tuple[tuple[int, ...], Phase]] = (),
        parallel: bool = True,
        in_reasoning: bool = False,
    ):
        self._vocab = vocab
        self._guard = guard
        self._call, self._answer, self._after_thinking = call, answer, after_thinking
        self._doors = tuple(doors)
        self._parallel = parallel
        self._forced: tuple[int, ...] = ()
        self._door_open = False
        self._beyond = Phase.TEXT
        self._ended = False
        self._digits = 0
        self._lark = ""
        self._matcher: llguidance.LLMatcher | None = None  # made of `_lark` when first needed
        for lark in (call, answer, after_thinking):
            if lark is not None:
                vocab.check(lark)
        vocab.prepare()
        if in_reasoning and answer is not None:
            self._phase = Phase.THINKING
        elif answer is not None:
            self._enter(answer)
        else:
            self._phase = Phase.TEXT

    @property
    def finished(self) -> bool:
        """Whether nothing but an end-of-turn token may follow."""
        if self._ended or self._phase is Phase.DONE:
            return True
        answering = self._phase is Phase.GRAMMAR and self._answer is not None
        return answering and self._live().is_stopped()

    @property
    def free(self) -> bool:
        """Whether the words are unconstrained here."""
        return not self._forced and self._phase in (Phase.TEXT, Phase.THINKING, Phase.LOOSE)

    def mask(self) -> mx.array | None:
        """bool (vocab,), or None when everything is allowed.

        Raises:
            GrammarError: the grammar grew beyond llguidance's limits.
        """
        if self._forced:
            return self._vocab.array(self._forced[:1])
        if self._phase is Phase.DONE or self._ended:
            return self._vocab.only_eos
        if self._phase is Phase.GRAMMAR:
            return self._grammar_mask()
        return None if self._phase is Phase.LOOSE else self._guard.mask()

    def _grammar_mask(self) -> mx.array:
        import mlx.core as mx

        matcher = self._live()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            reason = matcher.get_error().strip().splitlines()[0]
            raise GrammarError(f"The grammar cannot go on here ({reason}); simplify the schema or the tools.")
        flags = np.unpackbits(bits, count=self._vocab.size, bitorder="little")
        if self._digits >= _LONG_NUMBER:
            self._end_number(flags)
        if self._door_open:
            for ids, _ in self._doors:
                flags[ids[0]] = 1
        return mx.array(flags.view(bool))

    def _end_number(self, flags: np.ndarray) -> None:
        """Refuse further digits: greedy models can fall into endless decimals, and JSON allows them. Where
        most tokens are allowed this is a string and not a number, which may go on."""
        shorter = flags.copy()
        shorter[self._vocab.digits] = 0
        if flags.sum() < flags.size // 8 and shorter.any():
            flags[:] = shorter

    def advance(self, token: int) -> None:
        """Take `token`.

        Raises:
            GrammarError: it was not allowed (nothing has changed then).
        """
        if self._forced:
            self._take_forced(token)
        elif self._phase is Phase.GRAMMAR:
            self._take_in_grammar(token)
        elif self._phase is Phase.DONE or self._ended:
            if token not in self._vocab.eos:
                raise _refused(token)
            self._ended = True
        elif token in self._vocab.eos:
            if self._phase is Phase.THINKING:
                raise _refused(token)
            self._ended = True
        elif self._phase is not Phase.LOOSE:
            self._take_free(token)

    def fork(self) -> Guide:
        """An independent copy."""
        copy = object.__new__(Guide)
        copy.__dict__.update(self.__dict__)
        copy._guard = self._guard.fork()
        copy._matcher = None if self._matcher is None else self._matcher.deep_copy()
        return copy

    def _take_free(self, token: int) -> None:
        name = self._guard.push(token)
        if name == "think_end" and self._phase is Phase.THINKING:
            self._enter(self._after_thinking)
        elif name == "call":
            if self._call is None:
                self._phase = Phase.LOOSE
            else:
                self._enter(self._call)

    def _take_forced(self, token: int) -> None:
        if token != self._forced[0]:
            raise _refused(token)
        self._forced = self._forced[1:]
        if not self._forced:
            self._phase = self._beyond
            self._guard.restart()

    def _take_in_grammar(self, token: int) -> None:
        matcher = self._live()
        if matcher.try_consume_tokens([token]) == 0:
            door = next((d for d in self._doors if self._door_open and d[0][0] == token), None)
            if door:
                (_, *rest), self._beyond = door
                self._forced = tuple(rest)
                self._door_open = False
                if not rest:
                    self._phase = self._beyond
                    self._guard.restart()
            elif token in self._vocab.eos and matcher.is_accepting():
                self._ended = True
            else:
                raise _refused(token)
            return
        self._ended = token in self._vocab.eos
        text = self._vocab.bytes[token]
        self._digits = self._digits + 1 if text.isdigit() else 0
        self._door_open = self._door_open and not text.strip()
        if self._answer is None and not self._ended and matcher.is_stopped():
            self._phase = Phase.TEXT if self._parallel else Phase.DONE
            self._guard.restart()

    def _enter(self, lark: str) -> None:
        self._phase, self._lark, self._matcher = Phase.GRAMMAR, lark, None
        self._door_open = lark is not self._call

    def _live(self) -> llguidance.LLMatcher:
        if self._matcher is None:
            self._matcher = self._vocab.matcher(self._lark)
        return self._matcher


def _refused(token: int) -> GrammarError:
    return GrammarError(f"Token {token} does not fit the grammar; switch the grammar off and report this.")
