"""Entries: one node of the tree of snapshots, and the names that tie it to its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

KINDS = ("head", "prompt", "turn", "partial")


@dataclass(frozen=True)
class Entry:
    """What is known of a snapshot without its arrays.

    `id` names the fingerprint and all `end` tokens up to here; `parent` ("" at a root) those up to `start`.
    `tokens` are the own ones, `start` to `end`, as int32 bytes. `hot`: layer -> experts to read first.
    """

    id: str
    parent: str
    start: int
    end: int
    kind: str
    tokens: bytes
    layout: dict
    hot: dict[int, list[int]]


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
