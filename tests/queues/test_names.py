"""Clients and queues by name, creation in one step, and connecting while the broker is not there yet."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.private_postgres import PrivatePostgres

from postroad.errors import ConnectionLostError, InvalidValueError, NameTakenError, StorageUnavailableError, UnknownQueueError
from postroad.queues.client import QueueClient
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService
from postroad.storage.queues.base import Client, QueueStorage
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.storage.queues.postgres import PostgresQueueStorage
from postroad.storage.queues.sqlite import SqliteQueueStorage
from postroad.testing import free_ports
from postroad.wire.packets.telesto import ClientMode

HOST = "127.0.0.1"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> QueueStorage:
    if request.param == "memory":
        return MemoryQueueStorage()
    if request.param == "sqlite":
        return SqliteQueueStorage(tmp_path / "queues.db")
    cluster: PrivatePostgres = request.getfixturevalue("postgres_cluster")
    return PostgresQueueStorage(cluster.dsn, schema=request.getfixturevalue("postgres_schema"))


def test_a_client_and_a_queue_are_opened_by_name_again_and_again(storage: QueueStorage) -> None:
    """The second time they are the same, with the mode and settings of the first; new names only is still to be had."""

    async def body() -> None:
        async with QueueServer(QueueService(storage)) as server:
            ids = set()
            for mode in (ClientMode.READ_AND_PUT, ClientMode.READ):
                async with QueueClient.open(HOST, server.port, name="ann", mode=mode) as ann:
                    queue = await ann.open_queue("jobs", lease=7)
                    ids.add((ann.client_id, ann.mode, queue.queue_id))
            assert len(ids) == 1
            with pytest.raises(NameTakenError):
                await QueueClient.register(HOST, server.port, name="ann").connect()
            async with QueueClient.open(HOST, server.port, name="bob") as bob:
                assert bob.client_id != ids.pop()[0]
                with pytest.raises(NameTakenError):
                    await bob.create_queue("jobs")

    asyncio.run(body())


def test_a_queue_whose_settings_are_refused_is_not_created(storage: QueueStorage) -> None:
    """Neither for a limit without a dead-letter queue nor for one that does not exist; good settings are kept."""

    async def body() -> None:
        async with QueueServer(QueueService(storage)) as server, QueueClient.open(HOST, server.port, name="ann") as ann:
            with pytest.raises(InvalidValueError):
                await ann.create_queue("jobs", max_deliveries=3)
            with pytest.raises(UnknownQueueError):
                await ann.create_queue("jobs", max_deliveries=3, dead_letter=77)
            with pytest.raises(UnknownQueueError):
                await ann.get_queue_by_name("jobs")
            dead = await ann.create_queue("dead")
            jobs = await ann.create_queue("jobs", lease=7.5, max_deliveries=3, dead_letter=dead)
            settings = (await storage.get_queue_name(jobs.queue_id)).settings
            assert (settings.lease_ms, settings.max_deliveries, settings.dead_letter_id) == (7_500, 3, dead.queue_id)

    asyncio.run(body())


def test_connecting_waits_for_a_broker_that_starts_later() -> None:
    """And gives up with the typed error when none comes in time."""

    async def body() -> None:
        (port,) = free_ports(1)
        with pytest.raises(ConnectionLostError):
            await QueueClient.register(HOST, port, name="ann", retry_s=0.1).connect()
        connecting = asyncio.create_task(QueueClient.register(HOST, port, name="ann", retry_s=30).connect())
        await asyncio.sleep(0.2)
        assert not connecting.done()
        async with QueueServer(QueueService(MemoryQueueStorage()), port=port):
            client = await asyncio.wait_for(connecting, 30)
            assert client.client_id == 1
            await client.close()

    asyncio.run(body())


def test_a_registration_whose_answer_was_lost_is_repeated(storage: QueueStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets the name it registered with the first try; another client does not."""
    request_id, lost = storage.request_id, 2

    async def lose_answers(name: str, mode: ClientMode, key: bytes | None = None) -> Client:
        nonlocal lost
        client = await request_id(name, mode, key)
        if lost:
            lost -= 1
            raise StorageUnavailableError("the connection to the database was lost")
        return client

    async def body() -> None:
        monkeypatch.setattr(storage, "request_id", lose_answers)
        async with (
            QueueServer(QueueService(storage)) as server,
            QueueClient.register(HOST, server.port, name="ann", retry_s=30) as client,
        ):
            assert lost == 0
            assert (await storage.find_client("ann")).client_id == client.client_id
            queue = await client.create_queue("jobs")
            await client.put(queue, b"work")
            with pytest.raises(NameTakenError):
                await QueueClient.register(HOST, server.port, name="ann").connect()

    asyncio.run(body())


def test_connecting_is_repeated_while_the_database_is_away() -> None:
    """A retryable refusal of the registration is not the last word."""

    class AwayTwice(MemoryQueueStorage):
        asked = 0

        async def request_id(self, name: str, mode: ClientMode, key: bytes | None = None) -> Client:
            self.asked += 1
            if self.asked < 3:
                raise StorageUnavailableError("PostgreSQL does not answer; try again")
            return await super().request_id(name, mode, key)

    async def body() -> None:
        async with (
            QueueServer(QueueService(AwayTwice())) as server,
            QueueClient.register(HOST, server.port, name="ann", retry_s=30) as client,
        ):
            assert client.client_id == 1

    asyncio.run(body())


@pytest.mark.parametrize(
    "command",
    [
        "from postroad.cli import main; main()",
        "from postroad.queues.server import main; main()",
    ],
)
def test_a_missing_asyncpg_is_one_line_that_says_what_to_install(command: str, tmp_path: Path) -> None:
    """For a broker and for queues alone."""
    arguments = [
        "broker",
        "--queues",
        "postgresql://nobody@127.0.0.1:1/none",
        "--data-dir",
        str(tmp_path),
        "--listen",
        f"{HOST}:0",
    ]
    if "server" in command:
        arguments = ["--store", "postgresql://nobody@127.0.0.1:1/none", "--listen", f"{HOST}:0"]
    code = f"import sys; sys.modules['asyncpg'] = None; sys.argv[1:] = {arguments!r}; {command}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1
    assert "pip install 'postroad[postgres]'" in found.stderr
    assert "Traceback" not in found.stderr
