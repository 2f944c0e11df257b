"""Routing for measurements: scripts, traces, simulation, usage and profile."""

import json

import mlx.core as mx
import numpy as np
import pytest

from mlx_streaming.bench import Options, bench
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import identity_of, load_engine
from mlx_streaming.errors import EngineError
from mlx_streaming.experts.profile import by_usage
from mlx_streaming.experts.routing import Recorder, Trace, load_trace, parse_routing, script_routers
from mlx_streaming.experts.simulate import compare, hit_rate
from mlx_streaming.experts.usage import HALF_LIFE_TOKENS, add_usage, hottest, load_usage, merged


@pytest.mark.parametrize("text", ["uniform", "zipf:1.0,0.5"])
def test_scripts_choose_distinct_experts_and_repeat(text):
    make = parse_routing(text)
    chosen = make(3, 32, 4).choose(200)
    assert chosen.shape == (200, 4) and chosen.min() >= 0 and chosen.max() < 32
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    assert np.array_equal(chosen, make(3, 32, 4).choose(200))


def test_stickiness_keeps_experts_from_token_to_token():
    def stays(text):
        chosen = parse_routing(text)(0, 64, 4).choose(400)
        return np.mean([len(set(a) & set(b)) / 4 for a, b in zip(chosen, chosen[1:], strict=False)])

    assert stays("zipf:0.5,0.8") > 0.75 > 0.3 > stays("zipf:0.5,0")


@pytest.mark.parametrize("text", ["zipf:1", "best", "trace:/nowhere.npz"])
def test_bad_routing_is_refused_in_one_sentence(text):
    with pytest.raises(EngineError):
        parse_routing(text)


def test_a_scripted_router_decides_and_a_recorded_trace_replays(demo_path, tmp_path):
    engine = load_engine(demo_path, EngineConfig(slots=16, mtp="off"))
    script_routers(engine.model, engine.spec.experts, "uniform")
    recorder = Recorder(engine.memory)
    engine.model(mx.array([[5, 6, 7]]), cache=engine.session.make_cache())
    assert recorder.save(tmp_path / "trace.npz") == 3
    traces = load_trace(tmp_path / "trace.npz")
    for layer, chosen in traces.items():
        want = parse_routing("uniform")(layer, 64, 4).choose(3)
        assert [set(r) for r in chosen.tolist()] == [set(r) for r in want.tolist()]
    assert len(traces) == 8
    replay = parse_routing(f"trace:{tmp_path / 'trace.npz'}")(2, 64, 4)
    assert np.array_equal(replay.choose(4), Trace(traces[2]).choose(4))
    engine.close()


def test_belady_is_the_bound_and_every_policy_counts_all_choices():
    chosen = parse_routing("zipf:0.8,0.5")(0, 32, 4).choose(500)
    rates = compare({0: chosen}, 12)
    assert set(rates) == {"lru", "lfu", "lfuda", "clock", "lrfu", "echo", "belady"}
    assert all(0 < rates[name] <= rates["belady"] < 1 for name in rates)
    assert hit_rate(chosen, 32, "lru") == 1 - len(np.unique(chosen)) / chosen.size
    looped = np.array([[0], [1], [2]] * 10)
    assert hit_rate(looped, 2, "lru") == 0 and hit_rate(looped, 2, "belady") > 0.4


def test_bench_compares_with_stock_and_counts_what_it_compared(demo_path, tmp_path):
    options = Options(prompt_tokens=12, tokens=6, repeats=2, baseline=True, record=tmp_path / "t.npz")
    found = bench(demo_path, EngineConfig(slots=8), options)
    assert found["tokens_identical"] == found["tokens_compared"] == 12
    assert found["logits_identical"] is True and found["expert_reads"] > 0
    assert found["recorded_tokens"] > 18 and 0 < found["expert_hit_rate"] < 1
    assert json.dumps(found)


def test_usage_decays_merges_and_survives_damage(tmp_path):
    path = tmp_path / "usage.json"
    counts = {0: np.array([4, 0, 2]), 1: np.array([0, 1, 0])}
    add_usage(path, counts, 10)
    add_usage(path, counts, HALF_LIFE_TOKENS)
    assert np.allclose(load_usage(path)[0], [6, 0, 3], atol=0.01)
    assert hottest(load_usage(path), {0: 2, 1: 5}) == {0: [0, 2], 1: [1]}
    assert merged({0: np.ones(2)}, counts, 1)[0].tolist() == [4, 0, 2], "another number of experts"
    for damage in (b"", b"{", b'{"version": 9, "layers": {}}', b'{"version": 1, "layers": {"0": ["x"]}}'):
        path.write_bytes(damage)
        assert load_usage(path) == {}
        add_usage(path, counts, 1)
        assert load_usage(path)[0].tolist() == [4, 0, 2]


def test_two_processes_may_add_usage_at_once(tmp_path):
    import subprocess
    import sys

    path = tmp_path / "usage.json"
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from mlx_streaming.experts.usage import add_usage\n"
        "for _ in range(50): add_usage(Path(sys.argv[1]), {0: np.array([1, 0])}, 1)"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [c.wait() for c in children] == [0, 0]
    assert 99 < load_usage(path)[0][0] <= 100


def test_a_profile_spends_the_budget_where_it_pays():
    usage = {0: np.array([100, 0, 0, 0]), 1: np.array([25, 25, 25, 25])}
    experts = {0: 4, 1: 4}
    slots = by_usage(5, usage, experts, {0: 1, 1: 1}, {0: 3, 1: 3})
    assert slots == {0: 2, 1: 3}
    assert sum(by_usage(6, {}, experts, {0: 1, 1: 1}, {0: 3, 1: 3}).values()) == 6


@pytest.mark.parametrize(
    "settings",
    [
        {"policy": "lru"},
        {"policy": "clock"},
        {"lookahead": 1, "lookahead_budget": 3},
        {"lookahead": 3, "lookahead_cutoff": 4, "lookahead_budget": 2, "lookahead_width": 24},
        {"pin": 0.5},
        {"profile": "off"},
        {"uncached": True, "readers": 1},
    ],
    ids=str,
)
def test_settings_change_speed_only(demo_path, tmp_path, settings):
    """One turn's greedy tokens with every kind of setting are those of the plain resident model."""
    from mlx_streaming.mlx_backend import MLXBackend
    from mlx_streaming.request import Request, Sampling

    question = Request(({"role": "user", "content": "What is a lantern?"},), sampling=Sampling(temperature=0))
    plain = MLXBackend(demo_path, EngineConfig(mtp="off"))
    expected = plain.generate(question).token_ids
    plain.close()
    config = EngineConfig(slots=12, mtp="off", usage_dir=str(tmp_path), **settings)
    for _ in range(2):  # the second run has usage, and with it profile, pins and warm slots
        backend = MLXBackend(demo_path, config)
        result = backend.generate(question)
        backend.settle()
        assert result.token_ids == expected and result.experts["misses"] > 0
        backend.close()
    counts = load_usage(config.usage_path(identity_of(demo_path, config)))
    assert sorted(counts) == list(range(8)) and all(c.sum() > 0 for c in counts.values())


def test_look_ahead_without_room_is_refused(demo_path):
    with pytest.raises(EngineError, match="lower lookahead_budget or give more slots"):
        load_engine(demo_path, EngineConfig(slots=6, lookahead=1, lookahead_budget=4))
