"""The `llm mlx-streaming` command group; one module per topic, imported only when the group is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

# Each module has `register(group)`. The order is the order of nothing: click sorts its help.
MODULES = (
    "models",
    "bench",
    "cache",
    "doctor",
    "download",
    "mtp",
    "pack",
    "plan",
    "synthesize",
    "tune",
    "usage",
)


class EngineGroup(click.Group):
    """A group that loads its commands on first use and shows engine errors as one line."""

    _loaded = False

    def _load(self) -> None:
        if not self._loaded:
            self._loaded = True
            for name in MODULES:
                import_module(f"{__name__}.{name}").register(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load()
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        from mlx_streaming.errors import EngineError

        try:
            return super().invoke(ctx)
        except EngineError as error:
            raise click.ClickException(str(error)) from error


@click.group(name="mlx-streaming", cls=EngineGroup)
def group() -> None:
    "Run Mixture-of-Experts models bigger than memory: checkpoints, caches, measurements."
