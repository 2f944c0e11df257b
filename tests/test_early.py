"""The shared expert begun early: only where the block gives it what it gives the routed experts."""

import mlx.core as mx
import mlx.nn as nn

from mlx_streaming.experts.early import EarlyModule


class Counted(nn.Module):
    """A projection from 8 to 8 that counts its calls."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)
        self._calls = 0

    def __call__(self, x):
        self._calls += 1
        return self.linear(x)


def test_the_same_input_is_computed_once_and_early_from_the_second_call_on():
    inner = Counted()
    early = EarlyModule(inner)
    for number in range(1, 4):
        x = mx.random.normal((1, 1, 8), key=mx.random.key(number))
        early.begin(x)
        assert inner._calls == number - (number == 1), "the first call shows the way"
        assert mx.array_equal(early(x), inner.linear(x))
        assert inner._calls == number


def test_experts_of_another_width_or_input_leave_the_shared_expert_alone():
    inner = Counted()
    early = EarlyModule(inner)
    for number in range(1, 4):
        x = mx.random.normal((1, 1, 8), key=mx.random.key(number))
        early.begin(x[..., :4] if number % 2 else x * 2)  # what latent experts and scaled inputs look like
        assert mx.array_equal(early(x), inner.linear(x))
        assert inner._calls == number


def test_a_result_that_nobody_took_is_never_handed_out_for_another_input():
    inner = Counted()
    early = EarlyModule(inner)
    first, second = (mx.random.normal((1, 1, 8), key=mx.random.key(n)) for n in (1, 2))
    for _ in range(2):
        early.begin(first)
        early(first)
    early.begin(first)  # the forward broke off here
    early.begin(second)
    assert mx.array_equal(early(second), inner.linear(second))
    assert mx.array_equal(early(first), inner.linear(first)), "called before the experts"
