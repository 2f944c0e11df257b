"""Grammars: what may come next, phase by phase, and that nothing else can."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers_chat import QWEN3_CODER, QWEN3_THINKING, TOOLS, ids_of, tokenizer_with
from helpers_grammar import Answers

from mlx_streaming.chat.budget import ThinkingBudget
from mlx_streaming.chat.grammar import schema_grammar, tool_grammar
from mlx_streaming.chat.grammar_cost import mask_cost, widened
from mlx_streaming.chat.parser import OutputParser
from mlx_streaming.chat.vocabulary import vocabulary
from mlx_streaming.errors import GrammarError
from mlx_streaming.request import ToolCall

VOCAB = 8256  # wider than the tokenizer, as a padded model's
EOS, THINK, THINK_END, CALL, CALL_END = 8185, 8186, 8187, 8188, 8189
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
}
JSON = '{"name": "Ann", "age": 7}'
JSON_CALL = '\n{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("json"))


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("coder"), QWEN3_CODER)


def feed(guide, ids):
    """Advance, checking each token against the mask first."""
    for token in ids:
        assert allowed(guide, token), f"token {token} is refused"
        guide.advance(token)
    return guide


def allowed(guide, token) -> bool:
    mask = guide.mask()
    return mask is None or bool(mask[token])


def count(guide) -> int:
    mask = guide.mask()
    return VOCAB if mask is None else int(np.array(mask).sum())


def test_free_words_cost_no_mask(tokenizer):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS)
    for token in ids_of(tokenizer, "Let me see: 2 > 1.\n"):
        assert guide.mask() is None and guide.free and not guide.finished
        guide.advance(token)


def test_a_call_is_constrained_and_words_after_it_are_free(tokenizer):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS)
    feed(guide, [*ids_of(tokenizer, "Sure.\n"), CALL])
    assert not guide.free and guide.mask() is not None and not allowed(guide, EOS)
    feed(guide, [*ids_of(tokenizer, JSON_CALL), CALL_END])
    assert guide.free and guide.mask() is None
    feed(guide, [*ids_of(tokenizer, "\n"), CALL, *ids_of(tokenizer, JSON_CALL), CALL_END])
    guide.advance(EOS)
    assert guide.finished


def test_one_call_only_when_not_parallel(tokenizer):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS, parallel=False)
    feed(guide, [CALL, *ids_of(tokenizer, JSON_CALL), CALL_END])
    assert guide.finished and count(guide) == 2 and allowed(guide, EOS)


@pytest.mark.parametrize(
    ("begun", "refused"),
    [
        ('{"name": "', ["div", "add"]),
        ('{"name": "multiply", "arguments": {"a": ', ['"', "true", "1.5", "{"]),
        ('{"name": "multiply", "arguments": {"a": 1', ["}", ".", ' "']),
        ('{"name": "note", "arguments": {"text": "x", "level": "', ["mid", "x"]),
    ],
)
def test_what_does_not_fit_is_refused(tokenizer, begun, refused):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS)
    feed(guide, [CALL, *ids_of(tokenizer, "\n" + begun)])
    for word in refused:
        token = ids_of(tokenizer, word)[0]
        if word == "1.5":
            feed(guide, [token])
            token = ids_of(tokenizer, ".")[0]
        assert not allowed(guide, token)
        with pytest.raises(GrammarError):
            guide.advance(token)
        if word == "1.5":
            break


def test_a_refused_token_changes_nothing(tokenizer):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS)
    feed(guide, [CALL, *ids_of(tokenizer, '\n{"name": "')])
    before = np.array(guide.mask())
    with pytest.raises(GrammarError):
        guide.advance(EOS)
    assert (np.array(guide.mask()) == before).all()
    feed(guide, [*ids_of(tokenizer, JSON_CALL[len('\n{"name": "') :]), CALL_END])


def test_forks_are_independent(tokenizer):
    for guide in (
        tool_grammar(tokenizer, VOCAB, TOOLS),
        schema_grammar(tokenizer, VOCAB, PERSON, tools=TOOLS),
    ):
        feed(guide, [CALL, *ids_of(tokenizer, '\n{"name": "')])
        before = np.array(guide.mask())
        fork = guide.fork()
        feed(fork, [*ids_of(tokenizer, JSON_CALL[len('\n{"name": "') :]), CALL_END])
        assert (np.array(guide.mask()) == before).all()
        feed(guide, ids_of(tokenizer, "note")[:1])


def test_a_marker_spelled_in_ordinary_tokens_is_refused(tokenizer):
    guide = tool_grammar(tokenizer, VOCAB, TOOLS)
    spelled = ids_of(tokenizer, "<", "tool", "_", "call", ">")
    assert CALL not in spelled
    feed(guide, spelled[:-1])
    assert not allowed(guide, spelled[-1]) and count(guide) > 8000
    feed(guide, ids_of(tokenizer, " x <b>"))
    assert guide.mask() is None


def test_schema_alone(tokenizer):
    guide = schema_grammar(tokenizer, VOCAB, PERSON)
    assert not allowed(guide, THINK) and not allowed(guide, CALL) and not allowed(guide, EOS)
    assert not allowed(guide, ids_of(tokenizer, "\n")[0])
    feed(guide, ids_of(tokenizer, JSON))
    assert guide.finished and np.flatnonzero(np.array(guide.mask())).tolist() == [8183, EOS]
    guide.advance(EOS)
    assert np.flatnonzero(np.array(guide.mask())).tolist() == [8183, EOS]


def test_schema_with_thinking_first(tokenizer):
    guide = schema_grammar(tokenizer, VOCAB, PERSON, thinking=True)
    feed(guide, [THINK])
    assert guide.free and not allowed(guide, EOS) and not allowed(guide, CALL)
    feed(guide, [*ids_of(tokenizer, "\nHmm {\n"), THINK_END, *ids_of(tokenizer, "\n\n")])
    assert not allowed(guide, EOS) and not allowed(guide, ids_of(tokenizer, "Hello")[0])
    feed(guide, ids_of(tokenizer, JSON))
    assert guide.finished
    direct = schema_grammar(tokenizer, VOCAB, PERSON, thinking=True)
    assert feed(direct, ids_of(tokenizer, JSON)).finished


def test_schema_from_inside_a_think_tag(tokenizer):
    guide = schema_grammar(tokenizer, VOCAB, PERSON, in_reasoning=True)
    assert guide.free and not allowed(guide, EOS)
    spelled = ids_of(tokenizer, "</", "think", ">")
    feed(guide, spelled[:-1])
    assert not allowed(guide, spelled[-1])
    feed(guide, [THINK_END, *ids_of(tokenizer, JSON)])
    assert guide.finished


def test_schema_and_tools_and_thinking(tokenizer):
    def start():
        return schema_grammar(tokenizer, VOCAB, PERSON, tools=TOOLS, thinking=True)

    call = [CALL, *ids_of(tokenizer, JSON_CALL), CALL_END]
    assert feed(start(), ids_of(tokenizer, JSON)).finished
    after_call = feed(start(), call)
    assert allowed(after_call, EOS) and not allowed(after_call, ids_of(tokenizer, "{")[0])
    feed(after_call, [*ids_of(tokenizer, "\n"), *call, EOS])
    thought = feed(start(), [THINK, *ids_of(tokenizer, "Hm"), THINK_END, *ids_of(tokenizer, "\n\n"), *call])
    assert allowed(thought, EOS)
    inside = feed(start(), [THINK, *ids_of(tokenizer, "Hm"), *call])
    assert allowed(inside, EOS) and not allowed(inside, ids_of(tokenizer, "Hello")[0])


def test_schema_with_a_family_that_has_no_call_grammar(tmp_path):
    glm = tokenizer_with(tmp_path, tool_parser_type="glm47")
    assert tool_grammar(glm, VOCAB, TOOLS) is None
    guide = schema_grammar(glm, VOCAB, PERSON, tools=TOOLS)
    assert feed(guide.fork(), ids_of(glm, JSON)).finished
    loose = feed(
        guide.fork(), [CALL, *ids_of(glm, "multiply<arg_key>a</arg_key><arg_value>1</arg_value>"), CALL_END]
    )
    assert allowed(loose, EOS)


def test_no_tools_no_grammar(tokenizer):
    assert tool_grammar(tokenizer, VOCAB, []) is None


def test_thinking_budget_closes_the_tag(tokenizer):
    vocab = vocabulary(tokenizer, VOCAB)
    options = {"think_start": (THINK,), "think_end": (THINK_END,), "budget": 3}
    for inner in (None, schema_grammar(tokenizer, VOCAB, PERSON, in_reasoning=True)):
        guide = ThinkingBudget(vocab, inner, in_reasoning=True, **options)
        feed(guide, ids_of(tokenizer, "a b")[:2] + ids_of(tokenizer, "c")[:1])
        assert np.flatnonzero(np.array(guide.fork().mask())).tolist() == [THINK_END]
        feed(guide, [THINK_END])
        assert (guide.mask() is None) == (inner is None)
    opened = ThinkingBudget(vocab, None, in_reasoning=False, **options)
    feed(opened, [*ids_of(tokenizer, "Hello there you all"), THINK])
    feed(opened, ids_of(tokenizer, "a")[:1] * 3)
    assert count(opened) == 1


def test_thinking_budget_lets_a_call_finish(tokenizer):
    inner = tool_grammar(tokenizer, VOCAB, TOOLS)
    vocab = vocabulary(tokenizer, VOCAB)
    guide = ThinkingBudget(
        vocab, inner, think_start=(THINK,), think_end=(THINK_END,), budget=2, in_reasoning=True
    )
    feed(guide, [CALL, *ids_of(tokenizer, JSON_CALL), CALL_END])
    assert np.flatnonzero(np.array(guide.mask())).tolist() == [THINK_END]


def test_thinking_budget_with_a_tag_of_several_tokens(tokenizer):
    end = tuple(ids_of(tokenizer, "END!"))
    assert len(end) > 1
    guide = ThinkingBudget(
        vocabulary(tokenizer, VOCAB), None, think_start=(THINK,), think_end=end, budget=1, in_reasoning=True
    )
    guide.advance(50)
    for token in end:
        assert np.flatnonzero(np.array(guide.mask())).tolist() == [token]
        guide.advance(token)
    assert guide.mask() is None


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, ["'not'", "$.properties.a"]),
        ({"type": "array", "uniqueItems": True}, ["'uniqueItems'"]),
        ({"type": "object", "if": {}, "then": {"required": ["a"]}}, ["'if'"]),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["'dependentRequired'"]),
        ({"type": "array", "contains": {"type": "string"}}, ["'contains'"]),
        ({"type": "object", "unevaluatedProperties": False}, ["'unevaluatedProperties'"]),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, ["'propertyNames'"]),
        ({"$dynamicRef": "#node"}, ["'$dynamicRef'"]),
        ({"$ref": "#/$defs/none"}, ["$defs/none"]),
        ({"type": "string", "pattern": "^(?=a)b"}, ["look-around"]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"]),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, ["'a'", "nsatisfiable"]),
    ],
)
def test_what_cannot_be_enforced_is_named(tokenizer, schema, named):
    with pytest.raises(GrammarError) as caught:
        schema_grammar(tokenizer, VOCAB, schema)
    assert all(word in str(caught.value) for word in named) and "\n" not in str(caught.value)


def test_words_that_only_look_like_keywords_are_no_problem(tokenizer):
    schema = {
        "type": "object",
        "properties": {"not": {"type": "integer"}, "if": {"enum": ["contains"]}},
        "required": ["not", "if"],
        "uniqueItems": False,
        "x-order": 3,
        "format": "my-own",
    }
    text = '{"not": 5, "if": "contains"}'
    assert feed(schema_grammar(tokenizer, VOCAB, schema), ids_of(tokenizer, text)).finished


def test_undeclared_properties_are_not_invented(tokenizer):
    guide = schema_grammar(tokenizer, VOCAB, PERSON)
    feed(guide, ids_of(tokenizer, '{"name": "Ann", "age": 7'))
    assert not allowed(guide, ids_of(tokenizer, ",")[0])
    combined = {
        "allOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]
    }
    combined["required"] = ["a", "b"]
    assert feed(schema_grammar(tokenizer, VOCAB, combined), ids_of(tokenizer, '{"a": 1, "b": 2')) is not None


def test_numbers_end(tokenizer):
    schema = {"type": "object", "properties": {"n": {"type": "number"}, "s": {"type": "string"}}}
    guide = schema_grammar(tokenizer, VOCAB, schema | {"required": ["n", "s"]})
    digit = ids_of(tokenizer, "3")[0]
    feed(guide, [*ids_of(tokenizer, '{"n": 1.'), *[digit] * 24])
    assert not allowed(guide, digit) and allowed(guide, ids_of(tokenizer, ",")[0])
    feed(guide, [*ids_of(tokenizer, ', "s": "'), *[digit] * 60, *ids_of(tokenizer, '"}')])
    assert guide.finished


def test_tools_with_odd_schemas_still_have_a_grammar(tokenizer, coder):
    odd = [
        {"type": "function", "function": {"name": 'we"ird é', "parameters": {}}},
        {"type": "function", "function": {"name": "none"}},
        {
            "type": "function",
            "function": {
                "name": "x",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "a": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
                        "b": {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/one"}},
                        "c": {"type": "string", "pattern": "(?=x)"},
                    },
                    "required": ["a", "b", "c"],
                    "$defs": {"one": {"type": "integer"}},
                    "not": {"required": ["z"]},
                },
            },
        },
    ]
    guide = tool_grammar(tokenizer, VOCAB, odd)
    text = '\n{"name": "we\\"ird é", "arguments": {'
    feed(guide, [CALL, *ids_of(tokenizer, text)])
    assert not allowed(guide, ids_of(tokenizer, '"')[0])  # a tool without parameters gets none
    feed(guide, [*ids_of(tokenizer, "}}\n"), CALL_END])
    feed(guide, [CALL, *ids_of(tokenizer, '\n{"name": "x", "arguments": {')])
    assert tool_grammar(coder, VOCAB, odd) is None  # a name that its XML cannot hold
    assert tool_grammar(coder, VOCAB, odd[1:]) is not None


CODER_CALL = """
<function=note>
<parameter=text>
a "b" </parameter
 <c>
</parameter>
<parameter=tags>
["x", "yy"]
</parameter>
<parameter=level>
low
</parameter>
<parameter=due>
null
</parameter>
</function>
"""


def test_xml_calls(coder):
    guide = tool_grammar(coder, VOCAB, TOOLS)
    feed(guide, [CALL, *ids_of(coder, CODER_CALL), CALL_END])
    assert guide.free
    feed(guide, [CALL, *ids_of(coder, "\n<function=multiply>\n<parameter=a>\n")])
    assert not allowed(guide, ids_of(coder, "x")[0]) and allowed(guide, ids_of(coder, "5")[0])


def answers_with_calls(tokenizer, runs, tools=TOOLS, limit=500):
    draw = Answers(tokenizer, VOCAB)
    table = vocabulary(tokenizer, VOCAB).bytes
    end_of_text = ids_of(tokenizer, "\n</parameter>\n")
    found = []
    for seed in range(runs):
        guide = tool_grammar(tokenizer, VOCAB, tools)
        ids, complete = draw.draw(guide, seed, limit, likely={CALL: 9.0}, phrase=end_of_text)
        parser = OutputParser(tokenizer, tools)
        text = b"".join(table[token] for token in ids).decode("utf-8", "replace")
        calls = [e for e in parser.push(text) + parser.finish(not complete) if isinstance(e, ToolCall)]
        found += calls if complete else calls[:-1]
    return found


@pytest.mark.parametrize("family", ["tokenizer", "coder"])
def test_calls_from_random_logits_are_always_valid(family, request):
    calls = answers_with_calls(request.getfixturevalue(family), 15)
    assert len(calls) >= 20
    wrong = [call for call in calls if call.error]
    assert not wrong
    assert {call.name for call in calls} == {"multiply", "note"}


def test_grammar_follows_the_template(tokenizer):
    """Compact JSON with a space after colon and comma: what the template itself writes for a call."""
    call = {"type": "function", "function": {"name": "note", "arguments": {"text": "x", "tags": ["a", "b"]}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}, message], tokenize=False)
    written = text[text.index("<tool_call>") : text.index("</tool_call>") + len("</tool_call>")]
    assert json.dumps(call["function"]["arguments"]) in written
    feed(tool_grammar(tokenizer, VOCAB, TOOLS), ids_of(tokenizer, written))


def test_thinking_template_opens_in_reasoning(tmp_path):
    tokenizer = tokenizer_with(tmp_path, QWEN3_THINKING)
    guide = schema_grammar(tokenizer, VOCAB, PERSON, tools=TOOLS, thinking=True, in_reasoning=True)
    draw = Answers(tokenizer, VOCAB)
    ids, complete = draw.draw(guide, 1, 600, likely={THINK_END: 8.0, CALL: -20.0})
    assert complete and THINK_END in ids
    answer = tokenizer.decode(ids[ids.index(THINK_END) + 1 :]).strip()
    assert set(json.loads(answer)) == {"name", "age"}


def test_mask_cost_is_measured_at_a_large_vocabulary(tokenizer):
    wide = widened(tokenizer, 20_000)
    assert len(wide) == 20_000
    text = '<tool_call>\n{"name": "é"}\n'
    assert [wide.decode([i]) for i in ids_of(wide, text)] == [
        tokenizer.decode([i]) for i in ids_of(tokenizer, text)
    ]
    cost = mask_cost(tokenizer, 20_000, repeats=1)
    assert cost.vocabulary == 20_000
    assert cost.worst_s >= max(cost.words_s, cost.call_s, cost.json_s) > 0
