"""Hand-written tools for work: sums, files, texts, the web, stocks and databases."""

from . import pools as P
from .everyday import sentence
from .random_functions import made
from .text import cap, join
from .words import ADJECTIVES, NOUNS

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def two_numbers(r):
    f = r.choice
    nmap = f(
        [
            ("multiply", "multiply", "times", lambda a, b: a * b),
            ("add", "add", "plus", lambda a, b: a + b),
            ("subtract", "subtract", "minus", lambda a, b: a - b),
        ]
    )
    a, b = r.randint(2, 9999), r.randint(2, 9999)
    pa, pb = f([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right")])
    op = {"multiply": "*", "add": "+", "subtract": "-"}[nmap[0]]
    v = nmap[3](a, b)
    return made(
        r,
        [nmap[0], nmap[0] + "_numbers", "calc_" + nmap[0], nmap[0] + "Numbers"],
        [f"{cap(nmap[0])} two numbers.", f"{cap(nmap[0])} {pa} and {pb}"],
        {pa: dict(f([INTEGER, NUMBER])), pb: dict(f([INTEGER, NUMBER]))},
        [pa, pb],
        f(
            [
                f"What is {a} {op} {b}?",
                f"What is {a} {nmap[2]} {b}?",
                f"Calculate {a} {op} {b}.",
                f"{a} {op} {b}",
                f"How much is {a} {nmap[2]} {b}?",
            ]
        ),
        {pa: a, pb: b},
        (str(v), f"{a} {op} {b} = {v}"),
    )


def expression(r):
    f = r.choice
    e = f"{r.randint(2, 999)} {r.choice('+-*/')} {r.randint(2, 999)}" + (
        f" {r.choice('+-*')} {r.randint(2, 99)}" if r.random() < 0.5 else ""
    )
    v = r.randint(-500, 99999)
    p = f(["expression", "expr", "formula"])
    return made(
        r,
        ["calculator", "calculate", "eval_math", "simple_eval", "compute"],
        ["Evaluate a mathematical expression.", "Compute the value of an expression"],
        {p: dict(STRING)},
        [p],
        f([f"Calculate {e}.", f"What is {e}?", f"Compute {e}", f"Use the calculator for {e}."]),
        {p: e},
        (str(v), f"{e} = {v}"),
    )


def version(r):
    f = r.choice
    v = (
        f"0.{r.randint(20, 40)}.{r.randint(0, 9)}"
        if r.random() < 0.8
        else f"{r.randint(1, 9)}.{r.randint(0, 30)}"
    )
    return made(
        r,
        ["llm_version", "get_version", "version"],
        ["Return the installed version of llm", "Get the version number."],
        {},
        [],
        f(
            [
                "What version of llm is this?",
                "Which version is installed?",
                "What version?",
                "Tell me the version.",
            ]
        ),
        {},
        (v, f"The installed version is {v}."),
    )


def text_change(r):
    f = r.choice
    s = f([sentence(r)[:-1], f(NOUNS), f(NOUNS) + " " + f(NOUNS)])
    p = f(["text", "s", "input"])
    g = f(
        [
            ("upper", "Convert text to upper case", f'Convert "{s}" to upper case.', s.upper()),
            ("lower", "Convert text to lower case", f'Convert "{s}" to lower case.', s.lower()),
            ("reverse_text", "Reverse a text", f'Reverse the text "{s}".', s[::-1]),
            (
                "count_characters",
                "Count the characters in a text",
                f'How many characters are in "{s}"?',
                str(len(s)),
            ),
        ]
    )
    return made(
        r,
        [g[0], g[0] + "_string"],
        [g[1], g[1] + "."],
        {p: dict(STRING)},
        [p],
        g[2],
        {p: s},
        (g[3], f"The result is {g[3]}."),
    )


def web_search(r):
    f = r.choice
    s = f(
        [
            f(NOUNS) + " " + f(NOUNS),
            f(P.CITIES) + " " + f(NOUNS),
            f(P.NAMES) + " " + f(P.SURN),
            f(ADJECTIVES) + " " + f(NOUNS),
        ]
    )
    p = f(["query", "q", "search_term"])
    n = r.randint(1, 20)
    props = {p: dict(STRING)}
    args = {p: s}
    q = f([f"Search the web for {s}", f"Search for {s}", f"Look up {s}", f"Find information about {s}"])
    if r.random() < 0.35:
        props["limit"] = dict(INTEGER)
        args["limit"] = n
        q += f" and show {n} results"
    return made(
        r,
        ["search", "web_search", "search_web", "lookup", "google_search"],
        ["Search the web.", "Search for information"],
        props,
        [p],
        q + ".",
        args,
        ({"results": n}, f"I found {n} results for {s}."),
    )


def file_reading(r):
    f = r.choice
    p = f(["path", "filename", "file"])
    fl = f(["", "/tmp/", "docs/", "src/", "data/"]) + f(NOUNS) + f([".txt", ".md", ".py", ".csv", ".json"])
    c = sentence(r)
    return made(
        r,
        ["read_file", "open_file", "cat", "readFile", "load_file"],
        ["Read a file.", "Return the contents of a file"],
        {p: dict(STRING)},
        [p],
        f([f"Read the file {fl}.", f"What is in {fl}?", f"Show me {fl}.", f"Open {fl}"]),
        {p: fl},
        (c, f"The file {fl} says: {c}"),
    )


def translation(r):
    f = r.choice
    w = f(NOUNS)
    tongue = f(["French", "German", "Spanish", "Chinese", "Italian", "Japanese"])
    n1, n2 = f([("text", "language"), ("text", "target_language"), ("phrase", "lang")])
    o = f(NOUNS)
    return made(
        r,
        ["translate", "translate_text", "translator"],
        ["Translate text into another language.", "Translate a phrase"],
        {n1: dict(STRING), n2: dict(STRING)},
        [n1, n2],
        f(
            [
                f'Translate "{w}" into {tongue}.',
                f'How do you say "{w}" in {tongue}?',
                f"Translate {w} to {tongue}",
            ]
        ),
        {n1: w, n2: tongue},
        (o, f'"{w}" in {tongue} is "{o}".'),
    )


def stock(r):
    f = r.choice
    s = (
        f(["AAPL", "GOOG", "MSFT", "NVDA", "AMZN", "TSLA", "IBM", "ORCL", "SAP", "INTC"])
        if r.random() < 0.5
        else "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(4))
    )
    v = round(r.uniform(5, 900), 2)
    p = f(["symbol", "ticker"])
    return made(
        r,
        ["get_stock_price", "stock_price", "quote"],
        ["Get the price of a stock.", "Look up a stock"],
        {p: dict(STRING)},
        [p],
        f([f"What is the price of {s} stock?", f"Stock price of {s}?", f"How much is one share of {s}?"]),
        {p: s},
        ({"price": v}, f"The price of {s} is {v}."),
    )


def numbers_list(r):
    f = r.choice
    several = [r.randint(0, 300) for _ in range(r.randint(2, 6))]
    n1 = f(["numbers", "values", "data"])
    g = f(
        [
            ("average", "average", round(sum(several) / len(several), 2)),
            ("sum_numbers", "sum", sum(several)),
            ("maximum", "maximum", max(several)),
            ("minimum", "minimum", min(several)),
        ]
    )
    return made(
        r,
        [g[0], "compute_" + g[0]],
        [f"Compute the {g[1]} of a list of numbers."],
        {n1: {"type": "array", "items": {"type": f(["number", "integer"])}}},
        [n1],
        f(
            [
                f"What is the {g[1]} of {join([str(x) for x in several])}?",
                f"Compute the {g[1]} of {', '.join(map(str, several))}.",
            ]
        ),
        {n1: several},
        (str(g[2]), f"The {g[1]} is {g[2]}."),
    )


def database(r):
    f = r.choice
    t = f(["users", "orders", "items", "books", "songs", "cities", "events"])
    sq = f"select {f(['*', 'name', 'count(*)', 'id'])} from {t}" + f(
        ["", " limit " + str(r.randint(1, 50)), f" where id = {r.randint(1, 999)}"]
    )
    p = f(["sql", "query"])
    n = r.randint(0, 500)
    return made(
        r,
        ["run_sql", "query_database", "sqlite_query", "execute_sql"],
        ["Run a SQL query.", "Execute SQL against the database"],
        {p: dict(STRING)},
        [p],
        f([f"Run this SQL: {sq}", f"Execute {sq}", f"Run the query {sq}"]),
        {p: sq},
        ({"rows": n}, f"The query returned {n} rows."),
    )
