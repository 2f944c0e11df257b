"""Capture and restore: bit-identical for every cache type, and never sharing what a cache may overwrite."""

from __future__ import annotations

import mlx.core as mx
import pytest
from helpers_state import fresh, run, same_bits, tiny_qwen3_next
from mlx_lm.models import cache as lm
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache

from mlx_streaming.state.codecs import UnsupportedCache, WrongPosition
from mlx_streaming.state.files import Stale
from mlx_streaming.state.rotated_kv import RotatedKVCache
from mlx_streaming.state.snapshot import capture, rebuild


class Feed:
    """Keys and values that depend only on the position, so that two caches can be fed the same."""

    def __init__(self, heads=2, dim=32, dtype=mx.bfloat16):
        self.shape, self.dtype = (heads, dim), dtype

    def __call__(self, start, count):
        heads, dim = self.shape
        # One key per position, so that any chunking gives the same rows.
        parts = []
        for salt in (1, 2):
            rows = [
                mx.random.normal((1, heads, 1, dim), key=mx.random.key(salt * 100_003 + position))
                for position in range(start, start + count)
            ]
            parts.append(mx.concatenate(rows, axis=2).astype(self.dtype))
        return parts


def flat(state):
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, list | tuple):
        return [x for item in state for x in flat(item)]
    return []


def advance(cache, feed, start, count):
    """Arrays that attention would see after `count` more tokens."""
    if isinstance(cache, CacheList):
        return [x for inner in cache.caches for x in advance(inner, feed, start, count)]
    if isinstance(cache, ArraysCache):
        old = cache[0] if cache[0] is not None else mx.zeros((1, 4, 8))
        cache[0] = old * 0.5 + feed(start, count)[0].astype(mx.float32).sum()
        cache[1] = mx.full((1, 3), start + count, dtype=mx.int32)
        return [cache[0], cache[1]]
    return flat(cache.update_and_fetch(*feed(start, count)))


MAKERS = {
    "KVCache": lm.KVCache,
    "ConcatenateKVCache": lm.ConcatenateKVCache,
    "QuantizedKVCache": lambda: lm.QuantizedKVCache(group_size=32, bits=4),
    "RotatedKVCache": lambda: RotatedKVCache(4, 3, group_size=32),
    "RotatingKVCache": lambda: lm.RotatingKVCache(max_size=24),
    "RotatingKVCache keep": lambda: lm.RotatingKVCache(max_size=24, keep=4),
    "ChunkedKVCache": lambda: lm.ChunkedKVCache(chunk_size=16),
    "ArraysCache": lambda: lm.ArraysCache(2),
    "CacheList": lambda: lm.CacheList(lm.KVCache(), lm.ArraysCache(2)),
}
HISTORIES = {
    "long chunk": [40],
    "chunk then tokens": [17, 1, 1, 1],
    "past the window one by one": [20] + [1] * 15,
    "several chunks": [30, 30, 7],
    "exactly one step": [256],
}
NEXT = [1, 1, 5, 1, 30, 1]


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", MAKERS)
def test_restored_cache_goes_on_bit_for_bit(name, history):
    feed, cache, position = Feed(), MAKERS[name](), 0
    for count in HISTORIES[history]:
        advance(cache, feed, position, count)
        position += count
    snapshot = capture([cache], position)
    (restored,), _ = rebuild([snapshot], [MAKERS[name]()])
    assert type(restored) is type(cache)
    compared = 0
    for count in NEXT:
        expected = advance(cache, feed, position, count)
        got = advance(restored, feed, position, count)
        assert len(expected) == len(got) > 0
        for a, b in zip(expected, got, strict=True):
            assert same_bits(a, b)
            compared += 1
        if hasattr(cache, "make_mask") and not isinstance(cache, ArraysCache):
            for n in (1, 3):
                a, b = (c.make_mask(n, return_array=False, window_size=20) for c in (cache, restored))
                assert (a is None) == (b is None)
                assert not isinstance(a, mx.array) or same_bits(a, b)
        if hasattr(cache, "maybe_trim_front"):
            cache.maybe_trim_front()
            restored.maybe_trim_front()
        position += count
        if hasattr(cache, "offset"):
            assert cache.offset == restored.offset == position
    assert compared >= len(NEXT) * 2


@pytest.mark.parametrize("name", MAKERS)
def test_chain_of_entries_equals_one_whole_snapshot(name):
    feed, cache, position, links = Feed(), MAKERS[name](), 0, []
    for count in (12, 1, 19, 1):
        advance(cache, feed, position, count)
        position += count
        links.append(capture([cache], position, parent=links[-1].layout if links else None))
    whole = capture([cache], position)
    (a,), _ = rebuild(links, [MAKERS[name]()])
    (b,), _ = rebuild([whole], [MAKERS[name]()])
    pairs = list(zip(advance(a, feed, position, 3), advance(b, feed, position, 3), strict=True))
    assert pairs and all(same_bits(x, y) for x, y in pairs)
    if whole.rows:
        own = [next(iter(link.rows.values())).shape[-2] for link in links]
        assert own == [12, 1, 19, 1]
        assert next(iter(whole.rows.values())).shape[-2] == 33


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_shared_with_running_caches(name):
    feed, cache = Feed(), MAKERS[name]()
    advance(cache, feed, 0, 20)
    snapshot = capture([cache], 20)
    before = {key: t.data.copy() for key, t in {**snapshot.rows, **snapshot.whole}.items()}
    (first,), _ = rebuild([snapshot])
    (second,), _ = rebuild([snapshot])
    for step in range(20, 60):  # write over everything there is to write over
        advance(cache, Feed(), step + 500, 1)
        advance(first, Feed(), step + 900, 1)
    mx.eval(flat(first.state), flat(cache.state))
    after = {**snapshot.rows, **snapshot.whole}
    assert before and all((before[key] == after[key].data).all() for key in before)
    (third,), _ = rebuild([snapshot])
    pairs = list(zip(advance(second, feed, 20, 2), advance(third, feed, 20, 2), strict=True))
    assert pairs and all(same_bits(a, b) for a, b in pairs)


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_logits_after_restore_are_those_of_running_on(bits):
    model = tiny_qwen3_next()
    ids = [(i * 7 + i // 5) % 60 for i in range(90)]

    def caches():
        if bits is None:
            return fresh(model)
        made = fresh(model)
        return [QuantizedKVCache(group_size=32, bits=bits) if type(c) is KVCache else c for c in made]

    cache = caches()
    run(model, ids[:40], cache)
    run(model, ids[40:41], cache)
    snapshot = capture(cache, 41)
    restored, _ = rebuild([snapshot], caches())
    assert same_bits(run(model, ids[41:70], cache), run(model, ids[41:70], restored))
    for token in ids[70:]:
        assert same_bits(run(model, [token], cache), run(model, [token], restored))


def test_extra_state_comes_back_in_kind():
    kv, hidden = KVCache(), mx.random.normal((1, 1, 32)).astype(mx.bfloat16)
    feed = Feed()
    advance(kv, feed, 0, 9)
    main = KVCache()
    advance(main, feed, 0, 10)
    first = capture([main], 10, extra={"mtp": kv, "hidden": hidden, "more": [kv, ArraysCache(1)]})
    advance(main, feed, 10, 5)
    advance(kv, feed, 9, 5)
    second = capture([main], 15, parent=first.layout, extra={"mtp": kv, "hidden": hidden})
    assert second.rows["x.mtp.keys"].shape[-2] == 5  # only its own rows, though it runs one behind
    _, extra = rebuild([first, second])
    assert set(extra) == {"mtp", "hidden"} and same_bits(extra["hidden"], hidden)
    assert extra["mtp"].offset == 14
    assert all(
        same_bits(a, b) for a, b in zip(kv.keys_and_values(), extra["mtp"].keys_and_values(), strict=True)
    )
    _, extra = rebuild([first])
    assert type(extra["more"][0]) is KVCache and extra["more"][1].empty()


def test_extra_cache_begun_late_is_stored_whole():
    feed, main, kv = Feed(), KVCache(), KVCache()
    advance(main, feed, 0, 10)
    advance(kv, feed, 0, 9)
    first = capture([main], 10, extra={"mtp": kv})
    late = KVCache()
    advance(late, feed, 3, 12)  # more rows than the parent has, but not an extension of them
    advance(main, feed, 10, 10)
    second = capture([main], 20, parent=first.layout, extra={"mtp": late})
    _, extra = rebuild([first, second])
    assert same_bits(extra["mtp"].keys_and_values()[0], late.keys_and_values()[0])


class Strange(KVCache):
    """A subclass may hold more than its parent."""


def test_unknown_types_are_refused_by_name():
    with pytest.raises(UnsupportedCache, match="Strange"):
        capture([KVCache(), Strange()], 0)
    with pytest.raises(UnsupportedCache, match="BatchKVCache"):
        capture([lm.BatchKVCache([0])], 0)
    padded = ArraysCache(1, left_padding=[1])
    with pytest.raises(UnsupportedCache, match="padded"):
        capture([padded], 0)


def test_cache_that_stands_elsewhere_is_refused():
    cache = KVCache()
    advance(cache, Feed(), 0, 5)
    with pytest.raises(WrongPosition, match="5 tokens where 6"):
        capture([cache], 6)


def test_restoring_into_another_kind_of_model_is_refused():
    cache = KVCache()
    advance(cache, Feed(), 0, 5)
    snapshot = capture([cache], 5)
    for other in ([], [ArraysCache(2)], [QuantizedKVCache()], [KVCache(), KVCache()]):
        with pytest.raises(Stale, match="layout"):
            rebuild([snapshot], other)
    rotating = lm.RotatingKVCache(max_size=24)
    advance(rotating, Feed(), 0, 5)
    with pytest.raises(Stale, match="layout"):
        rebuild([capture([rotating], 5)], [lm.RotatingKVCache(max_size=25)])


def test_chain_with_a_gap_is_refused():
    feed, cache, links = Feed(), KVCache(), []
    for start in (0, 5, 10):
        advance(cache, feed, start, 5)
        links.append(capture([cache], start + 5, parent=links[-1].layout if links else None))
    with pytest.raises(Stale, match="chain"):
        rebuild([links[0], links[2]])
    with pytest.raises(Stale, match="chain"):
        rebuild([links[2]])
