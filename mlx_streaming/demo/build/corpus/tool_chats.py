"""Conversations with tools: one call, two calls, no call, no such tool, and answers from results."""

from .everyday import sentence
from .facts import arithmetic, definition, fact
from .random_functions import random_function, random_string
from .shops import SHORT_SYSTEM, shop
from .small_talk import about_itself, small_talk
from .structured import identifier
from .text import assistant, cap, compact, join, system, tool_result, user
from .tool_families import family_function
from .words import NOUNS, TRAIN_NOUNS


def polite(r, core):
    f = r.choice
    if core[:1].isupper() or core[-1] in "?." or core[:1].isdigit():
        return core if r.random() < 0.8 else f([f"{core}", f"Hi! {core}", f"{core} Please use the tools."])
    return f(
        [
            cap(core) + ".",
            f"Please {core}.",
            f"Can you {core}?",
            f"I need you to {core}.",
            f"{core}",
            f"Could you {core}, please?",
            f"I want to {core}.",
            f"Hey, {core}.",
            f"Now {core}.",
            cap(core),
        ]
    )


def result(r, fn):
    f = r.choice
    if fn["ret"] is not None:
        res, a = fn["ret"]
        return (res if isinstance(res, str) else compact(res)), a
    x = r.random()
    if x < 0.2:
        v = sentence(r)
        return v, f([f"The result is: {v}", f"Done. {v}"])
    if x < 0.4:
        v = f([str(r.randint(0, 9999)), identifier(r), f(NOUNS)])
        return v, f([f"The result is {v}.", f"The answer is {v}."])
    if x < 0.55:
        return compact({"status": "ok"}) if r.random() < 0.5 else compact({"success": True}), f(
            ["Done!", "Done. It worked.", "Okay, that worked."]
        )
    if x < 0.65:
        e = f(["not found", "permission denied", "timeout", "invalid value", "service unavailable"])
        return f([compact({"error": e}), "Error: " + e]), f"Sorry, that did not work: {e}."
    d = {}
    for _ in range(r.randint(1, 3)):
        kk = f(NOUNS)
        d[kk] = f([r.randint(0, 999), random_string(r), round(r.uniform(0, 99), 1)])
    return compact(d), "The " + join([f"{k} is {v}" for k, v in d.items()]) + "."


def any_function(r, nouns, p_real=0.42):
    return family_function(r) if r.random() < p_real else random_function(r, nouns)


def fresh_function(r, nouns, have, p_real=0.42):
    for _ in range(20):
        fn = any_function(r, nouns, p_real)
        if fn["name"] not in have:
            have.add(fn["name"])
            return fn
    return fn


def tool_document(r, nouns=None, p_real=0.42, single=False):
    nouns = nouns or TRAIN_NOUNS
    f = r.choice
    have = set()
    nt = r.choice([1, 1, 2, 2, 3, 3, 4, 5]) if not single else r.choice([1, 2, 3, 4])
    fns = [fresh_function(r, nouns, have, p_real) for _ in range(nt)]
    tools = [x["schema"] for x in fns]
    msgs = []
    if r.random() < 0.45:
        msgs.append(system(f(SHORT_SYSTEM) if r.random() < 0.8 else shop(r)[0]))
    if single:
        fn = f(fns)
        msgs += [user(polite(r, fn["core"])), assistant("", [dict(name=fn["name"], arguments=fn["args"])])]
        return msgs, tools
    todo = list(fns)
    r.shuffle(todo)
    for turn in range(r.choice([1, 1, 1, 2, 2, 3])):
        x = r.random()
        if x < 0.17 or not todo:
            for q, a in f(
                [
                    small_talk,
                    about_itself,
                    fact,
                    definition,
                    arithmetic
                    if not any(
                        k in t["function"]["name"]
                        for t in tools
                        for k in ("add", "mult", "calc", "comp", "eval", "sub")
                    )
                    else small_talk,
                ]
            )(r):
                msgs += [user(q), assistant(a)]
            continue
        if x < 0.23:
            o = fresh_function(r, nouns, have)
            msgs += [
                user(polite(r, o["core"])),
                assistant(
                    f(
                        [
                            "I am sorry, I do not have a tool for that.",
                            "I cannot do that with the tools I have.",
                        ]
                    )
                ),
            ]
            continue
        if x < 0.40 and len(todo) >= 2:
            a, b = todo.pop(), todo.pop()
            q1, q2 = a["core"].rstrip("."), b["core"]
            q = polite(r, q1)
            q = (
                (q.rstrip(".?") + f([", and then ", "; then ", ". Also ", " and "]) + q2)
                if r.random() < 0.8
                else f"1. {cap(q1)}\n2. {cap(q2)}"
            )
            if q[-1].isalnum() and r.random() < 0.5:
                q += "."
            ra, rb = result(r, a), result(r, b)
            msgs += [
                user(q),
                assistant("", [dict(name=z["name"], arguments=z["args"]) for z in (a, b)]),
                tool_result(ra[0]),
                tool_result(rb[0]),
                assistant(ra[1] + ("" if ra[1][-1] in ".!?" else ".") + " " + rb[1]),
            ]
            continue
        fn = todo.pop()
        ra = result(r, fn)
        pre = (
            f(
                [
                    "",
                    "",
                    "",
                    "",
                    "",
                    "",
                    "",
                    "Let me check that.",
                    "Sure, one moment.",
                    "I will use a tool for that.",
                ]
            )
            if False
            else ""
        )
        msgs += [user(polite(r, fn["core"])), assistant(pre, [dict(name=fn["name"], arguments=fn["args"])])]
        if turn or r.random() < 0.8:
            msgs += [tool_result(ra[0]), assistant(ra[1])]
            if r.random() < 0.15:
                msgs += [
                    user(f(["Thanks!", "Thank you.", "Great."])),
                    assistant(f(["You're welcome!", "My pleasure.", "Happy to help!"])),
                ]
        else:
            break
    return msgs, tools
