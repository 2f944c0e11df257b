"""bench --conversation: a conversation whose every turn is a new `llm` process, with and without reuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

SYSTEM = " ".join(
    f"Rule {n}: when a visitor asks about room {n} of the museum, say kindly that it shows the"
    f" paintings of year {1900 + n} and that it is open on weekdays."
    for n in range(1, 17)
)
QUESTIONS = (
    "Hello, my name is Maria.",
    "Tell me a story about a fox.",
    "What is a harbor?",
    "What is 17 plus 25?",
    "Name three fruits.",
    "Tell me a story about a small boat.",
    "What is a lantern?",
    "Sort these words: pear, apple, plum.",
    "Write a short poem about rain.",
    "What is my name?",
)


def bench_conversation(path: Path, on_step: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Ten turns with reuse, the same turns without, then the first turn of a second conversation.

    Times are the processes' own: `ttft_s` from the request to the first token, loading not included.

    Raises:
        click.ClickException: a turn failed.
    """
    total = 2 * len(QUESTIONS) + 1
    with tempfile.TemporaryDirectory(prefix="llm-bench-") as home:
        kept = _Home(Path(home) / "on", path, "on")
        plain = _Home(Path(home) / "off", path, "off")
        rows = []
        for number, question in enumerate(QUESTIONS):
            on_step(f"turn {number + 1}", 2 * number, total)
            reused = kept.ask(question, number == 0)
            on_step(f"turn {number + 1}, no reuse", 2 * number + 1, total)
            fresh = plain.ask(question, number == 0)
            rows.append(_row(number + 1, reused, fresh, rows))
        on_step("second conversation", total - 1, total)
        second = kept.ask("Hello there, who are you?", True)
    last = rows[-1]
    return {
        "turns": rows,
        "least_history_share_cached": min(r["history_share_cached"] for r in rows[1:]),
        "last_ttft_ratio": last["ttft_off_s"] / last["ttft_s"],
        "same_answers": all(r["same_answer"] for r in rows),
        "second_conversation_prompt_tokens": second["prompt_tokens"],
        "second_conversation_prefilled": second["prompt_tokens"] - second["cached_tokens"],
    }


def table(found: dict[str, Any]):
    """The result as lines of text."""
    yield "turn  prompt  cached  first token  without reuse  ratio  load  same answer"
    for row in found["turns"]:
        yield (
            f"{row['turn']:4}  {row['prompt_tokens']:6}  {row['cached_tokens']:6}  {row['ttft_s']:9.3f} s"
            f"  {row['ttft_off_s']:11.3f} s  {row['ttft_off_s'] / row['ttft_s']:5.1f}  {row['load_s']:4.2f}"
            f"  {'yes' if row['same_answer'] else 'NO'}"
        )
    yield f"history from cache, least of all turns: {100 * found['least_history_share_cached']:.1f} %"
    yield (
        f"second conversation, same system prompt: {found['second_conversation_prefilled']} of"
        f" {found['second_conversation_prompt_tokens']} prompt tokens run"
    )


class _Home:
    """An llm home of its own, whose turns are `llm` processes."""

    def __init__(self, directory: Path, checkpoint: Path, cache: str):
        directory.mkdir()
        self._env = os.environ | {
            "LLM_USER_PATH": str(directory),
            "LLM_MLX_STREAMING_QUIET": "1",
            "LLM_MLX_STREAMING_CACHE_DIR": "",  # below the home, wherever the user keeps snapshots
            "LLM_MLX_STREAMING_USAGE_DIR": "",
        }
        self._cache = cache
        self._llm("mlx-streaming", "add", str(checkpoint), "--alias", "measured")

    def ask(self, question: str, first: bool) -> dict[str, Any]:
        start = ["-m", "measured", "-s", SYSTEM] if first else ["-c"]
        options = ["-o", "temperature", "0", "-o", "max_tokens", "48", "-o", "cache", self._cache]
        self._llm("prompt", *start, question, *options)
        turn = json.loads(self._llm("logs", "list", "-n", "1", "--json"))[0]
        return turn["response_json"] | {"response": turn["response"]}

    def _llm(self, *args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "llm", *args],
            env=self._env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise click.ClickException(f"A turn of the conversation failed: {done.stderr.strip()}")
        return done.stdout


def _row(number: int, reused: dict, fresh: dict, before: list[dict[str, Any]]) -> dict[str, Any]:
    history = before[-1]["prompt_tokens"] + before[-1]["completion_tokens"] if before else 0
    return {
        "turn": number,
        "prompt_tokens": reused["prompt_tokens"],
        "cached_tokens": reused["cached_tokens"],
        "completion_tokens": reused["completion_tokens"],
        "history_share_cached": reused["cached_tokens"] / history if history else 0.0,
        "ttft_s": reused["ttft_s"],
        "ttft_off_s": fresh["ttft_s"],
        "load_s": reused["load_s"],
        "restore_s": reused["restore_s"],
        "same_answer": reused["response"] == fresh["response"],
    }
