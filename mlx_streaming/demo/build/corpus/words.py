"""WordNet's words as the generator uses them. Filled from wordnet.json beside this file, or by `use`."""

import hashlib
import json
from pathlib import Path

FILE = Path(__file__).with_name("wordnet.json")

HEADWORDS: list[list] = []  # [word, part of speech, gloss, example or None], the most frequent first
NOUNS: list[str] = []
VERBS: list[str] = []
ADJECTIVES: list[str] = []
TRAIN_NOUNS: list[str] = []
HELD_OUT_NOUNS: list[str] = []  # never in training names of functions and parameters
UNTAUGHT: list[str] = []  # real words the model is not taught
HELD_OUT_UNTAUGHT: list[str] = []
PROPER_NAMES: list[str] = []
REAL: set[str] = set()  # every word of WordNet, taught or not

# First names of the evaluation; none of them is in a pool, and training must not use them.
HELD_OUT_NAMES = """
Marguerite Siobhan Thibault Oluwaseun Anastasia Bartholomew Wilhelmina Xiomara Eoghan Rajesh Svetlana
Cornelius Penelope Thaddeus Guinevere Leopold Beatrix Ignatius Matilda Zebedee Philippa Akiko Mustafa
Genevieve Torsten Isolde Caspian Delphine Ezekiel Rosalind
""".split()


def digest(text: str) -> int:
    return int(hashlib.md5(text.encode()).hexdigest(), 16)


def use(lists: dict) -> None:
    """Replace all words by `lists` (the content of wordnet.json: "headwords", "others", "names")."""
    words = lists["headwords"]
    HEADWORDS[:] = words
    for target, part in ((NOUNS, "noun"), (VERBS, "verb"), (ADJECTIVES, "adjective")):
        target[:] = [word for word, p, _, _ in words if p == part]
    TRAIN_NOUNS[:] = [w for w in NOUNS if digest("tool:" + w) % 12]
    HELD_OUT_NOUNS[:] = [w for w in NOUNS if not digest("tool:" + w) % 12]
    UNTAUGHT[:] = [w for w in lists["others"] if digest("unknown:" + w) % 10]
    HELD_OUT_UNTAUGHT[:] = [w for w in lists["others"] if not digest("unknown:" + w) % 10]
    PROPER_NAMES[:] = [n for n in lists["names"] if n not in HELD_OUT_NAMES]
    REAL.clear()
    REAL.update(word for word, *_ in words)
    REAL.update(lists["others"])


if FILE.exists():
    use(json.loads(FILE.read_text()))
