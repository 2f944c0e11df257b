"""Synthetic checkpoints: stock mlx-lm loads them, they are reproducible, and memory stays bounded."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers_memory import PEAK

from mlx_streaming.checkpoint import presets
from mlx_streaming.checkpoint import synthesize as module
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.errors import CapacityError, CheckpointError


def digests(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(path.iterdir())}


def header(path: Path) -> dict:
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("synthetic") / "tiny"
    synthesize(path, "tiny", dtype="float32", mtp=True)
    return path


def test_stock_load_accepts_it_and_logits_depend_on_the_tokens(tiny):
    import mlx.core as mx
    from mlx_lm import load

    model, tokenizer = load(str(tiny))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    logits = model(mx.arange(100, 148)[None])[0]
    assert logits.shape == (48, 8192)
    assert mx.isfinite(logits).all().item()
    assert len(set(mx.argmax(logits, axis=-1).tolist())) > 24
    assert 1 < logits.std().item() < 10


def test_every_layer_spreads_its_choices_over_the_experts(tiny):
    import mlx.core as mx
    from mlx_lm import load

    model, _ = load(str(tiny))
    used = []
    for layer in model.layers:
        stock = layer.mlp.switch_mlp

        def spy(x, indices, stock=stock):
            used.append(set(indices.flatten().tolist()))
            return stock(x, indices)

        layer.mlp.switch_mlp = spy
    mx.eval(model(mx.arange(100, 148)[None]))
    assert len(used) == 8
    assert all(len(experts) >= 12 for experts in used), [len(e) for e in used]


def test_names_shapes_and_quantisation_are_those_that_mlx_lm_itself_writes(tiny, tmp_path):
    from mlx_lm import utils

    config = {k: v for k, v in json.loads((tiny / "config.json").read_text()).items() if "quant" not in k}
    model_class, args_class = utils._get_classes(config)
    model, quantized = utils.quantize_model(model_class(args_class.from_dict(config)), config, 64, 4)
    utils.save_model(tmp_path, model)
    stock, ours = header(tmp_path / "model.safetensors"), header(tiny / "model.safetensors")
    assert len(stock) > 200
    shape = {name: (t["dtype"], t["shape"]) for name, t in ours.items() if name != "__metadata__"}
    assert shape == {name: (t["dtype"], t["shape"]) for name, t in stock.items() if name != "__metadata__"}
    assert json.loads((tiny / "config.json").read_text())["quantization"] == quantized["quantization"]
    totals = [
        json.loads((p / "model.safetensors.index.json").read_text())["metadata"] for p in (tmp_path, tiny)
    ]
    assert totals[0] == totals[1]


def test_the_mtp_head_has_the_names_of_the_release(tmp_path):
    synthesize(tmp_path / "m", "tiny", experts=64, mtp=True)
    ours, demo = header(tmp_path / "m" / module.MTP_FILE), header(checkpoint_path() / module.MTP_FILE)
    assert len(ours) == 18 + 3 * 64
    assert ours.keys() == demo.keys()
    assert {t["dtype"] for name, t in ours.items() if name != "__metadata__"} == {"BF16"}
    assert {n: len(t["shape"]) for n, t in ours.items() if "shape" in t} == {
        n: len(t["shape"]) for n, t in demo.items() if "shape" in t
    }


def test_the_same_seed_gives_the_same_bytes_whatever_the_shards(tiny, tmp_path):
    import mlx.core as mx

    synthesize(tmp_path / "again", "tiny", dtype="float32", mtp=True)
    assert digests(tmp_path / "again") == digests(tiny)
    sharded = synthesize(tmp_path / "sharded", "tiny", dtype="float32", shard_bytes=300_000)
    assert sharded.shards > 5
    assert all(p.stat().st_size < 400_000 for p in (tmp_path / "sharded").glob("model-*"))
    one = mx.load(str(tiny / "model.safetensors"))
    many = {}
    for shard in (tmp_path / "sharded").glob("model-*.safetensors"):
        many |= mx.load(str(shard))
    assert one.keys() == many.keys() and len(one) > 200
    assert all(mx.array_equal(one[name], many[name]).item() for name in one)
    weight_map = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())["weight_map"]
    assert weight_map.keys() == many.keys()
    synthesize(tmp_path / "other", "tiny", dtype="float32", seed=1)
    assert digests(tmp_path / "other")["model.safetensors"] != digests(tiny)["model.safetensors"]


def test_sizes_can_be_changed_and_padding_rows_are_never_chosen(tmp_path):
    import mlx.core as mx
    from mlx_lm.utils import load_model

    written = synthesize(
        tmp_path / "m", "tiny", layers=5, experts=6, hidden=128, expert_width=192, top_k=3, vocab=9000, bits=8
    )
    model, config = load_model(tmp_path / "m")
    assert config["num_hidden_layers"] == 5
    assert [kind[0] for kind in config["layer_types"]] == ["l", "l", "l", "f", "l"]
    assert written.nbytes == sum(p.nbytes for _, p in _flat(model))
    assert model.layers[0].mlp.switch_mlp.gate_proj.weight.shape == (6, 192, 128 * 8 // 32)
    head = model.lm_head
    rows = mx.dequantize(head.weight, head.scales, head.biases, head.group_size, head.bits)
    assert not rows[8192:].any().item() and rows[:8192].any(axis=-1).all().item()


def _flat(model):
    from mlx.utils import tree_flatten

    return tree_flatten(model.parameters())


def test_the_80b_preset_has_the_size_of_the_release():
    preset = presets.find("qwen3-next-80b")
    tensors, config, parameters = module._layout(preset.configured(), preset, 4, 64, "bfloat16", 8192)
    # the release has 79,674,391,296; mlx-lm's count leaves out A_log and dt_bias, 64 in each of 36 layers
    assert parameters == 79_674_391_296 - 36 * 64
    assert sum(t.nbytes for t in tensors) == pytest.approx(44.8e9, rel=0.01)
    gate = next(t for t in tensors if t.name == "model.layers.47.mlp.switch_mlp.gate_proj.weight")
    assert gate.shape == (512, 512, 256)
    assert config["quantization"]["model.layers.0.mlp.gate"] == {"group_size": 64, "bits": 8}


def test_memory_is_bounded(tmp_path):
    code = (
        PEAK
        + """
import pathlib, sys, mlx_lm.utils
from mlx_streaming.checkpoint.synthesize import synthesize
out = pathlib.Path(sys.argv[1])
synthesize(out / "a", "tiny")
before = peak()
made = synthesize(out / "b", "tiny", layers=4, experts=128, expert_width=512, hidden=512)
print(made.nbytes, peak() - before)
"""
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    written, grown = map(int, run.stdout.split())
    assert written > 200e6
    assert grown < 100e6, f"{grown / 1e6:.0f} MB more to write {written / 1e6:.0f} MB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(like="qwen9"), "no preset 'qwen9'"),
        (dict(like="tiny", experts=3, top_k=4), "top_k 4 exceeds the 3 experts"),
        (dict(like="tiny", vocab=100), "below the tokenizer's 8192"),
        (dict(like="tiny", layers=0), "layers must be at least 1"),
        (dict(like="tiny", hidden=65), "hidden must be a multiple of 64"),
        (dict(like="tiny", layers=3), "layers must be at least 4"),
        (dict(like="tiny", bits=7), "cannot be quantised"),
        (dict(like="tiny-olmoe", mtp=True), "no MTP head"),
    ],
)
def test_impossible_requests_are_one_clear_error(tmp_path, arguments, message):
    with pytest.raises(CheckpointError, match=message):
        synthesize(tmp_path / "m", **arguments)
    assert not (tmp_path / "m").exists()


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10**6})())
    with pytest.raises(CapacityError, match=r"needs 44.8 GB and 0.0 GB are free"):
        synthesize(tmp_path / "m", "qwen3-next-80b")
    assert not (tmp_path / "m").exists()


def test_a_directory_in_use_is_kept_unless_forced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model-00007-of-00007.safetensors").write_text("stale")
    with pytest.raises(CheckpointError, match="not empty"):
        synthesize(tmp_path, "tiny-olmoe")
    synthesize(tmp_path, "tiny-olmoe", force=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [p.name for p in tmp_path.glob("model*.safetensors")] == ["model.safetensors"]


def test_an_interrupted_run_leaves_nothing_that_looks_complete(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesize(tmp_path / "m", "tiny", on_progress=stop)
    assert not (tmp_path / "m" / "config.json").exists()


def test_the_command(tmp_path):
    from llm_mlx_streaming.commands import group

    arguments = ["synthesize", str(tmp_path / "m"), "--like", "tiny", "--layers", "4", "--mtp", "--quiet"]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 0, result.output
    assert "in 1 file" in result.output
    assert json.loads((tmp_path / "m" / "config.json").read_text())["num_hidden_layers"] == 4
    again = CliRunner().invoke(group, arguments)
    assert again.exit_code == 1
    assert "not empty" in again.output and "Traceback" not in again.output


def test_the_help_lists_the_presets():
    from llm_mlx_streaming.commands import group

    text = " ".join(CliRunner().invoke(group, ["synthesize", "--help"]).output.split())
    assert f"Presets: {', '.join(presets.PRESETS)}." in text
