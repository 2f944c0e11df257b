"""Every family gives the stock logits bit for bit at every pool size, and its caches survive a snapshot."""

import json
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from helpers_families import generate, in_two, prompt_of, stock, streamed
from helpers_family_configs import FLAT, NESTED, config_of

from mlx_streaming.checkpoint import presets
from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.config import EngineConfig
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.source import InPlaceSource

FAMILIES = [name for name in presets.PRESETS if name.startswith("tiny")]
VOCAB = 8192
STEPS = 4


def checkpoint_of(path, model_type):
    config, nested = config_of(model_type)
    names = {"experts": ("num_experts",), "top_k": ("num_experts_per_tok",)}
    presets.PRESETS["other"] = presets.Preset(config, names, nested=nested)
    try:
        synthesize(path, "other", dtype="float32")
    finally:
        del presets.PRESETS["other"]
    return path


@pytest.mark.parametrize("bits", [4, 16], ids=["quantised", "unquantised"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_stock_mlx_lm_at_every_pool_size(family, bits, tmp_path):
    synthesize(tmp_path / "m", family, layers=4, bits=bits, dtype="float32")
    spec = ModelSpec.read(tmp_path / "m")
    layer = next(iter(spec.experts.values()))
    pools = sorted({1, 2, layer.top_k, layer.num_experts // 2, layer.num_experts})
    reference = stock(tmp_path / "m")
    lengths = (40, 90) if bits == 4 else (90,)
    expected = {length: generate(reference, prompt_of(length), STEPS) for length in lengths}
    compared, misses = 0, {}
    for slots in pools:
        model, memory = streamed(tmp_path / "m", slots)
        compared += sum(generate(model, prompt_of(n), STEPS).compare(run) for n, run in expected.items())
        misses[slots] = sum(stats.misses for stats in memory.stats.layers.values())
        memory.close()
    model, memory = streamed(tmp_path / "m", layer.num_experts, force=False)
    assert len(memory.resident) == len(spec.experts) and not memory.streamed
    compared += sum(generate(model, prompt_of(n), STEPS).compare(run) for n, run in expected.items())
    memory.close()
    assert compared == (len(pools) + 1) * (sum(lengths) + len(lengths) * STEPS) * VOCAB
    assert misses[1] > misses[layer.num_experts // 2] > misses[layer.num_experts] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_caches_are_captured_and_restored(family, tmp_path):
    synthesize(tmp_path / "m", family, dtype="float32")
    reference = in_two(stock(tmp_path / "m"), prompt_of(90), 41, STEPS, through_snapshot=False)
    model, memory = streamed(tmp_path / "m", 2)
    found = in_two(model, prompt_of(90), 41, STEPS, through_snapshot=True)
    assert found.compare(reference) == (90 + STEPS) * VOCAB
    memory.close()


@pytest.mark.parametrize("model_type", [*FLAT, *NESTED])
def test_families_without_code_of_their_own(model_type, tmp_path):
    path = checkpoint_of(tmp_path / "m", model_type)
    reference = in_two(stock(path), prompt_of(40), 19, STEPS, through_snapshot=False)
    compared = 0
    for slots in (1, 4):
        model, memory = streamed(path, slots)
        compared += in_two(model, prompt_of(40), 19, STEPS, through_snapshot=True).compare(reference)
        assert len(memory.streamed) >= 2
        memory.close()
    assert compared == 2 * (40 + STEPS) * VOCAB


@pytest.mark.parametrize("family", ["tiny-qwen3-moe", "tiny-gpt-oss"])
def test_bfloat16_as_released(family, tmp_path):
    synthesize(tmp_path / "m", family, dtype="bfloat16")
    reference = generate(stock(tmp_path / "m"), prompt_of(40), STEPS)
    for slots in (1, 4):
        model, memory = streamed(tmp_path / "m", slots)
        assert generate(model, prompt_of(40), STEPS).compare(reference) == (40 + STEPS) * VOCAB
        memory.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_turns_end_to_end(family, tmp_path):
    """The backend's greedy words are stock mlx-lm's; the next turn starts from a snapshot and is the same."""
    from mlx_lm.generate import generate_step

    from mlx_streaming.mlx_backend import MLXBackend
    from mlx_streaming.request import Request, Sampling

    synthesize(tmp_path / "m", family, layers=4, dtype="float32")
    backend = MLXBackend(tmp_path / "m", EngineConfig(slots=3, usage=False))
    first = Request(
        messages=({"role": "user", "content": "Name a river."},),
        sampling=Sampling(temperature=0),
        max_tokens=6,
    )
    answer = backend.generate(first)
    engine = backend.engine
    reference = stock(tmp_path / "m")
    prompt = engine.tokenizer.apply_chat_template(list(first.messages), add_generation_prompt=True)
    steps = generate_step(mx.array(prompt), reference, max_tokens=6)
    assert answer.token_ids == [int(t) for t, _ in steps] and len(answer.token_ids) == 6
    told = {"role": "assistant", "content": answer.text, "token_ids": answer.token_ids}
    messages = (*first.messages, told, {"role": "user", "content": "And a lake?"})
    again = [backend.generate(replace(first, messages=messages, cache=use)) for use in ("on", "off")]
    assert [r.cached_tokens for r in again] == [len(prompt) + 6, 0]
    assert again[0].token_ids == again[1].token_ids and again[0].completion_tokens == 6
    backend.close()


def test_a_state_that_cannot_be_captured_still_streams(tmp_path):
    from mlx_streaming.state.codecs import UnsupportedCache

    path = tmp_path / "m"
    presets.PRESETS["other"] = presets.Preset(
        {**config_of("mixtral")[0], "model_type": "deepseek_v41"},
        {"experts": ("n_routed_experts",), "top_k": ("num_experts_per_tok",)},
    )
    try:
        synthesize(path, "other", dtype="float32")
    finally:
        del presets.PRESETS["other"]
    reference = generate(stock(path), prompt_of(40), STEPS)
    model, memory = streamed(path, 2)
    assert generate(model, prompt_of(40), STEPS).compare(reference) == (40 + STEPS) * VOCAB
    with pytest.raises(UnsupportedCache, match="LayerCache"):
        in_two(model, prompt_of(40), 19, STEPS, through_snapshot=True)
    memory.close()


def test_the_comparison_notices_one_exchanged_expert(tmp_path):
    class Exchanged(InPlaceSource):
        def reads(self, layer, expert):
            return super().reads(layer, {0: 1, 1: 0}.get(expert, expert) if layer == 2 else expert)

    synthesize(tmp_path / "m", "tiny-qwen3-moe", dtype="float32")
    index = TensorIndex.open(tmp_path / "m")
    spec = ModelSpec.read(tmp_path / "m", index)
    model = build_model(spec)
    slots = dict.fromkeys(spec.experts, 4)
    memory = ExpertMemory.install(model, spec, Exchanged(spec, index), EngineConfig(), slots)
    load_trunk(model)
    reference = generate(stock(tmp_path / "m"), prompt_of(40), STEPS)
    with pytest.raises(AssertionError):
        generate(model, prompt_of(40), STEPS).compare(reference)
    memory.close()


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_token_may_choose_one_expert_twice(slots, tmp_path):
    """Longcat's router maps every zero expert to expert 0 and gives it no weight."""
    path = checkpoint_of(tmp_path / "m", "mixtral")
    inner = stock(path).layers[0].block_sparse_moe.switch_mlp
    model, memory = streamed(path, slots)
    module = model.layers[0].block_sparse_moe.switch_mlp
    x = mx.random.normal((1, 1, 64), key=mx.random.key(3))
    for chosen in ([3, 3], [0, 0], [5, 3], [5, 5]):
        indices = mx.array([[chosen]])
        assert mx.array_equal(module(x, indices), inner(x, indices)).item()
    assert np.flatnonzero(module.counts).tolist() == [0, 3, 5]
    assert module.counts[[0, 3, 5]].tolist() == [2, 3, 3]
    held = module.pool.holds[module.pool.holds >= 0].tolist()
    assert len(held) == len(set(held)) == min(slots, 3)
    memory.close()


def test_names_that_mlx_lm_completes_while_loading(tmp_path):
    """A text-only conversion may lack the outer `language_model.` of the module path."""
    path = tmp_path / "m"
    synthesize(path, "tiny-qwen3.5-moe", dtype="float32")
    weights = mx.load(str(path / "model.safetensors"))
    renamed = {name.removeprefix("language_model."): array for name, array in weights.items()}
    mx.eval(renamed)
    mx.save_safetensors(str(path / "model.safetensors"), renamed)
    (path / "model.safetensors.index.json").unlink()
    assert ModelSpec.read(path).experts[0].prefix == "model.layers.0.mlp.switch_mlp"
    reference = generate(stock(path), prompt_of(40), STEPS)
    model, memory = streamed(path, 2)
    assert generate(model, prompt_of(40), STEPS).compare(reference) == (40 + STEPS) * VOCAB
    memory.close()


def quantised(path, **how):
    from mlx_lm import utils

    synthesize(path, "tiny-qwen3-moe", bits=16, dtype="float32")
    model, config = utils.load_model(path)
    model, config = utils.quantize_model(model, config, None, None, **how)
    (path / "model.safetensors").unlink()
    utils.save_model(path, model)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("mode", ["mxfp8", "nvfp4"])
def test_other_quantisations_of_mlx(mode, tmp_path):
    path = quantised(tmp_path / "m", mode=mode)
    reference = generate(stock(path), prompt_of(40), STEPS)
    for slots in (1, 3):
        model, memory = streamed(path, slots)
        assert generate(model, prompt_of(40), STEPS).compare(reference) == (40 + STEPS) * VOCAB
        memory.close()


def test_a_scale_for_each_expert_goes_into_its_slot(tmp_path):
    """Stock mlx computes with per-expert nvfp4 scales on a GPU only, so the slots' bytes are compared."""
    path = quantised(tmp_path / "m", mode="nvfp4", global_scale=True)
    whole = mx.load(str(path / "model.safetensors"))
    model, memory = streamed(path, 3)
    memory.warm({0: [6, 1]})
    memory.settle()
    pool = memory.streamed[0].pool
    prefix = ModelSpec.read(path).experts[0].prefix
    compared = 0
    for segment, array in zip(pool.segments, pool.arrays, strict=True):
        for expert in (6, 1):
            stored = whole[f"{prefix}.{segment.proj}.{segment.tensor}"][expert]
            assert mx.array_equal(array[int(pool.table[expert])], stored).item()
            compared += 1
    assert compared == 2 * 3 * 3
    assert model.layers[0].mlp.switch_mlp.inner.up_proj.global_scale.shape == (3,)
    memory.close()
