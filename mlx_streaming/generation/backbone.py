"""The two halves of a stock mlx-lm language model: tokens to hidden states, hidden states to logits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError


class Backbone:
    """Runs a stock model in two steps, so that the hidden states between them can be used.

    `embed`, `hidden` and `logits` together compute exactly what `model(inputs, cache)` computes.
    """

    def __init__(self, model: nn.Module):
        text = getattr(model, "language_model", model)
        self.trunk = getattr(text, "model", None)
        self._lm_head = text.get("lm_head") if isinstance(text, nn.Module) else None
        if self.trunk is None or "embed_tokens" not in self.trunk or "norm" not in self.trunk:
            raise CheckpointError(
                f"{type(model).__name__} does not have the embed_tokens/layers/norm shape that "
                "speculation needs; use mtp=off."
            )

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings (batch, length, hidden) of token ids (batch, length)."""
        return self.trunk.embed_tokens(tokens)

    def hidden(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Hidden states (batch, length, hidden) after the final norm; the cache moves on by `length`."""
        return self.trunk(tokens, cache)

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits (batch, length, vocab) of hidden states after the final norm."""
        if self._lm_head is None:
            return self.trunk.embed_tokens.as_linear(hidden)
        return self._lm_head(hidden)
