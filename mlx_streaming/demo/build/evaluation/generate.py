"""Greedy answers, with the expected one as a draft: exact, and one pass where the expectation is met."""

from dataclasses import dataclass, field

import numpy as np
import torch

from ..model import Layout

ROWS = 8  # conversations computed together


@dataclass
class Answer:
    prompt: list[int]
    draft: list[int]  # what the model is expected to say; wrong drafts cost time, never change the answer
    limit: int
    ids: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def sequence(self):
        return self.prompt + self.ids + self.draft


def causal_layout(rows: int, length: int) -> Layout:
    position = torch.arange(length).expand(rows, length)
    spans = tuple((i * length, (i + 1) * length) for i in range(rows))
    return Layout(position, torch.arange(0, (rows + 1) * length, length, dtype=torch.int32), spans, length)


@torch.no_grad()
def choices(model, sequences: list[list[int]], firsts: list[int]) -> list[np.ndarray]:
    """For each sequence the greedy next tokens at positions `first`, first + 1, ..., the last one."""
    length = -(-max(map(len, sequences)) // 64) * 64
    tokens = torch.zeros(len(sequences), length, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    layout = causal_layout(len(sequences), length)
    hidden = model(tokens, layout, torch.ones(tokens.numel()))[0]
    return [
        model.logits(hidden[row, first : len(sequence)]).argmax(-1).numpy()
        for row, (sequence, first) in enumerate(zip(sequences, firsts, strict=True))
    ]


def advance(answer: Answer, chosen: np.ndarray, ends: set[int]) -> None:
    """Take the draft as far as the model agrees, then the model's own token."""
    right = 0
    while right < len(answer.draft) and chosen[right] == answer.draft[right]:
        right += 1
    taken = [*answer.draft[:right], int(chosen[right])]
    answer.draft = []
    for token in taken:
        if token in ends or len(answer.ids) >= answer.limit:
            answer.done = True
            return
        answer.ids.append(token)


def complete(model, answers: list[Answer], ends: set[int]) -> None:
    """Run all answers to their end (a token of `ends`, or their limit)."""
    while waiting := [a for a in answers if not a.done]:
        waiting.sort(key=lambda a: len(a.sequence))
        for at in range(0, len(waiting), ROWS):
            group = waiting[at : at + ROWS]
            firsts = [len(a.prompt) + len(a.ids) - 1 for a in group]
            for a, chosen in zip(group, choices(model, [a.sequence for a in group], firsts), strict=True):
                advance(a, chosen, ends)
