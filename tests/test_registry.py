"""The registry file: names, aliases, the default, damage, concurrent writers; and the commands over it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys

import pytest

from llm_mlx_streaming import registry
from llm_mlx_streaming.registry import Checkpoint
from mlx_streaming.errors import CheckpointError, EngineError

ODD = '{"checkpoints": [{"name": "a", "path": "b", "aliases": [5]}]}'


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "home"))
    return tmp_path / "home" / "mlx-streaming"


@pytest.fixture
def checkpoint(tmp_path):
    def make(name, **fields):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        return Checkpoint(name, path, **fields)

    return make


def test_an_empty_registry_resolves_to_the_demo(home, demo_path):
    assert registry.read() == registry.Registry()
    for name in (None, "demo", registry.DEFAULT_MODEL, registry.DEMO_MODEL):
        found = registry.resolve(name)
        assert (found.name, found.path, found.identity) == ("demo", demo_path, "demo@embedded")
    assert not home.exists()  # reading leaves no trace


def test_what_is_added_comes_back(home, checkpoint):
    first = checkpoint("first", revision="abc", hub="org/first", settings={"slots": 8}, aliases=("one",))
    registry.add(first)
    registry.add(checkpoint("second"))
    assert registry.resolve() == registry.resolve("one") == registry.resolve("first") == first
    assert first.identity == "org/first@abc"
    registry.set_default("second")
    assert registry.resolve(registry.DEFAULT_MODEL).name == "second"
    registry.set_default("demo")
    assert registry.resolve().name == "demo"


def test_adding_again_replaces(home, checkpoint):
    registry.add(checkpoint("one", settings={"slots": 1}))
    registry.add(checkpoint("one", settings={"slots": 2}))
    assert [c.settings for c in registry.read().checkpoints] == [{"slots": 2}]


def test_a_directory_is_a_checkpoint_without_registration(home, checkpoint, tmp_path):
    checkpoint("loose")
    assert registry.resolve(str(tmp_path / "loose")) == Checkpoint("loose", tmp_path / "loose")


@pytest.mark.parametrize("name", ["demo", registry.DEFAULT_MODEL, "taken", "other"])
def test_a_taken_name_is_refused(home, checkpoint, name):
    registry.add(checkpoint("taken", aliases=("other",)))
    with pytest.raises(EngineError, match="already taken"):
        registry.add(checkpoint("new", aliases=(name,)))
    assert len(registry.read().checkpoints) == 1


@pytest.mark.parametrize("name", ["", " "])
def test_a_blank_name_is_refused_and_harms_nothing(home, checkpoint, name):
    registry.add(checkpoint("kept"))
    with pytest.raises(EngineError, match="blank"):
        registry.add(checkpoint("new", aliases=(name,)))
    assert registry.read().problem is None and registry.resolve().name == "kept"


def test_the_demo_cannot_be_removed(home):
    with pytest.raises(EngineError, match="mlx-streaming default NAME"):
        registry.remove("demo")


def test_removing_the_default_leaves_another_or_the_demo(home, checkpoint):
    registry.add(checkpoint("one"))
    registry.add(checkpoint("two"))
    registry.remove("one")
    assert registry.resolve().name == "two"
    registry.remove("two")
    assert registry.resolve().name == "demo"
    with pytest.raises(CheckpointError, match="'two'"):
        registry.remove("two")


def test_unknown_and_vanished_checkpoints_name_the_next_step(home, checkpoint):
    registry.add(checkpoint("gone"))
    (home.parents[1] / "gone").rmdir()
    with pytest.raises(CheckpointError, match="remove gone"):
        registry.resolve("gone")
    with pytest.raises(CheckpointError, match="known are gone, demo"):
        registry.resolve("nonsense")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"checkpoints": [{}]}', '{"checkpoints": 3}', "null", "\xff", ODD]
)
def test_a_damaged_file_is_kept_until_something_is_written_and_then_moved_aside(
    home, checkpoint, capsys, text
):
    home.mkdir(parents=True)
    registry.registry_path().write_bytes(text.encode("latin-1"))
    known = registry.read()
    assert known.checkpoints == () and str(registry.registry_path()) in known.problem
    with pytest.raises(CheckpointError):
        registry.resolve()
    assert registry.resolve("demo").name == "demo"
    assert registry.registry_path().read_bytes() == text.encode("latin-1")
    registry.add(checkpoint("new"))
    kept = list(home.glob("registry.json.damaged-*"))
    assert len(kept) == 1 and kept[0].read_bytes() == text.encode("latin-1")
    assert str(kept[0]) in capsys.readouterr().err
    assert [c.name for c in registry.read().checkpoints] == ["new"] and registry.read().problem is None


def test_writers_in_many_processes_lose_nothing(home, tmp_path):
    program = (
        "import sys; from pathlib import Path; from llm_mlx_streaming import registry\n"
        "for i in range(5): registry.add(registry.Checkpoint(f'{sys.argv[1]}-{i}', Path(sys.argv[2])))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(n), str(tmp_path)]) for n in range(4)]
    assert [w.wait(60) for w in writers] == [0] * 4
    names = {c.name for c in registry.read().checkpoints}
    assert names == {f"{n}-{i}" for n in range(4) for i in range(5)}
    assert sorted(p.name for p in home.iterdir()) == ["registry.json", "registry.lock"]


def test_a_lock_held_too_long_is_a_clear_error(home, checkpoint, monkeypatch):
    monkeypatch.setattr(registry, "LOCK_SECONDS", 0.1)
    home.mkdir(parents=True)
    with open(home / "registry.lock", "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match="registry.lock"):
            registry.add(checkpoint("one"))
    registry.add(checkpoint("one"))


def test_commands_over_the_registry(run_llm, demo_path, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in demo_path.iterdir():
        (copy / file.name).symlink_to(file)
    done = run_llm("mlx-streaming", "add", copy, "--alias", "c", "--set", "slots=8", "--set", "memory=2GB")
    assert "Registered copy" in done.stdout and "default" in done.stdout
    rows = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)
    assert [(r["name"], r["default"], r["problem"]) for r in rows] == [
        ("copy", True, None),
        ("demo", False, None),
    ]
    assert rows[0]["settings"] == {"slots": 8, "memory": 2 * 10**9} and rows[0]["mtp"] is True
    assert rows[0]["bytes"] > rows[0]["trunk_bytes"] > 0 < rows[0]["expert_bytes"]
    run_llm("mlx-streaming", "add", copy, "--alias", "c2", "--set", "slots=9")
    again = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)[0]
    assert again["settings"] == {"slots": 9, "memory": 2 * 10**9} and again["aliases"] == ["c", "c2"]
    listed = run_llm("models", "list", "-q", "copy").stdout
    assert "MLX streaming: copy (aliases: c, c2)" in listed
    assert "from demo" in run_llm("mlx-streaming", "default", "demo").stdout
    assert "* demo" in run_llm("mlx-streaming", "models").stdout
    packed = tmp_path / "packed"
    run_llm("mlx-streaming", "pack", copy, packed)
    run_llm("mlx-streaming", "add", copy, "--set", f"packed={os.path.relpath(packed)}")
    again = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)[0]
    assert again["settings"]["packed"] == str(packed) and again["settings"]["slots"] == 9
    refused = run_llm("mlx-streaming", "remove", "copy", "--delete-files", input="n\n", check=False)
    assert refused.returncode == 1 and copy.exists()
    assert "files stay" in run_llm("mlx-streaming", "remove", "c").stdout
    assert copy.exists()
    run_llm("mlx-streaming", "add", copy)
    copy.rename(tmp_path / "elsewhere")
    assert "Removed copy" in run_llm("mlx-streaming", "remove", "copy", "--delete-files", "-y").stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["add", "nowhere"], "not a directory"),
        (["add", "some-org/some-model"], "mlx-streaming download some-org/some-model"),
        (["add", ".", "--set", "slots"], "KEY=VALUE"),
        (["add", ".", "--set", "packed=nowhere"], "nowhere is not a finished pack"),
        (["default", "nowhere"], "known are demo"),
        (["remove", "nowhere"], "known are demo"),
    ],
)
def test_commands_fail_in_one_line(run_llm, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    done = run_llm("mlx-streaming", *args, check=False)
    assert done.returncode in (1, 2) and message in done.stderr and "Traceback" not in done.stderr
