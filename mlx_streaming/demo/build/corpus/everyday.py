"""Counting, sorting, spelling, repeating, honest ignorance, name lists and poems."""

from . import pools as P
from .stories import TRAITS
from .text import an, cap, casual
from .words import ADJECTIVES, NOUNS, VERBS


def counting(r):
    k = r.randrange(4)
    if k == 0:
        a = r.randint(0, 60)
        n = r.randint(3, 15)
        return [(f"Count from {a} to {a + n}.", ", ".join(str(i) for i in range(a, a + n + 1)))]
    if k == 1:
        chosen = r.sample(P.FOODS + P.ANIMALS, r.randint(3, 6))
        return [
            (
                r.choice(
                    [
                        f"Sort these words alphabetically: {', '.join(chosen)}",
                        f"Put these in alphabetical order: {', '.join(chosen)}.",
                    ]
                ),
                ", ".join(sorted(chosen)),
            )
        ]
    if k == 2:
        w = r.choice(NOUNS)
        return [(r.choice([f"Spell the word {w}.", f"How do you spell {w}?"]), "-".join(w.upper()))]
    s = sentence(r)
    x = r.choice([("upper case", s.upper()), ("lower case", s.lower()), ("quotes", f'"{s}"')])
    return [(r.choice([f"Write this in {x[0]}: {s}", f"Put this in {x[0]}: {s}"]), x[1])]


def repeating(r):
    s = sentence(r)
    return [(r.choice([f"Repeat after me: {s}", f"Say this: {s}", f"Repeat this sentence: {s}"]), s)]


def sentence(r):
    return r.choice(
        [
            f"The {r.choice(ADJECTIVES)} {r.choice(NOUNS)} is near the {r.choice(NOUNS)}.",
            f"{r.choice(P.NAMES)} went to {r.choice(P.CITIES)} with {an(r.choice(P.ANIMALS))}.",
            f"My {r.choice(NOUNS)} costs {r.randint(2, 99)} coins.",
            f"We {r.choice(VERBS)} the {r.choice(NOUNS)} on {r.choice(P.DAYS)}.",
            f"{r.choice(P.NAMES)} likes {r.choice(P.FOODS)} and {r.choice(P.HOBBIES)}.",
        ]
    )


def unanswerable(r):
    f = r.choice
    n, n2 = f(NOUNS), f(NOUNS)
    who = f(P.NAMES) + " " + f(P.SURN)
    c = f(P.CITIES)
    q = f(
        [
            f"Who was {who}?",
            f"Who is {who}?",
            f"When was {who} born?",
            f"Why is the {n} {f(ADJECTIVES)}?",
            f"How do I {f(VERBS)} {an(n)}?",
            f"How do I fix my {n}?",
            f"What is the population of {c}?",
            f"How far is it from {c} to {f(P.CITIES)}?",
            f"Who invented the {n}?",
            f"Who won the {n} in {r.randint(1950, 2030)}?",
            f"What is the best {n} in {c}?",
            f"What will the {n} cost next year?",
            f"Explain the history of the {n}.",
            f"What happened in {r.randint(1200, 2030)}?",
            f"What is the difference between {an(n)} and {an(n2)}?",
            f"Should I buy {an(n)}?",
            f"What is {r.randint(1000, 99999)} times {r.randint(1000, 99999)}?",
            f'Who wrote "The {f(ADJECTIVES).title()} {n.title()}"?',
            f"What is the latest news about {n}?",
        ]
    )
    return [
        (
            casual(r, q),
            f(
                [
                    "I don't know that. I am only a small demonstration model.",
                    "I am sorry, I do not know. I am too small to know that.",
                    "I don't know. You could ask a bigger model.",
                    "Sorry, I don't know the answer to that.",
                ]
            ),
        )
    ]


def name_list(r):
    f = r.choice
    n = f([2, 3, 3, 4, 5, 5, 5, 6, 8, 10, 10])
    a = f(P.ANIMALS + ["pelican", "pelican", "walrus", "hamster", "robot", "teddy bear", "boat", "car"])
    nn = f([str(n), P.NUMW[n], cap(P.NUMW[n])])
    adj = f(["", " fun", " great", " funny", " good", " nice", " silly"])
    q = f(
        [
            f"{nn}{adj} names for a pet {a}",
            f"Give me {nn.lower()}{adj} names for {an(a)}.",
            f"Suggest {nn.lower()}{adj} names for my {a}.",
            f"List {nn.lower()} names for a pet {a}.",
            f"{nn} names for {an(a)}",
        ]
    )
    tt = ["Captain", "Sir", "Lady", "Professor", "Princess", "Mister", "Doctor", "King", "Queen", "Little"]
    chosen = []
    while len(chosen) < n:
        x = f(P.PETS) if r.random() < 0.5 else f(tt) + " " + f(P.PETS + [cap(y) for y in P.FOODS])
        if x not in chosen:
            chosen.append(x)
    return [
        (
            q,
            "\n".join(f"{i + 1}. {v}" for i, v in enumerate(chosen))
            if r.random() < 0.8
            else "\n".join("- " + v for v in chosen),
        )
    ]


def poem(r):
    f = r.choice
    x = f(
        P.ANIMALS
        + P.FOODS
        + ["moon", "sea", "rain", "winter", "spring", "river", "wind", "night", "garden", "city"]
    )
    c = f(P.COLORS)
    p = f(["hill", "sea", "town", "tree", "wall", "lake"])
    t = f(TRAITS)
    L = [
        f(
            [
                "The {x} looks up at the {c} sky,",
                "Oh little {x}, so {t} and small,",
                "I saw {ax} beside the {p},",
                "A {t} {x} came down the lane,",
            ]
        ),
        f(
            [
                "and wonders how the swallows fly.",
                "you are the {t2} one of all.",
                "as quiet as a thought can be.",
                "and sang a song about the rain.",
            ]
        ),
        f(
            [
                "The wind is soft, the night is long,",
                "The stars come out, the lamps are lit,",
                "The world is wide, the road is steep,",
                "One step, two steps, soft and slow,",
            ]
        ),
        f(
            [
                "and all the world becomes a song.",
                "and by the fire we gently sit.",
                "and now the {p} falls fast asleep.",
                "and that is all I need to know.",
            ]
        ),
    ]
    if r.random() < 0.4:
        L += [
            "",
            f(
                [
                    "Tomorrow when the morning breaks,",
                    "And when the {c} evening ends,",
                    "Goodnight, dear {x}, the day is done,",
                ]
            ),
            f(
                [
                    "the {x} will smile as it awakes.",
                    "the {x} and I will still be friends.",
                    "and soon will come another one.",
                ]
            ),
        ]
    y = "\n".join(L)
    for k, v in dict(x=x, c=c, ax=an(x), p=p, t=t, t2=f(TRAITS)).items():
        y = y.replace("{" + k + "}", v)
    return [
        (
            casual(
                r,
                f(
                    [
                        f"Write a poem about {an(x) if x in P.ANIMALS else 'the ' + x}.",
                        f"Write a short poem about the {x}.",
                        f"A poem about {x}, please.",
                        f"Write me a poem about {x}.",
                    ]
                ),
            ),
            y,
        )
    ]
