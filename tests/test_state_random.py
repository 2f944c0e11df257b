"""Two hundred random things that users and disks do: the answer with the store is the answer without it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from helpers_state import MARK, VOCAB, fresh, greedy, run, tiny_qwen3_next

from mlx_streaming.state.admin import listing, verify
from mlx_streaming.state.session import Session
from mlx_streaming.state.store import StateStore

OPERATIONS = 200
ANSWER = 4
HEADS = 2


@dataclass
class World:
    """Conversations (token ids), one model, and the store that this "process" has open."""

    model: object
    place: object
    rng: random.Random
    conversations: list[list[int]] = field(default_factory=list)
    session: Session | None = None
    done: Counter = field(default_factory=Counter)
    seen: Counter = field(default_factory=Counter)
    quota: int = 400_000
    memory: int = 60_000

    def open(self):
        if self.session is not None:
            self.close()
        store = StateStore(self.place, self.memory, self.quota, MARK, "tiny")
        self.session = Session(store, self.model)

    def close(self):
        self.session.close()
        for key, value in self.session.stats.items():
            if isinstance(value, int):
                self.seen[key] += value

    def words(self, low, high):
        return [self.rng.randrange(4, VOCAB) for _ in range(self.rng.randint(low, high))]

    def head(self):
        return [[2] * 12, [3, 9] * 10][self.rng.randrange(HEADS)]


def turn(world, ids, head=0, stop_after=None):
    """The answer to `ids` as the backend runs a turn, with snapshots; compared with a run without store.

    `stop_after`: None, or the number of boundaries after which the user interrupts the prefill.
    """
    session, model = world.session, world.model
    start = session.begin(ids)
    world.done["tokens"] += len(ids)
    world.done["cached"] += start.length
    position = start.length
    marks = sorted({head, *range(20, len(ids) - 1, 20), len(ids) - 1} - {0})
    kinds = {head: "head", len(ids) - 1: "prompt"}
    for count, mark in enumerate(m for m in marks if m > position):
        if stop_after is not None and count >= stop_after:
            return None
        run(model, ids[position:mark], start.cache)
        position = mark
        session.snapshot(ids[:mark], start.cache, kinds.get(mark, "partial"))
    answer = greedy(model, ids[position:], start.cache, ANSWER)
    session.snapshot(ids + answer, start.cache, "turn")
    if world.rng.random() < 0.5:
        session.flush()
    reference = greedy(model, ids, fresh(model), ANSWER)
    assert answer == reference, (len(ids), start.length)
    world.done["compared"] += len(answer)
    return answer


def begin_conversation(world):
    head = world.head()
    ids = [*head, *world.words(2, 12)]
    world.conversations.append(ids + turn(world, ids, head=len(head)))


def new_turn(world):
    i = world.rng.randrange(len(world.conversations))
    ids = world.conversations[i] + world.words(1, 8)
    world.conversations[i] = ids + turn(world, ids)


def fork(world):
    base = world.rng.choice(world.conversations)
    ids = base[: world.rng.randint(1, len(base))] + world.words(1, 6)
    world.conversations.append(ids + turn(world, ids))


def edit(world):
    i = world.rng.randrange(len(world.conversations))
    ids = list(world.conversations[i])
    ids[world.rng.randrange(len(ids))] = world.rng.randrange(4, VOCAB)
    world.conversations[i] = ids + turn(world, ids)


def regenerate(world):
    ids = world.rng.choice(world.conversations)
    turn(world, ids)
    turn(world, ids)


def interrupt(world):
    i = world.rng.randrange(len(world.conversations))
    ids = world.conversations[i] + world.words(30, 70)
    turn(world, ids, stop_after=world.rng.randint(0, 2))
    if world.rng.random() < 0.5:
        world.conversations[i] = ids + turn(world, ids)


def new_process(world):
    world.open()


def other_process(world):
    mine = world.session
    store = StateStore(world.place, world.memory, world.quota, MARK, "tiny")
    world.session = Session(store, world.model)
    new_turn(world)
    world.close()
    world.session = mine


def evict(world):
    world.session.flush()
    rows = listing(world.place)
    if rows:
        world.session.store.discard(world.rng.choice(rows).entry.id, "test")


def corrupt(world):
    world.session.flush()
    files = sorted(world.place.glob("*.safetensors"))
    if files:
        path = world.rng.choice(files)
        data = bytearray(path.read_bytes())
        if world.rng.random() < 0.3:
            path.write_bytes(data[: world.rng.randrange(len(data))])
        else:
            data[world.rng.randrange(len(data))] ^= 1 << world.rng.randrange(8)
            path.write_bytes(data)
    world.open()


WEIGHTS = {
    new_turn: 10,
    begin_conversation: 3,
    fork: 3,
    edit: 3,
    regenerate: 2,
    interrupt: 3,
    new_process: 3,
    other_process: 2,
    evict: 2,
    corrupt: 3,
}


def test_answers_are_the_same_with_and_without_the_store(tmp_path):
    world = World(tiny_qwen3_next(), tmp_path / "cache", random.Random(20))
    world.open()
    begin_conversation(world)
    operations = [begin_conversation]
    for _ in range(OPERATIONS):
        operation = world.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        operation(world)
        operations.append(operation)
        world.conversations = [c for c in world.conversations if len(c) < 160][-8:] or [world.words(5, 5)]
    world.close()
    report = verify(tmp_path / "cache")
    print(dict(world.done), dict(world.seen), Counter(o.__name__ for o in operations), report.entries)
    assert set(operations) == set(WEIGHTS)
    assert world.done["compared"] > 2 * OPERATIONS
    assert world.done["cached"] > 0.5 * world.done["tokens"]  # most turns really continued from the store
    for kind in ("hits: memory", "hits: disk", "misses", "dropped: checksum", "written", "superseded"):
        assert world.seen[kind] > 0, kind
    assert world.seen["evicted"] + world.seen["thinned"] > 0
    assert report.entries > 0
    assert not any(key.startswith("errors") for key in world.seen), world.seen
