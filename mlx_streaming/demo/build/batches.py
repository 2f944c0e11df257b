"""Documents to batches: rendered, tokenised, and packed into rows so that no document crosses a row's end."""

import itertools
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .corpus.documents import MIXES, Mix
from .corpus.render import render
from .corpus.text import Writer
from .model import Layout

OTHER_WEIGHT = 0.1  # loss weight of tokens that are not the assistant's
WAITING = 64  # documents kept at hand to fill the rows with


@dataclass(frozen=True)
class Document:
    ids: np.ndarray  # token ids, int64
    weights: np.ndarray  # loss weight of each token as a target, float32


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor  # (rows, T) int64
    layout: Layout
    weights: torch.Tensor  # (rows, T) float32, loss weight of each token; 0 on padding

    def target_weights(self, ahead: int) -> torch.Tensor:
        """Loss weight, flat, of predicting the token `ahead` places on; 0 in another document."""
        weights = torch.roll(self.weights.flatten(), -ahead)
        inside = torch.roll(self.layout.position.flatten(), -ahead) >= ahead
        weights = weights * inside
        weights[-ahead:] = 0
        return weights

    def targets(self, ahead: int) -> torch.Tensor:
        return torch.roll(self.tokens.flatten(), -ahead)


def documents(tokenizer, mix: Mix, seed: int, longest: int) -> Iterator[Document]:
    """Endless documents of a mix; those of more than `longest` tokens are left out."""
    writer = Writer(seed, mix.openness)
    while True:
        messages, tools, _ = mix.draw(writer)
        segments = render(messages, tools)
        ids, weights = [], []
        encoded = tokenizer.encode_batch([text for text, _ in segments])
        for piece, (_, trained) in zip(encoded, segments, strict=True):
            ids += piece.ids
            weights += [1.0 if trained else OTHER_WEIGHT] * len(piece.ids)
        if len(ids) <= longest:
            yield Document(np.array(ids), np.array(weights, np.float32))


def fill_row(waiting: list[Document], source: Iterator[Document], length: int) -> list[Document]:
    """Take documents that fit into `length` tokens out of `waiting`, which `source` fills up again."""
    row, left = [], length
    while True:
        while len(waiting) < WAITING:
            waiting.append(next(source))
        if not row:
            choice = 0  # the oldest, so that none waits for ever
        else:
            fitting = [i for i, d in enumerate(waiting) if len(d.ids) <= left]
            if not fitting:
                return row
            choice = max(fitting, key=lambda i: len(waiting[i].ids)) if left < length // 2 else fitting[0]
        row.append(waiting.pop(choice))
        left -= len(row[-1].ids)


def pack(rows: list[list[Document]], length: int, device="cpu") -> Batch:
    """One batch of `rows`; the rest of each row is padding (token 0, weight 0, a document of its own)."""
    tokens = np.zeros((len(rows), length), np.int64)
    weights = np.zeros((len(rows), length), np.float32)
    position = np.zeros((len(rows), length), np.int64)
    for r, row in enumerate(rows):
        at = 0
        for document in row:
            n = len(document.ids)
            tokens[r, at : at + n], weights[r, at : at + n] = document.ids, document.weights
            position[r, at : at + n] = np.arange(n)
            at += n
        position[r, at:] = np.arange(length - at)
    starts = np.append(np.flatnonzero(position.ravel() == 0), position.size)
    spans = tuple(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    layout = Layout(
        torch.from_numpy(position).to(device),
        torch.from_numpy(starts.astype(np.int32)).to(device),
        spans,
        int(np.diff(starts).max()),
    )
    return Batch(torch.from_numpy(tokens).to(device), layout, torch.from_numpy(weights).to(device))


def packed_rows(directory: Path, mix: str, seed: int, length: int) -> Iterator[list[Document]]:
    """Endless rows of documents; the tokenizer is read from `directory`."""
    source = documents(read_tokenizer(directory), MIXES[mix], seed, length)
    waiting: list[Document] = []
    while True:
        yield fill_row(waiting, source, length)


def put_rows(queue, *arguments) -> None:
    for row in packed_rows(*arguments):
        queue.put(row)


def rows_from_processes(workers: int, directory: Path, mix: str, seed: int, length: int):
    """`packed_rows` made by `workers` processes, each from its own seed."""
    queue = multiprocessing.Queue(64 * workers)
    for i in range(workers):
        arguments = (queue, directory, mix, seed * 1000 + i, length)
        multiprocessing.Process(target=put_rows, args=arguments, daemon=True).start()
    while True:
        yield queue.get()


def batches(rows: Iterator[list[Document]], count: int, length: int, device="cpu") -> Iterator[Batch]:
    while True:
        yield pack(list(itertools.islice(rows, count)), length, device)


def read_tokenizer(directory: Path):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(directory / "tokenizer.json"))
