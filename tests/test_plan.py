"""The plan: what it adds up to, what it refuses, and whether the predicted memory is the memory used."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest
from helpers_family_configs import FLAT, NESTED, config_of
from helpers_memory import PEAK
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlx_streaming.checkpoint.load import build_model
from mlx_streaming.checkpoint.pack import pack
from mlx_streaming.checkpoint.presets import PRESETS
from mlx_streaming.checkpoint.recipe import Recipe
from mlx_streaming.checkpoint.spec import ExpertLayer, ModelSpec, Segment
from mlx_streaming.checkpoint.synthesize import synthesize
from mlx_streaming.config import EngineConfig
from mlx_streaming.errors import CapacityError, EngineError
from mlx_streaming.experts.plan import RUNTIME_BYTES, plan, plan_checkpoint
from mlx_streaming.experts.shares import LayerNeed, smallest_pools, spread
from mlx_streaming.footprint import footprint, kv_bits
from mlx_streaming.machine import Machine

GB = 10**9
BIG = "qwen3-next-80b"


@pytest.fixture(scope="module")
def big() -> tuple[ModelSpec, object]:
    """The 80B shape and its footprint, from the config alone."""
    config = PRESETS[BIG].configured()
    shapes = {"gate_proj": (512, 2048), "up_proj": (512, 2048), "down_proj": (2048, 512)}
    segments = []
    for proj, (rows, width) in shapes.items():
        segments.append(Segment(proj, "weight", "U32", (rows, width // 8), rows * width // 2))
        for tensor in ("scales", "biases"):
            segments.append(Segment(proj, tensor, "BF16", (rows, width // 64), rows * width // 32))
    experts = {
        n: ExpertLayer(n, f"model.layers.{n}.mlp.switch_mlp", 512, 10, tuple(segments)) for n in range(48)
    }
    spec = ModelSpec(
        path=Path("big"),
        config=config,
        model_type=config["model_type"],
        num_layers=48,
        hidden_size=2048,
        vocab_size=151936,
        max_context=262144,
        experts=experts,
        trunk_bytes=2_400_000_000,
        quantization={},
        generation_config={},
        eos_ids=(),
    )
    return spec, footprint(config)


def planned(big, gigabytes: float = 32, **settings):
    spec, shape = big
    machine = Machine(int(gigabytes * 2**30), int(0.72 * gigabytes * 2**30), "metal")
    return plan(spec, config=EngineConfig(**settings), machine=machine, shape=shape)


def test_footprint_of_the_80b_shape_costs_no_memory():
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    shape = footprint(PRESETS[BIG].configured())
    assert mx.get_peak_memory() - before < 1e6
    assert len(shape.growing) == 12
    assert shape.kv_bytes(1024) == 24 * 1024 * 1024  # 24 KiB per token
    assert shape.kv_bytes(1025) == shape.kv_bytes(1280)
    assert shape.recurrent_bytes == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


@pytest.mark.parametrize("like", [n for n in PRESETS if n != BIG])
def test_footprint_is_what_the_model_allocates(like, tmp_path):
    """Every family: the predicted state equals the bytes of a cache after a real run."""
    synthesize(tmp_path / "checkpoint", like, layers=4, experts=4, top_k=2, vocab=None)
    spec = ModelSpec.read(tmp_path / "checkpoint")
    shape = footprint(spec.config)
    model = build_model(spec)
    cache = make_prompt_cache(model)
    seen = 0
    for length in (30, 1, 1):
        mx.eval(model(mx.ones((1, length), dtype=mx.int32), cache=cache))
        seen += length
    arrays = [a for c in cache for _, a in tree_flatten(c.state) if isinstance(a, mx.array)]
    measured = sum(a.nbytes for a in arrays)
    assert measured > 0
    assert shape.kv_bytes(seen) + shape.recurrent_bytes == measured


def test_every_streamed_family_has_a_footprint_for_nothing():
    for model_type in (*FLAT, *NESTED):
        mx.reset_peak_memory()
        shape = footprint(config_of(model_type)[0])
        assert shape.growing and shape.widest_layer > 0 and mx.get_peak_memory() < 1e5
    assert len(FLAT) + len(NESTED) > 30


@pytest.mark.parametrize("gigabytes", [8, 16, 24, 32, 48, 64, 96, 192])
def test_the_parts_add_up_and_stay_inside(big, gigabytes):
    made = planned(big, gigabytes)
    parts = ("trunk", "kv", "recurrent", "snapshot", "workspace", "mtp", "cache", "runtime", "pool")
    assert made.peak_bytes == sum(getattr(made, f"{p}_bytes") for p in parts)
    assert made.peak_bytes <= made.memory < gigabytes * 2**30
    assert made.page_cache_bytes == gigabytes * 2**30 - made.peak_bytes
    assert made.pool_bytes == sum(made.slots[n] * 1769472 for n in range(48))
    assert all(10 <= made.slots[n] <= 512 for n in range(48))
    if made.resident != frozenset(range(48)):
        spare = made.memory - made.peak_bytes
        streamed = 48 - len(made.resident)
        assert spare < 1769472 * streamed  # not one more slot per layer would fit
        assert made.page_cache_bytes > 0.3 * gigabytes * 2**30


def test_more_memory_never_gives_fewer_slots(big):
    totals = [sum(planned(big, memory=g * GB, context=8192).slots.values()) for g in range(6, 54, 3)]
    assert totals == sorted(totals) and totals[0] < totals[-1] == 48 * 512


def test_given_slots_residents_and_context_are_kept(big):
    made = planned(big, slots=64)
    assert set(made.slots.values()) == {64} and not made.resident
    made = planned(big, memory=24 * GB, resident_layers=3)
    assert made.resident == {0, 1, 2} and len({made.slots[n] for n in range(3, 48)}) == 1
    assert planned(big, memory=24 * GB, context=100_000).context == 100_000
    with pytest.raises(CapacityError, match="context to 262144 at most"):
        planned(big, context=300_000)


def test_what_cannot_fit_is_refused_with_numbers_that_fit(big):
    with pytest.raises(CapacityError) as caught:
        planned(big, memory=6 * GB, context=131072)
    words = str(caught.value).rstrip(".").split()
    memory = words[words.index("memory") + 2].rstrip(",")
    context = int(words[words.index("context", words.index("memory")) + 2])
    fits = EngineConfig.from_env(memory=memory, context=131072)
    assert planned(big, memory=fits.memory, context=131072).peak_bytes <= fits.memory
    assert fits.memory < 10 * GB
    smaller = planned(big, memory=6 * GB, context=context)
    assert smaller.peak_bytes <= 6 * GB and 0 < context < 131072
    with pytest.raises(CapacityError):
        planned(big, memory=int(fits.memory * 0.98), context=131072)
    with pytest.raises(CapacityError):
        planned(big, memory=6 * GB, context=context + 2048)
    with pytest.raises(CapacityError, match="no context fits"):
        planned(big, memory=2 * GB)


def test_quantised_keys_and_values_take_less(big):
    full, small = (
        planned(big, slots=64, context=131072),
        planned(big, slots=64, context=131072, kv_bits="k4v3"),
    )
    assert small.kv_bytes == full.kv_bytes // 4  # 4.5 and 3.5 of 16 bits
    assert kv_bits("") == (16, 16)
    with pytest.raises(EngineError, match="k4v3"):
        kv_bits("4")


def test_packed_bits_and_the_head_are_counted(demo_path, tmp_path):
    pack(demo_path, tmp_path / "out", Recipe(bits=2))
    spec = ModelSpec.read(demo_path)
    plain = plan_checkpoint(spec, EngineConfig(slots=16, mtp="off"))
    narrow = plan_checkpoint(spec, EngineConfig(slots=16, mtp="off", packed=str(tmp_path / "out")))
    drafting = plan_checkpoint(spec, EngineConfig(slots=16))
    # The demo has 4 bits, and a float32 scale and bias for each 64 values.
    assert narrow.pool_bytes * (4 + 1) == plain.pool_bytes * (2 + 1) > 0
    assert plain.mtp_bytes == 0 < drafting.mtp_bytes < (demo_path / "mtp-raw.safetensors").stat().st_size


@settings(max_examples=200, deadline=None)
@given(
    layers=st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 10**6), st.integers(1, 8)), min_size=1, max_size=8
    ),
    extra=st.integers(0, 10**8),
    resident=st.none() | st.integers(0, 8),
)
def test_slots_never_exceed_the_bytes(layers, extra, resident):
    needs = {i: LayerNeed(*values) for i, values in enumerate(layers)}
    # With equal slots for all, the floor is the largest need of any layer.
    least = max(n.least for n in needs.values())
    needs = {i: replace(n, top_k=least) for i, n in needs.items()}
    left = smallest_pools(needs, None, resident) + extra
    slots = spread(needs, left, None, resident)
    assert sum(slots[n] * needs[n].expert_bytes for n in needs) <= left
    assert all(needs[n].least <= slots[n] <= needs[n].experts for n in needs)


CHILD = """
import json, random, resource, sys
from pathlib import Path
import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.load import build_model, load_trunk
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.plan import apply_limits, plan_checkpoint
from mlx_streaming.experts.source import InPlaceSource
from mlx_streaming.generation.prefill import prefill
path, config = Path(sys.argv[1]), EngineConfig(cache_memory=0, **json.loads(sys.argv[2]))
index = TensorIndex.open(path)
spec = ModelSpec.read(path, index)
made = plan_checkpoint(spec, config)
apply_limits(made)
model = build_model(spec)
memory = ExpertMemory.install(model, spec, InPlaceSource(spec, index), config, made.slots)
load_trunk(model)
random.seed(0)
tokens = [random.randrange(spec.vocab_size) for _ in range(made.context - 2)]
cache = make_prompt_cache(model)
logits = prefill(model, tokens, cache, chunk=made.chunk)
for _ in range(2):
    logits = model(mx.argmax(logits, axis=-1)[None], cache=cache)[:, -1, :]
    mx.eval(logits)
rss = peak()
facts = {"planned": made.mlx_bytes, "peak": mx.get_peak_memory(), "rss": rss, "slots": made.slots}
print(json.dumps(facts | {"total": made.peak_bytes, "pools": memory.nbytes, "pool_bytes": made.pool_bytes}))
"""


@pytest.mark.parametrize(
    ("like", "sizes", "config"),
    [
        ("tiny", {"hidden": 256, "experts": 64, "expert_width": 512, "layers": 4}, {"slots": 24}),
        ("tiny-qwen3-moe", {"hidden": 512, "experts": 64, "expert_width": 512}, {"memory": 310_000_000}),
        ("tiny-gpt-oss", {"hidden": 512, "experts": 32, "expert_width": 512}, {}),
    ],
)
def test_the_predicted_peak_is_the_measured_one(like, sizes, config, tmp_path):
    """Within 5 % of what MLX allocated at its peak; the process stays within that and the stated constant."""
    synthesize(tmp_path / "checkpoint", like, **sizes)
    config = {"context": 96, "prefill_chunk": 64, "mtp": "off"} | config
    command = [sys.executable, "-c", PEAK + CHILD, str(tmp_path / "checkpoint"), json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["pools"] == facts["pool_bytes"] > 0
    assert facts["planned"] == pytest.approx(facts["peak"], rel=0.05)
    assert (
        0.95 * facts["planned"]
        < facts["rss"]
        < 1.05 * facts["planned"] + RUNTIME_BYTES
        <= 1.06 * facts["total"]
    )


def test_command_line(run_llm):
    made = json.loads(run_llm("mlx-streaming", "plan", "-m", "demo", "--memory", "400MB", "--json").stdout)
    assert made["memory"] == 400_000_000 >= made["peak_bytes"]
    assert len(made["slots"]) == 8
    shown = run_llm("mlx-streaming", "plan", "-m", "demo", "--slots", 16, "--context", 1000).stdout
    assert "16 of 64 in 8 layers" in shown and "1000 tokens" in shown
    refused = run_llm("mlx-streaming", "plan", "-m", "demo", "--memory", "50MB", check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: demo with a context") and "set memory to" in refused.stderr


def test_a_plan_is_called_by_the_registered_name(run_llm, demo_path):
    run_llm("mlx-streaming", "add", demo_path, "--name", "mine")
    assert run_llm("mlx-streaming", "plan", "-m", "mine").stdout.startswith("mine: ")
    refused = run_llm("mlx-streaming", "plan", "-m", "mine", "--memory", "50MB", check=False)
    assert refused.stderr.startswith("Error: mine with a context")


def test_a_larger_machine_can_be_planned_for_but_not_loaded_on(run_llm):
    here = Machine.detect().total_memory
    asked = ("-m", "demo", "--memory", "10TB", "--slots", 16)
    shown = run_llm("mlx-streaming", "plan", *asked).stdout
    assert shown.startswith(f"demo: 10000.00 GB planned; this machine has {here / 1e9:.2f} GB\n")
    made = json.loads(run_llm("mlx-streaming", "plan", *asked, "--json").stdout)
    assert made["memory"] == 10**13 and made["machine_memory"] == here
    prompt = ("-m", "qwen3-next-stream-demo", "hello", "-o", "memory", "10TB")
    for command in (prompt, ("mlx-streaming", "bench", *asked), ("mlx-streaming", "tune", *asked)):
        refused = run_llm(*command, check=False)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1
        assert f"memory is set to 10000GB, but this machine has {here / 1e9:.2f} GB" in refused.stderr
