"""Conversations in which something told earlier is asked for again."""

from . import pools as P
from .facts import arithmetic, definition, fact
from .small_talk import about_itself, small_talk
from .text import an, cap, casual, pick, pick_word


def remembered(r, name=None):
    k = r.choice(["name", "colour", "pet", "city", "food", "job", "hobby", "age", "number", "friend"])
    if k == "name":
        v = name or pick(r, P.NAMES)
        st = [
            f"My name is {v}.",
            f"I'm {v}.",
            f"I am {v}.",
            f"Hi, I'm {v}.",
            f"Call me {v}.",
            f"Hello, my name is {v}.",
        ]
        ack = [f"Nice to meet you, {v}!", f"Hello {v}! How can I help you?", f"Hi {v}, nice to meet you."]
        q = [
            "What is my name?",
            "What's my name?",
            "Do you remember my name?",
            "Who am I?",
            "What did I say my name was?",
        ]
        an_ = [f"Your name is {v}.", f"You said your name is {v}."]
    elif k == "colour":
        v = pick_word(r, P.COLORS)
        st = [f"My favourite colour is {v}.", f"I love the colour {v}.", f"My favorite color is {v}."]
        ack = [f"{cap(v)} is a lovely colour.", f"Nice! I'll remember that you like {v}."]
        q = [
            "What is my favourite colour?",
            "What did I say my favourite colour was?",
            "Which colour do I like?",
            "What's my favorite color?",
        ]
        an_ = [f"Your favourite colour is {v}.", f"You said your favourite colour is {v}."]
    elif k == "pet":
        a = r.choice(["dog", "cat", "rabbit", "parrot", "hamster", "turtle", "pony", "goldfish"])
        n = pick(r, P.PETS)
        st = [f"I have {an(a)} called {n}.", f"My {a} is called {n}.", f"My {a}'s name is {n}."]
        ack = [f"{n} is a great name for {an(a)}!", f"How nice! Say hello to {n} from me."]
        q = [
            f"What is my {a} called?",
            f"What is the name of my {a}?",
            f"Do you remember my {a}'s name?",
            "What pet do I have?",
        ]
        an_ = [f"Your {a} is called {n}."]
    elif k == "city":
        v = pick(r, P.CITIES)
        st = [f"I live in {v}.", f"I am from {v}.", f"My home is in {v}."]
        ack = [f"{v} sounds like a nice place.", f"I'd like to hear more about {v}."]
        q = ["Where do I live?", "Which city am I from?", "Where is my home?", "What city do I live in?"]
        an_ = [f"You live in {v}.", f"You said you live in {v}."]
    elif k == "food":
        v = pick_word(r, P.FOODS)
        st = [f"My favourite food is {v}.", f"I love eating {v}.", f"I really like {v}."]
        ack = [f"{cap(v)} is delicious!", f"Yum, {v}!"]
        q = ["What is my favourite food?", "What do I like to eat?", "Which food did I say I like?"]
        an_ = [f"You like {v}.", f"You said you like {v}."]
    elif k == "job":
        v = pick_word(r, P.JOBS, 0.2)
        st = [f"I work as {an(v)}.", f"I am {an(v)}.", f"My job is being {an(v)}."]
        ack = [f"Being {an(v)} sounds interesting.", "That's a fine job."]
        q = ["What is my job?", "What do I do for work?", "What did I say my job was?"]
        an_ = [f"You are {an(v)}.", f"You work as {an(v)}."]
    elif k == "hobby":
        v = pick_word(r, P.HOBBIES, 0.2)
        st = [f"My hobby is {v}.", f"I like {v} in my free time.", f"I enjoy {v}."]
        ack = [f"{cap(v)} is a wonderful hobby.", "That sounds like fun."]
        q = ["What is my hobby?", "What do I like to do in my free time?", "What do I enjoy?"]
        an_ = [f"You enjoy {v}.", f"Your hobby is {v}."]
    elif k == "age":
        v = r.randint(7, 90)
        st = [f"I am {v} years old.", f"I'm {v}.", f"I just turned {v}."]
        ack = [f"{v} is a good age!", "Thank you for telling me."]
        q = ["How old am I?", "What is my age?", "What did I say my age was?"]
        an_ = [f"You are {v} years old.", f"You said you are {v} years old."]
    elif k == "number":
        v = r.randint(2, 9999)
        st = [f"My lucky number is {v}.", f"Remember the number {v}.", f"Please remember this code: {v}."]
        ack = [f"I will remember {v}.", "Okay, I'll remember that."]
        q = ["What was the number?", "Which number did I tell you?", "What number did I ask you to remember?"]
        an_ = [f"The number is {v}.", f"You told me the number {v}."]
    else:
        v = pick(r, P.NAMES)
        rel = r.choice(
            [
                "brother",
                "sister",
                "best friend",
                "mother",
                "father",
                "neighbour",
                "son",
                "daughter",
                "teacher",
                "boss",
            ]
        )
        st = [
            f"My {rel} is called {v}.",
            f"My {rel}'s name is {v}.",
            f"I have a {rel} named {v}." if rel not in ("mother", "father") else f"My {rel} is {v}.",
        ]
        ack = [f"{v} is a nice name.", f"Tell me more about {v}."]
        q = [f"What is my {rel}'s name?", f"What is the name of my {rel}?", f"Who is my {rel}?"]
        an_ = [f"Your {rel}'s name is {v}.", f"Your {rel} is called {v}."]
        k = rel
    return k, r.choice(st), r.choice(ack), r.choice(q), r.choice(an_)


def not_told(r):
    k, _, _, q, _ = remembered(r)
    return k, q, r.choice(["I don't know that. You have not told me yet.", "You have not told me that yet."])


def recall_turns(r):
    n = r.choice([1, 1, 2, 2, 3])
    it = {}
    while len(it) < n:
        m = remembered(r)
        it.setdefault(m[0], m)
    it = list(it.values())
    turns = []
    if n > 1 and r.random() < 0.5:
        turns.append(
            (
                " ".join(x[1] for x in it),
                r.choice(
                    [it[-1][2], "Thank you, I will remember that.", "Nice to know! How can I help you?"]
                ),
            )
        )
    else:
        for x in it:
            turns.append((x[1], x[2]))
    for _ in range(r.choice([0, 0, 0, 1, 1, 2])):
        turns += r.choice([small_talk, definition, fact, arithmetic, about_itself])(r)
    r.shuffle(it)
    for x in it[: r.choice([1, 1, 2, 3])]:
        turns.append((casual(r, x[3]), x[4]))
    if r.random() < 0.12:
        k, q, a = not_told(r)
        if k not in [x[0] for x in it]:
            turns.append((q, a))
    if r.random() < 0.1:
        q = turns[0][0]
        turns.append(
            (r.choice(["What was the first thing I said?", "What did I say first?"]), f'You said: "{q}"')
        )
    return turns
