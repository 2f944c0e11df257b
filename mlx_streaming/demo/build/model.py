"""Trainable Qwen3-Next with its MTP head (PyTorch). Parameters are named as in the release, experts stacked.

Tensors carry packed documents: (rows, T) tokens and each one's position inside its document. Neither
attention nor convolution nor recurrent state crosses a document's start. `check.py` compares it with mlx-lm.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from .delta import chunked_delta_rule, fla_delta_rule
from .experts import routed
from .quantise import Rounding


@dataclass(frozen=True)
class Shape:
    """Sizes of the demo model (config.json says the same in the release's words)."""

    vocab: int = 8192
    hidden: int = 256
    layers: int = 8
    full_every: int = 4  # every fourth layer has full attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int = 16
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv: int = 4
    experts: int = 64
    top_k: int = 4
    width: int = 64
    shared_width: int = 64
    rope_theta: float = 1e6


@dataclass(frozen=True)
class Layout:
    """Where documents lie in a batch. `starts`: flat offsets of every document, and the end of the batch."""

    position: torch.Tensor  # (rows, T) int64
    starts: torch.Tensor  # (documents + 1,) int32
    spans: tuple[tuple[int, int], ...]  # the same as Python ints
    longest: int


def rms_norm(x, weight):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


class Norm(nn.Module):
    """RMS norm with a zero-centred weight."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return rms_norm(x, 1.0 + self.weight)


class Linear(nn.Module):
    def __init__(self, inputs, outputs, std=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (std or 0.5 / math.sqrt(inputs)))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Named(nn.Module):
    """A parameter holder that exists for its name only."""

    def __init__(self, **parameters):
        super().__init__()
        for name, value in parameters.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))


class GatedDeltaNet(nn.Module):
    def __init__(self, s: Shape, fla: bool):
        super().__init__()
        self.s, self.fla = s, fla
        keys, values = s.key_heads * s.key_dim, s.value_heads * s.value_dim
        self.keys, self.values = keys, values
        self.in_proj_qkvz = Linear(s.hidden, 2 * keys + 2 * values)
        self.in_proj_ba = Linear(s.hidden, 2 * s.value_heads, 0.02)
        self.conv1d = Named(weight=torch.randn(2 * keys + values, 1, s.conv) * 0.3)
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 8, s.value_heads)))
        dt = torch.exp(torch.linspace(math.log(0.002), math.log(0.05), s.value_heads))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = Named(weight=torch.ones(s.value_dim))
        self.out_proj = Linear(values, s.hidden, 0.2 / math.sqrt(values))

    def convolve(self, x, position):
        """Causal depthwise convolution that does not look across a document's start, then SiLU."""
        w = self.conv1d.weight[:, 0].to(x.dtype)
        out = x * w[:, -1]
        for back in range(1, self.s.conv):
            earlier = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            out = out + earlier * (position >= back)[..., None] * w[:, -1 - back]
        return F.silu(out)

    def forward(self, x, layout: Layout, rope):
        s = self.s
        rows, length, _ = x.shape
        ratio = s.value_heads // s.key_heads
        mixed = self.in_proj_qkvz(x).view(rows, length, s.key_heads, -1)
        q, k, v, z = mixed.split([s.key_dim, s.key_dim, ratio * s.value_dim, ratio * s.value_dim], -1)
        beta, a = self.in_proj_ba(x).view(rows, length, s.key_heads, -1).split([ratio, ratio], -1)
        qkv = torch.cat([t.reshape(rows, length, -1) for t in (q, k, v)], -1)
        q, k, v = self.convolve(qkv, layout.position).split([self.keys, self.keys, self.values], -1)
        q, k = (t.reshape(rows, length, s.key_heads, s.key_dim) for t in (q, k))
        v = v.reshape(rows, length, s.value_heads, s.value_dim)
        beta = beta.reshape(rows, length, -1).sigmoid()
        g = -self.A_log.float().exp() * F.softplus(a.reshape(rows, length, -1).float() + self.dt_bias.float())
        if self.fla:
            out = fla_delta_rule(q, k, v, g, beta, layout.starts)
        else:
            out = chunked_delta_rule(q, k, v, g, beta, layout.position == 0)
        z = z.reshape(rows, length, s.value_heads, s.value_dim)
        gated = rms_norm(out.float(), self.norm.weight) * F.silu(z.float())
        return self.out_proj(gated.to(x.dtype).reshape(rows, length, -1))


class Attention(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.s = s
        self.q_proj = Linear(s.hidden, 2 * s.heads * s.head_dim)
        self.k_proj = Linear(s.hidden, s.kv_heads * s.head_dim)
        self.v_proj = Linear(s.hidden, s.kv_heads * s.head_dim)
        self.o_proj = Linear(s.heads * s.head_dim, s.hidden, 0.2 / math.sqrt(s.hidden))
        self.q_norm, self.k_norm = Norm(s.head_dim), Norm(s.head_dim)

    def rotate(self, x, rope):
        cos, sin = rope
        n = self.s.rotary
        a = x[..., :n].float()
        turned = torch.cat([-a[..., n // 2 :], a[..., : n // 2]], -1)
        return torch.cat([(a * cos + turned * sin).to(x.dtype), x[..., n:]], -1)

    def forward(self, x, layout: Layout, rope):
        s = self.s
        rows, length, _ = x.shape
        tokens = rows * length
        q, gate = self.q_proj(x).view(tokens, s.heads, -1).chunk(2, -1)
        k = self.k_proj(x).view(tokens, s.kv_heads, -1)
        v = self.v_proj(x).view(tokens, s.kv_heads, -1)
        q, k = self.rotate(self.q_norm(q), rope), self.rotate(self.k_norm(k), rope)
        ratio = s.heads // s.kv_heads
        out = document_attention(q, k.repeat_interleave(ratio, 1), v.repeat_interleave(ratio, 1), layout)
        out = out.reshape(rows, length, -1) * torch.sigmoid(gate.reshape(rows, length, -1))
        return self.o_proj(out)


def document_attention(q, k, v, layout: Layout):
    """Causal attention inside each document. q, k, v: (tokens, heads, d). Returns the same shape."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        at = layout.starts
        return varlen_attn(q, k, v, at, at, layout.longest, layout.longest, window_size=(-1, 0))
    parts = []
    for a, b in layout.spans:
        one = (t[a:b].transpose(0, 1)[None] for t in (q, k, v))
        parts.append(F.scaled_dot_product_attention(*one, is_causal=True)[0].transpose(0, 1))
    return torch.cat(parts)


class MoE(nn.Module):
    def __init__(self, s: Shape, rounding: Rounding):
        super().__init__()
        self.s, self.rounding = s, rounding
        self.gate = Linear(s.hidden, s.experts, 0.02)
        self.shared_expert_gate = Linear(s.hidden, 1, 0.02)
        self.gate_up = nn.Parameter(torch.randn(s.experts, 2 * s.width, s.hidden) * 0.5 / math.sqrt(s.hidden))
        self.down = nn.Parameter(torch.randn(s.experts, s.hidden, s.width) * 0.2 / math.sqrt(s.width))
        self.shared_expert = Named(
            gate_proj=Linear(s.hidden, s.shared_width),
            up_proj=Linear(s.hidden, s.shared_width),
            down_proj=Linear(s.shared_width, s.hidden, 0.2 / math.sqrt(s.shared_width)),
        )

    def forward(self, x, importance):
        """Returns (y, load balancing loss, router z-loss); `importance` (tokens,) weighs the losses."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = self.gate(x).float()
        p = logits.softmax(-1)
        weights, chosen = p.topk(self.s.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        total = importance.sum()
        load = torch.zeros(self.s.experts, device=x.device).scatter_add(
            0, chosen.reshape(-1), importance[:, None].expand_as(chosen).reshape(-1)
        )
        share = (p * importance[:, None]).sum(0) / total
        balance = self.s.experts * (load.detach() / (total * self.s.top_k) * share).sum()
        z_loss = (logits.logsumexp(-1).pow(2) * importance).sum() / total
        gate_up, down = (self.rounding.apply(w).to(x.dtype) for w in (self.gate_up, self.down))
        out = routed(x, gate_up, down, weights, chosen)
        shared = self.shared_expert
        hidden = F.silu(shared.gate_proj(x)) * shared.up_proj(x)
        out = out + torch.sigmoid(self.shared_expert_gate(x)) * shared.down_proj(hidden)
        return out.reshape(shape), balance, z_loss


class Layer(nn.Module):
    def __init__(self, s: Shape, rounding: Rounding, full: bool, fla: bool = False):
        super().__init__()
        self.full = full
        if full:
            self.self_attn = Attention(s)
        else:
            self.linear_attn = GatedDeltaNet(s, fla)
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden), Norm(s.hidden)
        self.mlp = MoE(s, rounding)

    def forward(self, x, layout, rope, importance):
        mixer = self.self_attn if self.full else self.linear_attn
        x = x + mixer(self.input_layernorm(x), layout, rope)
        y, balance, z_loss = self.mlp(self.post_attention_layernorm(x), importance)
        return x + y, balance, z_loss


class MTP(nn.Module):
    """Predicts the token after next from the final-norm hidden state and the next token's embedding."""

    def __init__(self, s: Shape, rounding: Rounding):
        super().__init__()
        self.fc = Linear(2 * s.hidden, s.hidden, 1.0 / math.sqrt(2 * s.hidden))
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(s.hidden), Norm(s.hidden)
        self.layers = nn.ModuleList([Layer(s, rounding, full=True)])
        self.norm = Norm(s.hidden)

    def forward(self, embedded, hidden, layout, rope, importance):
        both = torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1)
        x, balance, _ = self.layers[0](self.fc(both), layout, rope, importance)
        return self.norm(x), balance


class Model(nn.Module):
    def __init__(self, s: Shape | None = None, fla: bool = False):
        super().__init__()
        self.s = s = s or Shape()
        self.rounding = Rounding()
        mtp_rounding = Rounding()  # never active: the MTP head is shipped in bfloat16
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.08)
        self.lm_head = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)
        self.layers = nn.ModuleList(
            [Layer(s, self.rounding, (i + 1) % s.full_every == 0, fla) for i in range(s.layers)]
        )
        self.norm = Norm(s.hidden)
        self.mtp = MTP(s, mtp_rounding)

    def rope(self, position):
        """(cos, sin), each (tokens, 1, rotary)."""
        n = self.s.rotary
        steps = torch.arange(0, n, 2, device=position.device).float() / n
        angles = position.reshape(-1, 1).float() * self.s.rope_theta**-steps
        angles = torch.cat([angles, angles], -1)[:, None]
        return angles.cos(), angles.sin()

    def forward(self, tokens, layout: Layout, importance, dtype=torch.float32):
        """Returns (hidden state after the final norm, embeddings, rope, balance loss, z-loss)."""
        rope = self.rope(layout.position)
        embedded = F.embedding(tokens, self.rounding.apply(self.embed)).to(dtype)
        x, balance, z_loss = embedded, 0.0, 0.0
        for layer in self.layers:
            x, b, z = layer(x, layout, rope, importance)
            balance, z_loss = balance + b, z_loss + z
        return self.norm(x), embedded, rope, balance, z_loss

    def logits(self, hidden):
        return F.linear(hidden, self.rounding.apply(self.lm_head).to(hidden.dtype))
