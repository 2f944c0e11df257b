"""Short stories from templates, requests for them, and questions about them."""

from dataclasses import dataclass

from . import pools as P
from .plots_abroad import broken, dark, race, river, stolen, stuck
from .plots_at_home import gift, hungry, lonely, lost, noise, storm
from .text import an, cap, casual

PLACES = """
a small village by the sea|a quiet forest|a big city|a green valley|a snowy mountain|a little farm|
an old castle|a sunny island|a busy harbour|a deep cave|a wide desert|a house on a hill|
a town with red roofs|a garden full of roses|a lighthouse on the cliff|the edge of a dark wood|
a tiny cottage|a floating market|a windy plain|a riverside mill
""".replace("\n", "").split("|")
OBJECTS = """
golden key|red kite|silver bell|old map|blue lantern|wooden boat|magic seed|warm scarf|music box|
tiny compass|green umbrella|paper star|glass marble|brass trumpet|purple hat|picture book|little drum|
shiny coin|wicker basket|clay pot|feather pen|round mirror|striped sock|white shell|honey jar|toy train|
rope ladder|pocket watch|straw hat|silver whistle
""".replace("\n", "").split("|")
TRAITS = """
brave|shy|curious|kind|clever|lazy|cheerful|stubborn|gentle|hungry|quiet|proud|patient|careful|funny|
lonely|tiny|old|young|playful
""".replace("\n", "").split("|")


PLOTS = {
    plot.__name__: plot
    for plot in (lost, storm, stuck, hungry, lonely, noise, race, river, broken, gift, dark, stolen)
}


@dataclass(frozen=True)
class Scene:
    """Who and what a plot is about; `they`, `their`, `them` are the hero's pronouns."""

    hero: str
    thing: str
    friend: str
    friend_kind: str
    friend_trait: str
    when: str
    they: str
    their: str
    them: str

    @property
    def when_capital(self):
        return cap(self.when)


def person(r):
    if r.random() < 0.5:
        a = r.choice(P.ANIMALS)
        return r.choice(P.NAMES + P.PETS), a
    return r.choice(P.NAMES), r.choice(
        [
            "girl",
            "boy",
            "baker",
            "farmer",
            "sailor",
            "painter",
            "teacher",
            "gardener",
            "carpenter",
            "pilot",
            "shepherd",
            "fisherman",
            "inventor",
            "knight",
            "princess",
            "robot",
            "wizard",
            "clockmaker",
            "librarian",
            "gnome",
        ]
    )


def story(r):
    """A story, and the facts about it that questions may ask for."""
    f = r.choice
    n, k = person(r)
    fn, fk = person(r)
    while fn == n:
        fn = f(P.NAMES)
    place = f(PLACES)
    o = f(OBJECTS)
    t = f(TRAITS)
    t2 = f(TRAITS)
    w = f(
        [
            "one morning",
            "one day",
            "one evening",
            "one rainy afternoon",
            "early on a cold day",
            "on the first day of spring",
            "one sunny morning",
            "late one night",
        ]
    )
    pr = f(["he", "she", "they"])
    ps = {"he": "his", "she": "her", "they": "their"}[pr]
    ob = {"he": "him", "she": "her", "they": "them"}[pr]
    P1 = [
        f"Once upon a time, in {place}, there lived {an(t)} {k} named {n}.",
        f"{n} was {an(t)} {k} who lived in {place}.",
        f"In {place} lived {an(t)} {k}. {cap(ps)} name was {n}.",
        f"There was once {an(t)} {k} called {n}. {cap(pr)} lived in {place}.",
        f"Long ago, {an(t)} {k} named {n} lived in {place}.",
    ]
    P2 = [
        f"{n} loved {ps} {o} more than anything.",
        f"Every day {n} carried {an(o)} everywhere.",
        f"{n}'s greatest treasure was {an(o)}.",
        f"{n} had {an(o)}, a gift from {ps} grandmother.",
        f"{n} liked {f(P.HOBBIES)}, {f(P.FOODS)} and, most of all, {ps} {o}.",
    ]
    s = [f(P1), f(P2)]
    prob = f(list(PLOTS))
    scene = Scene(n, o, fn, fk, t2, w, pr, ps, ob)
    s += PLOTS[prob](scene, f)
    E = [
        f"From that day on, {n} and {fn} were the best of friends.",
        f"{n} went home happy and slept very well.",
        f"And {n} never forgot that day.",
        f"{n} and {fn} laughed all the way home.",
        f"After that, {n} was never alone again.",
        f"That night, {n} fell asleep with a smile.",
    ]
    M = [
        f"And so {n} learned that {x}."
        for x in [
            "kindness always comes back",
            "friends are the greatest treasure",
            "it is never too late to say sorry",
            "even small ones can do great things",
            "being brave means trying when you are afraid",
            "sharing makes everything taste better",
            "patience opens every door",
            "two heads are better than one",
        ]
    ]
    s.append(f(E))
    if r.random() < 0.55:
        s.append(f(M))
    if r.random() < 0.15:
        s.append("The end.")
    if r.random() < 0.5:
        c = r.randint(2, 4)
        d = r.randint(5, 7)
        txt = " ".join(s[:c]) + "\n\n" + " ".join(s[c:d]) + "\n\n" + " ".join(s[d:])
    else:
        txt = " ".join(s)
    return txt.strip(), dict(n=n, k=k, o=o, place=place, fn=fn, fk=fk, t=t, prob=prob)


ABOUT = {
    "lost": ["a lost {o}"],
    "storm": ["a storm"],
    "stuck": ["someone who is stuck"],
    "hungry": ["being hungry", "sharing food"],
    "lonely": ["friendship", "being lonely"],
    "noise": ["a strange noise"],
    "race": ["a race"],
    "river": ["a river"],
    "broken": ["a broken {o}"],
    "gift": ["a gift"],
    "dark": ["the dark", "being afraid of the dark"],
    "stolen": ["a thief", "a stolen {o}"],
}


def story_request(r):
    """A request for a story that names some of what is in it, sometimes with a question afterwards."""
    f = r.choice
    x = r.random()
    adj = f(["", "short ", "little ", "short ", "bedtime ", "funny ", "nice "])
    verb = f(
        [
            "Tell me",
            "Write",
            "Write me",
            "Please tell me",
            "Please write",
            "Can you tell me",
            "I want",
            "Give me",
        ]
    )
    base = f"{verb} a {adj}story"
    if x < 0.2:
        q = base + f([".", " please.", "!", ""])
        t, m = story(r)
    else:
        t, m = story(r)
        y = r.random()
        if y < 0.3:
            q = f"{base} about {an(m['k'])}" + f([f" named {m['n']}", f" called {m['n']}", ""])
        elif y < 0.5:
            q = f"{base} about {an(m['k'])} and {an(m['o'])}"
        elif y < 0.65:
            q = f"{base} about {m['n']} and {m['fn']}"
        elif y < 0.8:
            q = f"{base} about {an(m['t'])} {m['k']}" + f([f" in {m['place']}", ""])
        elif y < 0.9:
            q = f"{base} about {m['n']} the {m['k']} and {m['fn']} the {m['fk']}"
        else:
            q = f"{base} about {f(ABOUT[m['prob']])}".replace("{o}", m["o"])
        q += "." if not q.startswith("Can") else "?"
    out = [(casual(r, q), t)]
    if r.random() < 0.2:
        y = r.randrange(5)
        out.append(
            [
                (
                    f(
                        [
                            "What was the hero's name?",
                            "Who was the story about?",
                            "What is the name of the main character?",
                        ]
                    ),
                    f"The story was about {m['n']}, {an(m['t'])} {m['k']}.",
                ),
                (
                    f(["Where did the story happen?", f"Where did {m['n']} live?"]),
                    f"{m['n']} lived in {m['place']}.",
                ),
                (
                    f"Who helped {m['n']}?"
                    if m["prob"] in ("lost", "stuck", "stolen")
                    else f"Who was {m['fn']}?",
                    f"{m['fn']} the {m['fk']}."
                    if m["prob"] in ("lost", "stuck", "stolen")
                    else f"{m['fn']} was a {m['fk']} in the story.",
                ),
                (f"What was {m['n']}'s treasure?", f"It was {an(m['o'])}."),
                (
                    f(["Give the story a title.", "What would be a good title?"]),
                    f"{m['n']} and the {m['o'].title()}",
                ),
            ][y]
        )
    return out
