"""drop: free the disk space of experts that a sound pack holds too, by punching holes into the shards.

Sizes, headers and offsets of the shards stay, and so does the digest of the weights: everything but reading
experts in place works as before. `experts-dropped.json` says which shards have holes. It lies beside the
names of the shards, where copies of the directory take it along, and beside the files that these names link
to (the blobs of the hub cache), where other snapshots with the same shards find it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import CheckpointError
from .holes import allocated, block_size, punch, require_punching
from .index import TensorIndex
from .packed import MANIFEST, Manifest, Progress, verify, write_json
from .spec import ModelSpec, layer_tensors

MARKER = "experts-dropped.json"
_VERSION = 1
_TAIL = 4096  # bytes at the end of a shard that `TensorIndex.digest` reads
_SAMPLE = 4096  # bytes, at most a block
_RESTORE = "`llm mlx-streaming download REPO --restore` fetches them again"

Ranges = Mapping[Path, tuple[tuple[int, int], ...]]  # shard -> (offset, bytes) of what can be freed


@dataclass(frozen=True)
class DroppedShard:
    """A shard with holes: where its experts are packed, and the sha256 of that pack's manifest.

    `sha256` is that of the shard with its holes; None while they are made.
    """

    packed: str
    manifest: str
    sha256: str | None = None


@dataclass(frozen=True)
class Drop:
    """The outcome: bytes on the disk that `shards` took before and after; experts `verified` in the pack."""

    shards: int
    before: int
    after: int
    verified: int

    @property
    def freed(self) -> int:
        return self.before - self.after


def drop(
    checkpoint: str | Path,
    packed: str | Path,
    on_progress: Progress = lambda done, total: None,
    on_verified: Callable[[], None] = lambda: None,
) -> Drop:
    """Verify the pack in `packed`, then free the experts in the shards of the directory `checkpoint`.

    `on_progress(bytes done, bytes in all)` covers verifying and the checksums of what remains. `on_verified`
    is called before the first byte goes. Run again after an interruption, it completes.

    Raises:
        CheckpointError: unsound pack, another checkpoint's, or shards that cannot be changed; nothing was
            changed then.
    """
    index = TensorIndex.open(checkpoint)
    spec = ModelSpec.read(checkpoint, index)
    packed, source = Path(packed).resolve(), index.digest()
    manifest = _fitting(packed, spec, source)
    ranges = _ranges(spec, index)
    _require_changeable(spec, ranges)
    total = manifest.nbytes + sum(file.stat().st_size for file in ranges)
    found = verify(packed, lambda done, _: on_progress(done, total))
    if found.problems:
        raise CheckpointError(f"Nothing was dropped, the pack is damaged: {found.problems[0]}")
    on_verified()
    before = sum(map(allocated, ranges))
    entry = DroppedShard(str(packed), _sha256(packed / MANIFEST))
    for file in ranges:
        _mark(file, entry)
    done = manifest.nbytes
    for file, places in ranges.items():
        _punch_all(file, places)
        _mark(file, DroppedShard(entry.packed, entry.manifest, _sha256(file)))
        done += file.stat().st_size
        on_progress(done, total)
    if TensorIndex.open(checkpoint).digest() != source:
        raise CheckpointError(f"{checkpoint} was changed by another program meanwhile; download it again.")
    return Drop(len(ranges), before, sum(map(allocated, ranges)), found.records)


def droppable(checkpoint: str | Path) -> Ranges:
    """What `drop` would free in the directory `checkpoint`.

    Raises:
        CheckpointError: not a checkpoint, or its shards cannot be changed.
    """
    index = TensorIndex.open(checkpoint)
    spec = ModelSpec.read(checkpoint, index)
    ranges = _ranges(spec, index)
    _require_changeable(spec, ranges)
    return ranges


def dropped_shard(file: Path) -> DroppedShard | None:
    """What the markers say of a shard; it may have been replaced by a whole one since.

    Raises:
        CheckpointError: a marker cannot be read.
    """
    for place in _places(file):
        if entry := _read(place.parent).get(place.name):
            return entry
    return None


def dropped_to(spec: ModelSpec, index: TensorIndex) -> str | None:
    """The directory with the experts of a checkpoint whose own were dropped; None: its shards have theirs.

    Raises:
        CheckpointError: a marker or a marked shard cannot be read.
    """
    marked = {file: entry for file in index.files if (entry := dropped_shard(file))}
    if not marked:
        return None
    for file, places in _ranges(spec, index).items():
        if file in marked and _has_hole(file, places):
            return marked[file].packed
    return None


def require_experts(spec: ModelSpec, index: TensorIndex) -> None:
    """Refuse a checkpoint whose own experts were dropped.

    Raises:
        CheckpointError: they were; the message says where they are.
    """
    packed = dropped_to(spec, index)
    if packed is None:
        return
    if Path(packed, MANIFEST).is_file():
        raise CheckpointError(
            f"The experts of {spec.path} were dropped after packing; use the packed ones: set packed={packed}"
            f" (llm mlx-streaming add PATH --set packed={packed}), or {_RESTORE}."
        )
    raise CheckpointError(
        f"The experts of {spec.path} were dropped, and their pack {packed} is gone; bring it back, or"
        f" {_RESTORE}."
    )


def forget(file: Path) -> None:
    """Take a shard that is whole again out of the markers."""
    for place in _places(file):
        entries = _read(place.parent)
        if entries.pop(place.name, None) is not None:
            _write(place.parent, entries)


def _fitting(packed: Path, spec: ModelSpec, source: str) -> Manifest:
    """The pack's manifest, once it is known to hold every expert of these weights."""
    manifest = Manifest.read(packed)
    manifest.check_files(packed)
    counts = {n: layer.num_experts for n, layer in manifest.layers.items()}
    if manifest.source != source or any(counts.get(n) != e.num_experts for n, e in spec.experts.items()):
        raise CheckpointError(
            f"{packed} does not hold all experts of {spec.path}, so nothing was dropped; pack it again."
        )
    return manifest


def _ranges(spec: ModelSpec, index: TensorIndex) -> Ranges:
    """Whole blocks inside expert tensors, away from the end of the shard."""
    found: dict[Path, list[tuple[int, int]]] = {}
    for experts in spec.experts.values():
        for info in layer_tensors(index, experts.prefix).values():
            block = block_size(info.file)
            last = min(info.offset + info.nbytes, info.file.stat().st_size - _TAIL)
            start, end = -(-info.offset // block) * block, last // block * block
            if end > start:
                found.setdefault(info.file, []).append((start, end - start))
    return {file: tuple(sorted(places)) for file, places in sorted(found.items())}


def _require_changeable(spec: ModelSpec, ranges: Ranges) -> None:
    from ..demo import checkpoint_path

    if spec.path.resolve() == checkpoint_path().resolve():
        raise CheckpointError(
            "The embedded demo belongs to the program and keeps its experts; copy it first."
        )
    if not ranges:
        raise CheckpointError(
            f"The experts of {spec.path} are smaller than a block; there is nothing to drop."
        )
    for file in ranges:
        if not os.access(file, os.W_OK):
            raise CheckpointError(f"{file.resolve()} cannot be written; make it writable, then drop again.")
        if file.stat().st_nlink > 1:
            raise CheckpointError(
                f"{file.resolve()} is the same file under another name (a hard link), which would lose its"
                " experts too; remove the other name, or keep the experts."
            )
    for directory in {place.parent for file in ranges for place in _places(file)}:
        require_punching(directory)


def _punch_all(file: Path, places: tuple[tuple[int, int], ...]) -> None:
    try:
        fd = os.open(file, os.O_RDWR)
        try:
            for offset, nbytes in places:
                punch(fd, offset, nbytes)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise CheckpointError(
            f"Dropping the experts in {file} failed ({error.strerror}); the pack is sound and can be used."
            " Run the same command again to free the rest."
        ) from error


def _has_hole(file: Path, places: tuple[tuple[int, int], ...]) -> bool:
    """Whether the middle of any place reads as zeros, which no stored expert's does."""
    with open(file, "rb", buffering=0) as handle:
        fd = handle.fileno()
        return any(not any(os.pread(fd, _SAMPLE, at + (nbytes - _SAMPLE) // 2)) for at, nbytes in places)


def _places(file: Path) -> tuple[Path, ...]:
    """The names under which the markers list a shard."""
    return tuple(dict.fromkeys((file.absolute(), file.resolve())))


def _mark(file: Path, entry: DroppedShard) -> None:
    for place in _places(file):
        _write(place.parent, _read(place.parent) | {place.name: entry})


def _read(directory: Path) -> dict[str, DroppedShard]:
    marker = directory / MARKER
    try:
        data = json.loads(marker.read_text())
        return {str(name): DroppedShard(**entry) for name, entry in data["shards"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{marker} cannot be read ({error}), so it is not known whether the shards beside it have their"
            " experts; remove it and run `llm mlx-streaming download` again, which checks them."
        ) from error


def _write(directory: Path, entries: Mapping[str, DroppedShard]) -> None:
    marker = directory / MARKER
    try:
        if entries:
            shards = {name: asdict(entry) for name, entry in entries.items()}
            write_json(marker, {"version": _VERSION, "shards": shards})
        else:
            marker.unlink()
    except OSError as error:
        raise CheckpointError(f"Cannot write {marker} ({error.strerror}); make room there.") from error


def _sha256(file: Path) -> str:
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
