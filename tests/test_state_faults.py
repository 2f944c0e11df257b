"""Whatever happens to a store, a turn gets the right state or none, and says why in the statistics."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from helpers_state import MARK, imaginary
from test_state_store import BIG, IDS, open_store, put, restored

from mlx_streaming.errors import EngineError
from mlx_streaming.state import disk as disk_module
from mlx_streaming.state import files as files_module
from mlx_streaming.state.admin import clear, listing, summary, verify
from mlx_streaming.state.index import NAME
from mlx_streaming.state.store import StateStore


@pytest.fixture
def place(tmp_path):
    """A store with a chain of three entries (30, 60 and 90 tokens) and a fork at 30."""
    store = open_store(tmp_path, memory=0)
    for end in (30, 60, 90):
        put(store, IDS[:end])
    put(store, [*IDS[:30], 99, 98])
    store.close()
    assert verify(tmp_path).entries == 4
    return tmp_path


def path_of(place, end, part):
    row = next(row for row in listing(place) if row.entry.end == end)
    return place / getattr(row, f"{part}_file")


def flip(path, where):
    data = bytearray(path.read_bytes())
    data[where] ^= 0x10
    path.write_bytes(data)


def cut(path, keep):
    os.truncate(path, keep)


DAMAGE = {
    "a byte of the rows": ("rows", lambda p: flip(p, -5), "checksum"),
    "a byte of the state": ("state", lambda p: flip(p, -1), "checksum"),
    "a byte of the header": ("rows", lambda p: flip(p, 100), "checksum"),
    "the header's length": ("state", lambda p: flip(p, 7), "truncated"),
    "half the file gone": ("rows", lambda p: cut(p, p.stat().st_size // 2), "truncated"),
    "the last byte gone": ("state", lambda p: cut(p, p.stat().st_size - 1), "truncated"),
    "only three bytes left": ("rows", lambda p: cut(p, 3), "truncated"),
    "an empty file": ("state", lambda p: cut(p, 0), "truncated"),
    "bytes appended": ("rows", lambda p: p.open("ab").write(b"more"), "truncated"),
    "the file gone": ("rows", os.unlink, "missing"),
    "a directory in its place": ("state", lambda p: (os.unlink(p), p.mkdir()), "unreadable"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_entry_is_ignored_removed_and_counted(place, what):
    part, harm, reason = DAMAGE[what]
    harm(path_of(place, 60, part))
    before = verify(place)
    # A state in the middle of a chain is only read when a turn starts from there.
    ids, expected = (IDS, 30) if part == "rows" else (IDS[:70], 30)
    assert [(problem.reason) for problem in before.problems] == [reason]
    store = open_store(place, memory=0)
    assert restored(store, ids) == expected
    assert store.stats[f"dropped: {reason}"] == 1
    store.flush()
    assert {row.entry.end for row in listing(place)} == {30, 32}
    after = verify(place)
    assert after.entries == 2 and not after.problems
    put(store, IDS[:60])
    store.flush()
    assert restored(store, IDS[:70]) == 60
    store.close()


def test_input_error_while_reading(place, monkeypatch):
    def broken(fd, views, offset):
        raise OSError(errno.EIO, "Input/output error")

    store = open_store(place, memory=0)
    monkeypatch.setattr(files_module.os, "preadv", broken)
    assert restored(store, IDS) == 0
    assert store.stats["dropped: unreadable"] >= 1
    monkeypatch.undo()
    store.close()


def test_file_of_another_entry_is_not_taken_for_this_one(place):
    shutil.copy(path_of(place, 32, "state"), path_of(place, 60, "state"))
    store = open_store(place, memory=0)
    assert restored(store, IDS[:70]) == 30
    assert store.stats["dropped: checksum"] == 1
    store.close()


def sql(place, *statements):
    db = sqlite3.connect(place / NAME, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


INDEX_DAMAGE = {
    "missing parent": (["DELETE FROM entries WHERE last = 60"], 30, "dropped: parent"),
    "other tokens": (["UPDATE entries SET tokens = zeroblob(120) WHERE last = 60"], 30, "dropped: tokens"),
    "fewer tokens": (["UPDATE entries SET tokens = x'00' WHERE last = 60"], 30, "dropped: tokens"),
    "another layout": (
        ["UPDATE entries SET layout = replace(layout, 'KVCache', 'RotatingKVCache') WHERE last = 60"],
        30,
        "dropped: layout",
    ),
    "no layout": (["UPDATE entries SET layout = '{' WHERE last = 60"], 30, "dropped: layout"),
    "no layout at the end": (["UPDATE entries SET layout = '{' WHERE last = 90"], 60, "dropped: layout"),
    "no hot experts": (["UPDATE entries SET hot = '[' WHERE last = 90"], 90, "hits: disk"),
    "another check": (["UPDATE entries SET rows_check = 'x' WHERE last = 60"], 30, "dropped: checksum"),
    "a table lost": (["DROP TABLE entries"], 0, "dropped: index"),
    "an older version": (["PRAGMA user_version = 99"], 0, "dropped: version"),
    "other columns": (
        ["DROP TABLE entries", "CREATE TABLE entries (id TEXT PRIMARY KEY, what BLOB)"],
        0,
        "dropped: index",
    ),
}


@pytest.mark.parametrize("what", INDEX_DAMAGE)
def test_damaged_index(place, what):
    statements, expected, reason = INDEX_DAMAGE[what]
    sql(place, *statements)
    store = open_store(place, memory=0)
    store.flush()  # the sweep at the start sees some of it first
    assert restored(store, IDS) == expected
    assert store.stats[reason] >= 1
    store.close()
    works_afterwards(place)


def works_afterwards(place):
    """A new store heals what is left and keeps what it is given."""
    store = open_store(place, memory=0)
    put(store, IDS[:110])
    store.flush()
    assert restored(store, IDS) == 110
    store.close()
    store = open_store(place, memory=0)
    assert restored(store, IDS) == 110
    store.close()
    report = verify(place)
    assert report.entries > 0 and not report.problems


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_index_file_replaced(place, content):
    for name in (f"{NAME}-wal", f"{NAME}-shm"):
        (place / name).unlink(missing_ok=True)
    (place / NAME).write_bytes(content)
    store = open_store(place, memory=0)
    assert restored(store, IDS) == 0
    assert store.disk_state == "on"
    store.close()
    works_afterwards(place)


def test_index_damaged_while_open(place):
    store = open_store(place, memory=0)
    assert restored(store, IDS) == 90
    store.flush()
    (place / NAME).write_bytes(b"\xff" * 8192)
    assert restored(store, IDS) in (0, 90)
    put(store, IDS[:95])
    store.flush()
    store.close()
    works_afterwards(place)


@pytest.mark.parametrize("where", ["under a file", "/proc/none", "a file"])
def test_unusable_directory_means_memory_only(tmp_path, where):
    (tmp_path / "file").write_text("x")
    directory = {"under a file": tmp_path / "file" / "cache", "a file": tmp_path / "file"}.get(where, where)
    store = open_store(directory)
    assert store.disk is None and store.disk_state.startswith("off: ")
    assert store.stats["errors: directory"] == 1
    put(store, IDS[:10])
    assert restored(store, IDS) == 10
    store.close()


@pytest.fixture
def public_path():
    """A temporary directory that another user may enter."""
    path = Path(tempfile.mkdtemp(prefix="store-"))
    yield path
    shutil.rmtree(path)


def test_read_only_directory(public_path):
    """As another user where tests run as root, since root may write anywhere."""
    filled, empty = public_path / "filled", public_path / "empty"
    store = open_store(filled)
    put(store, IDS[:10])
    store.close()
    empty.mkdir()
    for path in (public_path, empty, filled, *filled.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    script = f"""
        import os, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_state_store import IDS, open_store, put, restored
        if os.getuid() == 0:
            os.setgid(65534), os.setuid(65534)
        for place in {[str(filled), str(empty), str(empty / "deeper")]!r}:
            store = open_store(place)
            assert restored(store, IDS) == 0
            put(store, IDS[:20])
            assert restored(store, IDS) == 20
            store.flush()
            print(store.disk_state[:5], store.stats.get("written"))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    for path in (public_path, empty, filled):
        path.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["off:  None"] * 3


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_disk_full(tmp_path, monkeypatch, after):
    """Writes fail from some write on: in a header, in tensors, in the second file. Later there is room."""
    store = open_store(tmp_path)
    put(store, IDS[:10])
    store.flush()
    real, calls = os.write, []

    def full(fd, data):
        calls.append(len(data))
        if len(calls) > after:
            real(fd, bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(files_module.os, "write", full)
    put(store, IDS[:20])
    put(store, IDS[:30])
    store.flush()
    monkeypatch.undo()
    assert len(calls) > after and store.stats["errors: ENOSPC"] >= 1
    assert restored(store, IDS) == 30  # from memory
    assert not verify(tmp_path).problems and not verify(tmp_path).garbage
    put(store, IDS[:40])  # the parents that could not be written are written with it
    store.close()
    store = open_store(tmp_path, memory=0)
    assert restored(store, IDS) == 40
    store.close()


def test_disk_full_in_the_index(tmp_path):
    store = open_store(tmp_path)
    put(store, IDS[:10])
    store.flush()
    pages = store.disk.writer.db.execute("PRAGMA page_count").fetchone()[0]
    store.disk.writer.db.execute(f"PRAGMA max_page_count = {pages}")
    for fork in range(40):
        put(store, [*IDS[:10], fork, *range(50), *range(50)])
    store.flush()
    assert store.stats["errors: index"] > 0
    assert restored(store, [*IDS[:10], 39, *range(50), *range(50), 1]) == 111
    store.close()
    report = verify(tmp_path)
    assert report.entries > 0 and not report.problems and not report.garbage


def test_clock_going_backwards(tmp_path, monkeypatch):
    now = [2_000_000_000.0]

    def clock():
        now[0] -= 86_400
        return now[0]

    monkeypatch.setattr(disk_module.time, "time", clock)
    probe = open_store(tmp_path / "probe", memory=0)
    put(probe, IDS[:10])
    probe.close()
    size = listing(tmp_path / "probe")[0].nbytes
    store = open_store(tmp_path / "cache", memory=0, quota=int(size * 3.5))
    for fork in range(6):
        put(store, [fork, *IDS[:9]])
        store.flush()
    assert [restored(store, [fork, *IDS]) for fork in range(6)] == [0, 0, 0, 10, 10, 10]
    store.close()


def test_leftovers_of_killed_processes_are_swept_when_old(tmp_path):
    store = open_store(tmp_path)
    put(store, IDS[:10])
    store.close()
    fresh_file = tmp_path / f".{'0' * 16}.partial"
    old_file = tmp_path / f".{'1' * 16}.partial"
    unfiled = tmp_path / f"{'2' * 32}-rows-{'3' * 8}.safetensors"
    foreign = tmp_path / "mtp-head.safetensors"
    for path in (fresh_file, old_file, unfiled, foreign):
        path.write_bytes(b"x")
    for path in (old_file, unfiled, foreign):
        os.utime(path, (time.time() - 90_000,) * 2)
    store = open_store(tmp_path)
    store.flush()
    assert store.stats["dropped: garbage"] == 2
    assert restored(store, IDS) == 10
    store.close()
    assert fresh_file.exists() and foreign.exists() and not old_file.exists() and not unfiled.exists()
    report = verify(tmp_path, repair=True)
    assert report.garbage == [fresh_file.name] and report.entries == 1
    assert foreign.exists() and not fresh_file.exists()


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from mlx_streaming.state.admin import verify
from mlx_streaming.state.disk import DiskTier, Write
from mlx_streaming.state.entry import Entry, entry_ids, tokens_of
from mlx_streaming.state.files import Tensor
from mlx_streaming.state.fingerprint import Fingerprint

place, mark = Path(sys.argv[1]), Fingerprint("m", "s", "k")
random.seed(int(sys.argv[2]))

def write_for_ever(seed, ready):
    tier = DiskTier(place, 40_000_000, mark, "killed", lambda reason, n: None)
    tier.flush()
    os.write(ready, b"x")
    while True:
        ids, chain = tokens_of([seed]), []
        for turn in range(5):
            start = len(ids) if turn else 0
            ids = np.concatenate([ids, np.arange(20, dtype=np.int32)])
            names = entry_ids("k", ids, [start, len(ids)]) if start else entry_ids("k", ids, [len(ids)])
            entry = Entry(names[len(ids)], names[start] if start else "", start, len(ids), "turn",
                          ids[start:].tobytes(), '{"position": 0, "cache": [], "extra": {}}')
            rows = {"c.0.keys": Tensor("F32", np.random.rand(1, 2, len(ids) - start, 256).astype("f4"))}
            state = {"c.1.0": Tensor("F32", np.random.rand(1, 100, 100).astype("f4"))}
            chain.append(Write(entry, SimpleNamespace(rows=rows, whole=state, starts={"c.0": start}), True))
            tier.write(list(chain), lambda filed: None)
        tier.flush()
        seed += 1000

entries, garbage, half_written = [], 0, 0
for kill in range(50):
    wait, ready = os.pipe()
    child = os.fork()
    if child == 0:
        write_for_ever(kill, ready)
    assert os.read(wait, 1) == b"x"
    os.close(wait), os.close(ready)
    time.sleep(random.uniform(0.0, 0.12))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    report = verify(place)
    assert not report.problems, report.problems
    entries.append(report.entries)
    half_written += len(report.garbage) > garbage
    garbage = len(report.garbage)
print(entries[-1], half_written, report.files)
"""


def test_kill_9_at_fifty_random_points_of_a_write(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "1"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    entries, half_written, files = map(int, done.stdout.split())
    assert entries > 20 and files > 40, done.stdout
    assert half_written > 5, "hardly any kill came in the middle of a write"
    verify(tmp_path, repair=True)
    report = verify(tmp_path)
    assert report.entries == entries and not report.garbage and not report.problems


CROWD = """
import os, random, sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from mlx_streaming.state.admin import verify
from mlx_streaming.state.disk import DiskTier, Write
from mlx_streaming.state.entry import Entry, entry_ids, tokens_of
from mlx_streaming.state.files import Stale, Tensor
from mlx_streaming.state.fingerprint import Fingerprint

place, mark, seen = Path(sys.argv[1]), Fingerprint("m", "s", "k"), Counter()

def work(seed):
    rng = random.Random(seed)
    tier = DiskTier(place, 1_500_000, mark, "crowd", lambda reason, n: seen.update({reason: n}))
    for _ in range(25):
        ids, chain = tokens_of([rng.randrange(4)]), []
        for turn in range(3):
            start = len(ids) if turn else 0
            ids = np.concatenate([ids, np.full(20, rng.randrange(2), np.int32)])
            names = entry_ids("k", ids, [start, len(ids)]) if start else entry_ids("k", ids, [len(ids)])
            entry = Entry(names[len(ids)], names[start] if start else "", start, len(ids), "turn",
                          ids[start:].tobytes(), '{"position": 0, "cache": [], "extra": {}}')
            rows = {"c.0.keys": Tensor("F32", np.full((1, 2, len(ids) - start, 256), seed, "f4"))}
            state = {"c.1.0": Tensor("F32", np.full((1, 100, 100), seed, "f4"))}
            chain.append(Write(entry, SimpleNamespace(rows=rows, whole=state, starts={"c.0": start}), True))
            tier.write(list(chain), lambda filed: seen.update({"filed" if filed else "refused": 1}))
            for end, name in tier.candidates(10**9, True)[:3]:
                row = tier.get(name)
                if row is not None:
                    try:
                        link = tier.open(row, True)
                        for tensor in [*link.rows.values(), *link.whole.values()]:
                            tensor.read_into([np.empty(tensor.nbytes, np.uint8)])
                        seen["read"] += 1
                    except Stale as stale:
                        seen[stale.reason] += 1
        if rng.random() < 0.2:
            tier.remove(chain[rng.randrange(3)].entry.id)
    tier.close()
    print(dict(seen), flush=True)
    others = set(seen) - {"written", "unwritten: parent", "evicted", "thinned", "filed", "refused",
                          "read", "missing", "state"}
    os._exit(1 if others or seen["read"] < 10 or seen["written"] < 5 else 0)

children = []
for seed in range(4):
    child = os.fork()
    if child == 0:
        work(seed)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
report = verify(place)
assert not report.problems and not report.garbage, report
print(report.entries)
"""


def test_four_processes_write_read_and_remove_at_once(tmp_path):
    """The same entries under one small quota: a reader may find one gone, but never a wrong byte."""
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) > 0


def test_looking_after_a_store(place):
    found = summary(place)
    assert (found.entries, found.conversations, found.without_state) == (4, 2, 0)
    assert found.tokens == 92 and found.models == {"imaginary": found.nbytes} and found.kinds == {"turn": 4}
    rows = listing(place)
    assert [row.entry.end for row in rows] == [32, 90, 60, 30]
    with pytest.raises(EngineError, match="cache list"):
        clear(place, ids=("zz",))
    assert clear(place, label="another") == (0, 0)
    assert clear(place, older_s=3600.0) == (0, 0)
    middle = next(row for row in rows if row.entry.end == 60)
    freed = sum(row.nbytes for row in rows if row.entry.end in (60, 90))
    assert clear(place, ids=(middle.entry.id[:8],)) == (2, freed)
    assert [row.entry.end for row in listing(place)] == [32, 30]
    assert clear(place)[0] == 2 and listing(place) == [] and not list(place.glob("*.safetensors"))
    assert verify(place).entries == 0


def test_an_unreadable_index_is_said_to_be_so_and_can_be_cleared(place):
    (place / NAME).write_bytes(b"garbage" * 1000)
    for look in (listing, summary, verify):
        with pytest.raises(EngineError, match="cache clear"):
            look(place)
    assert clear(place)[1] > 0
    assert listing(place) == []
    assert StateStore(place, BIG, BIG, MARK).find(IDS) is None
    assert imaginary([])[0].empty()
