"""A broker's metadata in one SQLite file.

WAL with `synchronous=FULL`: a commit is on disk when it returns. One connection, guarded by a lock, so any thread may call.
SQLite's errors are turned into ours here: no room leaves everything as it was; after any other failure of a write the
connection refuses further ones, since nobody knows what the disk holds.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from postroad.errors import CorruptMetadataError, StorageError, StorageFailedError, StorageFormatError, StorageFullError

SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 5_000
_APPLICATION_ID: Final = 0x50726D64  # marks the file as ours
_SCHEMA: Final = """
CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE pubends (pubend TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('incarnation', 0);
"""
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteMetadata:
    """Opens the file, or makes it."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._lock = threading.Lock()
        self._failed: str | None = None
        with self._mapping_errors():
            path.touch(mode=0o600)  # the files SQLite puts beside it get the same mode
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._mapping_errors():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> tuple[tuple[str, bytes], ...]:
        with self._lock, self._mapping_errors():
            return tuple(
                (key, bytes(value)) for key, value in self._connection.execute("SELECT key, value FROM pairs ORDER BY key")
            )

    def store(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        last = dict(changes)
        written = [(key, value) for key, value in last.items() if value is not None]
        deleted = [(key,) for key, value in last.items() if value is None]
        with self._lock, self._transaction():
            self._connection.executemany("DELETE FROM pairs WHERE key = ?", deleted)
            self._connection.executemany(
                "INSERT INTO pairs VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", written
            )

    def next_incarnation(self) -> int:
        with self._lock, self._transaction():
            update = "UPDATE counters SET value = value + 1 WHERE name = 'incarnation' RETURNING value"
            return int(self._connection.execute(update).fetchall()[0][0])

    def pubends(self) -> tuple[int, ...]:
        """Return the pubends whose logs were created."""
        with self._lock, self._mapping_errors():
            return tuple(sorted(int(row[0]) for row in self._connection.execute("SELECT pubend FROM pubends")))

    def add_pubends(self, pubends: Sequence[int]) -> None:
        with self._lock, self._transaction():  # as text: a u64 does not fit SQLite's integers
            self._connection.executemany("INSERT OR IGNORE INTO pubends VALUES (?)", [(str(pubend),) for pubend in pubends])

    def close(self) -> None:
        with self._lock:
            self._failed = "it is closed"
            self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        (application,), (version,) = execute("PRAGMA application_id").fetchone(), execute("PRAGMA user_version").fetchone()
        if application == 0 and version == 0 and execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            self._create()
        elif application != _APPLICATION_ID:
            raise StorageFormatError(str(self.path), "this is no metadata of a broker")
        elif version != SCHEMA_VERSION:
            reason = f"metadata of version {version}, where this release reads version {SCHEMA_VERSION}"
            raise StorageFormatError(str(self.path), reason)

    def _create(self) -> None:
        marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        self._connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {marks} COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what is done inside, durably, or undo it."""
        if self._failed is not None:
            raise StorageFailedError(str(self.path), self._failed)
        try:
            with self._mapping_errors():
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
        except BaseException as error:
            if isinstance(error, StorageFailedError):
                self._failed = error.reason
            if self._connection.in_transaction:
                with self._mapping_errors():
                    self._connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _mapped(error, self.path) from error
        except OSError as error:
            raise StorageFailedError(str(self.path), error.strerror or str(error)) from error


def _mapped(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return StorageFullError(str(path), str(error))
    if primary in _DAMAGED:
        return CorruptMetadataError(str(path), str(error))
    return StorageFailedError(str(path), str(error))
