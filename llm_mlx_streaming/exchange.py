"""One prompt as the engine sees it, and the engine's answer as llm sees it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llm
from llm.parts import StreamEvent, ToolCallPart

from . import registry, terminal, transcript
from .owner import EngineKey, Turn
from .progress import Progress
from .refusal import refuse

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_told: set[str] = set()  # notes that one process gives once


class Exchange:
    """Everything about one call of `execute`: `turn` for the owner, then events, result or error for llm."""

    def __init__(self, name: str, prompt: llm.Prompt, response: Any, conversation: Any):
        """Resolve the checkpoint called `name` and put the request together. Raises EngineError."""
        self.prompt = prompt
        self.response = response
        self.checkpoint = registry.resolve(name)
        config = engine_config(self.checkpoint, prompt.options)
        self.quiet = config.quiet
        if name == registry.DEFAULT_MODEL:
            self._tell_of_demo()
        self.progress = Progress(self.checkpoint.name, self.quiet)
        self.tokens_of = token_identity(self.checkpoint)
        request = make_request(prompt, conversation, config, self.tokens_of, self.progress)
        key = EngineKey(self.checkpoint.path, replace(config, quiet=False))
        self.turn = Turn(key, request, self._unsettled)
        self._calls: list[Any] = []
        self._last: StreamEvent | None = None
        self._ids = {
            part.tool_call_id
            for message in prompt.messages
            for part in message.parts
            if isinstance(part, ToolCallPart)
        }

    def note(self, text: str) -> None:
        if not self.quiet:
            terminal.note(text)

    def events(self, event: Any) -> Iterator[StreamEvent]:
        """llm's events for one of the engine's."""
        from mlx_streaming.request import Reasoning, Text, ToolCall

        self.progress.clear()
        match event:
            case Text(text):
                yield self._keep(StreamEvent("text", _speakable(text)))
            case Reasoning(text):
                yield self._keep(StreamEvent("reasoning", _speakable(text)))
            case ToolCall():
                call_id = self._new_id(event.id)
                self._calls.append((call_id, event))
                name = event.name or "unreadable_tool_call"
                arguments = event.arguments or ({"_raw": _speakable(event.raw)} if event.error else {})
                yield StreamEvent("tool_call_name", name, tool_call_id=call_id)
                yield self._keep(StreamEvent("tool_call_args", json.dumps(arguments), tool_call_id=call_id))

    def finish(self) -> Iterator[StreamEvent]:
        """After the last event: hand llm the calls, usage and facts, and what stays with the message."""
        self.progress.clear()
        result = self.turn.result
        self._hand_over_calls(result.finish_reason)
        self.response.set_usage(
            input=result.prompt_tokens,
            output=result.completion_tokens,
            details={k: v for k, v in _details(result).items() if v} or None,
        )
        self.response.set_resolved_model(self.checkpoint.identity)
        self.response.response_json = facts(result)
        self._tell_of_end(result)
        if result.token_ids and self._last is not None:
            last = self._last
            metadata = transcript.exact_tokens(result.token_ids, self.tokens_of)
            yield StreamEvent(last.type, "", tool_call_id=last.tool_call_id, provider_metadata=metadata)

    def _keep(self, event: StreamEvent) -> StreamEvent:
        self._last = event
        return event

    def _new_id(self, wanted: str) -> str:
        """An id that no other call of the conversation has."""
        call_id, number = wanted or "call", 1
        while call_id in self._ids:
            call_id, number = f"{wanted or 'call'}_{self.response.id[-8:]}_{number}", number + 1
        self._ids.add(call_id)
        return call_id

    def _hand_over_calls(self, finish_reason: str) -> None:
        if finish_reason == "interrupted":
            return
        for call_id, call in self._calls:
            name = call.name
            if call.error and finish_reason == "length":
                self.note(f"The tool call {name or call.raw!r} was not run: {call.error}.")
                continue
            if call.error:
                name = refuse(self.prompt, name, call_id, call.error)
            self.response.add_tool_call(llm.ToolCall(name, call.arguments, call_id))

    def _tell_of_end(self, result: Any) -> None:
        if result.finish_reason == "length":
            self.note(
                f"[The answer was cut off after {result.completion_tokens} tokens:"
                " raise -o max_tokens, or the context is full]"
            )
        if result.schema_valid is False:
            self.note("[The answer does not fit the schema]")
        self._tell_of_disk(str(result.state.get("disk")))

    def _tell_of_demo(self) -> None:
        if registry.read().default is None:
            self._note_once(
                "demo",
                "[No model is registered yet: the small embedded demo answers."
                f" Get the real one with: {registry.GET_REAL_MODEL}]",
            )

    def _tell_of_disk(self, state: str) -> None:
        if self.turn.request.cache == "on" and state.startswith("off: "):
            self._note_once(
                "disk",
                f"[Snapshots are not kept on disk ({state.removeprefix('off: ')}): set"
                " LLM_MLX_STREAMING_CACHE_DIR to a directory that can be written]",
            )

    def _note_once(self, what: str, text: str) -> None:
        if what not in _told:
            _told.add(what)
            self.note(text)

    def _unsettled(self, error: Exception) -> None:
        self.note(f"[The answer is complete, but its state could not be kept: {error}]")


def engine_config(checkpoint: registry.Checkpoint, options: Any) -> Any:
    """EngineConfig from the checkpoint's settings, then the environment, then options. Raises EngineError."""
    from mlx_streaming.config import EngineConfig

    config = EngineConfig.from_env(
        checkpoint.settings,
        slots=options.slots,
        memory=str(options.memory) if options.memory else None,
        context=options.context,
        quiet=options.quiet,
    )
    cache_dir = config.cache_dir or str(registry.home() / "cache")
    if (llm.user_dir() / "logs-off").exists():  # `llm logs off`: conversations leave no trace on disk
        cache_dir = None
    mtp = config.mtp
    if mtp == "off" and options.mtp not in (None, "off"):  # asked for: the head must be loaded
        mtp = options.mtp
    return replace(
        config,
        mtp=mtp,
        cache_dir=cache_dir,
        usage_dir=config.usage_dir or str(registry.home() / "usage"),
        mtp_dir=config.mtp_dir or str(registry.home() / "mtp"),
        measured_file=config.measured_file or str(registry.home() / "measured.json"),
    )


def make_request(
    prompt: llm.Prompt, conversation: Any, config: Any, tokens_of: str, progress: Progress
) -> Any:
    """The engine's Request for an llm prompt."""
    from mlx_streaming.request import Request, Sampling

    options = prompt.options
    cache = options.cache or "on"
    if cache == "on" and terminal.without_log():
        cache = "memory"
    return Request(
        messages=tuple(transcript.chat_messages(prompt.messages, prompt.system, tokens_of)),
        tools=tuple(transcript.chat_tools(prompt.tools)),
        schema=transcript.schema_of(prompt, conversation),
        sampling=Sampling(**{name: getattr(options, name) for name in SAMPLING}),
        max_tokens=options.max_tokens,
        stop=tuple(options.stop or ()),
        thinking=None if options.thinking is None else options.thinking == "on",
        thinking_budget=options.thinking_budget,
        grammar=options.grammar != "off",
        mtp=options.mtp or config.mtp,
        cache=cache,
        on_status=progress,
    )


def facts(result: Any) -> dict[str, Any]:
    """What llm logs as response_json; always JSON."""
    experts = result.experts
    return _jsonable(
        {
            "finish_reason": result.finish_reason,
            "prompt_tokens": result.prompt_tokens,
            "cached_tokens": result.cached_tokens,
            "completion_tokens": result.completion_tokens,
            "prompt_tps": result.prompt_tps,
            "generation_tps": result.generation_tps,
            "ttft_s": result.ttft_s,
            "load_s": result.load_s,
            "restore_s": result.restore_s,
            "snapshot_bytes": result.snapshot_bytes,
            "peak_memory": result.peak_memory,
            "expert_hit_rate": experts.get("hit_rate"),
            "expert_bytes_read": experts.get("bytes_read"),
            "seed": result.seed,
            "schema_valid": result.schema_valid,
            "experts": experts,
            "mtp": result.mtp,
            "state": result.state,
        }
    )


@functools.cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "none"


def token_identity(checkpoint: registry.Checkpoint) -> str:
    """Under which identity this checkpoint's token ids are kept: its name and its tokenizer."""
    return f"{checkpoint.identity}#{_file_digest(checkpoint.path / 'tokenizer.json')}"


def _details(result: Any) -> dict[str, int]:
    return {"cached": result.cached_tokens, "reasoning_tokens": result.reasoning_tokens}


def _speakable(text: str) -> str:
    """Lone surrogates cannot be printed or logged."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_jsonable(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
