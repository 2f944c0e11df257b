"""bench --reads: filling slots against plain parallel preadv of the same pieces, page cache alike."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint.index import TensorIndex
from .checkpoint.spec import ModelSpec
from .config import EngineConfig
from .engine import open_source
from .errors import CheckpointError
from .experts.memory import open_reader
from .experts.pool import Pool

BATCH = 32
ROUNDS = 9


def bench_reads(path: Path, config: EngineConfig) -> dict[str, Any]:
    """Medians of GB/s over interleaved rounds: expert fills, and plain reads of the same bytes.

    Both read a batch of experts of one layer with `config.readers` threads; plain reads go into one reused
    buffer per thread.

    Raises:
        EngineError: the checkpoint cannot be read.
    """
    index = TensorIndex.open(path)
    spec = ModelSpec.read(path, index)
    source = open_source(spec, index, config)
    layer = next(iter(spec.experts.values()))
    count = min(BATCH, layer.num_experts)
    reader = open_reader(config)
    pool = Pool(layer.layer, layer.num_experts, count, source, config.policy, staging=reader.staging)
    raw = _Raw(config.readers)
    random = np.random.default_rng(0)
    fills_gbps, raw_gbps = [], []
    for number in range(ROUNDS + 1):
        experts = random.choice(layer.num_experts, count, replace=False).tolist()
        fills = [pool.fill(e, slot) for slot, e in enumerate(experts)]
        size = sum(f.nbytes for f in fills)
        start = time.perf_counter()
        reader.submit(fills).wait()
        middle = time.perf_counter()
        raw.read([r for f in fills for r in f.reads])
        end = time.perf_counter()
        if number:  # the first round warms files and threads
            fills_gbps.append(size / (middle - start) / 1e9)
            raw_gbps.append(size / (end - middle) / 1e9)
    reader.close()
    raw.close()
    ratio = statistics.median(a / b for a, b in zip(fills_gbps, raw_gbps, strict=True))
    return {
        "expert_bytes": layer.expert_bytes,
        "experts_per_batch": count,
        "readers": config.readers,
        "fill_gbps": statistics.median(fills_gbps),
        "plain_gbps": statistics.median(raw_gbps),
        "ratio": ratio,
    }


class _Raw:
    """Plain preadv from a few threads into buffers of their own."""

    def __init__(self, threads: int):
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads)
        self._fds: dict[Path, int] = {}

    def read(self, reads) -> None:
        for read in reads:
            if read.path not in self._fds:
                self._fds[read.path] = os.open(read.path, os.O_RDONLY)
        buffers = [bytearray(max(r.nbytes for r in reads)) for _ in range(self._threads)]
        list(self._pool.map(self._part, [reads[i :: self._threads] for i in range(self._threads)], buffers))

    def _part(self, reads, buffer: bytearray) -> None:
        view = memoryview(buffer)
        for read in reads:
            got = os.preadv(self._fds[read.path], [view[: read.nbytes]], read.offset)
            if got != read.nbytes:
                raise CheckpointError(
                    f"{read.path} gave {got} of {read.nbytes} bytes; it is truncated, download it again."
                )

    def close(self) -> None:
        self._pool.shutdown()
        for fd in self._fds.values():
            os.close(fd)
