"""Random schemas, tools and logits: what comes out validates, what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from helpers_chat import QWEN3_CODER, ids_of, tokenizer_with
from helpers_grammar import UNENFORCEABLE, Answers, random_schema, rooted

from mlx_streaming.chat.grammar import schema_grammar, tool_grammar
from mlx_streaming.chat.parser import OutputParser
from mlx_streaming.errors import GrammarError
from mlx_streaming.request import Text, ToolCall

VOCAB = 8256
EOS, THINK, THINK_END, CALL = 8185, 8186, 8187, 8188


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("json"))


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("coder"), QWEN3_CODER)


def test_hundred_random_schemas(tokenizer):
    answers = Answers(tokenizer, VOCAB)
    valid = refused = unfinished = 0
    for seed in range(100):
        rng = random.Random(seed)
        schema = rooted(rng, random_schema(rng))
        jsonschema.Draft202012Validator.check_schema(schema)
        try:
            guide = schema_grammar(tokenizer, VOCAB, schema)
        except GrammarError as error:
            assert any(f"{keyword!r}" in str(error) for keyword in UNENFORCEABLE)
            refused += 1
            continue
        ids, complete = answers.draw(guide, seed, limit=400)
        if not complete:
            unfinished += 1
            continue
        jsonschema.Draft202012Validator(schema).validate(json.loads(tokenizer.decode(ids)))
        valid += 1
    assert valid + refused + unfinished == 100
    assert valid >= 80 and refused >= 5


@pytest.mark.parametrize("family", ["tokenizer", "coder"])
def test_random_tools(family, request):
    tokenizer = request.getfixturevalue(family)
    answers = Answers(tokenizer, VOCAB)
    end_of_text = ids_of(tokenizer, "\n</parameter>\n")
    checked = 0
    for seed in range(20):
        rng = random.Random(1000 + seed)
        tools = [
            {"type": "function", "function": {"name": f"tool_{i}", "parameters": _parameters(rng)}}
            for i in range(rng.randint(1, 3))
        ]
        guide = tool_grammar(tokenizer, VOCAB, tools)
        ids, complete = answers.draw(guide, seed, 300, likely={CALL: 9.0}, phrase=end_of_text)
        parser = OutputParser(tokenizer, tools)
        events = parser.push(tokenizer.decode(ids)) + parser.finish(truncated=not complete)
        calls = [event for event in events if isinstance(event, ToolCall)]
        for call in calls if guide.free else calls[:-1]:
            assert call.error is None, (call, tools)
            checked += 1
    assert checked >= 20


def _parameters(rng: random.Random) -> dict:
    """A tool's schema without what no grammar enforces (that is left to validation)."""
    schema = rooted(rng, random_schema(rng, 2, unenforceable=0))
    schema["properties"]["note"] = {"type": "string", "maxLength": 9}
    return schema


@pytest.mark.parametrize("family", ["tokenizer", "coder"])
def test_schema_or_calls_after_thinking(family, request):
    """Schema, tools and thinking together: every finished turn is JSON of the schema or valid calls alone."""
    tokenizer = request.getfixturevalue(family)
    answers = Answers(tokenizer, VOCAB)
    likely = {CALL: 2.0, THINK_END: 9.0, THINK: 2.0, EOS: 9.0}
    json_turns = call_turns = 0
    for seed in range(15):
        rng = random.Random(5000 + seed)
        schema = rooted(rng, random_schema(rng, 2, unenforceable=0))
        tools = [{"type": "function", "function": {"name": "only", "parameters": _parameters(rng)}}]
        inside = seed % 2 == 0
        guide = schema_grammar(tokenizer, VOCAB, schema, tools=tools, thinking=True, in_reasoning=inside)
        ids, complete = answers.draw(guide, seed, likely=likely, phrase=ids_of(tokenizer, "\n</parameter>\n"))
        if not complete:
            continue
        parser = OutputParser(tokenizer, tools, inside, json_answer=True)
        events = parser.push(tokenizer.decode(ids)) + parser.finish()
        calls = [event for event in events if isinstance(event, ToolCall)]
        text = "".join(event.text for event in events if isinstance(event, Text))
        if calls:
            assert not text and not any(call.error for call in calls)
            call_turns += 1
        else:
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            json_turns += 1
    assert json_turns >= 4 and call_turns >= 2
