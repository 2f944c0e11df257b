"""One tokenizer as masks see it: token bytes, end-of-turn ids, llguidance's trie, compiled grammars."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GrammarError
from .detokenizer import TokenBytes

if TYPE_CHECKING:
    import llguidance
    import mlx.core as mx
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Vocabulary:
    """One tokenizer as masks need it: llguidance's trie, token bytes, end-of-turn ids, padded size."""

    def __init__(self, tokenizer: TokenizerWrapper, size: int):
        self.size = size
        self.eos = sorted(token for token in tokenizer.eos_token_ids if token < size)
        self.bytes = TokenBytes(tokenizer)
        self.trie = _trie(tokenizer, size, self.eos)
        self.only_eos = self.array(self.eos)
        self._compiled: dict[str, llguidance.LLMatcher] = {}

    def array(self, allowed: Sequence[int]) -> mx.array:
        """A mask that allows these ids only."""
        import mlx.core as mx

        flags = np.zeros(self.size, dtype=bool)
        flags[list(allowed)] = True
        return mx.array(flags)

    def without(self, refused: Sequence[int]) -> mx.array:
        """A mask that allows everything but these ids."""
        import mlx.core as mx

        flags = np.ones(self.size, dtype=bool)
        flags[list(refused)] = False
        return mx.array(flags)

    def matcher(self, lark: str) -> llguidance.LLMatcher:
        """A matcher at the start of a Lark grammar (compiled once).

        Raises:
            GrammarError: llguidance refuses the grammar; the message says what it objects to.
        """
        import llguidance

        if lark not in self._compiled:
            grammar = llguidance.LLMatcher.grammar_from_lark(lark)
            failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, self.trie)
            if failed:
                raise GrammarError(
                    f"This JSON schema cannot be enforced ({_reason(messages[0])}); simplify the schema."
                )
            if len(self._compiled) >= 32:
                self._compiled.pop(next(iter(self._compiled)))
            self._compiled[lark] = llguidance.LLMatcher(self.trie, grammar, log_level=0)
        return self._compiled[lark].deep_copy()


def _reason(message: str) -> str:
    """The line of llguidance's message that names the cause, without positions in the generated grammar."""
    lines = [line.strip().rstrip(".:") for line in message.strip().splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (
        causes[0] if causes else re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", lines[0])
    )


_vocabularies: weakref.WeakKeyDictionary[Any, Vocabulary] = weakref.WeakKeyDictionary()


def vocabulary(tokenizer: TokenizerWrapper, size: int) -> Vocabulary:
    """The (cached) vocabulary of a tokenizer; `size` is the model's padded vocabulary.

    Raises:
        GrammarError: a kind of tokenizer that llguidance cannot read.
    """
    known = _vocabularies.get(tokenizer)
    if known is None or known.size != size:
        known = _vocabularies[tokenizer] = Vocabulary(tokenizer, size)
    return known


def _trie(tokenizer: TokenizerWrapper, size: int, eos: list[int]) -> llguidance.LLTokenizer:
    import llguidance

    try:
        return llguidance.LLTokenizer(tokenizer.backend_tokenizer.to_str(), n_vocab=size, eos_token=eos)
    except Exception as error:
        raise GrammarError(
            f"Grammars do not work with this checkpoint's tokenizer ({error}); switch the grammar off."
        ) from error
