"""The measurements of state measure what they say."""

from __future__ import annotations

import pytest
from helpers_state import fresh, tiny_qwen3_next

from mlx_streaming.state.bench import Shapes, bench_restore, kv_error


def test_restore_bench_checks_what_it_timed():
    shapes = Shapes(kv_layers=3, recurrent_layers=9)  # a quarter of the 80B
    found = bench_restore(500, runs=2, shapes=shapes)
    assert found.arithmetic_bytes == 500 * 3 * 2 * 2 * 256 * 2 + 9 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    assert found.arithmetic_bytes < found.stored_bytes < 1.05 * found.arithmetic_bytes
    assert found.identical == 2 * (3 + 9) and len(found.restore_s) == 2


def test_real_shapes_are_the_80b():
    assert Shapes().nbytes(1) - Shapes().nbytes(0) == 24 * 1024
    assert Shapes().nbytes(0) == 36 * (2_097_152 + 49_152)
    assert Shapes().nbytes(30_000) == pytest.approx(814.5e6, rel=1e-3)


def test_kv_error_of_the_same_caches_is_none():
    model = tiny_qwen3_next()
    ids = [(5 * i) % 60 for i in range(20)]
    same = kv_error(model, lambda: fresh(model), ids, 8)
    assert (same.tokens, same.agreement, same.kl) == (12, 1.0, 0.0) and same.cosine == pytest.approx(1)

    def coarse():
        return [forgetful(cache) for cache in fresh(model)]

    worse = kv_error(model, coarse, ids, 8)
    assert worse.kl > 0 and worse.cosine < 0.9999


def forgetful(cache):
    """A cache that forgets its values."""
    if hasattr(cache, "update_and_fetch"):
        update = cache.update_and_fetch
        cache.update_and_fetch = lambda k, v: update(k, v * 0)
    return cache
