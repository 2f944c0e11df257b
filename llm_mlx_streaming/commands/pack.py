"""`llm mlx-streaming pack | verify`: experts in one file per layer, and the check that they are sound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import registry

if TYPE_CHECKING:
    from mlx_streaming.checkpoint.drop import Drop


def register(group: click.Group) -> None:
    for command in (pack, verify):
        group.add_command(command)


@click.command()
@click.argument("checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--bits", type=int, help="Bits of all experts (default: keep the checkpoint's, byte for byte)")
@click.option("--gate-bits", type=int, help="Bits of the gate projection")
@click.option("--up-bits", type=int, help="Bits of the up projection")
@click.option("--down-bits", type=int, help="Bits of the down projection")
@click.option("--edge-layers", type=int, default=0, help="So many first and last layers are treated apart")
@click.option("--edge-bits", type=int, help="Bits of those layers (default: keep the checkpoint's)")
@click.option("--group-size", type=int, help="Values that share one scale: 32, 64 or 128")
@click.option("--drop", "drop_", is_flag=True, help="Then free the disk space of the experts in CHECKPOINT")
@click.option("yes", "-y", "--yes", is_flag=True, help="With --drop: do not ask")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def pack(checkpoint: str, out: Path, drop_: bool, yes: bool, json_: bool, **recipe: int | None) -> None:
    """Copy a checkpoint's experts into packed files

    The experts of CHECKPOINT, a registered name or a directory, are written to the new directory OUT. There
    each expert is read in one piece instead of nine.
    An interrupted run is continued by the same command. Use the result with:

    \b
        llm mlx-streaming add PATH --set packed=OUT

    With --drop the pack is verified, set for CHECKPOINT if that is registered, and then the space that the
    experts take in its own files is freed: files keep their sizes, but hold zeros there.
    """
    from mlx_streaming.checkpoint.pack import pack as run
    from mlx_streaming.checkpoint.recipe import Recipe

    path = registry.resolve(checkpoint).path
    if drop_:
        confirm_drop(path, out, yes, changed=any(recipe.values()))
    start = time.monotonic()
    with _bar("Packing", quiet=json_) as report:
        done = run(path, out, Recipe(**recipe), report)
    facts = {
        "path": str(done.directory),
        "layers": done.layers,
        "layers_kept": done.kept,
        "bytes": done.nbytes,
        "source_bytes": done.source_bytes,
        "seconds": round(time.monotonic() - start, 3),
    }
    if drop_:
        with _bar("Verifying and dropping", quiet=json_) as report:
            dropped = drop(path, done.directory, report or (lambda now, total: None))
        facts |= {"freed": dropped.freed, "verified": dropped.verified}
    if json_:
        click.echo(json.dumps(facts, indent=2))
        return
    kept = f", {done.kept} of them already there" if done.kept else ""
    click.echo(
        f"{done.directory}: {done.layers} layers{kept}, {_size(done.nbytes)}"
        f" (in the checkpoint {_size(done.source_bytes)})"
    )
    if drop_:
        click.echo(dropped_line(dropped, path))
    else:
        click.echo(f"Check it with: llm mlx-streaming verify {done.directory}")


def confirm_drop(path: Path, out: Path, yes: bool, changed: bool = False) -> None:
    """Say what dropping the experts of the checkpoint in `path` means, and ask unless `yes`.

    `changed` says that the pack will have other bits than the checkpoint.

    Raises:
        CheckpointError: they cannot be dropped.
    """
    from mlx_streaming.checkpoint.drop import droppable

    shards = droppable(path)
    if yes:
        return
    nbytes = sum(count for places in shards.values() for _, count in places)
    where = ", ".join(sorted({str(file.resolve().parent) for file in shards}))
    linked = ", which the checkpoint links to (the Hugging Face cache)" * any(f.is_symlink() for f in shards)
    click.echo(
        f"{_size(nbytes)} of experts go from {len(shards)} files in {where}{linked}; after that they exist"
        f" only in {out}{', at other bits' * changed}. Other programs that use these files would compute with"
        " zeros.",
        err=True,
    )
    click.confirm("Drop them once the pack is verified?", abort=True, err=True)


def drop(path: Path, packed: Path, on_progress: Callable[[int, int], None]) -> Drop:
    """Drop the experts of the checkpoint in `path`; just before, its pack is set where it is registered."""
    from mlx_streaming.checkpoint.drop import drop as run

    def use_packed() -> None:
        for known in registry.read().checkpoints:
            if known.path.resolve() == path.resolve():
                registry.change_settings(known.name, {"packed": str(packed.resolve())})

    return run(path, packed, on_progress, use_packed)


def dropped_line(done: Drop, path: Path) -> str:
    return (
        f"{path}: {done.verified} packed experts are sound; {_size(done.freed)} freed,"
        f" its {done.shards} shards take {_size(done.after)}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**8 else f"{count / 1e6:.2f} MB"


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def verify(path: Path, json_: bool) -> None:
    """Compare packed experts with their checksums

    Reads all experts in PATH. Exits with status 1 if anything differs, naming layer and expert.
    """
    from mlx_streaming.checkpoint.packed import verify as run

    with _bar("Verifying", quiet=json_) as report:
        found = run(path, report)
    if json_:
        click.echo(json.dumps(vars(found) | {"ok": not found.problems}, indent=2))
    else:
        for problem in found.problems:
            click.echo(problem)
    if found.problems:
        count = len(found.problems)
        raise click.ClickException(
            f"{count} {'problem' if count == 1 else 'problems'} in {path}; pack the checkpoint again."
        )
    if not json_:
        click.echo(
            f"{path}: {found.records} experts in {found.layers} layers are sound ({_size(found.nbytes)})"
        )


@contextmanager
def _bar(label: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, fed with (bytes done, bytes in all); shown only in a terminal."""
    stream = click.get_text_stream("stderr")
    if quiet or not stream.isatty():
        yield None
        return
    with click.progressbar(length=1, label=label, file=stream) as bar:

        def report(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield report
