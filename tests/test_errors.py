"""What can go wrong, in real `llm` processes: one sentence with the next step, and nothing lost."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LLM

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def copy(demo_path, tmp_path) -> Path:
    """A copy of the demo that may be spoilt."""
    path = tmp_path / "copy"
    shutil.copytree(demo_path, path)
    return path


@pytest.fixture
def registered(copy, llm_env) -> Path:
    """The copy, registered as `copy` (written as `add` writes it)."""
    home = Path(llm_env["LLM_USER_PATH"]) / "mlx-streaming"
    home.mkdir()
    entry = {"name": "copy", "path": str(copy), "revision": None, "settings": {}, "hub": None, "aliases": []}
    (home / "registry.json").write_text(
        json.dumps({"version": 1, "default": "copy", "checkpoints": [entry]}, indent=2) + "\n"
    )
    return copy


def assert_one_sentence(done: subprocess.CompletedProcess, *words: str) -> None:
    """Exit status 1, nothing on stdout, and one line that says what is wrong and ends with what to do."""
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("Error: "), done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def edit(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def contents(path: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.rglob("*") if f.is_file()}


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def config(**changes) -> Callable[[Path], None]:
    return lambda path: edit(path / "config.json", **changes)


def truncate(path: Path) -> None:
    os.truncate(path / SHARD, (path / SHARD).stat().st_size - 1000)


def swap_shards(path: Path) -> None:
    first = path / SHARD.replace("00002", "00001")
    first.rename(path / "aside")
    (path / SHARD).rename(first)
    (path / "aside").rename(path / SHARD)


def wrong_bits(path: Path) -> None:
    file = path / "config.json"
    quantization = json.loads(file.read_text())["quantization"]
    quantization["model.layers.3.mlp.switch_mlp.up_proj"] = {"group_size": 64, "bits": 8}
    edit(file, quantization=quantization)


def no_template(path: Path) -> None:
    (path / "chat_template.jinja").unlink()
    assert "chat_template" not in json.loads((path / "tokenizer_config.json").read_text())


SPOILT = {
    "unsupported type": (config(model_type="gpt2"), ["gpt2", "llm-mlx"]),
    "dense model": (config(num_experts=0), ["dense", "llm-mlx"]),
    "too new": (config(model_type="qwen9_next"), ["qwen9_next", "upgrade mlx-lm"]),
    "wrong quantisation": (wrong_bits, ["copy", "config.json"]),
    "no config": (remove("config.json"), ["config.json is missing", "download"]),
    "no shard": (remove(SHARD), [SHARD, "missing", "download"]),
    "truncated shard": (truncate, [SHARD, "download it again"]),
    "shard mismatch": (swap_shards, [INDEX, "download the checkpoint again"]),
    "no tokenizer": (remove("tokenizer.json"), ["no tokenizer", "download"]),
    "no chat template": (no_template, ["no chat template", "chat_template.jinja"]),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_checkpoint(what, registered, run_llm, llm_env):
    spoil, words = SPOILT[what]
    spoil(registered)
    before = contents(registered), contents(Path(llm_env["LLM_USER_PATH"]))
    assert_one_sentence(run_llm("-m", "copy", "hello", check=False), *words)
    files, home = contents(registered), contents(Path(llm_env["LLM_USER_PATH"]))
    assert files == before[0]
    assert {name: home[name] for name in before[1]} == before[1]


def test_a_checkpoint_that_is_gone(registered, run_llm):
    shutil.rmtree(registered)
    done = run_llm("-m", "copy", "hello", check=False)
    assert_one_sentence(done, "that directory is gone", "llm mlx-streaming remove copy")


def test_too_little_memory(registered, run_llm):
    done = run_llm("-m", "copy", "hello", env={"LLM_MLX_STREAMING_MEMORY": "50MB"}, check=False)
    assert_one_sentence(done, "needs at least", "50MB")


def test_a_pack_that_is_not_there(registered, run_llm):
    done = run_llm("-m", "copy", "hello", env={"LLM_MLX_STREAMING_PACKED": "/nowhere"}, check=False)
    assert_one_sentence(done, "/nowhere", "pack")


def test_a_setting_that_makes_no_sense(registered, run_llm):
    done = run_llm("-m", "copy", "hello", env={"LLM_MLX_STREAMING_SLOTS": "many"}, check=False)
    assert_one_sentence(done, "LLM_MLX_STREAMING_SLOTS must be a number, not 'many'")


def test_a_misspelt_variable_stops_the_plugins_models_and_nothing_else(registered, run_llm):
    env = {"LLM_MLX_STREAMING_MEMROY": "2GB"}
    for args in (["-m", "copy", "hello"], ["mlx-streaming", "plan"]):
        done = run_llm(*args, env=env, check=False)
        assert_one_sentence(done, "LLM_MLX_STREAMING_MEMROY; did you mean LLM_MLX_STREAMING_MEMORY?")
    for args in (["models"], ["logs", "path"], ["plugins"], ["mlx-streaming", "models"]):
        assert run_llm(*args, env=env).stderr == ""


@pytest.mark.parametrize("command", ["plan", "bench", "tune"])
def test_memory_without_its_unit(command, run_llm):
    done = run_llm("mlx-streaming", command, "-m", "demo", "--memory", 20, check=False)
    assert_one_sentence(done, "memory: 20 bytes cannot be meant; write the unit, such as 20GB.")


def _obey_permissions() -> None:
    """Make root obey permission bits: drop CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH from what exec gives."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def run_unprivileged(llm_env, *args) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*LLM, *map(str, args)],
        capture_output=True,
        text=True,
        env=llm_env,
        stdin=subprocess.DEVNULL,
        timeout=120,
        preexec_fn=_obey_permissions if os.geteuid() == 0 else None,
    )


def test_files_that_may_not_be_read(registered, llm_env):
    (registered / SHARD).chmod(0)
    done = run_unprivileged(llm_env, "-m", "copy", "hello")
    assert_one_sentence(done, SHARD, "Permission denied", "check its permissions")


def test_a_home_that_may_not_be_written(copy, llm_env):
    home = Path(llm_env["LLM_USER_PATH"])
    (home / "mlx-streaming").mkdir()
    (home / "mlx-streaming").chmod(0o500)
    try:
        done = run_unprivileged(llm_env, "mlx-streaming", "add", copy)
        assert_one_sentence(done, "registry", "Permission denied")
        assert list((home / "mlx-streaming").iterdir()) == []
    finally:
        (home / "mlx-streaming").chmod(0o700)


def test_an_answer_does_not_need_a_writable_home(registered, llm_env):
    home = Path(llm_env["LLM_USER_PATH"])
    (home / "mlx-streaming").chmod(0o500)
    try:
        done = run_unprivileged(llm_env, "-m", "copy", "hello", "--no-log", "-o", "max_tokens", 3)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        assert "Traceback" not in done.stderr
    finally:
        (home / "mlx-streaming").chmod(0o700)


def test_a_locked_registry(registered, llm_env, run_llm, demo_path):
    home = Path(llm_env["LLM_USER_PATH"]) / "mlx-streaming"
    before = (home / "registry.json").read_bytes()
    with open(home / "registry.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = run_llm("mlx-streaming", "add", demo_path, "--name", "other", check=False)
        assert_one_sentence(done, "registry.lock", "try again")
    assert (home / "registry.json").read_bytes() == before
    assert "Registered other" in run_llm("mlx-streaming", "add", demo_path, "--name", "other").stdout


def test_a_spoilt_checkpoint_is_not_registered(copy, run_llm, llm_env):
    remove(SHARD)(copy)
    assert_one_sentence(run_llm("mlx-streaming", "add", copy, check=False), SHARD, "missing", "download")
    assert not (Path(llm_env["LLM_USER_PATH"]) / "mlx-streaming" / "registry.json").exists()
