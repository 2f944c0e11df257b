"""bench, usage and tune through the real command line."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from mlx_streaming.bench_full import STEPS
from mlx_streaming.experts.policy import POLICIES

BENCH_KEYS = (
    "prefill_tps decode_tps ttft_s baseline_prefill_tps baseline_decode_tps decode_ratio prefill_ratio"
    " tokens_compared tokens_identical logits_identical expert_hit_rate expert_reads expert_bytes_read"
    " bytes_per_token read_gbps host_sync_ms_per_token read_wait_ms_per_token peak_memory_bytes"
    " planned_memory_bytes slots checkpoint backend versions"
).split()
SHORT = ("--prompt-tokens", 8, "--tokens", 4, "--repeats", 1)


def test_bench_json_has_every_key_and_records_a_trace(run_llm, tmp_path):
    trace = tmp_path / "trace.npz"
    done = run_llm(
        "mlx-streaming",
        "bench",
        "-m",
        "demo",
        "--slots",
        16,
        *SHORT,
        "--baseline",
        "--record",
        trace,
        "--json",
    )
    found = json.loads(done.stdout)
    assert [key for key in BENCH_KEYS if key not in found] == []
    assert found["tokens_identical"] == found["tokens_compared"] == 4 and found["logits_identical"]
    assert found["slots"] == [16] and found["expert_reads"] > 0
    with np.load(trace) as data:
        assert len(data.files) == 8 and data["layer0"].shape[1] == 4
    rows = json.loads(run_llm("mlx-streaming", "bench", "--simulate", trace, "--json").stdout)
    assert [row["slots"] for row in rows] == sorted(row["slots"] for row in rows)
    assert all(row["belady"] >= row[name] for row in rows for name in POLICIES)


def test_bench_reads_and_prefill_tables(run_llm):
    found = json.loads(run_llm("mlx-streaming", "bench", "-m", "demo", "--reads", "--json").stdout)
    assert found["expert_bytes"] == 30720 and found["fill_gbps"] > 0 and found["plain_gbps"] > 0
    done = run_llm("mlx-streaming", "bench", "-m", "demo", "--slots", 16, "--prefill", "32,96", "--json")
    short, long = json.loads(done.stdout)
    assert short["prompt_tokens"] == 32 and long["prompt_tokens"] == 96
    assert 0 < short["times_all"] <= long["times_all"] <= 1, "each expert is read once at most per chunk"


def test_full_size_rows_in_place_and_packed(run_llm, demo_path, tmp_path):
    run_llm("mlx-streaming", "pack", demo_path, tmp_path / "packed")
    out = tmp_path / "rows.json"
    short = ("--prompt-tokens", "9", "--tokens", "4", "--warm-up", "4", "--routing", "zipf:0.8,0.4")
    command = [
        "-m",
        "mlx_streaming.bench_full",
        demo_path,
        "--packed",
        tmp_path / "packed",
        "--slots",
        "64,8",
    ]
    command += [*short, "--steps", ",".join(STEPS), "--out", out]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == len(done.stdout.splitlines()) == 2 * (1 + len(STEPS)) + 2
    assert rows[0]["logit_difference"] == 0 and "logits within 0 of stock" in done.stdout
    for row in rows:
        assert row["ratio"] > 0 and (row["hit_rate"] == 1) == (row["slots"] == 64)
        assert bool(row["bytes_per_token"]) == (row["slots"] == 8)
    assert {row.get("without") for row in rows if row["source"] == "in place"} == {None, *STEPS}
    command[2] = tmp_path / "nowhere"
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("Error: No checkpoint directory")


def test_restoring_a_snapshot_is_measured(run_llm):
    found = json.loads(run_llm("mlx-streaming", "bench", "--restore", 64, "--json").stdout)
    assert found["tokens"] == 64 and found["stored_bytes"] >= found["arithmetic_bytes"] > 0
    assert "restore s" in run_llm("mlx-streaming", "bench", "--restore", 64).stdout


def test_usage_is_kept_shown_and_forgotten(run_llm, tmp_path):
    refused = run_llm("mlx-streaming", "usage", "-m", "demo", check=False)
    assert refused.returncode == 1 and "No usage of demo yet" in refused.stderr
    run_llm("-m", "qwen3-next-stream-demo", "What is a lamp?", "-o", "slots", 16, "-o", "max_tokens", 12)
    counts = json.loads(run_llm("mlx-streaming", "usage", "-m", "demo", "--json").stdout)
    assert sorted(map(int, counts)) == list(range(8)) and all(sum(c) > 0 for c in counts.values())
    assert "of  64" in run_llm("mlx-streaming", "usage", "-m", "demo").stdout
    if find_spec("matplotlib"):
        run_llm("mlx-streaming", "usage", "-m", "demo", "--plot", tmp_path / "map.png")
        assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    run_llm("mlx-streaming", "usage", "-m", "demo", "--clear")
    assert run_llm("mlx-streaming", "usage", "-m", "demo", check=False).returncode == 1


@pytest.mark.parametrize("command", [("usage",), ("bench", "--sweep")], ids=" ".join)
def test_a_plot_that_cannot_be_drawn_is_refused_first(command, run_llm, tmp_path):
    """Before usage is looked for and before anything is measured; the directory, then matplotlib."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")

    def refused(file, **env):
        done = run_llm("mlx-streaming", *command, "-m", "demo", "--plot", file, env=env, check=False)
        assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
        return done.stderr

    without = {"PYTHONPATH": str(tmp_path)}
    assert "nowhere for --plot does not exist; make it" in refused(tmp_path / "nowhere" / "a.png", **without)
    assert "install it with: llm install 'llm-mlx-streaming[plot]'" in refused(tmp_path / "a.png", **without)
    if find_spec("matplotlib"):
        assert "cannot write .xyz files; name it a.png." in refused(tmp_path / "a.xyz")


def test_tune_measures_and_writes_only_to_what_is_registered(run_llm, demo_path, llm_env):
    everything = run_llm("mlx-streaming", "tune", "-m", "demo", check=False)
    assert everything.returncode == 1 and "fits in memory" in everything.stderr
    run_llm("mlx-streaming", "add", demo_path, "--alias", "mine")
    done = run_llm("mlx-streaming", "tune", "-m", "mine", "--slots", 24, "--seconds", 1, "--json")
    found = json.loads(done.stdout)
    assert found["trials"][0]["setting"] == "as it is" and found["trials"][0]["decode_tps"] > 0
    assert found["written"] == bool(found["chosen"])


def test_bad_measurements_are_refused_in_one_line(run_llm, tmp_path):
    for arguments, message in (
        (("--routing", "zipf"), "is not a routing"),
        (("--routing", f"trace:{tmp_path}/no.npz"), "is not a routing trace"),
        (("--slots", "8", "--policy", "best"), "Unknown eviction policy"),
        (("--prefill", "many"), "prompt lengths"),
        (("--lookahead", "1", "--slots", "5"), "lower lookahead_budget"),
    ):
        done = run_llm("mlx-streaming", "bench", "-m", "demo", *SHORT, *arguments, check=False)
        assert done.returncode != 0 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
