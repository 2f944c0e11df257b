"""EarlyModule: the part of a layer that does not depend on the router, begun before the router is read.

While the host waits for the router's choice and looks up slots, the backend computes the shared expert.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

# Names that mlx-lm's blocks give to what they add to the routed experts.
SIBLINGS = ("shared_expert", "shared_experts", "shared_mlp")


class EarlyModule(nn.Module):
    """Wraps `inner`; a result begun by `begin(x)` is handed out when the block calls it with the same `x`."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner
        self._begun: tuple[mx.array, mx.array] | None = None

    def begin(self, x: mx.array) -> None:
        """Start computing `inner(x)` in the background."""
        y = self.inner(x)
        mx.async_eval(y)
        self._begun = (x, y)

    def __call__(self, x: mx.array) -> mx.array:
        """`inner(x)`."""
        begun, self._begun = self._begun, None
        return begun[1] if begun is not None and begun[0] is x else self.inner(x)


def wrap_sibling(block: nn.Module) -> EarlyModule | None:
    """Wrap the shared expert of an expert block, or None when it has none."""
    for name in SIBLINGS:
        inner = block.get(name)
        if isinstance(inner, nn.Module):
            early = EarlyModule(inner)
            setattr(block, name, early)
            return early
    return None
