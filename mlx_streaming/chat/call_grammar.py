"""Lark rules (llguidance dialect) for the body of a tool call: only offered names and fitting arguments."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from .arguments import kinds, resolved
from .schema import Schema, loosened
from .toolcalls import functions

Tools = Sequence[dict[str, Any]]
_XML_WORD = re.compile(r"[^\s<>]+")
# Text without closing tags. A complement alone would also match the bytes that stand for special tokens.
_PLAIN = r"/(?s:.*)/ & ~/(?s:.*<\/(parameter|function|tool_call)>.*)/"
_PATTERN_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def call_rules(family: str, tools: Tools) -> str | None:
    """Rules with the top rule `body`: what stands between the call markers. None: no grammar for these.

    Argument schemas may be wider than asked for (see `schema.loosened`); calls are validated after parsing.
    """
    offered = functions(tools)
    if not offered:
        return None
    if family == "json_tools":
        rules = [_json_call(i, name, schema) for i, (name, schema) in enumerate(offered.items())]
    elif family == "qwen3_coder":
        words = [*offered, *(key for schema in offered.values() for key in schema.get("properties") or {})]
        if not all(_XML_WORD.fullmatch(word) for word in words):
            return None
        rules = [_xml_call(i, name, schema) for i, (name, schema) in enumerate(offered.items())]
    else:
        return None
    names = " | ".join(f"call{i}" for i in range(len(offered)))
    return "\n".join([f"body: {names}", *rules])


def quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text, ensure_ascii=False)


def json_rule(schema: Schema) -> str:
    """An inline JSON value of that schema."""
    return f"%json {json.dumps(schema)}"


def _wide_rule(schema: Schema) -> str:
    """As `json_rule` of the loosened schema; of its types alone where llguidance refuses the rest."""
    rule = json_rule(loosened(schema))
    if _accepted(f"start: {rule}"):
        return rule
    return json_rule(loosened({"type": sorted(kinds(schema, schema))} if kinds(schema, schema) else {}))


@functools.lru_cache(maxsize=1024)
def _accepted(lark: str) -> bool:
    import llguidance

    return not llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(lark))


def _json_call(i: int, name: str, schema: Schema) -> str:
    start = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return f"call{i}: {quoted(start)} {_wide_rule(schema | {'type': 'object'})} {quoted('}')}"


def _xml_call(i: int, name: str, schema: Schema) -> str:
    required = set(schema.get("required") or ())
    parts, rules = [], []
    for j, (key, part) in enumerate((schema.get("properties") or {}).items()):
        rule = f"p{i}_{j}"
        parts.append(rule if key in required else f"{rule}?")
        rules += _xml_parameter(rule, key, part, schema)
    head = f"call{i}: {quoted(f'<function={name}>' + chr(10))} {' '.join(parts)} {quoted('</function>')}"
    return "\n".join([head, *rules])


def _xml_parameter(rule: str, key: str, schema: Schema, root: Schema) -> list[str]:
    end = quoted("\n</parameter>\n")
    literals, texts, typed = _alternatives(schema, root)
    choices = [f"{quoted(word)} {end}" for word in literals]
    choices += [f"{rule.upper()}_{n}_END" for n in range(len(texts))]
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    choices += [f"{_wide_rule(part | shared)} {end}" for part in typed]
    rules = [f"{rule}: {quoted(f'<parameter={key}>' + chr(10))} ({' | '.join(choices)})"]
    for n, text in enumerate(texts):
        # One terminal up to the closing tag: as the text cannot contain that tag, its end is never in doubt.
        rules += [f"{rule.upper()}_{n}_END: {rule.upper()}_{n} {end}", f"{rule.upper()}_{n}: {text}"]
    return rules


def _alternatives(schema: Schema, root: Schema) -> tuple[list[str], list[str], list[Schema]]:
    """How a parameter may be written: literal strings, raw text (terminals), JSON values (schemas)."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return [], [_PLAIN], []
    for key in ("anyOf", "oneOf"):
        if key in schema:
            beside = {k: v for k, v in schema.items() if k != key}
            found = [_alternatives(beside | resolved(part, root), root) for part in schema[key]]
            return tuple(sum(lists, []) for lists in zip(*found, strict=True))  # type: ignore[return-value]
    if "allOf" in schema and "string" in kinds(schema, root):
        for part in schema["allOf"]:  # a string without quotes: its constraints side by side
            schema = schema | resolved(part, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        words = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        return words, [], [{"enum": others}] if others else []
    named = kinds(schema, root)
    others = named - {"string"}
    texts = [_text_terminal(schema)] if "string" in named or not named else []
    return [], texts, [schema | {"type": sorted(others)}] if others else []


def _text_terminal(schema: Schema) -> str:
    """A terminal for a string written without quotes, as far as its constraints can be written as one."""
    import llguidance

    parts = [_PLAIN]
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if low or high is not None:
        parts.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and (searched := _searched(pattern)) is not None:
        text = f"/{llguidance.regex_to_lark(searched, 'dw')}/"
        if _accepted(f"start: {text}"):
            parts.append(text)
    return " & ".join(parts)


def _searched(pattern: str) -> str | None:
    """A regex for the whole of a text that `pattern` is found in; None where its anchors stand inside."""
    items = _PATTERN_PART.findall(pattern)
    start, end = items[:1] == ["^"], items[-1:] == ["$"]
    inner = items[start : len(items) - end]
    depth = 0
    for item in inner:
        depth += (item == "(") - (item == ")")
        if item in ("^", "$") or (item == "|" and depth == 0 and (start or end)):
            return None
    return f"{'' if start else '(?s:.*)'}({''.join(inner)}){'' if end else '(?s:.*)'}"
