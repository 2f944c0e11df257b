"""JSON answers: extraction from a text, and inventions that follow a schema or a list of keys."""

import json

from . import pools as P
from .stories import TRAITS
from .text import an, cap, compact, join, pick
from .words import NOUNS


def identifier(r):
    return (
        "".join(r.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(r.randint(1, 3)))
        + "-"
        + str(r.randint(10, 9999))
    )


def person_fields(r):
    n = r.choice(P.NAMES)
    full = n + " " + r.choice(P.SURN)
    use = r.choice([n, full])
    if r.openness:
        use = pick(r, [use])
    return {
        "name": use,
        "age": r.randint(5, 95),
        "city": r.choice(P.CITIES),
        "job": r.choice(P.JOBS),
        "country": r.choice(list(P.COUNTRIES)),
        "hobby": r.choice(P.HOBBIES),
        "email": f"{n.lower()}{r.randint(1, 99)}@example.{r.choice(['com', 'org', 'net'])}",
        "pet": r.choice(P.PETS),
        "favourite_color": r.choice(P.COLORS),
    }


PHRASES = {
    "name": ["{v}"],
    "age": ["is {v} years old", "is {v}"],
    "city": ["lives in {v}"],
    "job": ["works as a {v}"],
    "country": ["comes from {v}"],
    "hobby": ["enjoys {v}"],
    "email": ["has the email address {v}"],
    "pet": ["has a pet called {v}"],
    "favourite_color": ["likes the colour {v}"],
}


def about_person(r):
    """(text, wanted keys, answer) of an extraction; the same for `about_order` and `about_event`."""
    f = r.choice
    d = person_fields(r)
    ks = r.sample([x for x in d if x != "name"], r.randint(1, 4))
    tks = list(ks)
    r.shuffle(tks)
    text = d["name"] + " " + join([f(PHRASES[x]).replace("{v}", str(d[x])) for x in tks]) + "."
    want = ["name"] + [x for x in ks if r.random() < 0.85]
    if r.random() < 0.4:
        r.shuffle(want)
    return text, want, {x: d[x] for x in want}


def about_order(r):
    f = r.choice
    item = f(NOUNS)
    d = {
        "product": item,
        "price": round(r.uniform(1, 500), 2) if r.random() < 0.6 else r.randint(1, 500),
        "quantity": r.randint(1, 40),
        "color": f(P.COLORS),
        "order_id": identifier(r),
        "in_stock": r.random() < 0.5,
    }
    text = (
        f"{f(['Order', 'Item'])} {d['order_id']}: {d['quantity']} {d['color']} {item}, price "
        f"{d['price']} {f(['euros', 'dollars', 'each'])}, "
    ) + ("in stock." if d["in_stock"] else "out of stock.")
    want = r.sample(list(d), r.randint(2, 6))
    return text, want, {x: d[x] for x in want}


def about_event(r):
    f = r.choice
    d = {
        "event": f(["meeting", "concert", "dinner", "lecture", "party", "workshop", "match", "exam"]),
        "day": f(P.DAYS),
        "time": f"{r.randint(7, 22):02d}:{r.choice(['00', '15', '30', '45'])}",
        "place": f(P.CITIES),
        "people": r.sample(P.NAMES, r.randint(1, 3)),
    }
    text = f"{join(d['people'])} will meet for the {d['event']} in {d['place']} on {d['day']} at {d['time']}."
    want = r.sample(list(d), r.randint(2, 5))
    return text, want, {x: d[x] for x in want}


def invented(r, what, name, age):
    """All fields of one invented thing."""
    f = r.choice
    return {
        "name": name(),
        "age": age(),
        "bio": f"{an(f(TRAITS)).capitalize()} {what} who likes {f(P.FOODS)} and {f(P.HOBBIES)}.",
        "short_bio": f"{cap(f(TRAITS))} and {f(TRAITS)}.",
        "color": f(P.COLORS),
        "friendly": r.random() < 0.6,
        "favorite_food": f(P.FOODS),
        "weight": round(r.uniform(1, 60), 1),
        "tags": r.sample(TRAITS, 3),
    }


def invention(r):
    """(request, wanted keys, answer) of one or several invented things."""
    f = r.choice
    what = f(["dog", "cat", "pirate", "robot", "dragon", "book", "planet", "wizard", "horse"])
    names = P.CITIES if what in ("book", "planet") else P.PETS + P.NAMES
    oldest = 15 if what in ("dog", "cat") else 99
    d = invented(r, what, lambda: f(names), lambda: r.randint(1, oldest))
    want = r.sample(list(d), r.randint(2, 5))
    if "name" in want:
        want.remove("name")
    want = ["name"] + want
    answer = {x: d[x] for x in want}
    topic = f([f"Invent a {what}.", f"Make up a {what}.", f"Describe a {what}.", f"invent a cool {what}"])
    if r.random() < 0.2:
        m = r.randint(2, 3)
        items = [answer]
        for _ in range(m - 1):
            # every field is invented anew for every key that is wanted
            items.append({x: invented(r, what, lambda: f(P.PETS), lambda: r.randint(1, 30))[x] for x in want})
        answer = {"items": items}
        topic = f([f"Invent {P.NUMW[m]} {what}s.", f"Make up {m} {what}s."])
    return topic, want, answer


def json_type(v):
    if isinstance(v, bool):
        return "boolean"
    kinds = {int: "integer", float: "number", list: "array"}
    return kinds.get(type(v), "string")


def schema_of(r, value):
    """A JSON schema that the object `value` follows."""
    properties = {}
    for x, v in value.items():
        properties[x] = {"type": json_type(v)}
        if isinstance(v, list):
            properties[x]["items"] = schema_of(r, v[0]) if isinstance(v[0], dict) else {"type": "string"}
    if r.random() < 0.2:
        return {"properties": properties, "required": list(value), "type": "object"}
    return {"type": "object", "properties": properties, "required": list(value)}


def wish(r, want, answer):
    """The words that ask for this form of answer: by schema, by keys, or by an example."""
    f = r.choice
    y = r.random()
    indented = r.random() < 0.12
    if "items" in answer or y < 0.35:
        ask = f(
            [
                "Reply only with a JSON object that follows this JSON schema:\n",
                "Answer with JSON that matches this schema:\n",
                "Reply with a JSON object that conforms to this JSON schema: ",
            ]
        ) + compact(schema_of(r, answer))
    elif y < 0.8:
        ask = f(
            [
                "Reply with JSON with keys ",
                "Answer in JSON with the keys ",
                "Return a JSON object with keys ",
                "Extract as JSON with keys ",
            ]
        )
        ask += f([", ".join(want), join(want), ", ".join(f'"{x}"' for x in want)]) + "."
    else:
        ask = f(["Use this format: ", "Reply in the format "])
        ask += "{" + ", ".join(f'"{x}": ...' for x in want) + "}"
    if indented:
        ask += f([" Use an indented layout.", " Pretty-print it."])
    return ask, json.dumps(answer, ensure_ascii=False, indent=2) if indented else compact(answer)


def json_request(r):
    """One turn with a JSON answer. A first turn that begins with __SYS__ is a system prompt."""
    f = r.choice
    k = r.randrange(10)
    if k >= 8:
        topic, want, answer = invention(r)
        ask, out = wish(r, want, answer)
        if r.random() < 0.5:
            return [("__SYS__" + ask, None), (topic, out)]
        return [(topic + " " + ask, out)]
    text, want, answer = (about_person if k < 5 else about_order if k < 7 else about_event)(r)
    ask, out = wish(r, want, answer)
    x = r.random()
    if x < 0.4:
        return [(text + " " + ask, out)]
    if x < 0.75:
        return [(ask + f(["\n\n", "\n", " Text: "]) + text, out)]
    return [("__SYS__" + ask, None), (text, out)]
