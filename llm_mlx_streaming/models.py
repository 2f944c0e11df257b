"""The sync and async model classes: llm calls `execute`, the owner runs the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import llm
from llm.parts import StreamEvent

from . import terminal, transcript
from .exchange import Exchange
from .options import Options
from .owner import OWNER


class _Streaming:
    can_stream = True
    supports_schema = True
    supports_tools = True

    class Options(Options):
        pass

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

        try:
            yield from _answer(Exchange(self.model_id, prompt, response, conversation))
        except EngineError as error:
            if terminal.command() != "chat":
                raise llm.ModelError(str(error)) from error
            # llm chat has no handler: an exception would end it with a traceback.
            terminal.note(f"Error: {error}")
            response.response_json = {"finish_reason": "error", "error": str(error)}
            yield transcript.failed_turn(str(error))


class AsyncStreamingModel(_Streaming, llm.AsyncModel):
    """The same for asyncio; shares the engine with the sync model."""

    async def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.AsyncResponse, conversation: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        from mlx_streaming.errors import EngineError

        try:
            exchange = Exchange(self.model_id, prompt, response, conversation)
            pipe = terminal.Pipe()
            events = OWNER.astream(exchange.turn)
            try:
                async for event in events:
                    if pipe.closed():
                        exchange.turn.cancel()
                    for shown in exchange.events(event):
                        yield shown
            finally:
                await events.aclose()
            for shown in exchange.finish():
                yield shown
        except EngineError as error:
            raise llm.ModelError(str(error)) from error


def _answer(exchange: Exchange) -> Iterator[StreamEvent]:
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
