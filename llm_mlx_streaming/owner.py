"""Who runs the engine: one thread at a time, because MLX streams belong to threads.

In `llm` that is the main thread, inline: no thread is ever started. The first async use, or a call from
another thread, starts one daemon worker that from then on runs everything, in the order it was asked for;
it loads the engine afresh, and the main thread's is let go of (dropping an engine on another thread is safe,
using it there is not). The worker is never joined: a thread that used MLX and ends can abort the process. An
interpreter that exits while it computes does abort, so at exit the running turn is stopped and waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

EXIT_SECONDS = 60.0  # at exit, for the running forward pass and the state still to be written


@dataclass(frozen=True)
class EngineKey:
    """What makes two turns share an engine: the checkpoint's directory and the settings (an EngineConfig)."""

    path: Path
    config: Any


class Turn:
    """One request on one engine; `result` is there once its events are through."""

    def __init__(self, key: EngineKey, request: Any, on_settle_error: Callable[[Exception], None]):
        self.key = key
        self.request = replace(request, should_stop=lambda: self.stopped)
        self.on_settle_error = on_settle_error
        self.stopped = False
        self.result: Any = None

    def cancel(self) -> None:
        """Stop at the next token or prefill chunk; from any thread."""
        self.stopped = True


class Engine:
    """The one loaded backend of a thread: asking for another one lets go of it first."""

    def __init__(self):
        self._key: EngineKey | None = None
        self._backend: Any = None

    def run(self, turn: Turn) -> Iterator[Any]:
        """Yield the turn's events and set its result; closing this stops the engine and keeps its state.

        Raises:
            EngineError: the checkpoint cannot be loaded or the request not be answered.
        """
        from mlx_streaming.errors import EngineError
        from mlx_streaming.request import GenResult

        if turn.stopped:
            turn.result = GenResult(finish_reason="interrupted")
            return
        try:
            backend = self._get(turn)
            turn.result = yield from backend.stream(turn.request)
        except (EngineError, GeneratorExit):
            raise
        except BaseException:  # broken off anywhere (Ctrl-C, no memory): nobody knows in what state
            self._drop()
            raise

    def settle(self, turn: Turn) -> None:
        """Do what the backend put off; a failure there costs no answer."""
        if self._backend is not None:
            try:
                self._backend.settle()
            except Exception as error:
                turn.on_settle_error(error)

    def close(self) -> None:
        backend, self._backend, self._key = self._backend, None, None
        if backend is not None:
            backend.close()

    def _drop(self) -> None:
        """Let go of an engine that is not to be trusted; the error that led here is the one to report."""
        with contextlib.suppress(Exception):
            self.close()

    def _get(self, turn: Turn) -> Any:
        from mlx_streaming.backend import open_backend

        if self._key != turn.key:
            self.close()
            self._backend = open_backend(turn.key.path, turn.key.config)
            self._key = turn.key
        self._backend.load(turn.request.on_status)
        return self._backend


class _Inline:
    """A turn that runs in the caller's own thread, step by step as its events are asked for."""

    def __init__(self, engine: Engine, turn: Turn):
        self._engine = engine
        self._turn = turn
        self._events = engine.run(turn)
        self._ahead: deque = deque()
        self._error: BaseException | None = None
        self.done = False

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._ahead:
                yield self._ahead.popleft()
            elif self._error is not None:
                raise self._error
            elif self.done:
                return
            else:
                try:
                    event = next(self._events)
                except StopIteration:
                    self._end()
                    return
                yield event

    def finish(self) -> None:
        """Run to the end now, keeping the events for whoever reads them: another turn wants the engine."""
        try:
            self._ahead.extend(self._events)
        except Exception as error:
            self._error = error
        self._end()

    def close(self) -> None:
        """The reader has gone or is through."""
        if not self.done:
            self._turn.cancel()
            self._events.close()
            self._end()

    def _end(self) -> None:
        self.done = True
        self._engine.settle(self._turn)


class Worker:
    """A daemon thread that runs jobs in order; never joined."""

    def __init__(self):
        self.engine = Engine()
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: set[Turn] = set()
        threading.Thread(target=self._work, name="mlx-streaming", daemon=True).start()

    def submit(self, turn: Turn, put: Callable[[tuple[str, Any]], None]) -> None:
        """Run `turn` after those before it; `put` gets ("event", e)s, then ("end", None) or ("error", e)."""
        with self._lock:
            self._open.add(turn)
        self._jobs.put(lambda: self._run(turn, put))

    def shut_down(self) -> None:
        """Stop what runs and what waits, let go of the engine, and wait until that is done."""
        with self._lock:
            for turn in self._open:
                turn.cancel()
        done = threading.Event()
        self._jobs.put(lambda: (self.engine.close(), done.set()))
        done.wait(EXIT_SECONDS)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def _run(self, turn: Turn, put: Callable[[tuple[str, Any]], None]) -> None:
        events = self.engine.run(turn)
        try:
            for event in events:
                put(("event", event))
            last = ("end", None)
        except BaseException as error:  # whatever it is belongs to the caller; this thread must live
            events.close()
            last = ("error", error)
        with self._lock:
            self._open.discard(turn)
        try:
            put(last)
        except RuntimeError:  # the caller's event loop is closed: nobody waits
            pass
        self.engine.settle(turn)


class Owner:
    """The process's way to the engine, for sync and async callers."""

    def __init__(self):
        self._engine = Engine()
        self._inline: _Inline | None = None
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._at_exit = False

    def stream(self, turn: Turn) -> Iterator[Any]:
        """Yield the events of `turn`; closing the iterator stops it. Raises EngineError."""
        self._remember_exit()
        if self._worker is None and threading.current_thread() is threading.main_thread():
            return self._stream_inline(turn)
        return self._stream_worker(turn)

    async def astream(self, turn: Turn) -> AsyncIterator[Any]:
        """As `stream`, on the worker; cancelling the task or closing the iterator stops the turn."""
        self._remember_exit()
        loop = asyncio.get_running_loop()
        items: asyncio.Queue = asyncio.Queue()
        self._get_worker().submit(turn, lambda item: loop.call_soon_threadsafe(items.put_nowait, item))
        try:
            while True:
                kind, value = await items.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                yield value
        finally:
            turn.cancel()

    def close(self) -> None:
        """Let go of every engine; later turns load again."""
        if self._inline is not None:
            self._inline.close()
        self._engine.close()
        if self._worker is not None:
            self._worker.shut_down()

    def _stream_inline(self, turn: Turn) -> Iterator[Any]:
        if self._inline is not None and not self._inline.done:
            self._inline.finish()
        mine = self._inline = _Inline(self._engine, turn)
        try:
            yield from mine
        finally:
            mine.close()
            if self._worker is not None:  # it took over meanwhile
                self._engine.close()

    def _stream_worker(self, turn: Turn) -> Iterator[Any]:
        items: queue.SimpleQueue = queue.SimpleQueue()
        self._get_worker().submit(turn, items.put)
        try:
            while True:
                kind, value = items.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise value
                yield value
        finally:
            turn.cancel()

    def _get_worker(self) -> Worker:
        with self._lock:
            if self._worker is None:
                if self._inline is None or self._inline.done:
                    self._engine.close()
                elif threading.current_thread() is threading.main_thread():
                    self._inline.finish()
                    self._engine.close()
                self._worker = Worker()
            return self._worker

    def _remember_exit(self) -> None:
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self._exit)

    def _exit(self) -> None:
        try:
            self.close()
        except Exception as error:
            print(f"[The last state could not be kept: {error}]", file=sys.stderr)


OWNER = Owner()
