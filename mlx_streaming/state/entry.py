"""Entries: one node of the tree of snapshots, and the names that tie it to its tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .files import Stale

KINDS = ("head", "prompt", "turn", "partial")


@dataclass(frozen=True)
class Entry:
    """What is known of a snapshot without its arrays.

    `id` names the fingerprint and all `end` tokens up to here; `parent` ("" at a root) those up to `start`.
    `tokens` are the own ones, `start` to `end`, as int32 bytes. Layout and hot experts stay JSON until asked
    for: a long conversation has hundreds of entries and only the last one's are needed.
    """

    id: str
    parent: str
    start: int
    end: int
    kind: str
    tokens: bytes
    layout_text: str
    hot_text: str = "{}"

    @cached_property
    def layout(self) -> dict:
        """What the state consists of, see layout.py.

        Raises:
            Stale: the text is damaged.
        """
        try:
            layout = json.loads(self.layout_text)
            return {key: layout[key] for key in ("position", "cache", "extra")}
        except (ValueError, TypeError, KeyError):
            raise Stale("layout", self.id) from None

    @cached_property
    def hot(self) -> dict[int, list[int]]:
        """Layer -> experts to read first; none if the text is damaged."""
        try:
            return {
                int(layer): list(map(int, experts)) for layer, experts in json.loads(self.hot_text).items()
            }
        except (ValueError, TypeError, AttributeError):
            return {}


def tokens_of(ids: Sequence[int]) -> np.ndarray:
    """Token ids as a contiguous int32 array."""
    return np.ascontiguousarray(ids, dtype=np.int32)


def entry_ids(key: str, tokens: np.ndarray, ends: Iterable[int]) -> dict[int, str]:
    """The entry id at each of `ends`, for the token sequence `tokens` under fingerprint `key`."""
    digest = hashlib.blake2b(key.encode(), digest_size=16)
    result, at = {}, 0
    for end in sorted(set(ends)):
        digest.update(tokens[at:end].tobytes())
        at = end
        result[end] = digest.copy().hexdigest()
    return result
