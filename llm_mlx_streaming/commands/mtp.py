"""`llm mlx-streaming mtp`: the multi-token-prediction head, its extraction and what it brings."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import click

PROMPTS = (
    "Tell me a story about a fox.",
    "Write a Python function that adds two numbers.",
    "What is a harbor?",
    "Give me three facts about the sea.",
)


def register(group: click.Group) -> None:
    group.add_command(mtp)


@click.group()
def mtp() -> None:
    "The model's multi-token-prediction head"


@mtp.command()
@click.argument("source", type=click.Path(exists=True, path_type=pathlib.Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option(
    "--bits",
    type=click.Choice(["16", "8", "4"]),
    default="8",
    show_default=True,
    help="Bits of the head's trunk",
)
@click.option(
    "--expert-bits",
    type=click.Choice(["16", "8", "6", "5", "4", "3", "2"]),
    default="4",
    show_default=True,
    help="Bits of its experts",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of norms and scales  [default: as released]",
)
@click.option("--json", "as_json", is_flag=True, help="Output JSON")
def extract(
    source: pathlib.Path, out: pathlib.Path, bits: str, expert_bits: str, dtype: str | None, as_json: bool
) -> None:
    """Write the head in SOURCE as OUT, ready to be streamed

    SOURCE is a shard of the original release with mtp.* tensors, a directory of shards, or a file that holds
    them alone. Name OUT mtp.safetensors and put it into the checkpoint's directory to use it.
    """
    import mlx.core as mx

    from mlx_streaming.checkpoint.mtp_extract import HeadBits
    from mlx_streaming.checkpoint.mtp_extract import extract as run

    chosen = HeadBits(int(bits), int(expert_bits))
    size = run(source, out, chosen, getattr(mx, dtype) if dtype else None)
    if as_json:
        click.echo(
            json.dumps({"path": str(out), "bytes": size, "bits": chosen.trunk, "expert_bits": chosen.experts})
        )
    else:
        click.echo(f"{out}: {size / 1e6:.1f} MB, trunk {bits} bits, experts {expert_bits} bits")


@mtp.command()
@click.option("-m", "--model", help="Checkpoint: name, alias, directory or demo  [default: the default one]")
@click.option(
    "--tokens", type=click.IntRange(8), default=100, show_default=True, help="Tokens of each answer"
)
@click.option("--slots", type=click.IntRange(1), help="Expert slots per layer")
@click.option("--seed", type=int, help="Fixed seed for the sampled runs")
@click.option("--json", "as_json", is_flag=True, help="Output JSON")
def report(model: str | None, tokens: int, slots: int | None, seed: int | None, as_json: bool) -> None:
    """Measure the head: acceptance, cost and speed

    Speed is told beside plain decoding. Acceptance is teacher-forced on the model's own greedy
    answers to four prompts, for hidden states after and before the final norm and, where the head is raw,
    for several quantisations.
    """
    found = _measure(model, tokens, slots, seed)
    click.echo(json.dumps(found) if as_json else _table(found))


def _measure(model: str | None, tokens: int, slots: int | None, seed: int | None) -> dict[str, Any]:
    import mlx.core as mx

    from llm_mlx_streaming.registry import resolve
    from mlx_streaming.checkpoint.mtp_extract import HeadBits, find_head
    from mlx_streaming.config import EngineConfig
    from mlx_streaming.engine import load_engine
    from mlx_streaming.errors import CheckpointError
    from mlx_streaming.generation import mtp_report as r
    from mlx_streaming.generation.depth import DepthControl
    from mlx_streaming.generation.mtp_load import load_head
    from mlx_streaming.request import Sampling

    checkpoint = resolve(model)
    place = find_head(checkpoint.path)
    if place is None:
        raise CheckpointError(
            f"{checkpoint.name} has no MTP head; `llm mlx-streaming mtp extract --help` tells how to add one."
        )
    config = EngineConfig.from_env(
        **{**checkpoint.settings, "slots": slots or checkpoint.settings.get("slots")}
    )
    engine = load_engine(checkpoint.path, config.updated({"mtp": "off", "usage": False}))
    ends = engine.eos_ids

    def encode(prompt: str) -> list[int]:
        text = engine.template.render([{"role": "user", "content": prompt}]).text
        return list(engine.template.encode(text))

    samples = r.greedy_samples(engine.model, [encode(p) for p in PROMPTS], ends, tokens)
    kinds = (
        [HeadBits(8, 4), HeadBits(16, 4), HeadBits(16, 16), HeadBits(4, 4)] if not place.packed else [None]
    )
    if not place.packed and mx.default_device() == mx.cpu:  # there, mlx gathers floats of 32 bits only
        kinds.remove(HeadBits(16, 16))
    accepted = []
    for hidden in ("post", "pre"):
        for bits in kinds if hidden == "post" else kinds[:1]:
            head = load_head(engine.model, checkpoint.path, config.updated({"mtp_hidden": hidden}), bits)
            name = "as packed" if bits is None else f"{bits.trunk}/{bits.experts}"
            accepted.append(r.acceptance(engine.model, head, samples, hidden, name))
            head.close()
    head = load_head(engine.model, checkpoint.path, config, kinds[0])
    costs = r.costs(engine.model, head, samples[0], accepted[0].rates)
    speeds = []
    for sampling in (Sampling(temperature=0), Sampling(0.7, 0.8, 20, seed=seed)):
        control = DepthControl("auto")
        speeds.append(r.speed(engine.model, head, samples, sampling, tokens, ends, control))
    head.close()
    engine.close()
    return {
        "checkpoint": checkpoint.name,
        "tokens": sum(len(s.answer) for s in samples),
        "slots": slots,
        "acceptance": [r.as_dict(a) for a in accepted],
        "costs": r.as_dict(costs),
        "speed": [r.as_dict(s) for s in speeds],
    }


def _table(found: dict[str, Any]) -> str:
    lines = [f"{found['checkpoint']}, {found['tokens']} tokens of greedy text", ""]
    lines.append("acceptance    hidden  bits (trunk/experts)  draft 1  draft 2  draft 3")
    for row in found["acceptance"]:
        rates = "  ".join(f"{rate:7.3f}" for rate in row["rates"])
        lines.append(f"              {row['hidden']:<6}  {row['bits']:<20}  {rates}")
    costs = found["costs"]
    rows = "  ".join(f"{n} row{'s' * (n > 1)} {ms:.2f} ms" for n, ms in _numbered(costs["rows_ms"]))
    drafts = "  ".join(f"{n} draft{'s' * (n > 1)} {ms:.2f} ms" for n, ms in _numbered(costs["drafts_ms"]))
    lines += ["", f"cost          {rows}", f"              {drafts}"]
    for label, values, what in (
        ("speed-up", costs["ceiling"], "if every draft stood"),
        ("", costs["expected"], "with the acceptance above"),
    ):
        depths = "  ".join(f"depth {n}: {x:.2f}" for n, x in _numbered(values))
        lines.append(f"{label:<14}{depths}  {what}")
    lines += ["", "decoding          plain tok/s  auto tok/s  ratio  tokens/verify  same words"]
    for row in found["speed"]:
        verify = "-" if row["tokens_per_verify"] is None else f"{row['tokens_per_verify']:.2f}"
        same = {True: "yes", False: "no", None: "-"}[row["same_words"]]
        speeds = f"{row['plain_tps']:11.1f}  {row['auto_tps']:10.1f}  {row['ratio']:5.2f}"
        lines.append(f"{row['kind']:<16}  {speeds}  {verify:>13}  {same}")
        if row["reason"]:
            lines.append(f"  {row['reason']}")
    return "\n".join(lines)


def _numbered(values: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(values, 1))
