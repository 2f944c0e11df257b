"""Shared fixtures: the demo checkpoint, a private llm home, and real `llm` processes in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers_fork import ForkServer

from mlx_streaming.demo import checkpoint_path

LLM = (sys.executable, "-m", "llm")


@pytest.fixture(scope="session")
def demo_path() -> Path:
    """Directory of the embedded checkpoint."""
    return checkpoint_path()


@pytest.fixture
def llm_env(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty llm home of its own, no plugin settings and no network."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LLM_", "HF_"))}
    home = tmp_path / "llm-home"
    home.mkdir()
    return kept | {"LLM_USER_PATH": str(home), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}


@pytest.fixture(scope="session")
def _forks():
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def run_llm(llm_env, _forks):
    """`run_llm(*args, input=None, env=None, check=True)`: a real `llm` process, output captured as text.

    `env` is added to `llm_env`; with `check` a non-zero exit status fails the test with what was printed.
    The process is forked from one that has imported llm; with `fresh`, or an `env` that decides what is
    imported, it starts from nothing.
    """

    def run(*args, input=None, env=None, check=True, timeout=120, fresh=False):
        args = [str(a) for a in args]
        if fresh or any(name.startswith(("PYTHON", "LLM_LOAD")) for name in env or {}):
            done = subprocess.run(
                [*LLM, *args],
                input=input or "",
                capture_output=True,
                text=True,
                env=llm_env | (env or {}),
                timeout=timeout,
            )
        else:
            done = _forks.run(args, input, llm_env | (env or {}), timeout)
        if check and done.returncode != 0:
            pytest.fail(f"llm {' '.join(args)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture
def logs(run_llm):
    """`logs(count=0)`: `llm logs --json` of the private home, oldest first, all of it by default."""

    def read(count=0):
        return json.loads(run_llm("logs", "list", "--json", "-n", count).stdout or "[]")

    return read
