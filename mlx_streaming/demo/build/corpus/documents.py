"""The mixes of documents the model is trained on."""

from collections.abc import Callable
from dataclasses import dataclass

from .code import code
from .everyday import counting, name_list, poem, repeating, unanswerable
from .facts import arithmetic, definition, fact
from .languages import language
from .newcomer_chats import greeting_document, recall_document, word_document
from .newcomer_sums import sum_document, use_document
from .recall import recall_turns
from .shops import SHORT_SYSTEM, shop
from .small_talk import about_itself, small_talk
from .stories import story_request
from .structured import json_request
from .text import conversation
from .tool_chats import tool_document

SKILLS = [
    (definition, 24),
    (fact, 12),
    (story_request, 24),
    (arithmetic, 16),
    (counting, 6),
    (repeating, 4),
    (language, 13),
    (code, 8),
    (json_request, 16),
    (small_talk, 6),
    (about_itself, 6),
    (unanswerable, 7),
    (name_list, 5),
    (poem, 4),
]
SKILL_FUNCTIONS = [a for a, _ in SKILLS]
SKILL_WEIGHTS = [b for _, b in SKILLS]


def chat_document(r):
    f = r.choice
    turns = []
    sysm = f(SHORT_SYSTEM) if r.random() < 0.3 else None
    n = r.choice([1, 1, 1, 2, 2, 3, 4, 5])
    for t in r.choices(SKILL_FUNCTIONS, SKILL_WEIGHTS, k=n):
        turns += t(r)
    if any(q.startswith("__SYS__") for q, _ in turns):
        i = [i for i, (q, _) in enumerate(turns) if q.startswith("__SYS__")][0]
        sysm = turns[i][0][7:]
        turns = [turns[i + 1]]
    return conversation(sysm, turns)


def original(r):
    """returns (messages, tools, kind)"""
    x = r.random()
    if r.random() < 0.025:
        s, t = shop(r)
        for _ in range(r.randint(4, 14)):
            t += [y for y in r.choices(SKILL_FUNCTIONS, SKILL_WEIGHTS)[0](r) if y[1]]
        t = [y for y in t if not y[0].startswith("__SYS__")]
        return conversation(s, t), None, "long"
    if x < 0.33:
        m, t = tool_document(r)
        return m, t, "tool"
    if x < 0.44:
        return (
            conversation(r.choice(SHORT_SYSTEM) if r.random() < 0.25 else None, recall_turns(r)),
            None,
            "recall",
        )
    if x < 0.50:
        s, t = shop(r)
        return conversation(s, t), None, "longsys"
    return chat_document(r), None, "chat"


NEWCOMER = [
    (recall_document, 34),
    (sum_document, 16),
    (use_document, 14),
    (word_document, 32),
    (greeting_document, 18),
]
REPLAY = (
    0.38  # share of documents of the original kinds in the newcomer mix (by tokens it is about two thirds)
)


def newcomer_only(r):
    """What a newcomer tries first. Returns (messages, tools, kind)."""
    f = r.choices([f for f, _ in NEWCOMER], [w for _, w in NEWCOMER])[0]
    messages, tools = f(r)
    return messages, tools, f.__name__


def newcomer(r):
    """The mix that the shipped checkpoint was tuned on after the original one."""
    return original(r) if r.random() < REPLAY else newcomer_only(r)


@dataclass(frozen=True)
class Mix:
    draw: Callable  # draw(writer) -> (messages, tools or None, kind)
    openness: int  # of the writer, see text.Writer


MIXES = {
    "original": Mix(original, 0),
    "newcomer": Mix(newcomer, 1),
    "newcomer-only": Mix(newcomer_only, 1),
}
