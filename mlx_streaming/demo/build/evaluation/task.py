"""What a task is: conversations to be answered, and a score for each last answer."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..corpus.text import compact


@dataclass(frozen=True)
class Case:
    """A conversation. User messages that follow one another are answered by the model one by one."""

    messages: list[dict]
    expected: Any
    tools: list[dict] | None = None
    draft: str = ""  # the text the model is likely to answer, see generate.py


@dataclass(frozen=True)
class Task:
    name: str
    cases: list[Case]
    score: Callable[[str, Any], bool]  # score(answer, expected)
    max_tokens: int = 80


def call_text(calls: list[dict]) -> str:
    """Tool calls as the chat template writes them."""
    bodies = (f'{{"name": "{c["name"]}", "arguments": {compact(c["arguments"])}}}' for c in calls)
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def calls(text: str) -> list[dict] | None:
    """The tool calls of an answer, or None where one is no JSON."""
    try:
        return [json.loads(c) for c in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", text, re.S)]
    except json.JSONDecodeError:
        return None


def exact_calls(text: str, expected: list[dict]) -> bool:
    return calls(text) == expected


def no_call(text: str, expected: Any) -> bool:
    return "<tool_call>" not in text


def same_text(text: str, expected: str) -> bool:
    return text.strip() == expected.strip()


def same_json(text: str, expected: Any) -> bool:
    try:
        return json.loads(text) == expected
    except json.JSONDecodeError:
        return False


def matches(text: str, pattern: str) -> bool:
    return re.search(pattern, text) is not None


def contains(text: str, part: str) -> bool:
    return part in text
