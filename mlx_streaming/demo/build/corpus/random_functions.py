"""Random tools: names from WordNet, parameters of every JSON type, phrasings that carry the values."""

from . import pools as P
from .structured import identifier
from .text import an, cap, join, made_up_name
from .words import ADJECTIVES, NOUNS, VERBS

COMMON_VERBS = """
get set create delete update find search send list add remove start stop open close compute convert check
read write book cancel play show fetch save load count make run move
""".split()


def function_name(r, ws, style=None):
    s = style if style is not None else r.randrange(5)
    if s <= 2:
        return "_".join(ws)
    if s == 3:
        return ws[0] + "".join(cap(w) for w in ws[1:])
    return "".join(ws) if len(ws) < 3 and r.random() < 0.3 else "-".join(ws)


def random_string(r):
    k = r.randrange(9)
    f = r.choice
    if r.openness and r.random() < 0.25:
        return f(
            [
                made_up_name(r),
                cap(f(NOUNS)),
                cap(f(NOUNS)) + " " + cap(f(NOUNS)),
                made_up_name(r) + " " + made_up_name(r),
            ]
        )
    if k == 0:
        return f(P.NAMES)
    if k == 1:
        return f(P.CITIES)
    if k == 2:
        return f(NOUNS)
    if k == 3:
        return f(ADJECTIVES) + " " + f(NOUNS)
    if k == 4:
        return identifier(r)
    if k == 5:
        return f(P.NAMES) + " " + f(P.SURN)
    if k == 6:
        return f(NOUNS) + f([".txt", ".csv", ".md", ".json", ".py", ".png", ".log"])
    if k == 7:
        return f"{f(P.NAMES).lower()}@{f(NOUNS)}.com"
    return f"{r.randint(2020, 2030)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"


def random_parameter(r, nouns, used):
    f = r.choice
    while True:
        w = [f(nouns)] if r.random() < 0.6 else [f(ADJECTIVES if r.random() < 0.5 else nouns), f(nouns)]
        n = "_".join(w) if r.random() < 0.85 else w[0] + "".join(cap(x) for x in w[1:])
        if n not in used:
            break
    hw = " ".join(w)
    t = f(["string"] * 5 + ["integer"] * 4 + ["number"] * 2 + ["boolean"] * 2 + ["array"] * 2 + ["enum"] * 2)
    sch = {}
    if t == "string":
        v = random_string(r)
        sch = {"type": "string"}
        ph = [
            f"{hw} {v}",
            f'{hw} "{v}"',
            f"{v} as the {hw}",
            f"the {hw} {v}",
            f"{hw}: {v}",
            f"the {hw} set to {v}",
            f"{hw} = {v}",
        ]
    elif t == "integer":
        v = r.randint(0, r.choice([10, 100, 1000, 100000]))
        sch = {"type": "integer"}
        ph = [
            f"{hw} {v}",
            f"{v} as the {hw}",
            f"the {hw} set to {v}",
            f"{hw}: {v}",
            f"a {hw} of {v}",
            f"{hw} = {v}",
        ]
    elif t == "number":
        v = round(r.uniform(0, r.choice([1, 10, 100, 1000])), r.choice([1, 2]))
        sch = {"type": "number"}
        ph = [f"{hw} {v}", f"{v} as the {hw}", f"{hw}: {v}", f"a {hw} of {v}"]
    elif t == "boolean":
        v = r.random() < 0.5
        sch = {"type": "boolean"}
        ph = [
            f"{hw} {'on' if v else 'off'}",
            f"{hw} {'enabled' if v else 'disabled'}",
            f"{hw}: {'true' if v else 'false'}",
            f"{hw}: {'yes' if v else 'no'}",
        ]
    elif t == "array":
        if r.random() < 0.6:
            v = [random_string(r) for _ in range(r.randint(1, 4))]
            sch = {"type": "array", "items": {"type": "string"}}
        else:
            v = [r.randint(0, 200) for _ in range(r.randint(1, 4))]
            sch = {"type": "array", "items": {"type": "integer"}}
        listed = join([str(x) for x in v]) if r.random() < 0.6 else ", ".join(map(str, v))
        ph = [f"{hw} {listed}", f"{hw}: {listed}", f"the {hw} {listed}"]
    else:
        opts = r.sample(
            f(
                [
                    ADJECTIVES,
                    NOUNS,
                    P.COLORS,
                    ["celsius", "fahrenheit", "kelvin"],
                    ["low", "medium", "high", "critical"],
                    ["asc", "desc", "none"],
                    ["small", "medium", "large"],
                    ["json", "csv", "xml", "yaml"],
                    P.DAYS,
                ]
            ),
            r.randint(2, 3),
        )
        v = f(opts)
        sch = {"type": "string", "enum": opts}
        ph = [f"{hw} {v}", f"{hw}: {v}", f"{v} as the {hw}", f"the {hw} set to {v}"]
    if r.random() < 0.4:
        sch["description"] = f(
            [f"The {hw}", f"{cap(hw)} to use", f"the {hw} of the {f(nouns)}", f"{cap(hw)}"]
        )
    if r.random() < 0.08:
        sch["title"] = cap(hw)
    return dict(n=n, hw=hw, t=t, v=v, sch=sch, ph=f(ph))


def function_schema(r, name, desc, props, req):
    ps = {"type": "object", "properties": props}
    if r.random() < 0.85 or req:
        ps["required"] = req
    if r.random() < 0.3:
        ps = dict(
            properties=ps["properties"],
            **({"required": ps["required"]} if "required" in ps else {}),
            type="object",
        )
    fn = (
        {"name": name, "description": desc, "parameters": ps}
        if r.random() < 0.93
        else {"name": name, "parameters": ps}
    )
    return {"type": "function", "function": fn}


def random_function(r, nouns):
    f = r.choice
    v = f(VERBS) if r.random() < 0.6 else f(COMMON_VERBS)
    ws = [v, f(nouns)]
    if r.random() < 0.3:
        ws.append(f(nouns))
    if r.random() < 0.06:
        ws = ws[1:]
    name = function_name(r, ws)
    hn = " ".join(ws[1:]) if len(ws) > 1 else ws[0]
    np_ = r.choice([0, 1, 1, 1, 2, 2, 2, 3, 3, 4])
    ps = []
    used = set()
    for _ in range(np_):
        p = random_parameter(r, nouns, used)
        used.add(p["n"])
        ps.append(p)
    req = [p["n"] for p in ps if r.random() < 0.75]
    desc = f(
        [
            f"{cap(v)} the {hn}.",
            f"{cap(v)} {an(hn)}",
            f"{cap(v)} the {hn} of a {f(nouns)}",
            f"Use this to {v} the {hn}.",
            f"This function can {v} {an(hn)}.",
        ]
    )
    sch = function_schema(r, name, desc, {p["n"]: p["sch"] for p in ps}, req)
    give = [p for p in ps if p["n"] in req or r.random() < 0.6]
    order = list(give)
    if r.random() < 0.35:
        r.shuffle(order)
    args = {p["n"]: p["v"] for p in give}
    core = f([f"{v} the {hn}", f"{v} {an(hn)}", f"{v} {hn}"])
    if order:
        core += (
            f([" with ", " using ", " with ", " for "]) + join([p["ph"] for p in order])
            if r.random() < 0.85
            else f([": ", "; "]) + ", ".join(p["ph"] for p in order)
        )
    if r.random() < 0.15:
        core = f([f"call {name}", f"use {name}", f"run {name}"]) + (
            f([" with ", " on "]) + join([p["ph"] for p in order]) if order else ""
        )
    return dict(name=name, schema=sch, args=args, core=core, hn=hn, ret=None)


def made(r, names, descriptions, properties, required, core, arguments, outcome):
    """A hand-written tool with a request for it: one of the names and of the descriptions, the words of the
    request (`core`), the arguments of the right call, and its (result, answer)."""
    name = r.choice(names)
    return dict(
        name=name,
        schema=function_schema(r, name, r.choice(descriptions), properties, required),
        args=arguments,
        core=core,
        hn=name,
        ret=outcome,
    )
