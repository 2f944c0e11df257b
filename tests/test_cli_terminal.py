"""`llm` on a terminal: chat, Ctrl-C, progress, errors in chat; over the scripted backend and the demo."""

from __future__ import annotations

import json
import re
import time

import pytest
from helpers_llm import Script, Terminal

MODEL = "qwen3-next-stream-demo"
LONG = {"text": "word " * 2000}


@pytest.fixture
def terminal(llm_env):
    """`terminal(*args, env={})`: `llm` with these arguments on a terminal of its own."""
    opened = []

    def start(*args, env=None):
        opened.append(Terminal(args, llm_env | (env or {})))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()


def test_progress_is_shown_and_wiped_before_the_first_word(terminal, tmp_path):
    script = Script(tmp_path, load=2, prefill=4, delay=0.15)
    status, seen = terminal("-m", MODEL, "hi", env=script.env).finish()
    assert status == 0 and "Loading demo" in seen
    assert re.search(r"Reading the prompt: 2 of 4 tokens, 50 %, \d+ tok/s", seen)
    shown = seen.replace("\r\n", "\n").split("\r\x1b[2K")
    assert shown[-1] == "You said: hi\n"
    for quiet in (["-o", "quiet", "1"], []):
        env = script.env | ({} if quiet else {"LLM_MLX_STREAMING_QUIET": "1"})
        _, seen = terminal("-m", MODEL, "hi", *quiet, env=env).finish()
        assert seen == "You said: hi\r\n"


@pytest.mark.parametrize("how", [[], ["--async"]])
def test_ctrl_c_ends_a_prompt_with_the_partial_answer_logged(terminal, logs, tmp_path, how):
    llm = terminal("-m", MODEL, "hi", *how, env=Script(tmp_path, LONG, delay=0.01).env)
    llm.expect("word word")
    llm.interrupt()
    status, rest = llm.finish()
    assert status == 0 and "Traceback" not in rest and "Aborted" not in rest
    (row,) = logs()
    assert row["response_json"]["finish_reason"] == "interrupted"
    assert row["response"].startswith("word word") and len(row["response"]) < len(LONG["text"])


def test_ctrl_c_while_the_prompt_is_read(terminal, logs, tmp_path):
    llm = terminal("-m", MODEL, "hi", env=Script(tmp_path, prefill=1000, delay=0.05).env)
    llm.expect("Reading the prompt")
    llm.interrupt()
    assert llm.finish()[0] == 0
    assert [(r["response"], r["response_json"]["finish_reason"]) for r in logs()] == [("", "interrupted")]


def test_a_second_ctrl_c_leaves_at_once(terminal, logs, tmp_path):
    llm = terminal("-m", MODEL, "hi", env=Script(tmp_path, prefill=9, delay=10).env)
    llm.expect("Reading the prompt")
    llm.interrupt()
    time.sleep(1)  # two signals at the same moment are one
    llm.interrupt()
    status, rest = llm.finish()
    assert status == 1 and "Aborted!" in rest and "Traceback" not in rest and logs() == []


def test_chat_goes_on_after_ctrl_c_and_after_errors(terminal, logs, tmp_path):
    script = Script(tmp_path, {"text": "first"}, LONG, {"fail": "It does not fit."}, delay=0.005)
    llm = terminal("chat", "-m", MODEL, "-s", "Be kind.", env=script.env)
    llm.expect("> ")
    llm.send("one\n")
    llm.expect("first.*> ")
    llm.send("two\n")
    llm.expect("word word")
    llm.interrupt()
    llm.expect("> ")
    llm.send("three\n")
    llm.expect("Error: It does not fit.*> ")
    llm.send("four\n")
    llm.expect("Error: It does not fit.*> ")
    llm.send("quit\n")
    status, rest = llm.finish()
    assert status == 0 and "Traceback" not in rest
    assert [r["response_json"]["finish_reason"] for r in logs()] == ["stop", "interrupted", "error", "error"]
    assert logs()[2]["response_json"]["error"] == "It does not fit."
    roles = [m["role"] for m in script.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]  # without "three"


def test_a_failed_turn_is_forgotten_by_the_conversation(terminal, run_llm, logs, tmp_path):
    llm = terminal("chat", "-m", MODEL, env=Script(tmp_path, {"crash": "Too long."}).env)
    llm.expect("> ")
    llm.send("much too long\n")
    llm.expect("Error: RuntimeError: Too long.*> ")
    llm.send("quit\n")
    assert llm.finish()[0] == 0
    script = Script(tmp_path)
    assert run_llm("-c", "short", env=script.env).stdout == "You said: short\n"
    assert script.requests[-1]["messages"] == [{"role": "user", "content": "short"}]


def test_ctrl_c_in_a_chain_runs_no_more_tools(terminal, logs, run_llm, tmp_path):
    calls = [{"name": "mark", "arguments": {"n": n}} for n in range(50)]
    script = Script(
        tmp_path, {"calls": calls[:1]}, {"text": "Now.", "calls": calls}, {"text": "End."}, delay=0.05
    )
    (tmp_path / "marks").write_text("")
    code = f"def mark(n: int):\n    open({str(tmp_path / 'marks')!r}, 'a').write('x')\n    return n"
    llm = terminal("-m", MODEL, "go", "--functions", code, env=script.env)
    llm.expect("Now")
    llm.interrupt()
    status, rest = llm.finish()
    assert status == 0 and "Traceback" not in rest
    assert (tmp_path / "marks").read_text() == "x"
    assert [r["response_json"]["finish_reason"] for r in logs()] == ["tool_calls", "interrupted"]
    assert run_llm("-c", "and?", env=script.env).stdout == "End.\n"
    told = [m for m in script.requests[-1]["messages"] if m["role"] == "tool"]
    assert told[0]["content"] == "0" and {m["content"] for m in told[1:]} <= {"Error: this call was not run."}


def test_chat_with_the_demo_keeps_its_state_and_survives_ctrl_c(terminal, logs):
    llm = terminal("chat", "-m", MODEL, "-o", "temperature", "0")
    llm.expect("> ")
    llm.send("My name is Anna.\n")
    llm.expect("Loading demo.*\n.*> ")
    llm.send("What is my name?\n")
    llm.expect("\n.*\n> ")
    llm.send("quit\n")
    assert llm.finish()[0] == 0
    first, second = logs()
    assert first["response_json"]["load_s"] > 0 == second["response_json"]["load_s"]
    assert second["response_json"]["cached_tokens"] >= first["input_tokens"]
    assert second["response_json"]["finish_reason"] == "stop"


def test_the_demo_is_interrupted_at_the_next_token_and_continued_elsewhere(terminal, run_llm, logs):
    llm = terminal(
        "-m", MODEL, "Count.", "-o", "max_tokens", "3000", "-o", "temperature", "2", "-o", "seed", "1"
    )
    llm.expect(r"Reading the prompt[^\r]*\r\x1b\[2K[^R\r]")
    llm.interrupt()
    status, rest = llm.finish()
    assert status == 0 and "Traceback" not in rest
    (row,) = logs()
    assert row["response_json"]["finish_reason"] in ("interrupted", "stop")
    done = json.loads(run_llm("-c", "Hello", "--json").stdout)[-1]
    assert done["response_json"]["cached_tokens"] >= row["input_tokens"]
