"""Codecs: how each of mlx-lm's cache types comes apart into arrays and is put together again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as lm

from ..errors import EngineError


class UnsupportedCache(EngineError):
    """A cache that cannot be captured exactly; the message names its type and why."""


class WrongPosition(UnsupportedCache):
    """The cache has not seen exactly the tokens it was said to have seen."""


@dataclass(frozen=True)
class Part:
    """One cache object taken apart.

    fixed: settings. scalars: the rest of its plain state. offset: tokens seen (None: it does not count).
    rows: arrays (..., tokens, dim) of which the first `offset` rows count. whole: everything else.
    """

    fixed: dict[str, Any] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    offset: int | None = None
    rows: dict[str, mx.array] = field(default_factory=dict)
    whole: dict[str, mx.array] = field(default_factory=dict)


@dataclass(frozen=True)
class Codec:
    """`take(cache) -> Part`; `build(part) -> cache`, where row arrays may have spare rows past `offset`."""

    take: Callable[[Any], Part]
    build: Callable[[Part], Any]


CODECS: dict[type, Codec] = {}


def codec_of(cache: Any) -> Codec:
    """The codec of exactly this type (a subclass may hold more).

    Raises:
        UnsupportedCache: there is none.
    """
    try:
        return CODECS[type(cache)]
    except KeyError:
        raise UnsupportedCache(
            f"The state of a {type(cache).__name__} cannot be saved, so this model runs without snapshots."
        ) from None


def codec_named(name: str) -> Codec | None:
    """The codec of the cache type called `name`."""
    return next((codec for kind, codec in CODECS.items() if kind.__name__ == name), None)


def _take_kv(cache: Any) -> Part:
    rows = {} if cache.keys is None else {"keys": cache.keys, "values": cache.values}
    return Part(offset=cache.offset, rows=rows)


def _build_kv(part: Part) -> lm.KVCache:
    cache = lm.KVCache()
    if part.rows:
        cache.keys, cache.values, cache.offset = part.rows["keys"], part.rows["values"], part.offset
    return cache


def _build_concatenate(part: Part) -> lm.ConcatenateKVCache:
    cache = lm.ConcatenateKVCache()
    if part.rows:  # this type has no spare rows
        n = part.offset
        cache.state = (part.rows["keys"][..., :n, :], part.rows["values"][..., :n, :])
    return cache


def _take_quantized(cache: lm.QuantizedKVCache) -> Part:
    rows = {}
    if cache.keys is not None:
        for side in ("keys", "values"):
            rows |= {f"{side}{i}": array for i, array in enumerate(getattr(cache, side))}
    return Part({"group_size": cache.group_size, "bits": cache.bits}, offset=cache.offset, rows=rows)


def _build_quantized(part: Part) -> lm.QuantizedKVCache:
    cache = lm.QuantizedKVCache(**part.fixed)
    if part.rows:
        cache.keys = tuple(part.rows[f"keys{i}"] for i in range(3))
        cache.values = tuple(part.rows[f"values{i}"] for i in range(3))
        cache.offset = part.offset
    return cache


def _take_rotating(cache: lm.RotatingKVCache) -> Part:
    fixed = {"max_size": cache.max_size, "keep": cache.keep}
    if cache.keys is None:
        return Part(fixed, {"index": cache._idx}, cache.offset)
    keys, values, index = cache.keys, cache.values, cache._idx
    surplus = keys.shape[2] - cache.max_size
    if surplus > 0 and index == keys.shape[2]:
        # A long prefill chunk leaves rows that the next update would drop first of all: drop them now.
        keys, values = cache._trim(surplus, keys), cache._trim(surplus, values)
        index = cache.max_size
    elif index == cache.offset < keys.shape[2]:
        keys, values = keys[..., :index, :], values[..., :index, :]
    return Part(fixed, {"index": index}, cache.offset, whole={"keys": keys, "values": values})


def _build_rotating(part: Part) -> lm.RotatingKVCache:
    cache = lm.RotatingKVCache(**part.fixed)
    cache.offset, cache._idx = part.offset, part.scalars["index"]
    if part.whole:
        cache.keys, cache.values = part.whole["keys"], part.whole["values"]
    return cache


def _take_chunked(cache: lm.ChunkedKVCache) -> Part:
    whole = {}
    if cache.keys is not None:
        end = cache.offset - cache.start_position
        whole = {"keys": cache.keys[..., :end, :], "values": cache.values[..., :end, :]}
    scalars = {"start_position": cache.start_position}
    return Part({"chunk_size": cache.chunk_size}, scalars, cache.offset, whole=whole)


def _build_chunked(part: Part) -> lm.ChunkedKVCache:
    cache = lm.ChunkedKVCache(**part.fixed)
    cache.offset, cache.start_position = part.offset, part.scalars["start_position"]
    if part.whole:
        cache.keys, cache.values = part.whole["keys"], part.whole["values"]
    return cache


def _take_arrays(cache: lm.ArraysCache) -> Part:
    if cache.left_padding is not None or cache.lengths is not None:
        raise UnsupportedCache(
            "A padded batch of recurrent states cannot be saved; run one sequence at a time."
        )
    whole = {str(i): array for i, array in enumerate(cache.cache) if array is not None}
    if not all(isinstance(array, mx.array) for array in whole.values()):
        raise UnsupportedCache("This model keeps other things than arrays in its state; it is not saved.")
    return Part({"size": len(cache.cache)}, whole=whole)


def _build_arrays(part: Part) -> lm.ArraysCache:
    cache = lm.ArraysCache(part.fixed["size"])
    for i, array in part.whole.items():
        cache[int(i)] = array
    return cache


CODECS[lm.KVCache] = Codec(_take_kv, _build_kv)
CODECS[lm.ConcatenateKVCache] = Codec(_take_kv, _build_concatenate)
CODECS[lm.QuantizedKVCache] = Codec(_take_quantized, _build_quantized)
CODECS[lm.RotatingKVCache] = Codec(_take_rotating, _build_rotating)
CODECS[lm.ChunkedKVCache] = Codec(_take_chunked, _build_chunked)
CODECS[lm.ArraysCache] = Codec(_take_arrays, _build_arrays)
