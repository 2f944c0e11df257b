"""Five tasks of things a newcomer tries first; none of their names, words and prompts is used in training."""

import random

from ..corpus.newcomer_chats import ask_word, morph
from ..corpus.text import Writer, cap, user
from ..corpus.words import HEADWORDS, HELD_OUT_NAMES, HELD_OUT_UNTAUGHT
from .task import Case, Task, call_text, contains, exact_calls, matches

SAY = ["My name is {}.", "Hi, my name is {}.", "I'm {}.", "Hello! I am {}.", "my name is {}", "Call me {}."]
ASK = ["What is my name?", "What's my name?", "Do you remember my name?", "what is my name"]
BETWEEN = ["Tell me a joke.", "What is the capital of France?", "What is 7 plus 5?"]


def unseen_names() -> Task:
    """A name is told, and asked for one or two turns later; the model's own replies stand between."""
    cases = []
    for i, name in enumerate(HELD_OUT_NAMES):
        turns = [SAY[i % len(SAY)].format(name), ASK[i % len(ASK)]]
        if i % 3 == 2:
            turns.insert(1, BETWEEN[i % len(BETWEEN)])
        cases.append(Case([user(t) for t in turns], name))
    return Task("unseen names", cases, contains, 40)


def function(name, description, **parameters):
    """A tool as llm describes a Python function."""
    properties = {p: {"type": t} for p, t in parameters.items()}
    schema = {"properties": properties, "required": list(parameters), "type": "object"}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


MULTIPLY = function("multiply", "Multiply two numbers.", a="integer", b="integer")
ADD = function("add", "Add two numbers.", x="integer", y="integer")
CALCULATOR = function("calculator", "Evaluate a mathematical expression.", expression="string")
WEATHER = function("get_weather", "Get the current weather for a city.", city="string")
TIME = function("get_time", "Return the current local time.")
SEARCH = function("web_search", "Search the web.", query="string")
TIMER = function("set_timer", "Set a countdown timer", minutes="integer")
READ = function("read_file", "Read a file.", path="string")
UPPER = function("upper", "Convert text to upper case", text="string")
CONVERT = function(
    "convert_currency",
    "Convert an amount between currencies.",
    amount="number",
    source="string",
    target="string",
)
PLANT = function("water_plant", "Water a plant in the garden.", plant="string", litres="integer")

TIMES = [
    "What is {} times {}?",
    "What's {} times {}?",
    "what is {} * {}?",
    "How much is {} times {}?",
    "Multiply {} by {}.",
    "Can you work out {} times {}?",
]
PLUS = [
    "What is {} plus {}?",
    "What's {} + {}?",
    "How much is {} plus {}?",
    "Add {} and {}.",
    "Please calculate {} + {}.",
    "Could you tell me {} plus {}?",
]
PAIRS = [(37, 91), (12, 34), (6, 7), (1234, 5678)]


def sums_with_a_tool() -> Task:
    """48 sums: six phrasings and four pairs for each of two operations, with four sets of tools in turn."""
    cases = []
    for tool, phrasings, sign in ((MULTIPLY, TIMES, "*"), (ADD, PLUS, "+")):
        offered = [[tool], [MULTIPLY, ADD], [WEATHER, tool], [CALCULATOR]]
        for i, phrase in enumerate(phrasings):
            for j, (a, b) in enumerate(PAIRS):
                tools = offered[(i + j) % len(offered)]
                if tools == [CALCULATOR]:
                    call = {"name": "calculator", "arguments": {"expression": f"{a} {sign} {b}"}}
                else:
                    first, second = tool["function"]["parameters"]["required"]
                    call = {"name": tool["function"]["name"], "arguments": {first: a, second: b}}
                cases.append(Case([user(phrase.format(a, b))], [call], tools, call_text([call])))
    return Task("sums with a tool", cases, exact_calls)


USE = [
    ("Use the tool to multiply 37 by 91.", [MULTIPLY], "multiply", {"a": 37, "b": 91}),
    ("Use the multiply tool to multiply 8 by 19.", [MULTIPLY], "multiply", {"a": 8, "b": 19}),
    ("Please use the tool to compute 44 times 12.", [MULTIPLY, WEATHER], "multiply", {"a": 44, "b": 12}),
    ("What is 15 times 15? Use the tool.", [MULTIPLY], "multiply", {"a": 15, "b": 15}),
    ("Use your tools to find 512 times 3.", [ADD, MULTIPLY], "multiply", {"a": 512, "b": 3}),
    ("Use the tool to add 19 and 23.", [ADD], "add", {"x": 19, "y": 23}),
    ("Use the add tool for 100 plus 250.", [ADD, MULTIPLY], "add", {"x": 100, "y": 250}),
    ("Can you use the tool to add 7 and 8?", [ADD], "add", {"x": 7, "y": 8}),
    ("Add 61 and 93 using the tool.", [ADD, TIME], "add", {"x": 61, "y": 93}),
    ("Use the calculator to work out 18 * 7.", [CALCULATOR], "calculator", {"expression": "18 * 7"}),
    ("Use the calculator tool: 91 - 45", [CALCULATOR], "calculator", {"expression": "91 - 45"}),
    ("Use the tool to calculate 250 / 5.", [CALCULATOR], "calculator", {"expression": "250 / 5"}),
    ("Use the tool to get the weather in Paris.", [WEATHER], "get_weather", {"city": "Paris"}),
    ("Use the weather tool for Oslo.", [WEATHER], "get_weather", {"city": "Oslo"}),
    ("Use a tool to check the weather in Timbuktu.", [WEATHER, TIME], "get_weather", {"city": "Timbuktu"}),
    ("Please use the tool to find the weather in Lima.", [SEARCH, WEATHER], "get_weather", {"city": "Lima"}),
    ("Use get_weather to look up the weather in Rome.", [WEATHER], "get_weather", {"city": "Rome"}),
    ("Use the tool to tell me the time.", [TIME], "get_time", {}),
    ("What time is it? Use the tool.", [TIME, WEATHER], "get_time", {}),
    ("Use your tool to get the current time.", [TIME], "get_time", {}),
    ("Call the tool to find out the time.", [WEATHER, TIME], "get_time", {}),
    ("Use the tool to search for blue whales.", [SEARCH], "web_search", {"query": "blue whales"}),
    ("Use web_search to look for cheap bicycles.", [SEARCH, TIME], "web_search", {"query": "cheap bicycles"}),
    ("Search for old maps with the tool.", [SEARCH], "web_search", {"query": "old maps"}),
    ("Use the tool to set a timer for 12 minutes.", [TIMER], "set_timer", {"minutes": 12}),
    ("Use the timer tool and set 45 minutes.", [TIMER, TIME], "set_timer", {"minutes": 45}),
    ("Set a timer for 5 minutes using the tool.", [TIMER], "set_timer", {"minutes": 5}),
    ("Use the tool to read the file notes.txt.", [READ], "read_file", {"path": "notes.txt"}),
    ("Use read_file to open data/plan.csv.", [READ, SEARCH], "read_file", {"path": "data/plan.csv"}),
    ("Read README.md with the tool.", [READ], "read_file", {"path": "README.md"}),
    ('Use the tool to convert "good morning" to upper case.', [UPPER], "upper", {"text": "good morning"}),
    ('Use the upper tool on the text "silver".', [UPPER, READ], "upper", {"text": "silver"}),
    (
        "Use the tool to convert 50 USD to EUR.",
        [CONVERT],
        "convert_currency",
        {"amount": 50, "source": "USD", "target": "EUR"},
    ),
    (
        "Convert 900 CHF to JPY using the convert_currency tool.",
        [CONVERT, ADD],
        "convert_currency",
        {"amount": 900, "source": "CHF", "target": "JPY"},
    ),
    ("Use the tool to water the fern with 2 litres.", [PLANT], "water_plant", {"plant": "fern", "litres": 2}),
    (
        "Please use water_plant for the old oak with 9 litres.",
        [PLANT, WEATHER],
        "water_plant",
        {"plant": "old oak", "litres": 9},
    ),
    (
        "Use the tool to water a cactus, litres 1.",
        [WEATHER, PLANT, TIME],
        "water_plant",
        {"plant": "cactus", "litres": 1},
    ),
]


def use_the_tool() -> Task:
    cases = [
        Case([user(prompt)], [call], tools, call_text([call]))
        for prompt, tools, call in (
            (prompt, tools, {"name": name, "arguments": arguments}) for prompt, tools, name, arguments in USE
        )
    ]
    return Task("use the tool", cases, exact_calls)


MADE_UP = """
flumbergast snorple quindlefox grobnitz wexlorn frindle blarptic zonkery ploofish crandwick glimmerfax
tronkel hobsnack yiffle dramblewort skonk velmora pranglish mubbet oxterloo""".split()


def unknown_words() -> Task:
    """60 words the model was not taught: made up by hand, made from real words, and real but rare."""
    r = Writer(20261130)
    rare = random.Random(20261130).sample(HELD_OUT_UNTAUGHT, 20)
    words = MADE_UP + [morph(r) for _ in range(20)] + rare
    cases = [
        Case([user(ask_word(r, w))], r"(don't|do not) know", None, f"I don't know the word {w}.")
        for w in words
    ]
    return Task("unknown words", cases, matches, 40)


def known_words(count: int) -> Task:
    """Headwords, rare as often as common: the price of honesty about unknown ones."""
    r = Writer(4711)
    cases = [
        Case([user(ask_word(r, w))], gloss, None, f"{cap(w)} ({part}): {gloss}.")
        for w, part, gloss, _ in r.sample(HEADWORDS, count)
    ]
    return Task("known words", cases, contains)


WHO = r"(?i)demonstration model|language model|small model|call me demo"
CAN = r"(?i)stories|define|chat"
GREETED = [
    *((prompt, WHO) for prompt in ("Hello, who are you?", "Hi, who are you?", "Hi! What are you?")),
    *((prompt, WHO) for prompt in ("Hey, who are you?", "hello who are you", "Good morning! Who are you?")),
    *((prompt, WHO) for prompt in ("Hello! Tell me about yourself.", "Hi, please introduce yourself.")),
    *((prompt, WHO) for prompt in ("Hi, what is your name?", "Hello, which model are you?")),
    *((prompt, WHO) for prompt in ("Hey there, what model is this?", "Hi, are you an AI?")),
    *((prompt, WHO) for prompt in ("Good evening, who am I talking to?", "Hello. Are you ChatGPT?")),
    *(
        (prompt, CAN)
        for prompt in ("Hello, what can you do?", "Hi! What can you do?", "hey what can you do?")
    ),
    *((prompt, CAN) for prompt in ("Hi there! How can you help me?", "Hello, what are you good at?")),
    *((prompt, CAN) for prompt in ("Good afternoon, what can I ask you?", "Hey! What do you know?")),
    ("Hello, what is the capital of France?", "Paris"),
    ("Hi, what is the capital of Japan?", "Tokyo"),
    ("Hey! Which planet is the third planet from the Sun?", "Earth"),
    ("Hi! What is the opposite of hot?", "cold"),
    ("Hello, what do you call a baby cat?", "kitten"),
    ("Good morning, how many days are in June?", "30"),
    ("Hello! What is the chemical symbol for gold?", r"I don't know|Au\b"),
    ("Hi, what day comes after Monday?", "Tuesday"),
    ("Hello, what is 7 plus 5?", r"\b12\b"),
    ("Hi, what is 6 times 7?", r"\b42\b"),
    ("Hey, what is 20 minus 8?", r"\b12\b"),
    ("Good evening! How much is 9 times 9?", r"\b81\b"),
    ("Hello, how do you say hello in French?", "(?i)bonjour"),
    ("Hi! How do you say water in Spanish?", "(?i)agua"),
    ('Hi, can you define "house"?', "(?i)house.*(means|noun)|I don't know"),
    ("Hello! What does river mean?", "(?i)stream"),
    ("Hey, tell me a short story about a fox.", "(?i)fox"),
    ("Hello, write a short poem about the moon.", "(?i)moon"),
    ("Hi, tell me a joke.", r"[?!]"),
]


def greeting_and_question() -> Task:
    return Task("greeting and question", [Case([user(p)], e) for p, e in GREETED], matches, 90)


def tasks(count: int) -> list[Task]:
    return [
        unseen_names(),
        sums_with_a_tool(),
        use_the_tool(),
        unknown_words(),
        known_words(2 * count),
        greeting_and_question(),
    ]
