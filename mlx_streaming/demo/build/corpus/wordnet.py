"""Words and glosses from WordNet 3.0's database files (Debian's wordnet-base, or any directory of `data.*`).

python -m mlx_streaming.demo.build.corpus.wordnet [DIRECTORY] [-o wordnet.json]
"""

import argparse
import json
import re
from pathlib import Path

DEBIAN = Path("/usr/share/wordnet")
PARTS = {"noun": "noun", "verb": "verb", "adjective": "adj", "adverb": "adv"}
SENSE_PARTS = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}
HEADWORDS = 6000
# Entries a small public demo should not recite.
UNWANTED = re.compile(
    r"sex|geni|copulat|excre|faec|fece|slur|ethnic|offensive|disparag|vulgar|Negro|Jew|Nazi|prostit|intercourse"
    r"|breast|penis|vagin|murder|kill|suicid|rape|drug|whore|naked|nude|torture|slave",
    re.I,
)
UNWANTED_NAMES = re.compile(
    r"Hitler|Stalin|Gestapo|Holocaust|Auschwitz|Satan|Lucifer|Devil|God|Jesus|Christ|Allah|Islam"
)


def read_glosses(directory: Path) -> dict[tuple[str, str], str]:
    """(part of speech, synset offset) -> gloss with its examples."""
    glosses = {}
    for part, suffix in PARTS.items():
        for line in (directory / f"data.{suffix}").read_text("latin-1").splitlines():
            if not line.startswith("  "):
                head, _, gloss = line.partition(" | ")
                glosses[part, head.split(" ", 1)[0]] = gloss.strip()
    return glosses


def read_first_senses(directory: Path) -> dict[tuple[str, str], str]:
    """(lemma, part of speech) -> synset offset of its most frequent sense."""
    first = {}
    for part, suffix in PARTS.items():
        for line in (directory / f"index.{suffix}").read_text("latin-1").splitlines():
            if not line.startswith("  "):
                fields = line.split()
                first[fields[0], part] = fields[-int(fields[2])]
    return first


def read_counts(directory: Path) -> dict[tuple[str, str], int]:
    """(lemma, part of speech) -> how often SemCor tags it, all senses together."""
    counts = {}
    for line in (directory / "cntlist.rev").read_text("latin-1").splitlines():
        key, _, count = line.split()
        if key.split(":")[0][-1] in SENSE_PARTS:
            lemma, sense = key.split("%")
            at = lemma, SENSE_PARTS[sense[0]]
            counts[at] = counts.get(at, 0) + int(count)
    return counts


def headwords(directory: Path, limit: int = HEADWORDS) -> list[tuple[str, str, str, str | None]]:
    """The most frequent single words with a short first gloss: (word, part, gloss, example or None)."""
    glosses, first = read_glosses(directory), read_first_senses(directory)
    best = {}
    for (word, part), count in read_counts(directory).items():
        if re.fullmatch(r"[a-z]{3,12}", word) and (word, part) in first:
            if word not in best or best[word][1] < count:
                best[word] = part, count
    words = []
    for word, (part, _) in sorted(best.items(), key=lambda item: (-item[1][1], item[0])):
        text = glosses[part, first[word, part]]
        if UNWANTED.search(text) or UNWANTED.search(word):
            continue
        gloss = text.split('; "')[0].split("; ")[0].strip()
        gloss = re.sub(r"^\([^)]*\) ?", "", gloss).strip()
        example = (re.findall(r'"([^"]+)"', text) or [None])[0]
        if 8 <= len(gloss) <= 110:
            words.append((word, part, gloss, example if example and len(example) < 80 else None))
        if len(words) >= limit:
            break
    return words


def other_words(directory: Path, known: set[str]) -> list[str]:
    """Single words WordNet has that are not among the headwords: real, but not taught to the model."""
    glosses = read_glosses(directory)
    words = set()
    for (word, part), offset in read_first_senses(directory).items():
        if re.fullmatch(r"[a-z]{3,12}", word) and word not in known:
            if not UNWANTED.search(word) and not UNWANTED.search(glosses[part, offset]):
                words.add(word)
    return sorted(words)


def proper_names(directory: Path) -> list[str]:
    """Capitalised single words among the nouns: people, places, peoples, brands of history."""
    names = set()
    for line in (directory / "data.noun").read_text("latin-1").splitlines():
        if line.startswith("  "):
            continue
        head, _, gloss = line.partition(" | ")
        fields = head.split()
        lemmas = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        if not UNWANTED.search(gloss) and not UNWANTED_NAMES.search(gloss):
            names.update(w for w in lemmas if re.fullmatch(r"[A-Z][a-z]{2,11}", w) and not UNWANTED.search(w))
    return sorted(n for n in names if not UNWANTED_NAMES.search(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=DEBIAN)
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("wordnet.json"))
    args = parser.parse_args()
    words = headwords(args.directory)
    known = {w for w, *_ in words}
    lists = {
        "headwords": words,
        "others": other_words(args.directory, known),
        "names": proper_names(args.directory),
    }
    args.out.write_text(json.dumps(lists, ensure_ascii=False))
    print({name: len(items) for name, items in lists.items()}, args.out)


if __name__ == "__main__":
    main()
