"""Prefill and plain decoding against mlx-lm's generate_step on the demo checkpoint."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from mlx_streaming.demo import checkpoint_path
from mlx_streaming.errors import Cancelled, PromptError
from mlx_streaming.generation.decode import decode
from mlx_streaming.generation.prefill import prefill
from mlx_streaming.generation.sampling import Sampler
from mlx_streaming.request import Sampling

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def model():
    return load(str(checkpoint_path()))[0]


def prompt(n, seed=0):
    return np.random.default_rng(seed).integers(0, 8000, n).tolist()


def states_equal(a, b) -> int:
    """Arrays compared; fails on the first difference."""
    compared = 0
    for x, y in zip(a, b, strict=True):
        assert type(x) is type(y)
        if hasattr(x, "offset"):
            assert x.offset == y.offset
        left, right = (c.keys_and_values() if hasattr(c, "keys") else c.cache for c in (x, y))
        for p, q in zip(left, right, strict=True):
            assert mx.array_equal(p, q).item()
            compared += 1
    return compared


def take(iterator, n):
    return list(itertools.islice(iterator, n))


@pytest.mark.parametrize("n,chunk", [(1, 2048), (2, 2048), (63, 16), (64, 64), (65, 64), (65, 2048)])
def test_same_tokens_and_logits_as_generate_step(model, n, chunk):
    tokens = prompt(n)
    stock_cache, cache = make_prompt_cache(model), make_prompt_cache(model)
    stock = generate_step(
        mx.array(tokens), model, max_tokens=12, prompt_cache=stock_cache, prefill_step_size=chunk
    )
    expected = [(y, lp) for y, lp in stock]
    logits = prefill(model, tokens, cache, chunk=chunk)
    sampler = Sampler(GREEDY, 8192)
    assert mx.array_equal(sampler.scores(logits)[0], expected[0][1]).item()
    got = take(decode(model, cache, logits, sampler, history=tokens), 12)
    assert got == [y for y, _ in expected]
    assert states_equal(stock_cache, cache) == 16


def test_boundaries_split_chunks_and_leave_exact_states(model):
    tokens = prompt(70)
    seen = {}
    cache = make_prompt_cache(model)

    def snap(position):
        seen[position] = (cache[3].offset, [mx.array(c) for c in cache[0].cache])

    progress = []
    logits = prefill(
        model,
        tokens,
        cache,
        chunk=32,
        boundaries=[20, 45, 70, 500],
        on_boundary=snap,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert sorted(seen) == [20, 45, 70]
    assert [p[0] for p in progress] == [0, 20, 45, 69, 70]
    assert all(t == 70 for _, t in progress)
    for position, (offset, arrays) in seen.items():
        assert offset == position
        fresh = make_prompt_cache(model)
        for a, b in itertools.pairwise([0, 20, 45, 69, 70]):
            if b <= position:
                model(mx.array(tokens[a:b])[None], cache=fresh)
        for x, y in zip(arrays, fresh[0].cache, strict=True):
            assert mx.array_equal(x, y).item()
    # going on from position 45 gives the same logits
    again = make_prompt_cache(model)
    model(mx.array(tokens[:20])[None], cache=again)
    model(mx.array(tokens[20:45])[None], cache=again)
    rest = prefill(model, tokens[45:], again, chunk=32, start=45, boundaries=[20, 45])
    assert mx.array_equal(rest, logits).item()


def test_stop_and_empty_prompt(model):
    cache = make_prompt_cache(model)
    polls = iter([False, True])
    with pytest.raises(Cancelled):
        prefill(model, prompt(50), cache, chunk=16, should_stop=lambda: next(polls))
    assert cache[3].offset == 16
    with pytest.raises(PromptError):
        prefill(model, [], cache, chunk=16)


class EvenOnly:
    """A grammar that allows even tokens, and remembers what it was told."""

    finished = False

    def __init__(self):
        self.told = []

    def mask(self):
        return mx.arange(8192) % 2 == 0

    def advance(self, token):
        self.told.append(token)


@pytest.mark.parametrize("grammar", [None, EvenOnly])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8, 0.9, 30, repetition_penalty=1.2, seed=7)])
def test_cache_covers_exactly_what_was_yielded(model, grammar, sampling):
    tokens = prompt(20)
    runs = []
    for n in (1, 5, 9):
        cache = make_prompt_cache(model)
        logits = prefill(model, tokens, cache, chunk=64)
        rule = grammar() if grammar else None
        got = take(decode(model, cache, logits, Sampler(sampling, 8192), history=tokens, grammar=rule), n)
        assert rule is None or (rule.told == got and all(t % 2 == 0 for t in got))
        plain = make_prompt_cache(model)
        prefill(model, tokens, plain, chunk=64)
        for t in got:
            model(mx.array([[t]]), cache=plain)
        assert states_equal(cache, plain) == 16
        runs.append(got)
    assert runs[2][:5] == runs[1] and runs[1][:1] == runs[0]


def test_pipelined_and_host_paths_draw_the_same(model):
    """An all-allowing grammar must not change seeded tokens, penalties included."""

    class Anything(EvenOnly):
        def mask(self):
            return None

    tokens = prompt(20, 3)
    sampling = Sampling(0.9, 0.95, 40, frequency_penalty=0.4, seed=11)
    runs = []
    for grammar in (None, Anything()):
        cache = make_prompt_cache(model)
        logits = prefill(model, tokens, cache, chunk=64)
        runs.append(
            take(decode(model, cache, logits, Sampler(sampling, 8192), history=tokens, grammar=grammar), 20)
        )
    assert runs[0] == runs[1]
