"""Routing for measurements: record what the routers choose, or replace the choice by a script.

Random weights route nearly every token to the same experts, so a synthetic checkpoint shows no misses; a
scripted router gives it a realistic choice. Nothing else of the model changes: the stock block still computes
its router, and takes indices and scores from the scripted logits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..errors import EngineError

if TYPE_CHECKING:
    from .memory import ExpertMemory


class Script(Protocol):
    """Chooses experts for one layer."""

    def choose(self, rows: int) -> np.ndarray:
        """Distinct experts (rows, top_k) for the next `rows` tokens."""


class Uniform:
    """Every expert equally likely, every token independent."""

    def __init__(self, experts: int, top_k: int, seed: int):
        self._experts, self._top_k = experts, top_k
        self._random = np.random.default_rng(seed)

    def choose(self, rows: int) -> np.ndarray:
        keys = self._random.random((rows, self._experts))
        return np.argpartition(keys, self._top_k - 1, axis=1)[:, : self._top_k]


class Zipf:
    """Popularity falls as rank ** -skew; with probability `stickiness` an expert of the last token stays."""

    def __init__(self, experts: int, top_k: int, seed: int, skew: float, stickiness: float):
        self._random = np.random.default_rng(seed)
        weights = np.arange(1, experts + 1, dtype=np.float64) ** -skew
        self._log = np.log(self._random.permutation(weights / weights.sum()))
        self._top_k, self._stickiness = top_k, stickiness
        self._last = np.array([], dtype=np.int64)

    def choose(self, rows: int) -> np.ndarray:
        chosen = np.empty((rows, self._top_k), dtype=np.int64)
        for row in range(rows):
            # Gumbel keys: the largest are a draw without replacement by weight.
            keys = self._log + self._random.gumbel(size=len(self._log))
            stay = self._last[self._random.random(len(self._last)) < self._stickiness]
            keys[stay] = np.inf
            chosen[row] = np.argpartition(-keys, self._top_k - 1)[: self._top_k]
            self._last = chosen[row]
        return chosen


class Trace:
    """Replays recorded choices, from the start again when they end."""

    def __init__(self, chosen: np.ndarray):
        self._chosen = chosen
        self._at = 0

    def choose(self, rows: int) -> np.ndarray:
        take = np.arange(self._at, self._at + rows) % len(self._chosen)
        self._at = (self._at + rows) % len(self._chosen)
        return self._chosen[take]


class ScriptedRouter(nn.Module):
    """Runs the real router and answers with logits whose top-k is the script's choice."""

    def __init__(self, inner: nn.Module, script: Script, experts: int):
        super().__init__()
        self.inner = inner
        self._script = script
        self._experts = experts
        self._random = np.random.default_rng(1)

    def __call__(self, x: mx.array) -> mx.array:
        """x (..., hidden) -> logits (..., experts)."""
        real = self.inner(x)
        if isinstance(real, tuple):
            raise EngineError("This family's router chooses by itself, so --routing works with model only.")
        rows = x.size // x.shape[-1]
        chosen = self._script.choose(rows)
        bonus = np.zeros((rows, self._experts), dtype=np.float32)
        np.put_along_axis(bonus, chosen, 30 + self._random.random(chosen.shape), axis=1)
        return mx.clip(real, -1, 1) * 1e-3 + mx.array(bonus.reshape(real.shape)).astype(real.dtype)


def parse_routing(text: str) -> Callable[[int, int, int], Script] | None:
    """A factory (layer, experts, top_k) -> Script from "uniform", "zipf:S,STICKINESS" or "trace:FILE".

    "model" gives None: the checkpoint's own routers.

    Raises:
        EngineError: not such a text, or a trace that cannot be read.
    """
    kind, _, rest = text.partition(":")
    if text == "model":
        return None
    if text == "uniform":
        return lambda layer, experts, top_k: Uniform(experts, top_k, layer)
    if kind == "zipf":
        try:
            skew, stickiness = (float(part) for part in rest.split(","))
        except ValueError:
            raise EngineError(f"{text!r} is not a routing; write it like zipf:0.8,0.4.") from None
        return lambda layer, experts, top_k: Zipf(experts, top_k, layer, skew, stickiness)
    if kind == "trace":
        traces = load_trace(Path(rest))

        def replay(layer: int, experts: int, top_k: int) -> Script:
            chosen = traces.get(layer)
            if chosen is None or chosen.shape[1] != top_k or chosen.max() >= experts:
                raise EngineError(f"{rest} has no trace that fits layer {layer}; record it with this model.")
            return Trace(chosen)

        return replay
    raise EngineError(f"{text!r} is not a routing; use model, uniform, zipf:S,STICKINESS or trace:FILE.")


def script_routers(model: nn.Module, experts: dict[int, Any], routing: str) -> None:
    """Put scripted routers into `model`; `experts` maps layers to ExpertLayer.

    Raises:
        EngineError: see `parse_routing`, or a family whose router has another name.
    """
    make = parse_routing(routing)
    if make is None:
        return
    text = getattr(model, "language_model", model)
    for number, layer in experts.items():
        decoder = text.layers[number]
        block = getattr(decoder, "mlp", None) or getattr(decoder, "block_sparse_moe", None)
        name = next((n for n in ("gate", "router") if n in (block or {})), None)
        if name is None:
            raise EngineError("This family's router cannot be scripted; use --routing model.")
        script = make(number, layer.num_experts, layer.top_k)
        setattr(block, name, ScriptedRouter(block[name], script, layer.num_experts))


class Recorder:
    """Collects the choices of every streamed layer, in order of tokens."""

    def __init__(self, memory: ExpertMemory):
        self.chosen: dict[int, list[np.ndarray]] = {}
        for number, layer in memory.streamed.items():
            kept = self.chosen.setdefault(number, [])
            layer.listen(lambda indices, kept=kept: kept.append(indices.reshape(-1, indices.shape[-1])))

    def save(self, path: Path) -> int:
        """Write the trace as a compressed .npz file; returns the tokens per layer.

        Raises:
            EngineError: nothing was recorded.
        """
        if not any(self.chosen.values()):
            raise EngineError("No layer is streamed, so there is nothing to record; give fewer --slots.")
        arrays = {f"layer{n}": np.concatenate(kept).astype(np.int16) for n, kept in self.chosen.items()}
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)
        return len(next(iter(arrays.values())))


def load_trace(path: Path) -> dict[int, np.ndarray]:
    """Choices (tokens, top_k) per layer from a file that `Recorder.save` wrote.

    Raises:
        EngineError: unreadable or not a trace.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            found = {int(name.removeprefix("layer")): data[name].astype(np.int64) for name in data.files}
    except (OSError, ValueError, KeyError) as error:
        raise EngineError(f"{path} is not a routing trace; record one with `bench --record`.") from error
    if not found or any(a.ndim != 2 or not len(a) for a in found.values()):
        raise EngineError(f"{path} holds no routing; record one with `bench --record`.")
    return found
