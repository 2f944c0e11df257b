"""Hand-written tools of daily life: weather, timers, mail, lights, journeys and the like."""

from . import pools as P
from .everyday import sentence
from .random_functions import made
from .text import cap
from .words import ADJECTIVES, NOUNS, VERBS

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def weather(r):
    f = r.choice
    c = f(P.CITIES)
    p = f(["city", "location", "place", "town"])
    props = {p: dict(STRING, **({"description": "City name"} if r.random() < 0.5 else {}))}
    args = {p: c}
    u = None
    q = f(
        [
            f"What is the weather in {c}?",
            f"What's the weather like in {c}",
            f"How is the weather in {c} today?",
            f"Tell me the weather in {c}.",
            f"weather in {c}",
            f"Is it raining in {c}?",
        ]
    )
    if r.random() < 0.4:
        props["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
        if r.random() < 0.6:
            u = f(["celsius", "fahrenheit"])
            args["unit"] = u
            q = q.rstrip("?.") + f([f" in {u}?", f" (in {u})"])
    t = r.randint(-10, 38)
    w = f(["sunny", "cloudy", "rainy", "windy", "snowy", "clear", "foggy"])
    return made(
        r,
        [
            "get_weather",
            "weather",
            "get_current_weather",
            "current_weather",
            "weather_lookup",
            "getWeather",
            "fetch_weather",
            "weather_report",
        ],
        ["Get the current weather for a city.", "Get the weather", "Current weather in a place"],
        props,
        [p],
        q,
        args,
        f(
            [
                (
                    {"temperature": t, "condition": w},
                    f"It is {w} in {c} and the temperature is {t} degrees.",
                ),
                (f"{cap(w)}, {t} degrees", f"The weather in {c}: {w}, {t} degrees."),
            ]
        ),
    )


def timer(r):
    f = r.choice
    m = r.randint(1, 90)
    u = f(["minutes", "seconds"])
    p = u if r.random() < 0.6 else "duration_" + u
    lab = f(P.FOODS)
    props = {p: dict(INTEGER)}
    args = {p: m}
    q = f([f"Set a timer for {m} {u}", f"Start a {m} {u[:-1]} timer", f"Remind me in {m} {u}"])
    if r.random() < 0.5:
        props["label"] = dict(STRING)
        args["label"] = lab
        q += f" with the label {lab}"
    return made(
        r,
        ["set_timer", "start_timer", "timer", "create_timer"],
        ["Start a timer.", "Set a countdown timer"],
        props,
        [p],
        q + ".",
        args,
        ({"status": "started"}, f"The timer for {m} {u} has started."),
    )


def email(r):
    f = r.choice
    to = f(P.NAMES)
    sj = f(ADJECTIVES) + " " + f(NOUNS)
    b = sentence(r)
    p = f(["to", "recipient"])
    props = {p: dict(STRING), "subject": dict(STRING)}
    args = {p: to, "subject": sj}
    q = f([f'Send an email to {to} with the subject "{sj}"', f'Email {to} about "{sj}"'])
    if r.random() < 0.5:
        props["body"] = dict(STRING)
        args["body"] = b
        q += f' and the body "{b}"'
    return made(
        r,
        ["send_email", "email", "sendEmail", "send_mail"],
        ["Send an email.", "Send an email to someone"],
        props,
        list(props),
        q + ".",
        args,
        ({"sent": True}, f"The email to {to} has been sent."),
    )


def time(r):
    f = r.choice
    t = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
    d = f"{r.randint(2024, 2028)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    return made(
        r,
        ["llm_time", "get_time", "current_time", "now", "get_current_time"],
        ["Return the current local time.", "Returns the current time, as local time and UTC"],
        {},
        [],
        f(["What time is it?", "What's the time?", "Tell me the current time.", "what time is it now"]),
        {},
        f([(t, f"It is {t}."), ({"time": t, "date": d}, f"It is {t} on {d}.")]),
    )


def currency(r):
    f = r.choice
    a = r.randint(1, 5000)
    x, y = r.sample("USD EUR GBP JPY CHF CAD AUD CNY INR SEK".split(), 2)
    v = round(a * r.uniform(0.3, 3), 2)
    n1, n2, n3 = f(
        [
            ("amount", "from_currency", "to_currency"),
            ("amount", "from", "to"),
            ("value", "source", "target"),
        ]
    )
    return made(
        r,
        ["convert_currency", "currency_convert", "exchange", "convertCurrency"],
        ["Convert an amount between currencies.", "Currency conversion"],
        {n1: dict(NUMBER), n2: dict(STRING), n3: dict(STRING)},
        [n1, n2, n3],
        f([f"Convert {a} {x} to {y}.", f"How much is {a} {x} in {y}?", f"What is {a} {x} in {y}?"]),
        {n1: a, n2: x, n3: y},
        ({"result": v}, f"{a} {x} is {v} {y}."),
    )


def light(r):
    f = r.choice
    rm = f(["kitchen", "bedroom", "living room", "bathroom", "garage", "hall", "office", "garden"])
    on = r.random() < 0.5
    n2 = f(["on", "state", "power"])
    props = {"room": dict(STRING), n2: {"type": "boolean"}}
    return made(
        r,
        ["set_light", "light", "switch_light", "control_light"],
        ["Turn a light on or off.", "Control the lights"],
        props,
        list(props),
        f(
            [
                f"Turn {'on' if on else 'off'} the light in the {rm}.",
                f"Switch the {rm} light {'on' if on else 'off'}.",
                f"Turn the {rm} lights {'on' if on else 'off'}",
            ]
        ),
        {"room": rm, n2: on},
        ({"ok": True}, f"The light in the {rm} is now {'on' if on else 'off'}."),
    )


def journey(r):
    f = r.choice
    a, b = f(P.CITIES), f(P.CITIES)
    d = f"{r.randint(2025, 2028)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    n1, n2 = f([("origin", "destination"), ("from_city", "to_city"), ("departure", "arrival")])
    props = {n1: dict(STRING), n2: dict(STRING)}
    args = {n1: a, n2: b}
    q = f(
        [
            f"Find a flight from {a} to {b}",
            f"Book a train from {a} to {b}",
            f"I want to travel from {a} to {b}",
        ]
    )
    pr = r.randint(40, 900)
    if r.random() < 0.6:
        props["date"] = dict(STRING)
        args["date"] = d
        q += f" on {d}"
    return made(
        r,
        ["find_flight", "search_flights", "book_trip", "find_connection", "book_train"],
        ["Find a connection between two cities.", "Search for trips"],
        props,
        list(props),
        q + ".",
        args,
        ({"price": pr}, f"There is a connection from {a} to {b} for {pr}."),
    )


def song(r):
    f = r.choice
    s = f(ADJECTIVES) + " " + f(NOUNS)
    a = f(P.NAMES) + " " + f(P.SURN)
    props = {"song": dict(STRING)}
    args = {"song": s}
    q = f'Play "{s}"'
    if r.random() < 0.5:
        props["artist"] = dict(STRING)
        args["artist"] = a
        q += f" by {a}"
    return made(
        r,
        ["play_song", "play_music", "play"],
        ["Play a song.", "Start playing music"],
        props,
        ["song"],
        q + ".",
        args,
        ({"playing": s}, f'Now playing "{s}".'),
    )


def task(r):
    f = r.choice
    t = f(VERBS) + " the " + f(NOUNS)
    pr = f(["low", "medium", "high"])
    n1 = f(["title", "task", "text"])
    props = {n1: dict(STRING)}
    args = {n1: t}
    q = f([f"Add a task: {t}", f'Add "{t}" to my list', f"Create a task to {t}"])
    if r.random() < 0.5:
        props["priority"] = {"type": "string", "enum": ["low", "medium", "high"]}
        args["priority"] = pr
        q += f" with {pr} priority"
    return made(
        r,
        ["add_task", "create_task", "add_todo", "new_task"],
        ["Add a task to the list.", "Create a new to-do item"],
        props,
        [n1],
        q + ".",
        args,
        ({"id": r.randint(1, 99)}, f'I added the task "{t}".'),
    )


def contact(r):
    f = r.choice
    n = f(P.NAMES)
    p = f(["name", "user", "person", "username"])
    ph = str(r.randint(1000000, 9999999))
    return made(
        r,
        ["find_contact", "get_phone", "lookup_contact", "get_user", "user_info"],
        ["Look up a contact.", "Find a person in the address book"],
        {p: dict(STRING)},
        [p],
        f([f"What is {n}'s phone number?", f"Find the contact {n}.", f"Look up {n}.", f"Who is {n}?"]),
        {p: n},
        ({"name": n, "phone": ph}, f"{n}'s phone number is {ph}."),
    )
