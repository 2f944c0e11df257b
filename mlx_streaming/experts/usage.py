"""Usage: decayed routing counts of past runs, one small JSON file per checkpoint, shared by processes."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

VERSION = 1
# A run counts half after this many further runs' worth of tokens have been added on top of it.
HALF_LIFE_TOKENS = 20_000


def load_usage(path: Path) -> dict[int, np.ndarray]:
    """Counts (num_experts,) float64 per layer; empty when there is no readable file (it only helps speed)."""
    try:
        data = json.loads(path.read_text())
        if data["version"] != VERSION:
            return {}
        layers = {int(n): np.array(counts, dtype=np.float64) for n, counts in data["layers"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    if not all(c.ndim == 1 and np.isfinite(c).all() and (c >= 0).all() for c in layers.values()):
        return {}
    return layers


def add_usage(path: Path, counts: Mapping[int, np.ndarray], tokens: int) -> None:
    """Age what `path` holds by `tokens` and add `counts`; atomic, and safe beside another process.

    Nothing is raised: usage only changes speed, so a full or read-only disk just leaves the old file.
    """
    if not counts or tokens <= 0:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _write(path, merged(load_usage(path), counts, tokens))


def merged(
    old: Mapping[int, np.ndarray], counts: Mapping[int, np.ndarray], tokens: int
) -> dict[int, np.ndarray]:
    """`old` decayed by `tokens` plus `counts`; layers whose number of experts changed start afresh."""
    decay = 0.5 ** (tokens / HALF_LIFE_TOKENS)
    result = {}
    for layer in old.keys() | counts.keys():
        new = counts.get(layer)
        before = old.get(layer)
        if new is None:
            result[layer] = before * decay
        elif before is None or before.shape != new.shape:
            result[layer] = new.astype(np.float64)
        else:
            result[layer] = before * decay + new
    return result


def hottest(usage: Mapping[int, np.ndarray], limits: Mapping[int, int]) -> dict[int, list[int]]:
    """The `limits[layer]` most used experts of each layer, most used first; never-used ones are left out."""
    found = {}
    for layer, counts in usage.items():
        order = np.argsort(-counts, kind="stable")[: limits.get(layer, 0)]
        found[layer] = [int(e) for e in order if counts[e] > 0]
    return found


def _write(path: Path, layers: Mapping[int, np.ndarray]) -> None:
    data = {
        "version": VERSION,
        "layers": {str(n): [round(float(c), 3) for c in counts] for n, counts in sorted(layers.items())},
    }
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(data, file)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
