"""Damaged, incomplete and contradictory checkpoints: one clear error that names the file, before a token."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from mlx_streaming.checkpoint.index import INDEX_NAME, TensorIndex
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import load_engine
from mlx_streaming.errors import CheckpointError

SHARD = "model-00002-of-00004.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m"
    made = synthesize(path, "tiny", layers=4, dtype="float32", shard_bytes=350_000)
    assert made.shards == 4
    return path


@pytest.fixture
def broken(whole, tmp_path):
    """A copy to be damaged."""
    return shutil.copytree(whole, tmp_path / "m")


def read(path: Path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def write(path: Path, header: dict | str, data: bytes) -> None:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def fails(path: Path, *words: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_engine(path, EngineConfig(slots=2, warm=False, usage=False))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and message.rstrip(".").count("Traceback") == 0
    assert len(message) < 700
    return message


def test_the_whole_one_loads(whole):
    engine = load_engine(whole, EngineConfig(slots=2, warm=False, usage=False))
    assert len(engine.spec.experts) == 4
    engine.close()


@pytest.mark.parametrize("missing", [1, 1000, 300_000])
def test_truncated_shard(broken, missing):
    shard = broken / SHARD
    os.truncate(shard, shard.stat().st_size - missing)
    fails(broken, SHARD, "truncated", "download it again")


@pytest.mark.parametrize("size", [0, 7, 8, 100])
def test_shard_that_ends_in_its_header(broken, size):
    os.truncate(broken / SHARD, size)
    fails(broken, SHARD, "header")


def test_missing_shard(broken):
    (broken / SHARD).unlink()
    fails(broken, f"Shard {SHARD}", "missing")


def test_no_shards_and_no_directory(broken):
    for shard in broken.glob("model*"):
        shard.unlink()
    fails(broken, "No model*.safetensors files", str(broken))
    fails(broken / "absent", "No checkpoint directory", "absent")


@pytest.mark.parametrize("length", [0, 1, 10**8 + 1, 2**63, 2**64 - 1])
def test_absurd_header_length(broken, length):
    data = (broken / SHARD).read_bytes()
    (broken / SHARD).write_bytes(length.to_bytes(8, "little") + data[8:])
    fails(broken, SHARD, f"header length {length}")


@pytest.mark.parametrize("header", ["{", "[]", "nonsense", '{"a": 1}', '{"a": {"dtype": "F32"}}', "\xff\xfe"])
def test_malformed_header(broken, header):
    write(broken / SHARD, header, b"")
    fails(broken, SHARD, "damaged")


CHANGES = {
    "past the end": lambda t: t.update(data_offsets=[t["data_offsets"][0], 10**12]),
    "negative": lambda t: t.update(data_offsets=[-4, t["data_offsets"][1]]),
    "reversed": lambda t: t.update(data_offsets=t["data_offsets"][::-1]),
    "shape too large": lambda t: t.update(shape=[*t["shape"][:-1], t["shape"][-1] + 1]),
    "negative shape": lambda t: t.update(shape=[-1, *t["shape"]]),
    "wrong dtype": lambda t: t.update(dtype="U8"),
    "unknown dtype": lambda t: t.update(dtype="F13"),
    "dtype not text": lambda t: t.update(dtype=["F32"]),
    "shape of text": lambda t: t.update(shape="many"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_entry_that_contradicts_itself_or_the_file(broken, change):
    header, data = read(broken / SHARD)
    name = next(n for n in header if n.endswith("up_proj.weight"))
    CHANGES[change](header[name])
    write(broken / SHARD, header, data)
    fails(broken, SHARD, name)


def test_overlapping_tensors(broken):
    header, data = read(broken / SHARD)
    first, second = [n for n in header if n.endswith("switch_mlp.up_proj.weight")][0], "intruder"
    header[second] = header[first]
    write(broken / SHARD, header, data)
    fails(broken, SHARD, first, second, "overlap")


def test_a_name_twice_in_one_header(broken):
    header, data = read(broken / SHARD)
    name = next(n for n in header if n.endswith("up_proj.weight"))
    text = json.dumps(header)
    write(broken / SHARD, text[:-1] + f', "{name}": {json.dumps(header[name])}}}', data)
    fails(broken, SHARD, name, "twice")


def test_a_name_in_two_shards(broken):
    (broken / INDEX_NAME).unlink()
    shutil.copy(broken / SHARD, broken / "model-old.safetensors")
    fails(broken, SHARD, "model-old.safetensors", "again in")


def test_index_that_names_what_is_not_there(broken):
    edit_json(broken / INDEX_NAME, lambda i: i["weight_map"].update({"model.layers.9.norm.weight": SHARD}))
    fails(broken, INDEX_NAME, SHARD, "model.layers.9.norm.weight")


def test_index_that_names_another_shard(broken):
    name = next(n for n in read(broken / SHARD)[0] if n != "__metadata__")
    other = SHARD.replace("00002", "00003")
    edit_json(broken / INDEX_NAME, lambda i: i["weight_map"].update({name: other}))
    fails(broken, INDEX_NAME, other, name)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": 3}'])
def test_unreadable_index(broken, content):
    (broken / INDEX_NAME).write_text(content)
    fails(broken, INDEX_NAME)


def test_index_that_points_outside(broken):
    edit_json(broken / INDEX_NAME, lambda i: i["weight_map"].update({"x": "../elsewhere.safetensors"}))
    fails(broken, "../elsewhere.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        dict(bits=8),
        dict(bits=2),
        dict(group_size=32),
        dict(group_size=128),
        dict(mode="mxfp4", group_size=32),
    ],
    ids=str,
)
def test_quantisation_block_of_another_checkpoint(broken, change):
    def apply(config):
        layers = [n for n in json.loads((broken / INDEX_NAME).read_text())["weight_map"] if "switch_mlp" in n]
        for name in layers:
            config["quantization"][name.rpartition(".")[0]] = {"group_size": 64, "bits": 4, **change}

    edit_json(broken / "config.json", apply)
    fails(broken, "config")


@pytest.mark.parametrize(
    "change",
    [
        dict(moe_intermediate_size=128),
        dict(hidden_size=128),
        dict(num_hidden_layers=8),
        dict(num_attention_heads=2),
        dict(vocab_size=9000),
    ],
    ids=str,
)
def test_config_of_another_checkpoint(broken, change):
    edit_json(broken / "config.json", lambda config: config.update(change))
    fails(broken, "config")


@pytest.mark.parametrize(
    "change", [dict(num_experts=32), dict(num_experts=8), dict(num_experts_per_tok=17)], ids=str
)
def test_number_of_experts_of_another_checkpoint(broken, change):
    edit_json(broken / "config.json", lambda config: config.update(change))
    fails(broken, "config")


def test_expert_tensors_that_disagree_on_their_number(broken):
    file = broken / SHARD
    header, data = read(file)
    name = next(n for n in header if n.endswith("switch_mlp.up_proj.scales"))
    experts, rows, groups = header[name]["shape"]
    header[name]["shape"] = [experts // 2, rows * 2, groups]
    write(file, header, data)
    fails(broken, name.rpartition(".up_proj")[0], "disagree")


def test_a_trunk_tensor_that_is_absent(broken):
    (broken / INDEX_NAME).unlink()
    file = broken / SHARD
    header, data = read(file)
    name = next(n for n in header if n.endswith("norm.weight"))
    del header[name]
    write(file, header, data)
    fails(broken, str(broken), name)


@pytest.mark.parametrize("part", ["weight", "scales"])
def test_an_expert_tensor_that_is_absent(broken, part):
    (broken / INDEX_NAME).unlink()
    for file in broken.glob("model*.safetensors"):
        header, data = read(file)
        header.pop(f"model.layers.0.mlp.switch_mlp.up_proj.{part}", None)
        write(file, header, data)
    fails(broken, str(broken))


@pytest.mark.parametrize("content", [None, "", "{", "[1]"])
def test_missing_or_malformed_config(broken, content):
    (broken / "config.json").unlink()
    if content is not None:
        (broken / "config.json").write_text(content)
    fails(broken, "config.json", "download")


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size"])
def test_config_without_a_size(broken, key):
    edit_json(broken / "config.json", lambda config: config.pop(key))
    fails(broken, "config.json", key)


def test_unknown_model_type(broken):
    edit_json(broken / "config.json", lambda config: config.update(model_type="qwen9_next"))
    fails(broken, str(broken), "qwen9_next", "upgrade mlx-lm")


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_missing_tokenizer_or_template(broken, name):
    (broken / name).unlink()
    fails(broken, str(broken))


@contextlib.contextmanager
def unprivileged():
    """As a user to whom file modes apply."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", [SHARD, "config.json", INDEX_NAME, "generation_config.json"])
def test_permission_denied(whole, name):
    with tempfile.TemporaryDirectory() as place:  # pytest's own directories are closed to other users
        path = shutil.copytree(whole, Path(place) / "m")
        os.chmod(place, 0o755)
        (path / name).chmod(0)
        with unprivileged(), pytest.raises(CheckpointError, match=name.replace(".", r"\.")) as caught:
            ModelSpec.read(path, TensorIndex.open(path))
        assert "Permission denied" in str(caught.value)
        (path / name).chmod(0o644)


def test_a_closed_directory(whole):
    with tempfile.TemporaryDirectory() as place:
        path = shutil.copytree(whole, Path(place) / "m")
        os.chmod(place, 0)
        with unprivileged(), pytest.raises(CheckpointError, match="m"):
            ModelSpec.read(path, TensorIndex.open(path))
        os.chmod(place, 0o700)
