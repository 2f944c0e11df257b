"""Charts of `bench` and `usage`: what has to be there before anything is measured for one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


def plotter(file: Path) -> Any:
    """matplotlib's pyplot, which will be able to draw to `file`.

    Raises:
        click.ClickException: the directory cannot be written, or matplotlib is missing or lacks the format.
    """
    if not file.parent.is_dir():
        raise click.ClickException(
            f"The directory {file.parent} for --plot does not exist; make it, or choose another one."
        )
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise click.ClickException(f"--plot cannot write {file}; choose another place.")
    try:
        import matplotlib
    except ImportError:
        raise click.ClickException(
            "--plot needs matplotlib; install it with: llm install 'llm-mlx-streaming[plot]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot
    from matplotlib.backend_bases import FigureCanvasBase

    formats = FigureCanvasBase.get_supported_filetypes()
    if file.suffix and file.suffix[1:].lower() not in formats:
        raise click.ClickException(f"--plot cannot write {file.suffix} files; name it {file.stem}.png.")
    return pyplot
