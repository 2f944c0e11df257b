"""MLXBackend: the real engine behind the ChatBackend protocol."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

from .backend import ChatBackend
from .config import EngineConfig
from .engine import Engine, load_engine
from .measurements import measurement, record_measurement
from .request import Event, GenResult, Request, Status
from .turn import Turn


class MLXBackend(ChatBackend):
    """Runs one checkpoint. All calls must come from one thread (MLX streams belong to threads)."""

    def __init__(self, path: str | Path, config: EngineConfig | None = None):
        self.path = Path(path)
        self.config = config or EngineConfig.from_env()
        self._engine: Engine | None = None
        self._load_s = 0.0
        self._last: GenResult | None = None

    @property
    def engine(self) -> Engine | None:
        """The loaded engine, or None before `load`."""
        return self._engine

    def load(self, on_status: Callable[[Status], None] | None = None) -> Engine:
        """Load the checkpoint unless that is done already.

        Raises:
            CheckpointError: see `engine.load_engine`.
            CapacityError: it does not fit the memory allowed.
        """
        if self._engine is None:
            self._engine = load_engine(self.path, self.config, on_status)
            self._load_s = self._engine.load_s
        return self._engine

    def stream(self, request: Request) -> Generator[Event, None, GenResult]:
        """Yield the answer as it comes; the generator's return value is the result.

        Closing the generator stops after the current forward pass and keeps the state of what was produced.

        Raises:
            EngineError: see `load` and `turn.Turn.run`.
        """
        engine = self.load(request.on_status)
        result = yield from Turn(engine, request).run()
        result.load_s, self._load_s = self._load_s, 0.0
        self._last = result
        return result

    def settle(self) -> None:
        """Finish the work that was put off until the answer was on the screen (snapshots, usage,
        measurements)."""
        if self._engine is None:
            return
        self._engine.settle()
        last, self._last = self._last, None
        if last is not None and self.config.measured_file:
            slots = sum(self._engine.memory.slots.values())
            values = measurement(last, slots, self._engine.plan.backend)
            if values is not None:
                record_measurement(Path(self.config.measured_file), self._engine.weights, values)

    def close(self) -> None:
        """Let go of the engine; a later `stream` loads it again."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
