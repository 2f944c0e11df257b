"""The text of a tool call to ToolCall events: parse, repair where unambiguous, fit to the tool's schema."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..request import ToolCall
from .arguments import coerce, problem
from .lenient_json import parse_values

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Tools = Sequence[dict[str, Any]]
_FUNCTION = re.compile(r"<function=.*?(?:</function>|(?=<function=)|\Z)", re.DOTALL)
_NAME = re.compile(r"""<function=\s*([^\s<>]+)|["']name["']\s*:\s*["']([^"']*)["']""")


def tool_family(tokenizer: TokenizerWrapper) -> str | None:
    """mlx-lm's name for how this checkpoint writes calls ("json_tools", "qwen3_coder", ...), or None."""
    if tokenizer.tool_parser is None:
        return None
    return tokenizer.tool_parser.__module__.rpartition(".")[2]


def functions(tools: Tools) -> dict[str, dict[str, Any]]:
    """Parameter schema by tool name, in the order offered."""
    found = {}
    for tool in tools:
        function = tool.get("function") or tool
        found[function["name"]] = function.get("parameters") or {"type": "object", "properties": {}}
    return found


def read_calls(
    tokenizer: TokenizerWrapper, raw: str, tools: Tools, truncated: bool = False
) -> list[ToolCall]:
    """The calls in one block (`raw`: what stood between the markers), in order; never empty.

    `truncated`: generation ended inside the block, so nothing missing at its end may be filled in.
    """
    try:
        parsed = _parse(tokenizer, raw, tools, truncated)
        return [_fitted(name, arguments, untyped, raw, tools, id) for name, arguments, untyped, id in parsed]
    except (ValueError, RecursionError) as error:
        match = _NAME.search(raw)
        name = (match[1] or match[2]) if match else ""
        reason = "the answer was cut off inside this tool call" if truncated else f"not a tool call: {error}"
        return [ToolCall(_new_id(), name, {}, raw, reason)]


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


_Parsed = tuple[str, dict[str, Any], bool, str | None]  # name, arguments, untyped, the model's own id


def _parse(tokenizer: TokenizerWrapper, raw: str, tools: Tools, truncated: bool) -> list[_Parsed]:
    text, family = raw.strip(), tool_family(tokenizer)
    if family in ("qwen3_coder", "json_tools"):  # models trained on both mix them up
        return _parse_xml(text, truncated) if "<function=" in text else _parse_json(text, truncated)
    try:
        found = tokenizer.tool_parser(raw, list(tools))
    except Exception as error:  # each family's parser raises its own kinds
        if text.startswith("{"):
            return _parse_json(text, truncated)
        raise ValueError(str(error) or type(error).__name__) from error
    return [_named(call) for call in (found if isinstance(found, list) else [found])]


def _parse_xml(text: str, truncated: bool) -> list[_Parsed]:
    from mlx_lm.tool_parsers.qwen3_coder import parse_tool_call

    found = []
    for block in _FUNCTION.findall(text):
        if not block.rstrip().endswith("</function>"):
            if truncated:
                raise ValueError("it is cut off")
            block = block.rstrip() + "\n</function>"
        # Without the tools every value stays the text it is ("null" apart): converted by schema in `_fitted`.
        call = parse_tool_call(block.rstrip(), None)
        found.append((call["name"], call["arguments"], True, None))
    return found


def _parse_json(text: str, truncated: bool) -> list[_Parsed]:
    values = parse_values(text, close=not truncated)
    calls = [call for value in values for call in (value if isinstance(value, list) else [value])]
    if not calls:
        raise ValueError("the list of calls is empty")
    return [_named(call) for call in calls]


def _named(call: Any) -> _Parsed:
    """Name, arguments and id of one call as the parsers or the model's JSON give it."""
    if not isinstance(call, dict):
        raise ValueError("a call is an object with a name and arguments")
    inner = call.get("function")
    if isinstance(inner, dict) and "name" not in call:
        call = inner | {"id": call.get("id")}
    name = call.get("name", inner if isinstance(inner, str) else None)
    if not isinstance(name, str) or not name.strip():
        raise ValueError("the name is missing")
    arguments = call.get("arguments", call.get("parameters"))
    extra = call.keys() - {"name", "arguments", "parameters", "function", "type", "id"}
    if arguments is None and extra:
        raise ValueError(f"it has {', '.join(sorted(extra))} but no arguments")
    if isinstance(arguments, str):
        arguments = parse_values(arguments)[0] if arguments.strip() else None
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not an object")
    own = call.get("id")
    return name.strip(), arguments, False, own if isinstance(own, str) and own else None


def _fitted(
    name: str, arguments: dict[str, Any], untyped: bool, raw: str, tools: Tools, own_id: str | None
) -> ToolCall:
    offered = functions(tools)
    name = _offered_name(name, offered)
    if name not in offered:
        names = ", ".join(offered) or "none"
        error = f"there is no tool named {name!r} here (offered: {names})"
        return ToolCall(own_id or _new_id(), name, arguments, raw, error)
    schema = offered[name]
    if untyped:  # mlx-lm reads the text "null" as None even for a string: back to text, `coerce` decides
        arguments = {key: "null" if value is None else value for key, value in arguments.items()}
    arguments = coerce(arguments, schema, untyped)
    wrong = problem(arguments, schema)
    return ToolCall(
        own_id or _new_id(), name, arguments, raw, f"invalid arguments: {wrong}" if wrong else None
    )


def _offered_name(name: str, offered: dict[str, Any]) -> str:
    """The offered tool meant by `name`: itself, or the only one that differs in case, dash or prefix only."""
    if name in offered:
        return name

    def plain(word: str) -> str:
        return word.removeprefix("functions.").replace("-", "_").casefold()

    meant = [tool for tool in offered if plain(tool) == plain(name)]
    return meant[0] if len(meant) == 1 else name
