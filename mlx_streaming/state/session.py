"""Session: what the backend asks of the store in one turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from .codecs import UnsupportedCache, WrongPosition
from .store import StateStore

Hot = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Start:
    """State to start a turn from: `cache` has seen the first `length` tokens.

    `extra` and `hot` are as filed with the snapshot, empty when nothing was restored.
    """

    cache: list[Any]
    length: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    hot: dict[int, list[int]] = field(default_factory=dict)
    source: str = ""


class Session:
    """Turns of one model over one store (None: no reuse at all).

    restore_s: seconds the last `begin` took. snapshot_bytes: filed since then.
    """

    def __init__(
        self, store: StateStore | None, model: Any, make_cache: Callable[[], list[Any]] | None = None
    ):
        self.store = store
        self.make_cache = make_cache or (lambda: make_prompt_cache(model))
        self.disk = True
        self.restore_s = 0.0
        self.snapshot_bytes = 0
        self.unsupported = ""  # why this model has no snapshots
        self.misplaced = 0  # snapshots refused because the cache did not stand at the end of the ids
        self.no_room = 0  # snapshots given up because there was no memory for the copy

    def fresh(self) -> Start:
        """An empty state, whatever is stored."""
        self.restore_s, self.snapshot_bytes = 0.0, 0
        return Start(self.make_cache())

    def begin(self, ids: Sequence[int], disk: bool = True) -> Start:
        """The state to run `ids[start.length:]` on; at least one token is left to run.

        `disk` False: what this turn files stays in memory.
        """
        start = time.perf_counter()
        self.disk = disk
        begun = self.fresh()
        restored = self.store.restore(ids, self.make_cache) if self.store is not None else None
        if restored is not None:
            begun = Start(
                restored.cache, restored.length, restored.extra, restored.hot, source=restored.source
            )
        self.restore_s = time.perf_counter() - start
        return begun

    def snapshot(
        self,
        ids: Sequence[int],
        cache: Sequence[Any],
        kind: str,
        extra: Mapping[str, Any] | None = None,
        hot: Hot | Callable[[], Hot] | None = None,
    ) -> int:
        """File the state after exactly `ids`; returns its bytes (0: known already). Never fails a turn.

        Args:
            ids: every token that `cache` has seen. kind: "head" (system and tools), "prompt" (all of the
                prompt but the token that generation runs first), "turn" (end of an answer) or "partial"
                (interrupted, or on the way through a long prefill; given up once something extends it).
            extra: arrays, cache objects or lists of caches by name; all must depend on `ids` alone. Give an
                MTP head's KV as its cache object: then only its new rows are stored.
            hot: layer -> experts to read first, or a function that says.
        """
        if self.store is None or self.unsupported:
            return 0
        try:
            size = self.store.put(ids, cache, kind, extra=extra, hot=hot, disk=self.disk)
        except WrongPosition:
            self.misplaced += 1
            return 0
        except UnsupportedCache as error:
            self.unsupported = str(error)
            return 0
        except (MemoryError, RuntimeError):  # the copy did not fit; MLX raises RuntimeError
            self.no_room += 1
            return 0
        self.snapshot_bytes += size
        return size

    def flush(self) -> None:
        """Wait for the disk; call it when the answer is on the screen."""
        if self.store is not None:
            self.store.flush()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    @property
    def stats(self) -> dict[str, Any]:
        """The store's counts, and why this model has no snapshots if it has none."""
        found = dict(self.store.stats) if self.store is not None else {"disk": "off"}
        if self.unsupported:
            found["unsupported"] = self.unsupported
        if self.misplaced:
            found["misplaced"] = self.misplaced
        if self.no_room:
            found["no room"] = self.no_room
        return found
