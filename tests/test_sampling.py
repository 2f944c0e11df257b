"""Sampler: filters against a plain numpy account, penalties, masks, seeds."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from mlx_streaming.errors import PromptError
from mlx_streaming.generation.sampling import Sampler, resolve
from mlx_streaming.request import Sampling

VOCAB = 50


def reference(logits, s: Sampling, history=(), mask=None) -> np.ndarray:
    """The documented order, one row, written without mlx."""
    x = np.asarray(logits, np.float64).copy()
    recent = list(history)[-s.repetition_context :]
    for t in set(recent):
        r = s.repetition_penalty or 1.0
        x[t] = x[t] * r if x[t] < 0 else x[t] / r
        x[t] -= s.presence_penalty or 0.0
        x[t] -= (s.frequency_penalty or 0.0) * recent.count(t)
    if mask is not None:
        x[~mask] = -np.inf
    x = x / s.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    if s.top_k:
        p[np.argsort(-p)[s.top_k :]] = 0
        p /= p.sum()
    if s.top_p is not None and s.top_p < 1:
        order = np.argsort(-p)
        above = np.cumsum(p[order]) - p[order]
        p[order[above >= s.top_p]] = 0
        p /= p.sum()
    if s.min_p:
        p[p < s.min_p * p.max()] = 0
        p /= p.sum()
    return p


def test_filtered_agrees_with_the_documented_order():
    rng = np.random.default_rng(0)
    compared = 0
    for t, p, k, m, r, f in itertools.product(
        (0.3, 1.0, 2.0), (1.0, 0.8), (0, 5), (0.0, 0.1), (1.0, 1.3), (0.0, 0.5)
    ):
        s = Sampling(t, p, k, m, r, f, f, repetition_context=6)
        logits = (rng.normal(size=(3, VOCAB)) * 3).astype(np.float32)
        history = rng.integers(0, 8, 12).tolist()
        mask = rng.random(VOCAB) < 0.7
        got = np.exp(np.array(Sampler(s, VOCAB).filtered(mx.array(logits), history, mx.array(mask))))
        for row in range(3):
            np.testing.assert_allclose(got[row], reference(logits[row], s, history, mask), atol=2e-5)
            compared += 1
    assert compared == 3 * 96


def test_sample_draws_from_filtered():
    logits = mx.array(np.random.default_rng(1).normal(size=(1, VOCAB)).astype(np.float32) * 2)
    for s in (Sampling(0.8, 0.9, 12, 0.02, seed=3), Sampling(0.8, seed=3), Sampling(1.0, 0.7, seed=4)):
        sampler = Sampler(s, VOCAB)
        n = 10_000
        counts = np.bincount(np.array(sampler.pick(mx.repeat(logits, n, axis=0))), minlength=VOCAB)
        p = np.exp(np.array(sampler.filtered(logits)))[0]
        assert counts[p == 0].sum() == 0
        kept = p > 0
        chi = ((counts[kept] - n * p[kept]) ** 2 / (n * p[kept])).sum()
        # 99.9 % quantile of chi-square, Wilson-Hilferty
        df = kept.sum() - 1
        assert chi < df * (1 - 2 / (9 * df) + 3.09 * np.sqrt(2 / (9 * df))) ** 3


def test_a_seed_reproduces_and_global_randomness_does_not_matter():
    logits = mx.zeros((1, VOCAB))

    def run(seed):
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), VOCAB)
        out = []
        for i in range(20):
            mx.random.seed(i * 7 + len(out))
            out.append(sampler.sample(logits).item())
        return out

    assert run(0) == run(0)
    assert run(0) != run(1)
    mx.random.seed(5)
    before = mx.random.state[0].tolist()
    Sampler(Sampling(temperature=1.0, seed=0), VOCAB).sample(logits)
    assert mx.random.state[0].tolist() == before
    assert Sampler(Sampling(temperature=1.0), VOCAB).seed != Sampler(Sampling(temperature=1.0), VOCAB).seed


def test_greedy_is_one_hot_at_the_allowed_maximum():
    logits = mx.array([[0.0, 5.0, 4.0], [7.0, 1.0, 2.0]])
    sampler = Sampler(Sampling(temperature=0), 3)
    mask = mx.array([False, False, True])
    assert sampler.sample(logits).tolist() == [1, 0]
    assert sampler.sample(logits, (), mask).tolist() == [2, 2]
    assert mx.exp(sampler.filtered(logits)).tolist() == [[0, 1, 0], [1, 0, 0]]
    short = mx.array([True, False])  # a tokenizer smaller than the padded vocabulary
    assert sampler.sample(logits, (), short).tolist() == [0, 0]


def test_penalties_change_greedy_choice():
    logits = mx.array([[3.0, 2.9, 0.0]])
    sampler = Sampler(Sampling(temperature=0, repetition_penalty=1.5), 3)
    assert sampler.sample(logits, [2]).item() == 0
    assert sampler.sample(logits, [0]).item() == 1
    window = Sampler(Sampling(temperature=0, presence_penalty=1.0, repetition_context=2), 3)
    assert window.sample(logits, [0, 2, 2]).item() == 0


def test_defaults_come_from_the_generation_config():
    config = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    got = resolve(Sampling(top_p=0.5, seed=0), config)
    assert (got.temperature, got.top_p, got.top_k, got.min_p, got.seed) == (0.7, 0.5, 20, 0.0, 0)
    assert Sampler(got, VOCAB).seeded and not Sampler(resolve(Sampling(), config), VOCAB).seeded
    assert resolve(Sampling(), {"do_sample": False, "temperature": 0.7}).temperature == 0
    assert resolve(Sampling(temperature=0.4), {"do_sample": False}).temperature == 0.4
    assert resolve(Sampling(), {"do_sample": True}).temperature == 1.0
    assert resolve(Sampling(), {}).temperature == 0.0


@pytest.mark.parametrize(
    "bad", [{"temperature": -1}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": 2}, {"repetition_penalty": 0}]
)
def test_values_without_meaning_are_refused(bad):
    with pytest.raises(PromptError, match=next(iter(bad))):
        Sampler(Sampling(**bad), VOCAB)
