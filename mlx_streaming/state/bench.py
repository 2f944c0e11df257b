"""Measurements of state: filing and restoring a snapshot of the 80B's shapes, and what KV bits cost."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache

from .disk import DiskTier
from .fingerprint import fingerprint
from .store import StateStore


@dataclass(frozen=True)
class Shapes:
    """What grows with the tokens and what does not; the defaults are those of Qwen3-Next-80B-A3B."""

    kv_layers: int = 12
    kv_heads: int = 2
    head_dim: int = 256
    recurrent_layers: int = 36
    state: tuple[int, ...] = (32, 128, 128)  # float32
    conv: tuple[int, ...] = (3, 8192)  # bfloat16

    def nbytes(self, tokens: int) -> int:
        """Bytes of the arrays alone after `tokens` tokens."""
        rows = self.kv_layers * 2 * self.kv_heads * self.head_dim * 2 * tokens
        state = self.state[0] * self.state[1] * self.state[2] * 4 + self.conv[0] * self.conv[1] * 2
        return rows + self.recurrent_layers * state

    def cache(self, tokens: int) -> list[Any]:
        """A cache list of these shapes with contents that differ everywhere."""
        caches: list[Any] = []
        for i in range(self.kv_layers):
            kv = KVCache()
            shape = (1, self.kv_heads, tokens, self.head_dim)
            kv.update_and_fetch(_noise(shape, mx.bfloat16, i), _noise(shape, mx.bfloat16, i + 1000))
            caches.append(kv)
        for i in range(self.recurrent_layers):
            arrays = ArraysCache(2)
            arrays[0] = _noise((1, *self.conv), mx.bfloat16, i + 2000)
            arrays[1] = _noise((1, *self.state), mx.float32, i + 3000)
            caches.append(arrays)
        mx.eval([c.state for c in caches])
        return caches


@dataclass(frozen=True)
class RestoreBench:
    """Sizes in bytes, times in seconds; `restore_s` from a warm page cache, one figure per run."""

    tokens: int
    arithmetic_bytes: int
    stored_bytes: int
    capture_s: float
    write_s: float
    restore_s: tuple[float, ...]
    memory_restore_s: float
    identical: int  # arrays compared and found equal, bit for bit


def bench_restore(
    tokens: int = 30_000, *, runs: int = 3, shapes: Shapes | None = None, directory: Path | None = None
) -> RestoreBench:
    """File a synthetic snapshot of `tokens` tokens in a temporary store and restore it.

    Needs about three times `Shapes.nbytes(tokens)` of memory.

    Raises:
        AssertionError: what came back is not what was filed.
    """
    shapes = shapes or Shapes()
    mark = fingerprint("bench", b"{}")
    ids = [i % 50_000 for i in range(tokens)]
    cache = shapes.cache(tokens)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        store = StateStore(place, 1 << 62, 1 << 62, mark)
        start = time.perf_counter()
        store.put(ids, cache, "turn")
        captured = time.perf_counter()
        store.flush()
        written = time.perf_counter()
        assert isinstance(store.disk, DiskTier) and store.stats.get("written") == 1, store.stats
        stored = sum(path.stat().st_size for path in Path(place).glob("*.safetensors"))
        memory_s = _timed(store, ids)[0]
        store.close()
        del store
        times, identical = [], 0
        for _ in range(runs):
            reader = StateStore(place, 0, 1 << 62, mark)
            seconds, found = _timed(reader, ids)
            times.append(seconds)
            reader.close()
            identical = _compare(cache, found)
            del found
    return RestoreBench(
        tokens,
        shapes.nbytes(tokens),
        stored,
        captured - start,
        written - captured,
        tuple(times),
        memory_s,
        identical,
    )


def _timed(store: StateStore, ids: list[int]) -> tuple[float, list[Any]]:
    start = time.perf_counter()
    restored = store.restore([*ids, 0], lambda: None)
    seconds = time.perf_counter() - start
    assert restored is not None and restored.length == len(ids), store.stats
    return seconds, restored.cache


def _compare(a: list[Any], b: list[Any]) -> int:
    count = 0
    for left, right in zip(a, b, strict=True):
        if isinstance(left, KVCache):
            pairs = zip(left.keys_and_values(), right.keys_and_values(), strict=True)
        else:
            pairs = zip(left.cache, right.cache, strict=True)
        for x, y in pairs:
            assert x.dtype == y.dtype and bool(mx.array_equal(x, y)), "a restored array differs"
            count += 1
    return count


def _noise(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(shape, dtype=dtype, key=mx.random.key(seed))


@dataclass(frozen=True)
class KVError:
    """What a quantised KV cache does to the next-token distributions over `tokens` positions.

    agreement: fraction of positions with the same most likely token. kl: mean KL divergence in nats from the
    full-precision distribution. cosine: smallest cosine between the two logit vectors.
    """

    tokens: int
    agreement: float
    kl: float
    cosine: float


def kv_error(model: Any, make_cache: Callable[[], list[Any]], ids: list[int], prefix: int) -> KVError:
    """Compare caches from `make_cache` with stock ones: `ids[:prefix]` in one chunk, the rest token by token.

    Both see the same tokens, so an early difference does not lead to another text.
    """
    rows = []
    for cache in (make_prompt_cache(model), make_cache()):
        model(mx.array([ids[:prefix]]), cache=cache)
        logits = [model(mx.array([[token]]), cache=cache)[0, -1].astype(mx.float32) for token in ids[prefix:]]
        rows.append(mx.stack(logits))
        mx.eval(rows[-1])
    exact, other = rows
    p, q = (x - mx.logsumexp(x, axis=-1, keepdims=True) for x in rows)
    norms = mx.linalg.norm(exact, axis=-1) * mx.linalg.norm(other, axis=-1)
    return KVError(
        len(ids) - prefix,
        mx.mean(mx.argmax(exact, -1) == mx.argmax(other, -1)).item(),
        mx.mean(mx.sum(mx.exp(p) * (p - q), axis=-1)).item(),
        mx.min(mx.sum(exact * other, axis=-1) / norms).item(),
    )
