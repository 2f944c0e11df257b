"""Running a prompt through the model, in chunks, with stops and snapshot positions between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from ..errors import Cancelled, PromptError


class HiddenReader(Protocol):
    """What prefill needs of an MTP head: it runs the trunk and sees every token with its hidden state."""

    def forward(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        """Logits (1, length, vocab) of tokens (1, length), lazily; the head's own cache follows."""
        ...

    def arrays(self) -> list[mx.array]:
        """What must be evaluated with the model's cache at the end of a chunk."""
        ...


def prefill(
    model: nn.Module,
    tokens: Sequence[int],
    cache: list[Any],
    *,
    chunk: int,
    start: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    boundaries: Sequence[int] = (),
    on_boundary: Callable[[int], None] | None = None,
    mtp: HiddenReader | None = None,
) -> mx.array:
    """Feeds `tokens` to the model and returns the last logits (1, vocab), evaluated.

    The shape is that of mlx-lm's `generate_step`: everything but the last token in chunks, then the last
    token alone, so the same cache and logits come out bit for bit. `start` is the absolute position of
    tokens[0] (the length that `cache` already covers). At every position of `boundaries` (absolute, up to
    and including the end) the cache covers exactly that many tokens and is evaluated when
    `on_boundary(position)` is called. `on_progress(done, total)` counts tokens of this call.

    Raises:
        PromptError: there are no tokens.
        Cancelled: `should_stop()` was true before a chunk; the cache covers the chunks before it.
    """
    total = len(tokens)
    if total == 0:
        raise PromptError("The prompt has no tokens; give at least one word.")
    forward = model if mtp is None else mtp.forward
    wanted = sorted({b - start for b in boundaries if start < b <= start + total})
    done = 0
    if on_progress:
        on_progress(0, total)
    while True:
        if should_stop():
            raise Cancelled("Stopped while reading the prompt; ask again to continue.")
        last = done == total - 1
        end = total if last else min([done + chunk, total - 1] + [b for b in wanted if b > done])
        logits = forward(mx.array(tokens[done:end])[None], cache=cache)
        mx.eval([c.state for c in cache], mtp.arrays() if mtp else [], logits[:, -1, :] if last else [])
        done = end
        if on_progress:
            on_progress(done, total)
        if done in wanted and on_boundary:
            on_boundary(start + done)
        if last:
            return logits[:, -1, :]
        mx.clear_cache()
