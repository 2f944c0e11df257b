"""Eviction policies: what each is named for, and the default against the best possible choice."""

from pathlib import Path

import numpy as np
import pytest

from mlx_streaming.config import EngineConfig
from mlx_streaming.errors import EngineError
from mlx_streaming.experts.policy import POLICIES, Echo, make_policy
from mlx_streaming.experts.routing import load_trace, parse_routing
from mlx_streaming.experts.simulate import hit_rate

# What the demo's routers chose in sampled answers (temperature 0.8) to small talk and then to requests for
# code; the policy was tuned on other topics. 1,443 tokens in 8 layers, 64 experts, 4 a token.
TRACE = Path(__file__).with_name("routing_talk_then_code.npz")


@pytest.fixture(scope="module")
def trace():
    return load_trace(TRACE)


def mean_rate(trace, slots, name):
    return np.mean([hit_rate(chosen, slots, name) for chosen in trace.values()])


@pytest.mark.parametrize(
    ("name", "slots"), [(None, 32), (None, 48), ("echo", 16), ("echo", 32), ("echo", 48)]
)
def test_the_default_and_echo_are_near_the_best_possible_choice(trace, name, slots):
    rate = mean_rate(trace, slots, name or EngineConfig().policy)
    assert 0 < mean_rate(trace, slots, "belady") - rate < 0.10
    assert rate > max(mean_rate(trace, slots, name) for name in ("lru", "lfu", "lfuda"))


@pytest.mark.parametrize("routing", ["zipf:0.8,0.4", "zipf:1.2,0", "zipf:0.5,0.8"])
def test_the_default_loses_nothing_where_nothing_comes_back(routing):
    chosen = parse_routing(routing)(0, 512, 10).choose(400)
    rates = {name: hit_rate(chosen, 128, name) for name in POLICIES}
    others = max(rates[name] for name in ("lru", "lfu", "lfuda", "clock"))
    assert rates["echo"] > others - 0.01 and rates[EngineConfig().policy] > others - 0.001


def test_belady_keeps_a_tokens_own_experts_together():
    # Two slots: the second token needs both, so that nothing of the first can stay for the third.
    assert hit_rate(np.array([[0, 1], [2, 3], [0, 1]]), 2, "belady") == 0
    assert hit_rate(np.array([[0, 1], [2, 3], [0, 1]]), 3, "belady") == 1 / 6


@pytest.mark.parametrize("name", POLICIES)
def test_victims_are_distinct_places_whatever_came_before(name):
    policy, rng = make_policy(name, 16), np.random.default_rng(5)
    for step in range(300):
        if step % 3 == 0:
            policy.admit(rng.choice(16, 2, replace=False))
        elif step:
            policy.chosen(
                np.array([rng.choice(16, 2, replace=False) for _ in range(int(rng.integers(1, 5)))])
            )
        held = rng.permutation(16)[: int(rng.integers(4, 17))].astype(np.int32)
        count = int(rng.integers(1, len(held) + 1))
        places = policy.victims(count, held)
        assert len(set(places.tolist())) == count and 0 <= places.min() and places.max() < len(held)


def test_policies_differ_as_their_names_say():
    lru, lfu = make_policy("lru", 3), make_policy("lfu", 3)
    everything = np.arange(3)
    for policy in (lru, lfu):
        policy.admit(everything)
        policy.chosen(np.array([[0], [0], [0], [1], [2]]))
    assert lru.victims(1, everything).tolist() == [0]
    assert lfu.victims(1, everything).tolist() == [1]
    lfuda = make_policy("lfuda", 3)
    lfuda.admit(np.array([0, 1]))
    lfuda.chosen(np.zeros((5, 1), dtype=int))
    for newcomer in (2, 1, 2, 1, 2, 1, 2, 1):
        lfuda.victims(1, np.array([3 - newcomer]))
        lfuda.admit(np.array([newcomer]))
    assert lfuda.victims(1, np.array([0, 1])).tolist() == [0], "old fame must fade"
    lrfu = make_policy("lrfu", 3)
    lrfu.chosen(np.array([[0], [0], [1], [1], [1]]))
    lrfu.admit(np.array([2]))
    assert lrfu.victims(2, everything).tolist() == [2, 0], "what is read ahead counts as chosen once"
    lrfu.chosen(np.ones((4 * lrfu.HALF_LIFE, 1), dtype=int))
    lrfu.chosen(np.array([[0]]))
    assert lrfu.key[0] < lrfu.key[1] / 100
    clock = make_policy("clock", 3)
    clock.admit(everything)
    assert clock.victims(1, everything).tolist() == [0]
    clock.chosen(np.array([[1]]))
    assert clock.victims(1, everything).tolist() == [2], "a second chance for what was used"
    with pytest.raises(EngineError, match="lru, lfu, lfuda, clock, lrfu, echo"):
        make_policy("best", 2)


def test_echo_expects_what_followed_before():
    song = np.array([[note] for note in (0, 1, 2, 3, 4, 5, 6, 7)])
    echo, lrfu = make_policy("echo", 16), make_policy("lrfu", 16)
    for policy in (echo, lrfu):
        for _ in range(3):
            policy.chosen(song)
            policy.chosen(np.arange(8, 16)[:, None])
        policy.chosen(song[:3])
    held = np.array([3, 4, 15])
    assert echo.victims(1, held).tolist() == [2] and lrfu.victims(1, held).tolist() != [2]


def test_echo_forgets_what_lies_further_back_and_takes_long_prompts_at_once():
    chosen = parse_routing("zipf:0.8,0.5")(0, 32, 4).choose(3 * Echo.HISTORY)
    held = np.arange(32)
    one_by_one, at_once, late = (Echo(32) for _ in range(3))
    for row in chosen:
        one_by_one.chosen(row[None])
    at_once.chosen(chosen)
    late.key[:] = 0
    late.chosen(chosen[-2 * Echo.HISTORY :])
    order = one_by_one.victims(32, held).tolist()
    assert at_once.victims(32, held).tolist()[:8] == order[:8] == late.victims(32, held).tolist()[:8]
