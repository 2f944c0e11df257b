"""Sums with a tool at hand (the tool must be called), and "Use the tool to ..."."""

import re

from .random_functions import function_schema
from .shops import SHORT_SYSTEM
from .text import assistant, cap, casual, compact, system, tool_result, user
from .tool_chats import any_function, fresh_function, result
from .words import TRAIN_NOUNS

ASK = {
    "multiply": [
        "What is {a} times {b}?",
        "What's {a} times {b}?",
        "what is {a} x {b}",
        "{a} * {b}",
        "{a} times {b}",
        "Multiply {a} by {b}.",
        "Multiply {a} and {b}.",
        "What is the product of {a} and {b}?",
        "How much is {a} times {b}?",
        "What is {a} multiplied by {b}?",
        "Can you multiply {a} by {b}?",
        "Calculate {a} * {b}.",
        "Compute {a} times {b}.",
        "Tell me what {a} times {b} is.",
        "I need {a} times {b}.",
        "{a} × {b} = ?",
        "What is {a} * {b}?",
        "What is {a} × {b}?",
        "How much is {a} x {b}?",
        "What do you get if you multiply {a} by {b}?",
    ],
    "add": [
        "What is {a} plus {b}?",
        "What's {a} plus {b}?",
        "what is {a} + {b}",
        "{a} + {b}",
        "{a} plus {b}",
        "Add {a} and {b}.",
        "Add {b} to {a}.",
        "What is the sum of {a} and {b}?",
        "How much is {a} plus {b}?",
        "Can you add {a} and {b}?",
        "Calculate {a} + {b}.",
        "Compute {a} plus {b}.",
        "Tell me what {a} plus {b} is.",
        "I need the sum of {a} and {b}.",
        "{a} + {b} = ?",
        "What is {a} + {b}?",
        "What do you get if you add {a} and {b}?",
    ],
    "subtract": [
        "What is {a} minus {b}?",
        "What's {a} minus {b}?",
        "what is {a} - {b}",
        "{a} - {b}",
        "{a} minus {b}",
        "Subtract {b} from {a}.",
        "What is the difference between {a} and {b}?",
        "How much is {a} minus {b}?",
        "Can you subtract {b} from {a}?",
        "Calculate {a} - {b}.",
        "Compute {a} minus {b}.",
        "Take {b} away from {a}.",
        "{a} - {b} = ?",
        "What is {a} - {b}?",
    ],
    "divide": [
        "What is {a} divided by {b}?",
        "What's {a} divided by {b}?",
        "what is {a} / {b}",
        "{a} / {b}",
        "Divide {a} by {b}.",
        "How much is {a} divided by {b}?",
        "Can you divide {a} by {b}?",
        "Calculate {a} / {b}.",
        "Compute {a} divided by {b}.",
        "{a} / {b} = ?",
        "What is {a} / {b}?",
        "What is {a} ÷ {b}?",
    ],
}
SIGN = {
    "multiply": ("*", "times"),
    "add": ("+", "plus"),
    "subtract": ("-", "minus"),
    "divide": ("/", "divided by"),
}
TOOL_NAMES = {
    "multiply": [
        "multiply",
        "multiply",
        "multiply",
        "multiply_numbers",
        "product",
        "mul",
        "times",
        "multiplyNumbers",
    ],
    "add": ["add", "add", "add", "add_numbers", "sum", "plus", "addition", "addNumbers"],
    "subtract": ["subtract", "subtract", "subtract_numbers", "minus", "sub"],
    "divide": ["divide", "divide", "divide_numbers", "div"],
}
DESCRIPTIONS = {
    "multiply": [
        "Multiply two numbers.",
        "Multiply two numbers",
        "Multiply {x} by {y}.",
        "Returns the product of two numbers.",
        "Multiply two integers.",
    ],
    "add": [
        "Add two numbers.",
        "Add two numbers",
        "Add {x} and {y}.",
        "Returns the sum of two numbers.",
        "Add two integers.",
    ],
    "subtract": ["Subtract two numbers.", "Subtract {y} from {x}.", "Returns the difference of two numbers."],
    "divide": ["Divide two numbers.", "Divide {x} by {y}.", "Returns the quotient of two numbers."],
}


def value(op, a, b):
    v = a * b if op == "multiply" else a + b if op == "add" else a - b if op == "subtract" else a / b
    return int(v) if v == int(v) else round(v, 4)


def numbers(r, op):
    """Two operands, from the tables to six digits."""
    hi = r.choice([12, 12, 99, 99, 99, 999, 9999, 999999])
    lo = 1 if r.random() < 0.9 else 0
    a, b = r.randint(lo, hi), r.randint(max(lo, 1), r.choice([hi, 99]))
    if r.random() < 0.07:
        a = round(a + r.random(), r.choice([1, 2]))
    if op == "divide" and r.random() < 0.6:
        a = a * b if isinstance(a, int) else a
    return a, b


def sum_tool(r, op):
    """A tool for one operation: its operation, name, two parameters and schema."""
    x, y = r.choice(
        [
            ("a", "b"),
            ("a", "b"),
            ("x", "y"),
            ("x", "y"),
            ("first", "second"),
            ("left", "right"),
            ("n1", "n2"),
            ("num1", "num2"),
        ]
    )
    t = r.choice(["integer", "integer", "number"])
    name = r.choice(TOOL_NAMES[op])
    d = r.choice(DESCRIPTIONS[op]).replace("{x}", x).replace("{y}", y)
    return dict(
        op=op,
        name=name,
        x=x,
        y=y,
        schema=function_schema(r, name, d, {x: {"type": t}, y: {"type": t}}, [x, y]),
    )


def calculator(r):
    """A tool that takes an expression, in the form of `sum_tool`; its operation is None."""
    p = r.choice(["expression", "expression", "expr", "formula"])
    name = r.choice(["calculator", "calculate", "calc", "simple_eval", "evaluate", "eval_math"])
    return dict(
        op=None,
        name=name,
        x=p,
        schema=function_schema(
            r,
            name,
            r.choice(
                [
                    "Evaluate a mathematical expression.",
                    "Evaluate a simple expression",
                    "Compute the value of an expression.",
                    "A calculator",
                ]
            ),
            {p: {"type": "string"}},
            [p],
        ),
    )


def sum_call(r, tool, op):
    """(question, call, result, answer) of one sum done with `tool`."""
    a, b = numbers(r, op)
    if tool["op"] is None:
        args = {tool["x"]: f"{a} {SIGN[op][0]} {b}"}
    else:
        args = {tool["x"]: a, tool["y"]: b}
    ask = r.choice(ASK[op]).replace("{a}", str(a)).replace("{b}", str(b))
    v = value(op, a, b)
    s, w = SIGN[op]
    ans = r.choice([f"{a} {s} {b} = {v}", f"{a} {w} {b} is {v}.", f"{a} {w} {b} is {v}."])
    return ask, dict(name=tool["name"], arguments=args), v, ans


def other_tools(r, n, have):
    """`n` tools that have nothing to do with sums; their names join `have`."""
    out = []
    while len(out) < n:
        fn = any_function(r, TRAIN_NOUNS)
        if fn["name"] not in have and not re.search(
            r"add|mult|sub|div|calc|comp|eval|sum|prod|math", fn["name"].lower()
        ):
            have.add(fn["name"])
            out.append(fn)
    return out


def sum_document(r):
    """One or two sums with a tool for them at hand: each is a call, small or large."""
    if r.random() < 0.25:
        ts = [calculator(r)]
        ops = list(ASK)
    else:
        ops = r.sample(list(ASK), r.choice([1, 1, 1, 2, 2, 3, 4]))
        ops.sort(key=lambda o: o not in ("multiply", "add"))
        ops = ops if r.random() < 0.5 else [r.choice(["multiply", "multiply", "add"])]
        ts = [sum_tool(r, o) for o in ops]
    have = {t["name"] for t in ts}
    tools = [t["schema"] for t in ts] + [
        o["schema"] for o in other_tools(r, r.choice([0, 0, 0, 1, 1, 2]), have)
    ]
    r.shuffle(tools)
    msgs = [system(r.choice(SHORT_SYSTEM))] if r.random() < 0.3 else []
    for turn in range(r.choice([1, 1, 1, 2])):
        op = r.choice(ops)
        tool = ts[0] if ts[0]["op"] is None else next(t for t in ts if t["op"] == op)
        ask, call, v, ans = sum_call(r, tool, op)
        if r.random() < 0.12:
            ask = r.choice(["Hi! ", "Hello, ", "Hey, ", "Please: ", "Quick question: "]) + ask
        elif r.random() < 0.12:
            ask = use_the_tool(r, tool["name"], ask)
        msgs += [user(casual(r, ask)), assistant("", [call])]
        if turn or r.random() < 0.6:
            msgs += [
                tool_result(str(v) if r.random() < 0.8 else compact({"result": v})),
                assistant(ans),
            ]
        else:
            break
    return msgs, tools


def imperative(core):
    """A core phrase as words that follow "to", or None."""
    if re.match(r"(call|use|run) \w+[-_\w]*( with| on|$)", core):
        return None
    m = re.match(r"(?:What is|What's|How is|Tell me) the weather(?: like)? in (.*)|weather in (.*)", core)
    if m:
        return "get the weather in " + (m[1] or m[2])
    if re.match(r"(?i)(what('s| is)? the time|what time|tell me the current time)", core):
        return "get the current time"
    if re.match(r"(?i)(what|which|tell me the) version", core):
        return "find the version"
    if re.match(r"What|How|Is |Who|Where|When|Which|I |\d|\W|Stock|weather", core):
        return None
    return core[:1].lower() + core[1:]


def use_the_tool(r, name, core):
    """The request `core` said with the words "use the tool" or the tool's name."""
    f = r.choice
    c = core.rstrip(".")
    human = re.sub(r"[_-]", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower()
    i = imperative(core)
    which = f(
        [
            "the tool",
            "the tool",
            "the tool",
            f"the {name} tool",
            f"the {human} tool",
            name,
            "a tool",
            "your tool",
            "your tools",
            "the function",
            f"the {name} function",
        ]
    )
    if i:
        i = i.rstrip(".?")
        return f(
            [
                f"Use {which} to {i}.",
                f"Use {which} to {i}.",
                f"Use {which} to {i}.",
                f"use {which} to {i}",
                f"Please use {which} to {i}.",
                f"Can you use {which} to {i}?",
                f"Could you use {which} to {i}?",
                f"I want you to use {which} to {i}.",
                f"Call {which} to {i}.",
                f"{cap(i)} with {which}.",
                f"{cap(i)} using {which}.",
                f"{cap(i)}. Use {which}.",
                f"With {which}, {i}.",
                f"Use {which} and {i}.",
            ]
        )
    q = c if c[-1] == "?" else c + "."
    if re.match(r"(call|use|run) ", core):
        return cap(c) + "."
    low = c[:1].lower() + c[1:]
    return f(
        [
            f"Use {which} to answer: {c}",
            f"Use {which}: {low}",
            f"{cap(q)} Use {which}.",
            f"{cap(q)} Please use {which}.",
            f"Use {which} to find out: {low}",
            f"Use {which} to answer this: {c}",
            f"Please use {which}. {cap(q)}",
        ]
    )


def use_document(r):
    """A request that says to use the tool: a call, or an apology where no such tool is offered."""
    have = set()
    x = r.random()
    if x < 0.25:
        op = r.choice(list(ASK))
        t = sum_tool(r, op) if r.random() < 0.7 else calculator(r)
        ask, call, v, ans = sum_call(r, t, op)
        fn = dict(
            name=t["name"], schema=t["schema"], args=call["arguments"], core=ask, ret=(str(v), ans), hn=""
        )
        have.add(t["name"])
        fns = [fn] + other_tools(r, r.choice([0, 0, 1, 2]), have)
    else:
        fn = fresh_function(r, TRAIN_NOUNS, have, 0.6)
        fns = [fn] + [fresh_function(r, TRAIN_NOUNS, have) for _ in range(r.choice([0, 0, 1, 1, 2, 3]))]
    q = use_the_tool(r, fn["name"], fn["core"])
    msgs = [system(r.choice(SHORT_SYSTEM))] if r.random() < 0.25 else []
    if x > 0.93 and len(fns) > 1:
        tools = [z["schema"] for z in fns[1:]]
        i = imperative(fn["core"])
        q = f"Use the tool to {i.rstrip('.?')}." if i else f"Use the tool to answer: {fn['core']}"
        return msgs + [
            user(q),
            assistant(
                r.choice(
                    ["I am sorry, I do not have a tool for that.", "I cannot do that with the tools I have."]
                )
            ),
        ], tools
    tools = [z["schema"] for z in fns]
    r.shuffle(tools)
    msgs += [user(q), assistant("", [dict(name=fn["name"], arguments=fn["args"])])]
    if r.random() < 0.45:
        res, ans = result(r, fn)
        msgs += [tool_result(res), assistant(ans)]
    return msgs, tools
