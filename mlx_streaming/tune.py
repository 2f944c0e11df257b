"""tune: try settings on this machine and keep what wins by more than the noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .bench import Options, bench
from .checkpoint.spec import ModelSpec
from .config import EngineConfig
from .errors import EngineError
from .experts.plan import Plan, plan_here

# A setting must be faster by more than the spread of the runs, and by at least this.
LEAST_GAIN = 0.03


@dataclass(frozen=True)
class Trial:
    """One measured setting: decode tok/s (median), its spread as a share, and whether it was kept."""

    setting: str
    decode_tps: float
    spread: float
    hit_rate: float | None
    peak_bytes: int
    kept: bool


def tune(
    path: Path,
    config: EngineConfig,
    *,
    packed: Path | None = None,
    seconds: float = 60,
    tokens: int = 32,
    repeats: int = 3,
    on_step: Callable[[str], None] = lambda what: None,
) -> tuple[list[Trial], dict[str, Any]]:
    """Try one change at a time on top of the best so far, until `seconds` are over.

    Returns the trials in order (the first is `config` as it is) and the settings that won.

    Raises:
        EngineError: every expert fits in memory, so there is nothing to tune, or loading failed.
    """
    spec = ModelSpec.read(path)
    plan = plan_here(spec, config)
    if len(plan.resident) == len(plan.slots):
        raise EngineError(
            "Every expert of this checkpoint fits in memory, so nothing is streamed and nothing needs tuning;"
            " give --slots or --memory to tune for less."
        )
    start = time.monotonic()
    options = Options(prompt_tokens=32, tokens=tokens, repeats=repeats)
    chosen: dict[str, Any] = {}

    def measure(changes: dict[str, Any]) -> dict[str, Any]:
        return bench(path, replace(config, **(chosen | changes)), options)

    on_step("as it is")
    best = measure({})
    trials = [_trial("as it is", best, True)]
    for setting, changes in _candidates(config, plan, packed):
        if time.monotonic() - start > seconds:
            break
        on_step(setting)
        try:
            found = measure(changes)
        except EngineError:  # a combination that cannot be (look-ahead with too few slots, say)
            continue
        noise = max(LEAST_GAIN, best["decode_spread"], found["decode_spread"])
        wins = found["decode_tps"] > best["decode_tps"] * (1 + noise)
        trials.append(_trial(setting, found, wins))
        if wins:
            best = found
            chosen |= changes
    return trials, chosen


def _candidates(
    config: EngineConfig, plan: Plan, packed: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings worth a try (name, changes), none of which takes more memory than `plan`."""
    if packed is not None and config.packed is None:
        yield "packed experts", {"packed": str(packed)}
    for readers in (4, 16):
        if readers != config.readers:
            yield f"{readers} reads in flight", {"readers": readers}
    how = "through" if config.uncached else "past"
    yield f"reads {how} the page cache", {"uncached": not config.uncached}
    if config.policy != "echo":
        yield "eviction by echo", {"policy": "echo"}
    for distance in (1, 2):
        if distance != config.lookahead:
            yield f"look-ahead of {distance}", {"lookahead": distance}
    streamed = [n for n, count in plan.slots.items() if n not in plan.resident]
    most = max(plan.slots[n] for n in streamed)
    for share in (0.75, 0.5):
        # More page cache for fewer slots: peers got faster with less.
        yield f"{int(most * share)} slots", {"slots": max(1, int(most * share))}
    total = sum(plan.slots[n] for n in streamed)
    whole = total // (2 * plan.experts[streamed[0]])
    if whole:
        changes = {"resident_layers": len(plan.resident) + whole}
        if (
            config.slots is not None
        ):  # slots that are given stay as they are, so take the memory from the others
            left = total - sum(plan.experts[n] for n in streamed[:whole])
            changes["slots"] = max(1, left // (len(streamed) - whole))
        yield f"{whole} layers resident", changes


def _trial(setting: str, found: dict[str, Any], kept: bool) -> Trial:
    return Trial(
        setting,
        found["decode_tps"],
        found["decode_spread"],
        found["expert_hit_rate"],
        found["peak_memory_bytes"],
        kept,
    )
