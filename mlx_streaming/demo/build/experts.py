"""Routed experts for training: tokens sorted by expert, one matrix product per expert."""

import torch
import torch.nn.functional as F


class GroupedExperts(torch.autograd.Function):
    """SwiGLU of each expert over its own rows.

    x: (rows, hidden) sorted by expert; gate_up: (experts, 2 width, hidden), the gate half first;
    down: (experts, hidden, width); counts: rows per expert (list of int). Returns (rows, hidden).
    """

    @staticmethod
    def forward(ctx, x, gate_up, down, counts):
        both = x.new_empty(x.shape[0], gate_up.shape[1])
        for rows, inputs, w in zip(both.split(counts), x.split(counts), gate_up, strict=True):
            torch.mm(inputs, w.T, out=rows)
        gate, up = both.chunk(2, -1)
        act = F.silu(gate) * up
        y = torch.empty_like(x)
        for rows, inputs, w in zip(y.split(counts), act.split(counts), down, strict=True):
            torch.mm(inputs, w.T, out=rows)
        ctx.save_for_backward(x, gate_up, down, both, act)
        ctx.counts = counts
        return y

    @staticmethod
    def backward(ctx, grad_y):
        x, gate_up, down, both, act = ctx.saved_tensors
        counts = ctx.counts
        grad_act = torch.empty_like(act)
        for g, out, w in zip(grad_y.split(counts), grad_act.split(counts), down, strict=True):
            torch.mm(g, w, out=out)
        gate, up = both.chunk(2, -1)
        sig = gate.sigmoid()
        grad_both = torch.cat([grad_act * up * sig * (1 + gate * (1 - sig)), grad_act * gate * sig], -1)
        grad_x = torch.empty_like(x)
        for g, out, w in zip(grad_both.split(counts), grad_x.split(counts), gate_up, strict=True):
            torch.mm(g, w, out=out)
        grad_gate_up = weight_gradients(grad_both, x, gate_up, counts) if ctx.needs_input_grad[1] else None
        grad_down = weight_gradients(grad_y, act, down, counts) if ctx.needs_input_grad[2] else None
        return grad_x, grad_gate_up, grad_down, None


def weight_gradients(grad, inputs, weight, counts):
    out = torch.empty_like(weight)
    for g, x, w in zip(grad.split(counts), inputs.split(counts), out, strict=True):
        torch.mm(g.T, x, out=w)
    return out


def grouped_mm_experts(x, gate_up, down, counts):
    """The same with CUDA's grouped matrix product; counts: (experts,) int tensor."""
    offsets = counts.cumsum(0).to(torch.int32)
    gate, up = F.grouped_mm(x, gate_up.transpose(-2, -1), offs=offsets).chunk(2, -1)
    return F.grouped_mm(F.silu(gate) * up, down.transpose(-2, -1), offs=offsets)


def routed(x, gate_up, down, weights, chosen):
    """Weighted sum of the chosen experts' outputs, (tokens, hidden).

    x: (tokens, hidden); weights, chosen: (tokens, top_k) routing weights and expert ids.
    """
    top_k = chosen.shape[1]
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=x.device)
    counts = torch.bincount(flat, minlength=gate_up.shape[0])
    rows = x[order // top_k]
    y = (
        grouped_mm_experts(rows, gate_up, down, counts)
        if x.is_cuda
        else GroupedExperts.apply(rows, gate_up, down, counts.tolist())
    )
    return (y[inverse].view(*chosen.shape, -1) * weights[..., None].to(y.dtype)).sum(1)
