"""Look-ahead: guess a later layer's experts from this layer's input and read them in the background.

The guess is the target layer's own router on the hidden state a few layers earlier, scaled by the target's
norm. It changes when bytes are read, never what is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..config import EngineConfig
from ..errors import EngineError
from .reader import Reader

if TYPE_CHECKING:
    from .streamed import StreamedExperts

# Guessing pays for single tokens and short verifies; a prefill chunk needs nearly every expert anyway.
_MOST_ROWS = 4


class LookAhead:
    """Guesses for one target layer, made when an earlier layer runs."""

    def __init__(self, target: StreamedExperts, router: nn.Module, scale: mx.array, width: int):
        self._target = target
        self._router = router
        self._scale = scale
        self._width = min(width, target.pool.num_experts)

    def guess(self, x: mx.array) -> mx.array | None:
        """Experts (width,) of the target layer by falling likelihood, lazily; None for a long input.

        x (..., hidden) is the input of this layer's experts: normed, so that multiplying by the ratio of the
        two layers' norm weights gives what the target's norm would make of the same hidden state.
        """
        rows = x.size // x.shape[-1]
        if rows > _MOST_ROWS:
            return None
        scores = self._router(x.reshape(1, rows, -1) * self._scale)
        if isinstance(scores, tuple):  # a router that chooses by itself returns indices and weights
            return next(s for s in scores if mx.issubdtype(s.dtype, mx.integer)).reshape(-1)
        best = scores.max(axis=(0, 1))
        return mx.argsort(-best)[: self._width]

    def fetch(self, guessed: np.ndarray, reader: Reader) -> None:
        """Start reading what the target's pool lacks of `guessed`."""
        pool = self._target.pool
        self._target.quiesce()
        pool.settle()
        pool.stats.lookahead_guessed += len(guessed)
        pool.guess(dict.fromkeys(e for e in guessed.tolist() if e < pool.num_experts), reader)


def check(config: EngineConfig, slots: dict[int, int], top_k: int) -> None:
    """Raises EngineError when look-ahead's spare slots leave too few for the experts themselves."""
    if not config.lookahead:
        return
    if not 1 <= config.lookahead <= 3:
        raise EngineError(f"lookahead is 0 (off) to 3 layers, not {config.lookahead}.")
    least = min(slots.values(), default=0)
    if slots and least - config.lookahead_budget < top_k:
        raise EngineError(
            f"lookahead_budget {config.lookahead_budget} leaves {least - config.lookahead_budget} of {least}"
            f" slots, fewer than the {top_k} experts of a token; lower lookahead_budget or give more slots."
        )


def connect(model: nn.Module, streamed: dict[int, StreamedExperts], config: EngineConfig) -> int:
    """Let each streamed layer be predicted from `config.lookahead` layers before; returns how many are.

    Layers below `config.lookahead_cutoff` are predicted from one layer before. Layers without a router and
    norm of the usual names are left alone.
    """
    connected = 0
    numbers = sorted(streamed)
    for place, number in enumerate(numbers):
        distance = 1 if number < config.lookahead_cutoff else config.lookahead
        if place < distance:
            continue
        earlier = numbers[place - distance]
        source, target = _block(model, earlier), _block(model, number)
        if source is None or target is None:
            continue
        scale = target["norm"] / source["norm"]
        mx.eval(scale)
        streamed[earlier].predict(
            LookAhead(streamed[number], target["router"], scale, config.lookahead_width)
        )
        connected += 1
    return connected


def _block(model: nn.Module, layer: int) -> dict[str, Any] | None:
    decoder = model.layers[layer]
    norm = getattr(decoder, "post_attention_layernorm", None)
    block = getattr(decoder, "mlp", None) or getattr(decoder, "block_sparse_moe", None)
    router = getattr(block, "gate", None) or getattr(block, "router", None)
    if not isinstance(norm, nn.RMSNorm) or router is None:
        return None
    return {"norm": norm.weight, "router": router}
