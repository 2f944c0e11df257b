"""Real `llm` processes over a scripted backend: prompts, conversations, tools, schemas, errors, logs."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from conftest import LLM
from helpers_llm import Script

ADD = "def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n"


@pytest.fixture
def ask(run_llm, tmp_path):
    """`ask(script, *args)`: `llm -m qwen3-next-stream-demo` over the script."""

    def run(script, *args, **more):
        more["env"] = script.env | more.get("env", {})
        return run_llm("-m", "qwen3-next-stream-demo", *args, **more)

    return run


def test_a_prompt_and_what_is_logged(ask, logs, tmp_path):
    script = Script(tmp_path, {"reasoning": "let me see", "text": "Hello {user}."})
    done = ask(script, "there", "-o", "seed", "0", "-o", "temperature", "0.5", "-u")
    assert done.stdout == "Hello there.\n"
    assert "let me see" in done.stderr and '"reasoning_tokens": 3' in done.stderr
    (row,) = logs()
    assert row["response"] == "Hello there." and row["reasoning"] == "let me see"
    assert row["resolved_model"] == "demo@embedded" and row["options_json"] == {"seed": 0, "temperature": 0.5}
    facts = row["response_json"]
    assert facts["finish_reason"] == "stop" and facts["seed"] == 0
    assert {
        "prompt_tps",
        "generation_tps",
        "ttft_s",
        "load_s",
        "expert_hit_rate",
        "expert_bytes_read",
    } <= set(facts)
    assert {"peak_memory", "cached_tokens", "restore_s", "snapshot_bytes", "mtp", "schema_valid"} <= set(
        facts
    )
    (request,) = script.requests
    assert request["sampling"]["seed"] == 0 and request["sampling"]["temperature"] == 0.5
    assert request["cache"] == "on"


def test_reasoning_is_hidden_but_logged(ask, logs, tmp_path):
    done = ask(Script(tmp_path, {"reasoning": "secret", "text": "ok"}), "-R", "x", "--no-log", "--json")
    assert "secret" not in done.stderr and json.loads(done.stdout)[0]["reasoning"] == "secret"
    assert logs() == []


def test_three_turns_in_three_processes(ask, run_llm, logs, tmp_path):
    script = Script(tmp_path, {"text": "One."}, {"reasoning": "hm", "text": "Two."}, {"text": "{count}"})
    ask(script, "a", "-s", "Be kind.")
    run_llm("-c", "b", env=script.env)
    done = run_llm("-c", "c", "-s", "Be stern.", env=script.env)
    assert done.stdout == "6\n" and len({row["conversation_id"] for row in logs()}) == 1
    second, third = script.requests[1:]
    assert [m["content"] for m in second["messages"]] == ["Be kind.", "a", "One.", "b"]
    assert [m["content"] for m in third["messages"]] == ["Be stern.", "a", "One.", "b", "Two.", "c"]
    assert third["messages"][4]["reasoning_content"] == "hm"
    assert [len(m.get("token_ids", [])) for m in third["messages"]] == [0, 0, 1, 0, 2, 0]


def test_fragments_stdin_and_an_empty_prompt(ask, tmp_path):
    script = Script(tmp_path)
    (tmp_path / "note.txt").write_text("From a file.")
    assert ask(script, "why?", "-f", tmp_path / "note.txt").stdout == "You said: From a file.\nwhy?\n"
    assert ask(script, "why?", input="piped").stdout == "You said: piped why?\n"
    assert ask(script, "").stdout == "You said: \n"
    assert script.requests[2]["messages"] == [{"role": "user", "content": ""}]


def test_a_chain_with_parallel_calls_then_continued(ask, run_llm, logs, tmp_path):
    calls = [{"name": "add", "arguments": {"a": n, "b": 1}} for n in (1, 2)]
    script = Script(tmp_path, {"text": "Adding.", "calls": calls}, {"text": "2 and 3."}, {"text": "Done."})
    done = ask(script, "go", "--functions", ADD, "--schema", "n int")
    assert done.stdout == "Adding. 2 and 3.\n"
    first, second = logs()
    assert [c["arguments"] for c in first["tool_calls"]] == [{"a": 1, "b": 1}, {"a": 2, "b": 1}]
    assert [r["output"] for r in second["tool_results"]] == ["2", "3"]
    ids = [c["tool_call_id"] for c in first["tool_calls"]]
    assert len(set(ids)) == 2 and [r["tool_call_id"] for r in second["tool_results"]] == ids
    assert first["response_json"]["finish_reason"] == "tool_calls"
    assert run_llm("-c", "more", env=script.env).stdout == "Done.\n"
    last = script.requests[2]
    assert [m["role"] for m in last["messages"]] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert last["tools"] == [] and last["schema"] is None
    assert last["messages"][1]["tool_calls"][1]["function"] == {"name": "add", "arguments": {"a": 2, "b": 1}}
    assert len(last["messages"][1]["token_ids"]) == 3
    assert [r["schema"]["required"] for r in script.requests[:2]] == [["n"], ["n"]]  # kept through the chain
    assert [t["function"]["name"] for t in script.requests[1]["tools"]] == ["add"]


def test_bad_calls_come_back_to_the_model_as_failures(ask, logs, tmp_path):
    bad = [
        {"name": "add", "arguments": {"a": "x"}, "error": "invalid arguments: a is no integer"},
        {"name": "nothing", "error": "there is no tool named 'nothing' here"},
        {"name": "", "error": "not a tool call: junk"},
        {"name": "add", "arguments": {"a": 1, "b": 1}},
    ]
    script = Script(tmp_path, {"calls": bad}, {"text": "I see."})
    assert ask(script, "go", "--functions", ADD).stdout == "I see.\n"
    results = [m["content"] for m in script.requests[1]["messages"][2:]]
    assert results == [f"Error: {b['error']}" for b in bad[:3]] + ["2"]
    assert [t["function"]["name"] for t in script.requests[1]["tools"]] == ["add"]
    assert len(logs()) == 2


def test_a_tools_exception_reaches_the_model(ask, tmp_path):
    script = Script(tmp_path, {"calls": [{"name": "fail"}]}, {"text": "Sorry."})
    ask(script, "go", "--functions", "def fail():\n    raise ValueError('broken')")
    assert script.requests[1]["messages"][-1]["content"] == "Error: broken"


def test_an_answer_cut_by_length_says_so(ask, logs, tmp_path):
    done = ask(
        Script(tmp_path, {"text": '{"a": 1, "b": 2}'}), "x", "-o", "max_tokens", "2", "--schema", "a,b"
    )
    assert "cut off after 2 tokens" in done.stderr and logs()[0]["response_json"]["finish_reason"] == "length"
    cut_call = {"calls": [{"name": "add", "error": "cut off inside this tool call"}], "finish": "length"}
    done = ask(Script(tmp_path, cut_call), "x", "--functions", ADD)
    assert "was not run" in done.stderr and len(logs()) == 2
    quiet = ask(Script(tmp_path, {"text": "a b c"}), "x", "-o", "max_tokens", "2", "-o", "quiet", "1")
    assert quiet.stderr == ""


def test_an_answer_that_misses_the_schema_says_so(ask, logs, tmp_path):
    done = ask(Script(tmp_path, {"text": "not JSON"}), "x", "--schema", "a str")
    assert "does not fit the schema" in done.stderr and logs()[0]["response_json"]["schema_valid"] is False


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("tempreture", "1"), "tempreture"),
        (("temperature", "-1"), "greater than or equal to 0"),
        (("stop", "[1]"), "not empty"),
        (("memory", "lots"), "24GB"),
        (("memory", "20"), "20GB"),
        (("memory", 20), "20GB"),
        (("mtp", "9"), "'auto'"),
        (("slots", "0"), "greater than or equal to 1"),
    ],
)
def test_options_are_checked(tmp_path, llm_env, option, message):
    import pydantic
    from llm.cli import render_errors

    from llm_mlx_streaming.options import Options

    with pytest.raises(pydantic.ValidationError) as caught:
        Options(**dict([option]))
    assert message in render_errors(caught.value.errors())


def test_options_from_strings_and_stored_defaults(ask, run_llm, tmp_path):
    from llm_mlx_streaming.options import Options

    given = {
        "stop": '["a", "b"]',
        "thinking": "1",
        "grammar": "False",
        "mtp": "0",
        "memory": "24GB",
        "top_k": "5",
    }
    options = Options(**given)
    assert (options.stop, options.thinking, options.grammar, options.mtp) == (["a", "b"], "on", "off", "off")
    assert Options(stop="END").stop == ["END"] and Options(mtp=2, thinking=False).mtp == "2"
    script = Script(tmp_path)
    run_llm("models", "options", "set", "qwen3-next-stream-demo", "stop", '["END"]')
    ask(script, "x", "-o", "thinking", "off", "-o", "cache", "memory")
    (request,) = script.requests
    assert (request["stop"], request["thinking"], request["cache"]) == (["END"], False, "memory")
    failed = ask(script, "x", "-o", "tempreture", "1", check=False)
    assert failed.returncode == 1 and "tempreture" in failed.stderr and "Traceback" not in failed.stderr
    shown = run_llm("models", "list", "--options", "-m", "qwen3-next-stream").stdout
    described = [name for name, field in Options.model_fields.items() if field.description]
    assert len(described) == len(Options.model_fields) > 15 and all(f"{name}:" in shown for name in described)


def test_an_engine_error_is_one_line(ask, logs, tmp_path):
    done = ask(Script(tmp_path, {"fail": "No room for that."}), "x", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Error: No room for that.\n")
    assert logs() == []


def test_the_default_answers_from_the_demo_and_says_so_once(run_llm, logs, tmp_path, demo_path):
    script = Script(tmp_path)
    done = run_llm("-m", "qwen3-next-stream", "x", env=script.env)
    assert done.stdout == "You said: x\n" and done.stderr.count("\n") == 1
    assert "llm mlx-streaming download" in done.stderr and logs()[0]["resolved_model"] == "demo@embedded"
    demo = run_llm("-m", "qwen3-next-stream-demo", "x", env=script.env)
    assert demo.stderr == ""
    (tmp_path / "mine").symlink_to(demo_path)
    run_llm("mlx-streaming", "add", tmp_path / "mine", "--name", "mine", "--alias", "m")
    for name in ("qwen3-next-stream", "mine", "m"):
        assert run_llm("-m", name, "x", env=script.env).stderr == ""
    assert [r["resolved_model"] for r in logs()[2:]] == ["mine"] * 3


def test_a_damaged_registry_leaves_every_other_command_alone(run_llm, llm_env, tmp_path):
    from pathlib import Path

    script = Script(tmp_path)
    home = Path(llm_env["LLM_USER_PATH"]) / "mlx-streaming"
    home.mkdir()
    (home / "registry.json").write_text("{ not json")
    for args in (["--version"], ["logs", "path"], ["plugins"], ["mlx-streaming", "models"]):
        done = run_llm(*args)
        assert "Traceback" not in done.stderr
    listed = run_llm("models")
    assert "qwen3-next-stream" in listed.stdout and listed.stderr.count("\n") == 1
    assert "registry.json cannot be read" in listed.stderr
    failed = run_llm("-m", "qwen3-next-stream", "x", check=False, env=script.env)
    assert failed.returncode == 1 and failed.stderr.count("registry.json cannot be read") == 1
    assert failed.stderr.endswith(
        "\nError: Without the registry only the demo can answer: llm -m qwen3-next-stream-demo\n"
    )
    planned = run_llm("mlx-streaming", "plan", check=False)
    assert planned.returncode == 1 and planned.stderr.count("registry.json cannot be read") == 1
    assert run_llm("-m", "qwen3-next-stream-demo", "x", env=script.env).stdout == "You said: x\n"


def test_without_mlx_models_are_listed_and_explain_themselves(run_llm, tmp_path):
    blocked = tmp_path / "blocked"
    for name in ("mlx", "mlx_lm"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('no MLX here')")
    env = {"PYTHONPATH": str(blocked)}
    assert "qwen3-next-stream-demo" in run_llm("models", env=env).stdout
    failed = run_llm("-m", "qwen3-next-stream-demo", "x", env=env, check=False)
    assert failed.returncode == 1 and "no MLX here" in failed.stderr and "llm install" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_log_settings_decide_what_is_kept_on_disk(ask, run_llm, llm_env, tmp_path):
    from pathlib import Path

    script = Script(tmp_path)
    ask(script, "x", "--no-log")
    assert script.requests[0]["cache"] == "memory"
    from llm_mlx_streaming import exchange, registry
    from llm_mlx_streaming.options import Options

    home = Path(llm_env["LLM_USER_PATH"])
    before = dict(os.environ)
    os.environ["LLM_USER_PATH"] = str(home)
    try:
        kept = exchange.engine_config(registry.demo(), Options(slots=3))
        run_llm("logs", "off")
        off = exchange.engine_config(registry.demo(), Options())
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert (
        kept.cache_dir == str(home / "mlx-streaming" / "cache") and kept.slots == 3 and off.cache_dir is None
    )
    assert kept.usage_dir == off.usage_dir == str(home / "mlx-streaming" / "usage")


def test_a_pipe_closed_early_ends_quietly_and_the_partial_answer_is_logged(llm_env, logs, tmp_path):
    script = Script(tmp_path, {"text": "word " * 400}, delay=0.01)
    process = subprocess.Popen(
        [*LLM, "-m", "qwen3-next-stream-demo", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=llm_env | script.env,
    )
    assert process.stdout.read(10) == b"word word "[:10]
    process.stdout.close()
    assert process.wait(60) == 0 and process.stderr.read() == b""
    (row,) = logs()
    assert row["response_json"]["finish_reason"] == "interrupted" and row["response"].startswith("word word")


def test_no_progress_in_a_pipe(ask, tmp_path):
    done = ask(Script(tmp_path, prefill=5, load=5), "x")
    assert (done.stdout, done.stderr) == ("You said: x\n", "")


def test_plain_async_prompt(ask, logs, tmp_path):
    calls = [{"name": "add", "arguments": {"a": 1, "b": 2}}]
    script = Script(tmp_path, {"reasoning": "hm", "calls": calls}, {"text": "three"})
    assert ask(script, "x", "--async", "--functions", ADD).stdout == "three\n"
    assert [r["reasoning"] for r in logs()] == ["hm", None]
    assert script.requests[1]["messages"][1]["token_ids"]
