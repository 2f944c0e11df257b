"""Whole turns with and without speculation: same words, same ends, states that the next turn can use."""

import pytest

from mlx_streaming.config import EngineConfig
from mlx_streaming.demo import checkpoint_path
from mlx_streaming.engine import load_engine
from mlx_streaming.request import Request, Sampling, Text
from mlx_streaming.turn import Turn

GREEDY = Sampling(temperature=0)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine():
    loaded = load_engine(checkpoint_path(), EngineConfig(usage=False))
    yield loaded
    loaded.close()


def ask(text, *before, **options):
    return Request(messages=(*before, {"role": "user", "content": text}), **options)


def finish(turn):
    steps = turn.run()
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def run(engine, request, mode):
    changed = {**vars(request), "mtp": mode, "cache": "off"}
    return finish(Turn(engine, Request(**changed)))


CASES = {
    "story": ask("Tell me a story about a fox.", sampling=GREEDY),
    "seeded": ask("Tell me a story about a dog.", sampling=Sampling(0.9, 0.9, 40, seed=3)),
    "length": ask("Tell me a story about a fox.", sampling=GREEDY, max_tokens=17),
    "stop": ask("Tell me a story about a fox.", sampling=GREEDY, stop=(" was",)),
    "tool": ask("What is the weather in Paris?", sampling=GREEDY, tools=(WEATHER,)),
    "schema": ask("Invent a person.", sampling=GREEDY, schema=PERSON),
}


@pytest.mark.parametrize("name", CASES)
def test_speculation_changes_no_words(engine, name):
    plain = run(engine, CASES[name], "off")
    for mode in ("2", "auto"):
        fast = run(engine, CASES[name], mode)
        assert fast.text == plain.text
        assert [(c.name, c.arguments) for c in fast.tool_calls] == [
            (c.name, c.arguments) for c in plain.tool_calls
        ]
        assert fast.finish_reason == plain.finish_reason
        assert fast.token_ids == plain.token_ids
        assert fast.completion_tokens == plain.completion_tokens
        if mode == "2":
            assert fast.mtp["tokens_per_verify"] >= 1.3
            assert set(fast.mtp) >= {"depth_histogram", "drafted", "accepted_per_position"}
    expected = {"length": "length", "stop": "stop_string", "tool": "tool_calls"}
    assert plain.finish_reason == expected.get(name, "stop")


def test_the_next_turn_goes_on_from_what_was_seen(engine):
    """Readers that leave in the middle of a run: the state filed is the one of the tokens they saw."""
    reused = 0
    for seen in (1, 2, 3, 4):
        request = ask(f"Tell me a story about a cat. {seen}", sampling=GREEDY, mtp="3")
        turn = Turn(engine, request)
        steps, texts = turn.run(), 0
        for event in steps:
            texts += isinstance(event, Text)
            if texts == seen:
                break
        steps.close()
        assert not engine.session.stats.get("misplaced")
        said = turn.result
        assert said.token_ids
        before = (*request.messages, {"role": "assistant", "content": said.text, "token_ids": said.token_ids})
        again = ask("What is your name?", *before, sampling=GREEDY, mtp="3", max_tokens=12)
        warm = finish(Turn(engine, again))
        assert warm.text == run(engine, again, "off").text
        reused += warm.cached_tokens > len(said.token_ids)
    assert reused == 4


def test_a_restored_head_drafts_as_well_as_one_that_saw_everything(engine):
    first = ask("Tell me a story about a fox.", sampling=GREEDY, mtp="2")
    said = finish(Turn(engine, first))
    before = (*first.messages, {"role": "assistant", "content": said.text, "token_ids": said.token_ids})
    follow = ask("Tell me a story about a robot.", *before, sampling=GREEDY, mtp="2")
    warm = finish(Turn(engine, follow))
    cold = run(engine, follow, "2")
    assert warm.cached_tokens > 0 and cold.cached_tokens == 0
    assert warm.text == cold.text
    assert warm.mtp["accepted_per_position"] == cold.mtp["accepted_per_position"]
