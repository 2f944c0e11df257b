"""What goes into the engine and what comes out: plain frozen data, no behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Status:
    """Progress before the first word: phase "load" or "prefill", `done` of `total` (bytes or tokens)."""

    phase: str
    done: int
    total: int


def _ignore(status: Status) -> None:
    pass


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `None` means: as the checkpoint's generation_config.json says.

    Temperature 0 is greedy. Penalties look at the last `repetition_context` tokens. `seed` None draws one.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_context: int = 64
    seed: int | None = None


@dataclass(frozen=True)
class Request:
    """One turn.

    `messages` are chat messages as a template takes them: `{"role", "content"}`, with `tool_calls`
    (`[{"type": "function", "function": {"name", "arguments": dict}, "id"}]`) and `reasoning_content` on
    assistant messages, role "tool" for results. An assistant message may carry `token_ids`: the exact ids
    that the model generated for it, without the end-of-turn token.
    `tools` are `{"type": "function", "function": {"name", "description", "parameters"}}`.
    `mtp` is "off", "auto", "1", "2" or "3"; `cache` is "on", "memory" (nothing written to disk) or "off".
    `should_stop` is polled between forward passes; `on_status` hears of progress before the first word, on
    the thread that runs the engine.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    schema: dict[str, Any] | None = None
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    thinking_budget: int | None = None
    grammar: bool = True
    mtp: str = "auto"
    cache: str = "on"
    should_stop: Callable[[], bool] = _never
    on_status: Callable[[Status], None] = _ignore


@dataclass(frozen=True)
class Text:
    """Visible words of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Words the model thought before its answer."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """One complete call. `error` is set when it could not be parsed or does not fit the tool's schema."""

    id: str
    name: str
    arguments: dict[str, Any]
    raw: str
    error: str | None = None


Event = Text | Reasoning | ToolCall


@dataclass
class GenResult:
    """A finished turn.

    `finish_reason`: "stop" (the model ended), "stop_string", "length", "tool_calls" or "interrupted".
    `token_ids` are the generated ids without the end-of-turn token, or None when the visible answer is not
    exactly these tokens (a stop string cut it). Times in seconds, rates in tokens per second, sizes in bytes.
    `experts` is what the layers' slots did (see experts.stats), those of a streamed MTP head are in
    `mtp["experts"]`; `state` counts what the snapshots did. `seed` is the one asked for.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] | None = None
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    prompt_tps: float = 0.0
    generation_tps: float = 0.0
    ttft_s: float = 0.0
    load_s: float = 0.0
    restore_s: float = 0.0
    snapshot_bytes: int = 0
    peak_memory: int = 0
    seed: int | None = None
    schema_valid: bool | None = None
    experts: dict[str, Any] = field(default_factory=dict)
    mtp: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
