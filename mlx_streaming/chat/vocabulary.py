"""One tokenizer as masks see it: token bytes, end-of-turn ids, llguidance's trie, compiled grammars."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GrammarError
from .detokenizer import TokenBytes

if TYPE_CHECKING:
    import llguidance
    import mlx.core as mx
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Vocabulary:
    """One tokenizer as masks need it: llguidance's trie, token bytes, end-of-turn ids, padded size.

    The trie takes most of a second to build for 150,000 tokens; `prepare` begins it in the background, so
    that it is ready when the prompt has been read.
    """

    def __init__(self, tokenizer: TokenizerWrapper, size: int):
        self.size = size
        self.eos = sorted(token for token in tokenizer.eos_token_ids if token < size)
        self.bytes = TokenBytes(tokenizer)
        self.only_eos = self.array(self.eos)
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        self._trie: Future[llguidance.LLTokenizer] | None = None
        self._compiled: dict[str, llguidance.LLMatcher] = {}

    def prepare(self) -> None:
        """Begin to build the trie, once."""
        if self._trie is None:
            builder = ThreadPoolExecutor(1, "grammar-trie")
            self._trie = builder.submit(_trie, self._backend, self.bytes, self.size, self.eos)
            builder.shutdown(wait=False)

    @property
    def trie(self) -> llguidance.LLTokenizer:
        """llguidance's form of the tokenizer; waits for it.

        Raises:
            GrammarError: a kind of tokenizer that llguidance cannot read.
        """
        self.prepare()
        return self._trie.result()

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

    @functools.cached_property
    def digits(self) -> list[int]:
        """Ids of the tokens that are nothing but digits."""
        found = {token for digit in b"0123456789" for token in self.bytes.starting_with(bytes([digit]))}
        return sorted(token for token in found if self.bytes[token].isdigit())

    def check(self, lark: str) -> None:
        """Look at a Lark grammar without compiling it.

        Raises:
            GrammarError: llguidance refuses the grammar; the message says what it objects to.
        """
        import llguidance

        if lark in self._compiled:
            return
        grammar = llguidance.LLMatcher.grammar_from_lark(lark)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
        if failed:
            raise GrammarError(
                f"This JSON schema cannot be enforced ({_reason(messages[0])}); simplify the schema."
            )

    def matcher(self, lark: str) -> llguidance.LLMatcher:
        """A matcher at the start of a Lark grammar (compiled once)."""
        import llguidance

        if lark not in self._compiled:
            if len(self._compiled) >= 32:
                self._compiled.pop(next(iter(self._compiled)))
            grammar = llguidance.LLMatcher.grammar_from_lark(lark)
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
    """The (cached) vocabulary of a tokenizer; `size` is the model's padded vocabulary."""
    known = _vocabularies.get(tokenizer)
    if known is None or known.size != size:
        known = _vocabularies[tokenizer] = Vocabulary(tokenizer, size)
    return known


class _ByteLevel:
    """What llguidance asks of a tokenizer given as a table of bytes (its `TokenizerWrapper`)."""

    bos_token_id = None

    def __init__(self, backend: Any, table: TokenBytes, size: int, eos: list[int]):
        pieces = table.table()[:size]
        self._backend = backend
        self.eos_token_id = eos[0]
        self.tokens = pieces + [b""] * (size - len(pieces))
        self.special_token_ids = [token for token in table.added if token < size]

    def __call__(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids


def _trie(backend: Any, table: TokenBytes, size: int, eos: list[int]) -> llguidance.LLTokenizer:
    """llguidance's tokenizer: from the byte table where there is one (0.6 s for 150,000 tokens), else from
    the tokenizer's JSON (1.9 s). Both give the same masks."""
    import llguidance

    try:
        if table.byte_level:
            source = llguidance.TokenizerWrapper(_ByteLevel(backend, table, size, eos))
        else:
            source = backend.to_str()
        return llguidance.LLTokenizer(source, n_vocab=size, eos_token=eos)
    except Exception as error:
        raise GrammarError(
            f"Grammars do not work with this checkpoint's tokenizer ({error}); switch the grammar off."
        ) from error
