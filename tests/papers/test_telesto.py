"""The Telesto report, row by row: Table 3.5 (procedures), Table 3.6 (packets), Table 4.1 (client methods)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import asyncpg
import pytest
from click.testing import CliRunner
from tests.private_postgres import PrivatePostgres

from postroad.cli import main
from postroad.errors import NotIdentifiedError, UnknownQueueError, WrongDirectionError
from postroad.queues.broker_service import queues_of
from postroad.queues.client import QueueClient
from postroad.queues.profile import ProfileLog, read_calls, summarise
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService, Session
from postroad.queues.sync import SyncQueueClient
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Queues
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.storage.queues.migrations import migrate
from postroad.wire.packets import telesto as t
from postroad.wire.packets.session import Error, Ping, Pong
from postroad.wire.packets.telesto import ClientMode, QueueMessage, ReadMode
from postroad.wire.registry import REGISTRY, Direction, Exchange, Packet

# Table 3.5: every stored procedure, called in PostgreSQL itself


Database: TypeAlias = "asyncpg.Connection[Any]"


@pytest.fixture
def in_database(
    postgres_cluster: PrivatePostgres, postgres_schema: str
) -> Callable[[Callable[[Database], Awaitable[None]]], None]:
    """Run a coroutine with a connection to a fresh schema."""

    def run(body: Callable[[Database], Awaitable[None]]) -> None:
        async def main() -> None:
            connection = await asyncpg.connect(postgres_cluster.dsn)
            try:
                await migrate(connection, postgres_schema)
                await connection.execute(f"SET search_path TO {postgres_schema}")
                await body(connection)
            finally:
                await connection.close()

        asyncio.run(main())

    return run


InDatabase = Callable[[Callable[[Database], Awaitable[None]]], None]


def test_table_3_5_request_id(in_database: InDatabase) -> None:
    """Create a new client and return its id; the name is unique."""

    async def body(db: Database) -> None:
        assert await db.fetchval("SELECT request_id('ann', 2::smallint)") == 1
        assert await db.fetchval("SELECT request_id('bob', 1::smallint)") == 2
        with pytest.raises(asyncpg.UniqueViolationError):
            await db.fetchval("SELECT request_id('ann', 1::smallint)")

    in_database(body)


def test_table_3_5_identify(in_database: InDatabase) -> None:
    """Identify a client by its id."""

    async def body(db: Database) -> None:
        client_id = await db.fetchval("SELECT request_id('ann', 2::smallint)")
        row = await db.fetchrow("SELECT * FROM identify($1)", client_id)
        assert row is not None
        assert (row["client_id"], row["client_name"], row["client_mode"]) == (client_id, "ann", 2)
        assert await db.fetchrow("SELECT * FROM identify(99)") is None

    in_database(body)


def test_table_3_5_delete_client(in_database: InDatabase) -> None:
    """Delete a client and return its id, or nothing."""

    async def body(db: Database) -> None:
        client_id = await db.fetchval("SELECT request_id('ann', 2::smallint)")
        assert await db.fetchval("SELECT delete_client($1)", client_id) == client_id
        assert await db.fetchval("SELECT delete_client($1)", client_id) is None

    in_database(body)


def test_table_3_5_create_queue(in_database: InDatabase) -> None:
    """Create a new queue; the name is unique."""

    async def body(db: Database) -> None:
        row = await db.fetchrow("SELECT * FROM create_queue('jobs')")
        assert row is not None
        assert (row["queue_id"], row["queue_name"]) == (1, "jobs")
        with pytest.raises(asyncpg.UniqueViolationError):
            await db.fetchrow("SELECT * FROM create_queue('jobs')")

    in_database(body)


def test_table_3_5_delete_queue(in_database: InDatabase) -> None:
    """Delete a queue with its messages and return its id."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        await db.fetchval("SELECT put_message($1, 1, NULL, NULL, 5::smallint, 'x')", queue_id)
        assert await db.fetchval("SELECT delete_queue($1)", queue_id) == queue_id
        assert await db.fetchval("SELECT count(*) FROM messages") == 0
        assert await db.fetchval("SELECT delete_queue($1)", queue_id) is None

    in_database(body)


def test_table_3_5_get_queue_id(in_database: InDatabase) -> None:
    """Get a queue by name."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        assert await db.fetchval("SELECT queue_id FROM get_queue_id('jobs')") == queue_id
        assert await db.fetchrow("SELECT * FROM get_queue_id('none')") is None

    in_database(body)


def test_table_3_5_get_queue_name(in_database: InDatabase) -> None:
    """Get a queue by id."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        assert await db.fetchval("SELECT queue_name FROM get_queue_name($1)", queue_id) == "jobs"

    in_database(body)


def test_table_3_5_list_queues(in_database: InDatabase) -> None:
    """Get all queues."""

    async def body(db: Database) -> None:
        for name in ("a", "b", "c"):
            await db.fetchrow("SELECT * FROM create_queue($1)", name)
        assert [r["queue_name"] for r in await db.fetch("SELECT * FROM list_queues()")] == ["a", "b", "c"]

    in_database(body)


def test_table_3_5_get_active_queues(in_database: InDatabase) -> None:
    """Get all queues with messages for the given client."""

    async def body(db: Database) -> None:
        for name in ("mine", "anybody", "yours", "empty"):
            await db.fetchrow("SELECT * FROM create_queue($1)", name)
        for queue_id, receiver_id in ((1, 7), (2, None), (3, 8)):
            await db.fetchval("SELECT put_message($1, 1, $2, NULL, 5::smallint, '')", queue_id, receiver_id)
        assert [r["queue_name"] for r in await db.fetch("SELECT * FROM get_active_queues(7)")] == ["mine", "anybody"]

    in_database(body)


def test_table_3_5_get_messages_from_queue(in_database: InDatabase) -> None:
    """Get all messages in a queue; they stay."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        for text in (b"a", b"b"):
            await db.fetchval("SELECT put_message($1, 1, NULL, NULL, 5::smallint, $2)", queue_id, text)
        for _ in range(2):
            rows = await db.fetch("SELECT * FROM get_messages_from_queue($1)", queue_id)
            assert [r["message"] for r in rows] == [b"a", b"b"]

    in_database(body)


def test_table_3_5_put_message(in_database: InDatabase) -> None:
    """Insert a message and return its queue; nothing for a queue that does not exist."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        assert await db.fetchval("SELECT put_message($1, 3, 4, 5, 6::smallint, 'x')", queue_id) == queue_id
        assert await db.fetchval("SELECT put_message(99, 3, 4, 5, 6::smallint, 'x')") is None
        row = await db.fetchrow("SELECT * FROM messages")
        assert row is not None
        assert (row["sender_id"], row["receiver_id"], row["context"], row["priority"], row["message"]) == (3, 4, 5, 6, b"x")

    in_database(body)


def test_table_3_5_put_messages(in_database: InDatabase) -> None:
    """Insert a message in several queues and return those that exist."""

    async def body(db: Database) -> None:
        for name in ("a", "b", "c"):
            await db.fetchrow("SELECT * FROM create_queue($1)", name)
        assert await db.fetchval("SELECT put_messages(ARRAY[3, 99, 1], 1, NULL, NULL, 5::smallint, 'x')") == [3, 1]
        assert [r["queue_id"] for r in await db.fetch("SELECT queue_id FROM messages ORDER BY queue_id")] == [1, 3]

    in_database(body)


async def _three_messages(db: Database) -> int:
    queue_id: int = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
    for sender_id, priority, text in ((1, 3, b"old"), (2, 9, b"high"), (1, 5, b"new")):
        await db.fetchval("SELECT put_message($1, $2, NULL, NULL, $3, $4)", queue_id, sender_id, priority, text)
    return queue_id


def test_table_3_5_read_message_by_priority(in_database: InDatabase) -> None:
    """Get (and remove) the message of the highest priority, optionally of one sender."""

    async def body(db: Database) -> None:
        queue_id = await _three_messages(db)
        read = "SELECT message FROM read_message_by_priority($1, $2, 7)"
        assert await db.fetchval(read, queue_id, 1) == b"new"
        assert await db.fetchval(read, queue_id, None) == b"high"
        assert await db.fetchval(read, queue_id, None) == b"old"
        assert await db.fetchrow(read, queue_id, None) is None

    in_database(body)


def test_table_3_5_read_message_by_timestamp(in_database: InDatabase) -> None:
    """Get (and remove) the oldest message, optionally of one sender."""

    async def body(db: Database) -> None:
        queue_id = await _three_messages(db)
        read = "SELECT message FROM read_message_by_timestamp($1, $2, 7)"
        assert await db.fetchval(read, queue_id, 2) == b"high"
        assert await db.fetchval(read, queue_id, None) == b"old"
        assert await db.fetchval(read, queue_id, None) == b"new"

    in_database(body)


def test_table_3_5_read_response_message(in_database: InDatabase) -> None:
    """Get (and remove) a message by receiver and context."""

    async def body(db: Database) -> None:
        queue_id = await db.fetchval("SELECT queue_id FROM create_queue('jobs')")
        for receiver_id, context, text in ((7, 1, b"other"), (8, 2, b"not mine"), (7, 2, b"mine")):
            await db.fetchval("SELECT put_message($1, 1, $2, $3, 5::smallint, $4)", queue_id, receiver_id, context, text)
        read = "SELECT message FROM read_response_message($1, 7, 2)"
        assert await db.fetchval(read, queue_id) == b"mine"
        assert await db.fetchrow(read, queue_id) is None

    in_database(body)


# Table 3.6: every packet, its id, and what the service answers

TABLE_3_6 = {
    "Ping": 0x01,
    "Pong": 0x02,
    "Success": 0x03,
    "Error": 0x05,
    "RegisterClient": 0x11,
    "RegisterClientResponse": 0x12,
    "IdentifyClient": 0x13,
    "IdentifyClientResponse": 0x14,
    "DeleteClient": 0x15,
    "CreateQueue": 0x21,
    "CreateQueueResponse": 0x22,
    "DeleteQueue": 0x23,
    "GetQueueId": 0x25,
    "GetQueueIdResponse": 0x26,
    "GetQueueName": 0x27,
    "GetQueueNameResponse": 0x28,
    "GetQueues": 0x29,
    "GetQueuesResponse": 0x2A,
    "GetActiveQueues": 0x2B,
    "GetActiveQueuesResponse": 0x2C,
    "GetMessages": 0x2D,
    "GetMessagesResponse": 0x2E,
    "PutMessage": 0x31,
    "ReadMessage": 0x33,  # 0x32 in the report, against its odd/even rule
    "ReadMessageResponse": 0x34,  # 0x33 in the report
    "ReadResponse": 0x35,  # 0x34 in the report
}


@pytest.mark.parametrize(("name", "method"), TABLE_3_6.items())
def test_table_3_6_packet_has_its_id(name: str, method: int) -> None:
    """Each row of the table is registered under its id, corrected where the report breaks its own rule."""
    assert REGISTRY.by_method[method].name == name


def test_table_3_6_requests_are_odd_and_answers_one_higher() -> None:
    """The rule below the table holds for every queue packet, with Success and Error as the named exceptions."""
    for spec in REGISTRY:
        if spec.method <= 0xFF and spec.name not in {"Success", "Error"}:
            assert (spec.method % 2 == 1) == (spec.exchange is Exchange.REQUEST)


class Line:
    """A service without sockets, with two clients: `ann` may put, `bob` only reads."""

    def __init__(self) -> None:
        self.service = QueueService(MemoryQueueStorage())
        self.ann, self.bob = Session(), Session()

    async def start(self) -> None:
        await self.service.start()
        await self.ask(t.RegisterClient("ann", ClientMode.READ_AND_PUT))
        await self.ask(t.RegisterClient("bob", ClientMode.READ), self.bob)

    async def ask(self, packet: Packet, session: Session | None = None) -> Any:
        return await self.service.handle(packet, session or self.ann)


def on_the_line(body: Callable[[Line], Awaitable[None]]) -> None:
    async def main() -> None:
        line = Line()
        await line.start()
        try:
            await body(line)
        finally:
            await line.service.stop()

    asyncio.run(main())


def test_table_3_6_ping_is_answered_by_pong_without_identification() -> None:
    """Ping, Pong."""

    async def body(line: Line) -> None:
        assert await line.ask(Ping(), Session()) == Pong()

    on_the_line(body)


def test_table_3_6_register_client_gives_an_id_and_identifies_the_connection() -> None:
    """RegisterClient, RegisterClientResponse."""

    async def body(line: Line) -> None:
        session = Session()
        answer = await line.ask(t.RegisterClient("new", ClientMode.READ), session)
        assert answer == t.RegisterClientResponse(3)
        assert await line.ask(t.GetQueues(), session) == t.GetQueuesResponse(())

    on_the_line(body)


def test_table_3_6_identify_client_gives_mode_and_name() -> None:
    """IdentifyClient, IdentifyClientResponse; an unknown id is an error."""

    async def body(line: Line) -> None:
        assert await line.ask(t.IdentifyClient(2), Session()) == t.IdentifyClientResponse(ClientMode.READ, "bob")
        assert (await line.ask(t.IdentifyClient(77), Session())).code == 602
        assert (await line.ask(t.IdentifyClient(1 << 50), Session())).code == 602

    on_the_line(body)


def test_table_3_6_delete_client_is_answered_by_success() -> None:
    """DeleteClient, Success; a client that deleted itself is no longer identified."""

    async def body(line: Line) -> None:
        assert await line.ask(t.DeleteClient(1)) == t.Success()
        assert (await line.ask(t.GetQueues())).code == NotIdentifiedError.code

    on_the_line(body)


def test_table_3_6_create_queue_gives_its_id() -> None:
    """CreateQueue, CreateQueueResponse; a name is taken once."""

    async def body(line: Line) -> None:
        assert await line.ask(t.CreateQueue("jobs")) == t.CreateQueueResponse(1)
        assert (await line.ask(t.CreateQueue("jobs"))).code == 604

    on_the_line(body)


def test_table_3_6_delete_queue_is_answered_by_success() -> None:
    """DeleteQueue, Success; an unknown queue is an error."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("jobs"))
        assert await line.ask(t.DeleteQueue(1)) == t.Success()
        assert (await line.ask(t.DeleteQueue(1))).code == UnknownQueueError.code

    on_the_line(body)


def test_table_3_6_get_queue_id_and_name() -> None:
    """GetQueueId, GetQueueIdResponse, GetQueueName, GetQueueNameResponse."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("jobs"))
        assert await line.ask(t.GetQueueId("jobs")) == t.GetQueueIdResponse(1)
        assert await line.ask(t.GetQueueName(1)) == t.GetQueueNameResponse("jobs")
        assert (await line.ask(t.GetQueueId("none"))).code == UnknownQueueError.code

    on_the_line(body)


def test_table_3_6_get_queues_and_active_queues() -> None:
    """GetQueues, GetQueuesResponse, GetActiveQueues, GetActiveQueuesResponse."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("a"))
        await line.ask(t.CreateQueue("b"))
        await line.ask(t.PutMessage((2,), 2, None, 5, b"for bob"))
        assert await line.ask(t.GetQueues()) == t.GetQueuesResponse((t.Queue(1, "a"), t.Queue(2, "b")))
        assert await line.ask(t.GetQueues(1)) == t.GetQueuesResponse((t.Queue(2, "b"),))
        assert await line.ask(t.GetActiveQueues()) == t.GetActiveQueuesResponse(())
        assert await line.ask(t.GetActiveQueues(), line.bob) == t.GetActiveQueuesResponse((t.Queue(2, "b"),))

    on_the_line(body)


def test_table_3_6_get_messages() -> None:
    """GetMessages, GetMessagesResponse."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("jobs"))
        await line.ask(t.PutMessage((1,), None, None, 5, b"x"))
        (message,) = (await line.ask(t.GetMessages(1))).messages
        assert (message.message, message.sender_id) == (b"x", 1)
        assert (await line.ask(t.GetMessages(1, message.message_id))).messages == ()

    on_the_line(body)


def test_table_3_6_put_message_names_the_queues_that_got_it() -> None:
    """PutMessage into several queues; one that does not exist is left out of the answer."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("a"))
        await line.ask(t.CreateQueue("b"))
        assert await line.ask(t.PutMessage((2, 99, 1, 1 << 40), None, None, 5, b"x")) == t.PutMessageResponse((2, 1))

    on_the_line(body)


def test_table_3_6_read_message_by_mode_and_sender() -> None:
    """ReadMessage, ReadMessageResponse: one message or none; it is gone."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("jobs"))
        for priority, text in ((3, b"old"), (9, b"high")):
            await line.ask(t.PutMessage((1,), None, None, priority, text))
        assert (await line.ask(t.ReadMessage(1, 77, ReadMode.PRIORITY))).messages == ()
        assert (await line.ask(t.ReadMessage(1, 1, ReadMode.ARRIVAL), line.bob)).messages[0].message == b"old"
        assert (await line.ask(t.ReadMessage(1, None, ReadMode.PRIORITY))).messages[0].message == b"high"
        assert (await line.ask(t.GetMessages(1))).messages == ()

    on_the_line(body)


def test_table_3_6_read_response_by_context() -> None:
    """ReadResponse: the message for this client with that context."""

    async def body(line: Line) -> None:
        await line.ask(t.CreateQueue("jobs"))
        await line.ask(t.PutMessage((1,), 2, 42, 5, b"answer"))
        assert (await line.ask(t.ReadResponse(1, 42))).messages == ()
        assert (await line.ask(t.ReadResponse(1, 42), line.bob)).messages[0].message == b"answer"

    on_the_line(body)


def test_table_3_6_error_carries_a_stable_code() -> None:
    """Error: the code of the error tree, and whether a retry may help."""

    async def body(line: Line) -> None:
        answer = await line.ask(t.GetQueueName(5))
        assert isinstance(answer, Error)
        assert (answer.code, answer.retryable) == (UnknownQueueError.code, False)

    on_the_line(body)


def empty(packet_type: type[Packet]) -> Packet:
    """Make a packet without values: it must be refused before anybody looks at them."""
    return packet_type(*[None] * len(packet_type.__struct_fields__))


def test_section_3_3_before_identification_only_ping_register_and_identify_are_served() -> None:
    """All other requests get an error packet with a stable code."""

    async def body(line: Line) -> None:
        allowed = {Ping, t.RegisterClient, t.IdentifyClient}
        for packet_type in line.service.packet_types - allowed:
            packet = empty(packet_type)
            assert (await line.ask(packet, Session())).code == NotIdentifiedError.code, packet_type

    on_the_line(body)


def test_section_4_1_2_a_response_packet_sent_to_the_server_is_an_error() -> None:
    """Every packet that only a broker may send is refused, before and after identification."""

    async def body(line: Line) -> None:
        answers = [s for s in REGISTRY if s.method <= 0xFF and Direction.CLIENT_TO_BROKER not in s.direction]
        assert len(answers) > 10
        for spec in answers:
            packet = empty(cast("type[Packet]", spec.type))
            assert (await line.ask(packet)).code == WrongDirectionError.code, spec.name
            assert (await line.ask(packet, Session())).code == WrongDirectionError.code, spec.name

    on_the_line(body)


# Table 4.1: every client method, over TCP, async and blocking


@asynccontextmanager
async def serving() -> AsyncIterator[QueueServer]:
    async with QueueServer(QueueService(MemoryQueueStorage())) as server:
        yield server


def with_client(body: Callable[[QueueClient, QueueServer], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving() as server, QueueClient.register("127.0.0.1", server.port, name="ann") as client:
            await body(client, server)

    asyncio.run(main())


def test_table_4_1_ping() -> None:
    """Give the round trip time, with or without registration."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        assert 0 < await client.ping() < 5
        async with QueueClient([("127.0.0.1", server.port)]) as nobody:
            assert 0 < await nobody.ping() < 5

    with_client(body)


def test_table_4_1_connect_as_new_client() -> None:
    """The client has an id, a name and a mode."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        assert (client.client_id, client.name, client.mode) == (1, "ann", ClientMode.READ_AND_PUT)
        async with QueueClient.register("127.0.0.1", server.port, name="bob", mode=ClientMode.READ) as bob:
            assert (bob.client_id, bob.name, bob.mode) == (2, "bob", ClientMode.READ)

    with_client(body)


def test_table_4_1_connect_as_existing_client() -> None:
    """An id is enough; name and mode come back."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        async with QueueClient.identify("127.0.0.1", server.port, client_id=client.client_id) as again:
            assert (again.name, again.mode) == ("ann", ClientMode.READ_AND_PUT)

    with_client(body)


def test_table_4_1_create_queue_delete_queue() -> None:
    """createQueue, deleteQueue."""

    async def body(client: QueueClient, _server: QueueServer) -> None:
        queue = await client.create_queue("jobs")
        await client.delete_queue(queue)
        with pytest.raises(UnknownQueueError):
            await client.delete_queue(queue)

    with_client(body)


def test_table_4_1_get_queue_by_name_get_queue_by_id() -> None:
    """getQueueByName, getQueueById."""

    async def body(client: QueueClient, _server: QueueServer) -> None:
        queue = await client.create_queue("jobs")
        assert await client.get_queue_by_name("jobs") == queue
        assert await client.get_queue_by_id(queue.queue_id) == queue

    with_client(body)


def test_table_4_1_get_queues_get_active_queues() -> None:
    """getQueues, getActiveQueues; more than one page of them."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        created = [await client.create_queue(f"q{i}") for i in range(3)]
        await client.put(created[1], b"x")
        assert await client.get_queues() == created
        assert await client.get_active_queues() == [created[1]]
        for i in range(3, 2_003):
            await server.service.storage.create_queue(f"q{i}")
        assert [queue.queue_name for queue in await client.get_queues()] == [f"q{i}" for i in range(2_003)]

    with_client(body)


def test_table_4_1_read_messages_of_any_size() -> None:
    """readMessages: 24 MiB, more than a frame holds and 700 times what the report's packets could carry."""

    async def body(client: QueueClient, _server: QueueServer) -> None:
        queue = await client.create_queue("jobs")
        for i in range(24):
            await client.put(queue, bytes([i]) * (1 << 20))
        sizes = [len(m.message) async for m in client.read_messages(queue)]
        assert sizes == [1 << 20] * 24
        assert (await client.stats(queue)).waiting == 24

    with_client(body)


def test_table_4_1_put_message() -> None:
    """PutMessage."""

    async def body(client: QueueClient, _server: QueueServer) -> None:
        queue = await client.create_queue("jobs")
        message_id = await client.put(queue, "text", receiver=client.client_id, context=9, priority=10)
        (message,) = [m async for m in client.read_messages(queue)]
        assert (message.message_id, message.message, message.receiver_id, message.context, message.priority) == (
            message_id,
            b"text",
            client.client_id,
            9,
            10,
        )

    with_client(body)


def test_table_4_1_put_messages_into_multiple_queues() -> None:
    """putMessages: the queues that do not exist are reported."""

    async def body(client: QueueClient, _server: QueueServer) -> None:
        first, second = await client.create_queue("a"), await client.create_queue("b")
        assert await client.put_to_many([first, 99, second], b"x") == {99}
        assert await client.put_to_many([first, second], b"y") == set()
        assert len([m async for m in client.read_messages(second)]) == 2

    with_client(body)


def test_table_4_1_send_request_response_message() -> None:
    """sendRequestResponseMessage: the response to this request, not another client's."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        queue = await client.create_queue("calls")

        async def answer(worker: QueueClient) -> None:
            for _ in range(4):
                delivery = await worker.take(queue, timeout=5)
                assert delivery is not None
                async with delivery:
                    await delivery.reply(delivery.payload.upper())

        async with QueueClient.register("127.0.0.1", server.port, name="worker") as worker:
            serving = asyncio.create_task(answer(worker))
            answers = await asyncio.gather(*(client.request(queue, f"r{i}", timeout=5) for i in range(4)))
            await serving
        assert [a.message for a in answers] == [b"R0", b"R1", b"R2", b"R3"]
        assert [m async for m in client.read_messages(queue)] == []

    with_client(body)


def test_table_4_1_retrieve_message() -> None:
    """RetrieveMessage by priority, by mode, from one sender, and waiting for one."""

    async def body(client: QueueClient, server: QueueServer) -> None:
        queue = await client.create_queue("jobs")
        async with QueueClient.register("127.0.0.1", server.port, name="bob") as bob:
            for putter, priority, text in ((client, 3, "old"), (bob, 9, "high"), (client, 5, "new"), (bob, 1, "low")):
                await putter.put(queue, text, priority=priority)
            sender = bob.client_id

            async def taken(**how: Any) -> bytes | None:
                delivery = await client.take(queue, **how)
                return None if delivery is None else delivery.payload

            assert await taken() == b"high"
            assert await taken(mode=ReadMode.ARRIVAL) == b"old"
            assert await taken(mode=ReadMode.PRIORITY, sender=sender) == b"low"
            assert await taken(mode=ReadMode.ARRIVAL, sender=sender, timeout=0.05) is None
            assert await taken() == b"new"
            waiting = asyncio.create_task(taken(timeout=5))
            await asyncio.sleep(0.05)
            await bob.put(queue, "at last")
            assert await asyncio.wait_for(waiting, 1) == b"at last"

    with_client(body)


def test_table_4_1_the_same_methods_block_without_asyncio() -> None:
    """Every method of the table once more through the blocking facade."""

    async def main() -> None:
        async with serving() as server:
            await asyncio.to_thread(_use_blocking, server.port)

    asyncio.run(main())


def _use_blocking(port: int) -> None:
    with SyncQueueClient.register("127.0.0.1", port, name="ann") as client:
        assert client.ping() > 0
        queue, other = client.create_queue("jobs"), client.create_queue("other")
        assert client.get_queue_by_name("jobs") == client.get_queue_by_id(queue.queue_id) == queue
        client.put(queue, b"a", priority=9)
        assert client.put_to_many([queue, other, 77], b"b") == {77}
        assert client.get_queues() == client.get_active_queues() == [queue, other]
        assert [m.message for m in client.read_messages(queue)] == [b"a", b"b"]
        with client.take(queue, timeout=1) as delivery:  # type: ignore[union-attr]
            assert delivery.payload == b"a"
        first = client.take(queue, mode=ReadMode.ARRIVAL, sender=client.client_id)
        assert first is not None
        first.release()
        message = client.read(queue)
        assert isinstance(message, QueueMessage)
        assert message.message == b"b"
        assert client.take(queue, timeout=0.01) is None
        client.delete_queue(other)
        with SyncQueueClient.identify("127.0.0.1", port, client_id=client.client_id) as again:
            assert again.name == "ann"


# Chapter 4: "profiling and benchmark logging", used by both the client and the middleware


def test_client_and_middleware_log_each_method_call_with_its_time_and_outcome(tmp_path: Path) -> None:
    """The same calls on both sides; the client's times contain the middleware's; errors have their code."""
    logs = {"client": ProfileLog(tmp_path / "client.jsonl", "client"), "broker": ProfileLog(tmp_path / "broker.jsonl", "broker")}

    async def body() -> None:
        service = QueueService(MemoryQueueStorage(), profile=logs["broker"])
        async with (
            QueueServer(service) as server,
            QueueClient.register("127.0.0.1", server.port, name="ann", profile=logs["client"]) as ann,
        ):
            queue = await ann.create_queue("jobs")
            for _ in range(20):
                await ann.put(queue, b"x")
            await ann.read(queue)
            assert await ann.take(queue, sender=99, timeout=0.1) is None
            with pytest.raises(UnknownQueueError):
                await ann.get_queue_by_name("none")

    asyncio.run(body())
    logs["client"].close()
    calls = {side: list(read_calls(tmp_path / f"{side}.jsonl")) for side in logs}
    expected = ["CreateQueue", *["PutMessages"] * 20, "ReadMessage", "TakeMessages", "GetQueueId"]
    assert [call.method for call in calls["client"]] == expected
    assert [call.method for call in calls["broker"]] == ["RegisterClient", *expected]
    assert {call.side for call in calls["broker"]} == {"broker"}
    for mine, theirs in zip(calls["client"], calls["broker"][1:], strict=True):
        assert mine.us >= theirs.us
        assert (mine.client, mine.outcome) == (1, theirs.outcome)
    assert calls["client"][-1].outcome == str(UnknownQueueError.code)
    assert calls["broker"][-2].us >= 90_000  # the take that waited
    summary = {each.method: each for each in summarise(calls["broker"])}
    assert (summary["PutMessages"].calls, summary["GetQueueId"].errors) == (20, 1)
    assert summary["PutMessages"].p50_us <= summary["PutMessages"].p99_us <= summary["PutMessages"].max_us
    shown = CliRunner().invoke(main, ["queue", "profile", str(tmp_path / "broker.jsonl"), "--json"])
    assert json.loads(shown.output.splitlines()[0])["calls"] == 20


def test_the_profiling_log_has_a_maximum_and_passes_over_a_line_cut_by_a_crash(tmp_path: Path) -> None:
    """Two files at most; the newest calls are kept."""
    path = tmp_path / "log.jsonl"
    for number in range(40):
        log = ProfileLog(path, "broker", file_bytes_max=1_000)
        for _ in range(5):
            log.note("Ping", number, 0.001, "ok")
        log.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1"]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2_000
    assert [call.client for call in read_calls(path)][-1] == 39
    with path.open("ab") as file:
        file.write(b'{"at": 1.0, "side": "bro')
    assert [call.client for call in read_calls(path)][-1] == 39


def test_a_broker_writes_the_log_its_configuration_names(tmp_path: Path) -> None:
    """Below its data directory."""
    queues = queues_of(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", queues=Queues(profile="profile.jsonl")))
    assert queues is not None

    async def body() -> None:
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0"), [queues])
        await node.start()
        async with QueueClient.open("127.0.0.1", node.port, name="ann") as ann:
            await ann.ping()
            await ann.open_queue("jobs")
        await node.stop()

    asyncio.run(body())
    assert "CreateQueue" in [call.method for call in read_calls(tmp_path / "profile.jsonl")]
