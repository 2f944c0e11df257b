"""Dropping experts that a sound pack holds: space is freed, the words stay, and nobody reads the holes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hub_server import Hub, Repo

from mlx_streaming.bench import Options, bench
from mlx_streaming.checkpoint import drop as drops
from mlx_streaming.checkpoint import holes
from mlx_streaming.checkpoint.download import download, sha256
from mlx_streaming.checkpoint.drop import MARKER, drop, dropped_to
from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.pack import pack
from mlx_streaming.checkpoint.spec import ModelSpec, layer_tensors
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import open_source
from mlx_streaming.errors import CheckpointError, EngineError
from mlx_streaming.experts.memory import ExpertMemory


def described(path: Path) -> tuple[ModelSpec, TensorIndex]:
    index = TensorIndex.open(path)
    return ModelSpec.read(path, index), index


def logits(path: Path, packed: Path | None) -> np.ndarray:
    """Of a few tokens, with fewer slots than experts."""
    spec, index = described(path)
    config = EngineConfig(packed=str(packed) if packed else None)
    model = build_model(spec)
    slots = {n: e.top_k for n, e in spec.experts.items()}
    memory = ExpertMemory.install(model, spec, open_source(spec, index, config), config, slots)
    load_trunk(model)
    found = np.array(model(mx.array([[1, 5, 9]])).astype(mx.float32))
    memory.close()
    return found


def punchable(directory: Path) -> bool:
    """Whether this filesystem frees parts of files; where not, every drop must end in the same sentence."""
    try:
        holes.require_punching(directory)
    except CheckpointError as error:
        assert "nothing was changed" in str(error)
        return False
    return True


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


@pytest.fixture
def copied(demo_path, tmp_path) -> tuple[Path, Path]:
    """(a copy of the demo, its pack)."""
    path, packed = tmp_path / "copy", tmp_path / "packed"
    path.mkdir()
    for file in demo_path.iterdir():
        if not file.name.startswith("mtp"):
            shutil.copyfile(file, path / file.name)
    pack(path, packed)
    return path, packed


@pytest.fixture
def dropped(copied) -> tuple[Path, Path]:
    """The same after dropping; where holes cannot be made, a test has nothing to look at but the refusal."""
    path, packed = copied
    if not punchable(path):
        before = contents(path)
        with pytest.raises(CheckpointError, match="cannot free parts of a file"):
            drop(path, packed)
        assert contents(path) == before
        pytest.xfail("this filesystem cannot punch holes")
    drop(path, packed)
    return path, packed


def test_space_is_freed_and_output_is_identical(copied):
    path, packed = copied
    if not punchable(path):
        return
    spec, index = described(path)
    before, expected = contents(path), logits(path, None)
    steps, events = [], []
    done = drop(
        path, packed, lambda *step: steps.append(step), lambda: events.append(contents(path) == before)
    )
    assert events == [True], "nothing may change before the pack is known to be sound"
    assert steps[-1][0] == steps[-1][1] and steps == sorted(steps)
    assert done.verified == sum(e.num_experts for e in spec.experts.values()) > 0
    assert 0.9 * spec.expert_bytes < done.freed <= spec.expert_bytes
    assert done.after == sum(holes.allocated(f) for f in index.files)
    after = contents(path)
    assert set(after) - set(before) == {MARKER}
    assert described(path)[1].digest() == index.digest()
    experts = {i.name for e in spec.experts.values() for i in layer_tensors(index, e.prefix).values()}
    kept = [t for name, t in index.tensors.items() if name not in experts]
    for info in kept:
        place = slice(info.offset, info.offset + info.nbytes)
        assert after[info.file.name][place] == before[info.file.name][place], info.name
    assert len(kept) == len(index.tensors) - len(experts) > 0
    assert np.array_equal(logits(path, packed), expected)


def test_reading_in_place_is_refused_and_so_is_packing(dropped, tmp_path):
    path, packed = dropped
    spec, index = described(path)
    with pytest.raises(CheckpointError, match=f"dropped after packing.*set packed={packed}"):
        open_source(spec, index, EngineConfig())
    with pytest.raises(CheckpointError, match="dropped after packing"):
        pack(path, tmp_path / "second")
    assert not list(tmp_path.glob("second*"))
    pack(path, packed)  # the finished pack is recognised
    shutil.rmtree(packed)
    with pytest.raises(CheckpointError, match="their pack .* is gone"):
        open_source(spec, index, EngineConfig())


def test_who_reads_in_place_meanwhile_is_stopped(copied, tmp_path):
    path, packed = copied
    if not punchable(path):
        return
    spec, index = described(path)
    model = build_model(spec)
    slots = {n: e.top_k for n, e in spec.experts.items()}
    source = open_source(spec, index, EngineConfig())
    memory = ExpertMemory.install(model, spec, source, EngineConfig(), slots)
    load_trunk(model)
    mx.eval(model(mx.array([[1]])))

    def drop_early(done, total):
        if dropped_to(spec, index) is None:
            drop(path, packed)

    with pytest.raises(CheckpointError, match="dropped after packing"):
        pack(path, tmp_path / "second", on_progress=drop_early)
    partial = tmp_path / "second.partial"
    assert partial.is_dir() and not list(partial.glob("layer-*.json")), "no layer with holes may be kept"
    with pytest.raises(CheckpointError):
        mx.eval(model(mx.array([list(range(2, 40))])))
    memory.close()


def test_stock_is_not_benchmarked_without_experts(dropped):
    path, packed = dropped
    with pytest.raises(EngineError, match="stock mlx-lm cannot run it; leave out --baseline"):
        bench(path, EngineConfig(packed=str(packed)), Options(baseline=True))


def test_a_copy_without_holes_is_refused_too(dropped, tmp_path):
    path, packed = dropped
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name, data in contents(path).items():
        (copy / name).write_bytes(data)
    assert dropped_to(*described(copy)) == str(packed)
    links = tmp_path / "links"
    links.mkdir()
    for file in path.iterdir():
        if file.name != MARKER:
            (links / file.name).symlink_to(file)
    assert dropped_to(*described(links)) == str(packed)


def test_an_interrupted_drop_is_completed_by_the_next(copied, monkeypatch):
    path, packed = copied
    if not punchable(path):
        return
    real, calls = holes.punch, []

    def interrupted(*place):
        calls.append(place)
        if len(calls) == 30:
            raise KeyboardInterrupt
        real(*place)

    monkeypatch.setattr(drops, "punch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drop(path, packed)
    spec, index = described(path)
    with pytest.raises(CheckpointError, match="dropped after packing"):
        open_source(spec, index, EngineConfig())
    open_source(spec, index, EngineConfig(packed=str(packed)))
    monkeypatch.undo()
    completed = drop(path, packed)
    assert completed.freed > 0
    again = drop(path, packed)
    assert (again.freed, again.after) == (0, completed.after)
    assert completed.after < 0.5 * sum(f.stat().st_size for f in index.files)


def _damage(path, packed):
    file = next(packed.glob("*.experts"))
    with open(file, "r+b") as handle:
        handle.seek(100)
        handle.write(b"damage")
    return "pack is damaged"


def _other_weights(path, packed):
    file = sorted(path.glob("model*.safetensors"))[-1]
    with open(file, "r+b") as handle:
        handle.seek(-4, os.SEEK_END)
        handle.write(b"else")
    return "does not hold all experts"


def _hard_link(path, packed):
    file = sorted(path.glob("model*.safetensors"))[0]
    os.link(file, path.parent / "other-name")
    return "hard link"


def _no_punching(path, packed):
    return "cannot free parts of a file"


@pytest.mark.parametrize("fault", [_damage, _other_weights, _hard_link, _no_punching])
def test_what_is_not_safe_changes_nothing(copied, monkeypatch, fault):
    path, packed = copied
    sentence = fault(path, packed)
    if fault is _no_punching:

        def refuse(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(holes, "punch", refuse)
    elif not punchable(path) and fault is _damage:
        sentence = "cannot free parts of a file"
    before = contents(path)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        drop(path, packed)
    assert "\n" not in str(caught.value)
    assert contents(path) == before


def test_the_embedded_demo_is_never_touched(demo_path, copied):
    with pytest.raises(CheckpointError, match="embedded demo"):
        drop(demo_path, copied[1])
    assert not (demo_path / MARKER).exists()


def test_a_damaged_marker_is_named(dropped):
    path, _ = dropped
    (path / MARKER).write_text("{")
    with pytest.raises(CheckpointError, match=f"{MARKER} cannot be read"):
        open_source(*described(path), EngineConfig())


@pytest.fixture
def served(demo_path, tmp_path, monkeypatch):
    """The demo as org/tiny on a local hub, for this process and for `llm` processes."""
    from huggingface_hub import constants

    with Hub({"org/tiny": Repo(demo_path)}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def test_download_drop_and_restore(run_llm, served, tmp_path):
    if not punchable(tmp_path):
        return

    def run(*args, **kwargs):
        online = {"HF_ENDPOINT": served.url, "HF_HUB_OFFLINE": "0"}
        return run_llm("mlx-streaming", *args, env=online, **kwargs)

    command = ("download", "org/tiny", "--no-mtp", "--pack", "--drop")
    refused = run(*command, input="n\n", check=False)
    assert refused.returncode == 1 and "would compute with zeros" in refused.stderr
    assert served.total_sent() == 0
    facts = json.loads(run(*command, "--yes", "--json").stdout)
    path, sent = Path(facts["path"]), served.total_sent()
    assert facts["freed"] > 10_000_000
    shard = sorted(path.glob("model*.safetensors"))[0]
    assert shard.is_symlink() and (shard.resolve().parent / MARKER).is_file() and (path / MARKER).is_file()

    again = json.loads(run(*command, "--yes", "--json").stdout)
    assert (again["fetched"], again["verified"], again["freed"]) == (0, 11, 0)
    assert served.total_sent() - sent < 1_000_000, "headers, to describe it"
    assert run_llm("-m", "tiny", "-o", "max_tokens", 4, "hello").stdout.strip()
    listed = run_llm("mlx-streaming", "models").stdout
    assert f"experts dropped from its shards, packed in {facts['packed']}" in listed

    with open(shard, "r+b") as handle:  # in the trunk or between the holes: damage is still found
        handle.seek(-4, os.SEEK_END)
        handle.write(b"else")
    mended = download("org/tiny")
    assert mended.fetched == shard.stat().st_size
    assert shard.name not in json.loads((path / MARKER).read_text())["shards"]

    restored = json.loads(run("download", "org/tiny", "--no-mtp", "--restore", "--json").stdout)
    names = [p for p in path.glob("model*.safetensors")]
    assert restored["fetched"] == sum(p.stat().st_size for p in names if p != shard) > 0
    assert not (path / MARKER).exists() and not (shard.resolve().parent / MARKER).exists()
    assert all(sha256(p) == p.resolve().name for p in names) and len(names) == 3
    open_source(*described(path), EngineConfig()).close()


def test_pack_command_asks_drops_and_sets_what_is_used(run_llm, copied):
    path, packed = copied
    if not punchable(path):
        return
    shutil.rmtree(packed)
    run_llm("mlx-streaming", "add", path, "--name", "mine", "--set", "context=512")
    expected = run_llm("-m", "mine", "-o", "temperature", 0, "-o", "max_tokens", 8, "hello").stdout
    asked = run_llm("mlx-streaming", "pack", "mine", packed, "--drop", input="n\n", check=False)
    assert asked.returncode == 1 and "would compute with zeros" in asked.stderr
    assert not packed.exists() and not (path / MARKER).exists()
    done = run_llm("mlx-streaming", "pack", path, packed, "--drop", "--yes").stdout
    assert "packed experts are sound" in done and "MB freed" in done
    row = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)[0]
    assert row["settings"] == {"context": 512, "packed": str(packed)}
    assert row["dropped_to"] == str(packed)
    assert run_llm("-m", "mine", "-o", "temperature", 0, "-o", "max_tokens", 8, "hello").stdout == expected
    run_llm("mlx-streaming", "add", path, "--name", "bare")
    refused = run_llm("-m", "bare", "hello", check=False)
    assert refused.returncode == 1 and f"set packed={packed}" in refused.stderr


def test_doctor_says_where_the_experts_are(dropped, monkeypatch):
    from mlx_streaming import doctor
    from mlx_streaming.probes import ComputeRates, DiskRates

    path, packed = dropped
    probed = []
    compute = ComputeRates(weights=1e11, flops=1e12, launch_s=1e-4, host_s=2e-4, miss_s=1e-5, turn_s=5e-4)
    disk = DiskRates(disk=2e9, cached=10e9, read=1, source="checkpoint")
    monkeypatch.setattr(doctor, "probe_compute", lambda dtype: compute)
    monkeypatch.setattr(doctor, "probe_disk", lambda files, block: probed.extend(files) or disk)
    subject = doctor.Subject("copy", path, downloaded=True, disk=path)
    report = doctor.examine(subject, EngineConfig())
    found = [p for p in report.problems if p.fatal]
    assert len(found) == 1 and f"set packed={packed}" in found[0].what
    assert found[0].fix == f"llm mlx-streaming add {path} --name copy --set packed={packed}"
    probed.clear()
    report = doctor.examine(subject, EngineConfig(packed=str(packed)))
    assert not report.fatal and report.model["dropped_to"] == str(packed)
    assert probed == sorted(packed.glob("*.experts")), "holes would look like a very fast disk"
