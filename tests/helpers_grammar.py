"""Random schemas, and answers drawn from random logits under a mask."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

WORDS = ["name", "age", "a b", "ü", "items", "x-y", 'q"t', "not"]
PATTERNS = ["^[a-z]+$", "[0-9]{2}", "^(ab|c)*$", "^\\d{3}-\\d{4}$", "x", "^[^x]{1,4}$"]
UNENFORCEABLE = {
    "not": {"type": "null"},
    "if": {"type": "string"},
    "uniqueItems": True,
    "dependentRequired": {"a": ["b"]},
    "contains": {"type": "integer"},
    "unevaluatedProperties": False,
    "propertyNames": {"maxLength": 3},
}


def random_schema(rng: random.Random, depth: int = 3, unenforceable: float = 0.03) -> dict[str, Any]:
    """A schema as people write them; with probability `unenforceable`, on each level, a refused keyword."""
    schema = _kind(rng, depth, unenforceable)
    if rng.random() < unenforceable:
        keyword = rng.choice(sorted(UNENFORCEABLE))
        schema[keyword] = UNENFORCEABLE[keyword]
        if keyword == "if":
            schema["then"] = {"minLength": 1}
    if rng.random() < 0.2:
        schema["description"] = "not a constraint"
    return schema


def _kind(rng: random.Random, depth: int, p: float) -> dict[str, Any]:
    def inner() -> dict[str, Any]:
        return random_schema(rng, depth - 1, p)

    simple = [
        "string",
        "pattern",
        "integer",
        "number",
        "boolean",
        "null",
        "enum",
        "const",
        "multiple",
        "format",
    ]
    nested = [
        "object",
        "object",
        "array",
        "array",
        "anyOf",
        "tuple",
        "map",
        "allOf",
        "ref",
        "nullable",
        "free",
    ]
    kind = rng.choice(simple + nested * 2 if depth > 0 else simple)
    low = rng.randint(-50, 50)
    match kind:
        case "string":
            return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(PATTERNS)}
        case "format":
            return {"type": "string", "format": rng.choice(["date", "date-time", "uuid", "ipv4", "my-own"])}
        case "integer":
            return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 300)}
        case "number":
            return {
                "type": "number",
                "exclusiveMinimum": low + 0.5,
                "exclusiveMaximum": low + 0.5 + rng.randint(1, 9),
            }
        case "multiple":
            return {"type": "integer", "multipleOf": rng.choice([2, 5, 7]), "minimum": 0, "maximum": 500}
        case "enum":
            return {
                "enum": rng.sample(["red", "blue", 3, 1.5, None, True, 'q"uote', "日本"], rng.randint(1, 4))
            }
        case "const":
            return {"const": rng.choice(["fixed", 7, [1, "two"], {"k": None}])}
        case "object":
            names = rng.sample(WORDS, rng.randint(1, 4))
            schema: dict[str, Any] = {"type": "object", "properties": {name: inner() for name in names}}
            schema["required"] = rng.sample(names, rng.randint(0, len(names)))
            if rng.random() < 0.3:
                schema["additionalProperties"] = rng.choice([False, {"type": "boolean"}])
            return schema
        case "map":
            schema = {
                "type": "object",
                "additionalProperties": inner(),
                "minProperties": 1,
                "maxProperties": 2,
            }
            if rng.random() < 0.5:
                schema["patternProperties"] = {"^[ab]{1,2}$": {"type": "integer", "minimum": 0, "maximum": 9}}
            return schema
        case "array":
            low = rng.randint(0, 2)
            return {"type": "array", "items": inner(), "minItems": low, "maxItems": low + rng.randint(0, 2)}
        case "tuple":
            return {"type": "array", "prefixItems": [inner(), inner()], "items": False, "minItems": 2}
        case "anyOf":
            return {"anyOf": [inner(), inner()]}
        case "nullable":
            return {"type": ["string", "null"], "maxLength": 5}
        case "allOf":
            return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 90}]}
        case "ref":
            # Definitions are hoisted to the root by `rooted`.
            return {"$ref": "#/$defs/shared"}
        case _:
            return {"type": "array", "maxItems": 1}
    raise AssertionError(kind)


def rooted(rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` as a root: an object, with the definition that its references need."""
    shared = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/shared"}}}
    return {
        "type": "object",
        "properties": {"value": schema, "extra": random_schema(rng, 0, 0)},
        "required": ["value"],
        "$defs": {"shared": shared | {"required": ["v"]}},
    }


class Answers:
    """Draws answers from random logits under a mask; closing characters become likelier as it gets long."""

    def __init__(self, tokenizer, vocab_size: int):
        self.tokenizer, self.size = tokenizer, vocab_size
        texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        closes = np.array([text[:1] in ('"', "}", "]") for text in texts])
        digits = np.array([text.strip().isdigit() for text in texts])
        self.closing = np.zeros(vocab_size)
        self.closing[: len(texts)] = closes * 4.0 + digits * 1.0
        self.eos = sorted(tokenizer.eos_token_ids)

    def draw(
        self,
        mask,
        seed: int,
        limit: int = 500,
        likely: dict[int, float] | None = None,
        phrase: Sequence[int] = (),
    ):
        """(ids without the end-of-turn token, whether the turn ended).

        `likely`: bonus by token. `phrase`: ids said in a row now and then, as far as they are allowed.
        """
        rng = np.random.default_rng(seed)
        ids: list[int] = []
        saying: list[int] = []
        for step in range(limit):
            allowed = mask.mask()
            logits = rng.normal(size=self.size) * 3
            if allowed is not None:
                logits += self.closing * min(step / 20, 8)
            for token, bonus in (likely or {}).items():
                logits[token] += bonus
            if not saying and not mask.free and rng.random() < 0.2:
                saying = list(phrase)
            if saying:
                logits[saying.pop(0)] += 1000
            if allowed is not None:
                flags = np.array(allowed)
                assert flags.shape == (self.size,) and flags.any()
                logits[~flags] = -np.inf
            token = int(logits.argmax())
            mask.advance(token)
            if token in self.eos:
                return ids, True
            ids.append(token)
        return ids, False
