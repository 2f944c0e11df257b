"""EngineConfig: the one place where settings and environment variables are read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import EngineError

PREFIX = "LLM_MLX_STREAMING_"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_LEAST_BARE = 10**6  # a smaller number was meant in another unit; 0 switches something off


def parse_size(text: str | int) -> int:
    """Bytes from "24GB", "1.5 GiB", "512M" or a plain number.

    Raises:
        EngineError: the text is not a size, or so few bytes that its unit must have been forgotten.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", str(text), re.IGNORECASE)
    if not match:
        raise EngineError(f"{text!r} is not a size; write it like 24GB, 1.5GiB or 800M.")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if not match[2] and 0 < size < _LEAST_BARE:
        unit = "GB" if size < 1000 else "MB"
        raise EngineError(f"{match[1]} bytes cannot be meant; write the unit, such as {match[1]}{unit}.")
    return size


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine. Sizes in bytes; every field can be set as LLM_MLX_STREAMING_<FIELD>.

    slots: expert slots per streamed layer (None: planned from `memory`).
    memory: total budget for the process (None: planned from the machine).
    context: tokens to plan the KV cache for (None: planned).
    resident_layers: how many layers keep all experts in memory (None: planned).
    policy: eviction policy name, see experts.policy.
    readers: parallel reads in flight. uncached: bypass the page cache where the system can.
    lookahead: layers to predict ahead (0: off); lookahead_width: experts guessed per token;
    lookahead_budget: guessed reads per layer and token, which is also the number of slots kept free for them;
    lookahead_cutoff: layers below it are predicted from one layer before only.
    pin: fraction of each pool filled with the hottest experts of past runs and never evicted.
    profile: per-layer slot budgets, "auto" (use a saved one), "off", or a file.
    usage: keep routing counts of past runs, in usage_dir (None: nowhere). warm: read hot experts at load.
    packed: directory of packed experts (None: read the checkpoint's own shards).
    prefill_chunk: tokens per prefill forward.
    cache_dir: where snapshots go (None: memory only); cache_quota: its size limit;
    cache_memory: limit of the memory tier; snapshot_every: tokens between snapshots in a long prefill.
    kv_bits: "" (full precision) or "k4v3" and the like.
    mtp: "off", "auto", "1", "2", "3"; mtp_hidden: "post" or "pre" final norm; mtp_slots: pool of the head;
    mtp_bits: bits of the head's trunk (16: as released); mtp_dir: where a raw head is kept once converted.
    measured_file: where figures of past runs are kept for doctor (None: nowhere).
    quiet: no progress on stderr. backend: see backend.open_backend.
    """

    slots: int | None = None
    memory: int | None = None
    context: int | None = None
    resident_layers: int | None = None
    policy: str = "lrfu"
    readers: int = 8
    uncached: bool = False
    lookahead: int = 0
    lookahead_width: int = 16
    lookahead_budget: int = 4
    lookahead_cutoff: int = 0
    pin: float = 0.0
    profile: str = "auto"
    usage: bool = True
    warm: bool = True
    packed: str | None = None
    prefill_chunk: int = 2048
    cache_dir: str | None = None
    cache_quota: int = 8 * 10**9
    cache_memory: int = 10**9
    snapshot_every: int = 4096
    kv_bits: str = ""
    mtp: str = "auto"
    mtp_hidden: str = "post"
    mtp_slots: int | None = None
    mtp_bits: int = 8
    mtp_dir: str | None = None
    usage_dir: str | None = None
    measured_file: str | None = None
    quiet: bool = False
    backend: str = "mlx"

    @classmethod
    def from_env(cls, settings: Mapping[str, Any] | None = None, /, **overrides: Any) -> EngineConfig:
        """Defaults, then a checkpoint's `settings`, then the environment, then `overrides` that are not None.

        Raises:
            EngineError: a value does not fit, or there is no such setting; the message names the variable.
        """
        return cls().updated(settings or {}).updated(_environment(), label=PREFIX).updated(overrides)

    def updated(self, values: Mapping[str, Any], label: str = "") -> EngineConfig:
        """A copy with `values` (strings are converted) applied; None values are skipped.

        Raises:
            EngineError: unknown name or a value that does not fit.
        """
        known = {f.name: f for f in fields(self)}
        changes = {}
        for name, value in values.items():
            if value is None:
                continue
            shown = _shown(name, label)
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = (
                    f"did you mean {_shown(near[0], label)}?" if near else f"use one of {', '.join(known)}."
                )
                raise EngineError(f"There is no setting {shown}; {hint}")
            changes[name] = _convert(shown, str(known[name].type), value)
        config = replace(self, **changes)
        config._check()
        return config

    def _check(self) -> None:
        for names, least in ((_COUNTS, 1), (_AMOUNTS, 0)):
            for name in names:
                value = getattr(self, name)
                if value is not None and value < least:
                    raise EngineError(f"{name} must be at least {least}, not {value}.")
        if not 0.0 <= self.pin <= 1.0:
            raise EngineError(f"pin is a fraction between 0 and 1, not {self.pin}.")
        if self.mtp not in ("off", "auto", "1", "2", "3"):
            raise EngineError(f"mtp is off, auto, 1, 2 or 3, not {self.mtp!r}.")
        if self.mtp_hidden not in ("post", "pre"):
            raise EngineError(f"mtp_hidden is post or pre, not {self.mtp_hidden!r}.")

    def usage_path(self, identity: str) -> Path | None:
        """Where the routing counts of the checkpoint `identity` are kept, or None when they are not."""
        if not self.usage or self.usage_dir is None:
            return None
        return Path(self.usage_dir) / f"{identity[:16]}.json"


_SIZES = ("memory", "cache_quota", "cache_memory")
_COUNTS = (
    *("slots", "memory", "context", "readers", "prefill_chunk", "snapshot_every", "mtp_slots"),
    *("lookahead_width", "lookahead_budget"),
)
_AMOUNTS = ("resident_layers", "lookahead", "lookahead_cutoff", "cache_quota", "cache_memory")
_KINDS = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
}


def _environment() -> dict[str, str]:
    """Every variable with the prefix that is not empty, misspelt ones too: `updated` names them."""
    found = {key: value for key, value in os.environ.items() if key.startswith(PREFIX) and value != ""}
    return {key.removeprefix(PREFIX).lower(): value for key, value in found.items()}


def _shown(name: str, label: str) -> str:
    """The setting `name` as the user wrote it: a variable where there is a `label`."""
    return f"{label}{name.upper()}" if label else name


def _convert(shown: str, kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return _typed(shown, kind, value)
    try:
        if shown.lower().endswith(_SIZES):
            return parse_size(value)
        if kind.startswith("int"):
            return int(value)
        if kind.startswith("float"):
            return float(value)
    except ValueError:
        raise EngineError(f"{shown} must be a number, not {value!r}.") from None
    except EngineError as error:
        raise EngineError(f"{shown}: {error}") from None
    if kind.startswith("bool"):
        if value.lower() in ("1", "true", "yes", "on"):
            return True
        if value.lower() in ("0", "false", "no", "off"):
            return False
        raise EngineError(f"{shown} must be 1 or 0, not {value!r}.")
    return value


def _typed(shown: str, kind: str, value: Any) -> Any:
    """`value`, which is no text (from JSON or Python), if it is of the field's type."""
    wanted, words = _KINDS[kind.partition(" ")[0]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise EngineError(f"{shown} must be {words}, not {value!r}.")
    return value
