"""Probes: a few seconds of measuring that give the constants of a forecast on this machine."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .checkpoint.index import TensorIndex
from .checkpoint.spec import ModelSpec

_F_NOCACHE = 48  # macOS: reads of this descriptor bypass the page cache
_READERS = 8
_TOKENS = 12  # in one run of the demo
_DEMO_DTYPE = "float32"
_MOST_READ = 512 << 20  # bytes; enough for a stable figure on a fast disk, under a second on a slow one
_TEMPORARY = 256 << 20
# Width of the square matrices, their number, rows of the prefill product. An accelerator gets more bytes than
# its caches hold; a CPU is limited by arithmetic, below 0.1 GFLOP/s with bfloat16 on two cores.
_ON_ACCELERATOR = (2048, 64, 512)
_ON_CPU = (512, 4, 16)


@dataclass(frozen=True)
class DiskRates:
    """Reading pieces of one expert's size, eight at a time, in bytes per second.

    disk: with the page cache bypassed. cached: straight after, from the page cache. read: bytes measured.
    """

    disk: float
    cached: float
    read: int
    source: str


@dataclass(frozen=True)
class ComputeRates:
    """What MLX does on this backend.

    weights: bytes per second of 4-bit weights in products with one row (decoding). flops: per second with
    many rows (prefill). From the embedded demo, per token: launch_s, what a layer takes beyond its weights;
    host_s, what a streamed layer takes beyond a resident one when no expert is missing; miss_s, what a
    missing expert takes beside its bytes; turn_s, what sampling and text take beside the model.
    """

    weights: float
    flops: float
    launch_s: float
    host_s: float
    miss_s: float
    turn_s: float


def probe_disk(files: Sequence[Path], block: int, seconds: float = 0.8) -> DiskRates:
    """Read pieces of `block` bytes at random places of `files`, each place once.

    Raises:
        OSError: a file cannot be read.
    """
    places = [(f, at) for f in files for at in range(0, max(1, f.stat().st_size - block + 1), block)]
    random.shuffle(places)
    places = places[: max(_READERS, _MOST_READ // block)]
    descriptors = {file: os.open(file, os.O_RDONLY) for file in {f for f, _ in places}}
    try:
        for fd in descriptors.values():
            _bypass_cache(fd, True)
        disk, done = _timed_reads(descriptors, places, block, seconds)
        for fd in descriptors.values():
            _bypass_cache(fd, False)
        _timed_reads(descriptors, done, block, seconds)  # now they are in the page cache
        cached, _ = _timed_reads(descriptors, done, block, seconds)
    finally:
        for fd in descriptors.values():
            os.close(fd)
    return DiskRates(disk, cached, len(done) * block, "checkpoint")


def probe_empty_disk(directory: Path, block: int, seconds: float = 0.8) -> DiskRates:
    """As `probe_disk`, on a temporary file of 256 MB in `directory` (or in its nearest parent that exists).

    Raises:
        OSError: nothing can be written there.
    """
    existing = next(p for p in (directory, *directory.parents) if p.is_dir())
    with tempfile.NamedTemporaryFile(dir=existing, prefix=".llm-mlx-streaming-") as file:
        piece = random.randbytes(1 << 20)
        for _ in range(_TEMPORARY >> 20):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        rates = probe_disk([Path(file.name)], min(block, _TEMPORARY // 16), seconds)
    return DiskRates(rates.disk, rates.cached, rates.read, "temporary file")


def _timed_reads(
    descriptors: dict[Path, int], places: list[tuple[Path, int]], block: int, seconds: float
) -> tuple[float, list[tuple[Path, int]]]:
    """Bytes per second, and the places that were read before the time was up."""
    buffers = [bytearray(block) for _ in range(_READERS)]
    done: list[tuple[Path, int]] = []
    start = time.perf_counter()
    read = 0
    with ThreadPoolExecutor(_READERS) as pool:
        for at in range(0, len(places), _READERS):
            group = places[at : at + _READERS]
            jobs = [(descriptors[f], buffers[i], offset) for i, (f, offset) in enumerate(group)]
            read += sum(pool.map(lambda job: os.preadv(job[0], [job[1]], job[2]), jobs))
            done += group
            if time.perf_counter() - start > seconds:
                break
    return read / (time.perf_counter() - start), done


def _bypass_cache(fd: int, on: bool) -> None:
    if hasattr(os, "posix_fadvise"):
        if on:  # Linux: drop what is cached, so that the next read comes from the disk
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        fcntl.fcntl(fd, _F_NOCACHE, int(on))


def probe_compute(dtype: str = "bfloat16") -> ComputeRates:
    """Measure MLX on its default device with activations of `dtype`, in a few seconds."""
    weights, flops = _products(dtype)
    spec, resident, streamed, missing, misses = _demo_tokens()
    chosen = sum(e.top_k * e.expert_bytes for e in spec.experts.values())
    arithmetic = (spec.trunk_bytes + chosen) / (
        weights if dtype == _DEMO_DTYPE else _products(_DEMO_DTYPE)[0]
    )
    return ComputeRates(
        weights=weights,
        flops=flops,
        launch_s=max(0.0, resident - arithmetic) / spec.num_layers,
        host_s=max(0.0, streamed - resident) / len(spec.experts),
        miss_s=max(0.0, missing - streamed) / max(1.0, misses),
        turn_s=max(0.0, _turn_seconds(spec) - resident),
    )


def _products(dtype: str) -> tuple[float, float]:
    """Bytes of weights per second with one row, and operations per second with many rows."""
    import mlx.core as mx

    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    width, count, rows = _ON_CPU if on_cpu else _ON_ACCELERATOR
    kind = getattr(mx, dtype)
    packed = [_random_weights(mx, width, kind) for _ in range(count)]
    one, many = mx.ones((1, width), dtype=kind), mx.ones((rows, width), dtype=kind)
    mx.eval(packed, one, many)
    nbytes = sum(a.nbytes for parts in packed for a in parts)
    decode = _best(lambda: mx.eval([_product(mx, one, parts) for parts in packed]))
    prefill = _best(lambda: mx.eval([_product(mx, many, parts) for parts in packed[:4]]))
    return nbytes / decode, 2 * rows * width**2 * len(packed[:4]) / prefill


def _demo_tokens() -> tuple[ModelSpec, float, float, float, float]:
    """The embedded demo; its seconds per token with experts resident, all in slots, few in slots; misses per
    token of the last. Its experts are so small that their bytes, from the page cache, cost next to nothing.
    """
    from .checkpoint.load import build_model, load_trunk
    from .config import EngineConfig
    from .demo import checkpoint_path
    from .experts.memory import ExpertMemory
    from .experts.source import InPlaceSource

    index = TensorIndex.open(checkpoint_path())
    spec = ModelSpec.read(checkpoint_path(), index)
    slots = {n: e.num_experts for n, e in spec.experts.items()}
    few = {n: 2 * e.top_k for n, e in spec.experts.items()}
    models, memories = [], []
    for given, streamed in ((slots, False), (slots, True), (few, True)):
        models.append(build_model(spec))
        source = InPlaceSource(spec, index)
        memories.append(
            ExpertMemory.install(models[-1], spec, source, EngineConfig(), given, force_streamed=streamed)
        )
        load_trunk(models[-1])
        memories[-1].warm({n: range(count) for n, count in given.items()})
        memories[-1].settle()
    # in turns, so that other programs disturb all alike; the first round does not count
    rounds = [[_timed(lambda m=model: _decode(m)) for model in models] for _ in range(4)]
    misses = memories[-1].stats.total().misses / (len(rounds) * _TOKENS)
    for memory in memories:
        memory.close()
    resident, streamed, missing = (min(column) / _TOKENS for column in zip(*rounds[1:], strict=True))
    return spec, resident, streamed, missing, misses


def _decode(model) -> None:
    """Generate `_TOKENS` tokens greedily."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache, token = make_prompt_cache(model), mx.array([[1]])
    for _ in range(_TOKENS):
        token = mx.argmax(model(token, cache=cache)[:, -1], axis=-1, keepdims=True)
        mx.async_eval(token)
    mx.eval(token)


def _turn_seconds(spec: ModelSpec) -> float:
    """Seconds per token of a sampled answer of the demo, all experts resident, as a user would see it."""
    from .config import EngineConfig
    from .mlx_backend import MLXBackend
    from .request import Request, Sampling

    slots = max(e.num_experts for e in spec.experts.values())
    backend = MLXBackend(spec.path, EngineConfig(slots=slots, usage=False, mtp="off", context=512))
    messages = ({"role": "user", "content": "Write a story about a dog and a storm."},)
    request = Request(
        messages, sampling=Sampling(temperature=0.7, seed=1), max_tokens=48, mtp="off", cache="off"
    )
    rates = [backend.generate(request).generation_tps for _ in range(2)]
    backend.close()
    return 1 / max(rates)


def _random_weights(mx, width: int, kind) -> tuple:
    """A square matrix of 4-bit weights in groups of 64, made without quantising anything."""
    weight = mx.random.randint(0, 2**31 - 1, (width, width // 8)).astype(mx.uint32)
    scales = mx.random.uniform(shape=(width, width // 64)).astype(kind)
    return weight, scales, scales * -8


def _product(mx, x, parts):
    return mx.quantized_matmul(x, *parts, transpose=True, group_size=64, bits=4)


def _best(run: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of `times` runs after one that does not count."""
    run()
    return min(_timed(run) for _ in range(times))


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
