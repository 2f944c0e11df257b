"""How often the MTP head's drafts are what the main model would say.

    python -m mlx_streaming.demo.build.evaluation.acceptance CHECKPOINT [--count 8]

Teacher-forced on answers of the corpus, held out by seed, where the main model's greedy choice is the
answer's token; draft d is counted only where the drafts before it were right.
"""

import argparse
import json
from pathlib import Path

import torch

from ..batches import read_tokenizer
from ..corpus.code import code
from ..corpus.facts import definition
from ..corpus.render import render
from ..corpus.small_talk import small_talk
from ..corpus.stories import story_request
from ..corpus.text import Writer, conversation
from ..corpus.tool_chats import tool_document
from ..losses import shifted
from .checkpoint import read_checkpoint
from .generate import causal_layout

DEPTH = 3
KINDS = {"story": story_request, "definition": definition, "chat": small_talk, "code": code}


def conversations(count: int) -> list[tuple[str, list[dict], list[dict] | None]]:
    """(kind, messages that end with an answer, tools): `count` of each kind."""
    r, found = Writer(97531), []
    for _ in range(count):
        for kind, draw in KINDS.items():
            found.append((kind, conversation(None, draw(r)[:1]), None))
        messages, tools = tool_document(r, single=True)
        found.append(("tool call", messages, tools))
    return found


@torch.no_grad()
def drafts(model, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Greedy choices of the main model at each position, and of MTP steps 1, 2, ... begun there.

    Step d begun at i predicts token i + 1 + d. All positions are computed at once, so that step d attends,
    as in training, to step d of earlier positions (when decoding, to step 1 of those).
    """
    length = -(-(len(ids) + DEPTH) // 64) * 64
    tokens = torch.zeros(1, length, dtype=torch.long)
    tokens[0, : len(ids)] = torch.tensor(ids)
    layout, ones = causal_layout(1, length), torch.ones(length)
    hidden, embedded, rope, _, _ = model(tokens, layout, ones)
    state, found = hidden, []
    for d in range(DEPTH):
        # row i of step d reads the embedding of token i + 1 and the state one step earlier at i - 1
        state, _ = model.mtp(
            shifted(embedded, -1), state if d == 0 else shifted(state, 1), layout, rope, ones
        )
        found.append(model.logits(state)[0].argmax(-1).roll(-d))
    return model.logits(hidden)[0].argmax(-1), found


def count_accepted(model, ids: list[int], start: int) -> torch.Tensor:
    """(2, depth): drafts accepted and drafts counted in the answer, which begins at `start`."""
    main, found = drafts(model, ids)
    counts = torch.zeros(2, DEPTH)
    for i in range(start - 1, len(ids) - 1):
        for d in range(1, DEPTH + 1):
            at = i + 1 + d
            if at >= len(ids) or main[at - 1] != ids[at]:
                break
            counts[1, d - 1] += 1
            if found[d - 1][i] != ids[at]:
                break
            counts[0, d - 1] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=8, help="answers of each of the five kinds")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = read_checkpoint(args.checkpoint), read_tokenizer(args.checkpoint)
    totals = {}
    for kind, messages, tools in conversations(args.count):
        *before, answer, _ = [text for text, _ in render(messages, tools)]
        prompt = tokenizer.encode("".join(before), add_special_tokens=False).ids
        ids = prompt + tokenizer.encode(answer, add_special_tokens=False).ids
        counts = count_accepted(model, ids, len(prompt))
        for name in (kind, "all"):
            totals[name] = totals.get(name, 0) + counts
    for name, (right, n) in totals.items():
        rates = [round(float(a / b), 3) if b else None for a, b in zip(right, n, strict=True)]
        print(json.dumps({"kind": name, "accepted": rates, "n": [int(x) for x in n]}))


if __name__ == "__main__":
    main()
