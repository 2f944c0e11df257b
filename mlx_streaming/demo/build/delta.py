"""The gated delta rule for training: chunked in plain PyTorch, and by flash-linear-attention on CUDA.

    S_t = exp(g_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t k_t v_t^T,   o_t = S_t^T q_t

in the chunked (WY) form of Yang et al., "Gated Delta Networks" (2024): inside a chunk a unit lower
triangular system replaces the recurrence, between chunks the state is carried.
"""

import torch

CHUNK = 64
# Added to the log decay of a document's first token: exp(-40) = 4e-18 clears the state before it.
RESET = -40.0


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def chunked_delta_rule(q, k, v, g, beta, first):
    """Outputs (rows, T, value heads, dv) float32 of the gated delta rule.

    q, k: (rows, T, key heads, dk); v: (rows, T, value heads, dv); g (log decay) and beta: (rows, T, value
    heads); first: bool (rows, T), True at the first token of each document. T must be a multiple of 64.
    """
    rows, length, heads, _ = v.shape
    if length % CHUNK:
        raise ValueError(f"row length {length} is not a multiple of {CHUNK}")
    repeat = heads // q.shape[2]
    scale = q.shape[-1] ** -0.5
    q = unit(q.float()).repeat_interleave(repeat, 2) * scale
    k = unit(k.float()).repeat_interleave(repeat, 2)
    g = g + first[..., None] * RESET

    def chunks(x):  # (rows, T, heads, d) -> (rows, heads, chunks, 64, d)
        return x.reshape(rows, length // CHUNK, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)

    q, k, v = chunks(q), chunks(k), chunks(v.float())
    g, beta = chunks(g[..., None]), chunks(beta.float()[..., None])
    total = g.cumsum(-2)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (total - total.transpose(-1, -2)).masked_fill(~lower, float("-inf")).exp()
    k_beta = k * beta
    system = (k_beta @ k.transpose(-1, -2) * decay).tril(-1)
    solved = torch.linalg.solve_triangular(
        system, torch.cat([v * beta, k_beta * total.exp()], -1), upper=False, unitriangular=True
    )
    new_v, k_decayed = solved.split([v.shape[-1], k.shape[-1]], -1)
    inside = q @ k.transpose(-1, -2) * decay
    q_decayed = q * total.exp()
    end = total[..., -1:, :]
    k_to_end = (k * (end - total).exp()).transpose(-1, -2)
    end = end.exp()
    state = torch.zeros(rows, heads, k.shape[-1], v.shape[-1], device=q.device)
    outputs = []
    for i in range(length // CHUNK):
        u = new_v[:, :, i] - k_decayed[:, :, i] @ state
        outputs.append(q_decayed[:, :, i] @ state + inside[:, :, i] @ u)
        state = state * end[:, :, i] + k_to_end[:, :, i] @ u
    out = torch.stack(outputs, 2)  # (rows, heads, chunks, 64, dv)
    return out.permute(0, 2, 3, 1, 4).reshape(rows, length, heads, -1)


def recurrent_delta_rule(q, k, v, g, beta, first):
    """The same, token by token: slow, the reference that `chunked_delta_rule` is checked against."""
    rows, length, heads, dv = v.shape
    repeat = heads // q.shape[2]
    scale = q.shape[-1] ** -0.5
    q = unit(q.float()).repeat_interleave(repeat, 2) * scale
    k = unit(k.float()).repeat_interleave(repeat, 2)
    state = torch.zeros(rows, heads, k.shape[-1], dv)
    outputs = []
    for t in range(length):
        state = state * (~first[:, t]).float()[:, None, None, None]
        state = state * g[:, t].exp()[..., None, None]
        delta = (v[:, t] - torch.einsum("rhkv,rhk->rhv", state, k[:, t])) * beta[:, t][..., None]
        state = state + k[:, t][..., None] * delta[..., None, :]
        outputs.append(torch.einsum("rhkv,rhk->rhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def fla_delta_rule(q, k, v, g, beta, starts):
    """The same by flash-linear-attention; `starts`: int32 offsets of all documents and of the end."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    def flat(x):
        return x.reshape(1, -1, *x.shape[2:])

    out, _ = chunk_gated_delta_rule(
        flat(q),
        flat(k),
        flat(v),
        g=flat(g),
        beta=flat(beta),
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=starts,
    )
    return out.reshape(v.shape)
