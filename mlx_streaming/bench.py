"""bench: the streamed engine beside stock mlx-lm on the same checkpoint, in one run, interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from .checkpoint.drop import dropped_to
from .checkpoint.index import TensorIndex
from .checkpoint.spec import ModelSpec
from .config import EngineConfig
from .engine import Engine, load_engine
from .errors import EngineError
from .experts.routing import Recorder, script_routers
from .generation.decode import decode
from .generation.prefill import prefill
from .generation.sampling import Sampler
from .request import Sampling

Runner = tuple[Any, Callable[[], list[Any]]]  # a model and what makes its cache

# What is asked is of no interest, only that it is words, that topics differ, and that it is always the same.
TEXTS = (
    "Tell me a story about a lighthouse keeper who finds a map in a bottle.",
    "Explain what a harbor is, and name three things that you would see there.",
    'Return a JSON object for this person: "Maria, 34, a baker from Lisbon".',
    "Write a Python function that adds the even numbers of a list.",
    "What is 17 plus 25? Then sort these words: pear, apple, plum.",
)


@dataclass(frozen=True)
class Options:
    """What to measure. `prompt_tokens` and `tokens` per run; `repeats` interleaved runs after a cold one."""

    prompt_tokens: int = 64
    tokens: int = 64
    repeats: int = 3
    baseline: bool = False
    routing: str = "model"
    record: Path | None = None
    force_streamed: bool = False


@dataclass(frozen=True)
class Run:
    """One measured run; seconds, and the tokens that came out."""

    prefill_s: float
    decode_s: float
    tokens: tuple[int, ...]
    prompt: int

    @property
    def prefill_tps(self) -> float:
        return self.prompt / self.prefill_s

    @property
    def decode_tps(self) -> float:
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s else 0.0


def bench(
    path: Path,
    config: EngineConfig,
    options: Options,
    on_step: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> dict[str, Any]:
    """Measure the checkpoint at `path`; returns JSON data whose keys name their units.

    The first run has empty slots ("cold"); medians are over the `repeats` runs after it. With `baseline`
    stock mlx-lm runs between them, with everything in memory, and tokens and log-probabilities are compared.

    Raises:
        EngineError: a checkpoint, option or trace that cannot be used.
    """
    if options.tokens < 2:
        raise EngineError("bench needs --tokens 2 or more.")
    if options.baseline:
        require_own_experts(path)
    total = 2 + options.repeats * (2 if options.baseline else 1) + 2 * options.baseline
    step = 0

    def tick(what: str) -> None:
        nonlocal step
        on_step(what, step, total)
        step += 1

    tick("load")
    config = replace(config, cache_dir=None, usage_dir=None, mtp="off")
    with closing(load_engine(path, config, force_streamed=options.force_streamed)) as engine:
        found = _measured(engine, options, tick)
    found |= {"checkpoint": str(path), "routing": options.routing, "versions": versions()}
    found["config"] = {k: v for k, v in asdict(config).items() if v != getattr(EngineConfig(), k)}
    return found


def _measured(engine: Engine, options: Options, tick: Callable[[str], None]) -> dict[str, Any]:
    """What `bench` returns, less what is known without a run."""
    streamed, chunk = (engine.model, engine.session.make_cache), engine.plan.chunk
    script_routers(engine.model, engine.spec.experts, options.routing)
    recorder = Recorder(engine.memory) if options.record else None
    prompts = prompts_for(engine, options.prompt_tokens)
    tick("cold run")
    mx.reset_peak_memory()
    cold = _run(streamed, chunk, prompts[0], options.tokens)
    peak = mx.get_peak_memory()
    stock = None
    if options.baseline:
        tick("load stock")
        stock = load_stock(engine.spec.path)
        script_routers(stock[0], engine.spec.experts, options.routing)
        _run(stock, chunk, prompts[0], 4)
    before = engine.memory.stats.snapshot()
    ours: list[Run] = []
    theirs: list[Run] = []
    for number in range(options.repeats):
        prompt = prompts[number % len(prompts)]
        if stock is not None:
            tick("stock")
            theirs.append(_run(stock, chunk, prompt, options.tokens))
        tick("streamed")
        ours.append(_run(streamed, chunk, prompt, options.tokens))
    found = _figures(engine, cold, ours, before, peak)
    if stock is not None:
        tick("compare")
        difference = logit_difference((streamed, stock), chunk, prompts[0], min(8, options.tokens))
        same = {"logits_identical": difference == 0, "logit_difference": difference}
        found |= _compared(ours, theirs) | same
    if recorder is not None:
        found["recorded_tokens"] = recorder.save(options.record)
    return found


def sweep(
    path: Path, config: EngineConfig, options: Options, counts: list[int], on_step=lambda *_: None
) -> list[dict[str, Any]]:
    """`bench` at each number of slots; every row has slots, hit rate, rates and memory."""
    rows = []
    for count in counts:
        rows.append(bench(path, replace(config, slots=count), options, on_step))
        mx.clear_cache()
    return rows


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    import platform

    found = {name: version(name) for name in ("mlx", "mlx-lm", "llm")}
    return found | {"python": platform.python_version(), "system": platform.platform()}


def prompts_for(engine: Engine, length: int) -> list[list[int]]:
    """Token ids of the fixed prompts, each `length` long."""
    prompts = []
    for place in range(len(TEXTS)):
        texts = [*TEXTS[place:], *TEXTS[:place]]
        messages = [{"role": "user", "content": " ".join(texts)}]
        ids = engine.template.encode(engine.template.render(messages).text)
        prompts.append((ids * (length // len(ids) + 1))[:length])
    return prompts


def steps(runner: Runner, chunk: int, prompt: list[int]) -> Iterator[int]:
    """Greedy tokens after `prompt`, without end."""
    model, make_cache = runner
    cache = make_cache()
    logits = prefill(model, prompt, cache, chunk=chunk)
    yield from decode(model, cache, logits, Sampler(Sampling(temperature=0), logits.shape[-1]))


def _run(runner: Runner, chunk: int, prompt: list[int], count: int) -> Run:
    """The same loop for both models, so that only the experts differ."""
    answer = steps(runner, chunk, prompt)
    start = time.perf_counter()
    tokens = [next(answer)]
    first = time.perf_counter()
    tokens += [next(answer) for _ in range(count - 1)]
    end = time.perf_counter()
    answer.close()
    return Run(first - start, end - first, tuple(tokens), len(prompt))


def require_own_experts(path: Path) -> None:
    """Raises EngineError when stock mlx-lm cannot run the checkpoint, its experts being packed alone."""
    index = TensorIndex.open(path)
    if dropped_to(ModelSpec.read(path, index), index):
        raise EngineError(
            f"The experts of {path} were dropped after packing, so stock mlx-lm cannot run it; leave out"
            " --baseline."
        )


def load_stock(path: Path) -> Runner:
    """Stock mlx-lm's model, everything in memory."""
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    model, _ = load_model(path)
    return model, lambda: make_prompt_cache(model)


def _figures(engine: Engine, cold: Run, ours: list[Run], before, peak: int) -> dict[str, Any]:
    stats = engine.memory.stats.since(before)
    tokens = sum(len(r.tokens) + r.prompt for r in ours)
    read_s = stats["wait_s"]
    return {
        "prefill_tps": _median(r.prefill_tps for r in ours),
        "decode_tps": _median(r.decode_tps for r in ours),
        "decode_spread": _spread([r.decode_tps for r in ours]),
        "ttft_s": _median(r.prefill_s for r in ours),
        "cold_prefill_tps": cold.prefill_tps,
        "cold_decode_tps": cold.decode_tps,
        "expert_hit_rate": stats["hit_rate"],
        "expert_reads": stats["reads"],
        "expert_bytes_read": stats["bytes_read"],
        "bytes_per_token": stats["bytes_read"] / tokens,
        "read_gbps": stats["bytes_read"] / read_s / 1e9 if read_s else None,
        "host_sync_ms_per_token": 1e3 * stats["sync_s"] / tokens,
        "read_wait_ms_per_token": 1e3 * read_s / tokens,
        "lookahead": {k: v for k, v in stats.items() if k.startswith("lookahead")},
        "peak_memory_bytes": peak,
        "planned_memory_bytes": engine.plan.mlx_bytes,
        "slots": sorted(set(engine.memory.slots.values())),
        "resident_layers": len(engine.memory.resident),
        "load_s": engine.load_s,
        "backend": engine.plan.backend,
    }


def _compared(ours: list[Run], theirs: list[Run]) -> dict[str, Any]:
    pairs = list(zip(ours, theirs, strict=True))
    compared = sum(len(o.tokens) for o in ours)
    same = sum(a == b for o, t in pairs for a, b in zip(o.tokens, t.tokens, strict=True))
    return {
        "baseline_prefill_tps": _median(r.prefill_tps for r in theirs),
        "baseline_decode_tps": _median(r.decode_tps for r in theirs),
        "decode_ratio": _median(o.decode_tps / t.decode_tps for o, t in pairs),
        "prefill_ratio": _median(o.prefill_tps / t.prefill_tps for o, t in pairs),
        "tokens_compared": compared,
        "tokens_identical": same,
    }


def logit_difference(runners: tuple[Runner, Runner], chunk: int, prompt: list[int], count: int) -> float:
    """The largest absolute difference of the logits over `count` greedy tokens; 0 when they are identical.

    NaN when either has a NaN that the other lacks.
    """
    found = []
    for model, make_cache in runners:
        cache = make_cache()
        logits = prefill(model, prompt, cache, chunk=chunk)
        rows = []
        for _ in range(count):
            rows.append(np.array(logits.astype(mx.float32)))
            logits = model(mx.argmax(logits, axis=-1)[None], cache=cache)[:, -1, :]
        found.append(rows)
    pairs = zip(*found, strict=True)
    # numpy's maximum keeps a NaN, Python's may lose it.
    return float(np.max([0 if np.array_equal(a, b) else np.abs(a - b).max() for a, b in pairs]))


def _median(values) -> float:
    return float(statistics.median(values))


def _spread(values: list[float]) -> float:
    """(largest - smallest) / median."""
    return (max(values) - min(values)) / _median(values)
