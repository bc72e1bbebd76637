"""What only one storage has: SQLite's single owner and group commit, PostgreSQL's migrations, signals and merged calls."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.private_postgres import PrivatePostgres

from postroad.errors import InvalidValueError, QueueBusyError, StorageInUseError, StorageSchemaError, StorageUnavailableError
from postroad.storage.queues import migrations
from postroad.storage.queues.base import ClientMode, NewMessage, PutResult, TakeRequest
from postroad.storage.queues.combine import Combiner
from postroad.storage.queues.migrations import Migration, load_migrations
from postroad.storage.queues.postgres import PostgresQueueStorage
from postroad.storage.queues.sqlite import SqliteQueueStorage

SOURCE = str(Path(__file__).parents[2] / "src")

# Puts one message at a time and prints each id when the put has returned.
PUTTER = """
import asyncio, sys
from postroad.storage.queues.base import NewMessage
from postroad.storage.queues.sqlite import SqliteQueueStorage

async def main():
    storage = SqliteQueueStorage(sys.argv[1])
    await storage.open()
    queue = await storage.create_queue("jobs")
    while True:
        (result,) = await storage.put([NewMessage(queue.queue_id, 1, b"x")])
        print(result.message_id, flush=True)

asyncio.run(main())
"""


def start_putter(path: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.Popen([sys.executable, "-c", PUTTER, str(path)], stdout=subprocess.PIPE, text=True, env=environment)


def test_sqlite_keeps_what_it_acknowledged_through_a_kill_and_belongs_to_one_process(tmp_path: Path) -> None:
    """A second process is refused while the first lives; after kill -9 everything acknowledged is there."""
    path = tmp_path / "queues.db"
    with start_putter(path) as putter:
        assert putter.stdout is not None
        last = [putter.stdout.readline() for _ in range(50)][-1]

        async def refused() -> None:
            with pytest.raises(StorageInUseError):
                await SqliteQueueStorage(path).open()

        asyncio.run(refused())
        putter.send_signal(signal.SIGKILL)
        acknowledged = [*putter.stdout.read().split(), last.strip()]

    async def check() -> None:
        storage = SqliteQueueStorage(path)
        await storage.open()
        queue = await storage.get_queue_id("jobs")
        messages = await storage.get_messages_from_queue(queue.queue_id, limit=1_000_000, bytes_max=1 << 30)
        assert {m.message_id for m in messages} >= {int(i) for i in acknowledged}
        await storage.close()

    asyncio.run(check())


def test_sqlite_refuses_files_that_are_not_its_own_or_newer(tmp_path: Path) -> None:
    """Neither is touched."""
    (tmp_path / "text").write_text("not a database " * 100)
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version=99")
    newer.close()

    async def body() -> None:
        with pytest.raises(StorageSchemaError):
            await SqliteQueueStorage(tmp_path / "text").open()
        with pytest.raises(StorageSchemaError):
            await SqliteQueueStorage(tmp_path / "newer").open()
        with pytest.raises(StorageUnavailableError):
            await SqliteQueueStorage(tmp_path / "no" / "such" / "directory").open()
        with pytest.raises(StorageUnavailableError):
            await SqliteQueueStorage(tmp_path / "never opened").list_queues(limit=1)

    asyncio.run(body())


def test_sqlite_commits_in_groups_and_a_failing_call_undoes_only_itself(tmp_path: Path) -> None:
    """Calls of one group succeed and fail independently."""

    async def body() -> None:
        storage = SqliteQueueStorage(tmp_path / "queues.db")
        await storage.open()
        names = ["a", "b", "a", "c", "b"]
        results = await asyncio.gather(*(storage.create_queue(n) for n in names), return_exceptions=True)
        assert [isinstance(r, Exception) for r in results] == [False, False, True, False, True]
        assert [q.name for q in await storage.list_queues(limit=9)] == ["a", "b", "c"]
        await storage.close()

    asyncio.run(body())


def test_migrations_are_applied_once_by_any_number_of_brokers(postgres_cluster: PrivatePostgres, postgres_schema: str) -> None:
    """Brokers that start together wait for each other; a second start applies nothing."""

    async def body() -> None:
        storages = [PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema) for _ in range(4)]
        await asyncio.gather(*(s.open() for s in storages))
        connection = await asyncpg.connect(postgres_cluster.dsn)
        rows = await connection.fetch(f"SELECT version, name, digest FROM {postgres_schema}.migrations ORDER BY version")
        assert [(r["version"], r["name"], r["digest"]) for r in rows] == [
            (m.version, m.name, m.digest) for m in load_migrations()
        ]
        assert await migrations.migrate(connection, postgres_schema) == 0
        await connection.close()
        await asyncio.gather(*(s.close() for s in storages))

    asyncio.run(body())


@pytest.mark.parametrize("change", ["UPDATE {}.migrations SET digest = 'x'", "INSERT INTO {}.migrations VALUES (99, 'new', '')"])
def test_a_changed_or_newer_schema_is_refused(postgres_cluster: PrivatePostgres, postgres_schema: str, change: str) -> None:
    """Rather no start than a wrong one."""

    async def body() -> None:
        storage = PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema)
        await storage.open()
        await storage.close()
        connection = await asyncpg.connect(postgres_cluster.dsn)
        await connection.execute(change.format(postgres_schema))
        await connection.close()
        with pytest.raises(StorageSchemaError):
            await storage.open()

    asyncio.run(body())


def test_a_new_migration_is_applied_on_top(
    postgres_cluster: PrivatePostgres, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data stays; a migration that fails leaves nothing behind."""

    async def body() -> None:
        connection = await asyncpg.connect(postgres_cluster.dsn)
        await migrations.migrate(connection, postgres_schema)
        present = load_migrations()
        broken = Migration(99, "0099_broken.sql", "CREATE TABLE half (); SELECT no_such_function();")
        monkeypatch.setattr(migrations, "load_migrations", lambda: [*present, broken])
        with pytest.raises(asyncpg.UndefinedFunctionError):
            await migrations.migrate(connection, postgres_schema)
        sound = Migration(99, "0099_sound.sql", "CREATE TABLE whole ();")
        monkeypatch.setattr(migrations, "load_migrations", lambda: [*present, sound])
        assert await migrations.migrate(connection, postgres_schema) == 1
        assert await connection.fetchval(f"SELECT to_regclass('{postgres_schema}.half')") is None
        await connection.close()

    asyncio.run(body())


def test_a_schema_name_is_an_identifier_and_nothing_else() -> None:
    """It becomes part of statements."""
    for name in ("", "a b", 'x"; DROP', "Upper", "a" * 41):
        with pytest.raises(InvalidValueError):
            PostgresQueueStorage("postgresql://nowhere", schema=name)


def test_a_put_notifies_only_brokers_that_wait(postgres_cluster: PrivatePostgres, postgres_schema: str) -> None:
    """Nobody waits: no NOTIFY. Another broker waits: one, naming the queue. One's own waiter needs none."""

    async def body() -> None:
        here, there = (PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema) for _ in range(2))
        heard: list[str] = []
        listener = await asyncpg.connect(postgres_cluster.dsn)
        await listener.add_listener(f"postroad_{postgres_schema}", lambda *event: heard.append(str(event[3])))
        await here.open()
        await there.open()
        queue = (await here.create_queue("jobs")).queue_id

        async def put() -> None:
            await here.put([NewMessage(queue, 1, b"")] * 10)
            await asyncio.sleep(0.2)

        await put()
        assert heard == []
        await here.watch(queue)
        await put()
        assert heard == []
        await there.watch(queue)
        await put()
        assert heard == [str(queue)]
        await there.unwatch(queue)
        await put()
        assert heard == [str(queue)]
        await listener.close()
        await here.close()
        await there.close()

    asyncio.run(body())


def test_concurrent_single_calls_are_merged(postgres_cluster: PrivatePostgres, postgres_schema: str) -> None:
    """A hundred puts, takes and ends leave in a few transactions."""

    async def body() -> None:
        storage = PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema)
        await storage.open()
        client = await storage.request_id("ann", ClientMode.READ_AND_PUT)
        queue = (await storage.create_queue("jobs")).queue_id
        connection = await asyncpg.connect(postgres_cluster.dsn)
        before = await connection.fetchval("SELECT txid_current()")
        await asyncio.gather(*(storage.put([NewMessage(queue, 1, b"%d" % i)]) for i in range(100)))
        taken = await asyncio.gather(*(storage.take(TakeRequest(queue, client.client_id)) for _ in range(100)))
        assert sorted(int(m.message) for each in taken for m in each) == list(range(100))
        after = await connection.fetchval("SELECT txid_current()")
        assert after - before < 30
        await connection.close()
        await storage.close()

    asyncio.run(body())


def test_a_combiner_is_bounded_and_tells_every_caller_of_a_failure() -> None:
    """What waits has a maximum; one failure concerns all calls of its group."""

    async def body() -> None:
        gate = asyncio.Event()

        async def run(items: list[int]) -> list[Any]:
            await gate.wait()
            if 13 in items:
                raise StorageUnavailableError("away")
            return [i * 2 for i in items]

        combiner = Combiner(run, rows_max=4, calls_waiting_max=3)
        first = asyncio.create_task(combiner.call([1]))
        await asyncio.sleep(0)
        others = [asyncio.create_task(combiner.call([i])) for i in (2, 13, 4)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueBusyError):
            await combiner.call([5])
        gate.set()
        assert await first == [2]
        results = await asyncio.gather(*others, return_exceptions=True)
        assert all(isinstance(r, StorageUnavailableError) for r in results)
        assert await combiner.call([6, 7]) == [12, 14]
        assert await combiner.call([]) == []

    asyncio.run(body())


def test_a_combiner_keeps_a_lane_in_order_and_serves_other_lanes_meanwhile() -> None:
    """A slow call holds up its own lane only; what waits in a lane leaves after it, in the order of the calls."""

    async def body() -> None:
        gates = {"slow": asyncio.Event(), "other": asyncio.Event()}
        ran: list[str] = []

        async def run(items: list[str]) -> list[str]:
            await gates[items[0].split()[0]].wait()
            ran.extend(items)
            return items

        combiner = Combiner(run, parallel=2, rows_max=2, lane=lambda item: item.split()[0])
        slow = [asyncio.create_task(combiner.call([f"slow {i}"])) for i in range(5)]
        await asyncio.sleep(0)
        other = [asyncio.create_task(combiner.call([f"other {i}"])) for i in range(3)]
        gates["other"].set()
        await asyncio.gather(*other)
        assert ran == ["other 0", "other 1", "other 2"]
        gates["slow"].set()
        await asyncio.gather(*slow)
        assert ran[3:] == [f"slow {i}" for i in range(5)]

    asyncio.run(body())


def test_a_slow_transaction_is_not_overtaken_by_a_later_put_of_the_same_sender(
    postgres_cluster: PrivatePostgres, postgres_schema: str
) -> None:
    """The later put would be read first, or by somebody who does not see the earlier one yet."""

    class SlowFirst(PostgresQueueStorage):
        calls = 0

        async def _put_batch(self, rows: list[NewMessage]) -> list[PutResult]:
            self.calls += 1
            if self.calls == 1:
                await asyncio.sleep(0.3)
            return await super()._put_batch(rows)

    async def body() -> None:
        storage = SlowFirst(postgres_cluster.dsn, schema=postgres_schema)
        await storage.open()
        queue = await storage.create_queue("jobs")
        first = asyncio.create_task(storage.put([NewMessage(queue.queue_id, 1, b"first")]))
        await asyncio.sleep(0)
        second = asyncio.create_task(storage.put([NewMessage(queue.queue_id, 1, b"second")]))
        assert (await storage.put([NewMessage(queue.queue_id, 2, b"of another")]))[0].message_id is not None
        assert not second.done()
        await asyncio.gather(first, second)
        taken = await storage.take(TakeRequest(queue.queue_id, 9, sender_id=1, limit=9))
        assert [m.message for m in taken] == [b"first", b"second"]
        await storage.close()

    asyncio.run(body())
