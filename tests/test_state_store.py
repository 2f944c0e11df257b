"""The store: exact prefixes, what it costs, what is given up first, and other processes."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import textwrap

import mlx.core as mx
import pytest
from helpers_state import MARK, blank, imaginary, is_state_of
from mlx_lm.models.cache import KVCache

from mlx_streaming.state import store as store_module
from mlx_streaming.state.admin import listing, verify
from mlx_streaming.state.codecs import UnsupportedCache
from mlx_streaming.state.fingerprint import fingerprint
from mlx_streaming.state.session import Session
from mlx_streaming.state.store import StateStore

BIG = 1 << 40
IDS = [(7 * i + i // 3) % 50 for i in range(200)]


def open_store(directory, memory=BIG, quota=BIG, mark=MARK):
    return StateStore(directory, memory, quota, mark, "imaginary")


@pytest.fixture(params=["memory", "disk", "another process"])
def place(request, tmp_path):
    """Opens stores; `again()` is the same one (memory), one without memory, or a second one."""

    class Place:
        kind = request.param
        directory = None if kind == "memory" else tmp_path / "cache"
        stores = []

        def open(self):
            self.stores.append(open_store(self.directory, memory=0 if self.kind == "disk" else BIG))
            return self.stores[-1]

        def again(self):
            store = self.stores[-1]
            store.flush()
            return self.open() if self.kind == "another process" else store

    found = Place()
    found.stores = []
    yield found
    for store in found.stores:
        store.close()
    if found.directory is not None:
        report = verify(found.directory)
        assert report.entries > 0 and report.files > 0 and not report.problems and not report.garbage


def put(store, ids, kind="turn", **more):
    return store.put(ids, imaginary(ids), kind, **more)


def restored(store, ids, equal=False):
    """Length restored; every bit of the state is checked."""
    found = store.restore(ids, blank, equal)
    if found is None:
        return 0
    assert is_state_of(found.cache, ids[: found.length])
    return found.length


def test_longest_exact_prefix(place):
    store = place.open()
    for end in (10, 30, 70):
        assert put(store, IDS[:end]) > 0
    store = place.again()
    assert restored(store, IDS) == 70
    assert restored(store, IDS[:70]) == 30  # one token must be left to run
    assert restored(store, IDS[:70], equal=True) == 70
    assert restored(store, IDS[:71]) == 70
    assert restored(store, [*IDS[:69], 99, *IDS[70:]]) == 30
    assert restored(store, [99, *IDS]) == 0
    assert restored(store, IDS[:10]) == restored(store, []) == 0
    assert restored(store, IDS[:11]) == 10
    assert store.stats["misses"] == 3


def test_forks_share_what_is_before_them(place):
    store = place.open()
    put(store, IDS[:100], "head")
    for fork in range(5):
        put(store, [*IDS[:100], 60 + fork, *IDS[:8]])
    store = place.again()
    for fork in range(5):
        assert restored(store, [*IDS[:100], 60 + fork, *IDS[:8], 1]) == 109
    assert restored(store, [*IDS[:100], 66]) == 100


def test_hot_experts_and_extra_state_travel(place):
    store = place.open()
    kv = KVCache()
    kv.update_and_fetch(mx.ones((1, 1, 19, 8)), mx.zeros((1, 1, 19, 8)))
    put(store, IDS[:20], hot=lambda: {3: [5, 1], 4: []}, extra={"mtp": kv, "hidden": mx.arange(3)})
    put(store, IDS[:30])
    store = place.again()
    found = store.restore(IDS[:21], blank)
    assert found.hot == {3: [5, 1], 4: []} and found.extra["hidden"].tolist() == [0, 1, 2]
    assert found.extra["mtp"].offset == 19
    assert store.find(IDS[:21]).hot == {3: [5, 1], 4: []}
    found = store.restore(IDS[:31], blank)
    assert found.hot == {} and found.extra == {}


def test_filing_again_costs_nothing_and_ends_a_partial(place):
    store = place.open()
    assert put(store, IDS[:40], "partial") > 0
    assert put(store, IDS[:40], "prompt") == 0
    store = place.again()
    put(store, IDS[:60])
    store = place.again()
    assert restored(store, IDS[:41]) == 40  # no longer partial, so not superseded


def test_superseded_partials_give_up_their_state_only(place):
    store = place.open()
    for end in (50, 100, 150):
        put(store, IDS[:end], "partial")
    store = place.again()
    assert restored(store, IDS[:151]) == 150 and restored(store, IDS[:150]) == 0
    put(store, IDS[:160], "prompt")
    store = place.again()
    assert restored(store, IDS) == 160 and restored(store, IDS[:160]) == 0
    put(store, IDS[:100], "turn")  # its rows are there; its state comes back
    store = place.again()
    assert restored(store, IDS[:101]) == 100 and restored(store, IDS) == 160


def test_entry_holds_only_its_own_tokens(tmp_path):
    store = open_store(tmp_path)
    put(store, IDS[:100])
    put(store, IDS[:103])
    put(store, IDS[:200])
    store.close()
    own = {row.entry.end: (row.entry.start, row.rows_bytes) for row in listing(tmp_path)}
    assert {end: start for end, (start, _) in own.items()} == {100: 0, 103: 100, 200: 103}
    row_bytes = 2 * 2 * 8 * 2  # keys and values, 2 heads, 8 wide, bfloat16
    header = own[103][1] - 3 * row_bytes
    assert abs(own[100][1] - header - 100 * row_bytes) < 64  # the header is padded
    assert abs(own[200][1] - header - 97 * row_bytes) < 64


def test_token_ids_are_compared_not_only_their_digest(place, monkeypatch):
    monkeypatch.setattr(store_module, "entry_ids", lambda key, tokens, ends: {e: f"{e:032x}" for e in ends})
    store = place.open()
    put(store, IDS[:50])
    store.flush()
    assert restored(store, [*IDS[:49], 99, 1, 2]) == 0
    assert store.stats["dropped: tokens"] == 1
    place.stores.remove(store)
    store.close()
    store = open_store(place.directory)
    monkeypatch.undo()
    put(store, IDS[:10])
    store.close()


def test_memory_tier_stays_in_its_limit_and_never_orphans():
    size = imaginary(IDS[:10])[0].nbytes
    one = put(open_store(None), IDS[:10])
    store = open_store(None, memory=int(one * 6.5))
    for fork in range(8):
        for end in (10, 20, 30):
            put(store, [fork, *IDS[:end]])
            assert store.memory.nbytes <= store.memory.limit
            for held in store.memory.held.values():
                assert not held.entry.parent or held.entry.parent in store.memory.held
    assert size and restored(store, [7, *IDS]) == 31
    assert restored(store, [0, *IDS]) == 0
    assert store.stats["forgotten"] > 0


def test_one_long_conversation_keeps_its_newest_state():
    rows, state = 100 * 2 * 2 * 8 * 2, 24  # bytes of 100 tokens' rows, and of one recurrent state
    assert put(open_store(None), IDS[:100]) == rows + state
    store = open_store(None, memory=rows + 5 * state)
    for end in range(10, 101, 2):
        put(store, IDS[:end])
        assert restored(store, IDS[: end + 1]) == end  # the newest is always there
    assert store.stats["thinned"] > 10 and store.memory.nbytes <= store.memory.limit


def test_disk_quota_is_least_recently_used_and_never_orphans(tmp_path):
    probe = open_store(tmp_path / "probe", memory=0)
    put(probe, IDS[:10])
    probe.close()
    entry_size = listing(tmp_path / "probe")[0].nbytes
    place = tmp_path / "cache"
    store = open_store(place, memory=0, quota=entry_size * 7)
    put(store, IDS[:10], "head")
    for fork in range(12):
        put(store, [*IDS[:10], fork, *IDS[:20]])
        store.flush()
        assert restored(store, [*IDS[:10], 99]) == 10  # in use all the time, so it stays
        store.flush()
        rows = listing(place)
        ids = {row.entry.id for row in rows}
        assert sum(row.nbytes for row in rows) <= entry_size * 7
        assert all(not row.entry.parent or row.entry.parent in ids for row in rows)
    assert restored(store, [*IDS[:10], 11, *IDS]) == 31
    assert restored(store, [*IDS[:10], 0, *IDS]) == 10
    assert store.stats["evicted"] > 0
    store.close()
    assert not verify(place).garbage


def test_conversation_with_more_entries_than_open_files_allowed(tmp_path):
    store = open_store(tmp_path, memory=0)
    for end in range(1, 121):
        put(store, IDS[:end])
    store.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, hard))
    try:
        assert restored(store, IDS) == 120
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    store.close()


def test_quota_smaller_than_one_entry_stores_nothing_and_works(tmp_path):
    store = open_store(tmp_path, memory=0, quota=10)
    put(store, IDS[:10])
    store.flush()
    assert restored(store, IDS) == 0 and listing(tmp_path) == []
    store.close()


def test_two_stores_at_once(tmp_path):
    a, b = open_store(tmp_path, memory=0), open_store(tmp_path, memory=0)
    for turn in range(6):
        one, other = (a, b) if turn % 2 else (b, a)
        put(one, IDS[: 10 * (turn + 1)])
        put(other, [50 + turn, *IDS[:5]])
        one.flush()
        other.flush()
        assert restored(other, IDS) == 10 * (turn + 1)
    put(a, IDS[:150])
    put(b, IDS[:150])  # the same one, at the same time
    a.close()
    b.close()
    report = verify(tmp_path)
    assert report.entries == 13 and not report.problems and not report.garbage


def test_another_process_removes_what_this_one_continues(tmp_path):
    a, b = open_store(tmp_path), open_store(tmp_path, memory=0)
    put(a, IDS[:20])
    put(a, IDS[:30])
    a.flush()
    b.disk.remove(listing(tmp_path)[-1].entry.id)
    b.flush()
    assert listing(tmp_path) == []
    put(a, IDS[:40])  # the parents are still in a's memory and are written again
    a.close()
    assert restored(b, IDS) == 40 and restored(b, IDS[:21]) == 20
    b.close()


def test_parent_lost_everywhere_means_not_written(tmp_path):
    a, b = open_store(tmp_path, memory=0), open_store(tmp_path, memory=0)
    put(a, IDS[:20])
    a.flush()
    first = listing(tmp_path)[0].entry.id
    write = a.disk.write

    def late(chain, done):
        b.disk.remove(first)
        b.flush()
        write(chain, done)

    a.disk.write = late
    put(a, IDS[:30])
    a.flush()
    assert a.stats["unwritten: parent"] == 1 and listing(tmp_path) == []
    a.disk.write = write
    put(a, IDS[:35])
    a.flush()
    assert restored(b, IDS) == 35
    a.close()
    b.close()


def test_entry_removed_while_another_process_reads(tmp_path):
    a, b = open_store(tmp_path, memory=0), open_store(tmp_path, memory=0)
    put(a, IDS[:20])
    put(a, IDS[:30])
    a.flush()
    match = b.find(IDS)
    links = [b.disk.open(row, with_state=i == 1) for i, row in enumerate(match.chain)]
    cache, _ = store_module.rebuild(links, blank())
    assert is_state_of(cache, IDS[:30])
    a.discard(match.entry.id, "test")
    a.flush()
    with pytest.raises(store_module.Stale, match="missing"):
        store_module.rebuild(links, blank())
    match = b.find(IDS)
    assert match.length == 20
    a.discard(match.entry.id, "test")
    a.flush()
    with pytest.raises(store_module.Stale, match="missing"):
        match.load()
    assert restored(b, IDS) == 0
    a.close()
    b.close()


def test_state_given_up_by_another_process_while_this_one_restores(tmp_path):
    a, b = open_store(tmp_path, memory=0), open_store(tmp_path, memory=0)
    for end in (10, 20, 30):
        put(a, IDS[:end])
    a.flush()
    load = b.load

    def late(match, fresh):
        b.load = load
        a.disk.thin(match.entry.id)  # the row was read, its state file is gone
        a.flush()
        return load(match, fresh)

    b.load = late
    assert restored(b, IDS[:25]) == 10
    assert not [key for key in b.stats if key.startswith("dropped")]
    assert restored(b, IDS) == 30  # what extends it is still there
    a.close()
    b.close()


def test_files_are_private(tmp_path):
    old = os.umask(0)
    try:
        store = open_store(tmp_path / "deep" / "cache")
        put(store, IDS[:10])
        store.flush()
        found = list((tmp_path / "deep" / "cache").iterdir())
        assert len(found) >= 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
        assert stat.S_IMODE((tmp_path / "deep" / "cache").stat().st_mode) == 0o700
        store.close()
    finally:
        os.umask(old)


def test_entry_files_are_safetensors(tmp_path):
    from safetensors import safe_open

    store = open_store(tmp_path)
    put(store, IDS[:10])
    store.close()
    row = listing(tmp_path)[0]
    with safe_open(tmp_path / row.rows_file, "numpy") as file:
        assert file.metadata()["entry"] == row.entry.id
    arrays = {**mx.load(str(tmp_path / row.rows_file)), **mx.load(str(tmp_path / row.state_file))}
    assert arrays["c.0.keys"].dtype == mx.bfloat16
    kv, state = imaginary(IDS[:10])
    assert mx.array_equal(arrays["c.0.keys"], kv.keys_and_values()[0])
    assert mx.array_equal(arrays["c.1.0"], state[0]) and len(arrays) == 4


def test_fingerprint_keeps_models_and_settings_apart(tmp_path):
    marks = [
        fingerprint("weights", b"{}"),
        fingerprint("weights", b"{ }"),
        fingerprint("other", b"{}"),
        fingerprint("weights", b"{}", kv_format="k4v3"),
        fingerprint("weights", b"{}", chunk=512),
        fingerprint("weights", b"{}", device="gpu"),
    ]
    assert len({mark.key for mark in marks}) == len(marks)
    stores = [open_store(tmp_path, mark=mark) for mark in marks]
    for i, store in enumerate(stores):
        assert restored(store, IDS) == 0
        put(store, IDS[: 20 + i])
        store.flush()
    for i, store in enumerate(stores):
        assert restored(store, IDS) == 20 + i
        store.close()


def test_entries_of_an_older_setup_are_removed(tmp_path):
    store = open_store(tmp_path, mark=fingerprint("weights", b"{}", template="old"))
    put(store, IDS[:10])
    put(store, IDS[:20])
    store.close()
    other = open_store(tmp_path, mark=fingerprint("other weights", b"{}"))
    other.close()
    assert len(listing(tmp_path)) == 2
    store = open_store(tmp_path, mark=fingerprint("weights", b"{}", template="new"))
    assert restored(store, IDS) == 0
    store.flush()
    assert store.stats["dropped: fingerprint"] == 2
    store.close()
    assert listing(tmp_path) == [] and not verify(tmp_path).garbage


def test_memory_only_turns_write_nothing(tmp_path):
    session = Session(open_store(tmp_path), None, make_cache=blank)
    session.begin(IDS[:50], disk=False)
    assert session.snapshot(IDS[:40], imaginary(IDS[:40]), "turn") == session.snapshot_bytes > 0
    session.flush()
    assert listing(tmp_path) == []
    assert session.begin(IDS, disk=False).length == 40
    session.close()


def test_session_refuses_without_failing():
    class Odd(KVCache):
        pass

    session = Session(open_store(None), None, make_cache=lambda: [Odd()])
    assert session.begin(IDS).length == 0
    assert session.snapshot([], [], "head") == 0
    assert session.snapshot(IDS[:3], imaginary(IDS[:5]), "turn") == 0
    assert session.stats["misplaced"] == 1
    assert session.snapshot(IDS[:3], [Odd()], "turn") == 0
    assert "Odd" in session.stats["unsupported"]
    with pytest.raises(UnsupportedCache):
        session.store.put(IDS[:3], [Odd()], "turn")
    assert Session(None, None, make_cache=blank).begin(IDS).length == 0


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[malloc] Unable to allocate 1 bytes.")])
def test_no_memory_for_a_snapshot_does_not_fail_the_turn(monkeypatch, error):
    def full(*_, **__):
        raise error

    session = Session(open_store(None), None, make_cache=blank)
    monkeypatch.setattr(store_module, "capture", full)
    assert session.snapshot(IDS[:3], imaginary(IDS[:3]), "turn") == 0
    assert session.stats["no room"] == 1
    monkeypatch.undo()
    assert session.snapshot(IDS[:3], imaginary(IDS[:3]), "turn") > 0


def test_what_was_filed_is_on_disk_when_the_process_ends(tmp_path):
    script = f"""
        import sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from test_state_store import IDS, open_store, put
        store = open_store({str(tmp_path)!r})
        for end in range(5, 100, 5):
            put(store, IDS[:end])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120)
    store = open_store(tmp_path)
    assert restored(store, IDS) == 95
    store.close()
    report = verify(tmp_path)
    assert report.entries == 19 and not report.problems and not report.garbage
