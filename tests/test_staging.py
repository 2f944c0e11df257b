"""Fills through pinned memory and the driver's copies, against a driver that copies with the CPU."""

import ctypes
import itertools
import random

import numpy as np
import pytest
from test_exact import decoded, prompt, slots_for
from test_expert_memory import EXPERTS, RECORD, FileSource, demand, held

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.errors import CheckpointError, EngineError
from mlx_streaming.experts import memory as memory_module
from mlx_streaming.experts import reader as reader_module
from mlx_streaming.experts.pool import Pool
from mlx_streaming.experts.reader import Reader
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.experts.staging import Staging


class Driver:
    """libcuda's functions, on memory of this process; copies happen when the stream is synchronised."""

    def __init__(self):
        self.pinned, self.copies, self.waiting, self.fails = {}, 0, {}, set()
        self.numbers = itertools.count(1)

    def __getattr__(self, name):
        if name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"):
            return lambda *_: 0
        raise AttributeError(name)

    def cuStreamCreate(self, stream, flags):
        stream._obj.value = next(self.numbers)
        self.waiting[stream._obj.value] = []
        return 0

    def cuStreamDestroy_v2(self, stream):
        return 0 if not self.waiting.pop(stream.value) else 1

    def cuMemHostAlloc(self, address, size, flags):
        memory = (ctypes.c_char * size.value)()
        address._obj.value = ctypes.addressof(memory)
        self.pinned[address._obj.value] = memory
        return 0 if "memory" not in self.fails else 2

    def cuMemFreeHost(self, address):
        return 0 if self.pinned.pop(address.value) else 1

    def cuMemcpyAsync(self, target, source, size, stream):
        self.waiting[stream.value].append((target.value, source.value, size.value))
        return 700 if "copy" in self.fails else 0

    def cuStreamSynchronize(self, stream):
        for copy in self.waiting[stream.value]:
            ctypes.memmove(*copy)
            self.copies += 1
        self.waiting[stream.value].clear()
        return 0


class BatchDriver(Driver):
    """A driver that also knows the copy of many at once (CUDA 13)."""

    def cuMemcpyBatchAsync_v2(self, to, of, sizes, count, attributes, first, kinds, stream):
        assert (first._obj.value, kinds.value) == (0, 1)
        self.waiting[stream.value] += list(zip(to, of, sizes, strict=True))
        return 0


@pytest.fixture(params=[Driver, BatchDriver])
def staging(request):
    return Staging(request.param())


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "experts.bin"
    path.write_bytes(np.random.default_rng(3).bytes(EXPERTS * RECORD))
    return FileSource(path)


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_every_slot_holds_its_experts_bytes(source, staging, monkeypatch, inline):
    monkeypatch.setattr(reader_module, "_INLINE_BYTES", inline)
    monkeypatch.setattr(reader_module, "_STAGED_BYTES", 3 * RECORD)  # larger batches go thread by thread
    data, rng, compared = source.path.read_bytes(), np.random.default_rng(7), 0
    random.seed(7)
    reader = Reader(4, staging=staging)
    pool = Pool(0, EXPERTS, 8, source, "lru", spare=2, staging=staging)
    for step in range(1000):
        if step % 3 == 0:
            pool.guess(rng.choice(EXPERTS, 3, replace=False).tolist(), reader)
        needed = rng.choice(EXPERTS, size=int(rng.integers(1, 7)), replace=False)
        demand(pool, reader, needed)
        lookup = np.array(pool.lookup())
        for expert in needed.tolist():
            slot = int(pool.table[expert])
            assert lookup[expert] == slot
            assert held(pool, slot) == data[expert * RECORD : (expert + 1) * RECORD]
            compared += 1
    assert compared > 2000 and staging._driver.copies > compared
    reader.close()
    assert not staging._driver.pinned and not staging._driver.waiting


def test_a_short_file_delivers_nothing(source, staging):
    source.path.write_bytes(source.path.read_bytes()[: 10 * RECORD + 5])
    reader = Reader(2, staging=staging)
    pool = Pool(0, EXPERTS, 4, source, "lru", staging=staging)
    with pytest.raises(CheckpointError, match="layer 0 expert 10"):
        demand(pool, reader, np.array([10]))
    assert pool.table[10] == -1 and staging._driver.copies == 0
    demand(pool, reader, np.array([9]))
    assert held(pool, int(pool.table[9])) == source.path.read_bytes()[9 * RECORD : 10 * RECORD]
    reader.close()


def test_the_drivers_refusal_is_reported(source):
    driver = Driver()
    staging = Staging(driver)
    driver.fails.add("copy")
    reader = Reader(2, staging=staging)
    pool = Pool(0, EXPERTS, 4, source, "lru", staging=staging)
    with pytest.raises(EngineError, match="cuMemcpyAsync failed with error 700"):
        demand(pool, reader, np.array([1]))
    assert pool.table[1] == -1
    pool.start([2, 3], reader)
    assert pool.settle_all() == 0 and not pool.locked.any(), "a background read only frees its slot"
    driver.fails.clear()
    demand(pool, reader, np.array([1]))
    assert held(pool, int(pool.table[1])) == source.path.read_bytes()[RECORD : 2 * RECORD]
    reader.close()


def test_tokens_are_those_of_direct_reads(demo_path, monkeypatch):
    index = TensorIndex.open(demo_path)
    spec = ModelSpec.read(demo_path, index)
    found = {}
    for name, make in (("direct", lambda: None), ("staged", lambda: Staging(BatchDriver()))):
        monkeypatch.setattr(memory_module, "find_staging", make)
        model = build_model(spec)
        source = InPlaceSource(spec, index)
        slots = slots_for("half", spec)
        memory = memory_module.ExpertMemory.install(model, spec, source, EngineConfig(), slots)
        load_trunk(model)
        found[name] = decoded(model, prompt(65, spec.vocab_size), 32, 24)
        if memory.reader.staging is not None:
            assert memory.reader.staging._driver.copies > 1000
        memory.close()
    assert found["direct"] == found["staged"] and len(found["direct"]) == 24
