"""bench --prefill: expert bytes read for prompts of growing length, and how warm the pool is afterwards."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .config import EngineConfig
from .engine import Engine, load_engine
from .generation.decode import decode
from .generation.prefill import prefill
from .generation.sampling import Sampler
from .request import Sampling

DECODE_TOKENS = 16


def bench_prefill(path: Path, config: EngineConfig, lengths: list[int]) -> list[dict[str, Any]]:
    """One row per prompt length, each from empty slots, in one chunk per prompt unless the config says less.

    `times_all` is bytes read over the bytes of all experts: 1 means that each was read once. The decode
    figures are of the first DECODE_TOKENS tokens after the prompt.

    Raises:
        EngineError: as loading does.
    """
    longest = max(lengths)
    base = replace(config, cache_dir=None, usage_dir=None, mtp="off", prefill_chunk=max(longest, 1))
    rows = []
    for length in lengths:
        with closing(load_engine(path, base)) as engine:
            rows.append(_row(engine, length))
    return rows


def _row(engine: Engine, length: int) -> dict[str, Any]:
    prompt = np.random.default_rng(length).integers(0, engine.tokenizer.vocab_size, length).tolist()
    stats = engine.memory.stats
    start = stats.snapshot()
    cache = engine.session.make_cache()
    logits = prefill(engine.model, prompt, cache, chunk=engine.plan.chunk)
    read = stats.since(start)
    middle = stats.snapshot()
    steps = decode(engine.model, cache, logits, Sampler(Sampling(temperature=0), engine.spec.vocab_size))
    for _ in range(DECODE_TOKENS):
        next(steps)
    after = stats.since(middle)
    return {
        "prompt_tokens": length,
        "chunk": engine.plan.chunk,
        "bytes_read": read["bytes_read"],
        "times_all": read["bytes_read"] / engine.spec.expert_bytes,
        "waves": read["waves"],
        "decode_hit_rate": after["hit_rate"] if after["hit_rate"] is not None else 1.0,
        "decode_reads": after["reads"],
    }
