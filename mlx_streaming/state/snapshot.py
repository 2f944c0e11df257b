"""Snapshots: the state of a model at a token position, copied to the host and back, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import CacheList

from .codecs import Part, UnsupportedCache, WrongPosition, codec_named, codec_of
from .files import Stale, Tensor
from .layout import leaves, same_kind, starts

SPARE = 256  # rows past the end of a restored KV cache, so that the first tokens need no reallocation
READERS = 4
BUNDLE = 4 << 20  # bytes
_TYPES = {
    "BF16": mx.bfloat16,
    "F16": mx.float16,
    "F32": mx.float32,
    "U8": mx.uint8,
    "U16": mx.uint16,
    "U32": mx.uint32,
    "U64": mx.uint64,
    "I8": mx.int8,
    "I16": mx.int16,
    "I32": mx.int32,
    "I64": mx.int64,
    "BOOL": mx.bool_,
}
_CODES = {kind: code for code, kind in _TYPES.items()}


class Source(Protocol):
    """One link of a chain: a captured snapshot, or an entry file."""

    layout: dict
    starts: Mapping[str, int]
    rows: Mapping[str, Any]
    whole: Mapping[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """State after `position` tokens; plain host memory that shares nothing with the caches it came from.

    layout: see layout.py. rows: arrays (..., tokens, dim) from row `starts[path]` on. whole: other arrays.
    """

    position: int
    layout: dict
    starts: Mapping[str, int]
    rows: Mapping[str, Tensor]
    whole: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for part in (self.rows, self.whole) for t in part.values())

    def restore(self, model: Any = None) -> list[Any]:
        """A fresh cache list in this state (for a snapshot captured with no parent); see `rebuild`."""
        from mlx_lm.models.cache import make_prompt_cache

        return rebuild([self], make_prompt_cache(model) if model is not None else None)[0]


def capture(
    cache: Sequence[Any],
    position: int,
    *,
    parent: dict | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Copy the state of `cache` after `position` tokens to the host.

    Args:
        cache: mlx-lm cache objects, one per layer. parent: layout of the entry this one extends; only the
            rows after it are copied. extra: further state by name: arrays, cache objects or lists of them.

    Raises:
        UnsupportedCache: a type without codec, or a cache that has not seen exactly `position` tokens.
    """
    rows: dict[str, mx.array] = {}
    whole: dict[str, mx.array] = {}
    layout = {
        "position": position,
        "cache": [_take(c, f"c.{i}", rows, whole) for i, c in enumerate(cache)],
        "extra": {},
    }
    for path, node in leaves(layout):
        if node["offset"] not in (None, 0, position):
            raise WrongPosition(
                f"Cache {path} has seen {node['offset']} tokens where {position} were expected; not saved."
            )
    for name, item in (extra or {}).items():
        if isinstance(item, mx.array):
            layout["extra"][name] = "array"
            whole[f"x.{name}"] = item
        elif isinstance(item, list | tuple):
            layout["extra"][name] = [_take(c, f"x.{name}.{i}", rows, whole) for i, c in enumerate(item)]
        else:
            layout["extra"][name] = _take(item, f"x.{name}", rows, whole)
    own = starts(layout, parent)
    ends = {path: node["offset"] for path, node in leaves(layout)}
    for name, array in rows.items():
        path = name.rpartition(".")[0]
        rows[name] = array[..., own[path] : ends[path], :]
    mx.eval(list(rows.values()), list(whole.values()))
    return Snapshot(
        position,
        layout,
        own,
        {name: _host(array) for name, array in rows.items()},
        {name: _host(array) for name, array in whole.items()},
    )


def _take(cache: Any, path: str, rows: dict[str, mx.array], whole: dict[str, mx.array]) -> dict:
    if type(cache) is CacheList:
        inner = [_take(c, f"{path}.{i}", rows, whole) for i, c in enumerate(cache.caches)]
        return {"type": "CacheList", "of": inner}
    part = codec_of(cache).take(cache)
    rows.update({f"{path}.{name}": array for name, array in part.rows.items()})
    whole.update({f"{path}.{name}": array for name, array in part.whole.items()})
    return {
        "type": type(cache).__name__,
        "fixed": part.fixed,
        "scalars": part.scalars,
        "offset": part.offset,
        "rows": list(part.rows),
        "whole": list(part.whole),
    }


def _host(array: mx.array) -> Tensor:
    code = _CODES.get(array.dtype)
    if code is None:
        raise UnsupportedCache(f"State of type {array.dtype} cannot be saved; this model has no snapshots.")
    bits = array.view(mx.uint16) if code == "BF16" else array
    return Tensor(code, np.array(bits, copy=True, order="C"))


def rebuild(chain: Sequence[Source], fresh: Sequence[Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Cache objects and extra state from a chain of entries, the oldest first; the last one's state counts.

    The bytes are read straight into new MLX arrays, by a few threads that never call MLX. Nothing is shared
    with the sources, so the caches may be written to.

    Args:
        fresh: newly made caches of the model; types and settings must be the same.

    Returns:
        (cache list, extra as given to `capture`).

    Raises:
        Stale: the chain does not fit together or a byte of it cannot be trusted.
    """
    tip = chain[-1]
    if fresh is not None:
        blank = [_take(c, f"c.{i}", {}, {}) for i, c in enumerate(fresh)]
        mine = tip.layout["cache"]
        if len(blank) != len(mine) or not all(map(same_kind, blank, mine)):
            raise Stale("layout")
    arrays: dict[str, mx.array] = {}
    pieces: dict[str, list[tuple[Any, int, int]]] = {}
    for path, node in leaves(tip.layout):
        if any(f"{path}.{name}" not in tip.whole for name in node["whole"]):
            raise Stale("layout")
        for name in node["rows"]:
            full = f"{path}.{name}"
            pieces[full] = _pieces(chain, path, full, node["offset"])
            shape = list(_tensor(tip.rows, full).shape)
            shape[-2] = node["offset"] + SPARE
            arrays[full] = mx.zeros(shape, _TYPES[_tensor(tip.rows, full).code])
    for full, tensor in tip.whole.items():
        pieces[full] = []
        arrays[full] = mx.zeros(tensor.shape, _TYPES[tensor.code])
    mx.eval(list(arrays.values()))
    _fill(arrays, pieces, tip.whole)
    cache = [_build(node, f"c.{i}", arrays) for i, node in enumerate(tip.layout["cache"])]
    extra: dict[str, Any] = {}
    for name, item in tip.layout["extra"].items():
        if item == "array":
            extra[name] = arrays[f"x.{name}"]
        elif isinstance(item, list):
            extra[name] = [_build(node, f"x.{name}.{i}", arrays) for i, node in enumerate(item)]
        else:
            extra[name] = _build(item, f"x.{name}", arrays)
    return cache, extra


def _tensor(tensors: Mapping[str, Any], name: str) -> Any:
    try:
        return tensors[name]
    except KeyError:
        raise Stale("layout") from None


def _pieces(chain: Sequence[Source], path: str, full: str, need: int) -> list[tuple[Any, int, int]]:
    """(tensor, first row, end row) of every link that holds some of the first `need` rows of this array."""
    found = []
    for link in reversed(chain):
        tensor = link.rows.get(full)
        start = link.starts.get(path)
        if tensor is None or start is None or start + tensor.shape[-2] != need:
            raise Stale("chain")
        found.append((tensor, start, need))
        need = start
        if need == 0:
            return found
    raise Stale("chain")


def _fill(
    arrays: Mapping[str, mx.array],
    pieces: Mapping[str, list[tuple[Any, int, int]]],
    whole: Mapping[str, Any],
) -> None:
    jobs: list[tuple[Any, list[np.ndarray]]] = []
    for full, array in arrays.items():
        if array.size == 0:
            continue
        buffer = np.frombuffer(memoryview(array).cast("B"), np.uint8)
        if full in whole:
            jobs.append((whole[full], [buffer]))
            continue
        lanes = buffer.reshape(-1, array.shape[-2], array.shape[-1] * array.itemsize)
        for tensor, start, end in pieces[full]:
            jobs.append((tensor, [lane[start:end].reshape(-1) for lane in lanes]))
    if any(tensor.nbytes != sum(view.size for view in views) for tensor, views in jobs):
        raise Stale("layout")
    with ThreadPoolExecutor(READERS) as pool:
        for done in [pool.submit(_read, bundle) for bundle in _bundles(jobs)]:
            done.result()


def _bundles(jobs: Iterable[tuple[Any, list[np.ndarray]]]) -> Iterator[list[tuple[Any, list[np.ndarray]]]]:
    """Jobs in groups that are worth handing to another thread."""
    bundle: list[tuple[Any, list[np.ndarray]]] = []
    size = 0
    for job in jobs:
        bundle.append(job)
        size += job[0].nbytes
        if size >= BUNDLE:
            yield bundle
            bundle, size = [], 0
    if bundle:
        yield bundle


def _read(bundle: list[tuple[Any, list[np.ndarray]]]) -> None:
    for tensor, views in bundle:
        tensor.read_into(views)


def _build(node: dict, path: str, arrays: Mapping[str, mx.array]) -> Any:
    if node["type"] == "CacheList":
        return CacheList(*(_build(inner, f"{path}.{i}", arrays) for i, inner in enumerate(node["of"])))
    codec = codec_named(node["type"])
    if codec is None:
        raise Stale("layout")
    rows = {name: arrays[f"{path}.{name}"] for name in node["rows"]}
    whole = {name: arrays[f"{path}.{name}"] for name in node["whole"]}
    return codec.build(Part(node["fixed"], node["scalars"], node["offset"], rows, whole))
