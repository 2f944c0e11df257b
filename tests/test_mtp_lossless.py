"""Speculative sampling leaves the target's distribution untouched: joint distribution of the first three
tokens.

The rule for unseeded sampling is driven 40,000 times per case, each run with keys from its own seed, all
runs at once (`vmap`) over a table model of six tokens; the expected joint distribution is enumerated. The
whole Speculator then runs some thousand times with its own control flow. Seeded sampling is token for
token that of plain decoding (test_mtp_speculative), so there only the plain draws are tested.
"""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from helpers_mtp import VOCAB, TableCache, TableHead, chi_square_p, tables

from mlx_streaming.generation.accept import accept_rejection
from mlx_streaming.generation.depth import DepthControl
from mlx_streaming.generation.sampling import Sampler
from mlx_streaming.generation.speculative import Speculator
from mlx_streaming.request import Sampling

RUNS = 40_000
FILTERS = {
    "plain": Sampling(temperature=1.0),
    "top_p": Sampling(temperature=1.3, top_p=0.8),
    "top_k": Sampling(temperature=0.7, top_k=3),
    "min_p": Sampling(temperature=1.0, min_p=0.2),
    "all": Sampling(temperature=1.5, top_p=0.9, top_k=4, min_p=0.05),
    "penalty": Sampling(temperature=1.0, presence_penalty=1.5, repetition_context=8),
    "mask": Sampling(temperature=1.0, top_p=0.95),
}
ALLOWED = mx.array([True, True, False, True, False, True])  # the grammar of the case "mask"


def case_tables(name):
    return tables(sorted(FILTERS).index(name))


def expected_joint(name):
    """P(x1, x2, x3) of plain sampling, by enumeration; the token before x1 is 0."""
    target, _ = case_tables(name)
    sampler = Sampler(FILTERS[name], VOCAB)
    mask = ALLOWED if name == "mask" else None

    def after(*tokens):
        logits = mx.array(target[tokens[-1] if tokens else 0][None])
        return np.exp(np.array(sampler.filtered(logits, list(tokens), mask))[0].astype(np.float64))

    joint = np.zeros((VOCAB,) * 3)
    first = after()
    for a in range(VOCAB):
        second = after(a)
        for b in range(VOCAB):
            joint[a, b] = first[a] * second[b] * after(a, b)
    assert abs(joint.sum() - 1) < 1e-4
    return joint / joint.sum()


class Runs:
    """RUNS runs side by side: tokens so far (n, RUNS), and keys of their own."""

    def __init__(self, name):
        self.sampler = Sampler(FILTERS[name], VOCAB)
        self.mask = ALLOWED if name == "mask" else None
        self.keys = mx.vmap(mx.random.split)(mx.stack([mx.random.key(s) for s in range(RUNS)]))[:, 0]

    def key(self):
        pairs = mx.vmap(mx.random.split)(self.keys)
        self.keys = pairs[:, 0]
        mx.eval(self.keys)
        return pairs[:, 1]

    def filtered(self, table, history):
        """The sampler's distribution after each run's history, (RUNS, VOCAB)."""
        last = history[-1] if history else mx.zeros((RUNS,), mx.int32)
        logits = mx.array(table)[last]
        if not self.sampler.needs_history:
            return self.sampler.filtered(logits, (), self.mask)
        if not history:
            return self.sampler.filtered(logits)
        # rows with equal histories share one call
        codes = sum(h.astype(mx.int32) * VOCAB**i for i, h in enumerate(history))
        cases = np.array(list(itertools.product(range(VOCAB), repeat=len(history))))
        rows = [self.sampler.filtered(mx.array(table[c[-1]][None]), c.tolist()) for c in cases]
        order = np.argsort((cases * VOCAB ** np.arange(len(history))).sum(axis=1))
        return mx.concatenate(rows)[mx.array(order)][codes]

    def draw(self, logprobs):
        return mx.vmap(lambda lp, k: mx.random.categorical(lp, key=k))(logprobs, self.key())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", FILTERS)
def test_joint_distribution_of_the_rule(name, depth):
    target, draft = case_tables(name)
    runs = Runs(name)
    pending = runs.draw(runs.filtered(target, []))
    drafts, q, p = [], [], []
    history = [pending]
    for _ in range(depth):
        q.append(runs.filtered(draft, history))
        p.append(runs.filtered(target, history))
        drafts.append(runs.draw(q[-1]))
        history = [*history, drafts[-1]]
    p.append(runs.filtered(target, history))
    uniforms = mx.vmap(lambda k: mx.random.uniform(shape=(depth,), key=k))(runs.key())
    stood, following = mx.vmap(accept_rejection)(
        mx.stack(p, axis=1), mx.stack(q, axis=1), mx.stack(drafts, axis=1), uniforms, runs.key()
    )
    stood, following, pending = np.array(stood), np.array(following), np.array(pending)
    drafts = [np.array(d) for d in drafts]
    assert {0, depth} <= set(stood.tolist())
    second = np.where(stood >= 1, drafts[0], following)
    third = following if depth == 1 else np.where(stood >= 2, drafts[1], following)
    # Runs whose first draft fell have two tokens only: the next step draws the third plainly.
    after = np.array(runs.draw(runs.filtered(target, [mx.array(pending), mx.array(second)])))
    third = np.where(stood >= 1, third, after)
    counts = np.zeros((VOCAB,) * 3)
    np.add.at(counts, (pending, second, third), 1)
    assert counts.sum() == RUNS
    assert chi_square_p(counts, expected_joint(name) * RUNS) > 0.01


def test_the_proof_notices_a_wrong_rule():
    """Accepting every draft, or rejecting without the residual, must fail the same test."""
    target, draft = case_tables("plain")
    expected = expected_joint("plain").sum(axis=2)
    runs = Runs("plain")
    first = runs.draw(runs.filtered(target, []))
    for wrong in ("accept all", "no residual"):
        guess = runs.draw(runs.filtered(draft, [first]))
        p, q = (np.exp(np.array(runs.filtered(t, [first]))) for t in (target, draft))
        other = np.array(runs.draw(runs.filtered(target, [first])))
        i = np.arange(RUNS)
        u = np.random.default_rng(0).random(RUNS)
        stands = u * q[i, np.array(guess)] < p[i, np.array(guess)]
        second = np.array(guess) if wrong == "accept all" else np.where(stands, np.array(guess), other)
        counts = np.zeros((VOCAB, VOCAB))
        np.add.at(counts, (np.array(first), second), 1)
        assert chi_square_p(counts, expected * RUNS) < 1e-6


@pytest.mark.parametrize("name,mode,runs", [("all", "2", 600), ("penalty", "3", 300)])
def test_joint_distribution_of_the_whole_speculator(name, mode, runs):
    target, draft = case_tables(name)
    counts = np.zeros((VOCAB,) * 3)
    for seed in range(runs):
        sampler = Sampler(FILTERS[name], VOCAB)
        sampler.seed = seed  # as if drawn: `seeded` stays off
        head = TableHead(target, draft)
        speculator = Speculator(head, [TableCache()], sampler, DepthControl(mode), limit=3)
        assert speculator.rule == "min(1, p/q)"
        tokens = [t for run in speculator.decode(mx.array(target[:1])) for t in run]
        assert len(tokens) == 3
        counts[tuple(tokens)] += 1
    assert counts.sum() == runs
    assert chi_square_p(counts, expected_joint(name) * runs) > 0.01


def test_joint_distribution_of_seeded_draws():
    target, _ = case_tables("plain")
    rows = []
    for seed in range(20_000):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), VOCAB)
        rows.append(sampler._noise(0, (3, VOCAB)))
    noise = np.array(mx.stack(rows))
    counts = np.zeros((VOCAB,) * 3)
    last = np.zeros(len(rows), int)
    drawn = []
    for place in range(3):
        last = np.argmax(target[last] + noise[:, place], axis=-1)
        drawn.append(last)
    np.add.at(counts, tuple(drawn), 1)
    assert chi_square_p(counts, expected_joint("plain") * len(rows)) > 0.01
