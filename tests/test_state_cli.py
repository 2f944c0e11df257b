"""`llm mlx-streaming cache`: what a person sees of the store and does to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_state_store import IDS, open_store, put

from mlx_streaming.state.admin import listing


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A private llm home with a store of three snapshots, one of them without state."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.delenv("LLM_MLX_STREAMING_CACHE_DIR", raising=False)
    place = tmp_path / "mlx-streaming" / "cache"
    store = open_store(place)
    put(store, IDS[:30], "head")
    put(store, IDS[:60], "partial")
    put(store, IDS[:90], "turn")
    store.close()
    return place


@pytest.fixture
def cache():
    from llm_mlx_streaming.commands import group

    def invoke(*args, code=0, **more):
        done = CliRunner().invoke(group, ["cache", *args], **more)
        assert done.exit_code == code, done.output
        return done.output

    return invoke


def test_list(home, cache):
    lines = cache("list").splitlines()
    assert len(lines) == 4 and lines[0].split() == ["ID", "CREATED", "KIND", "TOKENS", "NEW", "SIZE", "MODEL"]
    assert [line.split()[3] for line in lines[1:]] == ["turn", "rows", "head"]
    assert lines[1].split()[4:6] == ["90", "30"]
    rows = json.loads(cache("list", "--json", "-n", "2"))
    assert [row["tokens"] for row in rows] == [90, 60] and rows[0]["parent"] == rows[1]["id"]
    assert [row["state"] for row in rows] == [True, False]
    assert rows[0]["bytes"] == sum((home / name).stat().st_size for name in rows[0]["files"])


def test_info(home, cache):
    found = json.loads(cache("info", "--json"))
    assert found["entries"] == 3 and found["conversations"] == 1 and found["without_state"] == 1
    assert found["directory"] == str(home) and found["kinds"] == {"head": 1, "partial": 1, "turn": 1}
    shown = cache("info")
    assert str(home) in shown and "8.0 GB" in shown and "imaginary" in shown


def test_verify(home, cache):
    assert cache("verify").startswith("Checked 3 snapshots, 5 files, ")
    path = home / listing(home)[0].state_file
    path.write_bytes(path.read_bytes()[:-1])
    assert "truncated" in cache("verify", code=1)
    report = json.loads(cache("verify", "--json", code=1))
    assert [problem["reason"] for problem in report["problems"]] == ["truncated"]
    assert "removed" in cache("verify", "--repair")
    assert cache("verify").startswith("Checked 2 snapshots, 3 files, ")


def test_clear(home, cache):
    assert "aborted" in cache("clear", input="n\n", code=1).lower() and len(listing(home)) == 3
    assert "No snapshot" in cache("clear", "zzz", code=1)
    assert "Removed 0" in cache("clear", "--older-than", "1")
    assert "Removed 0" in cache("clear", "-m", "demo")
    assert "known are demo" in cache("clear", "-m", "nowhere", code=1)
    newest = listing(home)[0].entry.id
    assert "Removed 1 snapshots" in cache("clear", newest[:8]) and len(listing(home)) == 2
    assert "Removed 2 snapshots" in cache("clear", input="y\n")
    assert not list(home.glob("*.safetensors"))
    assert "No snapshots" in cache("list")


def test_clear_the_snapshots_of_a_checkpoint_that_is_not_registered(home, cache):
    assert "Removed 3 snapshots" in cache("clear", "-m", "imaginary") and not listing(home)


def test_unreadable_index(home, cache):
    (home / "index.db").write_bytes(b"garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        Path(f"{home / 'index.db'}{suffix}").unlink(missing_ok=True)
    assert "cache clear" in cache("list", code=1)
    assert "Removed" in cache("clear", "--yes")
    assert "No snapshots" in cache("list")


def test_a_cache_directory_that_is_a_file_is_told_of(run_llm, tmp_path):
    (tmp_path / "file").write_text("precious")
    env = {"LLM_MLX_STREAMING_CACHE_DIR": str(tmp_path / "file")}
    for command in (("list",), ("info",), ("verify",), ("clear", "--yes")):
        refused = run_llm("mlx-streaming", "cache", *command, env=env, check=False)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert "file is not a directory, so no snapshots are kept on disk; set LLM_MLX" in refused.stderr
    ask = ("-m", "qwen3-next-stream-demo", "-o", "max_tokens", 2, "-o", "seed", 1)
    done = run_llm(*ask, "hello", env=env)
    assert done.stdout.strip()
    assert f"[Snapshots are not kept on disk ({tmp_path / 'file'} is not a directory): set LLM" in done.stderr
    for quiet in (("-o", "quiet", 1), ("-o", "cache", "memory"), ("--no-log",)):
        assert "Snapshots" not in run_llm(*ask, *quiet, "hello", env=env).stderr
    chat = run_llm("chat", *ask, input="one\ntwo\nquit\n", env=env)
    assert chat.stderr.count("Snapshots are not kept") == 1, "once, not after every turn"
    noted = run_llm("mlx-streaming", "doctor", "demo", env=env).stdout
    assert "Note: " in noted and "file is not a directory, so no snapshots are kept on disk" in noted
    assert (tmp_path / "file").read_text() == "precious"


def test_real_process_on_an_empty_home(run_llm):
    assert json.loads(run_llm("mlx-streaming", "cache", "list", "--json").stdout) == []
    assert run_llm("mlx-streaming", "cache", "verify").stdout.startswith("Checked 0 snapshots")
    assert run_llm("mlx-streaming", "cache", "clear", "--yes").stdout.startswith("Removed 0 snapshots")
