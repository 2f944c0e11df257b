"""Stats: what expert memory did, per layer; plain counters that may be read while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass
class LayerStats:
    """Counters of one layer.

    `hits` and `misses` are distinct experts per call; `reads` and `bytes_read` are demand reads. `warmed`
    and `lookahead_read` are experts that background reads brought in, `lookahead_promoted` the guesses that
    the router chose. Wall time: `sync_s` until the router's choice was known (dispatching
    what is computed meanwhile included), `wait_s` for reads.
    """

    hits: int = 0
    misses: int = 0
    reads: int = 0
    bytes_read: int = 0
    evictions: int = 0
    waves: int = 0
    sync_s: float = 0.0
    wait_s: float = 0.0
    warmed: int = 0
    lookahead_guessed: int = 0
    lookahead_read: int = 0
    lookahead_bytes: int = 0
    lookahead_promoted: int = 0


_COUNTERS = tuple(f.name for f in fields(LayerStats))


@dataclass
class Stats:
    """All layers of one model."""

    layers: dict[int, LayerStats] = field(default_factory=dict)

    def total(self) -> LayerStats:
        """The sum over all layers."""
        return LayerStats(**{n: sum(getattr(s, n) for s in self.layers.values()) for n in _COUNTERS})

    def snapshot(self) -> LayerStats:
        """A copy of the totals, to be subtracted later with `since`."""
        return self.total()

    def since(self, before: LayerStats) -> dict[str, Any]:
        """What happened after `before`, with the hit rate (None when nothing was looked up)."""
        now = asdict(self.total())
        then = asdict(before)
        delta = {name: now[name] - then[name] for name in now}
        looked_up = delta["hits"] + delta["misses"]
        delta["hit_rate"] = delta["hits"] / looked_up if looked_up else None
        return delta
