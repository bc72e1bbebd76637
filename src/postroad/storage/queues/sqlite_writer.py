"""One thread that owns the SQLite connection and commits in groups.

Callers hand in functions of the connection. The thread takes whatever has gathered, runs each function in its own savepoint,
commits once (WAL, synchronous=FULL) and then resolves all futures with one call into each event loop. A function that raises
undoes its own changes only.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from postroad.errors import PostroadError, QueueBusyError, StorageInUseError, StorageSchemaError, StorageUnavailableError

ResultT = TypeVar("ResultT")

JOBS_WAITING_MAX: Final = 4_096
JOBS_PER_COMMIT_MAX: Final = 256
_PRAGMAS: Final = ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "temp_store=MEMORY", "cache_size=-65536")


@dataclass(slots=True)
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class SqliteWriter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._main, args=(loop, opened), name="postroad-queues-sqlite", daemon=True)
        self._thread.start()
        await opened

    async def close(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            self._inbox.put(None)
            await asyncio.to_thread(thread.join)

    async def run(self, work: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        if self._thread is None:
            raise StorageUnavailableError("the queue storage is not open")
        if self._inbox.qsize() >= JOBS_WAITING_MAX:
            raise QueueBusyError(f"{JOBS_WAITING_MAX} calls wait for the database already; try again")
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop)
        self._inbox.put(job)
        result: ResultT = await job.future
        return result

    # in the thread

    def _main(self, loop: asyncio.AbstractEventLoop, opened: asyncio.Future[None]) -> None:
        try:
            connection = _connect(self._path)
        except BaseException as error:  # noqa: BLE001 - the opener must hear of it, whatever it is
            _post(loop, _setter(opened, error))
            return
        _post(loop, _setter(opened, None))
        with contextlib.closing(connection):
            while self._serve(connection):
                pass

    def _serve(self, connection: sqlite3.Connection) -> bool:
        first = self._inbox.get()
        if first is None:
            return False
        jobs, more = [first], True
        while len(jobs) < JOBS_PER_COMMIT_MAX:
            try:
                job = self._inbox.get_nowait()
            except queue.Empty:
                break
            if job is None:
                more = False
                break
            jobs.append(job)
        _commit(connection, jobs)
        for loop in {id(j.loop): j.loop for j in jobs}.values():
            _post(loop, _settler([j for j in jobs if j.loop is loop]))
        return more


def _commit(connection: sqlite3.Connection, jobs: list[_Job]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in jobs:
            _run(connection, job)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        for job in jobs:
            job.error = StorageUnavailableError(f"the embedded database failed ({error}); nothing of this call was kept")


def _run(connection: sqlite3.Connection, job: _Job) -> None:
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except sqlite3.OperationalError:
        raise  # disk full, input/output error: the whole group fails
    except Exception as error:  # noqa: BLE001 - it is the caller's to handle
        connection.execute("ROLLBACK TO job")
        job.error = error
    connection.execute("RELEASE job")


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.touch(mode=0o600)  # bodies of messages are nobody else's; SQLite gives the files beside it the same mode
        connection = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        _migrate(connection)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StorageInUseError(f"{path} is open in another process; queues on SQLite belong to one broker") from error
        raise StorageUnavailableError(f"cannot open {path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StorageSchemaError(f"{path} is not a Postroad queue database: {error}") from error
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    files = resources.files("postroad.storage.queues").joinpath("sql_embedded").iterdir()
    wanted = sorted((int(f.name[:4]), f.read_text(encoding="utf-8")) for f in files if f.name.endswith(".sql"))
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > wanted[-1][0]:
        connection.execute("ROLLBACK")
        raise StorageSchemaError(f"the queue database has version {version}; this Postroad knows {wanted[-1][0]}")
    for number, text in wanted:
        if number > version:
            for statement in _statements(text):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
    connection.execute("COMMIT")


def _statements(text: str) -> list[str]:
    """Split a file whose statements end with `;` at the end of a line (executescript would commit in between)."""
    return [s for s in (part.strip() for part in text.split(";\n")) if s]


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(call)


def _setter(future: asyncio.Future[None], error: BaseException | None) -> Callable[[], None]:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error if isinstance(error, PostroadError) else StorageUnavailableError(str(error)))

    return settle


def _settler(jobs: list[_Job]) -> Callable[[], None]:
    def settle() -> None:
        for job in jobs:
            job.settle()

    return settle
