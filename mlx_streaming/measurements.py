"""What the last turn of each checkpoint measured, so that a forecast can be held against it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .request import GenResult

VERSION = 1
KEPT = 50  # checkpoints, the latest measured ones
LEAST_TOKENS = 16  # a shorter answer says little about speed


def record_measurement(path: Path, identity: str, values: dict[str, Any]) -> None:
    """Keep `values` (JSON) as the last measurement of the checkpoint `identity` in the file `path`.

    Atomic, and safe beside another process. Nothing is raised: a turn must not fail for it.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            runs = _read(path)
            runs.pop(identity, None)
            runs[identity] = {"at": int(time.time()), **values}
            latest = dict(list(runs.items())[-KEPT:])
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text(json.dumps({"version": VERSION, "runs": latest}, indent=1))
            os.replace(temporary, path)


def last_measurement(path: Path, identity: str) -> dict[str, Any] | None:
    """The last measurement of `identity` with its time `at` (seconds since 1970), or None."""
    return _read(path).get(identity)


def measurement(result: GenResult, slots: int, backend: str) -> dict[str, Any] | None:
    """What is worth keeping of a turn with `slots` expert slots in all; None when the answer was too short.

    Rates in tokens per second, times in seconds, sizes in bytes; `bytes_per_token` is what a generated token
    read from disk or page cache, the prompt's reads included.
    """
    if result.completion_tokens < LEAST_TOKENS or not result.generation_tps:
        return None
    return {
        "generation_tps": round(result.generation_tps, 3),
        "prompt_tps": round(result.prompt_tps, 3),
        "ttft_s": round(result.ttft_s, 4),
        "load_s": round(result.load_s, 4),
        "prompt_tokens": result.prompt_tokens - result.cached_tokens,
        "completion_tokens": result.completion_tokens,
        "hit_rate": result.experts.get("hit_rate"),
        "bytes_per_token": result.experts.get("bytes_read", 0) // result.completion_tokens,
        "peak_memory": result.peak_memory,
        "mtp": bool(result.mtp.get("drafted")),
        "slots": slots,
        "backend": backend,
    }


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """All measurements; a file that cannot be read holds none."""
    try:
        data = json.loads(path.read_text())
        runs = data["runs"] if data["version"] == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {k: v for k, v in runs.items() if isinstance(v, dict)} if isinstance(runs, dict) else {}
