"""`llm mlx-streaming download`: from a name on the hub to a registered model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import registry

if TYPE_CHECKING:
    from mlx_streaming.checkpoint.hub import HubRepo

DEFAULT_REPO = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"
# Where the MTP heads are that conversions leave out, when the model card does not say.
ORIGINALS = {DEFAULT_REPO: "Qwen/Qwen3-Next-80B-A3B-Instruct"}


def register(group: click.Group) -> None:
    group.add_command(download)


@click.command()
@click.argument("repo", default=DEFAULT_REPO)
@click.option("--revision", default="main", show_default=True, help="Branch, tag or commit of the repository")
@click.option("name", "--name", help="Name to register it under (default: the repository's own)")
@click.option("aliases", "--alias", multiple=True, help="Another name for it; may be repeated")
@click.option("make_default", "--default", is_flag=True, help="Answer qwen3-next-stream from it")
@click.option("--mtp-from", metavar="REPO", help="Original release to take the MTP head from")
@click.option("--no-mtp", is_flag=True, help="Do without the MTP head")
@click.option("--pack", is_flag=True, help="Also copy the experts into packed files (as much disk again)")
@click.option("--drop", is_flag=True, help="With --pack: then free the disk space of the unpacked experts")
@click.option("yes", "-y", "--yes", is_flag=True, help="With --drop: do not ask")
@click.option("--restore", is_flag=True, help="Fetch again the experts that were dropped")
@click.option("--no-verify", is_flag=True, help="Trust the files that are already in the cache")
@click.option("json_", "--json", is_flag=True, help="Output as JSON, without progress")
def download(
    repo: str,
    revision: str,
    name: str | None,
    aliases: tuple[str, ...],
    make_default: bool,
    mtp_from: str | None,
    no_mtp: bool,
    pack: bool,
    drop: bool,
    yes: bool,
    restore: bool,
    no_verify: bool,
    json_: bool,
) -> None:
    """Get the model REPO from the Hugging Face hub and register it

    Without REPO: the 4-bit Qwen3-Next-80B-A3B-Instruct, 45 GB, plus 3.3 GB for its MTP head. Interrupted
    at any point, the same command goes on where it stopped. Files lie in the Hugging Face cache (HF_HOME) and
    are checked against the hub's checksums. The first model becomes the default.

    \b
        llm mlx-streaming download
        llm mlx-streaming doctor REPO     what it would need and how fast it would be, before
    """
    if drop and (restore or not pack):
        raise click.UsageError("--drop goes with --pack, and not with --restore.")
    if drop and not yes:
        what = "other programs that use this model from there would compute with zeros"
        click.echo(
            f"Its experts will stay in packed form only: the files in the cache lose them, {what}.", err=True
        )
        click.confirm("Drop them once the pack is verified?", abort=True, err=True)
    _refuse_taken(repo, (*aliases, *([name] if name else ())))
    facts = _fetch(repo, revision, no_verify, pack, restore, json_)
    base = facts.pop("base")
    known = _register(facts, repo, name, aliases, make_default, json_)
    if not json_:
        _report(facts, known.default)
    if not no_mtp:
        facts["mtp"] = _mtp(Path(facts["path"]), mtp_from, base or ORIGINALS.get(repo), json_)
    if pack:
        facts["packed"] = _pack(facts["name"], json_)
    if drop:
        facts["freed"] = _drop(Path(facts["path"]), Path(facts["packed"]), json_)
    if json_:
        click.echo(json.dumps(facts | {"default": known.default == facts["name"]}, indent=2))
    elif known.default == facts["name"]:
        click.echo(f"It is the default: llm -m {registry.DEFAULT_MODEL} 'prompt'")
    else:
        click.echo(f"Use it: llm -m {facts['name']} 'prompt'")


def _refuse_taken(repo: str, names: tuple[str, ...]) -> None:
    """Say before the download that a name belongs to another checkpoint."""
    for name in names:
        found = registry.read().find(name)
        if found and found.hub != repo:
            raise click.ClickException(f"The name {name!r} is already taken by {found.path}; choose another.")


def _fetch(
    repo: str, revision: str, no_verify: bool, pack: bool, restore: bool, quiet: bool
) -> dict[str, Any]:
    from mlx_streaming.checkpoint.download import download as run
    from mlx_streaming.checkpoint.download import require_space
    from mlx_streaming.checkpoint.hub import check_streamable

    hub = _describe(repo, revision)
    extra = 0
    if hub is not None:
        require_space(hub)
        spec = check_streamable(hub)
        extra = spec.expert_bytes if pack and not _is_packed(repo, hub.commit) else 0
        size = sum(f.size for f in hub.checkpoint_files())
        if not quiet:
            click.echo(f"{repo}: {_gb(size)}, of which {_gb(spec.trunk_bytes)} must fit in memory", err=True)
    with _bars(quiet) as on_progress:
        done = run(
            repo,
            revision,
            hub=hub,
            on_progress=on_progress,
            verify=not no_verify,
            restore=restore,
            extra_space=extra,
        )
    if done.note:
        click.echo(done.note, err=True)
    return {
        "repo": repo,
        "revision": done.commit,
        "path": str(done.path),
        "bytes": done.size,
        "fetched": done.fetched,
        "verified": done.verified,
        "base": hub.base if hub else None,
    }


def _is_packed(repo: str, commit: str) -> bool:
    known = registry.read().checkpoints
    return any(c.hub == repo and c.path.name == commit and "packed" in c.settings for c in known)


def _describe(repo: str, revision: str) -> HubRepo | None:
    """The hub's description, or None when it cannot be had: then the cache may still serve."""
    from mlx_streaming.checkpoint.hub import describe
    from mlx_streaming.errors import CheckpointError

    try:
        return describe(repo, revision)
    except CheckpointError:
        return None


def _register(
    facts: dict[str, Any],
    repo: str,
    name: str | None,
    aliases: tuple[str, ...],
    make_default: bool,
    quiet: bool,
) -> registry.Registry:
    """Register what arrived, keeping name, aliases, settings and MTP head of an earlier revision."""
    from mlx_streaming.checkpoint.spec import ModelSpec

    path = Path(facts["path"])
    ModelSpec.read(path)
    known = registry.read().checkpoints
    old = next((c for c in known if c.hub == repo and name in (None, c.name)), None)
    checkpoint = registry.Checkpoint(
        name=name or (old.name if old else _free_name(repo)),
        path=path,
        revision=facts["revision"][:12],
        settings=_inherited(old, path, quiet) if old else {},
        hub=repo,
        aliases=tuple(dict.fromkeys((*(old.aliases if old else ()), *aliases))),
    )
    facts["name"] = checkpoint.name
    return registry.add(checkpoint, make_default)


def _inherited(old: registry.Checkpoint, path: Path, quiet: bool) -> dict[str, Any]:
    """Settings of the earlier revision `old` that hold for the one in `path`; its MTP head is taken over."""
    from mlx_streaming.checkpoint.mtp_extract import PACKED_NAME

    if old.path == path:
        return old.settings
    head = old.path / PACKED_NAME
    if head.is_file() and not (path / PACKED_NAME).exists():
        shutil.copyfile(head, path / PACKED_NAME)
    if not quiet:
        click.echo(f"The earlier revision stays in {old.path}; remove it with: hf cache rm", err=True)
        if "packed" in old.settings:
            click.echo("Its packed experts do not fit the new one; pack again with --pack", err=True)
    return {key: value for key, value in old.settings.items() if key != "packed"}


def _free_name(repo: str) -> str:
    """The repository's own name, or with its owner where another checkpoint has that name."""
    short = repo.split("/")[-1]
    reserved = (registry.DEMO, registry.DEMO_MODEL, registry.DEFAULT_MODEL)
    return repo if short in reserved or registry.read().find(short) else short


def _report(facts: dict[str, Any], default: str | None) -> None:
    fetched = f"{_gb(facts['fetched'])} fetched, " if facts["fetched"] else ""
    click.echo(f"{facts['repo']} is complete: {fetched}{facts['verified']} files verified")
    click.echo(f"Registered {facts['name']} ({_gb(facts['bytes'])} in {facts['path']})")


def _mtp(path: Path, asked: str | None, guessed: str | None, quiet: bool) -> dict[str, Any] | None:
    """Fetch the MTP head beside the checkpoint; only a release that was asked for must have one."""
    from mlx_streaming.checkpoint.mtp_extract import PACKED_NAME, extract, find_head
    from mlx_streaming.checkpoint.mtp_fetch import fetch_mtp
    from mlx_streaming.errors import EngineError

    source, packed = asked or guessed, path / PACKED_NAME
    if source is None or find_head(path):
        return {"path": str(packed)} if packed.is_file() else None
    raw = path / "raw-mtp.safetensors"  # a name under which nothing looks for a head
    try:
        with _bars(quiet) as on_progress:
            found = fetch_mtp(source, raw, on_progress=on_progress)
            size = extract(raw, packed, on_progress=lambda done, total: on_progress("convert", done, total))
    except EngineError as error:
        if asked:
            raise
        click.echo(f"Without MTP head: {error}", err=True)
        return None
    raw.unlink()
    if not quiet:
        click.echo(f"MTP head of {source}: {_gb(found.size)}, quantised to {_gb(size)}")
    return {"repo": source, "path": str(packed), "tensors": len(found.names), "bytes": size}


def _pack(name: str, quiet: bool) -> str:
    from mlx_streaming.checkpoint.pack import pack

    checkpoint = registry.resolve(name)
    out = registry.home() / "packed" / name.replace("/", "--") / checkpoint.path.name
    out.parent.mkdir(parents=True, exist_ok=True)
    with _bars(quiet) as on_progress:
        done = pack(checkpoint.path, out, on_progress=lambda now, total: on_progress("pack", now, total))
    registry.add(replace(checkpoint, settings=checkpoint.settings | {"packed": str(out)}))
    if not quiet:
        click.echo(f"Packed {done.layers} layers ({_gb(done.nbytes)}) in {out}")
    return str(out)


def _drop(path: Path, packed: Path, quiet: bool) -> int:
    """Free the disk space of the experts that are packed now; bytes freed."""
    from .pack import drop, dropped_line

    with _bars(quiet) as on_progress:
        done = drop(path, packed, lambda now, total: on_progress("drop", now, total))
    if not quiet:
        click.echo(dropped_line(done, path))
    return done.freed


@contextmanager
def _bars(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """One bar per phase on stderr, with rate and time left; only in a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda phase, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def on_progress(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase.capitalize(), total=total, completed=done)
            bars.update(tasks[phase], completed=done, total=total)

        yield on_progress


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 10**8 else f"{count / 1e6:.1f} MB"
