"""What a turn leaves in the books, however it ends."""

import pytest

from mlx_streaming import engine as engine_module
from mlx_streaming.config import EngineConfig
from mlx_streaming.engine import load_engine
from mlx_streaming.errors import CheckpointError
from mlx_streaming.experts.memory import ExpertMemory
from mlx_streaming.experts.usage import load_usage
from mlx_streaming.request import Request, Sampling
from mlx_streaming.turn import Turn

MESSAGES = ({"role": "user", "content": "Tell me a story about a fox."},)
GREEDY = Sampling(temperature=0)


def finish(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def test_an_answer_whose_reader_went_away_counts_in_usage(demo_path, tmp_path):
    engine = load_engine(demo_path, EngineConfig(slots=16, mtp="off", usage_dir=str(tmp_path)))
    steps = Turn(engine, Request(MESSAGES, sampling=GREEDY)).run()
    for _ in range(3):
        next(steps)
    steps.close()
    assert engine.tokens_run > 3
    engine.close()
    counts = load_usage(engine.config.usage_path(engine.identity))
    top_k = engine.spec.experts[0].top_k
    assert sorted(counts) == list(range(8)) and counts[0].sum() >= engine.tokens_run * top_k


def test_what_was_filed_is_told_of_when_no_turn_snapshot_was(demo_path):
    engine = load_engine(demo_path, EngineConfig(mtp="off", usage=False))
    result = finish(Turn(engine, Request(MESSAGES, sampling=GREEDY, stop=(" ",))).run())
    assert result.finish_reason == "stop_string" and result.snapshot_bytes > 0, "the prompt's"
    assert engine.tokens_run == result.prompt_tokens + result.completion_tokens
    engine.close()


def test_a_load_that_fails_leaves_no_reader_behind(demo_path, monkeypatch):
    closed = []
    close = ExpertMemory.close
    monkeypatch.setattr(ExpertMemory, "close", lambda self: (closed.append(self), close(self)))

    def broken(model):
        raise CheckpointError("no weights; download them.")

    monkeypatch.setattr(engine_module, "load_trunk", broken)
    with pytest.raises(CheckpointError, match="no weights"):
        load_engine(demo_path, EngineConfig(slots=16, mtp="off", usage=False))
    assert len(closed) == 1


def test_the_reads_of_a_streamed_head_are_told_apart_from_the_layers(demo_path, tmp_path):
    config = EngineConfig(slots=64, mtp="2", mtp_slots=6, mtp_dir=str(tmp_path), usage=False)
    engine = load_engine(demo_path, config)
    result = finish(Turn(engine, Request(MESSAGES, sampling=GREEDY, max_tokens=8)).run())
    assert result.experts["misses"] == 0 and result.mtp["experts"]["misses"] > 0
    assert result.mtp["experts"]["bytes_read"] > 0
    engine.close()
