"""JSON schemas made ready for constrained decoding: what cannot be enforced is named, objects are closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import GrammarError

Schema = dict[str, Any]

# Where schemas lie inside a schema (JSON Schema 2020-12 and the older names still in use).
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains")
_SINGLE += ("propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema")

# Assertions that llguidance 1.9 does not enforce.
UNSUPPORTED = frozenset(
    "not if then else uniqueItems dependentRequired dependentSchemas dependencies contains minContains"
    " maxContains unevaluatedItems unevaluatedProperties propertyNames $dynamicRef $recursiveRef".split()
)
# Values with which such a keyword asserts nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True,),
    "unevaluatedProperties": (True,),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}
_FORMATS = frozenset(
    "date-time time date duration email hostname ipv4 ipv6 uuid uri".split()
)  # llguidance enforces these; any other format is an annotation
_COMPOSED = ("allOf", "anyOf", "oneOf", "$ref")
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def enforceable(schema: Schema) -> Schema:
    """`schema` ready for `%json`: idle keywords and annotations gone, open objects closed, spacing fixed.

    Raises:
        GrammarError: a keyword cannot be enforced; the message names it and where it stands.
    """
    schema = _without_idle(schema)
    for path, part in _schemas(schema, "$"):
        for keyword in part:
            if keyword in UNSUPPORTED:
                raise GrammarError(
                    f"The JSON schema keyword {keyword!r} at {path} cannot be enforced while generating; "
                    "remove it from the schema."
                )
    return _spaced(_closed(schema))


def loosened(schema: Schema) -> Schema:
    """As `enforceable`, with unenforceable keywords left out: a superset, to be validated afterwards."""

    def widen(part: Schema) -> Schema:
        kept = {key: value for key, value in part.items() if key not in UNSUPPORTED}
        if "oneOf" in kept and "anyOf" not in kept:
            kept["anyOf"] = kept.pop("oneOf")
        return kept

    return _spaced(_closed(_mapped(_without_idle(schema), widen)))


def _spaced(schema: Schema) -> Schema:
    return schema | {"x-guidance": SPACING}


def _children(schema: Schema) -> Iterator[tuple[str, str | int | None, Any]]:
    """(keyword, key or index, schema) of every schema directly inside `schema`."""
    for key in _MAPS:
        if isinstance(schema.get(key), dict):
            yield from ((key, name, part) for name, part in schema[key].items())
    for key in (*_LISTS, "items"):
        if isinstance(schema.get(key), list):
            yield from ((key, i, part) for i, part in enumerate(schema[key]))
    for key in _SINGLE:
        if isinstance(schema.get(key), dict):
            yield key, None, schema[key]


def _schemas(schema: Any, path: str) -> Iterator[tuple[str, Schema]]:
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, key, part in _children(schema):
        step = f".{keyword}" if key is None else f".{keyword}.{key}"
        yield from _schemas(part, path + step)


def _mapped(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """A copy with `change` applied to every schema in it, inner ones first."""
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for keyword, key, part in _children(schema):
        part = _mapped(part, change)
        if key is None:
            result[keyword] = part
        else:
            if result[keyword] is schema[keyword]:
                result[keyword] = schema[keyword].copy()
            result[keyword][key] = part
    return change(result)


def _without_idle(schema: Schema) -> Schema:
    def change(part: Schema) -> Schema:
        kept = {key: value for key, value in part.items() if value not in _IDLE.get(key, ())}
        if "if" in kept and "then" not in kept and "else" not in kept:
            kept.pop("if")
        if "if" not in kept:
            kept.pop("then", None)
            kept.pop("else", None)
        if "contains" not in kept:
            kept.pop("minContains", None)
            kept.pop("maxContains", None)
        if kept.get("format", "date") not in _FORMATS:
            kept.pop("format")
        kept.pop("x-guidance", None)
        return kept

    return _mapped(schema, change)


def _closed(schema: Schema) -> Schema:
    """Objects that list their properties and say nothing about others get no others: a model that may invent
    properties does. Left alone where schemas are combined, since closing one part would exclude the other."""
    if any("allOf" in part for _, part in _schemas(schema, "")):
        return schema

    def close(part: Any, open_parent: bool) -> Any:
        if not isinstance(part, dict):
            return part
        result = dict(part)
        combined = any(key in part for key in _COMPOSED)
        silent = not any(key in part for key in ("additionalProperties", "patternProperties"))
        if "properties" in part and silent and not combined and not open_parent:
            result["additionalProperties"] = False
        for keyword, key, inner in _children(part):
            beside = keyword in ("anyOf", "oneOf") and ("properties" in part or "$ref" in part or open_parent)
            inner = close(inner, beside)
            if key is None:
                result[keyword] = inner
            else:
                if result[keyword] is part[keyword]:
                    result[keyword] = part[keyword].copy()
                result[keyword][key] = inner
        return result

    referenced_with_siblings = any(
        "$ref" in part and "properties" in part for _, part in _schemas(schema, "")
    )
    return schema if referenced_with_siblings else close(schema, False)
