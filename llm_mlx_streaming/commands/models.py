"""`llm mlx-streaming models | add | remove | default`: the registered checkpoints."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .. import registry


def register(group: click.Group) -> None:
    for command in (models, add, remove, default):
        group.add_command(command)


@click.command()
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def models(json_: bool) -> None:
    """List the checkpoints that can be used (* the default)

    Every name works as a model: llm -m NAME 'prompt'
    """
    known = registry.read()
    if known.problem:
        registry.tell(known.problem)
    default_name = known.default or registry.DEMO
    rows = [_describe(c, default_name) for c in (*known.checkpoints, registry.demo())]
    if json_:
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        click.echo(_line(row))
    if not known.checkpoints and not known.problem:
        click.echo(
            f"Only the embedded demo so far; get a real model with: {registry.GET_REAL_MODEL}", err=True
        )


@click.command()
@click.argument("path", required=False)
@click.option("--from-cache", is_flag=True, help="Offer the models that lie in the Hugging Face cache")
@click.option("yes", "-y", "--yes", is_flag=True, help="With --from-cache: register them all")
@click.option("name", "--name", help="Name to register it under (default: the directory's name)")
@click.option("aliases", "--alias", multiple=True, help="Another name for it; may be repeated")
@click.option("make_default", "--default", is_flag=True, help="Answer qwen3-next-stream from it")
@click.option(
    "settings",
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="Engine setting kept with it, such as slots=64 or memory=24GB; may be repeated",
)
def add(
    path: str | None,
    from_cache: bool,
    yes: bool,
    name: str | None,
    aliases: tuple[str, ...],
    make_default: bool,
    settings: tuple[str, ...],
) -> None:
    """Register the checkpoint in directory PATH

    PATH is a directory in MLX format, or the id (org/name) of a repository that is already in the Hugging
    Face cache of this machine. Its files are checked and stay where they are. Adding it again keeps the
    settings and aliases it has; remove it first to drop them.
    """
    if from_cache:
        return _offer_cached(yes)
    if path is None:
        raise click.UsageError("Give a PATH, or --from-cache to see what the Hugging Face cache holds.")
    kept_settings = _parse_settings(settings)
    directory, hub, revision = _locate(path)
    _check(directory)
    checkpoint = registry.Checkpoint(
        name=name or (hub or directory.name).split("/")[-1],
        path=directory,
        revision=revision,
        settings=kept_settings,
        hub=hub,
        aliases=aliases,
    )
    checkpoint = _with_earlier(checkpoint)
    known = registry.add(checkpoint, make_default)
    click.echo(f"Registered {checkpoint.name} ({_size(_bytes_on_disk(directory))} in {directory})")
    if known.default == checkpoint.name:
        click.echo(f"It is the default: llm -m {registry.DEFAULT_MODEL} 'prompt'")
    else:
        click.echo(f"Use it: llm -m {checkpoint.name} 'prompt'")


@click.command()
@click.argument("name")
@click.option("--delete-files", is_flag=True, help="Also delete the checkpoint's directory (asks first)")
@click.option("yes", "-y", "--yes", is_flag=True, help="Delete without asking")
def remove(name: str, delete_files: bool, yes: bool) -> None:
    """Forget the checkpoint NAME

    Its files stay unless --delete-files is given.
    """
    found = registry.read().find(name)
    if found and delete_files and not yes:
        size = _size(_bytes_on_disk(found.path))
        click.confirm(f"Delete {found.path} ({size}) for good?", abort=True)
    found = registry.remove(name)
    if delete_files:
        _delete(found.path)
        click.echo(f"Removed {found.name} and deleted {found.path}")
    else:
        click.echo(f"Removed {found.name}; its files stay in {found.path}")


@click.command()
@click.argument("name")
def default(name: str) -> None:
    """Answer qwen3-next-stream from the checkpoint NAME

    NAME is a registered name or alias, or "demo" for the embedded checkpoint.
    """
    found = registry.set_default(name)
    click.echo(f"{registry.DEFAULT_MODEL} now answers from {found.name}")


def _delete(path: Path) -> None:
    """Delete the checkpoint in `path`, from the hub cache if it lies there; one that is gone is no error."""
    from mlx_streaming.checkpoint.hub_cache import delete_snapshot

    try:
        if path.exists() and delete_snapshot(path) is None:
            shutil.rmtree(path)
    except OSError as error:
        raise click.ClickException(
            f"It is forgotten, but {error.filename or path} cannot be deleted ({error.strerror}); "
            f"delete {path} yourself."
        ) from error


def _offer_cached(yes: bool) -> None:
    """Ask for each model of the hub cache that is not registered whether it should be."""
    from mlx_streaming.checkpoint.hub_cache import cached_checkpoints

    known = registry.read().checkpoints
    taken = {c.path for c in known}
    offered = [c for c in cached_checkpoints() if c.path not in taken]
    if not offered:
        click.echo("The Hugging Face cache holds no model with experts that is not registered already.")
    for cached in offered:
        label = f"{cached.repo} ({_size(cached.size)})"
        if cached.problem:
            click.echo(f"{label}: {cached.problem} Get it with: {registry.GET_REAL_MODEL} {cached.repo}")
        elif yes or click.confirm(f"Register {label}?"):
            click.get_current_context().invoke(add, path=cached.repo)


def _locate(path: str) -> tuple[Path, str | None, str | None]:
    """(directory, hub id, revision) for a directory or the id of a repository in the local hub cache."""
    directory = Path(path).expanduser()
    if directory.is_dir():
        return directory.resolve(), None, None
    if path.count("/") == 1 and not path.startswith((".", "~", "/")):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            found = Path(snapshot_download(path, local_files_only=True))
            return found, path, found.name[:12]
        except (HFValidationError, LocalEntryNotFoundError):
            raise click.ClickException(
                f"{path} is neither a directory nor in the Hugging Face cache; get it with: "
                f"{registry.GET_REAL_MODEL} {path}"
            ) from None
    raise click.ClickException(f"{directory} is not a directory; give the directory that holds config.json.")


def _with_earlier(checkpoint: registry.Checkpoint) -> registry.Checkpoint:
    """`checkpoint` with the aliases and settings it is registered with already; new settings win."""
    old = next((c for c in registry.read().checkpoints if c.name == checkpoint.name), None)
    if old is None or old.path != checkpoint.path:
        return checkpoint
    aliases = tuple(dict.fromkeys((*old.aliases, *checkpoint.aliases)))
    return replace(checkpoint, settings=old.settings | checkpoint.settings, aliases=aliases)


def _check(directory: Path) -> None:
    from mlx_streaming.checkpoint.spec import ModelSpec

    ModelSpec.read(directory)


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, Any]:
    """EngineConfig fields from KEY=VALUE strings, checked and converted; a pack's path is made absolute."""
    from mlx_streaming.checkpoint.packed import Manifest
    from mlx_streaming.config import EngineConfig

    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
        values[key.strip()] = value.strip()
    if values.get("packed"):
        values["packed"] = str(Path(values["packed"]).expanduser().resolve())
        Manifest.read(values["packed"])
    config = EngineConfig().updated(values)
    return {key: getattr(config, key) for key in values}


def _describe(checkpoint: registry.Checkpoint, default_name: str) -> dict[str, Any]:
    row = {
        "name": checkpoint.name,
        "default": checkpoint.name == default_name,
        "aliases": list(checkpoint.aliases),
        "path": str(checkpoint.path),
        "hub": checkpoint.hub,
        "revision": checkpoint.revision,
        "settings": checkpoint.settings,
        "bytes": None,
        "trunk_bytes": None,
        "expert_bytes": None,
        "layers": None,
        "experts": None,
        "one_expert_bytes": None,
        "top_k": None,
        "mtp": None,
        "dropped_to": None,
        "problem": None,
    }
    try:
        row |= _measure(checkpoint.path)
    except Exception as error:  # a listing names what is broken instead of ending
        row["problem"] = str(error)
    return row


def _measure(path: Path) -> dict[str, Any]:
    from mlx_streaming.checkpoint.drop import dropped_to
    from mlx_streaming.checkpoint.index import TensorIndex
    from mlx_streaming.checkpoint.spec import ModelSpec

    index = TensorIndex.open(path)
    spec = ModelSpec.read(path, index)
    layers = list(spec.experts.values())
    return {
        "bytes": _bytes_on_disk(path),
        "trunk_bytes": spec.trunk_bytes,
        "expert_bytes": spec.expert_bytes,
        "layers": spec.num_layers,
        "experts": layers[0].num_experts,
        "one_expert_bytes": layers[0].expert_bytes,
        "top_k": layers[0].top_k,
        "mtp": any(name.startswith("mtp.") for name in index.tensors) or any(path.glob("mtp*.safetensors")),
        "dropped_to": dropped_to(spec, index),
    }


def _line(row: dict[str, Any]) -> str:
    mark = "*" if row["default"] else " "
    if row["problem"]:
        return f"{mark} {row['name']}: {row['problem']}"
    facts = [
        _size(row["bytes"]),
        f"trunk {_size(row['trunk_bytes'])}",
        f"{row['layers']} layers",
        f"{row['experts']} experts of {_size(row['one_expert_bytes'])}, {row['top_k']} a token",
        f"slots {row['settings'].get('slots', 'planned')}",
        f"MTP {'yes' if row['mtp'] else 'no'}",
    ]
    if row["dropped_to"]:
        facts.append(f"experts dropped from its shards, packed in {row['dropped_to']}")
    aliases = f" ({', '.join(row['aliases'])})" if row["aliases"] else ""
    return f"{mark} {row['name']}{aliases}: {'; '.join(facts)}\n    {row['path']}"


def _bytes_on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _size(count: int) -> str:
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"
