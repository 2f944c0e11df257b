"""`llm mlx-streaming cache list | info | clear | verify`: the snapshots that conversations continue from."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from mlx_streaming.errors import EngineError

from .. import registry


def register(group: click.Group) -> None:
    group.add_command(cache)


@click.group()
def cache() -> None:
    """Snapshots that let a conversation go on at once

    They hold the model's state, so that earlier turns need not be read again.
    """


@cache.command(name="list")
@click.option("limit", "-n", "--limit", type=click.IntRange(min=1), help="Show at most this many")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def list_(limit: int | None, json_: bool) -> None:
    """List snapshots, the one used last first

    Kinds: head (system prompt and tools), prompt (end of a prompt), turn (end of an answer), partial
    (interrupted). "rows" marks one that only supplies rows to those that extend it.
    """
    from mlx_streaming.state.admin import listing

    names = _names()
    rows = [_describe(row, names) for row in listing(directory())][:limit]
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo("No snapshots.", err=True)
        return
    click.echo(f"{'ID':<10}{'CREATED':<18}{'KIND':<9}{'TOKENS':>8}{'NEW':>8}{'SIZE':>10}  MODEL")
    for row in rows:
        kind = row["kind"] if row["state"] else "rows"
        click.echo(
            f"{row['id'][:8]:<10}{row['created'][:16].replace('T', ' '):<18}{kind:<9}{row['tokens']:>8}"
            f"{row['own_tokens']:>8}{_size(row['bytes']):>10}  {row['model']}"
        )


@cache.command()
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def info(json_: bool) -> None:
    """Show where the snapshots lie and how much there is"""
    from mlx_streaming.state.admin import summary

    found = asdict(summary(directory())) | {"quota_bytes": _config().cache_quota}
    if json_:
        click.echo(json.dumps(found, indent=2))
        return
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(found["kinds"].items()))
    click.echo(f"directory      {found['directory']}")
    click.echo(f"size           {_size(found['nbytes'])} of {_size(found['quota_bytes'])}")
    click.echo(f"snapshots      {found['entries']}" + (f" ({kinds})" if kinds else ""))
    click.echo(f"conversations  {found['conversations']}")
    click.echo(f"tokens         {found['tokens']}")
    names = _names()
    for model, size in sorted((names.get(m, m), size) for m, size in found["models"].items()):
        click.echo(f"model          {model}: {_size(size)}")


@cache.command()
@click.argument("ids", nargs=-1)
@click.option("model", "-m", "--model", help="Only those of this checkpoint")
@click.option("days", "--older-than", type=click.FloatRange(min=0), help="Only those older than DAYS")
@click.option("yes", "-y", "--yes", is_flag=True, help="Do not ask")
def clear(ids: tuple[str, ...], model: str | None, days: float | None, yes: bool) -> None:
    """Remove snapshots: all, or those whose IDS are given

    What extends a removed snapshot goes with it. Conversations stay in llm's log; their next turn reads them
    again from the start.
    """
    from mlx_streaming.state import admin

    place = directory()
    label = _label(model, place) if model else None
    if not (ids or model or days is not None or yes):
        click.confirm(f"Remove all snapshots in {place}?", abort=True)
    older = None if days is None else days * 86_400
    count, size = admin.clear(place, ids=ids, label=label, older_s=older)
    click.echo(f"Removed {count} snapshots, {_size(size)}")


@cache.command()
@click.option("repair", "--repair", is_flag=True, help="Remove what is wrong")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
@click.pass_context
def verify(context: click.Context, repair: bool, json_: bool) -> None:
    """Read every snapshot and check it

    Exits with status 1 when something is wrong. Whatever this finds is ignored and removed anyway when a
    conversation meets it.
    """
    from mlx_streaming.state import admin

    report = admin.verify(directory(), repair=repair)
    if json_:
        click.echo(json.dumps(asdict(report), indent=2))
    else:
        click.echo(f"Checked {report.entries} snapshots, {report.files} files, {_size(report.nbytes)}")
        for problem in report.problems:
            click.echo(f"{problem.entry[:8]}  {problem.reason}" + ("  removed" if repair else ""))
        if report.garbage:
            click.echo(f"{len(report.garbage)} unfinished files" + (" removed" if repair else " (harmless)"))
    if report.problems and not repair:
        context.exit(1)


def directory() -> Path:
    """Where snapshots are kept on this machine.

    Raises:
        EngineError: something else lies there.
    """
    configured = _config().cache_dir
    place = Path(configured) if configured else registry.home() / "cache"
    if place.exists() and not place.is_dir():
        raise EngineError(
            f"{place} is not a directory, so no snapshots are kept on disk; set LLM_MLX_STREAMING_CACHE_DIR"
            " to a directory that can be written."
        )
    return place


def _config() -> Any:
    from mlx_streaming.config import EngineConfig

    return EngineConfig.from_env()


def _label(model: str, place: Path) -> str:
    """What the snapshots of `model` carry; those of a removed checkpoint carry its directory's name.

    Raises:
        CheckpointError: neither a checkpoint nor a snapshot is called that.
    """
    from mlx_streaming.state.admin import listing

    found = registry.read().find(model)
    if found:
        return found.path.name
    return model if any(r.label == model for r in listing(place)) else registry.resolve(model).path.name


def _names() -> dict[str, str]:
    """Directory name -> registered name: snapshots carry the former, people know the latter."""
    return {c.path.name: c.name for c in (registry.demo(), *registry.read().checkpoints)}


def _describe(row: Any, names: dict[str, str]) -> dict[str, Any]:
    entry = row.entry
    return {
        "id": entry.id,
        "parent": entry.parent or None,
        "kind": entry.kind,
        "tokens": entry.end,
        "own_tokens": entry.end - entry.start,
        "bytes": row.nbytes,
        "state": bool(row.state_file),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(row.created)),
        "model": names.get(row.label, row.label),
        "files": row.files,
    }


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} GB"
