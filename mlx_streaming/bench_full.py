"""Full size: one checkpoint at several slot counts, in place and packed, beside stock mlx-lm loaded once.

    python -m mlx_streaming.bench_full CHECKPOINT --packed DIR --slots 512,256,128,64 --out rows.json

It needs memory for the whole checkpoint twice (stock and all slots). `llm mlx-streaming synthesize` makes a
checkpoint of the 80B's shape; its random routers choose nearly always the same experts, so --routing replaces
their choice. With --steps every row in place is measured again without one of the measures that shorten a
layer's wait. Rows are printed and saved as soon as they are there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from .bench import (
    Runner,
    load_stock,
    logit_difference,
    prompts_for,
    require_own_experts,
    steps,
    versions,
)
from .config import EngineConfig
from .engine import Engine, load_engine
from .errors import EngineError
from .experts.routing import script_routers

STEPS = ("early shared expert", "experts before the choice", "staging")


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each place of the experts (in place, packed) and slot count; rates are of decoding alone."""
    require_own_experts(options.checkpoint)
    stock = None
    for packed in (None, options.packed) if options.packed else (None,):
        for count in options.slots:
            mx.clear_cache()
            with closing(_load(options, count, packed)) as engine:
                prompts = prompts_for(engine, options.prompt_tokens)
                found = {"source": "packed" if packed else "in place", "slots": count}
                if stock is None:
                    stock = load_stock(options.checkpoint)
                    runners = ((engine.model, engine.session.make_cache), stock)
                    found["logit_difference"] = logit_difference(runners, engine.plan.chunk, prompts[0], 4)
                    script_routers(stock[0], engine.spec.experts, options.routing)
                script_routers(engine.model, engine.spec.experts, options.routing)
                start = time.perf_counter()
                _fill(engine)
                found |= {"load_s": engine.load_s, "fill_s": time.perf_counter() - start}
                yield found | _row(engine, stock, prompts, options)
                found.pop("logit_difference", None)
                for step in options.steps if packed is None else ():
                    with _without(engine, step):
                        yield found | {"without": step} | _row(engine, stock, prompts, options)


def _load(options: argparse.Namespace, count: int, packed: str | None) -> Engine:
    config = EngineConfig(slots=count, packed=packed, context=options.context, mtp="off", usage=False)
    return load_engine(options.checkpoint, config, force_streamed=True)


def _fill(engine: Engine) -> None:
    """Start with full slots: any experts will do, the first runs bring in what the routers want."""
    experts = engine.spec.experts
    engine.memory.warm({n: range(experts[n].num_experts) for n in engine.memory.streamed})
    engine.memory.settle()


def _row(
    engine: Engine, stock: Runner, prompts: list[list[int]], options: argparse.Namespace
) -> dict[str, Any]:
    ours, chunk = (engine.model, engine.session.make_cache), engine.plan.chunk
    _decode(ours, chunk, prompts[0], options.warm_up)
    theirs_s = _decode(stock, chunk, prompts[1], options.tokens)[0]
    stats = engine.memory.stats
    ours_s, before = _decode(ours, chunk, prompts[1], options.tokens, stats.snapshot)
    found, tokens = stats.since(before), options.tokens
    return {
        "decode_tps": 1 / ours_s,
        "stock_tps": 1 / theirs_s,
        "ratio": theirs_s / ours_s,
        "hit_rate": found["hit_rate"],
        "bytes_per_token": found["bytes_read"] / tokens,
        "read_gbps": found["bytes_read"] / found["wait_s"] / 1e9 if found["wait_s"] else None,
        "sync_ms_per_token": 1e3 * found["sync_s"] / tokens,
        "wait_ms_per_token": 1e3 * found["wait_s"] / tokens,
    }


def _decode(runner: Runner, chunk: int, prompt: list[int], count: int, on_first=lambda: None):
    """Seconds per token after the first, and what `on_first` returned when that was there."""
    tokens = steps(runner, chunk, prompt)
    next(tokens)
    noted, start = on_first(), time.perf_counter()
    for _ in range(count):
        next(tokens)
    seconds = (time.perf_counter() - start) / count
    tokens.close()
    return seconds, noted


@contextmanager
def _without(engine: Engine, step: str) -> Iterator[None]:
    """Measure without one of STEPS."""
    with ExitStack() as undo:
        if step == "staging":
            undo.callback(engine.memory.use_staging, engine.memory.use_staging(None))
        else:
            name = {"early shared expert": "begins_early", "experts before the choice": "begins_experts"}[
                step
            ]
            for layer in engine.memory.streamed.values():
                undo.callback(setattr, layer, name, getattr(layer, name))
                setattr(layer, name, False)
        yield


def _shown(row: dict[str, Any]) -> str:
    rate = f"{row['read_gbps']:.1f} GB/s" if row["read_gbps"] else "no reads"
    without = f", without {row['without']}" if "without" in row else ""
    if "logit_difference" in row:
        without += f", logits within {row['logit_difference']:.2g} of stock"
    return (
        f"{row['slots']:4} slots {row['source']:8} {row['decode_tps']:6.2f} tok/s, ratio {row['ratio']:.3f},"
        f" hits {row['hit_rate']:.3f}, {row['bytes_per_token'] / 1e6:7.1f} MB per token at {rate},"
        f" sync {row['sync_ms_per_token']:.1f} ms, wait {row['wait_ms_per_token']:.1f} ms{without}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--packed", help="packed experts of the checkpoint")
    parser.add_argument("--slots", type=lambda t: [int(n) for n in t.split(",")], default=[512, 256, 128, 64])
    parser.add_argument("--routing", default="zipf:0.8,0.4")
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--warm-up", type=int, default=32, help="tokens before the measured ones")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--steps", type=lambda t: t.split(","), default=[], help=f"any of {', '.join(STEPS)}")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"--steps: {', '.join(sorted(unknown))} is none of {', '.join(STEPS)}")
    rows = []
    try:
        for row in measure(options):
            rows.append(row)
            print(_shown(row), flush=True)
            if options.out:
                data = {"routing": options.routing, "versions": versions(), "rows": rows}
                options.out.write_text(json.dumps(data, indent=1))
    except EngineError as error:
        parser.exit(1, f"Error: {error}\n")


if __name__ == "__main__":
    main()
