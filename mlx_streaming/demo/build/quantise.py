"""Quantisation-aware training: weights rounded as mlx will round them, gradients passed straight through."""

import torch

GROUP = 64


@torch.no_grad()
def rounded(w, bits=4):
    """`w` through mlx.core.quantize and back: affine, groups of 64 on the last axis, bfloat16 scales."""
    groups = w.reshape(-1, GROUP)
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    steps = float(2**bits - 1)
    scale = ((high - low) / steps).clamp_min(1e-7)
    from_low = low.abs() > high.abs()
    scale = torch.where(from_low, scale, -scale)
    edge = torch.where(from_low, low, high)
    level = torch.round(edge / scale)
    nonzero = level != 0
    scale = torch.where(nonzero, edge / torch.where(nonzero, level, torch.ones_like(level)), scale)
    bias = torch.where(nonzero, edge, torch.zeros_like(edge))
    scale, bias = scale.bfloat16().float(), bias.bfloat16().float()
    q = torch.round((groups - bias) / scale).clamp(0, steps)
    return (q * scale + bias).reshape(w.shape)


class Rounding:
    """Rounded copies of the quantised tensors, with gradients passed straight through.

    A trainable tensor's rounding error is refreshed every few steps only: weights move slowly and rounding is
    costly on a CPU. A frozen tensor is rounded once.
    """

    def __init__(self, every: int = 8):
        self.every = every
        self.active = False
        self.step = 0
        self._errors: dict[int, tuple[int, torch.Tensor]] = {}
        self._frozen: dict[int, torch.Tensor] = {}

    def apply(self, w: torch.nn.Parameter) -> torch.Tensor:
        """`w` rounded, or `w` itself while not active."""
        if not self.active:
            return w
        if not w.requires_grad:
            if id(w) not in self._frozen:
                self._frozen[id(w)] = rounded(w)
            return self._frozen[id(w)]
        known = self._errors.get(id(w))
        if known is None or self.step - known[0] >= self.every:
            known = self._errors[id(w)] = (self.step, rounded(w.detach()) - w.detach())
        return w + known[1]
