"""Packed experts under a model: the output of in-place experts at every pool size, faults while it runs."""

import os
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.pack import pack
from mlx_streaming.checkpoint.recipe import Recipe
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.errors import CheckpointError
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.packed_source import PackedSource
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.generation.prefill import prefill

PROMPT = np.random.default_rng(5).integers(0, 4000, 40).tolist()
POOLS = (1, 4, 24, 64)


@pytest.fixture(scope="module")
def described(demo_path):
    index = TensorIndex.open(demo_path)
    return ModelSpec.read(demo_path, index), index


@pytest.fixture(scope="module", params=["unchanged", "mixed bits"])
def packed(request, demo_path, tmp_path_factory) -> tuple[str, Path]:
    recipe = Recipe() if request.param == "unchanged" else Recipe(bits=3, down_bits=6, edge_layers=1)
    out = tmp_path_factory.mktemp("pack") / "out"
    pack(demo_path, out, recipe)
    return request.param, out


def loaded(described, source, slots: int, force_streamed: bool = False):
    spec, _ = described
    model = build_model(spec)
    counts = {n: min(slots, e.num_experts) for n, e in spec.experts.items()}
    memory = ExpertMemory.install(model, spec, source, EngineConfig(), counts, force_streamed)
    load_trunk(model)
    return model, memory


def logits(model, steps: int = 3) -> list[np.ndarray]:
    cache = make_prompt_cache(model)
    found = [prefill(model, PROMPT, cache, chunk=16)]
    for _ in range(steps):
        token = mx.argmax(found[-1], axis=-1)[None]
        found.append(model(token, cache=cache)[:, -1, :])
    return [np.array(f.astype(mx.float32)) for f in found]


@pytest.fixture(scope="module")
def stock(demo_path) -> list[np.ndarray]:
    return logits(load_model(demo_path)[0])


def test_output_does_not_depend_on_source_or_slots(described, packed, stock):
    kind, out = packed
    spec, index = described
    reference, compared = (stock if kind == "unchanged" else None), 0
    for slots in POOLS:
        for force in (False, True) if slots == max(POOLS) else (False,):
            model, memory = loaded(described, PackedSource(out, spec, index), slots, force)
            found = logits(model)
            memory.close()
            reference = reference or found
            for ours, expected in zip(found, reference, strict=True):
                assert np.array_equal(ours, expected)
                compared += 1
    assert compared == 4 * (len(POOLS) + 1)
    if kind == "mixed bits":
        assert not np.array_equal(reference[0], stock[0])
        assert np.corrcoef(reference[0].ravel(), stock[0].ravel())[0, 1] > 0.8


def test_one_read_per_expert(described, packed, stock):
    spec, index = described
    model, memory = loaded(described, PackedSource(packed[1], spec, index), 8)
    logits(model)
    total = memory.stats.total()
    memory.close()
    one = PackedSource(packed[1], spec, index)
    assert total.reads == total.misses > 0
    assert all(len(one.reads(n, 0)) == 1 for n in spec.experts)
    assert all(len(InPlaceSource(spec, index).reads(n, 0)) == 9 for n in spec.experts)


@pytest.fixture
def running(described, demo_path, tmp_path):
    """(model, memory, layer file, expected logits) of a model that has run once with few slots."""
    pack(demo_path, tmp_path / "out")
    spec, index = described
    model, memory = loaded(described, PackedSource(tmp_path / "out", spec, index), 4)
    expected = logits(model)
    yield model, memory, tmp_path / "out" / "layer-0004.experts", expected
    memory.close()


def test_a_file_replaced_by_name_does_not_come_in(running):
    model, _, file, expected = running
    other = file.with_name("other")
    other.write_bytes(os.urandom(file.stat().st_size))
    os.replace(other, file)
    assert all(np.array_equal(a, b) for a, b in zip(logits(model), expected, strict=True))


@pytest.mark.parametrize("fault", ["truncated", "overwritten"])
def test_a_file_changed_in_use_stops_the_run(running, fault):
    model, _, file, _ = running
    if fault == "truncated":
        os.truncate(file, 16384)
    else:
        with open(file, "r+b") as handle:
            handle.write(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError, match="layer-0004.experts") as caught:
        logits(model)
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_refused_at_load(described, packed, tmp_path):
    spec, index = described
    broken = Path(shutil.copytree(packed[1], tmp_path / "broken"))
    source = PackedSource(broken, spec, index)
    (broken / "layer-0005.experts").unlink()
    with pytest.raises(CheckpointError, match="layer-0005.experts"):
        loaded(described, source, 4)
