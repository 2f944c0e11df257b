"""Tokens to text as they come: never half a character, never a lost one.

A token is a run of bytes, and a character may be spread over several tokens. So tokens are mapped to bytes
and an incremental UTF-8 decoder holds back an unfinished character. (mlx-lm's streaming detokenisers drop
leading spaces and NUL bytes.)
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_SPM_SPACE = "\u2581".encode()


class TokenBytes:
    """The bytes of every token of a byte-level BPE or SentencePiece tokenizer.

    `known` is False for other kinds, whose tokens have no bytes of their own.
    """

    def __init__(self, tokenizer: TokenizerWrapper):
        from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer

        detokenizer = tokenizer.detokenizer
        self._added = {
            token: str(added.content).encode() for token, added in tokenizer.added_tokens_decoder.items()
        }
        self.byte_level = isinstance(detokenizer, BPEStreamingDetokenizer)
        sentencepiece = isinstance(detokenizer, SPMStreamingDetokenizer)
        self.known = self.byte_level or sentencepiece
        self.trims_first_space = sentencepiece and bool(detokenizer.trim_space)
        self._tokens = detokenizer.tokenmap if self.known else []
        self._alphabet = _byte_alphabet()
        self._starting: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return max(len(self._tokens), 1 + max(self._added, default=-1))

    def __getitem__(self, token: int) -> bytes:
        """Bytes of `token`; empty for an id beyond the tokenizer (a padded vocabulary)."""
        if token in self._added:
            return self._added[token]
        if not 0 <= token < len(self._tokens) or self._tokens[token] is None:
            return b""
        piece = self._tokens[token]
        if isinstance(piece, bytes):
            return piece.replace(_SPM_SPACE, b" ")
        alphabet = self._alphabet
        return b"".join(alphabet.get(char) or char.encode("utf-8", "replace") for char in piece)

    def table(self) -> list[bytes]:
        """The bytes of all tokens, at once."""
        if not self.byte_level:
            return [self[token] for token in range(len(self))]
        letters = {ord(char): byte[0] for char, byte in self._alphabet.items()}
        pieces = [(piece or "").translate(letters).encode("latin-1", "replace") for piece in self._tokens]
        pieces += [b""] * (len(self) - len(pieces))
        for token in self._added:
            pieces[token] = self[token]
        return pieces

    def starting_with(self, start: bytes) -> list[int]:
        """Every id whose bytes begin with `start` (not empty); remembered, as it looks at every token."""
        if start not in self._starting:
            self._starting[start] = self._search(start)
        return self._starting[start]

    def _search(self, start: bytes) -> list[int]:
        added = [token for token, text in self._added.items() if text.startswith(start)]
        spelled: str | bytes = start.replace(b" ", _SPM_SPACE)
        if self.byte_level:
            letters = {byte: char for char, byte in self._alphabet.items()}
            spelled = "".join(letters[bytes([byte])] for byte in start)
        pieces = enumerate(self._tokens)
        found = [i for i, piece in pieces if piece and piece.startswith(spelled) and i not in self._added]
        return added + found

    @property
    def added(self) -> list[int]:
        """Ids of the added (special or marker) tokens."""
        return sorted(self._added)

    def is_added(self, token: int) -> bool:
        """Whether `token` is an added (special or marker) token rather than a piece of ordinary text."""
        return token in self._added


class StreamingText:
    """Text of a growing token sequence. The concatenation of all pieces is the text of all tokens."""

    def __init__(self, tokenizer: TokenizerWrapper, table: TokenBytes | None = None):
        self._table = table or TokenBytes(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = self._table.trims_first_space
        self._plain = None if self._table.known else tokenizer.detokenizer

    def push(self, token: int) -> str:
        """The characters that `token` completes, perhaps none."""
        if self._plain is not None:
            self._plain.add_token(token)
            return _without_surrogates(self._plain.last_segment)
        piece = self._table[token]
        if self._first and piece:
            self._first = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What was held back: an unfinished character comes out as U+FFFD."""
        if self._plain is not None:
            self._plain.finalize()
            return _without_surrogates(self._plain.last_segment)
        return self._decoder.decode(b"", final=True)


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-ins for the 256 bytes (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): bytes([byte]) for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return table | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}
