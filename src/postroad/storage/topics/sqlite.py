"""The topics service's store in SQLite.

Names are values in columns; the only files are the database, named by its owner's role, and its lock, both inside the data
directory.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from postroad.errors import TopicsStoreError
from postroad.topics.machines import rows as r
from postroad.topics.machines.messages import encode_name, format_names, parse_names

SCHEMA_VERSION: Final = 1
LOCK_WAIT_S: Final = 5.0


def _group_late(late: Iterable[tuple[bytes, bytes, int]]) -> list[r.SetLate]:
    """Join rows (topic, client, sequence), sorted by rank, into one late list per subscriber."""
    joined: dict[tuple[bytes, bytes], list[int]] = {}
    for topic, client, sequence in late:
        joined.setdefault((topic, client), []).append(sequence)
    return [r.SetLate(topic, client, tuple(sequences)) for (topic, client), sequences in joined.items()]


class SqliteTopicStore:
    """One database file, locked for one process. `synchronous=FULL`: what is committed survives SIGKILL and a power cut."""

    def __init__(self, directory: Path, role: str, owner: bytes) -> None:
        self.path = directory / f"{role}.sqlite3"
        self._lock = -1
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock(directory / f"{role}.lock")
            self.path.touch(mode=0o600)  # the files SQLite puts beside it get the same mode
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
            self._open(owner)
        except (OSError, sqlite3.Error) as error:
            self._drop_lock()
            raise TopicsStoreError(f"cannot use {self.path}: {error}") from error
        except TopicsStoreError:
            self._drop_lock()
            raise

    def _take_lock(self, path: Path) -> None:
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TopicsStoreError(
                        f"{path} is in use by another process; only one process at a time may use this id in this data directory"
                    ) from None
                time.sleep(0.02)
            else:
                return

    def _drop_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open(self, owner: bytes) -> None:
        db = self._db
        db.execute("PRAGMA page_size=16384")  # a body of 64 MiB is written and read several times faster than in 4 KiB pages
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA cache_size=-16384")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, SCHEMA_VERSION}:
            raise TopicsStoreError(f"{self.path} has format {version}; this version of Postroad reads format {SCHEMA_VERSION}")
        if version == 0:
            script = files("postroad.storage.topics").joinpath("schema.sql").read_text(encoding="utf-8")
            db.executescript(f"BEGIN;{script};PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
        db.execute("INSERT OR IGNORE INTO identity SELECT ? WHERE NOT EXISTS (SELECT 1 FROM identity)", (owner,))
        found = db.execute("SELECT name FROM identity").fetchone()[0]
        if found != owner:
            raise TopicsStoreError(f"{self.path} belongs to {encode_name(found)!r}, not to {encode_name(owner)!r}")

    def close(self) -> None:
        self._db.close()
        self._drop_lock()

    def commit(self, rows: Sequence[r.Row]) -> None:
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                for row in rows:
                    self._apply(row)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise TopicsStoreError(f"cannot write {self.path}: {error}") from error

    def _apply(self, row: r.Row) -> None:
        run = self._db.execute
        match row:
            case r.AddMessage(topic, sequence, message, stamp, body):
                run("INSERT INTO messages VALUES (?,?,?,?,?)", (topic, sequence, message, stamp, body))
            case r.SavePublisher(topic, publisher, counter, digest, stamp):
                run("INSERT OR REPLACE INTO publishers VALUES (?,?,?,?,?)", (topic, publisher, counter, digest, stamp))
            case r.SaveSubscriber(topic, client, subscribed, operation, stamp, position, reads):
                values = (topic, client, subscribed, operation, stamp, position, reads)
                run("INSERT OR REPLACE INTO subscribers VALUES (?,?,?,?,?,?,?)", values)
            case r.DropMessages(topic, sequences):
                self._db.executemany("DELETE FROM messages WHERE topic=? AND sequence=?", [(topic, s) for s in sequences])
            case r.SetMark(name, value):
                run("INSERT OR REPLACE INTO marks VALUES (?,?)", (name, value))
            case r.SaveTopic(topic, copy_id, lineage, target, address):
                run("INSERT OR REPLACE INTO topics VALUES (?,?,?,?,?)", (topic, copy_id, format_names(lineage), target, address))
            case r.DropTopic(topic):
                for table in ("topics", "publishers", "subscribers", "late", "messages"):
                    run(f"DELETE FROM {table} WHERE topic=?", (topic,))  # noqa: S608 - the tables above, nothing else
            case r.DropPublisher(topic, publisher):
                run("DELETE FROM publishers WHERE topic=? AND publisher=?", (topic, publisher))
            case r.DropSubscriber(topic, client):
                run("DELETE FROM subscribers WHERE topic=? AND client=?", (topic, client))
                run("DELETE FROM late WHERE topic=? AND client=?", (topic, client))
            case r.SetLate(topic, client, sequences):
                run("DELETE FROM late WHERE topic=? AND client=?", (topic, client))
                values_late = [(topic, client, rank, sequence) for rank, sequence in enumerate(sequences)]
                self._db.executemany("INSERT INTO late VALUES (?,?,?,?)", values_late)
            case r.DropLate(topic, client, sequence):
                run("DELETE FROM late WHERE topic=? AND client=? AND sequence=?", (topic, client, sequence))
            case r.Stage(topic, copy_id, staged):
                self._db.executemany(
                    "INSERT OR REPLACE INTO staged VALUES (?,?,?,?)", [(topic, copy_id, i, b) for i, b in staged]
                )
            case r.TakeStaged(topic, copy_id, message, sequence, stamp):
                found = run(
                    "INSERT INTO messages SELECT topic, ?, id, ?, body FROM staged WHERE topic=? AND copy=? AND id=?",
                    (sequence, stamp, topic, copy_id, message),
                )
                assert found.rowcount == 1, "a message taken in was staged before"
            case r.Unstage(topic, copy_id):
                run("DELETE FROM staged WHERE topic=? AND copy=?", (topic, copy_id))
            case r.SaveMoved(topic, target, address, copies, stamp):
                run("INSERT OR REPLACE INTO moved VALUES (?,?,?,?,?)", (topic, target, address, format_names(copies), stamp))
            case r.DropMoved(topic):
                run("DELETE FROM moved WHERE topic=?", (topic,))
            case r.SaveServer(server, address):
                run("INSERT OR REPLACE INTO servers VALUES (?,?)", (server, address))
            case r.DropServer(server):
                run("DELETE FROM servers WHERE server=?", (server,))
                run("DELETE FROM routes WHERE server=?", (server,))
            case r.SaveRoute(topic, server):
                run("INSERT OR REPLACE INTO routes VALUES (?,?)", (topic, server))
            case r.SaveMemory(topic, last, counter, operation, home):
                run("INSERT OR REPLACE INTO memories VALUES (?,?,?,?,?)", (topic, last, counter, operation, home))
            case r.SaveReceived(topic, message, body):
                run("INSERT OR REPLACE INTO received VALUES (?,?,?)", (topic, message, body))
            case r.SaveUnfinished(topic, counter, body):
                run("INSERT OR REPLACE INTO unfinished VALUES (?,?,?)", (topic, counter, body))
            case r.DropUnfinished(topic):
                run("DELETE FROM unfinished WHERE topic=?", (topic,))

    def _all(self, sql: str) -> list[tuple[object, ...]]:
        try:
            return self._db.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise TopicsStoreError(f"cannot read {self.path}: {error}") from error

    def body(self, topic: bytes, sequence: int) -> bytes | None:
        try:
            found = self._db.execute("SELECT body FROM messages WHERE topic=? AND sequence=?", (topic, sequence)).fetchone()
        except sqlite3.Error as error:
            raise TopicsStoreError(f"cannot read {self.path}: {error}") from error
        return None if found is None else bytes(found[0])

    def received(self, topic: bytes) -> tuple[bytes, bytes] | None:
        found = self._db.execute("SELECT id, body FROM received WHERE topic=?", (topic,)).fetchone()
        return None if found is None else (bytes(found[0]), bytes(found[1]))

    def load_server(self) -> r.ServerState:
        """Read everything but bodies; parts staged by a transfer that was cut are dropped, its source will send them again."""
        self._all("DELETE FROM staged")
        topics = self._all("SELECT topic, copy, lineage, target, target_address FROM topics")
        moved = self._all("SELECT topic, target, target_address, copies, stamp FROM moved")
        return r.ServerState(
            [r.SaveTopic(t, c, parse_names(line), target, a) for t, c, line, target, a in topics],  # type: ignore[arg-type]
            [r.SavePublisher(*row) for row in self._all("SELECT * FROM publishers")],  # type: ignore[arg-type]
            [r.SaveSubscriber(t, c, bool(s), *rest) for t, c, s, *rest in self._all("SELECT * FROM subscribers")],  # type: ignore[arg-type]
            _group_late(self._all("SELECT topic, client, sequence FROM late ORDER BY topic, client, rank")),  # type: ignore[arg-type]
            [
                r.StoredMessage(*row)  # type: ignore[arg-type]
                for row in self._all("SELECT topic, sequence, id, stamp, length(body) FROM messages ORDER BY topic, sequence")
            ],
            [r.SaveMoved(t, target, a, parse_names(copies), s) for t, target, a, copies, s in moved],  # type: ignore[arg-type]
            self._marks(),
            self._servers(),
        )

    def _servers(self) -> list[r.SaveServer]:
        return [r.SaveServer(*row) for row in self._all("SELECT server, address FROM servers ORDER BY server")]  # type: ignore[arg-type]

    def _marks(self) -> dict[str, int]:
        return dict(self._all("SELECT name, value FROM marks"))  # type: ignore[arg-type]

    def load_proxy(self) -> r.ProxyState:
        return r.ProxyState(
            self._servers(),
            [r.SaveRoute(*row) for row in self._all("SELECT topic, server FROM routes ORDER BY topic")],  # type: ignore[arg-type]
            self._marks(),
        )

    def load_client(self) -> r.ClientState:
        return r.ClientState(
            [r.SaveMemory(*row) for row in self._all("SELECT * FROM memories ORDER BY topic")],  # type: ignore[arg-type]
            [r.SaveUnfinished(*row) for row in self._all("SELECT topic, counter, body FROM unfinished ORDER BY topic")],  # type: ignore[arg-type]
            self._marks(),
        )
