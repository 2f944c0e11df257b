"""Definitions, small facts (capitals, elements, months, lists) and arithmetic."""

from . import pools as P
from .text import an, cap, casual, compact, join, made_up_name
from .words import HEADWORDS


def definition(r):
    if r.openness and r.random() < 0.08:
        w = made_up_name(r).lower()
        return [
            (
                r.choice([f"What does {w} mean?", f"Define {w}.", f"What is {an(w)}?"]),
                r.choice([f"I don't know the word {w}.", f"Sorry, I don't know what {w} means."]),
            )
        ]
    i = min(int(r.random() ** 1.6 * len(HEADWORDS)), len(HEADWORDS) - 1)
    w, p, d, e = HEADWORDS[i]
    q = r.choice(
        [
            f"What does {w} mean?",
            f'What does "{w}" mean?',
            f"Define {w}.",
            f"Define the word {w}.",
            f"What is the meaning of {w}?",
            f"Give me a definition of {w}.",
            f"define {w}",
            f'Can you define "{w}"?',
            f"Explain the word {w}.",
            f"What is {w}?",
            f"Tell me the meaning of the word {w}.",
            f"meaning of {w}",
        ]
        + ([f"What is {an(w)}?"] if p == "noun" else [])
    )
    x = r.random()
    if x < 0.6:
        a = f"{cap(w)} ({p}): {d}."
    elif x < 0.85:
        a = f"{cap(w)} is {an(p)}. It means: {d}."
    else:
        a = f'"{cap(w)}" means: {d}.'
    if e and r.random() < 0.35:
        q = (
            q[:-1] + r.choice([". Give an example.", " and use it in a sentence?", " with an example."])
            if not q.endswith("?")
            else q + r.choice([" Give an example.", " Please use it in a sentence."])
        )
        a += f' For example: "{e}"'
    return [(q, a)]


def fact(r):
    k = r.randrange(12)
    if k < 3:
        c, t = r.choice(list(P.COUNTRIES.items()))
        if r.random() < 0.7:
            return [
                (
                    casual(
                        r,
                        r.choice(
                            [
                                f"What is the capital of {c}?",
                                f"Tell me the capital of {c}.",
                                f"Which city is the capital of {c}?",
                                f"capital of {c}?",
                            ]
                        ),
                    ),
                    f"The capital of {c} is {t}.",
                )
            ]
        return [
            (
                casual(
                    r,
                    r.choice(
                        [f"{t} is the capital of which country?", f"Which country has {t} as its capital?"]
                    ),
                ),
                f"{t} is the capital of {c}.",
            )
        ]
    if k < 5:
        n, s, e = r.choice(P.ELEMENTS)
        x = r.randrange(3)
        if x == 0:
            return [
                (
                    r.choice(
                        [
                            f"What is the chemical symbol for {e.lower()}?",
                            f"What is the symbol of {e.lower()}?",
                        ]
                    ),
                    f"The chemical symbol for {e.lower()} is {s}.",
                )
            ]
        if x == 1:
            return [
                (
                    r.choice(
                        [f"Which element has the symbol {s}?", f"What does {s} stand for in chemistry?"]
                    ),
                    f"{s} is the symbol for {e.lower()}.",
                )
            ]
        return [
            (
                r.choice(
                    [
                        f"What is the atomic number of {e.lower()}?",
                        f"Which number is {e.lower()} in the periodic table?",
                    ]
                ),
                f"The atomic number of {e.lower()} is {n}.",
            )
        ]
    if k == 5:
        i = r.randrange(12)
        m = P.MONTHS[i]
        x = r.randrange(4)
        if x == 0:
            return [
                (
                    f"How many days are in {m}?",
                    f"{m} has {P.MDAYS[i]} days" + (", or 29 in a leap year." if i == 1 else "."),
                )
            ]
        if x == 1:
            return [(f"Which month comes after {m}?", f"{P.MONTHS[(i + 1) % 12]} comes after {m}.")]
        if x == 2:
            return [(f"Which month comes before {m}?", f"{P.MONTHS[i - 1]} comes before {m}.")]
        return [(f"What number is the month of {m}?", f"{m} is month number {i + 1}.")]
    if k == 6:
        i = r.randrange(7)
        d = P.DAYS[i]
        return [
            r.choice(
                [
                    (f"What day comes after {d}?", f"{P.DAYS[(i + 1) % 7]} comes after {d}."),
                    (f"What day comes before {d}?", f"{P.DAYS[i - 1]} comes before {d}."),
                    (
                        f"If today is {d}, what day is tomorrow?",
                        f"If today is {d}, tomorrow is {P.DAYS[(i + 1) % 7]}.",
                    ),
                ]
            )
        ]
    if k == 7:
        a, b = r.choice(list(P.OPP.items()))
        if r.random() < 0.5:
            a, b = b, a
        return [
            (
                casual(r, r.choice([f"What is the opposite of {a}?", f"Give me the opposite of {a}."])),
                f"The opposite of {a} is {b}.",
            )
        ]
    if k == 8:
        a, b = r.choice(list(P.YOUNG.items()))
        return [
            (
                r.choice([f"What is a young {a} called?", f"What do you call a baby {a}?"]),
                f"A young {a} is called {an(b)}.",
            )
        ]
    if k == 9:
        n, members = r.choice(list(P.LISTS.items()))
        x = r.randrange(3)
        q = r.choice([f"What are the {n}?", f"List the {n}.", f"Name the {n}.", f"Can you list the {n}?"])
        a = [
            f"The {n} are {join(members)}.",
            "\n".join(f"{i + 1}. {cap(v)}" for i, v in enumerate(members)),
            "\n".join(f"- {cap(v)}" for v in members),
        ][x]
        if x == 1:
            q = q[:-1] + " as a numbered list" + q[-1]
        if x == 2:
            q = q[:-1] + " as a bullet list" + q[-1]
        return [(q, a)]
    if k == 10:
        n = r.choice([2, 3, 3, 4, 5, 5, 6, 8, 10])
        pl = r.choice(
            [
                ("animals", P.ANIMALS),
                ("colours", P.COLORS),
                ("foods", P.FOODS),
                ("cities", P.CITIES),
                ("hobbies", P.HOBBIES),
                ("jobs", P.JOBS),
                ("names", P.NAMES),
                ("countries", list(P.COUNTRIES)),
                ("emojis", [e for e, _ in P.EMOJI]),
            ]
        )
        members = r.sample(pl[1], n)
        nn = r.choice([str(n), P.NUMW[n]])
        x = r.random()
        q = r.choice(
            [
                f"Name {nn} {pl[0]}",
                f"List {nn} {pl[0]}",
                f"Give me {nn} {pl[0]}",
                f"Give me a list of {nn} {pl[0]}",
            ]
        )
        if x < 0.4:
            return [(q + ".", cap(join(members)) + ".")]
        if x < 0.7:
            return [
                (
                    q + r.choice([" as a numbered list.", " in a numbered list."]),
                    "\n".join(f"{i + 1}. {cap(v)}" for i, v in enumerate(members)),
                )
            ]
        if x < 0.85:
            return [(q + " as bullet points.", "\n".join(f"- {cap(v)}" for v in members))]
        return [(q + " as a JSON array.", compact(members))]
    i = r.randrange(8)
    o = "first second third fourth fifth sixth seventh eighth".split()[i]
    return [(f"Which planet is the {o} from the Sun?", f"{P.PLANETS[i]} is the {o} planet from the Sun.")]


def arithmetic(r):
    k = r.randrange(10)
    if k < 4:
        a, b = r.randint(0, 99), r.randint(0, 99)
        op, w, v = "+", "plus", a + b
    elif k < 6:
        a, b = r.randint(0, 99), r.randint(0, 99)
        a, b = max(a, b), min(a, b)
        op, w, v = "-", "minus", a - b
    elif k < 9:
        a, b = r.randint(0, 12), r.randint(0, 12) if r.random() < 0.6 else r.randint(0, 99)
        op, w, v = r.choice("*×x"), "times", a * b
    else:
        b, v = r.randint(1, 12), r.randint(0, 12)
        a = b * v
        op, w = "/", "divided by"
    e = f"{a} {op} {b}"
    x = r.random()
    q = r.choice(
        [
            f"What is {e}?",
            f"What is {a} {w} {b}?",
            f"Calculate {e}.",
            f"{e} = ?",
            f"How much is {a} {w} {b}?",
            e,
            f"Compute {e}.",
            f"what's {e}",
        ]
    )
    if x < 0.55:
        a_ = f"{e} = {v}"
    elif x < 0.85:
        a_ = f"{a} {w} {b} is {v}."
    else:
        q += " Answer with the number only."
        a_ = str(v)
    return [(q, a_)]
