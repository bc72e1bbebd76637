"""A broker's metadata in one SQLite file.

Every row carries checksums, made of its key and its value: one flipped bit, or two values that changed places, do not pass for
what was stored. A row that fails is damaged: `load` leaves it out and `damaged` names it. It stays in the file until something
new is stored under its key, so that every start knows of it. Rows whose keys are damaged are deleted with the key "".

WAL with `synchronous=FULL`: a commit is on disk when it returns. One connection, guarded by a lock, so any thread may call.
SQLite's errors are turned into ours here: no room leaves everything as it was; after any other failure of a write the
connection refuses further ones, since nobody knows what the disk holds.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from postroad.errors import CorruptMetadataError, StorageError, StorageFailedError, StorageFormatError, StorageFullError

SCHEMA_VERSION: Final = 2
BUSY_TIMEOUT_MS: Final = 5_000
WAL_PAGES: Final = 256  # after which the log of changes is copied back: 1 MiB
UNREADABLE: Final = ""  # stands for the key of a damaged row whose key is damaged, too
_APPLICATION_ID: Final = 0x50726D64  # marks the file as ours
_INCARNATION: Final = "incarnation"
_PUBENDS: Final = "pubends"
_SCHEMA: Final = """
CREATE TABLE pairs (key TEXT PRIMARY KEY, value BLOB NOT NULL, key_sum INTEGER, row_sum INTEGER) WITHOUT ROWID;
CREATE TABLE pubends (pubend TEXT PRIMARY KEY, row_sum INTEGER) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL, row_sum INTEGER) WITHOUT ROWID;
INSERT INTO counters VALUES ('incarnation', 0, row_sum('incarnation', '0'));
"""
_READ: Final = "SELECT CAST(key AS BLOB), CAST(value AS BLOB), key_sum, row_sum FROM pairs ORDER BY key"
_MIGRATION: Final = """
ALTER TABLE pairs ADD COLUMN key_sum INTEGER;
ALTER TABLE pairs ADD COLUMN row_sum INTEGER;
ALTER TABLE pubends ADD COLUMN row_sum INTEGER;
ALTER TABLE counters ADD COLUMN row_sum INTEGER;
UPDATE pairs SET key_sum = row_sum(key, ''), row_sum = row_sum(key, value);
UPDATE pubends SET row_sum = row_sum(pubend, '');
UPDATE counters SET row_sum = row_sum(name, CAST(value AS TEXT));
"""
_STRUCTURE: Final = ("***", "Tree", "Page", "Freelist")  # how SQLite begins to speak of pages, not of rows
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteMetadata:
    """Opens the file, or makes it."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._lock = threading.Lock()
        self._failed: str | None = None
        self._noticed: dict[str, None] = {}  # what else was found damaged than pairs
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
        return self._read()[0]

    def damaged(self) -> tuple[str, ...]:
        return (*self._read()[1], *self._noticed)

    def _read(self) -> tuple[tuple[tuple[str, bytes], ...], tuple[str, ...]]:
        """Return the pairs that are whole, and the keys of those that are not."""
        whole: list[tuple[str, bytes]] = []
        damaged: dict[str, None] = {}
        with self._lock, self._mapping_errors():
            for key, value, key_sum, found in self._connection.execute(_READ):
                if found == row_sum(key, value):
                    whole.append((key.decode(), value))
                else:
                    damaged[key.decode() if key_sum == row_sum(key, b"") else UNREADABLE] = None
        return tuple(whole), tuple(damaged)

    def store(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        last = dict(changes)
        written = [(key, value) for key, value in last.items() if value is not None]
        deleted = [(key,) for key, value in last.items() if value is None]
        with self._lock, self._transaction():
            self._connection.executemany("DELETE FROM pairs WHERE key = ?", deleted)
            if UNREADABLE in last:
                self._connection.execute("DELETE FROM pairs WHERE key_sum IS NOT row_sum(CAST(key AS BLOB), x'')")
            self._connection.executemany(
                "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, ?)",
                [(key, value, row_sum(key, ""), row_sum(key, value)) for key, value in written],
            )

    def next_incarnation(self) -> int:
        """Count this start. A damaged count goes on from the clock: no broker starts more often than once per second."""
        with self._lock, self._transaction():
            found = self._connection.execute("SELECT value, row_sum FROM counters WHERE name = ?", (_INCARNATION,)).fetchall()
            whole = len(found) == 1 and found[0][1] == row_sum(_INCARNATION, str(found[0][0]))
            following = int(found[0][0]) + 1 if whole else max(int(time.time()), 1)
            if not whole:
                self._noticed[_INCARNATION] = None
            row = (_INCARNATION, following, row_sum(_INCARNATION, str(following)))
            self._connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?, ?)", row)
            return following

    def pubends(self) -> tuple[int, ...]:
        """Return the pubends whose logs were created; a damaged row names none."""
        with self._lock, self._mapping_errors():
            rows = self._connection.execute("SELECT CAST(pubend AS BLOB), row_sum FROM pubends").fetchall()
        whole = sorted(int(pubend) for pubend, found in rows if found == row_sum(pubend, b""))
        if len(whole) < len(rows):
            self._noticed[_PUBENDS] = None
        return tuple(whole)

    def add_pubends(self, pubends: Sequence[int]) -> None:
        if not pubends:
            return
        with self._lock, self._transaction():  # as text: a u64 does not fit SQLite's integers
            rows = [(str(pubend), row_sum(str(pubend), "")) for pubend in pubends]
            self._connection.executemany("INSERT OR REPLACE INTO pubends VALUES (?, ?)", rows)
            self._connection.execute("DELETE FROM pubends WHERE row_sum IS NOT row_sum(CAST(pubend AS BLOB), x'')")

    def close(self) -> None:
        with self._lock:
            self._failed = "it is closed"
            self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        self._connection.create_function("row_sum", 2, row_sum, deterministic=True)
        (application,), (version,) = execute("PRAGMA application_id").fetchone(), execute("PRAGMA user_version").fetchone()
        if application == 0 and version == 0 and execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            self._create()
        elif application != _APPLICATION_ID:
            raise StorageFormatError(str(self.path), "this is not the metadata file of a broker")
        elif version == 1:
            self._script(f"{_MIGRATION} PRAGMA user_version = {SCHEMA_VERSION};")
        elif version != SCHEMA_VERSION:
            reason = f"the metadata have version {version}; this release reads version {SCHEMA_VERSION}"
            raise StorageFormatError(str(self.path), reason)
        self._check_structure()

    def _check_structure(self) -> None:
        """Refuse a file from which rows may have vanished; what is wrong with the rows that are there, their checksums tell."""
        for (problem,) in self._connection.execute("PRAGMA quick_check"):
            if problem.startswith(_STRUCTURE):
                raise CorruptMetadataError(str(self.path), " ".join(problem.split()))

    def _create(self) -> None:
        marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        self._script(f"{_SCHEMA} {marks}")

    def _script(self, text: str) -> None:
        self._connection.executescript(f"BEGIN IMMEDIATE; {text} COMMIT;")

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
            raise _map_error(error, self.path) from error
        except OSError as error:
            raise StorageFailedError(str(self.path), error.strerror or str(error)) from error


def row_sum(key: str | bytes, value: str | bytes) -> int:
    """Return the checksum of a row, as SQLite's signed integers hold it."""
    name = key.encode() if isinstance(key, str) else key
    body = value.encode() if isinstance(value, str) else value
    digest = xxh3_64_intdigest(body, xxh3_64_intdigest(name, _APPLICATION_ID))
    return digest - (1 << 64) if digest >> 63 else digest


def _map_error(error: sqlite3.Error, path: Path) -> StorageError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return StorageFullError(str(path), str(error))
    if primary in _DAMAGED:
        return CorruptMetadataError(str(path), str(error))
    return StorageFailedError(str(path), str(error))
