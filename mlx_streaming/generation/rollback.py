"""Taking back part of a forward: KV by trimming, recurrent state by replaying a tape.

A recurrent (gated-delta) layer keeps only its last state. The tape holds that state before the forward (a
reference: mlx arrays do not change) and what the layer's input projections gave. To go back to row r the
layer's own code runs again over r rows with the projections' outputs played back, so that only
convolution and recurrence are computed; their unused outputs stay lazy. Nothing is computed when every
row is kept.

Measured on one layer of Qwen3-Next's shape (float32, 2 CPU cores, best of 12): forward of one row 100 ms,
of four 413; replay of one row 5 ms, of three 9; running the projections again 80 and 249. Four rows of
tape are 0.2 MB a layer; keeping every row's state would be 2.2 MB a row and layer, needed or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from ..errors import CheckpointError

PROJECTION = "in_proj"  # names of a recurrent layer's projections of its input begin with this


class Recorder(nn.Module):
    """Stands for a projection during a forward and remembers its output."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner
        self._out: mx.array | None = None

    def __call__(self, x: mx.array) -> mx.array:
        self._out = self.inner(x)
        return self._out

    @property
    def out(self) -> mx.array:
        return self._out


class Playback(nn.Module):
    """Stands for a projection during a replay and returns the first rows of what was recorded."""

    def __init__(self, out: mx.array, rows: int):
        super().__init__()
        self._out = out[:, :rows]

    def __call__(self, x: mx.array) -> mx.array:
        return self._out


@dataclass
class RecurrentTrack:
    """One recurrent layer: its module, the cache before the forward, the recorded projections by name."""

    number: int
    module: nn.Module
    names: tuple[str, ...]
    before: list[mx.array] = field(default_factory=list)
    recorded: dict[str, mx.array] = field(default_factory=dict)


class Tape:
    """Records forwards of one model so that the last one can be cut back to its first rows."""

    def __init__(self, layers: list[nn.Module], cache: list[Any], hidden_size: int):
        """`layers` are the model's, `cache` their caches in the same order.

        Raises:
            CheckpointError: a cache is neither trimmable nor that of a recurrent layer that can be
            replayed.
        """
        from mlx_lm.models.cache import ArraysCache

        self._hidden_size = hidden_size
        self._rows = 0
        self._tracks: list[RecurrentTrack] = []
        for number, (layer, c) in enumerate(zip(layers, cache, strict=True)):
            if isinstance(c, ArraysCache):
                self._tracks.append(_track(number, layer))
            elif not c.is_trimmable():
                raise CheckpointError(
                    f"The cache of layer {number} ({type(c).__name__}) cannot go back; use mtp=off."
                )

    @contextmanager
    def recording(self, cache: list[Any], rows: int) -> Iterator[None]:
        """The forward inside the block feeds `rows` tokens and can be cut by `keep` afterwards."""
        recorders = []
        for track in self._tracks:
            track.before = list(cache[track.number].cache)
            for name in track.names:
                recorder = Recorder(track.module[name])
                recorders.append((track, name, recorder))
                track.module[name] = recorder
        try:
            yield
        finally:
            for track, name, recorder in recorders:
                track.module[name] = recorder.inner
                track.recorded[name] = recorder.out
        self._rows = rows

    def keep(self, cache: list[Any], rows: int) -> None:
        """Make `cache` what it would be had the recorded forward fed only its first `rows` tokens.

        May be called again with fewer rows.
        """
        if rows == self._rows:
            return
        recurrent = {track.number for track in self._tracks}
        for number, c in enumerate(cache):
            if number not in recurrent:
                c.trim(self._rows - rows)
        for track in self._tracks:
            cache[track.number].cache = list(track.before)
            if rows:
                self._replay(track, cache[track.number], rows)
        self._rows = rows

    def _replay(self, track: RecurrentTrack, cache: Any, rows: int) -> None:
        inner = {name: track.module[name] for name in track.names}
        for name in track.names:
            track.module[name] = Playback(track.recorded[name], rows)
        try:
            # Only the shape of the input counts: every use of its values is a projection that is played
            # back.
            track.module(mx.zeros((1, rows, self._hidden_size)), mask=None, cache=cache)
        finally:
            for name, module in inner.items():
                track.module[name] = module


def _track(number: int, layer: nn.Module) -> RecurrentTrack:
    for module in layer.children().values():
        if isinstance(module, nn.Module):
            names = tuple(name for name in module if name.startswith(PROJECTION))
            if names:
                return RecurrentTrack(number, module, names)
    raise CheckpointError(
        f"Layer {number} is recurrent in a way that cannot be replayed (no {PROJECTION}*); use mtp=off."
    )
