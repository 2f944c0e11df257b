"""`llm mlx-streaming usage`: which experts past runs used."""

from __future__ import annotations

import json
from pathlib import Path

import click

from .. import registry
from .plots import plotter


def register(group: click.Group) -> None:
    group.add_command(usage)


@click.command()
@click.option("-m", "--model", help="Registered name or directory (default: the default checkpoint)")
@click.option("--plot", type=click.Path(dir_okay=False), help="Write a heat map of experts by layer (PNG)")
@click.option("--clear", is_flag=True, help="Forget the counts of this checkpoint")
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def usage(model: str | None, plot: str | None, clear: bool, json_: bool) -> None:
    """Show how past runs used the experts

    Counts are kept for streamed layers only: a resident layer never tells the host what it chose.
    """
    if plot:
        plotter(Path(plot))
    import numpy as np

    from mlx_streaming.engine import identity_of
    from mlx_streaming.experts.usage import load_usage

    from ..exchange import engine_config
    from ..options import Options

    checkpoint = registry.resolve(model)
    config = engine_config(checkpoint, Options())
    file = config.usage_path(identity_of(checkpoint.path, config))
    if file is None:
        raise click.ClickException("Usage is switched off by the settings; set usage to 1 to keep counts.")
    if clear:
        file.unlink(missing_ok=True)
        click.echo(f"Forgot the usage of {checkpoint.name}")
        return
    counts = load_usage(file)
    if not counts:
        raise click.ClickException(
            f"No usage of {checkpoint.name} yet; ask it something with fewer slots than experts."
        )
    if plot:
        _heat_map(counts, Path(plot))
    if json_:
        click.echo(json.dumps({str(n): [float(c) for c in counts[n]] for n in sorted(counts)}))
        return
    click.echo("layer  experts used  hottest quarter  hottest half  (share of the routing)")
    for layer in sorted(counts):
        ranked = np.sort(counts[layer])[::-1]
        total = max(ranked.sum(), 1e-9)  # counts fade to nothing in a layer that became resident
        quarter, half = (ranked[: len(ranked) // part].sum() / total for part in (4, 2))
        click.echo(
            f"{layer:5}  {int((ranked > 0.5).sum()):5} of {len(ranked):3}  {quarter:15.2f}  {half:12.2f}"
        )


def _heat_map(counts, file: Path) -> None:
    import numpy as np

    pyplot = plotter(file)
    layers = sorted(counts)
    share = np.stack([counts[n] / max(counts[n].sum(), 1e-9) for n in layers])
    figure, axes = pyplot.subplots(figsize=(10, 1.5 + 0.2 * len(layers)))
    image = axes.imshow(share, aspect="auto", cmap="magma", interpolation="nearest")
    axes.set_yticks(range(len(layers)), [str(n) for n in layers])
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    figure.colorbar(image, label="share of the layer's routing")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    click.echo(f"Wrote {file}", err=True)
