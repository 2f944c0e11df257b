"""Tasks of the original training mix, made by its own generator from other seeds."""

import json
import re

from ..corpus.facts import arithmetic, definition, fact
from ..corpus.recall import recall_turns
from ..corpus.shops import shop
from ..corpus.structured import json_request
from ..corpus.text import Writer, conversation, system, user
from ..corpus.tool_chats import tool_document
from ..corpus.words import HELD_OUT_NOUNS, TRAIN_NOUNS
from .task import Case, Task, call_text, contains, exact_calls, no_call, same_json, same_text


def as_template(messages):
    """Messages with tool calls in the form that chat templates take."""
    return [
        {**m, "tool_calls": [{"type": "function", "function": c} for c in m["tool_calls"]]}
        if m.get("tool_calls")
        else m
        for m in messages
    ]


def single_calls(name: str, nouns, real_share: float, count: int, seed: int) -> Task:
    r, cases = Writer(seed), []
    while len(cases) < count:
        messages, tools = tool_document(r, nouns=nouns, p_real=real_share, single=True)
        made = messages[-1]["tool_calls"]
        cases.append(Case(messages[:-1], made, tools, call_text(made)))
    return Task(name, cases, exact_calls, 120)


def sums(count: int) -> Task:
    r, cases = Writer(5), []
    for _ in range(count):
        question, answer = arithmetic(r)[0]
        cases.append(Case([user(question)], re.findall(r"-?\d+", answer)[-1], None, answer))

    def score(text, expected):
        return (re.findall(r"-?\d+", text) or ["?"])[-1] == expected

    return Task("arithmetic", cases, score, 40)


PLAIN = set(
    "told You you your said say told me are is as a an the number name called live in like enjoy work hobby "
    "favourite colour that old years s home I The".split()
)


def pool_recall(count: int) -> Task:
    r, cases = Writer(6), []
    while len(cases) < count:
        turns = recall_turns(r)
        if len(turns) > 1:
            messages = conversation(None, turns)
            cases.append(Case(messages[:-1], messages[-1]["content"], None, messages[-1]["content"]))

    def score(text, expected):
        if "told me" in expected or "don't know" in expected:
            return "told me" in text or "not know" in text or "don't know" in text
        words = set(re.findall(r"[A-ZÀ-Ž][\w'-]+|\d+|\w+", expected)) - PLAIN
        return all(w.lower() in text.lower() for w in words)

    return Task("recall, known values", cases, score, 40)


def json_extraction(count: int) -> Task:
    r, cases = Writer(7), []
    while len(cases) < count:
        turns = json_request(r)
        if turns[0][0].startswith("__SYS__"):
            messages, answer = [system(turns[0][0][7:]), user(turns[1][0])], turns[1][1]
        else:
            messages, answer = [user(turns[0][0])], turns[0][1]
        if not re.search(r"(?i)invent|make up|describe", messages[-1]["content"]):
            cases.append(Case(messages, json.loads(answer), None, answer))
    return Task("JSON extraction", cases, same_json, 150)


def definitions(count: int) -> Task:
    r, cases = Writer(8), []
    for _ in range(count):
        question, answer = definition(r)[0]
        gloss = re.sub(r" For example.*", "", answer).split(": ")[-1].rstrip(".")
        cases.append(Case([user(question)], gloss, None, answer))
    return Task("definitions", cases, contains)


def facts(count: int) -> Task:
    r, cases = Writer(9), []
    while len(cases) < count:
        question, answer = fact(r)[0]
        if not re.match(r"(?i)name|list|give", question):
            cases.append(Case([user(question)], answer, None, answer))
    return Task("facts", cases, same_text, 90)


def long_system(count: int) -> Task:
    r, cases = Writer(10), []
    while len(cases) < count:
        instructions, turns = shop(r)
        messages = conversation(instructions, turns)
        if "do not have a price" not in messages[-1]["content"]:
            cases.append(Case(messages[:-1], messages[-1]["content"], None, messages[-1]["content"]))

    def score(text, expected):
        figures = r"\d[\d.:]*\d|\d"
        names = set(re.findall(r"\b[A-Z]\w+", expected)) - {"We", "You", "The", "Our", "Yes", "No", "I"}
        same = set(re.findall(figures, expected)) == set(re.findall(figures, text))
        return text == expected or same and names <= set(re.findall(r"\b[A-Z]\w+", text))

    return Task("long system prompt", cases, score, 60)


def inside_tool_chats(count: int) -> list[Task]:
    """Two calls in one turn; no call where none is needed; answers that copy the result's figures."""
    r, two, none, after = Writer(77), [], [], []
    while min(len(two), len(none), len(after)) < count:
        messages, tools = tool_document(r)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            made, before = message.get("tool_calls"), messages[:i]
            if made and len(made) == 2:
                two.append(Case(before, made, tools, call_text(made)))
            elif not made and messages[i - 1]["role"] == "tool":
                after.append(Case(before, message["content"], tools, message["content"]))
            elif not made and messages[i - 1]["role"] == "user":
                none.append(Case(before, message["content"], tools, message["content"]))

    def copied(text, expected):
        figures = r"\d[\d.]*\d|\d"
        return set(re.findall(figures, expected)) <= set(re.findall(figures, text))

    return [
        Task("two calls in a turn", two[:count], exact_calls, 200),
        Task("no call needed", none[:count], no_call, 60),
        Task("answer from a result", after[:count], copied, 90),
    ]


def tasks(count: int) -> list[Task]:
    return [
        single_calls("call, held-out names", HELD_OUT_NOUNS, 0.0, count, 111),
        single_calls("call, mixed tools", TRAIN_NOUNS, 0.5, count, 112),
        sums(count),
        pool_recall(count),
        json_extraction(count),
        definitions(count),
        facts(count),
        long_system(count // 2),
        *inside_tool_chats(count // 2),
    ]
