"""Long system prompts (a shop with rules and facts) and questions about their content."""

from . import pools as P
from .small_talk import GREETINGS
from .stories import OBJECTS
from .text import cap, casual
from .words import ADJECTIVES, NOUNS

SHOP_KINDS = [
    "bakery",
    "bookshop",
    "hotel",
    "museum",
    "bank",
    "garage",
    "library",
    "restaurant",
    "flower shop",
    "bicycle shop",
    "pet shop",
    "cinema",
    "school",
    "clinic",
    "travel agency",
    "toy shop",
    "swimming pool",
    "music school",
]
RULES = [
    "Always be polite and friendly.",
    "Keep your answers short.",
    "Answer in English unless asked otherwise.",
    "Never give medical advice.",
    "Do not invent prices.",
    "Use simple words that everyone can understand.",
    "If you do not know something, say so.",
    "Do not talk about politics.",
    "Never share private data of other customers.",
    "Address the customer politely.",
    "Do not promise discounts that are not listed.",
    "Mention the opening hours only when asked.",
    "Do not use emojis.",
    "Stay calm when a customer is angry.",
    "Refer complaints to the manager.",
    "Write full sentences.",
    "Never make jokes about the customer.",
    "Check the list below before you answer.",
    "Offer help at the end of a conversation.",
    "Avoid long lists.",
    "Do not compare us with other companies.",
    "Keep numbers exactly as they are written here.",
    "Never ask for passwords.",
    "Speak as part of the team.",
    "Explain technical terms when you use them.",
    "Ignore spelling mistakes made by the customer.",
]


def shop(r, size=None):
    f = r.choice
    sh = f(SHOP_KINDS)
    nm = (
        f(["Blue", "Golden", "Happy", "Old", "Royal", "Green", "Silver", "Little", "Grand", "Sunny"])
        + " "
        + cap(f(P.ANIMALS))
    )
    bot = f(P.NAMES)
    city = f(P.CITIES)
    mgr = f(P.NAMES) + " " + f(P.SURN)
    o1, c1 = r.randint(6, 11), r.randint(15, 22)
    ph = " ".join(str(r.randint(10, 99)) for _ in range(4))
    street = f"{r.randint(1, 199)} {cap(f(NOUNS))} Street"
    closed = f(P.DAYS)
    facts = [
        (
            f"The opening hours are {o1}:00 to {c1}:00.",
            [
                ("When do you open?", f"We open at {o1}:00."),
                ("When do you close?", f"We close at {c1}:00."),
                ("What are your opening hours?", f"We are open from {o1}:00 to {c1}:00."),
            ],
        ),
        (
            f"The address is {street}, {city}.",
            [
                ("Where are you?", f"You find us at {street}, {city}."),
                ("What is your address?", f"Our address is {street}, {city}."),
                ("Which city are you in?", f"We are in {city}."),
            ],
        ),
        (
            f"The phone number is {ph}.",
            [
                ("What is your phone number?", f"Our phone number is {ph}."),
                ("How can I call you?", f"You can call us at {ph}."),
            ],
        ),
        (
            f"The manager is {mgr}.",
            [
                ("Who is the manager?", f"The manager is {mgr}."),
                ("I want to speak to the manager.", f"Our manager is {mgr}."),
            ],
        ),
        (
            f"We are closed on {closed}.",
            [
                ("On which day are you closed?", f"We are closed on {closed}."),
                (f"Are you open on {closed}?", f"No, we are closed on {closed}."),
            ],
        ),
    ]
    items = r.sample(P.FOODS + P.ANIMALS + [x for x in OBJECTS], r.randint(2, 8))
    for it in items:
        pr = f"{r.randint(1, 199)}" + f(["", f".{r.randint(10, 99)}"]) + f([" euros", " dollars", " francs"])
        facts.append(
            (
                f"The price of the {it} is {pr}.",
                [
                    (f"How much is the {it}?", f"The {it} costs {pr}."),
                    (f"What does the {it} cost?", f"The {it} costs {pr}."),
                    (f"Price of the {it}?", f"The price of the {it} is {pr}."),
                ],
            )
        )
    if r.random() < 0.5:
        code = cap(f(NOUNS)) + str(r.randint(10, 99))
        facts.append(
            (
                f"The discount code of this month is {code}.",
                [
                    ("Is there a discount code?", f"Yes, the discount code is {code}."),
                    ("What is the discount code?", f"The discount code is {code}."),
                ],
            )
        )
    if r.random() < 0.5:
        wifi = f(ADJECTIVES) + f(NOUNS) + str(r.randint(1, 99))
        facts.append(
            (
                f"The wifi password is {wifi}.",
                [("What is the wifi password?", f"The wifi password is {wifi}.")],
            )
        )
    r.shuffle(facts)
    rules = r.sample(RULES, r.randint(2, len(RULES)))
    s = f'You are {bot}, the assistant of the {sh} "{nm}" in {city}. '
    style = r.randrange(3)
    if style == 0:
        s += (
            "\n\nRules:\n"
            + "\n".join(f"{i + 1}. {x}" for i, x in enumerate(rules))
            + "\n\nFacts:\n"
            + "\n".join("- " + x for x, _ in facts)
        )
    elif style == 1:
        s += " ".join(x for x, _ in facts) + " " + " ".join(rules)
    else:
        s += " ".join(rules) + "\n\n" + "\n".join(x for x, _ in facts)
    turns = []
    if r.random() < 0.3:
        turns.append(
            (
                f(GREETINGS) + "!",
                f(
                    [
                        f"Hello! I am {bot} from the {nm}. How can I help you?",
                        f"Welcome to the {nm}! What can I do for you?",
                    ]
                ),
            )
        )
    for x in r.sample(facts, min(len(facts), r.choice([1, 2, 2, 3, 4]))):
        q, a = f(x[1])
        turns.append((casual(r, q), a))
    if r.random() < 0.25:
        turns.append((f(["Who are you?", "What is your name?"]), f"I am {bot}, the assistant of the {nm}."))
    if r.random() < 0.15:
        it = f([x for x in P.FOODS if x not in items])
        turns.append((f"How much is the {it}?", f"I am sorry, I do not have a price for the {it}."))
    return s, turns


SHORT_SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful, concise assistant.",
    "You are a friendly assistant.",
    "Answer briefly.",
    "You are a small demo model.",
    "Be concise and polite.",
    "You are a storyteller.",
    "You are a careful assistant that answers in one sentence when possible.",
    "You are a helpful assistant running on a small computer.",
    "Help the user.",
    "You are a kind teacher.",
    "You are a coding assistant.",
]
