"""Downloading from a local hub with the real client: whole, resumed, checked, or refused in a sentence."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from conftest import LLM
from hub_server import Hub, Repo

from mlx_streaming.checkpoint import hub as hubs
from mlx_streaming.checkpoint.download import download, repo_folder, sha256
from mlx_streaming.checkpoint.hub import check_streamable, describe, read_range
from mlx_streaming.checkpoint.mtp_extract import find_head
from mlx_streaming.checkpoint.mtp_fetch import fetch_mtp
from mlx_streaming.checkpoint.spec import ModelSpec
from mlx_streaming.errors import CapacityError, CheckpointError

SHARD = "model-00001-of-00003.safetensors"
MTP = "mtp-raw.safetensors"


@pytest.fixture
def served(demo_path, tmp_path, monkeypatch):
    """The demo checkpoint as org/tiny; HF_ENDPOINT, cache and retry delays of this process set to match."""
    from huggingface_hub import constants

    repo = Repo(demo_path)
    with Hub({"org/tiny": repo}) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hubs, "RETRY_DELAYS", (0.01, 0.01))
        hub.repo = repo
        yield hub


@pytest.fixture
def hub_llm(run_llm, served):
    """`run_llm` with the local hub as its HF_ENDPOINT."""

    def run(*args, env=None, **kwargs):
        online = {"HF_ENDPOINT": served.url, "HF_HUB_OFFLINE": "0", **(env or {})}
        return run_llm("mlx-streaming", *args, env=online, **kwargs)

    run.env = {"HF_ENDPOINT": served.url, "HF_HUB_OFFLINE": "0"}
    return run


def expected_files(demo_path: Path) -> list[Path]:
    return [p for p in demo_path.iterdir() if p.name not in (MTP, "MODEL_CARD.md")]


def assert_same_files(path: Path, demo_path: Path) -> None:
    expected = expected_files(demo_path)
    assert len(expected) == 11
    assert sorted(p.name for p in path.iterdir()) == sorted(p.name for p in expected)
    for file in expected:
        assert (path / file.name).read_bytes() == file.read_bytes(), file.name


def partials(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


def test_downloads_what_a_checkpoint_needs_and_the_client_finds_it(served, demo_path):
    seen = []
    done = download("org/tiny", on_progress=lambda *step: seen.append(step))
    assert_same_files(done.path, demo_path)
    assert done.verified == 11
    assert done.fetched == done.size == served.total_sent()
    assert seen[-1] == ("download", done.size, done.size)
    from huggingface_hub import snapshot_download

    assert snapshot_download("org/tiny", local_files_only=True) == str(done.path)
    assert not partials(repo_folder("org/tiny"))


def test_a_second_download_fetches_nothing_and_checks_everything(served):
    first = download("org/tiny")
    sent = served.total_sent()
    again = download("org/tiny")
    assert (again.path, again.fetched, again.verified) == (first.path, 0, 11)
    assert served.total_sent() == sent
    assert download("org/tiny", verify=False).verified == 0


def test_a_cut_connection_is_continued_where_it_broke(served, demo_path):
    served.repo.cut[SHARD] = (4_000_000, 2)
    done = download("org/tiny")
    assert_same_files(done.path, demo_path)
    starts = [start for name, start in served.ranges if name == SHARD]
    assert starts[0] == 0 and len(starts) == 3
    assert starts[1] > 0 and starts[2] > starts[1]
    assert served.sent[SHARD] < 1.2 * (demo_path / SHARD).stat().st_size


def test_a_connection_that_never_lasts_fails_and_the_next_command_resumes(served, demo_path):
    served.repo.failures = 10**6
    with pytest.raises(CheckpointError, match="answered 503.*run the same command again"):
        download("org/tiny")
    served.repo.failures = 0
    served.repo.cut[SHARD] = (3_000_000, 1)
    stop = RuntimeError("stopped by the test")

    def fail_late(phase, done, total):
        if served.repo.cut[SHARD][1] == 0 and done > 0.9 * total:
            raise stop

    with pytest.raises(RuntimeError):
        download("org/tiny", on_progress=fail_late)
    kept = sum(p.stat().st_size for p in partials(repo_folder("org/tiny")))
    kept += sum(p.stat().st_size for p in (repo_folder("org/tiny") / "blobs").iterdir())
    assert kept > 0
    before = served.total_sent()
    done = download("org/tiny")
    assert_same_files(done.path, demo_path)
    assert done.fetched == served.total_sent() - before < done.size


def test_a_wrong_checksum_is_refused_and_leaves_nothing_behind(served, demo_path):
    served.repo.corrupt.add(SHARD)
    with pytest.raises(CheckpointError, match=f"{SHARD} of org/tiny arrived with a wrong checksum"):
        download("org/tiny")
    digest = sha256(demo_path / SHARD)
    assert not (repo_folder("org/tiny") / "blobs" / digest).exists()
    # Other shards, under way at the same time, keep their parts for the next run.
    assert not [part for part in partials(repo_folder("org/tiny")) if part.name.startswith(digest)]
    served.repo.corrupt.clear()
    assert_same_files(download("org/tiny").path, demo_path)


def test_a_small_file_with_a_wrong_checksum_is_refused(served, demo_path):
    served.repo.corrupt.add("generation_config.json")
    with pytest.raises(CheckpointError, match="generation_config.json of org/tiny arrived damaged"):
        download("org/tiny")
    served.repo.corrupt.clear()
    assert_same_files(download("org/tiny").path, demo_path)


@pytest.mark.parametrize("name", [SHARD, "generation_config.json"])
def test_a_damaged_file_in_the_cache_is_found_and_fetched_again(served, demo_path, name):
    done = download("org/tiny")
    blob = (done.path / name).resolve()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    assert download("org/tiny", verify=False).fetched == 0
    again = download("org/tiny")
    assert again.fetched == len(content)
    assert_same_files(again.path, demo_path)


def test_a_stale_partial_file_does_not_spoil_the_download(served, demo_path):
    blobs = repo_folder("org/tiny") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256(demo_path / SHARD)}.incomplete").write_bytes(b"not what the file begins with")
    assert_same_files(download("org/tiny").path, demo_path)


def test_an_existing_blob_of_another_program_is_used(served, demo_path):
    blobs = repo_folder("org/tiny") / "blobs"
    blobs.mkdir(parents=True)
    shutil.copy(demo_path / SHARD, blobs / sha256(demo_path / SHARD))
    done = download("org/tiny")
    assert SHARD not in served.sent
    assert done.fetched == done.size - (demo_path / SHARD).stat().st_size
    assert_same_files(done.path, demo_path)


def test_too_little_space_is_said_before_anything_is_written(served):
    served.repo.inflate = 10**9
    with pytest.raises(CapacityError, match=r"org/tiny needs \d+\.\d GB more on disk"):
        download("org/tiny")
    assert served.total_sent() == 0
    assert not repo_folder("org/tiny").exists()


def test_a_disk_that_fills_up_keeps_what_arrived(served, demo_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    blobs = repo_folder("org/tiny") / "blobs"
    blobs.mkdir(parents=True)
    partial = blobs / f"{sha256(demo_path / SHARD)}.incomplete"
    partial.symlink_to("/dev/full")
    with pytest.raises(CapacityError, match="disk is full while writing .* free some space"):
        download("org/tiny")
    partial.unlink()
    assert_same_files(download("org/tiny").path, demo_path)


def test_the_token_goes_to_the_hub_and_not_to_its_storage(served, monkeypatch):
    served.repo.token = "secret"
    with pytest.raises(
        CheckpointError, match="shows no repository org/tiny; check the name, or .*hf auth login"
    ):
        download("org/tiny")
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(CheckpointError, match=r"refused the token for org/tiny \(401\)"):
        download("org/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert download("org/tiny").verified == 11
    assert served.sent[SHARD] > 0 and not served.leaked


@pytest.mark.parametrize(
    ("repo", "revision", "sentence"),
    [
        ("org/absent", "main", "shows no repository org/absent"),
        ("org/tiny", "nowhere", "has no revision 'nowhere'; choose another one with --revision"),
        ("a/b/c", "main", "is not the name of a hub repository; write it like"),
    ],
)
def test_names_that_are_not_there(served, repo, revision, sentence):
    with pytest.raises(CheckpointError, match=sentence):
        download(repo, revision)


def test_a_gated_repository_says_where_to_ask(served):
    served.repo.gated = True
    with pytest.raises(
        CheckpointError, match=f"org/tiny is gated: accept its terms at {served.url}/org/tiny"
    ):
        download("org/tiny")


def test_a_revision_can_be_named_by_its_commit(served):
    commit = describe("org/tiny").commit
    assert download("org/tiny", commit).path.name == commit


def test_without_network_the_complete_copy_is_taken(served):
    first = download("org/tiny")
    served.stop()
    again = download("org/tiny")
    assert again.path == first.path and again.verified == 0
    assert "Cannot reach" in again.note and "unverified" in again.note
    (first.path / SHARD).unlink()
    with pytest.raises(CheckpointError, match="Cannot reach"):
        download("org/tiny")


def test_a_checkpoint_is_described_from_headers_alone(served, demo_path):
    spec = check_streamable(describe("org/tiny"))
    real = ModelSpec.read(demo_path)
    assert (spec.experts, spec.trunk_bytes) == (real.experts, real.trunk_bytes)
    assert served.total_sent() < 1_000_000
    assert read_range(describe("org/tiny"), SHARD, 100, 200) == (demo_path / SHARD).read_bytes()[100:200]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "not_yet_known"}, "not_yet_known"),
        ({"num_experts": 128}, "mlx-lm cannot build .* Expected shape"),
        (
            {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}}},
            "Expected shape",
        ),
    ],
)
def test_what_could_not_run_is_refused_before_the_download(served, demo_path, tmp_path, change, sentence):
    copy = tmp_path / "copy"
    shutil.copytree(demo_path, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    served.repos["org/copy"] = Repo(copy)
    with pytest.raises(CheckpointError, match=sentence):
        check_streamable(describe("org/copy"))


def test_a_repository_without_safetensors_is_refused(served, tmp_path):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_bytes(b"GGUF")
    served.repos["org/gguf"] = Repo(tmp_path / "gguf")
    with pytest.raises(CheckpointError, match="org/gguf holds no config.json with model"):
        download("org/gguf")


def read_tensors(path: Path) -> dict[str, tuple[dict, bytes]]:
    """Name -> (header entry without its place, bytes)."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    entries = json.loads(data[8:start])
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        begin, end = entry.pop("data_offsets")
        found[name] = (entry, data[start + begin : start + end])
    return found


def write_tensors(path: Path, tensors: dict[str, tuple[dict, bytes]]) -> None:
    header, at = {}, 0
    for name, (entry, data) in tensors.items():
        header[name] = entry | {"data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


@pytest.fixture
def release(served, demo_path, tmp_path) -> dict[str, tuple[dict, bytes]]:
    """org/original: the MTP tensors among others in two of three shards. Returns them."""
    directory = tmp_path / "original"
    directory.mkdir()
    mtp = read_tensors(demo_path / MTP)
    assert len(mtp) == 209
    filler = ({"dtype": "U8", "shape": [50_000]}, bytes(50_000))
    weight_map = {}
    for number, names in enumerate((list(mtp)[:100], list(mtp)[100:], []), 1):
        shard = f"model-{number:05d}-of-00003.safetensors"
        tensors = {f"model.layers.{number}.first": filler}
        for count, name in enumerate(names):
            tensors[name] = mtp[name]
            if count % 40 == 20:
                tensors[f"model.layers.{number}.between{count}"] = filler
        tensors[f"model.layers.{number}.last"] = filler
        write_tensors(directory / shard, tensors)
        weight_map |= dict.fromkeys(tensors, shard)
    (directory / "config.json").write_text('{"model_type": "qwen3_next"}')
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    served.repos["org/original"] = Repo(directory)
    served.repo.base = "org/original"
    return mtp


def test_only_the_mtp_tensors_of_a_release_are_fetched(served, release, tmp_path):
    target = tmp_path / "head" / "mtp.safetensors"
    found = fetch_mtp("org/original", target)
    assert read_tensors(target) == release
    assert set(found.names) == set(release)
    assert len(found.parts) == 7  # runs between the other tensors
    assert not any(name.startswith("model-00003") for name, _ in served.ranges)
    assert served.total_sent() < target.stat().st_size + 3 * 2**18
    sent = served.total_sent()
    fetch_mtp("org/original", target)
    assert served.total_sent() < sent + 3 * 2**18, "a finished head is not fetched again"


def test_an_interrupted_mtp_head_is_continued(served, release, tmp_path):
    target = tmp_path / "mtp.safetensors"
    first, second = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"

    def fail(phase, done, total):
        if done > 0.7 * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_mtp("org/original", target, on_progress=fail)
    assert not target.exists()
    kept = target.with_name("mtp.safetensors.incomplete").stat().st_size
    assert kept > 5_000_000
    served.ranges.clear()
    served.repos["org/original"].cut[second] = (600_000, 1)
    fetch_mtp("org/original", target)
    assert read_tensors(target) == release
    assert [r for r in served.ranges if r[0] == first] == [(first, 0)], "only its header, nothing again"
    assert sum(start > 0 for name, start in served.ranges if name == second) >= 2


def test_a_hub_without_byte_ranges_costs_the_whole_shards(served, release, tmp_path):
    served.repos["org/original"].ranges = False
    target = tmp_path / "mtp.safetensors"
    fetch_mtp("org/original", target)
    assert read_tensors(target) == release


def test_a_release_without_mtp_says_so(served, tmp_path):
    with pytest.raises(CheckpointError, match="org/tiny has no tensors named mtp.*--mtp-from"):
        fetch_mtp("org/tiny", tmp_path / "mtp.safetensors")
    assert not list(tmp_path.glob("mtp*"))


def test_download_command_registers_and_the_model_answers(hub_llm, run_llm, release, demo_path):
    done = hub_llm("download", "org/tiny", "--alias", "mine", "--json")
    facts = json.loads(done.stdout)
    assert facts["name"] == "tiny"
    assert facts["verified"] == 11 and facts["default"] is True
    assert facts["mtp"]["tensors"] == 209
    head = find_head(Path(facts["path"]))
    assert head.packed and str(head.index.files[0]) == facts["mtp"]["path"]
    assert not list(Path(facts["path"]).glob("raw*")), "the raw head is not kept"
    listed = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)
    assert [(m["hub"], m["aliases"], m["default"], m["mtp"]) for m in listed][0] == (
        "org/tiny",
        ["mine"],
        True,
        True,
    )
    offline = hub_llm("download", "org/tiny", "--pack", "--json", env={"HF_HUB_OFFLINE": "1"})
    again = json.loads(offline.stdout)
    assert (again["fetched"], again["name"]) == (0, "tiny")
    assert "HF_HUB_OFFLINE is set" in offline.stderr
    assert list(Path(again["packed"]).glob("*.experts"))
    settings = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)[0]["settings"]
    assert settings == {"packed": again["packed"]}
    assert run_llm("-m", "mine", "-o", "max_tokens", 4, "hello").stdout.strip()


def test_a_new_revision_takes_over_what_still_fits(hub_llm, run_llm, served, demo_path, tmp_path):
    from mlx_streaming.checkpoint.mtp_extract import PACKED_NAME

    copy = tmp_path / "copy"
    shutil.copytree(demo_path, copy)
    served.repos["org/tiny"] = Repo(copy)
    first = json.loads(hub_llm("download", "org/tiny", "--alias", "mine", "--pack", "--json").stdout)
    (Path(first["path"]) / PACKED_NAME).write_bytes(b"the head of the first")
    (copy / "special_tokens_map.json").write_text("{}")
    sent = served.total_sent()
    second = hub_llm("download", "org/tiny", "--no-mtp")
    assert served.total_sent() - sent < 1_000_000, "unchanged files are not fetched again"
    assert f"The earlier revision stays in {first['path']}" in second.stderr
    assert "pack again with --pack" in second.stderr
    now = json.loads(run_llm("mlx-streaming", "models", "--json").stdout)[0]
    assert (now["name"], now["aliases"], now["settings"]) == ("tiny", ["mine"], {})
    assert now["path"] != first["path"]
    assert (Path(now["path"]) / PACKED_NAME).read_bytes() == b"the head of the first"


def test_a_killed_download_is_continued_by_the_same_command(hub_llm, llm_env, served, demo_path):
    served.repo.pace = 0.05
    command = [*LLM, "mlx-streaming", "download", "org/tiny", "--no-mtp"]
    process = subprocess.Popen(
        command, env=llm_env | hub_llm.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while served.total_sent() < 8_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    cache = Path(llm_env["HF_HOME"])
    kept = sum(p.stat().st_size for p in cache.rglob("blobs/*"))
    assert kept > 5_000_000
    served.repo.pace = 0.0
    facts = json.loads(hub_llm("download", "org/tiny", "--no-mtp", "--json").stdout)
    assert_same_files(Path(facts["path"]), demo_path)
    assert facts["fetched"] <= facts["bytes"] - kept + 1_000_000
    assert facts["verified"] == 11


def test_ctrl_c_ends_with_one_line_and_keeps_what_arrived(hub_llm, llm_env, served):
    served.repo.pace = 0.05
    process = subprocess.Popen(
        [*LLM, "mlx-streaming", "download", "org/tiny", "--no-mtp"],
        env=llm_env | hub_llm.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while served.total_sent() < 8_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in errors and "Aborted" in errors
    assert partials(Path(llm_env["HF_HOME"]))


def test_failures_of_the_command_are_one_sentence(hub_llm, served):
    served.repo.corrupt.add(SHARD)
    done = hub_llm("download", "org/tiny", "--no-mtp", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: model-00001") and last.endswith(f"check what {served.url} serves.")
    served.repo.inflate = 10**9
    done = hub_llm("download", "org/tiny", "--no-mtp", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: org/tiny needs") and "set HF_HOME to another disk" in done.stderr


def test_offline_and_unreachable_say_which(hub_llm):
    done = hub_llm("download", "org/tiny", env={"HF_HUB_OFFLINE": "1"}, check=False)
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set and org/tiny is not complete" in done.stderr
    done = hub_llm("download", "org/tiny", env={"HF_ENDPOINT": "http://127.0.0.1:9"}, check=False)
    assert done.returncode == 1 and "Cannot reach http://127.0.0.1:9" in done.stderr


def test_a_name_that_is_taken_is_refused_before_the_download(hub_llm, run_llm, served, demo_path):
    run_llm("mlx-streaming", "add", demo_path, "--name", "taken")
    done = hub_llm("download", "org/tiny", "--alias", "taken", check=False)
    assert done.returncode == 1 and "'taken' is already taken" in done.stderr
    assert served.total_sent() == 0
