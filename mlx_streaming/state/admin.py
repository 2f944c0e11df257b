"""Looking after a store from outside: list, describe, clear and verify it, with no model and no MLX."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import EngineError
from .disk import garbage
from .entry import entry_ids
from .files import EntryFile, Stale, unlink
from .index import NAME, Index, Row, VersionMismatch

CLEAR = "llm mlx-streaming cache clear"


@dataclass(frozen=True)
class Summary:
    """Sizes in bytes. `conversations`: entries that nothing extends."""

    directory: str
    entries: int
    conversations: int
    tokens: int
    nbytes: int
    without_state: int
    kinds: dict[str, int]
    models: dict[str, int]


@dataclass(frozen=True)
class Problem:
    """Something that a turn would ignore and remove: `reason` as in the statistics."""

    entry: str
    reason: str


@dataclass
class Report:
    """What `verify` compared: entries (chains, tokens), files and their bytes; and what was wrong."""

    entries: int = 0
    files: int = 0
    nbytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)


def listing(directory: Path) -> list[Row]:
    """Every entry, the one used last first; empty when there is no store.

    Raises:
        EngineError: the index cannot be read.
    """
    with _opened(directory) as index:
        return list(reversed(index.rows())) if index else []


def summary(directory: Path) -> Summary:
    """Totals of a store.

    Raises:
        EngineError: the index cannot be read.
    """
    rows = listing(directory)
    parents = {row.entry.parent for row in rows}
    kinds: dict[str, int] = {}
    models: dict[str, int] = {}
    for row in rows:
        kinds[row.entry.kind] = kinds.get(row.entry.kind, 0) + 1
        models[row.label or "unnamed"] = models.get(row.label or "unnamed", 0) + row.nbytes
    return Summary(
        str(directory),
        len(rows),
        sum(row.entry.id not in parents for row in rows),
        sum(row.entry.end - row.entry.start for row in rows),
        sum(row.nbytes for row in rows),
        sum(not row.state_file for row in rows),
        kinds,
        models,
    )


def clear(
    directory: Path, *, ids: tuple[str, ...] = (), label: str | None = None, older_s: float | None = None
) -> tuple[int, int]:
    """Remove entries with all that extend them: those whose id begins with one of `ids`, of the model
    `label`, or made more than `older_s` seconds ago; everything (an unusable index too) without a filter.

    Returns:
        (entries, bytes) removed.

    Raises:
        EngineError: the index cannot be read (with a filter), or an id fits nothing.
    """
    everything = not ids and label is None and older_s is None
    try:
        with _opened(directory) as index:
            if index is None:
                return 0, 0
            rows = index.rows()
            _known(rows, ids)
            chosen = [r for r in rows if everything or _chosen(r, ids, label, older_s)]
            before = index.total_bytes()
            count = 0
            for row in chosen:
                removed, files = index.remove(row.entry.id)
                count += removed
                for name in files:
                    unlink(directory / name)
            if everything:
                for path in garbage(directory, index):
                    unlink(path)
            return count, before - index.total_bytes()
    except EngineError:
        if not everything:
            raise
    from .index import reset

    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    reset(directory)
    return 0, size


def _known(rows: list[Row], ids: tuple[str, ...]) -> None:
    for wanted in ids:
        if not any(row.entry.id.startswith(wanted) for row in rows):
            raise EngineError(f"No snapshot's id begins with {wanted!r}; see: llm mlx-streaming cache list")


def _chosen(row: Row, ids: tuple[str, ...], label: str | None, older_s: float | None) -> bool:
    return (
        (not ids or row.entry.id.startswith(ids))
        and (label is None or row.label == label)
        and (older_s is None or time.time() - row.created > older_s)
    )


def verify(
    directory: Path, *, repair: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read every byte of a store and check it: headers, checksums, chains, and ids against tokens.

    Files that no entry names are listed as garbage, which is harmless (a killed process leaves it). With
    `repair` what is wrong is removed, and so is garbage.

    Raises:
        EngineError: the index cannot be read.
    """
    report = Report()
    with _opened(directory) as index:
        if index is None:
            return report
        rows = {row.entry.id: row for row in index.rows()}
        for i, row in enumerate(rows.values()):
            _check_entry(directory, row, rows, report)
            if on_progress:
                on_progress(i + 1, len(rows))
        report.garbage = sorted(path.name for path in garbage(directory, index))
        if repair:
            for problem in report.problems:
                for name in index.remove(problem.entry)[1]:
                    unlink(directory / name)
            for name in report.garbage:
                unlink(directory / name)
    return report


def _check_entry(directory: Path, row: Row, rows: dict[str, Row], report: Report) -> None:
    report.entries += 1
    entry_id = row.entry.id
    reason = _check_chain(row, rows)
    if reason:
        report.problems.append(Problem(entry_id, reason))
    for name, check in ((row.rows_file, row.rows_check), (row.state_file, row.state_check)):
        if not name:
            continue
        try:
            file = EntryFile.read(directory / name, check, entry_id)
            report.nbytes += file.verify()
            if file.meta["entry"] != entry_id or file.meta["fingerprint"] != row.fingerprint:
                raise Stale("layout")
        except Stale as stale:
            report.problems.append(Problem(entry_id, stale.reason))
        report.files += 1


def _check_chain(row: Row, rows: dict[str, Row]) -> str | None:
    parts = []
    link: Row | None = row
    end = row.entry.end
    while link is not None:
        entry = link.entry
        if entry.end != end or len(entry.tokens) != 4 * (end - entry.start):
            return "tokens"
        if link.fingerprint != row.fingerprint:
            return "fingerprint"
        parts.append(np.frombuffer(entry.tokens, np.int32))
        end = entry.start
        link = rows.get(entry.parent) if entry.parent else None
    if end != 0:
        return "parent"
    tokens = np.concatenate(list(reversed(parts)))
    return (
        None if entry_ids(row.fingerprint, tokens, [len(tokens)])[len(tokens)] == row.entry.id else "tokens"
    )


@contextmanager
def _opened(directory: Path) -> Iterator[Index | None]:
    if not (directory / NAME).exists():
        yield None
        return
    try:
        index = Index(directory, create=False)
    except (OSError, sqlite3.Error, VersionMismatch) as error:
        raise _unreadable(directory, error) from None
    try:
        yield index
    except sqlite3.Error as error:
        raise _unreadable(directory, error) from None
    finally:
        index.close()


def _unreadable(directory: Path, error: Exception) -> EngineError:
    return EngineError(
        f"The snapshot index in {directory} cannot be read ({error}); start afresh with: {CLEAR}"
    )
