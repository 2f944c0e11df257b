"""Turn trained weights into the embedded checkpoint: quantised shards, MTP head, tokenizer.

    python -m mlx_streaming.demo.build.export WEIGHTS OUT [--tokenizer DIR]

WEIGHTS: a safetensors file or a directory of them, in the names of model.py. Needs mlx-lm, no torch.
The layout is that of mlx-community's checkpoints.
"""

import argparse
import json
import shutil
from pathlib import Path

SHARD_BYTES = 9_000_000
GROUP_SIZE = 64
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
SAMPLING = {
    "bos_token_id": 8183,
    "do_sample": True,
    "eos_token_id": [8185, 8183],
    "pad_token_id": 8183,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
}
CONFIG = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "decoder_sparse_step": 1,
    "eos_token_id": 8185,
    "full_attention_interval": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 4096,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "router_aux_loss_coef": 0.003,
    "shared_expert_intermediate_size": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 8192,
}


def read_weights(path: Path) -> dict:
    """All tensors of a safetensors file, or of every one in a directory, as bfloat16 mlx arrays."""
    import mlx.core as mx

    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    weights = {}
    for file in files:
        weights.update(mx.load(str(file)))
    return {name: w.astype(mx.bfloat16) for name, w in weights.items()}


def release_names(weights: dict) -> dict:
    """Rename model.py's parameters as Qwen's release does, one tensor per expert and projection."""
    out = {}
    for name, w in weights.items():
        name = {"embed": "model.embed_tokens.weight", "lm_head": "lm_head.weight"}.get(name, name)
        if not name.startswith(("mtp.", "model.", "lm_head.")):
            name = "model." + name
        if name.endswith("mlp.gate_up"):
            base, width = name.removesuffix("gate_up") + "experts", w.shape[1] // 2
            for e in range(w.shape[0]):
                out[f"{base}.{e}.gate_proj.weight"] = w[e, :width]
                out[f"{base}.{e}.up_proj.weight"] = w[e, width:]
        elif name.endswith("mlp.down"):
            base = name.removesuffix("down") + "experts"
            for e in range(w.shape[0]):
                out[f"{base}.{e}.down_proj.weight"] = w[e]
        else:
            out[name] = w
    return out


def bits_for(path: str) -> int:
    """Experts, embedding and head in 4 bits, the rest (router included) in 8."""
    return 4 if "switch_mlp" in path or path.endswith(("embed_tokens", "lm_head")) else 8


def quantised(weights: dict, config: dict):
    """The stock mlx-lm model with `weights` (release names, no MTP), quantised; and its config."""
    from mlx_lm.models import qwen3_next
    from mlx_lm.utils import quantize_model

    model = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(config))
    model.load_weights(list(model.sanitize(weights).items()))
    model.eval()

    def predicate(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % GROUP_SIZE:
            return False
        return {"group_size": GROUP_SIZE, "bits": bits_for(path)}

    return quantize_model(model, dict(config), GROUP_SIZE, 4, quant_predicate=predicate)


def write_shards(tensors: dict, out: Path) -> None:
    """Write `tensors` in order as shards of about 9 MB with their index."""
    import mlx.core as mx

    shards, size = [[]], 0
    for name, w in tensors.items():
        if size + w.nbytes > SHARD_BYTES and shards[-1]:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += w.nbytes
    where = {}
    for i, names in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        mx.save_safetensors(str(out / file), {n: tensors[n] for n in names}, metadata={"format": "mlx"})
        where.update(dict.fromkeys(names, file))
    index = {
        "metadata": {"total_size": sum(w.nbytes for w in tensors.values())},
        "weight_map": dict(sorted(where.items())),
    }
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def export(weights: dict, out: Path, tokenizer: Path, config: dict = CONFIG) -> None:
    """Write the checkpoint for `weights` (names of model.py, bfloat16 arrays) into the directory `out`.

    Rounds in bfloat16 as a release would, then stores every float in float32: MLX's CPU kernels are several
    times slower in 16-bit types. The MTP head stays bfloat16, unquantised, under its release names.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import save_config

    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors"):
        old.unlink()
    named = release_names(weights)
    model, config = quantised({k: v for k, v in named.items() if not k.startswith("mtp.")}, config)
    tensors = {
        name: w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w
        for name, w in tree_flatten(model.parameters())
    }
    write_shards(tensors, out)
    save_config(config, out / "config.json")
    head = {k: v for k, v in named.items() if k.startswith("mtp.")}
    if head:
        mx.save_safetensors(str(out / "mtp-raw.safetensors"), head, metadata={"format": "pt"})
    for name in TOKENIZER_FILES:
        if (tokenizer / name).resolve() != (out / name).resolve():
            shutil.copyfile(tokenizer / name, out / name)
    (out / "generation_config.json").write_text(json.dumps(SAMPLING, indent=2))


def main() -> None:
    shipped = Path(__file__).parents[1] / "checkpoint"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=shipped, help="directory of the tokenizer files")
    args = parser.parse_args()
    export(read_weights(args.weights), args.out, args.tokenizer)
    sizes = {f.name: f.stat().st_size for f in sorted(args.out.iterdir())}
    print(sizes, sum(sizes.values()))


if __name__ == "__main__":
    main()
