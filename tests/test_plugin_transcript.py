"""llm's messages as chat messages: history, tools, foreign turns, exact tokens, failed turns, schema."""

from __future__ import annotations

import llm
import pytest
from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

from llm_mlx_streaming import transcript
from llm_mlx_streaming.refusal import UNREADABLE, refuse
from llm_mlx_streaming.transcript import NAMESPACE, NOT_RUN, chat_messages, chat_tools

HERE = "model@1#tok"


def own(**facts):
    return {NAMESPACE: facts}


def call(name="add", call_id="c1", **arguments):
    return ToolCallPart(name=name, arguments=arguments, tool_call_id=call_id)


def result(output, name="add", call_id="c1", **more):
    return Message("tool", [ToolResultPart(name=name, output=output, tool_call_id=call_id, **more)])


def roles(chat):
    return [m["role"] for m in chat]


def test_plain_turns():
    chat = chat_messages(
        [llm.system("Be brief."), llm.user("Hi"), llm.assistant("Hello."), llm.user("a", "b")], None, HERE
    )
    assert chat == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "a\nb"},
    ]


@pytest.mark.parametrize("messages", [[], [llm.system("S")], [llm.user("x"), llm.assistant("y")]])
def test_an_empty_prompt_is_an_empty_user_message(messages):
    chat = chat_messages(messages, None, HERE)
    assert chat[-1] == {"role": "user", "content": ""} and len(chat) == len(messages) + 1


def test_a_new_system_prompt_takes_the_place_of_the_old_one():
    history = [llm.system("old"), llm.user("x"), llm.assistant("y"), llm.user("z")]
    assert chat_messages(history, "new", HERE)[0] == {"role": "system", "content": "new"}
    assert roles(chat_messages(history[1:], "new", HERE)) == ["system", "user", "assistant", "user"]
    assert chat_messages(history, "old", HERE) == chat_messages(history, None, HERE)


def test_exact_tokens_and_reasoning_of_this_checkpoint_only():
    def turn(metadata):
        parts = [ReasoningPart("hm"), TextPart("yes", provider_metadata=metadata)]
        return chat_messages([llm.user("x"), Message("assistant", parts), llm.user("y")], None, HERE)[1]

    mine = turn(transcript.exact_tokens([1, 2], HERE))
    assert mine == {
        "role": "assistant",
        "content": "yes",
        "reasoning_content": "hm",
        "token_ids": [1, 2],
    }
    assert "token_ids" not in turn(transcript.exact_tokens([1, 2], "model@2#tok"))
    for foreign in (None, {"anthropic": {"signature": "s"}}, {NAMESPACE: "damaged"}):
        assert turn(foreign) == {"role": "assistant", "content": "yes"}


def test_calls_and_results_in_order():
    chat = chat_messages(
        [
            llm.user("x"),
            Message("assistant", [TextPart("Adding."), call(a=1), call(call_id="c2", a=2)]),
            Message(
                "tool",
                [
                    ToolResultPart(name="add", output="3", tool_call_id="c1"),
                    ToolResultPart(name="add", output="boom", tool_call_id="c2", exception="ValueError: bad"),
                ],
            ),
        ],
        None,
        HERE,
    )
    assert roles(chat) == ["user", "assistant", "tool", "tool"]
    assert [c["function"] for c in chat[1]["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 1}},
        {"name": "add", "arguments": {"a": 2}},
    ]
    assert chat[1]["content"] == "Adding."
    assert [m["content"] for m in chat[2:]] == ["3", "Error: ValueError: bad\nboom"]
    assert [m["tool_call_id"] for m in chat[2:]] == ["c1", "c2"]


def test_calls_without_a_result_get_one_that_says_so():
    asked = Message("assistant", [call(), call(call_id="c2"), call(call_id="c3")])
    chat = chat_messages([llm.user("x"), asked, result("3", call_id="c2"), llm.user("y")], None, HERE)
    assert roles(chat) == ["user", "assistant", "tool", "tool", "tool", "user"]
    assert {m["tool_call_id"]: m["content"] for m in chat[2:5]} == {"c2": "3", "c1": NOT_RUN, "c3": NOT_RUN}
    last = chat_messages([llm.user("x"), asked], None, HERE)
    assert [m["content"] for m in last[2:]] == [NOT_RUN] * 3


def test_results_without_ids_answer_calls_by_name():
    asked = Message("assistant", [call(call_id=None), call(name="sub", call_id=None)])
    chat = chat_messages([asked, result("1", "sub", None), result("2", "add", None)], None, HERE)
    assert [(m["name"], m["content"]) for m in chat[1:]] == [("sub", "1"), ("add", "2")]


def test_other_models_turns_come_through_as_text():
    searched = ToolCallPart(name="web", arguments={}, tool_call_id="w", server_executed=True)
    found = ToolResultPart(name="web", output="...", tool_call_id="w", server_executed=True)
    picture = AttachmentPart(llm.Attachment(type="image/png", content=b"x"))
    chat = chat_messages(
        [
            llm.assistant("I begin."),
            Message("user", [TextPart("Look"), picture]),
            Message("assistant", [ReasoningPart("", redacted=True), searched, found, TextPart("A cat.")]),
            llm.user("Sure?"),
        ],
        None,
        HERE,
    )
    assert roles(chat) == ["assistant", "user", "assistant", "user"]
    assert "image/png" in chat[1]["content"] and chat[2] == {"role": "assistant", "content": "A cat."}


def test_a_failed_turn_and_its_question_are_left_out():
    failed = Message("assistant", [ReasoningPart("", provider_metadata=own(failed="too long"))])
    history = [llm.user("a"), llm.assistant("b"), llm.user("much too long"), failed, llm.user("c")]
    assert [m["content"] for m in chat_messages(history, None, HERE)] == ["a", "b", "c"]
    in_chain = [llm.user("a"), Message("assistant", [call()]), result("huge"), failed, llm.user("c")]
    assert [m["content"] for m in chat_messages(in_chain, None, HERE)] == ["a", "", NOT_RUN, "c"]


def test_tools_as_templates_take_them():
    def add(a: int, b: int = 1) -> int:
        "Add two numbers."

    bare = llm.Tool("bare")
    offered = chat_tools([llm.Tool.function(add), bare, transcript.Refusal("no")])
    assert [t["function"]["name"] for t in offered] == ["add", "bare"]
    assert offered[0]["function"]["description"] == "Add two numbers."
    assert offered[0]["function"]["parameters"]["required"] == ["a"]
    assert offered[1]["function"]["parameters"] == {"type": "object", "properties": {}}


class _Anything(llm.Model):
    model_id = "anything"
    supports_tools = supports_schema = True

    def execute(self, prompt, stream, response, conversation):
        yield ""


def _response(model, conversation=None, **prompt):
    return llm.Response(llm.Prompt("x", model, **prompt), model, False, conversation)


def test_the_schema_survives_the_rounds_of_a_chain():
    model = _Anything()
    conversation = model.conversation()
    schema = {"type": "object"}
    results = [llm.ToolResult("add", "3")]
    conversation.responses = [_response(model, schema=schema), _response(model, tool_results=results)]
    third = llm.Prompt("", model, tool_results=results)
    assert transcript.schema_of(third, conversation) == schema
    assert transcript.schema_of(llm.Prompt("new", model), conversation) is None
    conversation.responses.append(_response(model))
    assert transcript.schema_of(third, conversation) is None
    assert transcript.schema_of(llm.Prompt("x", model, schema=schema), None) == schema


class Box(llm.Toolbox):
    def double(self, n: int) -> int:
        return 2 * n


def test_refused_calls_fail_with_the_reason_and_others_run():
    def add(a: int, b: int) -> int:
        return a + b

    def which(llm_tool_call, a: int) -> str:
        return f"{llm_tool_call.tool_call_id} {a}"

    model, box = _Anything(), Box()
    prompt = llm.Prompt("x", model, tools=[add, which, box])
    names = [refuse(prompt, "add", "bad", "a is no number"), refuse(prompt, "which", "worse", "never")]
    names += [refuse(prompt, "Box_double", "worst", "no"), refuse(prompt, "", "unread", "not JSON")]
    assert names == ["add", "which", "Box_double", UNREADABLE]
    response = llm.Response(prompt, model, False)
    wanted = [
        ("add", {"a": 1, "b": 2}, "good", "3", False),
        ("add", {"a": "x"}, "bad", "Error: a is no number", True),
        ("which", {"a": 5}, "w", "w 5", False),
        ("which", {"a": 5}, "worse", "Error: never", True),
        ("Box_double", {"n": 4}, "b", "8", False),
        ("Box_double", {"n": 4}, "worst", "Error: no", True),
        (UNREADABLE, {}, "unread", "Error: not JSON", True),
    ]
    calls = [llm.ToolCall(name, arguments, call_id) for name, arguments, call_id, *_ in wanted]
    results = response.execute_tool_calls(tool_calls_list=calls)
    assert [(r.output, r.exception is not None) for r in results] == [(w[3], w[4]) for w in wanted]
    assert results[4].instance is box
    assert UNREADABLE not in [t["function"]["name"] for t in chat_tools(prompt.tools)]
