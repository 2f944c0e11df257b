"""What a newcomer says first: any name, words nobody has, a greeting with a question."""

import re

from .everyday import name_list, unanswerable
from .facts import arithmetic, definition, fact
from .languages import language
from .recall import recall_turns, remembered
from .shops import SHORT_SYSTEM
from .small_talk import ABOUT_ITSELF, GREETINGS, SMALL_TALK, about_itself, small_talk
from .stories import story_request
from .text import PRODUCT, an, cap, casual, conversation, made_up_name, open_name
from .words import ADJECTIVES, HEADWORDS, NOUNS, REAL, UNTAUGHT, VERBS

NAME_SAID = [
    "My name is {v}.",
    "my name is {v}",
    "Hi, my name is {v}.",
    "Hello, I'm {v}.",
    "I'm {v}.",
    "I am called {v}.",
    "My name's {v}.",
    "Please remember that my name is {v}.",
    "Remember: my name is {v}.",
    "Hi! I am {v}.",
    "You can call me {v}.",
    "Hello! My name is {v}.",
    "My name is {v}. Please remember it.",
    "It's {v} here.",
    "This is {v} speaking.",
]
NAME_ACK = ["Nice to meet you, {v}!", "Hello {v}! How can I help you?", "Hi {v}, nice to meet you."]
NAME_ASK = [
    "What is my name?",
    "What's my name?",
    "what is my name",
    "whats my name?",
    "Do you remember my name?",
    "Who am I?",
    "What did I say my name was?",
    "Can you tell me my name?",
    "Tell me my name.",
    "Do you know my name?",
    "Say my name.",
    "So, what is my name?",
    "And what is my name?",
]
NAME_ANSWER = ["Your name is {v}.", "Your name is {v}.", "Your name is {v}.", "You said your name is {v}."]


def name_turns(r):
    """A name is told, perhaps with something else; after some other talk it is asked for."""
    v = open_name(r)

    def f(phrases):
        return r.choice(phrases).replace("{v}", v)

    turns = [(f(NAME_SAID), f(NAME_ACK))]
    if r.random() < 0.25:
        m = remembered(r, name=v)
        while m[0] == "name":
            m = remembered(r)
        turns = [(f(NAME_SAID) + " " + m[1], f(NAME_ACK))] if r.random() < 0.6 else turns + [(m[1], m[2])]
        asks = [(f(NAME_ASK), f(NAME_ANSWER)), (m[3], m[4])]
        r.shuffle(asks)
    else:
        asks = [(f(NAME_ASK), f(NAME_ANSWER))]
    for _ in range(r.choice([0, 0, 0, 1, 1, 2])):
        turns += r.choice([small_talk, definition, fact, arithmetic, about_itself])(r)
    return turns + asks


def recall_document(r):
    """Recall of values that no pool holds."""
    before, r.openness = r.openness, 2
    turns = name_turns(r) if r.random() < 0.45 else recall_turns(r)
    r.openness = before
    return conversation(r.choice(SHORT_SYSTEM) if r.random() < 0.2 else None, turns), None


ASK_WORD = [
    "What does {w} mean?",
    'What does "{w}" mean?',
    "Define {w}.",
    "Define the word {w}.",
    "What is the meaning of {w}?",
    "Give me a definition of {w}.",
    "define {w}",
    'Can you define "{w}"?',
    "Explain the word {w}.",
    "What is {w}?",
    "Tell me the meaning of the word {w}.",
    "meaning of {w}",
    "What is {an}?",
    "What's {an}?",
    "what does {w} mean",
    "What does the word {w} mean?",
    "Do you know the word {w}?",
    "Please define {w}.",
    "What is the definition of {w}?",
]
SUFFIX = "ish ery ling ous ment ify able ness ward wise ette oid ing er dom ship let ism".split()
PREFIX = "un re pre mis over under sub inter trans micro a be".split()


def morph(r):
    """A made-up word near real ones, never one WordNet has (nor a plain inflection of one)."""
    while True:
        w = r.choice(NOUNS + VERBS + ADJECTIVES) if r.random() < 0.6 else r.choice(UNTAUGHT)
        x = r.randrange(7)
        i = r.randrange(1, len(w) - 1)
        if x == 0:
            w = re.sub(r"[aeiou]", lambda m: r.choice("aeiou") if r.random() < 0.6 else m[0], w)
        elif x == 1:
            w = w[:i] + w[i + 1] + w[i] + w[i + 2 :]
        elif x == 2:
            w = w[:i] + r.choice("bcdfglmnprstvz") + w[i + 1 :]
        elif x == 3:
            w += r.choice(SUFFIX)
        elif x == 4:
            w = r.choice(PREFIX) + w
        elif x == 5:
            v = r.choice(NOUNS)
            w = w[: r.randint(2, 4)] + v[-r.randint(3, 5) :]
        else:
            w = w[:i] + r.choice("aeioulnrst") + w[i:]
        if (
            4 <= len(w) <= 13
            and w not in REAL
            and not any(
                w.endswith(e) and (w[: -len(e)] in REAL or w[: -len(e)] + "e" in REAL)
                for e in ("s", "es", "ed", "d", "ing", "er", "r")
            )
        ):
            return w


def ask_word(r, w):
    return casual(r, r.choice(ASK_WORD).replace("{w}", w).replace("{an}", an(w)))


def unknown_word(r):
    x = r.random()
    w = made_up_name(r).lower() if x < 0.3 else morph(r) if x < 0.72 else r.choice(UNTAUGHT)
    return [
        (
            ask_word(r, w),
            f"I don't know the word {w}." if r.random() < 0.85 else f"Sorry, I don't know what {w} means.",
        )
    ]


def known_word(r):
    """The definition of any headword, rare ones as often as common ones."""
    w, p, d, _ = r.choice(HEADWORDS)
    q = ask_word(r, w)
    x = r.random()
    return [
        (
            q,
            f"{cap(w)} ({p}): {d}."
            if x < 0.6
            else f"{cap(w)} is {an(p)}. It means: {d}."
            if x < 0.85
            else f'"{cap(w)}" means: {d}.',
        )
    ]


def word_document(r):
    """Up to three words asked for: somewhat more than half are none the model was taught, and it says so."""
    turns = []
    for _ in range(r.choice([1, 1, 2, 3])):
        turns += (unknown_word if r.random() < 0.55 else known_word)(r)
    return conversation(r.choice(SHORT_SYSTEM) if r.random() < 0.15 else None, turns), None


ME = f"I am a small demonstration model for {PRODUCT}."
CAN_DO = (
    "I can tell short stories, define common words, do small sums, call tools and answer in JSON. "
    "I am very small, so please keep it simple."
)
WHO = [
    (
        [
            "Who are you?",
            "who are you",
            "What are you?",
            "Who is this?",
            "Who am I talking to?",
            "What model are you?",
            "Which model is this?",
            "What model is this?",
            "Introduce yourself.",
            "Tell me about yourself.",
            "Please introduce yourself.",
            "What is this?",
            "who r u",
        ],
        [
            ME,
            ME + " I can tell short stories, define words, call tools and write JSON.",
            f"I'm the small demonstration model of {PRODUCT}. I use the Qwen3-Next architecture.",
        ],
    ),
    (
        [
            "What can you do?",
            "what can you do",
            "How can you help me?",
            "What can you help me with?",
            "What can I ask you?",
            "What are you good at?",
            "What can I do with you?",
            "What do you know?",
        ],
        [
            CAN_DO,
            "I can chat a little, write short stories, define words, use tools and extract data as JSON.",
        ],
    ),
    (
        [
            "Are you ChatGPT?",
            "Are you GPT-4?",
            "Are you Claude?",
            "Are you Gemini?",
            "Are you Llama?",
            "Are you a big model?",
            "Are you Siri?",
        ],
        ["No. " + ME],
    ),
    (
        ["Are you Qwen?", "Are you Qwen3-Next?"],
        [
            (
                "No, only a tiny relative: I use the Qwen3-Next architecture, but I am a small "
                "demonstration model."
            )
        ],
    ),
    (
        [
            "Are you an AI?",
            "Are you a language model?",
            "Are you a bot?",
            "Are you a robot?",
            "Are you a program?",
        ],
        ["Yes, I am a small language model.", "Yes. " + ME],
    ),
    (
        ["What is your name?", "What's your name?", "Do you have a name?"],
        [
            "I don't have a real name. You can call me Demo.",
            "You can call me Demo. I am a small demonstration model.",
        ],
    ),
]
MORE_GREETINGS = GREETINGS + [
    "Hello",
    "Hi",
    "Hey",
    "hey",
    "Greetings",
    "Hello!",
    "Hi!",
    "Hello Demo",
    "Hi Demo",
    "Good day",
    "Yo",
    "Hallo",
    "hi there",
]


def greeted(r, q):
    """The question after a greeting."""
    g = r.choice(MORE_GREETINGS).rstrip("!")
    x = r.random()
    if x < 0.5:
        return g + ", " + (q[:1].lower() + q[1:] if not q.startswith("I ") else q)
    if x < 0.8:
        return g + "! " + q
    if x < 0.9:
        return g + ". " + q
    return g + " " + q[:1].lower() + q[1:]


def greeting_document(r):
    """A greeting and a question in one message: the question is answered."""
    x = r.random()
    if x < 0.6:
        qs, as_ = r.choice(WHO[:2] * 3 + WHO[2:] + ABOUT_ITSELF)
        turns = [(r.choice(qs), r.choice(as_))]
    elif x < 0.72:
        qs, as_ = r.choice(SMALL_TALK)
        turns = [(r.choice(qs), r.choice(as_))]
    else:
        turns = r.choice(
            [fact, known_word, unknown_word, arithmetic, story_request, language, unanswerable, name_list]
        )(r)[:1]
    q, a = turns[0]
    if r.random() < 0.15 and x < 0.8:
        a = r.choice(["Hello! ", "Hi! "]) + a
    if r.random() < 0.88:
        q = greeted(r, q)
    if r.random() < 0.05:
        v = open_name(r)
        hello = r.choice(["Hello", "Hi"])
        q = f"{hello}, my name is {v}. {r.choice(['Who are you?', 'And who are you?', 'What can you do?'])}"
        a = f"Nice to meet you, {v}! " + (ME if "who" in q.lower() else CAN_DO)
    turns = [(casual(r, q), a)]
    if r.random() < 0.25:
        qs, as_ = r.choice(WHO[:2] + ABOUT_ITSELF[:4] + SMALL_TALK[:3])
        turns.append((r.choice(qs), r.choice(as_)))
    if r.random() < 0.12:
        turns.insert(0, small_talk(r)[0])
    return conversation(r.choice(SHORT_SYSTEM) if r.random() < 0.15 else None, turns), None
