"""llm's messages as chat messages for a template, and back: history, tools, schema, exact token ids.

History comes from `prompt.messages` alone: it is what llm logged, also when another process or another
model wrote it. What we add to it is part metadata under our own name:

    {"mlx_streaming": {"ids": [...], "checkpoint": "..."}}   exact tokens of an assistant turn
    {"mlx_streaming": {"failed": "..."}}                     a turn that ended in an error
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import llm
from llm.parts import (
    AttachmentPart,
    Message,
    Part,
    ReasoningPart,
    StreamEvent,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

NAMESPACE = "mlx_streaming"
NOT_RUN = "Error: this call was not run."


class Refusal(llm.Tool):
    """Stands in for a call that cannot be run; never offered to the model."""


def chat_messages(messages: Iterable[Message], system: str | None, checkpoint: str) -> list[dict[str, Any]]:
    """Chat messages (see mlx_streaming.request.Request) for what llm says was said.

    `system` is this prompt's own system text (`prompt.system`). Where it differs from the one in the history
    (`llm -c -s NEW`) it takes its place for this prompt; llm does not log it, so give it again with the next.
    `checkpoint` is the identity under which token ids may be used.
    """
    kept = _without_failed(list(messages))
    chat: list[dict[str, Any]] = []
    pending: list[ToolCallPart] = []
    for message in kept:
        if message.role != "tool":
            chat += _results_not_run(pending)
            pending = []
        if message.role == "assistant":
            chat.append(_assistant(message, checkpoint))
            pending = _calls(message)
        elif message.role == "tool":
            chat += _results(message, pending)
        else:
            chat.append({"role": message.role, "content": _text(message.parts)})
    chat += _results_not_run(pending)
    _set_system(chat, system)
    if not chat or chat[-1]["role"] not in ("user", "tool"):
        chat.append({"role": "user", "content": ""})
    return chat


def chat_tools(tools: Iterable[Any]) -> list[dict[str, Any]]:
    """Tools as a template takes them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
        if not isinstance(tool, Refusal)
    ]


def schema_of(prompt: llm.Prompt, conversation: Any) -> dict[str, Any] | None:
    """This prompt's JSON schema; llm drops it after the first round of a tool chain, so look there too."""
    if prompt.schema or not prompt.tool_results or conversation is None:
        return prompt.schema or None
    for response in reversed(conversation.responses):
        if response.prompt.schema:
            return response.prompt.schema
        if not response.prompt.tool_results:
            return None
    return None


def exact_tokens(ids: list[int], checkpoint: str) -> dict[str, Any]:
    """Part metadata that keeps an assistant turn's exact tokens."""
    return {NAMESPACE: {"ids": [int(i) for i in ids], "checkpoint": checkpoint}}


def failed_turn(reason: str) -> StreamEvent:
    """An event without text that marks the turn as failed, so that it is left out of later prompts."""
    return StreamEvent("reasoning", "", provider_metadata={NAMESPACE: {"failed": reason}})


def _own(part: Part) -> dict[str, Any]:
    found = (part.provider_metadata or {}).get(NAMESPACE)
    return found if isinstance(found, dict) else {}


def _without_failed(messages: list[Message]) -> list[Message]:
    """Leave out every failed turn together with what was asked in it."""
    kept: list[Message] = []
    for message in messages:
        if message.role == "assistant" and any("failed" in _own(part) for part in message.parts):
            while kept and kept[-1].role in ("user", "tool"):
                kept.pop()
        else:
            kept.append(message)
    return kept


def _text(parts: Iterable[Part]) -> str:
    bits = []
    for part in parts:
        if isinstance(part, TextPart):
            bits.append(part.text)
        elif isinstance(part, AttachmentPart):
            kind = part.attachment.type if part.attachment else None
            bits.append(f"[An attachment ({kind or 'unknown type'}) that this model cannot see]")
    return "\n".join(bits)


def _calls(message: Message) -> list[ToolCallPart]:
    return [p for p in message.parts if isinstance(p, ToolCallPart) and not p.server_executed]


def _assistant(message: Message, checkpoint: str) -> dict[str, Any]:
    """An assistant message; reasoning and tokens only where this plugin wrote them with this checkpoint."""
    chat: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(p.text for p in message.parts if isinstance(p, TextPart)),
    }
    own = next((_own(p) for p in message.parts if _own(p)), {})
    reasoning = "".join(p.text for p in message.parts if isinstance(p, ReasoningPart))
    if own and reasoning:
        chat["reasoning_content"] = reasoning
    calls = _calls(message)
    if calls:
        chat["tool_calls"] = [
            {
                "type": "function",
                "id": call.tool_call_id,
                "function": {"name": call.name, "arguments": call.arguments or {}},
            }
            for call in calls
        ]
    if own.get("checkpoint") == checkpoint and isinstance(own.get("ids"), list):
        chat["token_ids"] = own["ids"]
    return chat


def _results(message: Message, pending: list[ToolCallPart]) -> list[dict[str, Any]]:
    """Tool messages of `message`; each takes the call that it answers off `pending`."""
    chat = []
    for part in message.parts:
        if not isinstance(part, ToolResultPart):
            continue
        call = next((c for c in pending if c.tool_call_id and c.tool_call_id == part.tool_call_id), None)
        call = call or next((c for c in pending if c.name == part.name), None)
        if call is not None:
            pending.remove(call)
        output = part.output
        if part.exception and not output.startswith(("Error", "Cancelled")):
            output = f"Error: {part.exception}\n{output}".rstrip()
        chat.append(_result(part.name, part.tool_call_id, output))
    return chat


def _results_not_run(pending: list[ToolCallPart]) -> list[dict[str, Any]]:
    return [_result(call.name, call.tool_call_id, NOT_RUN) for call in pending]


def _result(name: str, call_id: str | None, output: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": call_id, "content": output}


def _set_system(chat: list[dict[str, Any]], system: str | None) -> None:
    if not system:
        return
    if chat and chat[0]["role"] == "system":
        chat[0] = {"role": "system", "content": system}
    else:
        chat.insert(0, {"role": "system", "content": system})
