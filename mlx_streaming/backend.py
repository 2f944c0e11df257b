"""ChatBackend: what the plugin asks of an engine; FakeBackend answers from a script, without a model."""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from .config import EngineConfig
from .errors import EngineError
from .request import Event, GenResult, Reasoning, Request, Status, Text, ToolCall


class ChatBackend(Protocol):
    """One checkpoint that answers requests, one at a time; every call must come from the same thread."""

    def load(self, on_status: Callable[[Status], None] | None = None) -> Any:
        """Load the checkpoint unless that is done already. Raises EngineError."""

    def stream(self, request: Request) -> Generator[Event, None, GenResult]:
        """Yield the answer as it comes; the generator's return value is the result. Raises EngineError."""

    def generate(self, request: Request, on_event: Callable[[Event], None] | None = None) -> GenResult:
        """Run a turn to its end, handing each event to `on_event`. Raises EngineError."""
        stream = self.stream(request)
        while True:
            try:
                event = next(stream)
            except StopIteration as end:
                return end.value
            if on_event is not None:
                on_event(event)

    def settle(self) -> None:
        """Finish the work that was put off until the answer was on the screen."""

    def close(self) -> None:
        """Let go of memory and files; a later `stream` loads again."""


def open_backend(path: Path, config: EngineConfig) -> ChatBackend:
    """The backend that `config.backend` names: "mlx", "fake", or "fake:SCRIPT.json".

    Raises:
        EngineError: no such backend, or MLX is not installed.
    """
    kind, _, script = config.backend.partition(":")
    if kind == "fake":
        return FakeBackend(json.loads(Path(script).read_text("utf-8")) if script else {})
    if kind != "mlx":
        raise EngineError(f"There is no backend {config.backend!r}; use mlx, fake or fake:SCRIPT.json.")
    try:
        from .mlx_backend import MLXBackend
    except ImportError as error:
        raise EngineError(
            f"MLX cannot be imported ({error}); on a Mac run: llm install mlx mlx-lm"
            " - on Linux: llm install 'mlx[cpu]' mlx-lm"
        ) from error
    return MLXBackend(path, config)


class FakeBackend(ChatBackend):
    """Answers from `script`, a dict (all keys optional):

    turns: one dict for each assistant turn of a conversation, chosen by how many came before; each may have
        reasoning, text, calls (a list of {"name", "arguments", "error"}), finish,
        fail (an EngineError's text) and crash (a RuntimeError's).
        Text may contain {user} (the last user message) and {count} (the number of messages).
        Past the end, or without turns, the answer is "You said: {user}".
    delay: seconds before each word; load and prefill: steps of progress to show, `delay` seconds each.
    record: a file that every request is appended to as one line of JSON.
    """

    def __init__(self, script: dict[str, Any] | None = None):
        self.script = script or {}
        self.loads = 0
        self._loaded = False

    def load(self, on_status: Callable[[Status], None] | None = None) -> None:
        if not self._loaded:
            self._loaded = True
            self.loads += 1
            self._progress("load", on_status)

    def stream(self, request: Request) -> Generator[Event, None, GenResult]:
        self.load(request.on_status)
        self._record(request)
        turn = self._turn(request)
        if "fail" in turn:
            raise EngineError(turn["fail"])
        if "crash" in turn:
            raise RuntimeError(turn["crash"])
        result = GenResult(
            prompt_tokens=sum(len(_words(str(m.get("content") or ""))) for m in request.messages),
            finish_reason=turn.get("finish", "stop"),
            seed=request.sampling.seed,
            token_ids=[],
        )
        if self._progress("prefill", request.on_status, request.should_stop):
            return replace(result, finish_reason="interrupted")
        for event in self._events(turn, request):
            if request.should_stop():
                return replace(result, finish_reason="interrupted")
            if request.max_tokens and result.completion_tokens >= request.max_tokens:
                return replace(result, finish_reason="length")
            time.sleep(self.script.get("delay", 0))
            _add(result, event)
            yield event
        if result.tool_calls and result.finish_reason == "stop":
            result.finish_reason = "tool_calls"
        if request.schema is not None and not result.tool_calls:
            result.schema_valid = _is_json(result.text)
        return result

    def settle(self) -> None:
        """Nothing was put off."""

    def close(self) -> None:
        self._loaded = False

    def _progress(self, phase: str, on_status, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Show the script's steps of `phase`; True when it was stopped on the way."""
        steps = self.script.get(phase, 0)
        for done in range(steps + 1 if steps else 0):
            if should_stop():
                return True
            if on_status is not None:
                on_status(Status(phase, done, steps))
            time.sleep(self.script.get("delay", 0))
        return False

    def _record(self, request: Request) -> None:
        if "record" in self.script:
            facts = asdict(replace(request, should_stop=None, on_status=None))
            with open(self.script["record"], "a", encoding="utf-8") as file:
                file.write(json.dumps(facts) + "\n")

    def _turn(self, request: Request) -> dict[str, Any]:
        turns = self.script.get("turns", [])
        number = sum(m["role"] == "assistant" for m in request.messages)
        return turns[number] if number < len(turns) else {"text": "You said: {user}"}

    def _events(self, turn: dict[str, Any], request: Request) -> Generator[Event, None, None]:
        user = next((m["content"] for m in reversed(request.messages) if m["role"] == "user"), "")
        text = turn.get("text", "").replace("{user}", user).replace("{count}", str(len(request.messages)))
        if request.thinking is not False:
            yield from map(Reasoning, _words(turn.get("reasoning", "")))
        yield from map(Text, _words(text))
        for number, call in enumerate(turn.get("calls", [])):
            arguments = call.get("arguments", {})
            raw = json.dumps({"name": call["name"], "arguments": arguments})
            yield ToolCall(f"call_{number}", call["name"], arguments, raw, call.get("error"))


def _words(text: str) -> list[str]:
    """`text` in pieces of one word and the blanks before it."""
    return re.findall(r"\s*\S+|\s+$", text)


def _add(result: GenResult, event: Event) -> None:
    """File `event` in the result, as one token whose id depends on its words alone."""
    words = event.raw if isinstance(event, ToolCall) else event.text
    result.token_ids.append(zlib.crc32(words.encode()) % 50_000)
    result.completion_tokens += 1
    match event:
        case Text(text):
            result.text += text
        case Reasoning(text):
            result.reasoning += text
            result.reasoning_tokens += 1
        case ToolCall():
            result.tool_calls.append(event)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
