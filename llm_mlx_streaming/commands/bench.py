"""`llm mlx-streaming bench`: the numbers of the README, on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from .. import registry
from .plots import plotter


def register(group: click.Group) -> None:
    group.add_command(bench)


@click.command()
@click.option("-m", "--model", help="Registered name or directory (default: the default checkpoint)")
@click.option("--slots", type=click.IntRange(1), help="Expert slots of every layer (default: what fits)")
@click.option("--memory", help="Memory the process may use, such as 24GB")
@click.option("--packed", type=click.Path(exists=True, file_okay=False), help="Packed experts to read from")
@click.option(
    "--prompt-tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens per prompt"
)
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens per answer")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs, of which the median"
)
@click.option("--baseline", is_flag=True, help="Run stock mlx-lm in between, everything in memory")
@click.option("--streamed", is_flag=True, help="Stream also layers whose experts all fit")
@click.option("--lookahead", type=click.IntRange(0, 3), help="Layers to look ahead")
@click.option("--policy", help="Eviction policy: lru, lfu, lfuda, clock, lrfu or echo")
@click.option("--readers", type=click.IntRange(1), help="Reads in flight")
@click.option("--routing", default="model", show_default=True, metavar="CHOICE", help="Who chooses experts")
@click.option("--record", type=click.Path(dir_okay=False), help="Save the routers' choices to this file")
@click.option("--simulate", type=click.Path(exists=True, dir_okay=False), help="Compare policies on a trace")
@click.option("--sweep", is_flag=True, help="Walk slot counts; prints a row for each")
@click.option("--prefill", "prefill_sizes", help="Bytes read for prompts of these lengths, such as 256,1024")
@click.option("--reads", is_flag=True, help="Expert reads against plain parallel preadv")
@click.option("--conversation", is_flag=True, help="Ten turns, each in a new process, with and without reuse")
@click.option("--restore", type=click.IntRange(1), help="Restore a synthetic snapshot of so many tokens")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write the sweep as a chart (PNG)")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def bench(
    model: str | None,
    sweep: bool,
    simulate: str | None,
    prefill_sizes: str | None,
    reads: bool,
    conversation: bool,
    restore: int | None,
    plot: str | None,
    json_: bool,
    **asked: Any,
) -> None:
    """Measure speed, hit rate and memory

    With --baseline stock mlx-lm runs in between on the same checkpoint.

    CHOICE replaces what the routers choose: model, uniform, zipf:SKEW,STICKINESS or trace:FILE.
    """
    if simulate:
        _simulate(Path(simulate), asked["slots"], json_)
        return
    if restore:
        from mlx_streaming.state.bench import bench_restore

        _show(asdict(bench_restore(restore)), json_)
        return
    from mlx_streaming.config import EngineConfig

    checkpoint = registry.resolve(model)
    if conversation:
        _conversation(checkpoint.path, json_)
        return
    settings = {k: asked[k] for k in ("slots", "memory", "packed", "lookahead", "policy", "readers")}
    config = EngineConfig.from_env(checkpoint.settings, **settings)
    if prefill_sizes:
        _prefill(checkpoint.path, config, prefill_sizes, json_)
    elif reads:
        from mlx_streaming.bench_reads import bench_reads

        _show(bench_reads(checkpoint.path, config), json_)
    elif sweep:
        _sweep(checkpoint.path, config, asked, plot, json_)
    else:
        _one(checkpoint.path, config, asked, json_)


def _conversation(path: Path, json_: bool) -> None:
    from ..conversation_bench import bench_conversation, table

    with _Bar(json_) as bar:
        found = bench_conversation(path, bar.step)
    for line in [json.dumps(found, indent=2)] if json_ else table(found):
        click.echo(line)


def _options(asked: dict[str, Any]):
    from mlx_streaming.bench import Options

    return Options(
        prompt_tokens=asked["prompt_tokens"],
        tokens=asked["tokens"],
        repeats=asked["repeats"],
        baseline=asked["baseline"],
        routing=asked["routing"],
        record=Path(asked["record"]) if asked["record"] else None,
        force_streamed=asked["streamed"],
    )


def _one(path: Path, config, asked: dict[str, Any], json_: bool) -> None:
    from mlx_streaming.bench import bench as run

    with _Bar(json_) as bar:
        found = run(path, config, _options(asked), bar.step)
    if json_:
        click.echo(json.dumps(found, indent=2))
        return
    for label, value in _rows(found):
        click.echo(f"{label:<34}{value}")


def _rows(found: dict[str, Any]):
    slots = "-".join(str(n) for n in sorted({found["slots"][0], found["slots"][-1]}))
    yield "slots per layer", f"{slots} ({found['resident_layers']} layers resident)"
    for name, label in (("prefill", "prefill"), ("decode", "decode")):
        line = f"{found[f'{name}_tps']:.1f} tok/s (cold {found[f'cold_{name}_tps']:.1f})"
        if f"{name}_ratio" in found:
            line += f", stock {found[f'baseline_{name}_tps']:.1f}, ratio {found[f'{name}_ratio']:.3f}"
        yield label, line
    if "tokens_compared" in found:
        same = f"{found['tokens_identical']} of {found['tokens_compared']} tokens"
        logits = "identical" if found["logits_identical"] else "different"
        yield "same as stock", f"{same}, log-probabilities {logits}"
    if found["expert_hit_rate"] is not None:
        yield "expert hit rate", f"{found['expert_hit_rate']:.3f}"
        rate = f" at {found['read_gbps']:.2f} GB/s while waiting" if found["read_gbps"] else ""
        yield "bytes read per token", f"{found['bytes_per_token'] / 1e6:.3f} MB{rate}"
        yield "waiting for the router", f"{found['host_sync_ms_per_token']:.2f} ms per token"
        yield "waiting for reads", f"{found['read_wait_ms_per_token']:.2f} ms per token"
    peak, planned = found["peak_memory_bytes"] / 1e6, found["planned_memory_bytes"] / 1e6
    yield "peak memory of MLX", f"{peak:.0f} MB (planned for the whole context: {planned:.0f} MB)"
    yield "versions", ", ".join(f"{k} {v}" for k, v in found["versions"].items() if k != "system")


def _sweep(path: Path, config, asked: dict[str, Any], plot: str | None, json_: bool) -> None:
    from mlx_streaming.bench import sweep
    from mlx_streaming.checkpoint.spec import ModelSpec

    if plot:
        plotter(Path(plot))
    spec = ModelSpec.read(path)
    experts = max(e.num_experts for e in spec.experts.values())
    top_k = max(e.top_k for e in spec.experts.values())
    counts = sorted({top_k, *(max(top_k, experts * part // 8) for part in (1, 2, 4, 6, 8))})
    with _Bar(json_) as bar:
        rows = sweep(path, config, _options(asked), counts, bar.step)
    if plot:
        _chart(rows, Path(plot))
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("slots  hit rate  decode tok/s  prefill tok/s  memory MB" + ("  ratio" * asked["baseline"]))
    for row in rows:
        hit = "   all" if row["expert_hit_rate"] is None else f"{row['expert_hit_rate']:6.3f}"
        line = f"{max(row['slots']):5}    {hit}  {row['decode_tps']:12.1f}  {row['prefill_tps']:13.1f}"
        line += f"  {row['peak_memory_bytes'] / 1e6:9.1f}"
        click.echo(line + (f"  {row['decode_ratio']:5.3f}" if asked["baseline"] else ""))


def _chart(rows: list[dict[str, Any]], file: Path) -> None:
    pyplot = plotter(file)
    figure, speed = pyplot.subplots(figsize=(7, 4))
    slots = [max(r["slots"]) for r in rows]
    speed.plot(slots, [r["decode_tps"] for r in rows], "o-", label="decode tok/s")
    speed.set_xlabel("slots per layer")
    speed.set_ylabel("tok/s")
    rate = speed.twinx()
    rate.plot(slots, [1.0 if r["expert_hit_rate"] is None else r["expert_hit_rate"] for r in rows], "s--k")
    rate.set_ylabel("hit rate (dashed)")
    rate.set_ylim(0, 1.02)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    click.echo(f"Wrote {file}", err=True)


def _prefill(path: Path, config, sizes: str, json_: bool) -> None:
    from mlx_streaming.bench_prefill import bench_prefill

    try:
        lengths = [int(part) for part in sizes.split(",")]
    except ValueError:
        raise click.ClickException("--prefill takes prompt lengths such as 256,1024,4096.") from None
    rows = bench_prefill(path, config, lengths)
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo("prompt tokens  expert MB read  times all experts  waves  then decode: hit rate  reads")
    for row in rows:
        click.echo(
            f"{row['prompt_tokens']:13}  {row['bytes_read'] / 1e6:14.1f}  {row['times_all']:17.2f}"
            f"  {row['waves']:5}  {row['decode_hit_rate']:21.3f}  {row['decode_reads']:5}"
        )


def _simulate(trace: Path, slots: int | None, json_: bool) -> None:
    from mlx_streaming.experts.routing import load_trace
    from mlx_streaming.experts.simulate import compare

    traces = load_trace(trace)
    experts = 1 + max(int(c.max()) for c in traces.values())
    counts = [slots] if slots else sorted({max(1, experts * part // 8) for part in (1, 2, 4, 6)})
    rows = [{"slots": count} | compare(traces, count) for count in counts]
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    names = [n for n in rows[0] if n != "slots"]
    click.echo("slots  " + "  ".join(f"{n:>6}" for n in names))
    for row in rows:
        click.echo(f"{row['slots']:5}  " + "  ".join(f"{row[n]:6.3f}" for n in names))


def _show(found: dict[str, Any], json_: bool) -> None:
    if json_:
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        click.echo(f"{name.replace('_', ' '):<34}{shown}")


class _Bar:
    """A progress bar on a terminal's stderr; silent with --json and in pipes."""

    def __init__(self, json_: bool):
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=json_ or not console.is_terminal)
        self._task = self._progress.add_task("bench", total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)
