"""Streaming never changes the output: bit-identical to stock mlx-lm at every pool size and chunking."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.config import EngineConfig
from mlx_streaming.experts import streamed as streamed_module
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.generation.decode import decode
from mlx_streaming.generation.prefill import prefill
from mlx_streaming.generation.sampling import Sampler
from mlx_streaming.request import Sampling

# (prompt length, prefill chunk): in one chunk and in many
SHAPES = ((1, 2048), (2, 2048), (63, 2048), (63, 16), (64, 2048), (64, 48), (65, 2048), (65, 64), (600, 256))
STEPS = 3
POOLS = ("one", "two", "top_k", "half", "all", "all streamed")


def prompt(length: int, vocab: int) -> list[int]:
    return np.random.default_rng(length).integers(0, vocab, length).tolist()


def slots_for(pool: str, spec: ModelSpec) -> dict[int, int]:
    return {
        n: {"one": 1, "two": 2, "top_k": e.top_k, "half": e.num_experts // 2}.get(pool, e.num_experts)
        for n, e in spec.experts.items()
    }


def streamed_model(spec: ModelSpec, index: TensorIndex, pool: str):
    model = build_model(spec)
    memory = ExpertMemory.install(
        model, spec, InPlaceSource(spec, index), EngineConfig(), slots_for(pool, spec), pool == "all streamed"
    )
    load_trunk(model)
    return model, memory


def as_numpy(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32))


def stock(model, tokens: list[int], chunk: int):
    steps = list(generate_step(mx.array(tokens), model, max_tokens=STEPS, prefill_step_size=chunk))
    return [t for t, _ in steps], [as_numpy(p) for _, p in steps]


def ours(model, tokens: list[int], chunk: int):
    cache = make_prompt_cache(model)
    logits = prefill(model, tokens, cache, chunk=chunk)
    found, probabilities = [], []
    for _ in range(STEPS):
        logprobs = logits - mx.logsumexp(logits, keepdims=True)
        probabilities.append(as_numpy(logprobs.squeeze(0)))
        found.append(int(mx.argmax(logprobs).item()))
        logits = model(mx.array([[found[-1]]]), cache=cache)[:, -1, :]
    return found, probabilities


def decoded(model, tokens: list[int], chunk: int, count: int = STEPS) -> list[int]:
    cache = make_prompt_cache(model)
    logits = prefill(model, tokens, cache, chunk=chunk)
    steps = decode(model, cache, logits, Sampler(Sampling(temperature=0), logits.shape[-1]))
    return [token for token, _ in zip(steps, range(count), strict=False)]


@pytest.fixture(scope="module", params=["demo", "synthetic"])
def checkpoint(request, tmp_path_factory):
    """(spec, index, stock results by (length, chunk)) of a checkpoint; computed once."""
    from mlx_streaming.demo import checkpoint_path

    path = checkpoint_path()
    if request.param == "synthetic":
        path = tmp_path_factory.mktemp("synthetic") / "model"
        synthesize(path, "tiny", layers=8)
    index = TensorIndex.open(path)
    spec = ModelSpec.read(path, index)
    model, _ = load_model(path)
    expected = {}
    for length, chunk in SHAPES:
        expected[length, chunk] = stock(model, prompt(length, spec.vocab_size), chunk)
    return spec, index, expected


@pytest.mark.parametrize("pool", POOLS)
def test_tokens_and_log_probabilities_are_stock(checkpoint, pool):
    spec, index, expected = checkpoint
    model, memory = streamed_model(spec, index, pool)
    compared = 0
    for (length, chunk), (tokens, probabilities) in expected.items():
        found, logprobs = ours(model, prompt(length, spec.vocab_size), chunk)
        assert found == tokens, (length, chunk)
        for mine, theirs in zip(logprobs, probabilities, strict=True):
            assert np.array_equal(mine, theirs), (length, chunk)
            compared += mine.size
    assert decoded(model, prompt(64, spec.vocab_size), 2048) == expected[64, 2048][0]
    assert compared == len(SHAPES) * STEPS * spec.vocab_size
    streamed = pool != "all"
    assert bool(memory.streamed) == streamed and bool(memory.resident) != streamed
    if streamed:
        assert memory.stats.total().reads > 0
    memory.close()


@pytest.mark.parametrize("pool", ["half", "all streamed"])
def test_experts_computed_before_the_choice_is_known(checkpoint, monkeypatch, pool):
    """A layer with few misses computes before it knows the choice; here always, hit or miss."""
    monkeypatch.setattr(streamed_module, "_HOPEFUL", -1)
    spec, index, _ = checkpoint
    reference, plain = streamed_model(spec, index, "all")
    model, memory = streamed_model(spec, index, pool)
    tokens = prompt(63, spec.vocab_size)
    assert decoded(model, tokens, 32, 40) == decoded(reference, tokens, 32, 40)
    total = memory.stats.total()
    assert total.hits > 500 and total.misses > 100
    memory.close()
    model, memory = streamed_model(spec, index, pool)
    memory.warm({n: range(spec.experts[n].num_experts) for n in memory.streamed})
    assert decoded(model, tokens[:9], 32, 10) == decoded(reference, tokens[:9], 32, 10)
    assert memory.stats.total().warmed > 0, "experts were to come in between dispatch and choice"
    memory.close()
    plain.close()


def test_every_slot_holds_the_bytes_of_its_expert(checkpoint):
    spec, index, _ = checkpoint
    model, memory = streamed_model(spec, index, "half")
    ours(model, prompt(65, spec.vocab_size), 2048)
    checked = 0
    for number, layer in memory.streamed.items():
        pool = layer.pool
        for slot, expert in enumerate(pool.holds.tolist()):
            if expert < 0:
                continue
            for fill_read, target in zip(
                pool.fill(expert, slot).reads, pool.fill(expert, slot).targets, strict=True
            ):
                with open(fill_read.path, "rb") as file:
                    file.seek(fill_read.offset)
                    assert file.read(fill_read.nbytes) == bytes(target), (number, slot, expert)
                checked += 1
    assert checked >= len(memory.streamed) * 9 * spec.experts[0].top_k
    memory.close()
