"""Tool arguments against the tool's JSON schema: gentle conversion, then validation."""

from __future__ import annotations

import json
from typing import Any

from .lenient_json import parse_values

Schema = dict[str, Any] | bool
_DEPTH = 32  # levels of nesting that are converted; deeper values are left alone


def coerce(value: Any, schema: Schema, untyped: bool = False) -> Any:
    """`value` with scalars turned into the type that `schema` asks for, where that makes it valid.

    `untyped`: the value was written without quotes (XML styles), so a string may equally be JSON.
    """
    return _coerce(value, schema, schema, untyped, _DEPTH)


def problem(value: Any, schema: Schema) -> str | None:
    """Why `value` does not fit `schema`, in a few words; None when it does (or the schema is broken)."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(schema).iter_errors(value))
    except Exception:  # a broken or unresolvable schema cannot judge a value
        return None
    if error is None:
        return None
    where = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return f"{where[1:] if where.startswith('.') else where}: {error.message}" if where else error.message


def _validator(schema: Schema) -> Any:
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY

    kind = validator_for(schema, default=Draft202012Validator)
    return kind(schema, registry=REGISTRY)  # an explicit registry: references are never fetched from the net


def _fits(value: Any, schema: Schema, root: Schema) -> bool:
    try:
        return _validator(root).evolve(schema=schema).is_valid(value)
    except Exception:
        return True


def _coerce(value: Any, schema: Schema, root: Schema, untyped: bool, depth: int) -> Any:
    schema = resolved(schema, root)
    if not isinstance(schema, dict) or depth == 0:
        return value
    if isinstance(value, str):
        value = _from_string(value, schema, root, untyped)
    elif not isinstance(value, (dict, list)) and not _fits(value, schema, root):
        text = json.dumps(value)
        if _fits(text, schema, root):
            return text
    if isinstance(value, float) and value.is_integer() and "integer" in kinds(schema, root):
        return int(value)
    if isinstance(value, dict):
        properties = _properties(schema, root)
        return {
            key: _coerce(item, properties[key], root, untyped and depth == _DEPTH, depth - 1)
            if key in properties
            else item
            for key, item in value.items()
        }
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_coerce(item, schema["items"], root, False, depth - 1) for item in value]
    return value


def _from_string(text: str, schema: dict[str, Any], root: Schema, untyped: bool) -> Any:
    """The string itself, or what it spells when only that fits (or, untyped, when that fits at all)."""
    fits = _fits(text, schema, root)
    named = kinds(schema, root)
    if fits and not (untyped and named != {"string"}):
        return text
    try:
        values = parse_values(text.strip(), close=False)
    except ValueError:
        return text
    value = values[0]
    if len(values) != 1 or fits and isinstance(value, (str if named else (str, int, float, type(None)))):
        return text
    return value if _fits(value, schema, root) else text


def resolved(schema: Schema, root: Schema) -> Schema:
    """`schema` with a local `$ref` followed; what stands beside the reference is added."""
    for _ in range(_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        target: Any = root
        for part in schema["$ref"].removeprefix("#").split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part) if isinstance(target, dict) else None
        if not isinstance(target, dict) or not schema["$ref"].startswith("#"):
            return {key: item for key, item in schema.items() if key != "$ref"}
        schema = target | {key: item for key, item in schema.items() if key != "$ref"}
    return {}


def kinds(schema: Schema, root: Schema, depth: int = 8) -> set[str]:
    """The JSON types that `schema` names, through anyOf, oneOf and allOf; empty when it names none."""
    schema = resolved(schema, root)
    if not isinstance(schema, dict) or depth == 0:
        return set()
    named = schema.get("type")
    found = {named} if isinstance(named, str) else set(named or ())
    for key in ("anyOf", "oneOf"):
        for part in schema.get(key) or ():
            found |= kinds(part, root, depth - 1)
    for part in schema.get("allOf") or ():
        named_there = kinds(part, root, depth - 1)
        found = found & named_there if found and named_there else found | named_there
    values = [schema["const"]] if "const" in schema else schema.get("enum") or ()
    return found or {_kind(item) for item in values}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _properties(schema: dict[str, Any], root: Schema) -> dict[str, Any]:
    found = dict(schema.get("properties") or {})
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key) or ():
            part = resolved(part, root)
            if isinstance(part, dict):
                found = dict(part.get("properties") or {}) | found
    return found
