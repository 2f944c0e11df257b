"""Shapes that `synthesize` can imitate: one released model and a tiny one for each family."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from ..errors import CheckpointError

_WIDTHS = ("moe_intermediate_size", "shared_expert_intermediate_size")


@dataclass(frozen=True)
class Preset:
    """A `config.json` without its quantisation, and what its family calls the adjustable sizes.

    names: size ("experts", "top_k", "expert_width") -> the config keys that hold it.
    nested: the key of the text model's own config, "" when the config is flat.
    layer_types: repeated to fill the config's `layer_types`; empty when the family has none.
    expert_mode: quantisation of the experts; where it is not "affine" the trunk gets 8-bit affine.
    mtp: the release has a multi-token-prediction head in the raw qwen3_next naming.
    """

    config: dict[str, Any]
    names: dict[str, tuple[str, ...]]
    nested: str = ""
    layer_types: tuple[str, ...] = ()
    expert_mode: str = "affine"
    mtp: bool = False
    sizes: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "layers": ("num_hidden_layers",),
            "hidden": ("hidden_size",),
            "vocab": ("vocab_size",),
        }
    )

    def configured(self, **sizes: int | None) -> dict[str, Any]:
        """The config with `sizes` (layers, experts, hidden, expert_width, top_k, vocab) put in.

        Raises:
            CheckpointError: a size is not positive, a width is not a multiple of 64, top_k exceeds the
                experts, a kind of layer is absent.
        """
        config = copy.deepcopy(self.config)
        text = config[self.nested] if self.nested else config
        keys = self.sizes | self.names
        for name, value in sizes.items():
            if value is None:
                continue
            if value < 1:
                raise CheckpointError(f"{name} must be at least 1, not {value}.")
            if name in ("hidden", "expert_width") and value % 64:
                raise CheckpointError(f"{name} must be a multiple of 64, not {value}.")
            for key in keys[name]:
                text[key] = value
        experts, top_k = text[keys["experts"][0]], text[keys["top_k"][0]]
        if top_k > experts:
            raise CheckpointError(
                f"top_k {top_k} exceeds the {experts} experts; lower one or raise the other."
            )
        if self.layer_types:
            count, needed = text["num_hidden_layers"], len(self.layer_types)
            if count < needed:
                raise CheckpointError(
                    f"layers must be at least {needed}, so that each kind appears, not {count}."
                )
            text["layer_types"] = (list(self.layer_types) * count)[:count]
        return config


def find(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        CheckpointError: there is none; the message lists those there are.
    """
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(PRESETS)
        raise CheckpointError(f"There is no preset {name!r}; choose one of {known}.") from None


_QWEN_NAMES = {"experts": ("num_experts",), "top_k": ("num_experts_per_tok",), "expert_width": _WIDTHS}
_ROUTED_NAMES = {
    "experts": ("n_routed_experts",),
    "top_k": ("num_experts_per_tok",),
    "expert_width": _WIDTHS[:1],
}
_LOCAL_NAMES = {
    "experts": ("num_local_experts",),
    "top_k": ("num_experts_per_tok",),
    "expert_width": ("intermediate_size",),
}
_HYBRID_TYPES = ("linear_attention",) * 3 + ("full_attention",)

_QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
_TINY_QWEN3_NEXT = _QWEN3_NEXT | {
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 64,
    "vocab_size": 8192,
}
_TINY_DENSE_PARTS = {
    "head_dim": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "vocab_size": 8192,
}
_TINY_QWEN3_MOE = _TINY_DENSE_PARTS | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "rope_scaling": None,
}
_TINY_QWEN3_5_MOE = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        **{
            k: v
            for k, v in _TINY_QWEN3_NEXT.items()
            if k not in ("architectures", "rope_theta", "rope_scaling")
        },
        "model_type": "qwen3_5_moe_text",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 4,
        "rope_parameters": {
            "type": "default",
            "mrope_section": [2, 1, 1],
            "rope_theta": 10000,
            "partial_rotary_factor": 0.25,
        },
    },
}
_TINY_OLMOE = _TINY_DENSE_PARTS | {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "intermediate_size": 64,
    "norm_topk_prob": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 4,
}
_TINY_GLM4_MOE = _TINY_DENSE_PARTS | {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "use_qk_norm": True,
}
_TINY_GPT_OSS = _TINY_DENSE_PARTS | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 128,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 16,
}
_TINY_DEEPSEEK_V3 = _TINY_DENSE_PARTS | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 64,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 16,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 1024,
        "type": "yarn",
    },
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 32,
}
_TINY_MINIMAX = _TINY_DENSE_PARTS | {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rotary_dim": 16,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "use_qk_norm": True,
}

PRESETS: dict[str, Preset] = {
    "qwen3-next-80b": Preset(_QWEN3_NEXT, _QWEN_NAMES, layer_types=_HYBRID_TYPES, mtp=True),
    "tiny": Preset(_TINY_QWEN3_NEXT, _QWEN_NAMES, layer_types=_HYBRID_TYPES, mtp=True),
    "tiny-qwen3-moe": Preset(_TINY_QWEN3_MOE, _QWEN_NAMES | {"expert_width": _WIDTHS[:1]}),
    "tiny-qwen3.5-moe": Preset(
        _TINY_QWEN3_5_MOE, _QWEN_NAMES, nested="text_config", layer_types=_HYBRID_TYPES
    ),
    "tiny-olmoe": Preset(
        _TINY_OLMOE,
        {**_QWEN_NAMES, "expert_width": ("intermediate_size",)},
    ),
    "tiny-glm4-moe": Preset(_TINY_GLM4_MOE, _ROUTED_NAMES),
    "tiny-gpt-oss": Preset(
        _TINY_GPT_OSS,
        _LOCAL_NAMES,
        layer_types=("sliding_attention", "full_attention"),
        expert_mode="mxfp4",
    ),
    "tiny-deepseek-v3": Preset(_TINY_DEEPSEEK_V3, _ROUTED_NAMES),
    "tiny-minimax": Preset(_TINY_MINIMAX, _LOCAL_NAMES),
}
