"""`llm mlx-streaming plan`: where the memory would go, without loading anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .. import registry

if TYPE_CHECKING:
    from mlx_streaming.experts.plan import Plan


def register(group: click.Group) -> None:
    group.add_command(plan)


@click.command()
@click.option("-m", "--model", help="Registered name or directory (default: the default checkpoint)")
@click.option("--memory", help="Memory the process may use, such as 24GB (default: planned)")
@click.option("--context", type=int, help="Longest conversation in tokens to make room for")
@click.option("--slots", type=int, help="Expert slots of every layer (default: what fits)")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def plan(model: str | None, memory: str | None, context: int | None, slots: int | None, json_: bool) -> None:
    """Show how the memory would be divided

    Among weights, conversation, workspace and expert slots. Nothing is loaded. What cannot
    fit is refused, with the memory or the context that would work. More --memory than this machine
    has plans for a larger one.
    """
    from mlx_streaming.checkpoint.index import TensorIndex
    from mlx_streaming.checkpoint.spec import ModelSpec
    from mlx_streaming.config import EngineConfig
    from mlx_streaming.experts.plan import plan_checkpoint

    checkpoint = registry.resolve(model)
    asked = {"memory": memory, "context": context, "slots": slots}
    config = EngineConfig.from_env(checkpoint.settings, **asked)
    index = TensorIndex.open(checkpoint.path)
    made = plan_checkpoint(ModelSpec.read(checkpoint.path, index, checkpoint.name), config)
    if json_:
        click.echo(json.dumps({"checkpoint": checkpoint.name} | made.to_json(), indent=2))
        return
    for line in _table(checkpoint.name, made):
        click.echo(line)


def _table(name: str, made: Plan) -> Iterator[str]:
    rows = (
        ("weights outside the experts", made.trunk_bytes),
        (f"keys and values of {made.context} tokens", made.kv_bytes),
        ("recurrent state", made.recurrent_bytes),
        ("snapshots in memory, at most", made.snapshot_bytes),
        (f"prompt workspace, {made.chunk} tokens at a time", made.workspace_bytes),
        ("speculation head", made.mtp_bytes),
        ("expert slots", made.pool_bytes),
        ("buffers kept for reuse", made.cache_bytes),
        ("Python and libraries", made.runtime_bytes),
        ("predicted peak", made.peak_bytes),
        ("left for page cache and other programs", made.page_cache_bytes),
    )
    if made.memory > made.machine_memory:
        yield f"{name}: {_size(made.memory)} planned; this machine has {_size(made.machine_memory)}"
    else:
        yield f"{name}: {_size(made.memory)} of {_size(made.machine_memory)} planned"
    for label, size in rows:
        if size:
            yield f"  {label:<42} {_size(size):>9}"
    yield f"  {'experts in memory':<42} {_layers(made)}"


def _layers(made: Plan) -> str:
    streamed = [made.slots[n] for n in made.slots if n not in made.resident]
    if not streamed:
        return f"all, in {len(made.slots)} layers: nothing is read after loading"
    low, high = min(streamed), max(streamed)
    slots = f"{low}" if low == high else f"{low} to {high}"
    experts = max(made.experts.values())
    shown = f"{slots} of {experts} in {len(streamed)} layers"
    return f"{shown}, all in {len(made.resident)} layers" if made.resident else shown


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.1f} MB"
