"""A prompt that was stopped half way goes on from where it was, in this process and in the next."""

from __future__ import annotations

import pytest

from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import load_engine
from mlx_streaming.request import Request, Sampling
from mlx_streaming.turn import Turn

QUESTION = "Define the word river, then the word lake, then the word mountain. " * 6


def run(engine, stop_after=None):
    """The turn's result; stopped at the `stop_after`-th look at the stop button."""
    looks = []

    def should_stop():
        looks.append(1)
        return stop_after is not None and len(looks) > stop_after

    request = Request(
        messages=({"role": "user", "content": QUESTION},),
        sampling=Sampling(temperature=0.0),
        max_tokens=8,
        should_stop=should_stop,
    )
    turn = Turn(engine, request).run()
    while True:
        try:
            next(turn)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("mtp", ["off", "auto"])
def test_stopped_prefill_is_not_lost(demo_path, tmp_path, mtp):
    plain = EngineConfig(prefill_chunk=16, mtp=mtp, usage=False)
    engine = load_engine(demo_path, plain)
    expected = run(engine).text
    engine.close()
    config = EngineConfig(prefill_chunk=16, mtp=mtp, usage=False, cache_dir=str(tmp_path))
    engine = load_engine(demo_path, config)
    chunk = engine.plan.chunk
    stopped = run(engine, stop_after=2)
    assert stopped.finish_reason == "interrupted" and stopped.cached_tokens == 0
    again = run(engine, stop_after=1)  # in the same process, and stopped once more
    assert again.finish_reason == "interrupted" and again.cached_tokens == 2 * chunk
    engine.close()
    engine = load_engine(demo_path, config)  # as the next process does
    result = run(engine)
    assert result.cached_tokens == 3 * chunk < result.prompt_tokens
    assert result.text == expected and result.completion_tokens == 8
    engine.close()
