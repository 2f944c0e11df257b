"""Plain: token-by-token decoding in the shape of a Speculator, for turns without an MTP head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from .decode import Grammar, decode
from .sampling import Sampler


class Plain:
    """Decodes one turn in runs of one token; `reason` says why there is no speculation."""

    def __init__(
        self,
        model: nn.Module,
        cache: list[Any],
        sampler: Sampler,
        history: Sequence[int],
        grammar: Grammar | None,
        reason: str,
    ):
        self._model, self._cache, self._sampler = model, cache, sampler
        self._history, self._grammar, self._reason = history, grammar, reason

    def decode(self, logits: mx.array) -> Iterator[list[int]]:
        """Runs of one token from the logits (1, vocab) after the prompt, without end."""
        for token in decode(
            self._model,
            self._cache,
            logits,
            self._sampler,
            history=self._history,
            grammar=self._grammar,
        ):
            yield [token]

    def truncate(self, count: int) -> None:
        """A run of one token cannot be shortened."""

    def report(self) -> dict[str, Any]:
        """For response_json.mtp."""
        return {"off": self._reason}
