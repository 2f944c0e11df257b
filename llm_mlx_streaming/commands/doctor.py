"""`llm mlx-streaming doctor`: will it run here, how fast, and what to do if not."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import llm

from mlx_streaming.errors import EngineError

from .. import registry
from . import cache
from .download import ORIGINALS

if TYPE_CHECKING:
    from mlx_streaming.doctor import Report, Subject

MEASURED = "measured.json"


def register(group: click.Group) -> None:
    group.add_command(doctor)


@click.command()
@click.argument("model", required=False)
@click.option(
    "--revision", default="main", show_default=True, help="Branch, tag or commit of a hub repository"
)
@click.option("json_", "--json", is_flag=True, help="Output as JSON")
def doctor(model: str | None, revision: str, json_: bool) -> None:
    """Does MODEL fit this machine, and how fast will it be?

    MODEL is a registered name, a directory, or a repository of the Hugging Face hub: of that only the headers
    are fetched, so ask before a long download. Without MODEL the default is examined. Measures disk and
    processor for a few seconds. Exits with status 1 if the model cannot run.

    \b
        llm mlx-streaming doctor
        llm mlx-streaming doctor mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit
    """
    from mlx_streaming.config import EngineConfig
    from mlx_streaming.doctor import Problem, examine, outline_subject, with_name

    measured = registry.home() / MEASURED
    known = registry.read()
    found = _registered(model)
    if found is not None:
        report = examine(_subject(found), EngineConfig.from_env(found.settings), measured)
    else:
        with tempfile.TemporaryDirectory(prefix="llm-mlx-streaming-") as temporary:
            subject = outline_subject(model, revision, Path(temporary))
            report = with_name(examine(subject, EngineConfig.from_env()), subject.path, model)
    try:
        cache.directory()
    except EngineError as error:
        report.problems.append(Problem(str(error)))
    if known.problem:
        report.problems.append(Problem(known.problem))
    elif found and found.hub and not any(c.path == found.path for c in known.checkpoints):
        report.problems.append(
            Problem("It is here but not registered.", f"llm mlx-streaming add {found.hub}")
        )
    elif not known.checkpoints:
        report.problems.append(Problem("Only the embedded demo is here so far.", registry.GET_REAL_MODEL))
    elif not (llm.user_dir() / "default_model.txt").exists():
        fix = f"llm models default {registry.DEFAULT_MODEL}"
        report.problems.append(Problem("`llm 'prompt'` without -m still asks another model.", fix))
    if found and found.hub in ORIGINALS and report.model and not report.model["mtp"]:
        report.problems.append(Problem("Its MTP head, which makes it faster, is not here.", _get(found)))
    if json_:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        for line in _lines(report):
            click.echo(line)
    if report.fatal:
        raise click.exceptions.Exit(1)


def _registered(model: str | None) -> registry.Checkpoint | None:
    """The checkpoint on this machine that `model` means; None for a repository that is still on the hub."""
    by_hub = next((c for c in registry.read().checkpoints if c.hub == model), None) if model else None
    if by_hub:
        return by_hub
    if model and re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not Path(model).is_dir():
        if registry.read().find(model) is None:
            return _cached(model)
    return registry.resolve(model)


def _cached(repo: str) -> registry.Checkpoint | None:
    """The complete copy of `repo` in the hub cache, if there is one."""
    from mlx_streaming.checkpoint.hub_cache import cached_checkpoints

    found = next((c for c in cached_checkpoints() if c.repo == repo and not c.problem), None)
    return registry.Checkpoint(repo, found.path, found.commit[:12], hub=repo) if found else None


def _subject(found: registry.Checkpoint) -> Subject:
    from mlx_streaming.doctor import Subject

    return Subject(name=found.name, path=found.path, downloaded=True, disk=found.path, get=_get(found))


def _get(found: registry.Checkpoint) -> str:
    """The command that brings its files (back)."""
    return f"{registry.GET_REAL_MODEL} {found.hub}" if found.hub else ""


def _lines(report: Report) -> Iterator[str]:
    if report.machine:
        yield from _machine(report)
    if report.model:
        yield _model(report.model)
    if report.plan:
        yield f"Plan: {_plan(report)}"
    if report.forecast:
        yield from _forecast(report)
    if report.measured:
        yield _measured(report.measured)
    if not report.problems:
        yield "Nothing is wrong."
    for problem in report.problems:
        yield f"{'Problem' if problem.fatal else 'Note'}: {problem.what}"
        if problem.fix:
            yield f"    {problem.fix}"


def _machine(report: Report) -> Iterator[str]:
    facts = report.machine
    limit = f", {_size(facts['working_set'])} of it for the GPU" if facts["working_set"] else ""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items() if number)
    yield (
        f"Machine: {_size(facts['memory'])} of memory{limit}; {facts['device'] or 'unknown processor'}"
        f" ({facts['backend']} backend, {facts['cores']} cores), {facts['system']}"
    )
    yield f"    Python {facts['python']}, {versions}"
    if report.compute:
        rates = report.compute
        yield (
            f"    measured: weights {_rate(rates.weights)}, prompts {rates.flops / 1e9:.2f} GFLOP/s,"
            f" a layer {1e3 * rates.launch_s:.2f} ms, streamed {1e3 * rates.host_s:.2f} ms more"
        )
    if report.disk:
        disk = report.disk
        yield f"    disk ({disk.source}): {_rate(disk.disk)}, from the page cache {_rate(disk.cached)}"


def _model(model: dict[str, Any]) -> str:
    where = "" if model["downloaded"] else f", {_size(model['missing_bytes'])} still to download"
    head = {True: ", MTP head", False: ", no MTP head", None: ""}[model["mtp"]]
    dropped = ", dropped from the shards" if model.get("dropped_to") else ""
    return (
        f"{model['name']}: {model['type']}, {_size(model['bytes'])}{where}\n"
        f"    {_size(model['trunk_bytes'])} must be in memory; {_size(model['expert_bytes'])} are"
        f" experts{dropped}:"
        f" {model['experts']} of {_size(model['one_expert_bytes'])} in {model['expert_layers']} layers,"
        f" {model['top_k']} for each token{head}"
    )


def _plan(report: Report) -> str:
    plan = report.plan
    budget = f"{_size(plan.peak_bytes)} at most, context {plan.context} tokens"
    streamed = sorted(plan.slots[n] for n in plan.slots if n not in plan.resident)
    if not streamed:
        return f"all experts in memory; {budget}"
    slots = f"{streamed[0]}" if streamed[0] == streamed[-1] else f"{streamed[0]} to {streamed[-1]}"
    whole = f", {len(plan.resident)} layers whole" if plan.resident else ""
    return (
        f"slots for {slots} of {report.model['experts']} experts in {len(streamed)} layers{whole}; {budget}"
    )


def _forecast(report: Report) -> Iterator[str]:
    made = report.forecast
    yield (
        f"Forecast: {made.tps:.3g} tokens/s without speculation; the first word of a new process after"
        f" {_time(made.first_token_s)} ({_time(made.load_s)} to load, {_time(made.prompt_s)} for a prompt of"
        f" {made.prompt_tokens} tokens)"
    )
    for reason in made.reasons:
        yield f"    {reason}"


def _measured(found: dict[str, Any]) -> str:
    days = (time.time() - found["at"]) / 86400
    ago = f"{days:.0f} days ago" if days >= 1.5 else f"{days * 24:.1f} hours ago"
    ratio = found["forecast_over_measured"]
    verdict = f"{abs(ratio - 1) * 100:.0f} % too {'high' if ratio > 1 else 'low'}"
    notes = ", with MTP" if found["mtp"] else ""
    notes += "" if found["same_slots"] else ", with other slots"
    return (
        f"Last run ({ago}{notes}): {found['generation_tps']:.3g} tokens/s, first word after"
        f" {_time(found['first_token_s'])}; forecast {found['forecast_tps']:.3g} tokens/s and"
        f" {_time(found['forecast_first_token_s'])}: {verdict}"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _rate(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s" if value >= 10**8 else f"{value / 1e6:.0f} MB/s"


def _size(count: int) -> str:
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} B"
