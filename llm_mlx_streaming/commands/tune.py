"""`llm mlx-streaming tune`: find the settings that are fastest here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from .. import registry


def register(group: click.Group) -> None:
    group.add_command(tune)


@click.command()
@click.option("-m", "--model", help="Registered name or directory (default: the default checkpoint)")
@click.option("--slots", type=click.IntRange(1), help="Expert slots of every layer to tune for")
@click.option("--memory", help="Memory the process may use, such as 24GB")
@click.option(
    "--packed",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Try these packed experts too",
)
@click.option("--seconds", type=click.IntRange(1), default=60, show_default=True)
@click.option("--dry-run", is_flag=True, help="Measure, but do not change the settings")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def tune(
    model: str | None,
    slots: int | None,
    memory: str | None,
    packed: str | None,
    seconds: int,
    dry_run: bool,
    json_: bool,
) -> None:
    """Find and keep the fastest settings

    Measures for about a minute and keeps what wins by more than the noise.

    The settings are written to the registry; see them with `llm mlx-streaming models`.
    """
    from mlx_streaming.config import EngineConfig
    from mlx_streaming.tune import tune as run

    checkpoint = registry.resolve(model)
    config = EngineConfig.from_env(checkpoint.settings, slots=slots, memory=memory)
    trials, chosen = run(
        checkpoint.path,
        config,
        packed=Path(packed) if packed else None,
        seconds=seconds,
        on_step=lambda what: None if json_ else click.echo(f"measuring: {what}", err=True),
    )
    kept = chosen if not dry_run and registry.change_settings(checkpoint.name, chosen) else {}
    if json_:
        rows = [asdict(t) for t in trials]
        click.echo(json.dumps({"trials": rows, "chosen": chosen, "written": bool(kept)}, indent=2))
        return
    click.echo("setting                      decode tok/s  spread  hit rate  peak MB")
    for trial in trials:
        hit = "-" if trial.hit_rate is None else f"{trial.hit_rate:.3f}"
        click.echo(
            f"{trial.setting:<28} {trial.decode_tps:12.1f}  {100 * trial.spread:5.0f}%  {hit:>8}"
            f"  {trial.peak_bytes / 1e6:7.1f}{'  kept' if trial.kept else ''}"
        )
    if not chosen:
        click.echo("Nothing was faster by more than the noise; the settings stay as they are.")
    elif kept:
        click.echo(f"Wrote to the settings of {checkpoint.name}: {chosen}")
    else:
        click.echo(
            f"Not written: {chosen} (register the checkpoint with `llm mlx-streaming add` to keep them)"
        )
