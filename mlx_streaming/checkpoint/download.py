"""Download a checkpoint into the hub cache so that it survives interruption and arrives whole.

huggingface_hub decides where files go and makes the snapshot. The large files are fetched here, because its
2.x client throws a partial file away when the process ends: with 5 GB shards that loses hours. A partial file
is `blobs/<sha256>.incomplete`; it is continued by a byte range, checked against the hub's sha256, and then
renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from ..errors import CapacityError, CheckpointError
from .drop import dropped_shard, forget
from .hub import HubFile, HubRepo, describe, endpoint, hub_errors, stream

DEFAULT_REPO = "mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit"
WORKERS = 4  # files at once; more gains nothing on one line and leaves more files unfinished
RESERVE = 2 * 10**9  # bytes left free: a machine without room for its swap file stops working

Progress = Callable[[str, int, int], None]  # (phase "download" or "verify", bytes done, bytes in all)


@dataclass(frozen=True)
class Downloaded:
    """A complete checkpoint directory. `fetched` bytes came over the network, `verified` files were hashed.

    `note` is set when the hub could not be asked and the copy in the cache was taken as it is.
    """

    repo: str
    path: Path
    commit: str
    size: int
    fetched: int
    verified: int
    note: str | None = None


def download(
    repo: str = DEFAULT_REPO,
    revision: str = "main",
    *,
    on_progress: Progress = lambda phase, done, total: None,
    verify: bool = True,
    restore: bool = False,
    extra_space: int = 0,
    files: Sequence[HubFile] | None = None,
    hub: HubRepo | None = None,
) -> Downloaded:
    """Bring the checkpoint `repo` into the hub cache, going on where an earlier call stopped.

    `verify` hashes the files that were already in the cache too; new files are always hashed. Shards
    whose experts were dropped are taken as they are, with `restore` fetched again. `extra_space` bytes are
    asked of the disk on top. `hub` saves the lookup; `files` restricts what is fetched.

    Raises:
        CheckpointError: not found, not allowed, not reachable, or damaged on arrival.
        CapacityError: the disk is too small; nothing was fetched.
    """
    from huggingface_hub.utils import disable_progress_bars

    if hub is None:
        try:
            hub = describe(repo, revision)
        except CheckpointError as error:
            return _from_cache(repo, revision, error)
    wanted = tuple(files) if files is not None else hub.checkpoint_files()
    folder = repo_folder(repo)
    snapshot = folder / "snapshots" / hub.commit
    missing = [f for f in wanted if not _in_cache(folder, hub, f)]
    if restore:
        again = [f for f in wanted if f not in missing and dropped_shard(snapshot / f.name)]
        extra_space += sum(f.size for f in again)
        missing += again
    require_space(hub, wanted, extra_space)
    disable_progress_bars()  # the client's: one bar over all files is ours to show
    work = _Work(hub, folder, on_progress, sum(f.size for f in wanted))
    work.advance("download", work.total - sum(f.size for f in missing))
    with hub_errors(repo, revision):
        work.fetch_all(missing)
        verified = len(missing)
        if verify:
            verified += work.verify_cached([f for f in wanted if f not in missing])
        _write_ref(folder, revision, hub.commit)
    _check_complete(snapshot, wanted, verified if verify else len(wanted))
    return Downloaded(repo, snapshot, hub.commit, work.total, work.fetched, verified)


def repo_folder(repo: str) -> Path:
    """Where the hub cache keeps `repo`: blobs/, snapshots/<commit>/ and refs/ lie below it."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")


def require_space(hub: HubRepo, files: Sequence[HubFile] | None = None, extra: int = 0) -> None:
    """Refuse when what is still missing of `files` (None: of the checkpoint) and `extra` bytes do not fit.

    Raises:
        CapacityError: with both numbers.
    """
    check_space(repo_folder(hub.repo), missing_bytes(hub, files) + extra, f"{hub.repo} needs")


def missing_bytes(hub: HubRepo, files: Sequence[HubFile] | None = None) -> int:
    """Bytes that are still to be fetched of `files` (None: of the checkpoint)."""
    folder = repo_folder(hub.repo)
    wanted = hub.checkpoint_files() if files is None else files
    return sum(f.size - _partial_size(folder, f) for f in wanted if not _in_cache(folder, hub, f))


def check_space(where: Path, need: int, what: str) -> None:
    """Refuse before anything is written when `need` bytes do not fit beside a reserve for the system.

    Raises:
        CapacityError: with both numbers.
    """
    existing = next(p for p in (where, *where.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if need > 0 and need + RESERVE > free:
        raise CapacityError(
            f"{what} {need / 1e9:.1f} GB more on disk (and {RESERVE / 1e9:.0f} GB left free), but {existing}"
            f" has {free / 1e9:.1f} GB; free {(need + RESERVE - free) / 1e9:.1f} GB, or set HF_HOME to"
            " another disk."
        )


class _Work:
    """One download: shared progress, and a stop flag so that one failure ends all streams soon."""

    def __init__(self, hub: HubRepo, folder: Path, on_progress: Progress, total: int):
        self.hub, self.folder, self.total = hub, folder, total
        self.fetched = 0
        self._done: dict[str, int] = {}
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def advance(self, phase: str, count: int) -> None:
        with self._lock:
            self._done[phase] = self._done.get(phase, 0) + count
            self._on_progress(phase, self._done[phase], self.total)

    def fetch_all(self, files: Sequence[HubFile]) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="download") as pool:
            futures = [pool.submit(self._fetch, file) for file in files]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _fetch(self, file: HubFile) -> None:
        if self._stop.is_set():
            return
        if file.sha256 is not None:
            blob = self.folder / "blobs" / file.sha256
            with self._lock_of(blob):
                if _has_size(blob, file.size) and sha256(blob) == file.sha256:
                    self.advance("download", file.size)
                else:
                    self._fetch_large(file, blob)
        if not self._stop.is_set():
            self._link(file)
            with self._lock:
                forget(self.folder / "snapshots" / self.hub.commit / file.name)

    def _lock_of(self, blob: Path):
        """The client's own lock, so that two programs never write one file."""
        from huggingface_hub.utils import WeakFileLock

        lock = self.folder.parent / ".locks" / self.folder.name / f"{blob.name}.lock"
        for directory in (blob.parent, lock.parent):
            directory.mkdir(parents=True, exist_ok=True)
        return WeakFileLock(lock)

    def _link(self, file: HubFile) -> None:
        """Let the client make the snapshot entry; it fetches small files and finds large ones in blobs."""
        from huggingface_hub import hf_hub_download

        found = Path(hf_hub_download(self.hub.repo, file.name, revision=self.hub.commit))
        if file.sha256 is not None:
            return
        if not matches(found, file):
            _remove(found)
            raise CheckpointError(
                f"{file.name} of {self.hub.repo} arrived damaged and was removed; run the same command again."
            )
        with self._lock:
            self.fetched += file.size
        self.advance("download", file.size)

    def _fetch_large(self, file: HubFile, blob: Path) -> None:
        partial = _partial(blob)
        started_at = _size(partial)
        if started_at > file.size:
            partial.unlink()
            started_at = 0
        self.advance("download", started_at)
        with open(partial, "ab") as handle:
            for chunk in stream(self.hub, file.name, started_at, file.size, self._stop.is_set):
                handle.write(chunk)
                with self._lock:
                    self.fetched += len(chunk)
                self.advance("download", len(chunk))
            if self._stop.is_set():
                return
            handle.flush()
            os.fsync(handle.fileno())
        if sha256(partial) == file.sha256:
            os.replace(partial, blob)
            return
        partial.unlink()
        self.advance("download", -file.size)
        if started_at:  # what was there before may have been at fault: once more, from the first byte
            return self._fetch_large(file, blob)
        raise CheckpointError(
            f"{file.name} of {self.hub.repo} arrived with a wrong checksum and was removed; run the same"
            f" command again, or check what {endpoint()} serves."
        )

    def verify_cached(self, files: Sequence[HubFile]) -> int:
        """Hash files that were there before and fetch again what is damaged; the number of files hashed."""
        for file in files:
            entry = self.folder / "snapshots" / self.hub.commit / file.name
            if not matches(entry, file):
                _remove(entry)
                self.advance("download", -file.size)
                self._fetch(file)
            self.advance("verify", file.size)
        return len(files)


def matches(path: Path, file: HubFile) -> bool:
    """Whether `path` has the size and hash that the hub gives for `file`, or the hash noted when dropping."""
    if _size(path) != file.size:
        return False
    if file.sha256 is not None:
        dropped = dropped_shard(path)
        if dropped and dropped.sha256 is None:  # interrupted; completing it settles the hash
            return True
        return sha256(path) in (file.sha256, dropped and dropped.sha256)
    if file.blob_id is None:
        return True
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == file.blob_id


def sha256(path: Path) -> str:
    """sha256 (hex) of a file."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _in_cache(folder: Path, hub: HubRepo, file: HubFile) -> bool:
    return _has_size(folder / "snapshots" / hub.commit / file.name, file.size)


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _partial(blob: Path) -> Path:
    return blob.with_name(blob.name + ".incomplete")


def _partial_size(folder: Path, file: HubFile) -> int:
    if file.sha256 is None:
        return 0
    blob = folder / "blobs" / file.sha256
    return file.size if _has_size(blob, file.size) else min(file.size, _size(_partial(blob)))


def _remove(entry: Path) -> None:
    """Remove a snapshot entry and the blob it points to."""
    if entry.is_symlink():
        blob = entry.parent / os.readlink(entry)
        blob.unlink(missing_ok=True)
    entry.unlink(missing_ok=True)


def _write_ref(folder: Path, revision: str, commit: str) -> None:
    """Let other programs find the snapshot by its branch, as the client does, but once it is complete."""
    if revision == commit:
        return
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    temporary = ref.with_name(f".{ref.name}.{os.getpid()}")
    temporary.write_text(commit)
    os.replace(temporary, ref)


def _check_complete(path: Path, files: Sequence[HubFile], verified: int) -> None:
    bad = [f.name for f in files if not _has_size(path / f.name, f.size)]
    if bad or not files or verified != len(files):
        raise CheckpointError(
            f"{path} is incomplete ({bad[0] if bad else 'nothing was checked'}); run the same command again."
        )


def _from_cache(repo: str, revision: str, error: CheckpointError) -> Downloaded:
    """The complete copy that is already here, or `error`."""
    from .index import TensorIndex

    if isinstance(error.__cause__, ValueError):  # not a possible name
        raise error
    folder = repo_folder(repo)
    ref = folder / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    path = folder / "snapshots" / commit
    if not path.is_dir():
        raise error
    try:
        index = TensorIndex.open(path)
    except CheckpointError:
        raise error from None
    size = sum(file.stat().st_size for file in index.files)
    return Downloaded(
        repo, path, commit, size, 0, 0, note=f"{error} Taking the copy in the cache, unverified."
    )
