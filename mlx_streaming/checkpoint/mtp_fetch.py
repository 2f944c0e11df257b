"""Fetch only the MTP tensors of an original release: byte ranges of the shards that hold `mtp.*`.

Conversions for MLX drop these tensors, and the shards around them are much larger than they are.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError
from .download import Progress, check_space, download
from .hub import CHUNK, HubRepo, RangeIgnored, describe, hub_errors, read_header, read_json, stream
from .index import INDEX_NAME

PREFIX = "mtp."


@dataclass(frozen=True)
class Part:
    """A run of bytes of one shard: `start` to `stop` (exclusive)."""

    shard: str
    start: int
    stop: int


@dataclass(frozen=True)
class Selection:
    """What is to be fetched: the new file's header and, in its order, where its data lies."""

    header: bytes
    parts: tuple[Part, ...]
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the finished file."""
        return len(self.header) + sum(p.stop - p.start for p in self.parts)


def fetch_mtp(
    repo: str,
    target: Path,
    revision: str = "main",
    *,
    prefix: str = PREFIX,
    on_progress: Progress = lambda phase, done, total: None,
) -> Selection:
    """Write the tensors of `repo` whose names start with `prefix` to the safetensors file `target`.

    An interrupted call leaves `target`.incomplete, which the next one continues. A server that ignores byte
    ranges costs the whole shards, which then stay in the hub cache.

    Raises:
        CheckpointError: the release has no such tensors, or the hub failed; CapacityError: no space.
    """
    hub = describe(repo, revision)
    chosen = select(hub, prefix)
    if target.is_file() and target.stat().st_size == chosen.size and _starts_with(target, chosen.header):
        return chosen
    check_space(target.parent, chosen.size, f"The MTP head of {repo} needs")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".incomplete")
    with hub_errors(repo, revision), open(partial, "ab+") as handle:
        if handle.tell() > chosen.size or not _starts_with(partial, chosen.header):
            handle.truncate(0)
            handle.write(chosen.header)
        try:
            _append(
                handle, chosen, lambda part, start: stream(hub, part.shard, start, part.stop), on_progress
            )
        except RangeIgnored:
            snapshot = _whole_shards(hub, chosen, on_progress)
            _append(handle, chosen, lambda part, start: _local(snapshot, part, start), on_progress)
        handle.flush()
        os.fsync(handle.fileno())
        if handle.tell() != chosen.size:
            raise CheckpointError(f"{partial} has {handle.tell()} of {chosen.size} bytes; try again.")
    os.replace(partial, target)
    return chosen


def select(hub: HubRepo, prefix: str = PREFIX) -> Selection:
    """Find the tensors below `prefix` in the index and headers of `hub`.

    Raises:
        CheckpointError: there are none.
    """
    found = []
    for shard in _shards(hub, prefix):
        file = hub.file(shard)
        if file is None:
            raise CheckpointError(
                f"{hub.repo} lacks {shard}, which its index names; choose another revision."
            )
        head = read_header(hub, file)
        entries = json.loads(head[8:])
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            if name.startswith(prefix):
                start, stop = (len(head) + n for n in entry["data_offsets"])
                if stop > file.size:
                    raise CheckpointError(f"{shard} of {hub.repo} is truncated; choose another revision.")
                found.append((shard, start, stop, name, entry))
    if not found:
        raise CheckpointError(
            f"{hub.repo} has no tensors named {prefix}*, so it has no MTP head; use --no-mtp, or name the"
            " original release with --mtp-from."
        )
    found.sort(key=lambda item: item[:2])
    return _layout(hub, found)


def _layout(hub: HubRepo, found: list[tuple]) -> Selection:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "source": f"{hub.repo}@{hub.commit}"}}
    parts: list[Part] = []
    at = 0
    for shard, start, stop, name, entry in found:
        entries[name] = {**entry, "data_offsets": [at, at + stop - start]}
        at += stop - start
        if parts and parts[-1].shard == shard and parts[-1].stop == start:
            parts[-1] = Part(shard, parts[-1].start, stop)
        else:
            parts.append(Part(shard, start, stop))
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)  # the format asks for an aligned start of the data
    return Selection(struct.pack("<Q", len(text)) + text, tuple(parts), tuple(item[3] for item in found))


def _shards(hub: HubRepo, prefix: str) -> list[str]:
    if hub.file(INDEX_NAME) is None:
        return [f.name for f in hub.files if f.name.endswith(".safetensors") and "/" not in f.name]
    weight_map = read_json(hub, INDEX_NAME).get("weight_map") or {}
    return sorted({shard for name, shard in weight_map.items() if name.startswith(prefix)})


def _append(handle, chosen: Selection, read: Callable[[Part, int], Iterator[bytes]], on_progress) -> None:
    """Append what `handle` lacks of `chosen`, in order."""
    handle.seek(0, os.SEEK_END)
    skip = handle.tell() - len(chosen.header)
    for part in chosen.parts:
        length = part.stop - part.start
        if skip < length:
            for chunk in read(part, part.start + skip):
                handle.write(chunk)
                on_progress("mtp", handle.tell(), chosen.size)
        skip = max(0, skip - length)


def _whole_shards(hub: HubRepo, chosen: Selection, on_progress) -> Path:
    names = {part.shard for part in chosen.parts}
    files = [f for f in hub.files if f.name in names]
    return download(hub.repo, hub.commit, hub=hub, files=files, on_progress=on_progress).path


def _local(snapshot: Path, part: Part, start: int) -> Iterator[bytes]:
    with open(snapshot / part.shard, "rb") as handle:
        handle.seek(start)
        left = part.stop - start
        while left and (chunk := handle.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk


def _starts_with(path: Path, header: bytes) -> bool:
    with open(path, "rb") as handle:
        return handle.read(len(header)) == header
