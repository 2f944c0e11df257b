"""Draft and verify on the demo checkpoint: the words and the state of plain decoding, whatever was
accepted."""

import itertools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.generation.decode import decode
from mlx_streaming.generation.depth import DepthControl
from mlx_streaming.generation.mtp_load import load_head
from mlx_streaming.generation.prefill import prefill
from mlx_streaming.generation.rollback import Tape
from mlx_streaming.generation.sampling import Sampler
from mlx_streaming.generation.speculative import Speculator
from mlx_streaming.request import Sampling

VOCAB = 8192
GREEDY = Sampling(temperature=0)
SEEDED = Sampling(0.8, 0.9, 30, seed=5)
PENALISED = Sampling(0.8, 0.9, 30, repetition_penalty=1.2, frequency_penalty=0.2, seed=6)
UNSEEDED = Sampling(0.7, 0.8, 20)


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = load(str(checkpoint_path()))
    ask = [{"role": "user", "content": "Tell me a story about a fox."}]
    return model, tokenizer.apply_chat_template(ask, add_generation_prompt=True)


@pytest.fixture(scope="module")
def head(loaded):
    return load_head(loaded[0], checkpoint_path())


class ThirdsOnly:
    """A grammar that allows tokens of one remainder by 3 after those of another."""

    def __init__(self, told=()):
        self.told = list(told)
        self.finished = False

    def mask(self):
        rest = self.told[-1] % 3 if self.told else 0
        return mx.arange(VOCAB) % 3 != rest

    def advance(self, token):
        assert not self.told or token % 3 != self.told[-1] % 3
        self.told.append(token)

    def fork(self):
        return ThirdsOnly(self.told)


def plainly(model, prompt, sampling, n, grammar=None):
    cache = make_prompt_cache(model)
    logits = prefill(model, prompt, cache, chunk=64)
    steps = decode(model, cache, logits, Sampler(sampling, VOCAB), history=prompt, grammar=grammar)
    return list(itertools.islice(steps, n)), cache


def speculator(model, head, prompt, sampling, mode, **options):
    head.restore({})
    cache = make_prompt_cache(model)
    logits = prefill(model, prompt, cache, chunk=64, mtp=head)
    control = options.pop("control", None) or DepthControl(mode)
    made = Speculator(head, cache, Sampler(sampling, VOCAB), control, history=prompt, **options)
    return made, made.decode(logits), cache


def same_state(a, b) -> int:
    """Arrays compared; fails on the first difference."""
    compared = 0
    for x, y in zip(a, b, strict=True):
        if hasattr(x, "offset"):
            assert x.offset == y.offset
        left, right = (c.keys_and_values() if hasattr(c, "keys") else c.cache for c in (x, y))
        for p, q in zip(left, right, strict=True):
            assert mx.array_equal(p, q).item()
            compared += 1
    return compared


def same_head(head, model, tokens):
    """The head stands where one stands that saw `tokens` in one go (up to rounding)."""
    got = head.state()
    keys = got["mtp"].keys_and_values()[0] if "mtp" in got else None
    keys, last = (None if keys is None else mx.array(keys)), mx.array(got["mtp_hidden"])
    head.restore({})
    head.forward(mx.array(tokens)[None], make_prompt_cache(model))
    fresh = head.state()
    assert fresh["mtp"].offset == len(tokens) - 1 == keys.shape[2]
    assert mx.allclose(keys, fresh["mtp"].keys_and_values()[0], atol=1e-4).item()
    assert mx.allclose(last, fresh["mtp_hidden"], atol=1e-4).item()


def test_rolled_back_state_is_the_plain_state(loaded):
    model, prompt = loaded
    rng = np.random.default_rng(0)
    cache, plain = make_prompt_cache(model), make_prompt_cache(model)
    for c in (cache, plain):
        prefill(model, prompt, c, chunk=64)
    tape = Tape(list(model.layers), cache, 256)
    compared, kept_all, kept_none = 0, 0, 0
    for i in range(16):
        rows = int(rng.integers(1, 5))
        keep = (0, rows)[i % 2] if i < 4 else int(rng.integers(0, rows + 1))
        kept_all += keep == rows
        kept_none += keep == 0
        tokens = rng.integers(0, 8000, rows).tolist()
        with tape.recording(cache, rows):
            model.model(mx.array(tokens)[None], cache)
        if keep < rows - 1:
            tape.keep(cache, keep + 1)  # in two steps, as when a stop string cuts what was accepted
        tape.keep(cache, keep)
        for t in tokens[:keep]:
            model.model(mx.array([[t]]), plain)
        compared += same_state(cache, plain)
    assert compared == 16 * 16 and kept_all and kept_none


@pytest.mark.parametrize(
    "sampling,mode",
    [
        *((GREEDY, mode) for mode in ("1", "2", "3", "auto", "off")),
        *((SEEDED, mode) for mode in ("2", "auto")),
        *((PENALISED, mode) for mode in ("1", "3")),
    ],
)
def test_words_and_state_are_those_of_plain_decoding(loaded, head, sampling, mode):
    model, prompt = loaded
    n = 30
    expected, plain = plainly(model, prompt, sampling, n)
    made, runs, cache = speculator(model, head, prompt, sampling, mode, limit=n)
    got = [t for run in runs for t in run]
    assert got == expected
    assert same_state(cache, plain) == 16
    same_head(head, model, prompt + got)
    if mode in "123":
        report = made.report()
        assert report["rule"] == "equal" and report["drafted"] >= 10
        assert report["tokens_per_verify"] > 1.5
        assert sum(int(d) * c for d, c in report["depth_histogram"].items()) == report["drafted"]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, UNSEEDED])
def test_every_run_leaves_the_state_of_what_was_yielded(loaded, head, sampling):
    model, prompt = loaded
    for limit in (1, 2, 7):
        _, runs, cache = speculator(model, head, prompt, sampling, "3", limit=limit)
        got = []
        for run in runs:
            got += run
            assert cache[3].offset == len(prompt) + len(got)
        assert len(got) == limit
        plain = make_prompt_cache(model)
        prefill(model, prompt, plain, chunk=64)
        for t in got:
            model(mx.array([[t]]), cache=plain)
        assert same_state(cache, plain) == 16


def test_an_end_token_inside_accepted_drafts_ends_the_run(loaded, head):
    model, prompt = loaded
    expected, _ = plainly(model, prompt, GREEDY, 30)
    for place in (0, 1, 2, 5):
        end = expected[place]
        n = expected.index(end) + 1
        _, runs, cache = speculator(model, head, prompt, GREEDY, "3", ends={end})
        got = [t for run in runs for t in run]
        assert got == expected[:n]
        _, plain = plainly(model, prompt, GREEDY, n)
        assert same_state(cache, plain) == 16
        same_head(head, model, prompt + got)


def test_the_last_run_can_be_shortened(loaded, head):
    model, prompt = loaded
    shortened = 0
    for count in (1, 2, 3):
        made, runs, cache = speculator(model, head, prompt, GREEDY, "3")
        got = []
        for run in runs:
            if len(run) == 4:
                break
            got += run
        made.truncate(count)
        got += run[:count]
        _, plain = plainly(model, prompt, GREEDY, len(got))
        assert same_state(cache, plain) == 16
        same_head(head, model, prompt + got)
        shortened += 1
        with pytest.raises(ValueError):
            made.truncate(5)
    assert shortened == 3


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, PENALISED, UNSEEDED])
def test_grammar_masks_bind_drafts_and_target(loaded, head, sampling):
    model, prompt = loaded
    n = 24
    expected, plain = plainly(model, prompt, sampling, n, ThirdsOnly())
    for mode in ("2", "auto"):
        rule = ThirdsOnly()
        made, runs, cache = speculator(model, head, prompt, sampling, mode, limit=n, grammar=rule)
        got = [t for run in runs for t in run]
        assert len(got) == n and rule.told[:n] == got
        assert all(a % 3 != b % 3 for a, b in itertools.pairwise(got))
        assert made.report()["drafted"] > 0
        if sampling is not UNSEEDED:
            assert got == expected
            assert same_state(cache, plain) == 16


def test_a_head_that_starts_late_still_gives_the_same_words(loaded, head):
    model, prompt = loaded
    expected, _ = plainly(model, prompt, GREEDY, 30)
    cache = make_prompt_cache(model)
    logits = prefill(model, prompt, cache, chunk=64)  # without the head
    head.restore({})
    made = Speculator(head, cache, Sampler(GREEDY, VOCAB), DepthControl("2"), limit=30)
    assert [t for run in made.decode(logits) for t in run] == expected
    assert made.report()["drafted"] > 0


def test_the_head_goes_on_from_a_saved_state(loaded, head):
    model, prompt = loaded
    head.restore({})
    cache = make_prompt_cache(model)
    prefill(model, prompt, cache, chunk=64, mtp=head)
    state = head.state()
    saved = {"mtp_hidden": state["mtp_hidden"], "mtp": type(state["mtp"])()}
    saved["mtp"].state = tuple(mx.array(a) for a in state["mtp"].keys_and_values()) + (state["mtp"].offset,)
    expected, _ = head.first(mx.array([17]))
    mx.eval(expected)
    head.restore(saved)
    again, _ = head.first(mx.array([17]))
    assert mx.array_equal(expected, again).item()


@pytest.mark.parametrize("slots", [1, 4, 20, 64])
def test_every_pool_size_gives_the_same_words(loaded, slots):
    stock, prompt = loaded
    expected, _ = plainly(stock, prompt, SEEDED, 16)
    index = TensorIndex.open(checkpoint_path())
    spec = ModelSpec.read(checkpoint_path(), index)
    model = build_model(spec)
    config = EngineConfig(slots=slots)
    memory = ExpertMemory.install(
        model, spec, InPlaceSource(spec, index), config, {n: slots for n in spec.experts}
    )
    load_trunk(model)
    head = load_head(model, checkpoint_path())
    made, runs, _ = speculator(model, head, prompt, SEEDED, "2", limit=16)
    assert [t for run in runs for t in run] == expected
    assert made.report()["tokens_per_verify"] > 1.2
    head.close()
    memory.close()


def test_where_kernels_round_differently_words_differ_at_near_ties_at_most(loaded):
    """bfloat16: several rows may round unlike one row; a first difference must be within that rounding."""
    model, _ = load(str(checkpoint_path()))
    prompt = loaded[1]
    model.set_dtype(mx.bfloat16)
    head = load_head(model, checkpoint_path())
    n, compared = 20, 0
    expected, _ = plainly(model, prompt, GREEDY, n)
    for mode in ("1", "3"):
        _, runs, _ = speculator(model, head, prompt, GREEDY, mode, limit=n)
        got = [t for run in runs for t in run]
        same = next((i for i in range(n) if got[i] != expected[i]), n)
        compared += same
        if same < n:
            logits = model(mx.array(prompt + expected[:same])[None])[0, -1].astype(mx.float32)
            assert abs(logits[got[same]] - logits[expected[same]]).item() < 0.25
    assert compared >= n
