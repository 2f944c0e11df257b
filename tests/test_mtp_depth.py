"""Depth control against a simulated machine: costs and acceptance are given, time is added up."""

import random

import pytest

from mlx_streaming.generation.depth import BUCKETS, DepthControl


def simulate(costs, acceptance, tokens, control=None, seed=0, noise=0.1):
    """(seconds taken, seconds of plain decoding, control) for an answer of `tokens` tokens.

    costs[d]: seconds of a step with d drafts (of a token for 0); acceptance: of draft i given those before.
    """
    rng = random.Random(seed)
    control = control or DepthControl("auto")
    control.begin()
    left, spent = tokens, 0.0

    def takes(depth):
        return costs[depth] * (1 + noise * rng.random())

    while left > 0:
        step = control.next(left)
        if step.depth == 0:
            seconds = sum(takes(0) for _ in range(step.tokens))
            control.plain(step.tokens, seconds)
            left -= step.tokens
        else:
            stood = 0
            while stood < step.depth and rng.random() < acceptance[stood]:
                stood += 1
            seconds = takes(step.depth)
            control.verified(step.depth, stood, stood + 1, seconds, [])
            left -= stood + 1
        spent += seconds
    return spent, tokens * costs[0] * (1 + noise / 2), control


@pytest.mark.parametrize("tokens", [100, 400, 2000])
@pytest.mark.parametrize(
    "costs", [(1, 2.0, 3.0, 4.0), (1, 1.9, 2.8, 3.7), (1, 1.6, 2.4, 3.2), (1, 5.0, 9.0, 13.0)]
)
def test_where_speculation_loses_plain_speed_is_kept(costs, tokens):
    for seed in range(5):
        spent, plain, control = simulate(costs, (0.5, 0.4, 0.3), tokens, seed=seed)
        # One short look is allowed: at most the cost of the trial steps.
        allowed = plain / 0.97 + sum(costs[1:3]) * 2
        assert spent < allowed
        assert control.stats.steps[0] > 0.5 * tokens
        assert "plain decoding is faster" in control.report()["reason"]


def test_a_second_turn_knows_what_the_first_learnt():
    _, _, control = simulate((1, 5.0, 9.0, 13.0), (0.9, 0.9, 0.9), 300)
    spent, plain, _ = simulate((1, 5.0, 9.0, 13.0), (0.9, 0.9, 0.9), 300, control)
    assert spent < plain / 0.97
    assert control.stats.steps[0] >= 290


@pytest.mark.parametrize(
    "costs,acceptance,best",
    [
        ((1, 1.3, 1.6, 1.9), (0.9, 0.9, 0.9), 3),
        ((1, 1.3, 1.6, 2.9), (0.9, 0.9, 0.9), 2),
        ((1, 1.4, 2.4, 3.4), (0.9, 0.5, 0.2), 1),
    ],
)
def test_the_fastest_depth_is_found(costs, acceptance, best):
    standing, expected = 1.0, 1.0
    for a in acceptance[:best]:
        standing *= a
        expected += standing
    ideal = costs[best] * 1.05 / expected
    for seed in range(5):
        spent, plain, control = simulate(costs, acceptance, 2000, seed=seed)
        assert spent < 1.08 * 2000 * ideal
        assert spent < plain
        steps = control.stats.steps
        assert max(range(1, 4), key=lambda d: steps[d]) == best


def test_it_notices_when_things_change():
    control = DepthControl("auto")
    simulate((1, 1.3, 1.6, 1.9), (0.9, 0.9, 0.9), 600, control)
    assert control.best() == 3
    simulate((1, 4.0, 7.0, 10.0), (0.9, 0.9, 0.9), 600, control)
    assert control.best() == 0
    simulate((1, 1.3, 1.6, 1.9), (0.95, 0.95, 0.95), 3000, control)
    assert control.best() > 0


def test_fixed_depths_and_the_end_of_room():
    assert DepthControl("3").next(100).depth == 3
    assert DepthControl("3").next(3).depth == 2
    assert DepthControl("3").next(1).depth == 0
    assert DepthControl("off").next(100).depth == 0
    with pytest.raises(ValueError):
        DepthControl("4")


def test_confidence_decides_on_single_drafts():
    control = DepthControl("auto")
    simulate((1, 1.4, 1.8, 2.2), (0.9, 0.9, 0.9), 300, control)
    rng = random.Random(1)
    low, high = BUCKETS[0] - 0.1, 0.99
    for _ in range(300):
        control.verified(1, rng.random() < 0.1, 1, 1.4, [low])
        control.verified(1, rng.random() < 0.95, 1, 1.4, [high])
    assert control.worth(0, 1.0, high)[0]
    assert not control.worth(0, 1.0, low)[0]
    assert control.worth(0, 1.0, low)[1] < 0.25
    assert not control.worth(1, 0.2, high)[0]


def test_stats_count_what_was_reported():
    control = DepthControl("2")
    control.verified(2, 2, 3, 1.0, [])
    control.verified(2, 0, 1, 1.0, [])
    control.verified(2, 1, 2, 1.0, [])
    got = control.report()
    assert got["depth_histogram"] == {"2": 3}
    assert got["drafted"] == 6 and got["accepted"] == 3
    assert got["accepted_per_position"] == [round(2 / 3, 4), 0.5]
    assert got["tokens_per_verify"] == 2.0
    control.begin()
    assert control.report()["drafted"] == 0
