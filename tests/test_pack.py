"""Packed experts: byte for byte where bits stay, the right grid where they change, every fault is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from helpers_memory import PEAK

from mlx_streaming.checkpoint import pack as pack_module
from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.pack import pack
from mlx_streaming.checkpoint.packed import ALIGNMENT, MANIFEST, Manifest, verify
from mlx_streaming.checkpoint.recipe import Recipe, source_quantization
from mlx_streaming.checkpoint.spec import PROJECTIONS, ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.errors import CheckpointError
from mlx_streaming.experts.packed_source import PackedSource
from mlx_streaming.experts.source import InPlaceSource


def described(path: Path) -> tuple[ModelSpec, TensorIndex]:
    index = TensorIndex.open(path)
    return ModelSpec.read(path, index), index


def expert_bytes(source, layer: int, expert: int) -> dict[int, bytes]:
    """Segment number -> bytes, as the reads of `source` say."""
    segments, found = source.segments(layer), {}
    for read in source.reads(layer, expert):
        with open(read.path, "rb") as file:
            file.seek(read.offset)
            data = file.read(read.nbytes)
        for number in read.segments:
            found[number], data = data[: segments[number].nbytes], data[segments[number].nbytes :]
        assert data == b""
    return found


def values(source, spec: ModelSpec, layer: int, expert: int, proj: str) -> np.ndarray:
    """One projection of one expert as float32."""
    types = {"U32": mx.uint32, "BF16": mx.bfloat16, "U8": mx.uint8}
    segments, data = source.segments(layer), expert_bytes(source, layer, expert)
    arrays = {
        s.tensor: mx.array(np.frombuffer(data[i], np.uint8)).view(types[s.dtype]).reshape(s.shape)
        for i, s in enumerate(segments)
        if s.proj == proj
    }
    how = (source.quantization(layer) or source_quantization(spec, spec.experts[layer]))[proj]
    scales, biases = arrays["scales"], arrays.get("biases")
    if scales.dtype == mx.bfloat16:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    found = mx.dequantize(
        arrays["weight"], scales, biases, group_size=how.group_size, bits=how.bits, mode=how.mode
    )
    return np.array(found.astype(mx.float32))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "checkpoint"
    synthesize(path, "tiny-qwen3-moe", experts=8, layers=4)
    return path


@pytest.fixture(scope="module")
def packed(tiny, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "out"
    pack(tiny, out)
    return out


@pytest.fixture
def broken(packed, tmp_path) -> Path:
    """A copy of the sound pack, to be damaged."""
    return Path(shutil.copytree(packed, tmp_path / "broken"))


@pytest.mark.parametrize("like", ["demo", "tiny-gpt-oss", "tiny-deepseek-v3"])
def test_unchanged_bits_are_byte_for_byte(like, demo_path, tmp_path):
    path = demo_path
    if like != "demo":
        path = tmp_path / "checkpoint"
        synthesize(path, like)
    pack(path, tmp_path / "out")
    spec, index = described(path)
    source, original = PackedSource(tmp_path / "out", spec, index), InPlaceSource(spec, index)
    compared = 0
    for layer, experts in spec.experts.items():
        assert source.segments(layer) == original.segments(layer)
        assert source.quantization(layer) is None
        for expert in range(experts.num_experts):
            assert len(source.reads(layer, expert)) == 1
            assert source.reads(layer, expert)[0].offset % ALIGNMENT == 0
            assert expert_bytes(source, layer, expert) == expert_bytes(original, layer, expert)
            compared += 1
    assert compared == sum(e.num_experts for e in spec.experts.values()) > 0
    assert source.identity() == original.identity()
    assert verify(tmp_path / "out").records == compared


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(bits=2), {"gate_proj": 2, "up_proj": 2, "down_proj": 2}),
        (Recipe(bits=3, down_bits=6), {"gate_proj": 3, "up_proj": 3, "down_proj": 6}),
        (Recipe(gate_bits=8, group_size=32), {"gate_proj": 8, "up_proj": 4, "down_proj": 4}),
        (Recipe(up_bits=5), {"gate_proj": 4, "up_proj": 5, "down_proj": 4}),
    ],
)
def test_requantised_values_lie_on_the_new_grid(tiny, tmp_path, recipe, expected):
    pack(tiny, tmp_path / "out", recipe)
    spec, index = described(tiny)
    source, original = PackedSource(tmp_path / "out", spec, index), InPlaceSource(spec, index)
    assert source.identity() != original.identity()
    compared = 0
    for layer in spec.experts:
        how = source.quantization(layer)
        assert {p: q.bits for p, q in how.items()} == expected
        for proj in PROJECTIONS:
            old, new = values(original, spec, layer, 3, proj), values(source, spec, layer, 3, proj)
            group = how[proj].group_size
            grouped = old.reshape(*old.shape[:-1], -1, group)
            step = (grouped.max(-1) - grouped.min(-1)) / (2 ** how[proj].bits - 1)
            # mx.quantize moves the grid so that its larger end is exact, and scales are stored in 16 bits.
            slack = np.abs(grouped).max(-1) * 2**-7
            error = np.abs(new - old).reshape(grouped.shape).max(-1)
            assert (error <= 1.05 * step + slack).all()
            if recipe.group_size is None and how[proj].bits == 4:
                assert np.array_equal(old, new)
            compared += error.size
    assert compared > 0


def test_edges_get_their_own_bits_and_mxfp4_can_be_requantised(tmp_path):
    synthesize(tmp_path / "oss", "tiny-gpt-oss")
    spec, index = described(tmp_path / "oss")
    pack(tmp_path / "oss", tmp_path / "out", Recipe(bits=4, edge_layers=1))
    source = PackedSource(tmp_path / "out", spec, index)
    layers = sorted(spec.experts)
    assert [source.quantization(n) is None for n in layers] == [n in (layers[0], layers[-1]) for n in layers]
    original = InPlaceSource(spec, index)
    middle = layers[1]
    old, new = (values(s, spec, middle, 1, "up_proj") for s in (original, source))
    assert 0 < np.abs(new - old).max() <= np.ptp(old) / 15
    bias = [i for i, s in enumerate(source.segments(middle)) if s.tensor == "bias"]
    was = [i for i, s in enumerate(original.segments(middle)) if s.tensor == "bias"]
    ours, theirs = expert_bytes(source, middle, 1), expert_bytes(original, middle, 1)
    assert len(bias) == 3 and [ours[i] for i in bias] == [theirs[i] for i in was]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"bits": 7}, "7 bits"),
        ({"group_size": 48}, "groups of 48"),
        ({"edge_bits": 4}, "--edge-layers"),
    ],
)
def test_impossible_recipes_are_refused(arguments, says):
    with pytest.raises(CheckpointError, match=says):
        Recipe(**arguments)


def test_a_width_that_groups_do_not_divide_is_refused(tiny, tmp_path):
    with pytest.raises(CheckpointError, match="64 values wide"):
        pack(tiny, tmp_path / "out", Recipe(group_size=128))
    assert not (tmp_path / "out").exists()


def test_another_checkpoint_is_refused(packed, tmp_path):
    synthesize(tmp_path / "other", "tiny-qwen3-moe", experts=8, layers=4, seed=1)
    with pytest.raises(CheckpointError, match="other weights"):
        PackedSource(packed, *described(tmp_path / "other"))


def edit_manifest(directory: Path, **changes) -> None:
    body = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps(body | changes))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / MANIFEST).unlink(), "not a finished pack"),
        (lambda d: (d / MANIFEST).write_text("{"), "cannot be read"),
        (lambda d: edit_manifest(d, version=99), "version 99"),
        (lambda d: edit_manifest(d, format="x"), "does not describe"),
        (lambda d: edit_manifest(d, layers=[]), "damaged"),
        (lambda d: os.truncate(d / "layer-0002.experts", 16384 * 7), "truncated"),
        (lambda d: (d / "layer-0002.experts").unlink(), "layer 2"),
    ],
)
def test_a_damaged_pack_is_refused_in_one_sentence(broken, tiny, damage, says):
    damage(broken)
    with pytest.raises(CheckpointError, match=says) as caught:
        PackedSource(broken, *described(tiny))
    assert "pack" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["first byte", "last data byte", "padding"])
def test_verify_names_layer_and_expert_of_a_flipped_byte(broken, place):
    manifest = Manifest.read(broken)
    layer = manifest.layers[2]
    inside = {"first byte": 0, "last data byte": layer.expert_bytes - 1, "padding": layer.record_bytes - 1}
    with open(broken / layer.file, "r+b") as file:
        file.seek(5 * layer.record_bytes + inside[place])
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    found = verify(broken)
    assert found.records == sum(p.num_experts for p in manifest.layers.values())
    assert len(found.problems) == 1
    assert found.problems[0].startswith("Layer 2 expert 5:")


def test_verify_reports_truncated_and_unreadable_files_and_counts(broken, packed):
    layers = len(Manifest.read(packed).layers)
    assert verify(packed).problems == () and verify(packed).layers == layers
    os.truncate(broken / "layer-0000.experts", 16384 * 2 + 5)
    (broken / "layer-0002.experts").unlink()
    (
        broken / "layer-0002.experts"
    ).mkdir()  # opens, cannot be read: what an I/O error looks like, also to root
    with open(broken / "layer-0003.experts", "ab") as file:
        file.write(b"x")
    found = verify(broken)
    assert [p.split(":")[0] for p in found.problems] == ["Layer 0 expert 2", "Layer 2", "Layer 3"]
    with pytest.raises(CheckpointError):
        verify(broken / "nothing")


CHILD = """
import os, resource, signal, sys
from mlx_streaming.checkpoint.pack import pack
from mlx_streaming.errors import CheckpointError
limit, kill_at = int(sys.argv[3]), float(sys.argv[4])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def progress(done, total):
    if done > kill_at * total:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    pack(sys.argv[1], sys.argv[2], on_progress=progress)
except CheckpointError as error:
    sys.exit(f"refused: {error}")
"""


def pack_in_child(checkpoint: Path, out: Path, limit: int = 0, kill_at: float = 2.0):
    command = [sys.executable, "-c", CHILD, checkpoint, out, limit, kill_at]
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=60)


def test_a_killed_pack_leaves_nothing_usable_and_is_continued(tiny, packed, tmp_path):
    out = tmp_path / "out"
    kept = []
    for kill_at in sorted(np.random.default_rng().uniform(0, 1, 3)):
        done = pack_in_child(tiny, out, kill_at=kill_at)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not out.exists()
        kept.append(len(list((tmp_path / "out.partial").glob("layer-*.json"))))
    assert kept == sorted(kept)
    result = pack(tiny, out)
    assert result.kept == kept[-1]
    assert sorted(f.name for f in out.iterdir()) == sorted(f.name for f in packed.iterdir())
    for file in packed.iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()
    assert not (tmp_path / "out.partial").exists()


def test_a_full_disk_names_the_layer_and_keeps_what_is_done(tiny, tmp_path):
    out = tmp_path / "out"
    pack_in_child(tiny, out, kill_at=0.5)  # so that there is something to keep
    kept = len(list((tmp_path / "out.partial").glob("layer-*.json")))
    done = pack_in_child(tiny, out, limit=50_000)
    assert done.returncode == 1
    assert "refused: Packing layer" in done.stderr and "run the same command again" in done.stderr
    assert not out.exists()
    assert pack(tiny, out).kept == kept > 0
    assert verify(out).problems == ()


def test_too_little_space_is_refused_before_writing(tiny, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pack_module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(CheckpointError, match="GB are free"):
        pack(tiny, tmp_path / "out")
    assert not list((tmp_path / "out.partial").glob("*.experts*"))


def test_packing_twice_does_nothing_and_other_bits_do_not_overwrite(tiny, packed, tmp_path):
    before = {f.name: f.stat().st_mtime_ns for f in packed.iterdir()}
    again = pack(tiny, packed)
    assert again.kept == again.layers > 0
    with pytest.raises(CheckpointError, match="another pack"):
        pack(tiny, packed, Recipe(bits=2))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="not a sound pack"):
        pack(tiny, tmp_path)
    assert (tmp_path / "file").read_text() == "mine"
    assert {f.name: f.stat().st_mtime_ns for f in packed.iterdir()} == before


def test_notes_of_other_weights_are_not_kept(tiny, packed, tmp_path):
    synthesize(tmp_path / "other", "tiny-qwen3-moe", experts=8, layers=4, seed=1)
    out = tmp_path / "out"
    pack_in_child(tmp_path / "other", out, kill_at=0.9)
    assert list((tmp_path / "out.partial").glob("layer-*.json"))
    assert pack(tiny, out).kept == 0
    assert (out / "layer-0000.experts").read_bytes() == (packed / "layer-0000.experts").read_bytes()


def test_a_second_packer_is_refused(tiny, tmp_path):
    import fcntl

    (tmp_path / "out.partial").mkdir()
    with open(tmp_path / "out.partial" / "lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="Another process"):
            pack(tiny, tmp_path / "out")


def test_memory_stays_bounded_while_packing(tmp_path):
    """Packing 60 MB of experts must not hold more than a few of them."""
    synthesize(tmp_path / "big", "tiny-qwen3-moe", experts=64, layers=3, hidden=512, expert_width=512)
    code = PEAK + (
        "import sys; from mlx_streaming.checkpoint.pack import pack;"
        "from mlx_streaming.checkpoint.recipe import Recipe; import mlx.core;"
        "before = peak();"
        "pack(sys.argv[1], sys.argv[2], Recipe(down_bits=3));"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "big"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    packed_bytes = Manifest.read(tmp_path / "out").nbytes
    assert packed_bytes > 45e6
    assert int(done.stdout) < packed_bytes / 2


def test_checksums_are_of_whole_records(packed):
    layer = Manifest.read(packed).layers[0]
    data = (packed / layer.file).read_bytes()
    assert len(data) == layer.file_bytes
    records = [data[i : i + layer.record_bytes] for i in range(0, len(data), layer.record_bytes)]
    assert tuple(map(zlib.crc32, records)) == layer.checksums
    assert all(not any(r[layer.expert_bytes :]) for r in records)


def test_command_line(run_llm, tmp_path):
    out = tmp_path / "out"
    shown = run_llm("mlx-streaming", "pack", "demo", out, "--bits", 3, "--json")
    facts = json.loads(shown.stdout)
    assert facts["layers"] == 8 and facts["layers_kept"] == 0
    assert facts["bytes"] == sum(f.stat().st_size for f in out.glob("*.experts"))
    assert "512 experts in 8 layers are sound" in run_llm("mlx-streaming", "verify", out).stdout
    with open(out / "layer-0003.experts", "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xfe\xfd")
    failed = run_llm("mlx-streaming", "verify", out, check=False)
    assert failed.returncode == 1
    assert "Layer 3 expert 0" in failed.stdout and failed.stderr.strip().endswith("again.")
