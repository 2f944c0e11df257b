"""The training loss: next token, MTP draft tokens, router balance."""

import torch
import torch.nn.functional as F

MTP_WEIGHT = 0.3
DEEPER_WEIGHT = 0.1  # of each MTP depth after the first
BALANCE_WEIGHT = 0.003
Z_WEIGHT = 1e-4


def kept(weights: torch.Tensor, share: float, generator=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions to compute logits for, and their weights: all of weight 1, a random `share` of the others.

    The others' weights are divided by `share`, so the expected loss is the same.
    """
    draw = torch.rand(weights.shape, generator=generator, device=weights.device)
    at = ((weights >= 1) | ((weights > 0) & (draw < share))).nonzero()[:, 0]
    w = weights[at]
    return at, torch.where(w < 1, w / share, w)


def cross_entropy(model, hidden, targets, weights, share):
    at, w = kept(weights, share)
    logits = model.logits(hidden.reshape(-1, hidden.shape[-1])[at]).float()
    return (F.cross_entropy(logits, targets[at], reduction="none") * w).sum() / w.sum()


def shifted(x, by):
    """x (rows, T, hidden) moved `by` places along the flat batch; what wraps around has no weight."""
    return torch.roll(x.reshape(-1, x.shape[-1]), by, 0).reshape(x.shape)


def losses(model, batch, depth: int, dtype=torch.float32, share: float = 1.0):
    """Returns ([next token, MTP depth 1, 2, ...], balance, z-loss); `depth` MTP steps are computed.

    MTP step 1 at position i reads the embedding of token i+1 and the main hidden state (detached) at i, and
    predicts token i+2. Step d reads the output of step d-1 one position earlier instead of that state.
    """
    importance = batch.weights.flatten()
    hidden, embedded, rope, balance, z_loss = model(batch.tokens, batch.layout, importance, dtype)
    found = [cross_entropy(model, hidden, batch.targets(1), batch.target_weights(1), share)]
    following = shifted(embedded, -1)
    state, targets, weights = hidden.detach(), batch.targets(2), batch.target_weights(2)
    for d in range(depth):
        if d:
            state = shifted(state, 1)
            weights = weights * (batch.layout.position.flatten() >= d)
        state, b = model.mtp(following, state, batch.layout, rope, importance)
        balance = balance + b
        found.append(cross_entropy(model, state, targets, weights, share))
    return found, balance / (len(model.layers) + depth), z_loss / len(model.layers)


def total(found, balance, z_loss):
    loss = found[0] + sum(MTP_WEIGHT * x for x in found[1:2]) + sum(DEEPER_WEIGHT * x for x in found[2:])
    return loss + BALANCE_WEIGHT * balance + Z_WEIGHT * z_loss
