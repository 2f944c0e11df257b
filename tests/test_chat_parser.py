"""Answers to events: markers never show, nothing is dropped, pieces make no difference."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from helpers_chat import QWEN3_CODER, TOOLS, tokenizer_with

from mlx_streaming.chat.lenient_json import parse_values
from mlx_streaming.chat.parser import OutputParser, StopStrings
from mlx_streaming.request import Reasoning, Text, ToolCall


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("json"))


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    return tokenizer_with(tmp_path_factory.mktemp("coder"), QWEN3_CODER)


def merged(events):
    """Neighbouring words joined, ids blanked."""
    out = []
    for event in events:
        if isinstance(event, ToolCall):
            out.append(replace(event, id=""))
        elif out and type(out[-1]) is type(event):
            out[-1] = type(event)(out[-1].text + event.text)
        else:
            out.append(event)
    return out


def parsed(tokenizer, pieces, truncated=False, **options):
    parser = OutputParser(tokenizer, TOOLS, **options)
    events = []
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        events += parser.push(piece)
    return merged(events + parser.finish(truncated))


def calls(events):
    return [event for event in events if isinstance(event, ToolCall)]


def one_call(tokenizer, raw, truncated=False, end="</tool_call>"):
    (event,) = parsed(tokenizer, f"<tool_call>{raw}{end}", truncated)
    return event


FULL = (
    "Hmm <tool\n</think>\n\nSure <b>, \n"
    '<tool_call>\n{"name": "multiply", "arguments": {"a": 2, "b": "3"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "note", "arguments": {"text": "a </tool_call> b \\" <think>"}}\n</tool_call>\n\n'
    "Done </tool ST\nSTO <think>\nmore\n</think>\n\nEnd STOP hidden"
)


def test_pieces_make_no_difference(tokenizer):
    whole = parsed(tokenizer, FULL, start_in_reasoning=True, stop=("STOP",))
    assert [type(event) for event in whole] == [Reasoning, Text, ToolCall, ToolCall, Text, Reasoning, Text]
    assert whole[0] == Reasoning("Hmm <tool")
    assert whole[1] == Text("Sure <b>,")
    assert whole[2].arguments == {"a": 2, "b": 3} and whole[2].error is None
    assert whole[3].arguments == {"text": 'a </tool_call> b " <think>'} and whole[3].error is None
    assert whole[4:] == [Text("Done </tool ST\nSTO"), Reasoning("more"), Text("End ")]
    for cut in range(len(FULL)):
        assert parsed(tokenizer, [FULL[:cut], FULL[cut:]], start_in_reasoning=True, stop=("STOP",)) == whole
    assert parsed(tokenizer, list(FULL), start_in_reasoning=True, stop=("STOP",)) == whole
    rng = random.Random(3)
    for _ in range(200):
        pieces, at = [], 0
        while at < len(FULL):
            step = rng.randint(1, 12)
            pieces.append(FULL[at : at + step])
            at += step
        assert parsed(tokenizer, pieces, start_in_reasoning=True, stop=("STOP",)) == whole


def test_every_token_of_text_comes_at_once(tokenizer):
    parser = OutputParser(tokenizer, TOOLS)
    assert [parser.push(piece) for piece in ("Hello", " you", "!", " <", "b>")] == [
        [Text("Hello")],
        [Text(" you")],
        [Text("!")],
        [],
        [Text(" <b>")],
    ]


def test_call_inside_reasoning_and_words_after(tokenizer):
    text = 'I need it\n<tool_call>\n{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    events = parsed(tokenizer, text, start_in_reasoning=True)
    assert events[0] == Reasoning("I need it") and events[1].arguments == {"a": 1, "b": 2}


def test_blank_lines_around_markers_are_not_words(tokenizer):
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    events = parsed(tokenizer, f"<think>\n\n</think>\n\n{call}\n{call}\n")
    assert [type(event) for event in events] == [ToolCall, ToolCall]


def test_trailing_white_space_of_plain_text_stays(tokenizer):
    assert parsed(tokenizer, "  code:\n\n") == [Text("  code:\n\n")]
    assert parsed(tokenizer, "a\n</think> b</tool_call>") == [Text("a\n b")]


def test_partial_marker_at_the_end_is_text(tokenizer):
    assert parsed(tokenizer, "a <tool_c") == [Text("a <tool_c")]
    assert parsed(tokenizer, "thought </thi", start_in_reasoning=True) == [Reasoning("thought </thi")]


def test_reasoning_that_never_ends(tokenizer):
    assert parsed(tokenizer, "\nabc", True, start_in_reasoning=True) == [Reasoning("abc")]


def test_json_answers_have_no_markers(tokenizer):
    text = '{"a": "<tool_call> <think>", "b": "</think>"}'
    assert parsed(tokenizer, list(text), json_answer=True) == [Text(text)]
    thinking = parsed(tokenizer, f"x</think>\n\n{text}", start_in_reasoning=True, json_answer=True)
    assert thinking == [Reasoning("x"), Text(text)]
    call = '<tool_call>{"name": "multiply", "arguments": {"a": 1, "b": 2}}</tool_call>'
    assert calls(parsed(tokenizer, call, json_answer=True))[0].error is None


def test_unique_ids_in_order(tokenizer):
    call = '<tool_call>{"name": "multiply", "arguments": {"a": 1, "b": %d}}</tool_call>'
    parser = OutputParser(tokenizer, TOOLS)
    events = parser.push("".join(call % i for i in range(20))) + parser.finish()
    assert [event.arguments["b"] for event in events] == list(range(20))
    assert len({event.id for event in events}) == 20 and all(event.id.startswith("call_") for event in events)


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("{'name': 'multiply', 'arguments': {'a': 1, 'b': 2}}", {"a": 1, "b": 2}),
        ('{"name": "multiply", "arguments": {"a": 1, "b": 2,},}', {"a": 1, "b": 2}),
        ('{"name": "multiply", "arguments": {"a": 1, "b": 2}', {"a": 1, "b": 2}),
        ('{"name": "multiply", "arguments": {"a": 1, "b": 2}}}', {"a": 1, "b": 2}),
        ('{"name": "multiply", "parameters": {"a": 1, "b": 2}}', {"a": 1, "b": 2}),
        ('{"name": "multiply", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}', {"a": 1, "b": 2}),
        ('{"function": {"name": "multiply", "arguments": {"a": 1, "b": 2}}}', {"a": 1, "b": 2}),
        ("{name: multiply_, arguments: {}}", None),
        ('[{"name": "multiply", "arguments": {"a": "1", "b": "2.0"}}]', {"a": 1, "b": 2}),
        ('{"name": "Multiply", "arguments": {"a": 1, "b": 2.0}}', {"a": 1, "b": 2}),
        ('{"name": "note", "arguments": {"text": "C:\\dir"}}', {"text": "C:\\dir"}),
        ('{"name": "note", "arguments": {"text": "two\nlines"}}', {"text": "two\nlines"}),
        ('{"name": "note", "arguments": {"text": 5, "urgent": "True", "due": "null"}}',
         {"text": "5", "urgent": True, "due": None}),
        ('{"name": "note", "arguments": {"text": "x", "due": "7", "tags": "[\\"a\\"]"}}',
         {"text": "x", "due": 7, "tags": ["a"]}),
        ('{"name": "note", "arguments": {"text": "\\ud83d\\ude00 \\ud800"}}', {"text": "😀 \ufffd"}),
    ],
)  # fmt: skip
def test_repairs(tokenizer, raw, arguments):
    call = one_call(tokenizer, raw)
    if arguments is None:
        assert call.error
    else:
        assert call.error is None and call.arguments == arguments
        assert call.raw == raw


def test_two_objects_in_a_block(tokenizer):
    raw = '{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n{"name": "note", "arguments": {"text": "x"}}'
    events = parsed(tokenizer, f"<tool_call>{raw}</tool_call>")
    assert [event.name for event in events] == ["multiply", "note"] and not any(
        event.error for event in events
    )


@pytest.mark.parametrize(
    ("raw", "name", "says"),
    [
        ('{"name": "divide", "arguments": {"a": 1}}', "divide", "no tool named 'divide'"),
        ('{"name": "multiply", "arguments": {"a": 1}}', "multiply", "'b' is a required property"),
        ('{"name": "multiply", "arguments": {"a": "one", "b": 2}}', "multiply", "a: 'one' is not of type"),
        ('{"name": "note", "arguments": {"text": "x", "level": "mid"}}', "note", "level"),
        ('{"name": "multiply", "arguments": [1, 2]}', "multiply", "not an object"),
        ('{"name": "multiply", "a": 1, "b": 2}', "multiply", "no arguments"),
        ('{"name": "multiply", "arguments": {"a": 1 "b": 2}}', "multiply", "expected"),
        ('{"name": "note", "arguments": {"text": "C:\\new\\dir"}}', "note", "escape"),
        ('{"name": "multiply", "name": "note", \'arguments\': {}}', "multiply", "twice"),
        ('{"name": "multiply", "arguments": {"a": NaN, "b": 1}}', "multiply", "NaN"),
        ("multiply(1, 2)", "", "not a tool call"),
        ("", "", "not a tool call"),
        ("[]", "", "not a tool call"),
        ("[" * 100_000, "", "not a tool call"),
    ],
)
def test_bad_calls_are_errors_with_their_text(tokenizer, raw, name, says):
    call = one_call(tokenizer, raw)
    assert call.name == name and says in call.error and call.raw == raw


def test_cut_off_calls_are_reported(tokenizer):
    raw = '{"name": "multiply", "arguments": {"a": 1, "b": 2'
    cut = one_call(tokenizer, raw, truncated=True, end="")
    assert cut.name == "multiply" and "cut off" in cut.error and cut.raw == raw
    assert one_call(tokenizer, raw, truncated=False, end="").arguments == {"a": 1, "b": 2}
    whole = one_call(tokenizer, raw + "}}\n</tool", truncated=True, end="")
    assert whole.error  # even the marker is cut off: what came is not certainly complete
    assert one_call(tokenizer, raw + "}}\n", truncated=True, end="").error is None
    (opened,) = parsed(tokenizer, "<tool_call>", truncated=True)
    assert opened.error and opened.raw == ""


XML = """
<function=note>
<parameter=text>
line one
 <b>two</b>
</parameter>
<parameter=due>
{due}
</parameter>
<parameter=urgent>
True
</parameter>
<parameter=tags>
["a", "b"]
</parameter>
</function>
"""


def test_xml_calls_are_typed_by_the_schema(coder):
    call = one_call(coder, XML.format(due="null"))
    assert call.error is None
    assert call.arguments == {
        "text": "line one\n <b>two</b>",
        "due": None,
        "urgent": True,
        "tags": ["a", "b"],
    }
    assert one_call(coder, XML.format(due="12")).arguments["due"] == 12
    assert "due" in one_call(coder, XML.format(due="soon")).error
    for word in ("null", "5", "true", "[1]", ""):
        call = one_call(coder, f"<function=note>\n<parameter=text>\n{word}\n</parameter>\n</function>")
        assert call.error is None and call.arguments == {"text": word}


def test_xml_two_calls_unclosed_and_cut_off(coder):
    one = "<function=multiply>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
    events = parsed(coder, f"<tool_call>\n{one}</function>\n{one}</function>\n</tool_call>")
    assert [event.arguments for event in events] == [{"a": 1, "b": 2}] * 2
    assert one_call(coder, one).arguments == {"a": 1, "b": 2}
    assert "cut off" in one_call(coder, one, truncated=True, end="").error


def test_json_in_an_xml_family(coder):
    assert one_call(coder, '{"name": "multiply", "arguments": {"a": 1, "b": 2}}').arguments == {
        "a": 1,
        "b": 2,
    }


def test_without_tools_a_call_is_still_reported(tokenizer):
    parser = OutputParser(tokenizer)
    (event,) = parser.push('<tool_call>{"name": "x", "arguments": {}}</tool_call>')
    assert "no tool named 'x'" in event.error


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", '[TOOL_CALLS]multiply[ARGS]{"a": 1, "b": 2}'),
        ("pythonic", "<|tool_call_start|>[multiply(a=1, b=2)]<|tool_call_end|>"),
        ("glm47", "<tool_call>multiply<arg_key>a</arg_key><arg_value>1</arg_value>"
         "<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>"),
        ("gemma4", "<|tool_call>call:multiply{a:1,b:2}<tool_call|>"),
    ],
)  # fmt: skip
def test_other_families_go_through_mlx_lm(tmp_path, family, text):
    tokenizer = tokenizer_with(tmp_path, tool_parser_type=family)
    for pieces in (text, list(text)):
        (event,) = parsed(tokenizer, pieces)
        assert (event.name, event.arguments, event.error) == ("multiply", {"a": 1, "b": 2}, None)


def test_stop_strings_over_every_split():
    text, stops = "one two\n\nthree", ("two\n", "\n\n", "abc")
    for seed in range(100):
        rng, stop, out, found, at = random.Random(seed), StopStrings(stops), "", False, 0
        while at < len(text) and not found:
            step = rng.randint(1, 5)
            piece, found = stop.push(text[at : at + step])
            out += piece
            at += step
        assert found and out == "one "


def test_stop_string_is_not_looked_for_in_reasoning_or_calls(tokenizer):
    call = '<tool_call>{"name": "note", "arguments": {"text": "STOP"}}</tool_call>'
    events = parsed(tokenizer, f"STOP</think>{call}ab STOP cd", start_in_reasoning=True, stop=("STOP",))
    assert [type(event) for event in events] == [Reasoning, ToolCall, Text]
    assert events[0] == Reasoning("STOP") and events[2] == Text("ab ")


def test_held_back_text_comes_out_at_the_end(tokenizer):
    assert parsed(tokenizer, "abc STO", stop=("STOP",)) == [Text("abc STO")]


def test_lenient_json_agrees_with_json_on_json():
    values = parse_values('{"a": [1, -2.5e3, true, null, "\\u00e9\\n"], "b": {}} [] 7')
    assert values == [{"a": [1, -2500.0, True, None, "é\n"], "b": {}}, [], 7]
    for bad in ("", "{", "{a b}", '"open', "nul", "1 2 x", "{} }{", "01", "{'a': 1 'b': 2}"):
        with pytest.raises(ValueError):
            parse_values(bad, close=False)
