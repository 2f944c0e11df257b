"""EarlyModule: the part of a layer that does not depend on the router, begun before the router is read.

While the host waits for the router's choice and looks up slots, the backend computes the shared expert.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

# Names that mlx-lm's blocks give to what they add to the routed experts.
SIBLINGS = ("shared_expert", "shared_experts", "shared_mlp")


class EarlyModule(nn.Module):
    """Wraps `inner`; a result begun by `begin(x)` is handed out when the block calls it with the same `x`.

    Some blocks give the shared expert another input than the routed ones (of another width even), or call it
    before them. So nothing is begun until the call before has shown that both get the same.
    """

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner
        self._offered: mx.array | None = None
        self._begun: mx.array | None = None
        self._same = False

    def begin(self, x: mx.array) -> list[mx.array]:
        """The routed experts get `x`: what to compute meanwhile, `[inner(x)]` or nothing."""
        self._offered, self._begun = x, None
        if not self._same:
            return []
        self._begun = self.inner(x)
        return [self._begun]

    def __call__(self, x: mx.array) -> mx.array:
        """`inner(x)`."""
        self._same, begun = self._offered is x, self._begun
        self._offered = self._begun = None
        return begun if self._same and begun is not None else self.inner(x)


def wrap_sibling(block: nn.Module) -> EarlyModule | None:
    """Wrap the shared expert of an expert block, or None when it has none."""
    for name in SIBLINGS:
        inner = block.get(name)
        if isinstance(inner, nn.Module):
            early = EarlyModule(inner)
            setattr(block, name, early)
            return early
    return None
