"""Notices markers in free words, and keeps them from being spelled in a way that nobody would notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx

    from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Marker:
    """A marker by name, text and token ids; `forbidden`: it must not come at all."""

    name: str
    text: str
    ids: Sequence[int]
    forbidden: bool = False


class MarkerGuard:
    """Watches free words for markers.

    The text parser sees characters, not tokens: a `<tool_call>` spelled in ordinary tokens would open a call
    that no grammar watches, and a token that ends a marker and goes on would hide its end. Both are refused.
    `refused` are ids that are never allowed.
    """

    def __init__(self, vocab: Vocabulary, markers: Sequence[Marker], refused: Sequence[int] = ()):
        self._vocab = vocab
        self._markers = tuple(markers)
        banned = {token for marker in markers if marker.forbidden for token in marker.ids[-1:]}
        self._refused = frozenset(refused) | banned
        self._masks: dict[frozenset[int], mx.array] = {}  # shared by forks
        self._longest = max((len(marker.text.encode()) for marker in markers), default=0)
        self._tail = b""

    def mask(self) -> mx.array | None:
        """bool (vocab,), or None when everything is allowed here."""
        refused = self._refused
        for marker in self._markers:
            text = marker.text.encode()
            for begun in range(min(len(text) - 1, len(self._tail)), 0, -1):
                if self._tail.endswith(text[:begun]):
                    refused |= self._completing(marker, text[begun:])
        if not refused:
            return None
        if refused not in self._masks:
            self._masks[refused] = self._vocab.without(sorted(refused))
        return self._masks[refused]

    def push(self, token: int) -> str | None:
        """The name of the marker that `token` completes."""
        self._tail = (self._tail + self._vocab.bytes[token])[-max(self._longest, 1) :]
        for marker in self._markers:
            if self._tail.endswith(marker.text.encode()):
                self._tail = b""
                return marker.name
        return None

    def restart(self) -> None:
        """Forget what came before."""
        self._tail = b""

    def fork(self) -> MarkerGuard:
        """An independent copy (caches are shared)."""
        copy = object.__new__(MarkerGuard)
        copy.__dict__.update(self.__dict__)
        return copy

    def _completing(self, marker: Marker, rest: bytes) -> frozenset[int]:
        """Ids that must not come where only `rest` is missing of a marker."""
        table = self._vocab.bytes
        own_token = marker.forbidden or (len(marker.ids) == 1 and table.is_added(marker.ids[0]))
        return frozenset(token for token in table.starting_with(rest) if own_token or table[token] != rest)
