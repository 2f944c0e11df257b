"""Index: the SQLite table that says which entry files exist and how they hang together.

Many processes use it at once (WAL). The order of use is a counter, not a clock, so a clock that goes
backwards changes nothing. Rows are inserted after their files are in place and deleted before them.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from .entry import Entry
from .files import entry_files, unlink
from .fingerprint import SCHEMA, Fingerprint

NAME = "index.db"
BUSY_S = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS entries (
    id TEXT PRIMARY KEY, parent TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    kind TEXT NOT NULL, tokens BLOB NOT NULL, layout TEXT NOT NULL, hot TEXT NOT NULL,
    fingerprint TEXT NOT NULL, model TEXT NOT NULL, setup TEXT NOT NULL, label TEXT NOT NULL,
    rows_file TEXT NOT NULL, rows_check TEXT NOT NULL, rows_bytes INTEGER NOT NULL,
    state_file TEXT NOT NULL, state_check TEXT NOT NULL, state_bytes INTEGER NOT NULL,
    created REAL NOT NULL, used INTEGER NOT NULL
)"""

_COLUMNS = (
    *("id", "parent", "first", "last", "kind", "tokens", "layout", "hot"),
    *("fingerprint", "model", "setup", "label", "rows_file", "rows_check", "rows_bytes"),
    *("state_file", "state_check", "state_bytes", "created", "used"),
)


@dataclass(frozen=True)
class Row:
    """An entry on disk. An empty file name: no such file (no rows, or a state that was given up)."""

    entry: Entry
    fingerprint: str
    label: str
    rows_file: str
    rows_check: str
    rows_bytes: int
    state_file: str
    state_check: str
    state_bytes: int
    created: float
    used: int

    @property
    def nbytes(self) -> int:
        return self.rows_bytes + self.state_bytes

    @property
    def files(self) -> list[str]:
        return [name for name in (self.rows_file, self.state_file) if name]


class Index:
    """One connection; use it from one thread at a time.

    Args:
        directory: where the store lies; made (0700) when it is not there.

    Raises:
        sqlite3.OperationalError, OSError: the place cannot be written.
        sqlite3.DatabaseError: the file is not an index or is damaged; see `reset`.
        VersionMismatch: another version of this program wrote it.
    """

    def __init__(self, directory: Path, create: bool = True):
        self.directory = directory
        path = directory / NAME
        if create:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        mode = "rwc" if create else "rw"
        self.db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare()
        except BaseException:
            self.db.close()
            raise

    def _prepare(self) -> None:
        if self.db.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            self.db.execute("PRAGMA journal_mode=DELETE")
        self.db.execute("PRAGMA synchronous=NORMAL")
        found = self.db.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, SCHEMA):
            raise VersionMismatch(f"index version {found}, not {SCHEMA}")
        if found == 0:
            self.db.execute("BEGIN IMMEDIATE")
            self.db.execute(_TABLE)
            self.db.execute("CREATE INDEX IF NOT EXISTS by_parent ON entries(parent)")
            self.db.execute("CREATE INDEX IF NOT EXISTS by_end ON entries(fingerprint, last)")
            self.db.execute(f"PRAGMA user_version={SCHEMA}")
            self.db.execute("COMMIT")
        columns = tuple(found[1] for found in self.db.execute("PRAGMA table_info(entries)"))
        if columns != _COLUMNS:
            raise sqlite3.DatabaseError("not an index of snapshots")

    def close(self) -> None:
        self.db.close()

    def candidates(self, key: str, limit: int, need_state: bool) -> list[tuple[int, str]]:
        """(end, id) of the entries under fingerprint `key` that end at or before `limit`."""
        query = "SELECT last, id FROM entries WHERE fingerprint = ? AND last <= ?"
        return self.db.execute(
            query + (" AND state_file != ''" if need_state else ""), (key, limit)
        ).fetchall()

    def get(self, entry_id: str) -> Row | None:
        found = self.rows("WHERE id = ?", (entry_id,))
        return found[0] if found else None

    def rows(self, where: str = "ORDER BY used", values: tuple = ()) -> list[Row]:
        """Rows selected by an SQL tail."""
        query = (
            "SELECT id, parent, first, last, kind, tokens, layout, hot, fingerprint, label, rows_file,"
            " rows_check, rows_bytes, state_file, state_check, state_bytes, created, used FROM entries "
        )
        return [_row(values) for values in self.db.execute(query + where, values)]

    def insert(self, row: Row, mark: Fingerprint) -> bool:
        """File an entry unless it is there already or its parent is gone; True when it was filed."""
        entry = row.entry
        with Transaction(self.db):
            if entry.parent and not self.exists(entry.parent):
                return False
            cursor = self.db.execute(
                "INSERT OR IGNORE INTO entries VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,"
                "(SELECT COALESCE(MAX(used), 0) + 1 FROM entries))",
                (entry.id, entry.parent, entry.start, entry.end, entry.kind, entry.tokens)
                + (entry.layout_text, entry.hot_text, mark.key, mark.model, mark.setup, row.label)
                + (row.rows_file, row.rows_check, row.rows_bytes)
                + (row.state_file, row.state_check, row.state_bytes, row.created),
            )
            return cursor.rowcount == 1

    def exists(self, entry_id: str) -> bool:
        return self.db.execute("SELECT 1 FROM entries WHERE id = ?", (entry_id,)).fetchone() is not None

    def set_state(self, entry_id: str, name: str, check: str, nbytes: int) -> bool:
        """Give an entry that has no state one; False when it is gone or has one."""
        query = "UPDATE entries SET state_file=?, state_check=?, state_bytes=? WHERE id=? AND state_file=''"
        return self.db.execute(query, (name, check, nbytes, entry_id)).rowcount == 1

    def set_kind(self, entry_id: str, kind: str) -> None:
        self.db.execute("UPDATE entries SET kind = ? WHERE id = ?", (kind, entry_id))

    def touch(self, entry_id: str) -> None:
        """Mark as used last."""
        query = "UPDATE entries SET used = (SELECT MAX(used) + 1 FROM entries) WHERE id = ?"
        self.db.execute(query, (entry_id,))

    def thin(self, entry_id: str) -> list[str]:
        """Give up an entry's state; returns the file to unlink."""
        with Transaction(self.db):
            found = self.db.execute("SELECT state_file FROM entries WHERE id = ?", (entry_id,)).fetchone()
            query = "UPDATE entries SET state_file='', state_check='', state_bytes=0 WHERE id = ?"
            self.db.execute(query, (entry_id,))
        return [found[0]] if found and found[0] else []

    def remove(self, entry_id: str, only_leaf: bool = False) -> tuple[int, list[str]]:
        """Delete an entry and all that extend it; (how many, files to unlink)."""
        with Transaction(self.db):
            ids = self.descendants(entry_id)
            if only_leaf and len(ids) > 1:
                return 0, []
            files = []
            for name in ids:
                query = "SELECT rows_file, state_file FROM entries WHERE id = ?"
                files += [f for pair in self.db.execute(query, (name,)) for f in pair if f]
            count = 0
            for name in ids:
                count += self.db.execute("DELETE FROM entries WHERE id = ?", (name,)).rowcount
        return count, files

    def descendants(self, entry_id: str) -> list[str]:
        """The entry itself and all that extend it."""
        query = (
            "WITH RECURSIVE tree(id) AS (SELECT ? UNION SELECT entries.id FROM entries, tree"
            " WHERE entries.parent = tree.id) SELECT id FROM tree"
        )
        return [found[0] for found in self.db.execute(query, (entry_id,))]

    def total_bytes(self) -> int:
        return self.db.execute("SELECT COALESCE(SUM(rows_bytes + state_bytes), 0) FROM entries").fetchone()[0]

    def victim(self, spare: str) -> tuple[str, bool] | None:
        """(id, is it a leaf) of the least recently used entry, not `spare`, that can give something up.

        Leaves without state come first: nothing needs them.
        """
        query = (
            "SELECT id, NOT EXISTS (SELECT 1 FROM entries c WHERE c.parent = e.id) AS leaf FROM entries e"
            " WHERE id != ? AND (leaf OR state_file != '') ORDER BY state_file = '' DESC, used LIMIT 1"
        )
        found = self.db.execute(query, (spare,)).fetchone()
        return (found[0], bool(found[1])) if found else None

    def dead(self, mark: Fingerprint) -> list[tuple[str, str]]:
        """(id, reason) of entries that no process will ever use again."""
        orphans = "SELECT id FROM entries e WHERE parent != '' AND NOT EXISTS (SELECT 1 FROM entries p"
        found = [(name, "parent") for (name,) in self.db.execute(f"{orphans} WHERE p.id = e.parent)")]
        old = "SELECT id FROM entries WHERE model = ? AND setup != ?"
        found += [(name, "fingerprint") for (name,) in self.db.execute(old, (mark.model, mark.setup))]
        return found


class VersionMismatch(Exception):
    """The index was written by another version."""


class Transaction:
    """BEGIN IMMEDIATE ... COMMIT, rolled back on an exception."""

    def __init__(self, db: sqlite3.Connection):
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.db.execute("COMMIT")
        elif self.db.in_transaction:  # SQLite may have rolled back by itself (disk full)
            self.db.execute("ROLLBACK")


def reset(directory: Path) -> None:
    """Throw away an index that cannot be used, and every entry file."""
    for name in (NAME, f"{NAME}-wal", f"{NAME}-shm"):
        unlink(directory / name)
    for path in entry_files(directory):
        unlink(path)


def _row(values: tuple) -> Row:
    return Row(Entry(*values[:8]), *values[8:])
