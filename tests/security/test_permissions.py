"""What each identity may do at a guarded broker, by the client's own methods: everything else is a typed error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.security.guarded import Guard, guarded_node

import postroad
from postroad.client.telesto import QueueMethods
from postroad.core.protocol.packets import pubend_id
from postroad.core.protocol.rights import Rights
from postroad.errors import (
    PermissionDeniedError,
    PublishRefusedError,
    QueueLimitError,
    UnknownClientError,
    UnknownDurableError,
    UnknownQueueError,
)
from postroad.queues.broker_service import queues_of
from postroad.queues.client import QueueClient
from postroad.queues.limits import QueueLimits
from postroad.queues.service import QueueService, Session
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.storage.queues.base import ClientMode
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.wire.packets.session import Error
from postroad.wire.packets.telesto import CreateQueue, CreateQueueResponse, DeleteQueue, RegisterClient

ID = bytes(16)


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    guard = Guard(tmp_path)
    guard.identity("nobody")
    guard.identity("ops", publish=True, subscribe=True, queues=("put:*", "take:*", "manage:*"), trace=True, admin=True)
    guard.identity("shop", publish="region = 'EU'", subscribe="region = 'EU'", queues=("put:orders", "take:orders.*"))
    guard.identity("desk", publish=True, subscribe=True, queues=("put:orders", "take:orders", "manage:orders"))
    return guard


@asynccontextmanager
async def served(guard: Guard) -> AsyncIterator[BrokerServer]:
    queues = queues_of(NodeConfig(id=1, data_dir=str(guard.directory)))
    assert queues is not None
    node = guarded_node(guard, guard.directory, services=(queues,))
    await node.start()
    try:
        yield node
        assert node.failure is None
        assert node.internal_errors == 0
    finally:
        await node.stop()


async def read_all(client: postroad.Client) -> None:
    async for _ in client.read(pubend_id(1), 0, 1 << 40):
        pass


async def write(client: postroad.Client) -> None:
    async with client.writer("spark", 1) as writer:
        await writer.write({"n": [1]}, [b""])


OPERATIONS: dict[str, Callable[[postroad.Client], Awaitable[object]]] = {
    "publish": lambda client: client.publish({"n": 1}),
    "subscribe": lambda client: client.subscribe("n > 0"),
    "a durable subscription": lambda client: client.subscribe("n > 0", name="d"),
    "forget": lambda client: client.forget("d"),
    "list durable names": lambda client: client.durables(),
    "list pubends": lambda client: client.pubends(),
    "read": read_all,
    "write a batch": write,
    "advertise": lambda client: client.advertise("n > 0"),
    "ask about admission": lambda client: client.admission_state(),
    "explain a subscription": lambda client: client.explain_subscription("n > 0"),
    "trace": lambda client: client.trace(ID),
    "explain": lambda client: client.explain(ID, "somebody"),
    "read one message": lambda client: client.message(ID),
    "status": lambda client: client.status(),
    "the map": lambda client: client.brokers(),
    "limit a link": lambda client: client.limit_link(2, 1000),
    "put": lambda client: client.queue("orders").put(b"x"),
    "take": lambda client: client.queue("orders").take(0.1),
    "peek": lambda client: anext(aiter(client.queue("orders").messages())),
    "bind": lambda client: client.queue("orders").bind("n > 0"),
    "delete a queue": lambda client: client.queue("orders").delete(),
    "list queues": lambda client: client.queues.get_queues(),
}


def test_each_operation_without_its_permission_is_a_typed_error(guard: Guard) -> None:
    async def scenario() -> None:
        async with served(guard) as node, guard.connect(node, "nobody") as client:
            for name, operation in OPERATIONS.items():
                async with asyncio.timeout(10.0):
                    with pytest.raises(PermissionDeniedError) as caught:
                        await operation(client)
                assert caught.value.code == 902, name
            await client.close(flush=False)  # flushing would raise what `publish` has raised

    asyncio.run(scenario())


def test_messages_are_published_and_received_within_the_permissions(guard: Guard) -> None:
    async def scenario() -> None:
        async with served(guard) as node, guard.connect(node, "shop") as shop, guard.connect(node, "ops") as ops:
            mine, everything = await shop.subscribe(""), await ops.subscribe("")
            with pytest.raises(PublishRefusedError) as caught:
                await shop.publish({"region": "US"}, b"american")
            assert isinstance(caught.value.cause, PermissionDeniedError)
            await ops.publish({"region": "US"}, b"american")
            european = await shop.publish({"region": "EU"}, b"european")
            async with asyncio.timeout(10.0):
                assert (await anext(mine)).payload == b"european"
                assert [(await anext(everything)).payload for _ in range(2)] == [b"american", b"european"]
                message = await shop.message(european)
            assert message is not None
            assert message.payload == b"european"

    asyncio.run(scenario())


def test_durable_names_are_deleted_by_their_owner_and_by_an_administrator(guard: Guard) -> None:
    async def scenario() -> None:
        async with (
            served(guard) as node,
            guard.connect(node, "shop") as shop,
            guard.connect(node, "desk") as desk,
            guard.connect(node, "ops") as ops,
        ):
            for name in ("one", "two"):
                await (await shop.subscribe("n > 0", name=name)).close()
            with pytest.raises(UnknownDurableError):
                await desk.forget("one")
            with pytest.raises(PermissionDeniedError):
                await desk.subscribe("n > 0", name="/shop/one")
            await shop.forget("one")
            assert [each.name for each in await ops.durables()] == ["/shop/two"]
            await ops.forget("/shop/two")
            assert await shop.durables() == []

    asyncio.run(scenario())


async def all_queues(client: QueueMethods) -> list[str]:
    return [each.queue_name for each in await client.get_queues()]


def test_queues_are_used_within_the_permissions(guard: Guard) -> None:
    """`put:orders` puts into `orders` and neither takes from it nor manages it; lists show what one may use."""

    async def scenario() -> None:
        async with served(guard) as node, guard.connect(node, "ops") as ops, guard.connect(node, "shop") as shop:
            for name in ("orders", "orders.eu", "secret"):
                await ops.queue(name).declare()
            await shop.queue("orders").put(b"1")
            for refused in (
                shop.queue("orders").take(0.1),
                shop.queue("orders").bind("n > 0"),
                shop.queue("orders").delete(),
                shop.queue("orders.eu").put(b"2"),
                shop.queue("secret").stats(),
                shop.queue("new").put(b"3"),
            ):
                with pytest.raises(PermissionDeniedError):
                    await refused
            for by_id in (
                shop.queues.put_to_many([1, 3], b"4"),
                shop.queues.delete_queue(3),
                shop.queues.get_queue_by_id(3),
            ):
                with pytest.raises(UnknownQueueError):  # as if there were no such queue: its name stays hidden
                    await by_id
            assert await shop.queue("orders.eu").take(0.05) is None
            assert await all_queues(shop.queues) == ["orders", "orders.eu"]
            assert await all_queues(ops.queues) == ["orders", "orders.eu", "secret"]

    asyncio.run(scenario())


def test_a_queue_client_belongs_to_its_identity(guard: Guard) -> None:
    """Ids are sequential; whoever guesses one does not become that client, and takes neither its messages nor its leases."""

    async def scenario() -> None:
        async with served(guard) as node, guard.connect(node, "desk") as desk, guard.connect(node, "shop") as shop:
            await desk.queue("orders").declare()
            receiver = desk.queues.client_id
            assert shop.queues.client_id != receiver
            with pytest.raises(UnknownClientError):
                await shop.queues.delete_client(receiver)
            credentials = postroad.security.credentials.credentials(
                encrypted=True, tls=guard.authority, token=guard.tokens["shop"]
            )
            client = QueueClient.identify("127.0.0.1", node.port, client_id=receiver, credentials=credentials)
            with pytest.raises(UnknownClientError):
                await client.connect()

    asyncio.run(scenario())


def test_an_identity_creates_so_many_queues() -> None:
    async def scenario() -> None:
        service = QueueService(MemoryQueueStorage(), limits=QueueLimits(queues_per_identity_max=2))
        await service.start()
        sessions = [Session(rights=Rights(owner, admin=False)) for owner in ("shop", "desk")]
        for session in sessions:
            await service.handle(RegisterClient("x", ClientMode.READ_AND_PUT, existing=True), session)
        shop, desk = sessions
        answers = [await service.handle(CreateQueue(f"q{n}"), shop) for n in range(3)]
        assert isinstance(answers[2], Error)
        assert answers[2].code == QueueLimitError.code
        assert isinstance(await service.handle(CreateQueue("d"), desk), CreateQueueResponse)
        await service.handle(DeleteQueue(1), shop)
        assert isinstance(await service.handle(CreateQueue("q3"), shop), CreateQueueResponse)
        await service.stop()

    asyncio.run(scenario())


def test_a_bound_queue_gets_what_its_owner_may_see(guard: Guard) -> None:
    async def scenario() -> None:
        guard.identity("eu", subscribe="region = 'EU'", queues=("take:eu", "manage:eu"))
        async with served(guard) as node, guard.connect(node, "ops") as ops, guard.connect(node, "eu") as eu:
            await eu.queue("eu").bind("n > 0")
            (binding,) = await ops.queues.bindings()
            assert binding.filter_text == "region = 'EU' AND n > 0"
            async with asyncio.timeout(15.0):
                delivery = None
                while delivery is None:  # a binding begins a moment after it was asked for
                    for region in ("US", "EU"):
                        await ops.publish({"region": region, "n": 1}, region.encode())
                    delivery = await eu.queue("eu").take(0.5)
            assert delivery.payload == b"EU"

    asyncio.run(scenario())
