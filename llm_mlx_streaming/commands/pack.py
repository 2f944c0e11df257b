"""`llm mlx-streaming pack | verify`: experts in one file per layer, and the check that they are sound."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from .. import registry


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
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def pack(checkpoint: str, out: Path, json_: bool, **recipe: int | None) -> None:
    """Copy the experts of CHECKPOINT into the new directory OUT, one read per expert

    CHECKPOINT is a registered name or a directory. Experts are then read in one piece instead of nine.
    An interrupted run is continued by the same command. Use the result with:

    \b
        llm mlx-streaming add PATH --set packed=OUT
    """
    from mlx_streaming.checkpoint.pack import pack as run
    from mlx_streaming.checkpoint.recipe import Recipe

    path = registry.resolve(checkpoint).path
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
    if json_:
        click.echo(json.dumps(facts, indent=2))
        return
    kept = f", {done.kept} of them already there" if done.kept else ""
    click.echo(
        f"{done.directory}: {done.layers} layers{kept}, {done.nbytes / 1e9:.2f} GB"
        f" (in the checkpoint {done.source_bytes / 1e9:.2f} GB)"
    )
    click.echo(f"Check it with: llm mlx-streaming verify {done.directory}")


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def verify(path: Path, json_: bool) -> None:
    """Read all packed experts in PATH again and compare their checksums

    Exits with status 1 if anything differs, naming layer and expert.
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
            f"{path}: {found.records} experts in {found.layers} layers are sound"
            f" ({found.nbytes / 1e9:.2f} GB)"
        )


@contextmanager
def _bar(label: str, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, fed with (bytes done, bytes in all); shown only in a terminal."""
    if quiet:
        yield None
        return
    with click.progressbar(length=1, label=label, file=click.get_text_stream("stderr")) as bar:

        def report(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield report
