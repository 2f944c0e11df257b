"""Token-faithful history: what the model said comes back as the ids it said it in."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
from helpers_chat import QWEN3, QWEN3_CODER, QWEN3_THINKING, TOOLS, call_message, ids_of, tokenizer_with

from mlx_streaming.chat.history import encode
from mlx_streaming.chat.template import ChatTemplate
from mlx_streaming.checkpoint.tokenizer import load_tokenizer
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.errors import CheckpointError, PromptError

SYSTEM = {"role": "system", "content": "You are brief."}
USER = {"role": "user", "content": "Hello there"}
NEXT = {"role": "user", "content": "And then?"}


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    made = {"demo": None, "qwen3": QWEN3, "thinking": QWEN3_THINKING, "coder": QWEN3_CODER}
    return {
        name: ChatTemplate(tokenizer_with(tmp_path_factory.mktemp(name), text)) for name, text in made.items()
    }


def plain_ids(template, messages, tools=(), thinking=None):
    return template.encode(template.render(messages, tools, thinking).text)


@pytest.mark.parametrize("name", ["demo", "qwen3", "coder"])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_answer_is_an_exact_continuation_of_its_prompt(templates, name, tools):
    template = templates[name]
    first = encode(template, [SYSTEM, USER], tools)
    assert first.ids == plain_ids(template, [SYSTEM, USER], tools)
    said = ids_of(template.tokenizer, "Hel", "lo", " w", "or", "ld", "! 你", "好")
    assert said != ids_of(template.tokenizer, "Hello world! 你好")
    answer = {"role": "assistant", "content": "Hello world! 你好", "token_ids": said}
    second = encode(template, [SYSTEM, USER, answer, NEXT], tools)
    closing = ids_of(
        template.tokenizer, "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second.ids == first.ids + said + closing
    assert second.spliced == 1


@pytest.mark.parametrize("name", ["demo", "qwen3", "coder"])
def test_tool_calls_keep_their_own_spelling_over_a_chain(templates, name):
    template = templates[name]
    tokenizer = template.tokenizer
    messages, prompt = [SYSTEM, USER], encode(template, [SYSTEM, USER], TOOLS)
    for step in range(3):
        said = ids_of(
            tokenizer,
            "Let me",
            " see.\n",
            '<tool_call>\n{"name":  "multiply", "arguments"',
            ':{"a":1}}\n</tool_call>',
        )
        messages = [
            *messages,
            call_message("multiply", {"a": 1}, content="Let me see.", token_ids=said),
            {"role": "tool", "content": str(step), "tool_call_id": "call_1", "name": "multiply"},
        ]
        following = encode(template, messages, TOOLS)
        assert following.ids[: len(prompt.ids) + len(said)] == prompt.ids + said
        assert following.spliced == step + 1
        prompt = following
    assert "<tool_response>" in tokenizer.decode(prompt.ids)


def test_two_calls_without_text_and_an_answer_after(templates):
    template = templates["demo"]
    said = ids_of(
        template.tokenizer,
        '<tool_call>\n{"name": "multiply", "arguments": {"a": 1}}\n</tool_call>',
        '\n<tool_call>\n{"name": "multiply", "arguments": {"a": 2}}\n</tool_call>',
    )
    message = call_message("multiply", {"a": 1}, token_ids=said)
    message["tool_calls"].append(message["tool_calls"][0])
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    answer = ids_of(template.tokenizer, "1 an", "d 2.")
    chain = [USER, message, *results]
    prompt = encode(template, chain, TOOLS)
    assert prompt.spliced == 1
    full = encode(
        template, [*chain, {"role": "assistant", "content": "1 and 2.", "token_ids": answer}, NEXT], TOOLS
    )
    assert full.ids[: len(prompt.ids) + len(answer)] == prompt.ids + answer
    assert full.spliced == 2


def test_kept_reasoning_is_spliced_whole(templates):
    for name, opening in (("qwen3", "<think>\n"), ("thinking", "")):
        template = templates[name]
        prompt = encode(template, [USER], TOOLS)
        assert prompt.starts_in_reasoning == (name == "thinking")
        said = ids_of(
            template.tokenizer,
            f"{opening}H",
            "mm, mul",
            "tiply\n\n",
            "</think>\n\n",
            '<tool_call>\n{"name": "multiply"',
            ', "arguments": {"a": 2}}\n</tool_call>',
        )
        message = call_message("multiply", {"a": 2}, reasoning_content="Hmm, multiply", token_ids=said)
        following = encode(template, [USER, message, {"role": "tool", "content": "4"}], TOOLS)
        assert following.ids[: len(prompt.ids) + len(said)] == prompt.ids + said
        assert following.spliced == 1


def test_dropped_reasoning_leaves_the_exact_answer(templates):
    template = templates["thinking"]
    said = ids_of(template.tokenizer, "Hm", "m\n", "</think>", "\n\n", "Fo", "ur", ".")
    answer = {"role": "assistant", "content": "Four.", "reasoning_content": "Hmm", "token_ids": said}
    following = encode(template, [USER, answer, NEXT])
    text = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    kept = ids_of(template.tokenizer, text, "Fo", "ur", ".")
    assert following.ids[: len(kept)] == kept
    assert following.spliced == 1 and "Hmm" not in template.tokenizer.decode(following.ids)


def test_dropped_reasoning_that_holds_the_call_is_rendered_plainly(templates):
    template = templates["thinking"]
    said = ids_of(template.tokenizer, 'Hm\n<tool_call>\n{"name": "multiply", "arguments": {}}\n</tool_call>')
    messages = [
        USER,
        call_message("multiply", {}, reasoning_content="Hm", token_ids=said),
        {"role": "tool", "content": "1"},
        NEXT,
    ]
    following = encode(template, messages, TOOLS)
    assert following.ids == plain_ids(template, messages, TOOLS) and following.spliced == 0
    assert "<tool_call>" in template.tokenizer.decode(following.ids)


def test_cut_off_while_thinking_closes_the_tag_after_the_ids(templates):
    template = templates["thinking"]
    prompt = encode(template, [USER])
    said = ids_of(template.tokenizer, "Hm", "m, so")
    message = {"role": "assistant", "content": "", "reasoning_content": "Hmm, so", "token_ids": said}
    following = encode(template, [USER, message, {"role": "tool", "content": "x"}])
    assert following.ids[: len(prompt.ids) + len(said)] == prompt.ids + said
    rest = template.tokenizer.decode(following.ids[len(prompt.ids) + len(said) :])
    assert rest.startswith("\n</think>\n\n<|im_end|>") and "SpliceQ" not in rest


PLAIN_ANSWER = "'<|im_start|>assistant\\n' + content }}"
ODD = {
    "changes it": QWEN3.replace(PLAIN_ANSWER, PLAIN_ANSWER.replace("content", "content | upper")),
    "says it twice": QWEN3.replace(PLAIN_ANSWER, PLAIN_ANSWER.replace("content", "content + content")),
    "drops it": QWEN3.replace(PLAIN_ANSWER, PLAIN_ANSWER.replace("content", "''")),
    "closes differently after calls": QWEN3.replace(
        "{%- endfor %}{{- '<|im_end|>\\n' }}\n{%- elif message.role == 'tool'",
        "{%- endfor %}{{- '' if message.tool_calls else '<|im_end|>\\n' }}\n{%- elif message.role == 'tool'",
    ),
    "needs its calls": "{%- for m in messages %}"
    "{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
    "{{- raise_exception('no call') }}{%- endif %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- '<tool_call>' + c.function.name + '</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\\n' }}{%- endfor %}{{- '<|im_start|>assistant\\n' }}",
}


@pytest.mark.parametrize("what", ODD)
def test_a_template_that_does_odd_things_is_rendered_plainly(tmp_path, what):
    assert ODD[what] != QWEN3
    template = ChatTemplate(tokenizer_with(tmp_path, ODD[what]))
    said = ids_of(
        template.tokenizer, "Let", ' me\n<tool_call>\n{"name": "multiply", "arguments": {}}\n</tool_call>'
    )
    messages = [
        USER,
        call_message("multiply", {}, content="Let me", token_ids=said),
        {"role": "tool", "content": "3"},
    ]
    result = encode(template, messages)
    assert result.ids == plain_ids(template, messages)
    assert result.spliced == 0


def test_one_odd_message_does_not_spoil_the_others(templates):
    template = templates["qwen3"]
    tokenizer = template.tokenizer
    good = {"role": "assistant", "content": "Hello", "token_ids": ids_of(tokenizer, "Hel", "lo")}
    bad = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "x",
        "token_ids": ids_of(tokenizer, "<think>\nx"),
    }
    result = encode(template, [USER, good, NEXT, bad, NEXT])
    assert result.spliced == 1
    assert (
        result.ids[: len(encode(template, [USER]).ids) + 2]
        == encode(template, [USER]).ids + good["token_ids"]
    )


def test_history_without_ids_or_from_another_model_is_plain(templates):
    template = templates["demo"]
    for messages in (
        [{"role": "assistant", "content": "I began."}, USER],
        [USER, {"role": "assistant", "content": None}, NEXT],
        [USER, {"role": "assistant", "content": "x", "reasoning_content": "thoughts", "token_ids": []}, NEXT],
        [USER, call_message("gone", {"a": 1}), NEXT],
    ):
        result = encode(template, messages)
        assert result.ids == plain_ids(template, messages) and result.spliced == 0


def test_words_that_look_like_a_sentinel_do_no_harm(templates):
    template = templates["demo"]
    user = {"role": "user", "content": "SpliceQ0QC1E SpliceQ1Q"}
    said = ids_of(template.tokenizer, "a", "b")
    result = encode(template, [user, {"role": "assistant", "content": "ab", "token_ids": said}, NEXT])
    prompt = encode(template, [user])
    assert result.ids[: len(prompt.ids) + 2] == prompt.ids + said


def test_head_is_what_system_and_tools_decide(templates):
    for template in templates.values():
        one = encode(template, [SYSTEM, USER], TOOLS)
        two = encode(
            template,
            [SYSTEM, {"role": "user", "content": "Something else"}, call_message("multiply", {})],
            TOOLS,
        )
        assert one.head == two.head > 0
        assert one.ids[: one.head] == two.ids[: two.head]
        assert "You are brief." in template.tokenizer.decode(one.ids[: one.head])
        assert encode(template, [USER]).head == 0
        assert 0 < encode(template, [USER], TOOLS).head < len(encode(template, [USER], TOOLS).ids)


def test_empty_conversation_is_an_empty_user_message(templates):
    template = templates["demo"]
    assert encode(template, []).ids == encode(template, [{"role": "user", "content": ""}]).ids
    assert encode(template, [SYSTEM]).ids == encode(template, [SYSTEM, {"role": "user", "content": ""}]).ids


def test_thinking_switch_reaches_the_template(templates):
    template = templates["qwen3"]
    text = template.render([USER], thinking=False)
    assert text.text.endswith("<think>\n\n</think>\n\n") and not text.starts_in_reasoning
    assert template.render([USER], thinking=True).text.endswith("<|im_start|>assistant\n")
    assert templates["thinking"].render([USER]).starts_in_reasoning


def test_refusing_template_is_one_sentence(tmp_path):
    template = ChatTemplate(tokenizer_with(tmp_path, "{{- raise_exception('Only user\n turns.') }}"))
    with pytest.raises(PromptError) as caught:
        encode(template, [USER])
    assert "Only user turns" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_broken_tokenizers_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    tokenizer_with(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template"):
        load_tokenizer(tmp_path)
    shutil.copy(checkpoint_path() / "chat_template.jinja", tmp_path)
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "nonsense"}}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_tokenizer(tmp_path)


def test_more_text_than_the_model_takes_is_counted_without_a_warning(demo_path):
    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    logging.getLogger("transformers").addHandler(handler)
    try:
        tokenizer = load_tokenizer(demo_path)
        assert len(tokenizer.encode("word " * 5000)) > tokenizer.model_max_length
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert not heard


def test_all_end_of_turn_ids_are_known(templates):
    assert templates["demo"].tokenizer.eos_token_ids == {8183, 8185}
