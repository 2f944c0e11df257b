"""A limit on thinking: after so many reasoning tokens the think tag is closed by force."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx

    from .guide import TokenMask
    from .vocabulary import Vocabulary


class ThinkingBudget:
    """A TokenMask around another one (or none) that ends reasoning after `budget` tokens.

    A tool call begun inside the reasoning is completed first.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        inner: TokenMask | None,
        *,
        think_start: tuple[int, ...],
        think_end: tuple[int, ...],
        budget: int,
        in_reasoning: bool,
    ):
        self._vocab = vocab
        self._inner = inner
        self._start, self._end = tuple(think_start), tuple(think_end)
        self._left = budget
        self._thinking = in_reasoning
        self._recent: tuple[int, ...] = ()
        self._forced = 0  # tokens of the closing tag already forced

    @property
    def finished(self) -> bool:
        """Whether nothing but an end-of-turn token may follow."""
        return self._inner is not None and self._inner.finished

    @property
    def free(self) -> bool:
        """Whether the words are unconstrained here."""
        return self._inner is None or self._inner.free

    def mask(self) -> mx.array | None:
        """bool (vocab,), or None when everything is allowed."""
        if self._forced or (self._thinking and self._left <= 0 and self.free):
            return self._vocab.array([self._end[self._forced]])
        return None if self._inner is None else self._inner.mask()

    def advance(self, token: int) -> None:
        """Take `token`. Raises GrammarError when the inner mask refuses it."""
        if self._inner is not None:
            self._inner.advance(token)
        due = self._thinking and self._left <= 0
        self._recent = (*self._recent, token)[-max(len(self._start), len(self._end)) :]
        if self._thinking:
            self._left -= 1
            self._forced = self._forced + 1 if due and token == self._end[self._forced] else 0
            if self._recent[-len(self._end) :] == self._end:
                self._thinking, self._forced = False, 0
        elif self._recent[-len(self._start) :] == self._start:
            self._thinking = True

    def fork(self) -> ThinkingBudget:
        """An independent copy."""
        copy = object.__new__(ThinkingBudget)
        copy.__dict__.update(self.__dict__)
        copy._inner = None if self._inner is None else self._inner.fork()
        return copy
