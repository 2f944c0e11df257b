"""Small helpers for templates: articles, lists, casual spelling, names from closed pools or made up."""

import json
import random

from .words import ADJECTIVES, NOUNS, PROPER_NAMES, UNTAUGHT

PRODUCT = "llm-mlx-streaming"


def compact(value):
    return json.dumps(value, ensure_ascii=False)


def user(content):
    return {"role": "user", "content": content}


def assistant(content, calls=None):
    """An assistant message; `calls`: list of {"name", "arguments"}."""
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def system(content):
    return {"role": "system", "content": content}


def tool_result(content):
    return {"role": "tool", "content": content}


class Writer(random.Random):
    """The source of all random choices in a document, and how open its names are.

    openness 0: names, places, colours come from the closed pools only (the model then learns to prefer
    those to what it is told); 1: about half are made up or WordNet's, and some words asked for are unknown;
    2: nearly all are.
    """

    def __init__(self, seed: int, openness: int = 0):
        super().__init__(seed)
        self.openness = openness


_STARTS = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z th".split()
_VOWELS = "a e i o u ia ei au ie oa".split()
_ENDS = "n r l s m t th ck nd x lf rt sk ne ra la no".split()


def made_up_name(r):
    return cap(
        "".join(r.choice(_STARTS) + r.choice(_VOWELS) for _ in range(r.randint(1, 3))) + r.choice(_ENDS)
    )


def open_name(r):
    """A name from an open class: made up, WordNet's proper names, or a common word; sometimes two."""
    x = r.random()
    if x < 0.35:
        return made_up_name(r)
    if x < 0.75:
        return r.choice(PROPER_NAMES)
    if x < 0.88:
        return cap(r.choice(NOUNS + ADJECTIVES))
    return open_name(r) + " " + open_name(r)


def pick(r, pool):
    """A name of the pool, or by the writer's openness one from an open class, so that recall must copy."""
    if r.openness == 2:
        return r.choice(pool) if r.random() > 0.85 else open_name(r)
    if r.openness == 0 or r.random() > 0.55:
        return r.choice(pool)
    x = r.random()
    if x < 0.6:
        return made_up_name(r)
    if x < 0.85:
        return cap(r.choice(NOUNS + ADJECTIVES))
    return made_up_name(r) + " " + made_up_name(r)


def pick_word(r, pool, share=0.4):
    """The same for words in lower case; `share` of them are open at openness 1."""
    if r.openness == 2:
        if r.random() < 0.3:
            return r.choice(pool)
        return r.choice([made_up_name(r).lower(), r.choice(NOUNS), r.choice(ADJECTIVES), r.choice(UNTAUGHT)])
    if r.openness == 0 or r.random() > share:
        return r.choice(pool)
    return r.choice([made_up_name(r).lower(), r.choice(NOUNS), r.choice(ADJECTIVES)])


def an(w):
    """The word with its indefinite article."""
    return ("an " if w[:1].lower() in "aeiou" else "a ") + w


def cap(s):
    return s[:1].upper() + s[1:]


def join(xs, c="and"):
    """A list in words: a, b and c."""
    return xs[0] if len(xs) == 1 else ", ".join(xs[:-1]) + f" {c} " + xs[-1]


def casual(r, s):
    """Sometimes without the capital, sometimes without the final mark."""
    x = r.random()
    if x < 0.12:
        s = s[:1].lower() + s[1:]
    if x > 0.85 and s[-1] in "?.!":
        s = s[:-1]
    return s


def conversation(instructions, turns):
    """Messages of (question, answer) turns after an optional system prompt."""
    messages = [system(instructions)] if instructions else []
    for question, answer in turns:
        messages += [user(question), assistant(answer)]
    return messages
