"""One engine for sync and async callers: single flight, order, cancellation, hand-over, interpreter exit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import llm
import pytest
from helpers_llm import Script

from llm_mlx_streaming import owner as owner_module
from llm_mlx_streaming.models import AsyncStreamingModel, StreamingModel
from mlx_streaming import backend as backend_module

WORDS = "one two three four five six seven eight"


@pytest.fixture
def watch(monkeypatch):
    """Which thread every backend was made, used and closed on, and how many turns ran at once."""
    seen = {"threads": set(), "made": 0, "closed": 0, "running": 0, "most": 0, "ended": 0}

    class Watched(backend_module.FakeBackend):
        def __init__(self, script):
            super().__init__(script)
            seen["made"] += 1

        def stream(self, request):
            seen["running"] += 1
            seen["most"] = max(seen["most"], seen["running"])
            seen["threads"].add(threading.current_thread().name)
            try:
                return (yield from super().stream(request))
            finally:
                seen["running"] -= 1
                seen["ended"] += 1

        def close(self):
            seen["closed"] += 1

    monkeypatch.setattr(backend_module, "FakeBackend", Watched)
    return seen


@pytest.fixture
def use(tmp_path, monkeypatch, watch):
    """`use(*turns, **settings)`: a fresh owner that answers from this script; returns the script."""

    def start(*turns, **settings):
        script = Script(tmp_path, *turns, **settings)
        monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
        monkeypatch.setenv("LLM_MLX_STREAMING_QUIET", "1")
        for name, value in script.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(owner_module, "OWNER", owner_module.Owner())
        return script

    yield start
    owner_module.OWNER.close()


@pytest.fixture
def sync_model():
    return StreamingModel("demo")


@pytest.fixture
def async_model():
    return AsyncStreamingModel("demo")


def settled(watch, turns):
    """Wait until the worker is through with `turns` turns."""
    deadline = time.monotonic() + 20
    while watch["ended"] < turns and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watch["ended"] == turns and watch["running"] == 0


def test_sync_calls_run_inline_on_one_engine(use, watch, sync_model):
    use({"text": WORDS})
    chat = sync_model.conversation()
    assert chat.prompt("a").text() == WORDS
    assert chat.prompt("b").text() == "You said: b"
    assert sync_model.prompt("c").text() == WORDS
    assert watch["threads"] == {"MainThread"} and watch["made"] == 1


def test_other_settings_are_another_engine_and_the_first_is_let_go(use, watch, sync_model):
    use({"text": "x"})
    for slots in (1, 1, 2):
        sync_model.prompt("a", slots=slots).text()
    assert (watch["made"], watch["closed"]) == (2, 1)


def test_two_sync_answers_read_in_turn_do_not_mix(use, watch, sync_model):
    use({"text": WORDS})
    first, second = iter(sync_model.prompt("a")), iter(sync_model.prompt("b"))
    got = [next(first)] + [next(second)] + list(first) + list(second)
    assert "".join(got[:1] + got[2:10]).startswith("one two") and watch["most"] == 1
    assert sorted(got) == sorted(2 * (WORDS.replace(" ", "| ").split("|") + [""]))


def test_an_abandoned_answer_stops_and_the_next_one_works(use, watch, sync_model):
    use({"text": WORDS})
    for _ in sync_model.prompt("a"):
        break
    assert (watch["running"], watch["ended"]) == (0, 1)
    assert sync_model.prompt("b").text() == WORDS


def test_many_async_callers_are_answered_one_at_a_time_in_order(use, watch, async_model):
    script = use({"text": "{user} yes"}, delay=0.001)

    async def ask(number):
        return await async_model.prompt(f"n{number}").text()

    async def everybody():
        return await asyncio.gather(*(ask(n) for n in range(20)))

    assert asyncio.run(everybody()) == [f"n{n} yes" for n in range(20)]
    assert watch["most"] == 1 and watch["made"] == 1 and watch["threads"] == {"mlx-streaming"}
    assert [r["messages"][0]["content"] for r in script.requests] == [f"n{n}" for n in range(20)]


def test_a_cancelled_task_stops_the_engine_at_the_next_word(use, watch, async_model):
    script = use({"text": WORDS * 50}, delay=0.01)

    async def main():
        reading = asyncio.Event()

        async def read():
            async for _ in async_model.prompt("a"):
                reading.set()

        task = asyncio.create_task(read())
        waiting = asyncio.create_task(async_model.prompt("never").text())
        await reading.wait()
        waiting.cancel()
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        return await async_model.prompt("b").text()

    started = time.monotonic()
    assert len(asyncio.run(main())) == len(WORDS * 50)
    assert time.monotonic() - started < 60
    settled(watch, 2)  # the one that waited in the queue never began
    assert [r["messages"][0]["content"] for r in script.requests] == ["a", "b"]


def test_a_closed_async_generator_stops_the_engine(use, watch, async_model):
    use({"text": WORDS * 1000}, delay=0.01)

    async def main():
        events = async_model.prompt("a").astream_events()
        async for _ in events:
            break
        await events.aclose()

    asyncio.run(main())
    settled(watch, 1)


def test_cancellation_during_a_long_prefill(use, watch, async_model):
    use({"text": "x"}, prefill=1000, delay=0.01)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(async_model.prompt("a").text(), 0.1)

    asyncio.run(main())
    settled(watch, 1)


def test_after_async_use_sync_calls_go_to_the_worker(use, watch, sync_model, async_model):
    use({"text": "x"})
    assert sync_model.prompt("a").text() == "x"

    async def ask():
        return await async_model.prompt("b").text()

    assert asyncio.run(ask()) == "x"
    assert watch["closed"] == 1  # the main thread's engine
    assert sync_model.prompt("c").text() == "x"
    assert watch["made"] == 2 and watch["threads"] == {"MainThread", "mlx-streaming"}


def test_threads_share_the_worker(use, watch, sync_model):
    use({"text": "{user}"})
    answers = {}

    def ask(number):
        answers[number] = sync_model.prompt(str(number)).text()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {n: str(n) for n in range(8)} and watch["threads"] == {"mlx-streaming"}
    assert watch["most"] == 1


def test_a_failure_reaches_its_own_caller_only(use, watch, async_model):
    use({"fail": "no room"}, {"text": "fine"})

    async def main():
        bad = async_model.prompt("a").text()
        good = async_model.prompt(messages=[llm.user("x"), llm.assistant("y"), llm.user("z")]).text()
        return await asyncio.gather(bad, good, return_exceptions=True)

    bad, good = asyncio.run(main())
    assert isinstance(bad, llm.ModelError) and str(bad) == "no room" and good == "fine"


def test_an_engine_that_broke_off_is_not_used_again(use, watch, sync_model):
    use({"crash": "out of memory"})
    with pytest.raises(RuntimeError, match="out of memory"):
        sync_model.prompt("a").text()
    again = sync_model.prompt(messages=[llm.assistant("x"), llm.user("y")])
    assert again.text() == "You said: y" and (watch["made"], watch["closed"]) == (2, 1)


def test_async_tools_and_schema_and_log_facts(use, async_model):
    script = use(
        {"reasoning": "hm", "calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"text": '{"n": 3}'}
    )

    def add(a: int, b: int) -> int:
        return a + b

    async def main():
        chain = async_model.chain("1+2?", tools=[add], schema={"type": "object"})
        text = await chain.text()
        return text, [await r.json() for r in chain._responses], await chain._responses[0].usage()

    text, facts, usage = asyncio.run(main())
    assert text == '{"n": 3}' and usage.details == {"reasoning_tokens": 1}
    assert [f["finish_reason"] for f in facts] == ["tool_calls", "stop"] and facts[1]["schema_valid"]
    assert [r["schema"] for r in script.requests] == [{"type": "object"}] * 2
    assert script.requests[1]["messages"][-1]["content"] == "3"
    assert script.requests[1]["messages"][1]["token_ids"]


EXIT = """
import asyncio, gc, os, sys, threading, warnings
warnings.simplefilter("ignore")
import llm, numpy, tokenizers, jinja2  # what every child would import for itself, none of it MLX
from llm_mlx_streaming import exchange, options
from llm_mlx_streaming.models import AsyncStreamingModel, StreamingModel
import mlx_streaming.backend

def sync_use():
    for _ in StreamingModel("demo").prompt("Hello", max_tokens=12):
        pass

async def async_use():
    await AsyncStreamingModel("demo").prompt("Hello", max_tokens=12).text()

async def leave_in_the_middle():
    events = AsyncStreamingModel("demo").prompt("Hello", max_tokens=4000).astream_events()
    async for _ in events:
        break

def one(kind):
    if kind in (0, 3): sync_use()
    if kind in (1, 3): asyncio.run(async_use())
    if kind == 2: asyncio.run(leave_in_the_middle())
    if kind == 4:
        model = StreamingModel("demo").prompt("Hello", max_tokens=4000)
        threading.Thread(target=lambda: list(model), daemon=True).start()
        import time; time.sleep(0.3)
    if kind == 5:  # the main thread's engine is let go of by another thread
        sync_use()
        thread = threading.Thread(target=sync_use)
        thread.start()
        thread.join()
        sync_use()

gc.freeze()
runs, failed = int(sys.argv[1]), []
for run in range(runs):
    child = os.fork()
    if child == 0:
        one(run % 6)
        break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status: failed.append((run % 6, status))
else:
    print("ran", runs, "failed", failed)
"""


@pytest.mark.parametrize(("kind", "runs"), [("fake", 30), ("mlx", 6)])
def test_the_interpreter_ends_cleanly_after_every_kind_of_use(tmp_path, llm_env, kind, runs):
    script = Script(tmp_path, {"text": WORDS * 200}, delay=0.002)
    environment = llm_env | (script.env if kind == "fake" else {}) | {"LLM_MLX_STREAMING_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(runs)], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.stdout.strip() == f"ran {runs} failed []", done.stdout + done.stderr
