"""Models that lie in the hub cache are found, offered, and deleted whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mlx_streaming.checkpoint.hub_cache import cached_checkpoints, delete_snapshot
from mlx_streaming.checkpoint.spec import ModelSpec

COMMIT = "a" * 40


def put(cache: Path, repo: str, source: Path, leave_out: tuple[str, ...] = (), **config) -> Path:
    """Lay `source` into the hub cache as the client does: blobs, a snapshot of links, a ref."""
    folder = cache / ("models--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / COMMIT
    for directory in (folder / "blobs", folder / "refs", snapshot):
        directory.mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    for number, file in enumerate(sorted(source.iterdir())):
        if file.name in leave_out:
            continue
        blob = folder / "blobs" / f"{number:040d}"
        shutil.copy(file, blob)
        if file.name == "config.json" and config:
            blob.write_text(json.dumps(json.loads(blob.read_text()) | config))
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    from huggingface_hub.utils import _cache_manager

    where = tmp_path / "hf" / "hub"
    monkeypatch.setattr(_cache_manager, "HF_HUB_CACHE", str(where))
    return where


def test_only_models_that_can_stream_are_found(cache, demo_path):
    assert cached_checkpoints() == []
    good = put(cache, "org/good", demo_path)
    (good / "mtp.safetensors").write_bytes(b"beside the links")
    put(cache, "org/partial", demo_path, leave_out=("model-00002-of-00003.safetensors",))
    put(cache, "org/dense", demo_path, num_experts=0)
    put(cache, "org/unknown", demo_path, model_type="not_yet_known")
    found = {c.repo: c for c in cached_checkpoints()}
    assert list(found) == ["org/good", "org/partial"]
    assert (found["org/good"].path, found["org/good"].problem) == (good, None)
    assert found["org/good"].size > 20_000_000
    assert (ModelSpec.read(good).name, ModelSpec.read(demo_path).name) == ("org/good", "demo")
    assert "model-00002-of-00003.safetensors" in found["org/partial"].problem


def test_deleting_a_snapshot_frees_its_blobs(cache, demo_path, tmp_path):
    snapshot = put(cache, "org/good", demo_path)
    assert delete_snapshot(tmp_path) is None
    assert delete_snapshot(snapshot) > 20_000_000
    assert not snapshot.exists() and not list(cache.rglob("*.safetensors"))
    assert not list(cache.glob("models--*/blobs/*"))


def test_add_from_cache_and_remove(run_llm, llm_env, demo_path):
    cache = Path(llm_env["HF_HOME"]) / "hub"
    snapshot = put(cache, "org/good", demo_path)
    put(cache, "org/partial", demo_path, leave_out=("model-00003-of-00003.safetensors",))
    asked = run_llm("mlx-streaming", "add", "--from-cache", input="y\n")
    assert "Register org/good (" in asked.stdout and "Registered good" in asked.stdout
    assert "Get it with: llm mlx-streaming download org/partial" in asked.stdout
    again = run_llm("mlx-streaming", "add", "--from-cache", "--yes")
    assert "org/good" not in again.stdout
    removed = run_llm("mlx-streaming", "remove", "good", "--delete-files", "--yes")
    assert "deleted" in removed.stdout
    assert not snapshot.exists() and not list(cache.glob("models--org--good/blobs/*"))
