"""Session: what the backend asks of the store in one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from .codecs import UnsupportedCache, WrongPosition
from .store import StateStore


@dataclass(frozen=True)
class Begun:
    """State to start a turn from. `extra` and `hot` are empty when nothing was restored."""

    cache: list[Any]
    cached_tokens: int
    extra: dict[str, Any] = field(default_factory=dict)
    hot: dict[int, list[int]] = field(default_factory=dict)

    def __iter__(self):
        return iter((self.cache, self.cached_tokens, self.extra, self.hot))


class Session:
    """Turns of one model over one store (None: no reuse at all).

    restore_s: seconds the last `begin` took. snapshot_bytes, snapshot_s: filed since the last `begin`.
    """

    def __init__(
        self, store: StateStore | None, model: Any, make_cache: Callable[[], list[Any]] | None = None
    ):
        self.store = store
        self.make_cache = make_cache or (lambda: make_prompt_cache(model))
        self.restore_s = 0.0
        self.snapshot_s = 0.0
        self.snapshot_bytes = 0
        self.unsupported = ""  # why this model has no snapshots
        self.misplaced = 0  # snapshots refused because the cache did not stand at the end of the ids

    def begin(self, ids: Sequence[int]) -> Begun:
        """The caches to run `ids[cached_tokens:]` on; at least one token is left to run."""
        start = time.perf_counter()
        self.snapshot_bytes, self.snapshot_s = 0, 0.0
        restored = self.store.restore(ids, self.make_cache) if self.store is not None else None
        if restored is None:
            begun = Begun(self.make_cache(), 0)
        else:
            begun = Begun(restored.cache, restored.length, restored.extra, restored.hot)
        self.restore_s = time.perf_counter() - start
        return begun

    def snapshot(
        self,
        ids: Sequence[int],
        cache: Sequence[Any],
        kind: str,
        extra: Mapping[str, Any] | None = None,
        hot: Mapping[int, Sequence[int]] | None = None,
    ) -> int:
        """File the state after exactly `ids`; returns its bytes. Never fails a turn.

        Args:
            ids: every token that `cache` has seen. kind: "head" (system and tools), "prompt" (all but the
                tokens that generation runs first), "turn" (end of an answer) or "partial" (interrupted, or
                on the way through a long prefill; dropped once something extends it).
            extra: arrays, cache objects or lists of caches by name; all must depend on `ids` alone.
        """
        if self.store is None or self.unsupported:
            return 0
        start = time.perf_counter()
        try:
            size = self.store.put(ids, cache, kind, extra=extra, hot=hot)
        except WrongPosition:
            self.misplaced += 1
            return 0
        except UnsupportedCache as error:
            self.unsupported = str(error)
            return 0
        self.snapshot_s += time.perf_counter() - start
        self.snapshot_bytes += size
        return size

    def flush(self) -> None:
        """Wait for the disk; call it when the answer is on the screen."""
        if self.store is not None:
            self.store.flush()

    @property
    def stats(self) -> dict[str, Any]:
        """The store's counts, and why this model has no snapshots if it has none."""
        found = dict(self.store.stats) if self.store is not None else {"disk": "off"}
        if self.unsupported:
            found["unsupported"] = self.unsupported
        if self.misplaced:
            found["misplaced"] = self.misplaced
        return found
