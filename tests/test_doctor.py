"""The doctor: measured rates, a forecast that is plain arithmetic, problems with what fixes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import Hub, Repo

from mlx_streaming.checkpoint.index import TensorIndex
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.config import EngineConfig
from mlx_streaming.doctor import Subject, examine, outline_subject, with_name
from mlx_streaming.forecast import expected_hits, forecast
from mlx_streaming.measurements import KEPT, last_measurement, measurement, record_measurement
from mlx_streaming.probes import ComputeRates, DiskRates, probe_compute, probe_disk, probe_empty_disk
from mlx_streaming.request import GenResult

DISK = DiskRates(disk=2e9, cached=10e9, read=1, source="checkpoint")
COMPUTE = ComputeRates(weights=1e11, flops=1e12, launch_s=1e-4, host_s=2e-4, miss_s=1e-5, turn_s=5e-4)
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture(autouse=True)
def fast_probes(monkeypatch, request):
    """The rates above instead of measuring, except in tests of the probes themselves."""
    if "probe" not in request.node.name:
        monkeypatch.setattr("mlx_streaming.doctor.probe_compute", lambda dtype: COMPUTE)
        monkeypatch.setattr("mlx_streaming.doctor.probe_disk", lambda files, block: DISK)
        monkeypatch.setattr("mlx_streaming.doctor.probe_empty_disk", lambda where, block: DISK)


@pytest.fixture
def opened(demo_path):
    index = TensorIndex.open(demo_path)
    return ModelSpec.read(demo_path, index), index


@pytest.fixture
def broken(demo_path, tmp_path):
    """`broken(*names, **config)`: a copy of the demo without these files and with these config entries."""

    def make(*names: str, **config) -> Path:
        copy = tmp_path / "broken"
        shutil.copytree(demo_path, copy)
        for name in names:
            (copy / name).unlink()
        file = copy / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        return copy

    return make


def local(path: Path) -> Subject:
    return Subject("it", path, True, path, get="llm mlx-streaming download org/it")


def every(spec: ModelSpec, slots: int) -> dict[int, int]:
    return dict.fromkeys(spec.experts, slots)


def test_forecast_is_the_sum_of_its_parts(opened):
    spec, index = opened
    made = forecast(spec, index, every(spec, 16), DISK, COMPUTE, spare_memory=0, hit_rate=0.75)
    expert = spec.experts[0].expert_bytes
    embedding = sum(t.nbytes for n, t in index.tensors.items() if "embed_tokens" in n)
    assert embedding > 100_000
    assert made.misses == 8 * 4 * 0.25
    assert made.bytes_per_token == 8 * expert
    assert made.parts == pytest.approx(
        {
            "trunk": (spec.trunk_bytes - embedding) / 1e11,
            "experts": 8 * 4 * expert / 1e11,
            "host": 8 * 2e-4,
            "launch": 8 * 1e-4,
            "turn": 5e-4,
            "reads": 8 * (expert / 2e9 + 1e-5),
        }
    )
    assert made.tps == pytest.approx(1 / sum(made.parts.values()))
    assert made.first_token_s == made.load_s + made.prompt_s
    assert "looking at the router's choice" in made.reasons[0]


def test_forecast_follows_slots_disk_and_page_cache(opened):
    spec, index = opened

    def tps(slots: int, disk: DiskRates = DISK, spare: int = 0) -> float:
        return forecast(spec, index, every(spec, slots), disk, COMPUTE, spare_memory=spare).tps

    rising = [tps(n) for n in (4, 8, 16, 32, 48, 63, 64)]
    assert rising == sorted(rising) and len(set(rising)) == 7
    assert tps(8, replace(DISK, disk=1e8)) < tps(8)
    assert tps(8, spare=10**12) > tps(8), "what the page cache holds is read faster"
    whole = forecast(spec, index, every(spec, 64), DISK, COMPUTE, spare_memory=0)
    assert (whole.misses, whole.parts["reads"], whole.parts["host"], whole.hit_rate) == (0, 0, 0, 1.0)


def test_a_longer_prompt_takes_longer(opened):
    spec, index = opened
    seconds = [
        forecast(spec, index, every(spec, 8), DISK, COMPUTE, spare_memory=0, prompt_tokens=n).prompt_s
        for n in (1, 10, 1000, 100_000)
    ]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]


@pytest.mark.parametrize(
    ("slots", "published"), [(96, 0.80), (128, 0.88), (160, 0.93), (192, 0.97), (256, 0.99)]
)
def test_expected_hits_pass_near_the_published_figures(slots, published):
    assert expected_hits(slots / 512) == pytest.approx(published, abs=0.03)


def test_expected_hits_are_a_share():
    values = [expected_hits(n / 100) for n in range(101)]
    assert values[0] == 0 and values[-1] == 1 and values == sorted(values)


def test_probe_disk_reads_each_place_once(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(3 << 20))
    rates = probe_disk([file], 100_000, seconds=5)
    assert rates.read == (3 << 20) // 100_000 * 100_000
    assert rates.disk > 0 and rates.cached > 0


def test_probe_of_an_empty_disk_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_streaming.probes._TEMPORARY", 8 << 20)
    rates = probe_empty_disk(tmp_path / "not" / "yet", 1 << 20, seconds=0.2)
    assert rates.disk > 0 and rates.source == "temporary file"
    assert list(tmp_path.iterdir()) == []


def test_probe_compute_measures_the_backend():
    rates = probe_compute("float32")
    assert rates.weights > 0 and rates.flops > 0
    assert all(0 <= seconds < 1 for seconds in (rates.launch_s, rates.host_s, rates.miss_s, rates.turn_s))
    assert rates.launch_s + rates.host_s + rates.turn_s > 0


def test_the_demo_is_healthy(demo_path):
    report = examine(local(demo_path), EngineConfig())
    found = json.loads(json.dumps(report.to_json()))
    assert report.problems == []
    assert found["machine"]["memory"] > 10**9 and found["machine"]["versions"]["mlx"]
    assert (found["model"]["layers"], found["model"]["experts"], found["model"]["mtp"]) == (8, 64, True)
    assert found["plan"]["resident_layers"] == list(range(8))
    assert found["forecast"]["tps"] > 0 and found["measured"] is None


def test_a_plan_with_slots_is_forecast_with_them(demo_path):
    report = examine(local(demo_path), EngineConfig(slots=8))
    assert set(report.plan.slots.values()) == {8}
    assert report.forecast.hit_source == "estimated" and 0 < report.forecast.hit_rate < 1


def test_the_last_run_is_held_against_the_forecast(demo_path, opened, tmp_path):
    file = tmp_path / "measured.json"
    result = GenResult(
        prompt_tokens=50,
        cached_tokens=10,
        completion_tokens=100,
        generation_tps=40.0,
        ttft_s=0.5,
        load_s=0.25,
    )
    result.experts = {"hit_rate": 0.9, "bytes_read": 5_000_000}
    record_measurement(file, opened[1].digest(), measurement(result, 64, "cpu"))
    report = examine(local(demo_path), EngineConfig(slots=8), file)
    assert report.forecast.hit_rate == 0.9 and report.forecast.hit_source == "measured in the last run"
    assert report.measured["same_slots"] and report.measured["first_token_s"] == 0.75
    ratio = report.measured["forecast_tps"] / 40.0
    assert report.measured["forecast_over_measured"] == pytest.approx(ratio, rel=1e-3)
    other = examine(local(demo_path), EngineConfig(slots=16), file)
    assert not other.measured["same_slots"] and other.forecast.hit_source == "estimated"


@pytest.mark.parametrize(
    ("missing", "config", "words"),
    [
        ([SHARD], {}, f"Shard {SHARD} of .* is missing"),
        (["tokenizer.json"], {}, "has no tokenizer"),
        (["chat_template.jinja"], {}, "has no chat template"),
        (["config.json"], None, "config.json is missing"),
        ([], {"num_experts": 0}, "is dense.*llm-mlx"),
        ([], {"model_type": "from_next_year"}, "does not know the model type from_next_year.*upgrade mlx-lm"),
        ([], {"num_experts": 128}, "mlx-lm cannot build"),
    ],
)
def test_what_is_broken_comes_with_its_fix(broken, missing, config, words):
    path = broken(*([] if config is None else missing), **(config or {}))
    if config is None:
        (path / "config.json").unlink()
    report = examine(local(path), EngineConfig())
    assert report.fatal
    problem = next(p for p in report.problems if p.fatal)
    assert problem.fix == "llm mlx-streaming download org/it"
    assert re.search(words, problem.what), problem.what


def test_too_little_memory_names_what_would_do(demo_path):
    report = examine(local(demo_path), EngineConfig(memory=50_000_000))
    assert report.fatal and report.forecast is None
    assert "needs at least" in report.problems[0].what and "set memory to" in report.problems[0].what


def test_more_memory_than_there_is_cannot_run(demo_path):
    (problem,) = examine(local(demo_path), EngineConfig(memory=10**13)).problems
    assert problem.fatal and "memory is set to 10000GB, but this machine has" in problem.what


def test_a_slow_disk_is_noted_only_where_experts_stream(demo_path, monkeypatch):
    slow = replace(DISK, disk=2e8)
    monkeypatch.setattr("mlx_streaming.doctor.probe_disk", lambda files, block: slow)
    assert examine(local(demo_path), EngineConfig()).problems == []
    report = examine(local(demo_path), EngineConfig(slots=8))
    assert not report.fatal and "0.20 GB/s" in report.problems[0].what
    assert report.problems[0].fix.endswith("llm mlx-streaming download org/it")


def test_a_processor_that_is_too_slow_is_noted(demo_path, monkeypatch):
    slow = replace(COMPUTE, weights=1e6)
    monkeypatch.setattr("mlx_streaming.doctor.probe_compute", lambda dtype: slow)
    report = examine(local(demo_path), EngineConfig())
    found = [p for p in report.problems if "computes on the CPU" in p.what]
    assert bool(found) == (report.machine["backend"] == "cpu") and not report.fatal


def test_a_repository_is_judged_from_its_headers(demo_path, tmp_path, monkeypatch):
    from huggingface_hub import constants

    with Hub({"org/tiny": Repo(demo_path)}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        subject = outline_subject("org/tiny", "main", tmp_path / "outline")
        report = with_name(examine(subject, EngineConfig(slots=8)), subject.path, "org/tiny")
        sent = hub.total_sent()
    here = examine(local(demo_path), EngineConfig(slots=8))
    assert report.plan.slots == here.plan.slots
    assert report.forecast.parts == pytest.approx(here.forecast.parts)
    assert report.model["missing_bytes"] > 20_000_000 and not report.model["downloaded"]
    assert sent < 1_000_000
    assert not (tmp_path / "hub").exists()


def test_measurements_are_kept_per_checkpoint(tmp_path):
    file = tmp_path / "new" / "measured.json"
    assert last_measurement(file, "a") is None
    record_measurement(file, "a", {"generation_tps": 1.0})
    record_measurement(file, "b", {"generation_tps": 2.0})
    record_measurement(file, "a", {"generation_tps": 3.0})
    assert last_measurement(file, "a")["generation_tps"] == 3.0
    assert last_measurement(file, "b")["generation_tps"] == 2.0
    assert abs(last_measurement(file, "a")["at"] - time.time()) < 60
    for number in range(KEPT + 5):
        record_measurement(file, f"n{number}", {})
    assert len(json.loads(file.read_text())["runs"]) == KEPT
    assert last_measurement(file, "a") is None and last_measurement(file, f"n{KEPT + 4}") is not None


def test_measurements_never_get_in_the_way(tmp_path):
    file = tmp_path / "measured.json"
    for damaged in ("", "[]", '{"version": 1, "runs": []}', '{"version": 9, "runs": {"a": {}}}'):
        file.write_text(damaged)
        assert last_measurement(file, "a") is None
        record_measurement(file, "a", {"x": 1})
        assert last_measurement(file, "a")["x"] == 1
    record_measurement(Path("/dev/null/measured.json"), "a", {"x": 1})
    assert measurement(GenResult(completion_tokens=3, generation_tps=9.0), 8, "cpu") is None


def test_doctor_command(run_llm, llm_env, opened, broken):
    result = GenResult(completion_tokens=100, generation_tps=40.0, prompt_tokens=20, ttft_s=0.5)
    home = Path(llm_env["LLM_USER_PATH"]) / "mlx-streaming"
    record_measurement(home / "measured.json", opened[1].digest(), measurement(result, 512, "cpu"))
    shown = run_llm("mlx-streaming", "doctor").stdout
    for word in ("Machine: ", "disk (checkpoint): ", "demo: qwen3_next", "Plan: all experts", "Forecast: "):
        assert word in shown
    assert "Last run (0.0 hours ago): 40 tokens/s" in shown
    assert shown.endswith("Only the embedded demo is here so far.\n    llm mlx-streaming download\n")
    failed = run_llm("mlx-streaming", "doctor", broken(SHARD), "--json", check=False)
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["problems"][0]["fatal"] is True
    (home / "empty").mkdir()
    empty = run_llm("mlx-streaming", "doctor", home / "empty", check=False)
    assert empty.returncode == 1
    assert re.search("\nProblem: No model.*; give .*get one with: llm mlx-streaming download\n", empty.stdout)
    unknown = run_llm("mlx-streaming", "doctor", "org/absent", check=False)
    assert unknown.returncode == 1 and "HF_HUB_OFFLINE is set" in unknown.stderr
