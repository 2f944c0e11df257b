"""Helpers of the state tests: tiny random models, and turns as the backend runs them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.models import qwen3_next
from mlx_lm.models.cache import ArraysCache, KVCache, make_prompt_cache

from mlx_streaming.state.fingerprint import fingerprint

VOCAB = 64
MARK = fingerprint("weights", b"{}")


def tiny_qwen3_next(seed: int = 0):
    """A random qwen3_next: 4 layers (3 gated-delta, 1 attention), hidden 32, 8 experts, float32."""
    args = qwen3_next.ModelArgs(
        model_type="qwen3_next",
        hidden_size=32,
        num_hidden_layers=4,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_conv_kernel_dim=4,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        shared_expert_intermediate_size=16,
        mlp_only_layers=[],
        moe_intermediate_size=16,
        rms_norm_eps=1e-6,
        vocab_size=VOCAB,
        rope_theta=10000.0,
        partial_rotary_factor=0.5,
        max_position_embeddings=4096,
        full_attention_interval=4,
    )
    mx.random.seed(seed)
    model = qwen3_next.Model(args)
    model.update({"lm_head": {"weight": mx.random.normal((VOCAB, 32))}})
    model.eval()
    mx.eval(model.parameters())
    return model


def run(model, ids, cache):
    """Logits (vocab,) after `ids` on top of `cache`, evaluated."""
    logits = model(mx.array([list(ids)]), cache=cache)[0, -1]
    mx.eval(logits)
    return logits


def greedy(model, ids, cache, count):
    """`count` greedy tokens after running `ids`; the cache ends having seen all of them."""
    logits, out = run(model, ids, cache), []
    for _ in range(count):
        out.append(int(mx.argmax(logits)))
        logits = run(model, out[-1:], cache)
    return out


def fresh(model):
    return make_prompt_cache(model)


def same_bits(a: mx.array, b: mx.array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a, b))


# No model at all: state that is a function of the tokens, so that any restored state can be checked.


def imaginary(ids):
    """[KVCache, ArraysCache] of a deterministic function of `ids`, as if a model had run them."""
    kv, arrays = KVCache(), ArraysCache(2)
    if len(ids):
        sums = np.cumsum(np.array(ids, np.float32) * (1 + np.arange(len(ids))) % 97)
        rows = sums[:, None] * np.arange(1, 9, dtype=np.float32)
        keys = mx.array(np.stack([rows, rows + 1])[None]).astype(mx.bfloat16)
        kv.update_and_fetch(keys, -keys)
        arrays[0] = mx.array(sums[-4:])[None]
        arrays[1] = mx.array([len(ids), int(sums[-1])], dtype=mx.int32)
    return [kv, arrays]


def blank():
    return [KVCache(), ArraysCache(2)]


def is_state_of(cache, ids) -> bool:
    """Whether every bit of `cache` is what `imaginary(ids)` has."""
    mine, other = cache, imaginary(ids)
    if [type(c) for c in mine] != [type(c) for c in other] or mine[0].offset != len(ids):
        return False
    pairs = [*zip(mine[0].keys_and_values(), other[0].keys_and_values(), strict=True)]
    pairs += [*zip(mine[1].cache, other[1].cache, strict=True)]
    return all(same_bits(a, b) for a, b in pairs)
