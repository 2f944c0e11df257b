"""What cannot be streamed is refused by name, with the reason and the next step, before weights are read."""

import json

import pytest
from helpers_family_configs import FLAT, NESTED, config_of

from mlx_streaming.checkpoint import presets
from mlx_streaming.checkpoint.families import check, refusal
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.errors import CheckpointError

MOE = {"model_type": "qwen3_moe", "num_experts": 8, "vocab_size": 8192}
STACKED = ["model.layers.0.mlp.switch_mlp.gate_proj.weight"]
RELEASED = ["model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.gate.weight"]


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"vocab_size": 8}, None, "names no model_type"),
        ({"model_type": "llama", "vocab_size": 8}, None, "llama is dense.*llm-mlx plugin"),
        ({"model_type": "qwen3_5", "text_config": {"num_experts": 0}}, None, "qwen3_5 is dense.*llm-mlx"),
        ({"model_type": "gemma4", "text_config": {"num_experts": None}}, None, "gemma4 is dense.*llm-mlx"),
        ({"model_type": "mistral", "vocab_size": 8}, None, "mistral is dense"),
        (
            {"model_type": "qwen9_moe", "num_experts": 8},
            None,
            r"mlx-lm [\d.]+ does not know.*qwen9_moe.*upgrade",
        ),
        ({"model_type": "my_moe", "auto_map": {"AutoModel": "m.M"}}, None, "trust_remote_code"),
        ({**MOE, "model_file": "custom.py"}, STACKED, r"code of its own \(custom.py\).*trust_remote_code"),
        ({"model_type": "../../etc/passwd"}, None, "does not know the model type"),
        ({"model_type": "switch_layers"}, None, "does not know the model type"),
        (
            {"model_type": "pixtral", "vision_config": {}},
            None,
            "vision model without a language part.*mlx-vlm",
        ),
        ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, None, "dbrx one by one.*SwitchGLU"),
        (
            {**MOE, "quantization_config": {"quant_method": "compressed-tensors"}},
            None,
            "compressed-tensors.*mlx_lm",
        ),
        ({**MOE, "quantization_config": {"quant_method": "fp8"}}, None, "in the fp8 format.*mlx_lm.convert"),
        ({**MOE, "quantization_config": {"quant_method": "awq"}}, RELEASED, "in the awq format"),
        (MOE, RELEASED, "layout of the original release.*mlx_lm.convert"),
        (MOE, ["model.layers.0.mlp.experts.gate_up_proj"], "layout of the original release"),
        (MOE, ["model.norm.weight"], "hold no stacked experts"),
    ],
)
def test_refusals(config, tensors, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        check(config, "some/repo", tensors)
    text = str(caught.value)
    assert text.startswith("some/repo cannot be streamed: ") and text.endswith(".") and "\n" not in text


def test_nothing_is_said_against_what_streams():
    seen = [p.configured() for p in presets.PRESETS.values()]
    seen += [config_of(name)[0] for name in [*FLAT, *NESTED]]
    assert len(seen) > 40
    assert [c["model_type"] for c in seen if refusal(c) or refusal(c, STACKED)] == []
    assert (
        refusal({**MOE, "quantization": {"bits": 4}, "quantization_config": {"quant_method": "mxfp4"}})
        is None
    )


def test_a_directory_is_refused_with_its_path(tmp_path):
    synthesize(tmp_path / "m", "tiny-olmoe")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(
        json.dumps(config | {"model_type": "olmo3", "num_experts": 0})
    )
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/m cannot be streamed: olmo3 is dense"):
        ModelSpec.read(tmp_path / "m")
