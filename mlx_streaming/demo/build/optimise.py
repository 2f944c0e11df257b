"""AdamW for everything, or Muon for the matrices inside layers and AdamW for the rest."""

import math

import torch

ADAM_ONLY = ("embed", "lm_head", "mlp.gate.", "shared_expert_gate", "in_proj_ba", "conv1d")
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(x: torch.Tensor) -> torch.Tensor:
    """The semi-orthogonal matrices nearest to x (n, rows <= columns), nearly: Muon (Jordan et al. 2024)."""
    a, b, c = NEWTON_SCHULZ
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x


def as_matrices(name: str, t: torch.Tensor) -> torch.Tensor:
    """A parameter as a stack of the matrices it holds: one per expert, gate and up halves apart."""
    if name.endswith("gate_up"):
        return t.view(t.shape[0] * 2, -1, t.shape[-1])
    return t[None] if t.ndim == 2 else t


class Muon:
    """Momentum, orthogonalised, scaled so that an update's elements are about 0.2 lr."""

    def __init__(self, named, lr, decay=0.2):
        self.named, self.lr, self.decay = named, lr, decay
        self.momentum = {name: torch.zeros_like(p) for name, p in named}

    @torch.no_grad()
    def step(self, scale):
        lr = self.lr * scale
        for name, p in self.named:
            momentum = self.momentum[name].lerp_(p.grad, 1 - MOMENTUM)
            update = as_matrices(name, p.grad.lerp(momentum, MOMENTUM))
            tall = update.shape[1] > update.shape[2]
            update = orthogonalised((update.mT if tall else update).bfloat16())
            update = (update.mT if tall else update).reshape(p.shape).to(p.dtype)
            p.mul_(1 - lr * self.decay)
            p.add_(update, alpha=-lr * 0.2 * math.sqrt(max(as_matrices(name, p).shape[1:])))


class Optimiser:
    def __init__(self, model, lr: float, kind: str):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        muon = [
            (n, p) for n, p in named if kind == "muon" and p.ndim >= 2 and not any(x in n for x in ADAM_ONLY)
        ]
        chosen = {n for n, _ in muon}
        rest = [p for n, p in named if n not in chosen]
        self.parameters = [p for _, p in named]
        self.lr = lr
        self.muon = Muon(muon, lr) if muon else None
        groups = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.01},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(self, scale: float) -> float:
        """One update at `scale` times the learning rate; clears the gradients, returns their norm."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.lr * scale
        self.adam.step()
        if self.muon:
            self.muon.step(scale)
        for p in self.parameters:
            p.grad = None
        return float(norm)
