"""Conversation to token ids, keeping the exact ids of what the model itself said.

Re-tokenising an answer's text, or letting the template write its tool calls and reasoning again, can give
other ids than were generated; then no snapshot of that conversation would match. So an assistant message that
carries `token_ids` is rendered as a sentinel, the text between sentinels is tokenised, and the ids are put in
between. Where a template does something with the sentinel that cannot be accounted for, that message is
rendered plainly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import PromptError
from .template import ChatTemplate, Message

Tools = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Encoded:
    """A prompt: its ids, the length of the part that only system messages and tools decide (0: none),
    whether it ends inside an open think tag, and how many assistant messages kept their exact ids."""

    ids: list[int]
    head: int = 0
    starts_in_reasoning: bool = False
    spliced: int = 0


@dataclass(frozen=True)
class _Splice:
    """One assistant message to keep exactly: its index, ids, and sentinels for content and reasoning."""

    index: int
    ids: tuple[int, ...]
    content: str
    reasoning: str
    has_reasoning: bool


@dataclass(frozen=True)
class _Cut:
    """Text [start, end) of a rendering that `ids`, then the text `after`, replace."""

    start: int
    end: int
    ids: tuple[int, ...]
    after: str = ""


def encode(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Tools = (),
    thinking: bool | None = None,
) -> Encoded:
    """Token ids of the conversation, ready for an answer.

    An assistant message's `token_ids` come back exactly where the template keeps that message; for a template
    that drops the reasoning of earlier turns, only the ids after the think end.

    Raises:
        PromptError: the template refuses the conversation.
    """
    plain = template.render(messages, tools, thinking)
    splices = _candidates(template, messages)
    ids, kept = _spliced(template, messages, tools, thinking, splices)
    if ids is None:
        ids = template.encode(plain.text)
    head = head_length(template, messages, tools, thinking, ids)
    return Encoded(ids, head, plain.starts_in_reasoning, kept)


def head_length(
    template: ChatTemplate, messages: Sequence[Message], tools: Tools, thinking: bool | None, ids: list[int]
) -> int:
    """How many leading ids do not depend on what the user says; 0 without system message and tools."""
    system = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    if not system and not tools:
        return 0
    try:
        first, second = (
            template.encode(
                template.render([*system, {"role": "user", "content": word}], tools, thinking).text
            )
            for word in ("Hello", "7 x")
        )
    except PromptError:
        return 0
    return min(_common(first, second), _common(first, ids), len(ids) - 1)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _candidates(template: ChatTemplate, messages: Sequence[Message]) -> list[_Splice]:
    nonce = _unused(messages)
    tokenizer = template.tokenizer
    found = []
    for index, message in enumerate(messages):
        ids = message.get("token_ids")
        if message["role"] != "assistant" or not ids:
            continue
        thought = tokenizer.has_thinking and (
            bool(message.get("reasoning_content"))
            or tokenizer.find_think_end(ids) >= 0
            or tokenizer.find_think_start(ids) >= 0
        )
        found.append(_Splice(index, tuple(ids), f"{nonce}C{index}E", f"{nonce}R{index}E", thought))
    return found


def _unused(messages: Sequence[Message]) -> str:
    """A word that occurs nowhere in the conversation and that no template or tokenizer treats specially."""
    text = repr([{k: v for k, v in message.items() if k != "token_ids"} for message in messages])
    return next(word for n in itertools.count() if (word := f"SpliceQ{n}Q") not in text)


def _spliced(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Tools,
    thinking: bool | None,
    splices: list[_Splice],
) -> tuple[list[int] | None, int]:
    """Ids with every splice that can be trusted, and their number; (None, 0) when there is none."""
    while splices:
        try:
            bare = template.render(_with_sentinels(messages, splices, False), tools, thinking).text
            full = template.render(_with_sentinels(messages, splices, True), tools, thinking).text
        except PromptError:
            return None, 0
        cuts = [_cut(template, messages, bare, splice) for splice in splices]
        good = _trusted(messages, bare, full, splices, cuts)
        if len(good) == len(splices):
            return _joined(template, bare, [cut for cut in cuts if cut]), len(good)
        splices = good
    return None, 0


def _with_sentinels(messages: Sequence[Message], splices: list[_Splice], calls: bool) -> list[Message]:
    """The conversation with sentinels for what the model said; `calls` keeps the tool calls beside them."""
    changed = list(messages)
    for splice in splices:
        message = dict(messages[splice.index], content=splice.content)
        message.pop("reasoning_content", None)
        if splice.has_reasoning:
            message["reasoning_content"] = splice.reasoning
        if not calls:
            message.pop("tool_calls", None)
        changed[splice.index] = message
    return changed


def _cut(template: ChatTemplate, messages: Sequence[Message], text: str, splice: _Splice) -> _Cut | None:
    """What to replace for `splice`, or None when its sentinels are not where they must be."""
    if text.count(splice.content) != 1 or text.count(splice.reasoning) > 1:
        return None
    start = text.index(splice.content)
    end = start + len(splice.content)
    if not splice.has_reasoning:
        return _Cut(start, end, splice.ids)
    tokenizer = template.tokenizer
    opened, closed = tokenizer.find_think_start(splice.ids), tokenizer.rfind_think_end(splice.ids)
    if splice.reasoning not in text:
        return _answer_only(template, messages[splice.index], splice, start, end)
    begin = text.index(splice.reasoning)
    between = text[begin + len(splice.reasoning) : start]
    if begin > start or between.strip() != tokenizer.think_end:
        return None
    if opened == 0:
        begin = text.rfind(tokenizer.think_start, 0, begin)
    after = between if closed < 0 else ""  # cut off while thinking: the template closes the tag
    return _Cut(begin, end, splice.ids, after) if begin >= 0 else None


def _answer_only(
    template: ChatTemplate, message: Message, splice: _Splice, start: int, end: int
) -> _Cut | None:
    """The part after the reasoning, for a template that drops it; None when the ids cannot be split there."""
    tokenizer = template.tokenizer
    closed = tokenizer.rfind_think_end(splice.ids)
    if closed < 0:
        return None
    answer = list(splice.ids[closed + len(tokenizer.think_end_tokens) :])
    while answer and not tokenizer.decode(answer[:1]).strip():
        answer.pop(0)
    text = tokenizer.decode(answer)
    lost_calls = bool(message.get("tool_calls")) and (tokenizer.tool_call_start or "") not in text
    return None if text != text.lstrip() or lost_calls or not answer else _Cut(start, end, tuple(answer))


def _trusted(
    messages: Sequence[Message], bare: str, full: str, splices: list[_Splice], cuts: list[_Cut | None]
) -> list[_Splice]:
    """Splices in conversation order of whose message the template wrote the calls and changed nothing else.

    A template may close a turn differently after a call (or not at all), which the rendering without calls
    would hide: the text after a sentinel must end the same with and without calls.
    """
    good = []
    position = -1
    for i, (splice, cut) in enumerate(zip(splices, cuts, strict=True)):
        if cut is None or cut.start < position or full.count(splice.content) != 1:
            continue
        position = cut.end
        following = splices[i + 1].content if i + 1 < len(splices) else ""
        without, with_calls = (_between(text, splice.content, following) for text in (bare, full))
        called = bool(messages[splice.index].get("tool_calls"))
        if with_calls.endswith(without) if called else with_calls == without:
            good.append(splice)
    return good


def _between(text: str, mark: str, following: str) -> str:
    """What lies after `mark`, up to `following` if that is there."""
    rest = text[text.index(mark) + len(mark) :]
    return rest.partition(following)[0] if following else rest


def _joined(template: ChatTemplate, text: str, cuts: list[_Cut]) -> list[int]:
    ids: list[int] = []
    position = 0
    for cut in cuts:
        ids += template.encode(text[position : cut.start])
        ids += cut.ids
        ids += template.encode(cut.after)
        position = cut.end
    return ids + template.encode(text[position:])
