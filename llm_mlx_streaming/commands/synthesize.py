"""`llm mlx-streaming synthesize`: random-weight checkpoints for tests and benchmarks."""

from __future__ import annotations

import pathlib
import sys

import click


def register(group: click.Group) -> None:
    group.add_command(synthesize)


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=pathlib.Path))
@click.option("--like", default="qwen3-next-80b", show_default=True, help="Preset to imitate")
@click.option("--layers", type=click.IntRange(1), help="Number of layers")
@click.option("--experts", type=click.IntRange(1), help="Experts in each layer")
@click.option("--top-k", type=click.IntRange(1), help="Experts used for each token")
@click.option("--hidden", type=click.IntRange(64), help="Hidden size, a multiple of 64")
@click.option("--expert-width", type=click.IntRange(64), help="Width of one expert, a multiple of 64")
@click.option("--vocab", type=click.IntRange(1), help="Vocabulary size, padding included")
@click.option(
    "--bits",
    type=click.Choice(["2", "3", "4", "5", "6", "8", "16"]),
    default="4",
    show_default=True,
    help="Bits of each weight; 16 leaves them unquantised",
)
@click.option(
    "--group-size",
    type=click.Choice(["32", "64", "128"]),
    default="64",
    show_default=True,
    help="Weights that share a scale",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    default="bfloat16",
    show_default=True,
    help="Type of scales and norms; float32 is faster on a CPU",
)
@click.option("--mtp", is_flag=True, help="Add a raw MTP head (mtp-raw.safetensors)")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same bytes")
@click.option("--shard-size", default="5GB", show_default=True, help="Largest size of one file")
@click.option("--force", is_flag=True, help="Replace the model in a directory that is not empty")
@click.option("--quiet", is_flag=True, help="No progress bar")
def synthesize(
    directory: pathlib.Path,
    like: str,
    layers: int | None,
    experts: int | None,
    top_k: int | None,
    hidden: int | None,
    expert_width: int | None,
    vocab: int | None,
    bits: str,
    group_size: str,
    dtype: str,
    mtp: bool,
    seed: int,
    shard_size: str,
    force: bool,
    quiet: bool,
) -> None:
    """Write a random checkpoint of any size to DIRECTORY

    It has the layout of a downloaded model, its words mean nothing: use it to measure speed and
    memory without a download. The tokenizer is that of the embedded demo.

    Presets: qwen3-next-80b, tiny, tiny-qwen3-moe, tiny-qwen3.5-moe, tiny-olmoe, tiny-glm4-moe,
    tiny-gpt-oss, tiny-deepseek-v3, tiny-minimax.

    \b
        llm mlx-streaming synthesize /tmp/eighth --like qwen3-next-80b --layers 6
        llm mlx-streaming synthesize /tmp/tiny --like tiny
    """
    from mlx_streaming.checkpoint.synthesize import synthesize as write
    from mlx_streaming.config import parse_size

    shown = 0
    hide = quiet or not sys.stderr.isatty()
    with click.progressbar(length=1000, label="Writing", file=sys.stderr, hidden=hide) as bar:

        def on_progress(done: int, total: int) -> None:
            nonlocal shown
            permille = 1000 * done // total
            if permille > shown:
                bar.update(permille - shown)
                shown = permille

        written = write(
            directory,
            like,
            layers=layers,
            experts=experts,
            hidden=hidden,
            expert_width=expert_width,
            top_k=top_k,
            vocab=vocab,
            bits=int(bits),
            group_size=int(group_size),
            dtype=dtype,
            mtp=mtp,
            seed=seed,
            shard_bytes=parse_size(shard_size),
            force=force,
            on_progress=on_progress,
        )
    total = written.nbytes + written.mtp_bytes
    size = f"{total / 1e9:.2f} GB" if total >= 10**9 else f"{total / 1e6:.1f} MB"
    files = "file" if written.shards == 1 else "files"
    click.echo(f"{written.path}: {size} in {written.shards} {files}")
    click.echo(f"Use it: llm mlx-streaming add {written.path}")
