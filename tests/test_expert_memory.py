"""The pool and its reader under stress: what a slot holds is what the table says, whatever the timing."""

import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from mlx_streaming.checkpoint.spec import Segment
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import load_engine
from mlx_streaming.errors import CapacityError, CheckpointError
from mlx_streaming.experts import reader as reader_module
from mlx_streaming.experts.policy import POLICIES
from mlx_streaming.experts.pool import Pool
from mlx_streaming.experts.reader import Reader
from mlx_streaming.experts.source import Read
from mlx_streaming.generation.prefill import prefill

EXPERTS = 32
SEGMENTS = (
    Segment("gate_proj", "weight", "U32", (4, 8), 128),
    Segment("gate_proj", "scales", "F32", (4,), 16),
    Segment("up_proj", "weight", "U32", (4, 8), 128),
)
RECORD = sum(s.nbytes for s in SEGMENTS)


@dataclass
class FileSource:
    """One layer whose experts are consecutive records of one file."""

    path: object

    def segments(self, layer):
        return SEGMENTS

    def reads(self, layer, expert):
        return (Read(self.path, expert * RECORD, RECORD, (0, 1, 2)),)

    def quantization(self, layer):
        return None


class SlowReader(Reader):
    """A reader whose threads sleep now and then, before and after the bytes move."""

    def _read(self, piece):
        if random.random() < 0.05:
            time.sleep(random.random() * 0.002)
        super()._read(piece)
        if random.random() < 0.02:
            time.sleep(random.random() * 0.002)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "experts.bin"
    path.write_bytes(np.random.default_rng(3).integers(0, 256, EXPERTS * RECORD, dtype=np.uint8).tobytes())
    return FileSource(path)


def held(pool: Pool, slot: int) -> bytes:
    return b"".join(bytes(t) for t in pool.fill(0, slot).targets)


def demand(pool: Pool, reader: Reader, needed: np.ndarray) -> None:
    """What a streamed layer does with the router's choice."""
    pool.chosen(needed[:, None])
    pool.settle(needed)
    pool.confirm(needed)
    pool.make_way(len(needed))
    placements = pool.reserve(needed)
    reader.submit([pool.fill(e, s) for e, s in placements]).wait()
    pool.commit(placements)


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_thousand_acquisitions_and_no_stale_slot(source, monkeypatch, policy):
    monkeypatch.setattr(reader_module, "_INLINE_BYTES", 0)
    if policy in ("lru", "lrfu"):
        monkeypatch.setattr(reader_module, "_PIECE_BYTES", 50)  # experts are cut, across segments too
    data = source.path.read_bytes()
    rng = np.random.default_rng(7)
    random.seed(7)
    pool, reader = Pool(0, EXPERTS, 8, source, policy, spare=2), SlowReader(4)
    compared = 0
    for step in range(10_000 // len(POLICIES)):
        if step % 3 == 0:
            pool.guess(rng.choice(EXPERTS, 3, replace=False).tolist(), reader)
        elif step % 7 == 0:
            pool.start(rng.integers(0, EXPERTS, 8).tolist(), reader)
        if step % 9 == 0:
            time.sleep(0.001)  # lets background reads come in
        needed = rng.choice(EXPERTS, size=int(rng.integers(1, 7)), replace=False)
        demand(pool, reader, needed)
        for expert in needed.tolist():
            slot = int(pool.table[expert])
            assert slot >= 0 and held(pool, slot) == data[expert * RECORD : (expert + 1) * RECORD]
            compared += 1
        mapped = np.flatnonzero(pool.table >= 0)
        assert (pool.holds[pool.table[mapped]] == mapped).all()
        assert not pool.locked[pool.table[mapped]].any()
        assert pool._empty == np.count_nonzero(pool.holds == -1)
    stats = pool.stats
    assert compared > 5_000 and stats.lookahead_promoted > 0 and stats.warmed > 0
    assert stats.lookahead_promoted <= stats.lookahead_read
    assert stats.lookahead_bytes == stats.lookahead_read * RECORD
    reader.close()


def test_more_experts_than_slots_is_refused_by_reserve(source):
    pool = Pool(0, EXPERTS, 4, source, "lru")
    with pytest.raises(CapacityError, match="5 experts in 4 slots"):
        pool.reserve(np.arange(5))


def test_a_short_file_raises_and_leaves_the_slot_empty(source):
    source.path.write_bytes(source.path.read_bytes()[: 10 * RECORD + 5])
    pool, reader = Pool(0, EXPERTS, 4, source, "lru"), Reader(2)
    demand(pool, reader, np.array([9]))
    with pytest.raises(CheckpointError, match="layer 0 expert 10"):
        demand(pool, reader, np.array([10]))
    assert pool.table[10] == -1 and pool.table[9] >= 0
    pool.start([10, 11], reader)
    assert pool.settle_all() == 0 and not pool.locked.any()
    reader.close()


class HeldReader(Reader):
    """A reader whose background reads wait until `go` is set."""

    def __init__(self, threads):
        super().__init__(threads)
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)

    def _read(self, piece):
        if threading.current_thread().name.startswith("background"):
            self.begun.release()
            self.go.wait(10)
        super()._read(piece)


def test_a_demand_read_waits_for_no_background_read_but_its_own(source, monkeypatch):
    monkeypatch.setattr(reader_module, "_INLINE_BYTES", 0)
    data = source.path.read_bytes()
    pool, reader = Pool(0, EXPERTS, 6, source, "lru"), HeldReader(1)
    pool.start([1, 2, 3, 4], reader)  # expert 1 has begun, the others wait behind it
    assert reader.begun.acquire(timeout=10) and pool.locked.sum() == 4
    demand(pool, reader, np.array([2, 7]))
    assert pool.table[2] >= 0 and pool.table[7] >= 0 and not reader.go.is_set()
    reader.go.set()
    demand(pool, reader, np.array([1, 9]))
    pool.settle_all()
    assert pool.table[1] >= 0 and not pool.locked.any()
    pool.start([20], reader)
    pool.finish()
    compared = 0
    for expert in np.flatnonzero(pool.table >= 0).tolist():
        assert held(pool, int(pool.table[expert])) == data[expert * RECORD : (expert + 1) * RECORD]
        compared += 1
    assert compared >= 4
    reader.close()


def test_a_demand_read_gives_up_no_more_of_a_warm_start_than_it_needs(source, monkeypatch):
    monkeypatch.setattr(reader_module, "_INLINE_BYTES", 0)
    pool, reader = Pool(0, EXPERTS, 6, source, "lru"), HeldReader(1)
    pool.start(range(6), reader)
    assert reader.begun.acquire(timeout=10) and pool.locked.all()
    demand(pool, reader, np.array([20, 21]))
    assert (pool.table[[20, 21]] >= 0).all() and pool.locked.sum() == 4
    reader.go.set()
    pool.finish()
    assert np.flatnonzero(pool.table >= 0).tolist() == [0, 1, 2, 3, 20, 21] and pool.stats.warmed == 4
    reader.close()


def test_closing_drops_the_background_reads_that_have_not_begun(source, monkeypatch):
    monkeypatch.setattr(reader_module, "_INLINE_BYTES", 0)
    pool, reader = Pool(0, EXPERTS, 8, source, "lru"), HeldReader(1)
    pool.start(range(8), reader)
    assert reader.begun.acquire(timeout=10)
    threading.Timer(0.05, reader.go.set).start()
    reader.close()
    assert not reader.begun.acquire(blocking=False), "another read began"
    pool.finish()
    assert np.flatnonzero(pool.table >= 0).tolist() == [0] and not pool.locked.any()


def test_an_exiting_process_leaves_the_waiting_background_reads(source):
    code = f"""
import atexit, time
from mlx_streaming.experts import reader as module
from mlx_streaming.experts.source import Read
module._INLINE_BYTES = 0
done = []
class Slow(module.Reader):
    def _read(self, piece):
        time.sleep(0.05)
        super()._read(piece)
        done.append(piece.fill.expert)
reader = Slow(2)
atexit.register(lambda: (reader.close(), print(len(done))))
for expert in range({EXPERTS}):
    read = Read({str(source.path)!r}, expert * {RECORD}, {RECORD}, (0,))
    reader.later(module.Fill(0, expert, (read,), (memoryview(bytearray({RECORD})),)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    assert int(ended.stdout) < EXPERTS


def test_pins_outlive_a_prompt_that_needs_more_experts_than_slots(demo_path):
    engine = load_engine(demo_path, EngineConfig(slots=16, mtp="off", usage=False))
    engine.memory.pin({n: np.arange(64) for n in range(8)}, 0.25)
    pinned = {n: [63, 62, 61, 60] for n in range(8)}
    prompt = np.random.default_rng(1).integers(0, engine.spec.vocab_size, 200).tolist()
    prefill(engine.model, prompt, engine.session.make_cache(), chunk=256)
    for number, streamed in engine.memory.streamed.items():
        assert streamed.pool.stats.waves > 1, "the prompt was to need more experts than slots"
        assert (streamed.pool.table[pinned[number]] >= 0).all()
    engine.close()


def test_pins_outlive_others_until_there_is_no_other_way(source):
    pool, reader = Pool(0, EXPERTS, 4, source, "lru"), Reader(2)
    demand(pool, reader, np.array([1, 2, 3, 4]))
    pool.pin([1, 2])
    for expert in range(5, 15):
        demand(pool, reader, np.array([expert]))
    assert pool.table[1] >= 0 and pool.table[2] >= 0
    demand(pool, reader, np.array([20, 21, 22, 23]))
    assert pool.table[1] == -1 and (pool.table[[20, 21, 22, 23]] >= 0).all()
    reader.close()
