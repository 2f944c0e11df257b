"""What llm loads of the plugin before a model is used."""

from __future__ import annotations

import json
import subprocess
import sys

LISTING = """
import json, sys
import llm
from llm.plugins import load_plugins
load_plugins()
before = set(sys.modules)
models = [m.model_id for m in llm.get_models()]
import llm.cli
llm.get_async_models(), llm.get_model_aliases()
print(json.dumps({"models": models, "modules": sorted(sys.modules)}))
"""


def test_listing_models_imports_nothing_heavy(llm_env):
    done = subprocess.run(
        [sys.executable, "-c", LISTING], env=llm_env, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert {"qwen3-next-stream", "qwen3-next-stream-demo"} <= set(found["models"])
    loaded = {name.split(".")[0] for name in found["modules"]}
    heavy = {
        "mlx",
        "mlx_lm",
        "transformers",
        "tokenizers",
        "huggingface_hub",
        "safetensors",
        "llguidance",
    }
    assert not heavy & loaded
    ours = {name for name in found["modules"] if name.startswith(("llm_mlx_streaming", "mlx_streaming"))}
    assert ours == {
        "llm_mlx_streaming",
        "llm_mlx_streaming.commands",
        "llm_mlx_streaming.models",
        "llm_mlx_streaming.registry",
        "mlx_streaming",
        "mlx_streaming.errors",
    }


def test_a_damaged_registry_warns_once_however_often_models_are_listed(llm_env, tmp_path):
    home = tmp_path / "llm-home" / "mlx-streaming"
    home.mkdir()
    (home / "registry.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", LISTING], env=llm_env, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("\n") == 1 and "registry.json cannot be read" in done.stderr
    assert "qwen3-next-stream" in json.loads(done.stdout)["models"]
