"""Short Python answers."""

from . import pools as P
from .text import cap
from .words import TRAIN_NOUNS, VERBS


def code(r):
    f = r.choice
    v = f("x n value number a num".split())
    seq = f("items values numbers data xs lst".split())
    s = f("text s word string line".split())
    k = r.randint(2, 12)
    nm = f(P.NAMES)

    def w(c, pre=None):
        return (
            (pre or f(["Here is the code:", "Sure:", "Here is a Python function:", "You can write:"]))
            + "\n\n```python\n"
            + c
            + "\n```"
        )

    opts = [
        ("adds two numbers", "add", "def add(a, b):\n    return a + b"),
        ("multiplies two numbers", "multiply", "def multiply(a, b):\n    return a * b"),
        ("returns the square of a number", "square", f"def square({v}):\n    return {v} * {v}"),
        ("reverses a string", "reverse", f"def reverse({s}):\n    return {s}[::-1]"),
        ("checks if a number is even", "is_even", f"def is_even({v}):\n    return {v} % 2 == 0"),
        ("checks if a number is odd", "is_odd", f"def is_odd({v}):\n    return {v} % 2 == 1"),
        (
            "computes the factorial of a number",
            "factorial",
            (
                f"def factorial({v}):\n    result = 1\n    for i in range(2, {v} + 1):\n        result *= "
                "i\n    return result"
            ),
        ),
        (
            "returns the n-th Fibonacci number",
            "fibonacci",
            (
                "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n   "
                " return a"
            ),
        ),
        (
            "finds the largest number in a list",
            "largest",
            (
                f"def largest({seq}):\n    best = {seq}[0]\n    for x in {seq}:\n        if x > best:\n"
                "            best = x\n    return best"
            ),
        ),
        (
            "sums a list",
            "total",
            (
                f"def total({seq}):\n    result = 0\n    for x in {seq}:\n"
                "        result += x\n    return result"
            ),
        ),
        ("counts the words in a text", "count_words", f"def count_words({s}):\n    return len({s}.split())"),
        (
            "counts the vowels in a text",
            "count_vowels",
            f'def count_vowels({s}):\n    return sum(1 for c in {s}.lower() if c in "aeiou")',
        ),
        (
            "checks if a word is a palindrome",
            "is_palindrome",
            f"def is_palindrome({s}):\n    return {s} == {s}[::-1]",
        ),
        (
            "checks if a number is prime",
            "is_prime",
            (
                "def is_prime(n):\n    if n < 2:\n        return False\n    for i in range(2, int(n ** "
                "0.5) + 1):\n        if n % i == 0:\n            return False\n    return True"
            ),
        ),
        (
            "removes duplicates from a list",
            "unique",
            f"def unique({seq}):\n    return list(dict.fromkeys({seq}))",
        ),
        (
            "computes the average of a list",
            "average",
            f"def average({seq}):\n    return sum({seq}) / len({seq})",
        ),
        (
            "converts Celsius to Fahrenheit",
            "to_fahrenheit",
            "def to_fahrenheit(c):\n    return c * 9 / 5 + 32",
        ),
        ("greets a person by name", "greet", 'def greet(name):\n    return f"Hello, {name}!"'),
        (f"multiplies a number by {k}", f"times_{k}", f"def times_{k}({v}):\n    return {v} * {k}"),
        (f"adds {k} to a number", f"add_{k}", f"def add_{k}({v}):\n    return {v} + {k}"),
    ]
    x = r.random()
    if x < 0.62:
        d, n, c = f(opts)
        if r.random() < 0.4 and n != "x":
            nn = f(VERBS) + "_" + f(TRAIN_NOUNS)
            c = c.replace("def " + n + "(", "def " + nn + "(")
            return [(f(["Write", "Please write"]) + f" a Python function called {nn} that {d}.", w(c))]
        return [
            (
                f(
                    [
                        f"Write a Python function that {d}.",
                        f"write a function that {d}",
                        f"How do I write a Python function that {d}?",
                        f"Can you write Python code that {d}?",
                    ]
                ),
                w(c),
            )
        ]
    m = r.randint(3, 20)
    o2 = [
        (f"Print the numbers from 1 to {m} in Python.", f"for i in range(1, {m + 1}):\n    print(i)"),
        (f"Print hello {k} times in Python.", f'for _ in range({k}):\n    print("hello")'),
        ("How do I read a file in Python?", 'with open("file.txt") as f:\n    text = f.read()\nprint(text)'),
        (f'Write a Python program that prints "Hello, {nm}!".', f'print("Hello, {nm}!")'),
        ("Write hello world in Python.", 'print("Hello, world!")'),
        (
            f"Make a Python list of the squares from 1 to {m}.",
            f"squares = [i * i for i in range(1, {m + 1})]\nprint(squares)",
        ),
        (f"How do I sort a list called {seq} in Python?", f"{seq} = sorted({seq})"),
        (
            "How do I sort a list in reverse order in Python?",
            f"{seq} = sorted({seq}, reverse=True)",
        ),
        (
            f"Make a Python dictionary for {nm}, age {m + 10}.",
            f'person = {{"name": "{nm}", "age": {m + 10}}}\nprint(person["name"])',
        ),
        (f"Write a Python class called {cap(f(TRAIN_NOUNS))}.", None),
    ]
    q, c = f(o2)
    if c is None:
        n = q.split()[-1][:-1]
        c = (
            f"class {n}:\n    def __init__(self, name):\n        self.name = name\n\n"
            f'    def __repr__(self):\n        return f"{n}({{self.name}})"'
        )
    return [(q, w(c))]
