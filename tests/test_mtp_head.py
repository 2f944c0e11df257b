"""The head on disk and in memory: raw and packed, resident and streamed, after and before the final norm."""

import json

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

from mlx_streaming.checkpoint.mtp_extract import STACKED, HeadBits, convert, extract, find_head
from mlx_streaming.config import EngineConfig
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.errors import CheckpointError
from mlx_streaming.generation import mtp_report
from mlx_streaming.generation.mtp_load import load_head
from mlx_streaming.generation.prefill import prefill

RAW = checkpoint_path() / "mtp-raw.safetensors"


@pytest.fixture(scope="module")
def loaded():
    model, tokenizer = load(str(checkpoint_path()))
    asks = ["Tell me a story about a fox.", "Write a Python function that adds two numbers."]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": a}], add_generation_prompt=True)
        for a in asks
    ]
    return model, prompts


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    target = tmp_path_factory.mktemp("head") / "mtp.safetensors"
    extract(RAW, target, HeadBits(8, 4), mx.float32)
    return target


def drafts(model, head, prompt):
    """Logits of three drafts after a prompt."""
    head.restore({})
    prefill(model, prompt, make_prompt_cache(model), chunk=8, mtp=head)
    logits, hidden = head.first(mx.array([40], mx.uint32))
    found = [logits]
    for token in (50, 60):
        logits, hidden = head.more(mx.array([token], mx.uint32), hidden)
        found.append(logits)
    return mx.concatenate(found)


def test_the_packed_form_holds_the_release_tensors():
    head = find_head(RAW)
    assert not head.packed and len(head.names) == 17 + 3 * 64
    raw = mx.load(str(RAW))
    weights, quantization = convert(head, HeadBits(16, 16), mx.float32)
    assert quantization == {}
    compared = 0
    for name, value in raw.items():
        value = value.astype(mx.float32)
        if ".experts." in name:
            number, proj = name.split(".experts.")[1].split(".")[:2]
            got = weights[f"{STACKED}.{proj}.weight"][int(number)]
        else:
            got = weights[name]
        # one is added to norms, which the release centres on zero
        assert mx.array_equal(got, value + 1 if value.ndim == 1 else value).item()
        compared += 1
    assert compared == len(raw)


def test_bits_are_as_asked(packed):
    names = {n: i for n, i in find_head(packed).index.tensors.items()}
    assert names["mtp.fc.weight"].shape == (256, 512 * 8 // 32)
    assert names[f"{STACKED}.gate_proj.weight"].shape == (64, 64, 256 * 4 // 32)
    assert names[f"{STACKED}.gate_proj.scales"].dtype == "F32"
    _, quantization = convert(find_head(RAW), HeadBits(4, 2))
    assert quantization["mtp.layers.0.mlp.gate"]["bits"] == 8
    assert quantization["mtp.layers.0.mlp.shared_expert_gate"]["bits"] == 8
    assert quantization["mtp.fc"]["bits"] == 4
    assert quantization[f"{STACKED}.up_proj"]["bits"] == 2


@pytest.mark.parametrize("slots", [None, 1, 4, 16])
def test_raw_packed_resident_and_streamed_heads_draft_alike(loaded, packed, tmp_path, slots):
    model, prompts = loaded
    expected = drafts(model, load_head(model, RAW), prompts[0])
    heads = [
        load_head(model, packed, EngineConfig(mtp_slots=slots)),
        load_head(model, checkpoint_path(), EngineConfig(mtp_slots=slots), cache_dir=tmp_path),
    ]
    for head in heads:
        assert mx.array_equal(drafts(model, head, prompts[0]), expected).item()
        (layer,) = head.experts.slots.items()
        assert layer[1] == (slots or 64)
        if slots == 4:
            stats = head.experts.stats.layers[layer[0]]
            assert stats.misses > 0 and stats.bytes_read > 0
        head.close()
    made = list(tmp_path.iterdir())
    assert len(made) == 1
    before = made[0].stat().st_mtime_ns
    load_head(model, checkpoint_path(), cache_dir=tmp_path).close()  # extracted once only
    assert made[0].stat().st_mtime_ns == before


def test_chunks_do_not_change_what_the_head_knows(loaded):
    model, prompts = loaded
    head = load_head(model, RAW)
    states = []
    for chunk in (3, 8, 512):
        head.restore({})
        prefill(model, prompts[0], make_prompt_cache(model), chunk=chunk, mtp=head)
        state = head.state()
        states.append(np.array(state["mtp"].keys_and_values()[0]))
        assert state["mtp"].offset == len(prompts[0]) - 1
    np.testing.assert_allclose(states[0], states[1], atol=1e-4)
    np.testing.assert_allclose(states[0], states[2], atol=1e-4)


def test_prefill_with_a_head_gives_the_stock_logits(loaded):
    model, prompts = loaded
    stock, cache = make_prompt_cache(model), make_prompt_cache(model)
    plain = prefill(model, prompts[0], stock, chunk=8)
    head = load_head(model, RAW)
    assert mx.array_equal(prefill(model, prompts[0], cache, chunk=8, mtp=head), plain).item()
    assert all(mx.array_equal(a, b).item() for a, b in zip(stock[0].cache, cache[0].cache, strict=True))


def test_post_norm_hidden_states_are_accepted_more_often(loaded):
    model, prompts = loaded
    samples = mtp_report.greedy_samples(model, prompts, frozenset({8183, 8185}), 40)
    rates = {}
    for hidden in ("post", "pre"):
        head = load_head(model, RAW, EngineConfig(mtp_hidden=hidden))
        found = mtp_report.acceptance(model, head, samples, hidden, "8/4")
        head.close()
        assert found.tested[0] == sum(len(s.answer) for s in samples) - len(samples) > 50
        rates[hidden] = found.rates
    assert rates["post"][0] > 0.85
    assert rates["post"][0] > rates["pre"][0] + 0.05
    assert type(model.model.norm).__name__ == "RMSNorm"  # the tap is out again


def test_what_is_not_a_head_is_refused(loaded, packed, tmp_path):
    model, _ = loaded
    assert find_head(tmp_path) is None
    with pytest.raises(CheckpointError, match="no MTP head"):
        load_head(model, tmp_path)
    with pytest.raises(CheckpointError, match="no mtp"):
        extract(tmp_path, tmp_path / "out.safetensors")
    with pytest.raises(CheckpointError, match="packed head already"):
        extract(packed, tmp_path / "out.safetensors")
    raw = mx.load(str(RAW))
    some = {k: v for k, v in raw.items() if "experts.5.up_proj" not in k}
    mx.save_safetensors(str(tmp_path / "some.safetensors"), some)
    with pytest.raises(CheckpointError, match="complete set"):
        extract(tmp_path / "some.safetensors", tmp_path / "out.safetensors")
    lacking = {k: v for k, v in raw.items() if "q_norm" not in k}
    mx.save_safetensors(str(tmp_path / "lacking.safetensors"), lacking)
    with pytest.raises(CheckpointError, match="q_norm"):
        load_head(model, tmp_path / "lacking.safetensors")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(packed.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        load_head(model, cut)
    assert not (tmp_path / "out.safetensors").exists()
    assert not list(tmp_path.glob(".out*"))


def test_extract_command(tmp_path):
    from llm_mlx_streaming.commands.mtp import mtp

    out = tmp_path / "mtp.safetensors"
    result = CliRunner().invoke(mtp, ["extract", str(RAW), str(out), "--expert-bits", "3", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told == {"path": str(out), "bytes": out.stat().st_size, "bits": 8, "expert_bits": 3}
    assert find_head(tmp_path).packed
    assert find_head(out).index.tensors[f"{STACKED}.up_proj.scales"].dtype == "BF16"


def test_report_command():
    from llm_mlx_streaming.commands.mtp import mtp

    result = CliRunner().invoke(mtp, ["report", "-m", "demo", "--tokens", "8", "--seed", "1", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert {(a["hidden"], a["bits"]) for a in told["acceptance"]} >= {("post", "8/4"), ("pre", "8/4")}
    assert len(told["costs"]["rows_ms"]) == 4 and len(told["costs"]["drafts_ms"]) == 3
    assert [s["same_words"] for s in told["speed"]] == [True, True]


def test_report_command_on_a_raw_head_of_half_floats(tmp_path):
    from llm_mlx_streaming.commands.mtp import mtp
    from mlx_streaming.checkpoint.synthesize import synthesize

    synthesize(tmp_path / "tiny", "tiny", layers=4, mtp=True)
    arguments = ["report", "-m", str(tmp_path / "tiny"), "--tokens", "8", "--json"]
    result = CliRunner().invoke(mtp, arguments)
    assert result.exit_code == 0, result.output
    told = {(a["hidden"], a["bits"]) for a in json.loads(result.output)["acceptance"]}
    assert told >= {("post", "8/4"), ("post", "16/4"), ("post", "4/4"), ("pre", "8/4")}
