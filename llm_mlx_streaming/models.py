"""The sync and async model classes: llm calls `execute`, the owner runs the engine.

Every `llm` command that lists models imports this module, so what only an answer needs is imported there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import StreamEvent

if TYPE_CHECKING:
    from .exchange import Exchange


class _LazyOptions:
    """The options class, made when it is first asked for: pydantic takes longer over it than all the rest."""

    def __get__(self, instance: Any, owner: type) -> type[llm.Options]:
        from .options import Options

        return Options


class _Streaming:
    can_stream = True
    supports_schema = True
    supports_tools = True

    Options = _LazyOptions()

    def __init__(self, model_id: str):
        self.model_id = model_id

    def __str__(self) -> str:
        return f"MLX streaming: {self.model_id}"


class StreamingModel(_Streaming, llm.Model):
    """A registered checkpoint, the default, or the demo."""

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: Any
    ) -> Iterator[StreamEvent]:
        from mlx_streaming.errors import EngineError

        from . import terminal
        from .exchange import Exchange

        try:
            yield from _answer(Exchange(self.model_id, prompt, response, conversation))
        except Exception as error:
            if terminal.command() == "chat":  # it has no handler: an exception would end it with a traceback
                yield _failed(response, error)
            elif isinstance(error, EngineError):
                raise llm.ModelError(str(error)) from error
            else:
                raise


class AsyncStreamingModel(_Streaming, llm.AsyncModel):
    """The same for asyncio; shares the engine with the sync model."""

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.AsyncResponse, conversation: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        from mlx_streaming.errors import EngineError

        from . import terminal
        from .exchange import Exchange
        from .owner import OWNER

        try:
            exchange = Exchange(self.model_id, prompt, response, conversation)
            pipe = terminal.Pipe()
            events = OWNER.astream(exchange.turn)
            try:
                with terminal.interruptible(exchange.turn.cancel):
                    async for event in events:
                        if pipe.closed():
                            exchange.turn.cancel()
                        for shown in exchange.events(event):
                            yield shown
                    for shown in exchange.finish():
                        yield shown
                    pipe.closed()
            finally:
                exchange.progress.clear()
                await events.aclose()
        except EngineError as error:
            raise llm.ModelError(str(error)) from error


def _failed(response: llm.Response, error: Exception) -> StreamEvent:
    """Tell of `error` on stderr and in the log; the conversation goes on without this turn."""
    from mlx_streaming.errors import EngineError

    from . import terminal, transcript

    text = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    terminal.note(f"Error: {text}")
    response.response_json = {"finish_reason": "error", "error": text}
    return transcript.failed_turn(text)


def _answer(exchange: Exchange) -> Iterator[StreamEvent]:
    from . import terminal
    from .owner import OWNER

    pipe = terminal.Pipe()
    events = OWNER.stream(exchange.turn)
    try:
        with terminal.interruptible(exchange.turn.cancel):
            for event in events:
                if pipe.closed():
                    exchange.turn.cancel()
                yield from exchange.events(event)
            yield from exchange.finish()
            pipe.closed()
    finally:
        exchange.progress.clear()
        events.close()
