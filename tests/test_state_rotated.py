"""The rotated KV cache: what it costs in bytes and in exactness, and that nobody else notices it."""

from __future__ import annotations

import mlx.core as mx
import mlx_lm.models.qwen3_next as qwen3_next
import pytest
from helpers_state import MARK, fresh, greedy, run, same_bits, tiny_qwen3_next
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import ArraysCache, KVCache

from mlx_streaming.errors import EngineError
from mlx_streaming.state import rotated_kv
from mlx_streaming.state.rotated_kv import RotatedKVCache, attention, install, parse_bits, rotate, rotate_back
from mlx_streaming.state.session import Session
from mlx_streaming.state.store import StateStore


def noise(shape, seed, outliers=()):
    x = mx.random.normal(shape, key=mx.random.key(seed))
    for channel in outliers:
        x[..., channel] *= 10
    return x.astype(mx.bfloat16)


def error(a, b):
    a, b = a.astype(mx.float32), b.astype(mx.float32)
    return (mx.linalg.norm(a - b) / mx.linalg.norm(b)).item()


@pytest.mark.parametrize("dim", [32, 64, 96, 128, 256])
def test_rotation_is_orthogonal_and_always_the_same(dim):
    matrix = rotated_kv.rotation(dim, 0)
    assert mx.allclose(matrix @ matrix.T, mx.eye(dim), atol=1e-5)
    rotated_kv.rotation.cache_clear()
    assert same_bits(matrix, rotated_kv.rotation(dim, 0))
    assert not mx.allclose(matrix, rotated_kv.rotation(dim, 1), atol=1e-2)
    x = noise((1, 2, 5, dim), 3).astype(mx.float32)
    assert mx.allclose(rotate_back(rotate(x, 0), 0), x, atol=1e-4)


@pytest.mark.parametrize("bits, limit", [((8, 8), 0.02), ((4, 4), 0.13), ((4, 3), 0.25)])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_attention_is_close_to_exact(bits, limit, rows):
    """Against mlx-lm's attention in full precision over the same history, keys with outlier channels."""
    q = noise((1, 8, 300, 64), 0)
    k, v = noise((1, 2, 300, 64), 1, outliers=(3, 40)), noise((1, 2, 300, 64), 2)
    cache = RotatedKVCache(*bits)
    cache.update_and_fetch(k[:, :, : 300 - rows], v[:, :, : 300 - rows])
    keys, values = cache.update_and_fetch(k[:, :, 300 - rows :], v[:, :, 300 - rows :])
    ask = q[:, :, 300 - rows :]
    mask = "causal" if rows > 1 else None
    exact = scaled_dot_product_attention(ask, k, v, None, 0.05, mask)
    got = attention(ask, keys, values, cache, 0.05, mask)
    assert got.shape == exact.shape and got.dtype == exact.dtype
    assert 0 < error(got, exact) < limit
    if rows > 1:
        for given in (create_causal_mask(rows, 300 - rows), create_causal_mask(rows, 300 - rows)[None, None]):
            other = attention(ask, keys, values, cache, 0.05, given)
            assert error(other, got) < 0.01
        additive = mx.where(create_causal_mask(rows, 300 - rows), 0.0, -1e9).astype(mx.bfloat16)
        assert error(attention(ask, keys, values, cache, 0.05, additive), got) < 0.01


def test_rotation_pays_where_channels_stand_out():
    q, v = noise((1, 4, 200, 64), 0), noise((1, 2, 200, 64), 2)
    k = noise((1, 2, 200, 64), 1, outliers=(5, 33))
    plain = mx.dequantize(*mx.quantize(k, group_size=64, bits=4), group_size=64, bits=4)
    parts = mx.quantize(rotate(k, 0), group_size=64, bits=4)
    turned = rotate_back(mx.dequantize(*parts, group_size=64, bits=4), 0)
    assert error(turned, k) < 0.75 * error(plain, k)
    assert q.size and v.size


def test_both_ways_of_computing_agree(monkeypatch):
    q, k, v = (noise((1, heads, 50, 64), seed) for seed, heads in enumerate((4, 2, 2)))
    cache = RotatedKVCache()
    keys, values = cache.update_and_fetch(k, v)
    few = attention(q[:, :, -3:], keys, values, cache, 0.1, "causal")
    monkeypatch.setattr(rotated_kv, "FEW", 0)
    many = attention(q[:, :, -3:], keys, values, cache, 0.1, "causal")
    assert error(few, many) < 0.02


def test_bytes_per_token_are_those_of_the_arithmetic():
    cache = RotatedKVCache(4, 3)
    cache.update_and_fetch(noise((1, 2, 256, 256), 0), noise((1, 2, 256, 256), 1))
    overhead = 256 // 64 * 4  # scale and bias of each group, bfloat16
    assert cache.nbytes == 256 * 2 * (256 * 4 // 8 + 256 * 3 // 8 + 2 * overhead)
    assert 12 * cache.nbytes // 256 == 6144  # the 80B's 12 attention layers: 6 KiB per token


def test_trimmed_rows_are_written_over():
    feed = [noise((1, 2, 10, 64), seed) for seed in range(4)]
    a, b = RotatedKVCache(), RotatedKVCache()
    a.update_and_fetch(feed[0], feed[1])
    a.update_and_fetch(feed[2], feed[3])
    assert a.trim(7) == 7 and a.offset == a.size() == 13
    a.update_and_fetch(feed[1], feed[0])
    b.update_and_fetch(feed[0], feed[1])
    b.update_and_fetch(feed[2][:, :, :3], feed[3][:, :, :3])
    b.update_and_fetch(feed[1], feed[0])
    pairs = [*zip(a.keys_and_values()[0], b.keys_and_values()[0], strict=True)]
    pairs += [*zip(a.keys_and_values()[1], b.keys_and_values()[1], strict=True)]
    assert len(pairs) == 6 and all(same_bits(x, y) for x, y in pairs)


def test_model_over_rotated_caches(tmp_path):
    stock_attention = qwen3_next.scaled_dot_product_attention
    model = tiny_qwen3_next()
    ids = [(i * 11 + i // 4) % 60 for i in range(80)]
    exact = run(model, ids, fresh(model))
    make = install(model, (8, 8))
    assert [type(c) for c in make()] == [ArraysCache] * 3 + [RotatedKVCache]
    assert same_bits(run(model, ids, fresh(model)), exact)  # plain caches go the stock way
    assert 0 < error(run(model, ids, make()), exact) < 0.05
    install(model, (8, 8))
    assert qwen3_next.scaled_dot_product_attention is stock_attention
    assert type(tiny_qwen3_next().layers[3].self_attn) is qwen3_next.Qwen3NextAttention
    session = Session(StateStore(tmp_path, 0, 1 << 40, MARK), model, make)
    start = session.begin(ids)
    run(model, ids[:-1], start.cache)
    session.snapshot(ids[:-1], start.cache, "prompt")
    answer = greedy(model, ids[-1:], start.cache, 6)
    session.flush()
    again = session.begin(ids)
    assert again.length == 79 and again.source == "disk"
    assert greedy(model, ids[-1:], again.cache, 6) == answer
    session.close()


def test_settings():
    assert parse_bits("") is None and parse_bits("k4v3") == (4, 3)
    for wrong in ("4", "k7v3", "k4", "v3k4", "k4v3x"):
        with pytest.raises(EngineError, match="k4v3"):
            parse_bits(wrong)


def test_models_without_plain_kv_caches_are_refused():
    model = tiny_qwen3_next()
    model.make_cache = lambda: [ArraysCache(2)]
    with pytest.raises(EngineError, match="kv_bits"):
        install(model, (4, 3))
    assert KVCache not in map(type, model.make_cache())
