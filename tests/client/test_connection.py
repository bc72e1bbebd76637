"""The asyncio client against real brokers in this process: reconnects, failover, positions, windows, the blocking face."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import postroad
import postroad.sync
from postroad.client.addresses import parse_addresses
from postroad.client.connection import ClientConfig
from postroad.client.positions import load_positions, save_positions
from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import Deliver, DeliverRows
from postroad.core.session.machine import SessionConfig
from postroad.core.session.publishing import PublishingConfig
from postroad.errors import (
    ClosedError,
    GapError,
    InvalidValueError,
    NotConnectedError,
    PositionFileError,
    UnfinishedError,
)
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Links, NodeConfig, Overlay, Storage
from postroad.testing import broker, free_ports, overlay
from postroad.wire.codec import Decoded, decode
from postroad.wire.framing import Frame


class Brokers:
    """Brokers of one test, on the test's own event loop, that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: dict[int, BrokerServer] = {}
        self.ports: dict[int, int] = {}

    async def start(self, number: int = 1, links: Links | None = None, storage: Storage | None = None) -> str:
        port = self.ports.setdefault(number, free_ports(1)[0])
        config = NodeConfig(
            id=number,
            data_dir=str(self.directory / str(number)),
            listen=f"127.0.0.1:{port}",
            overlay=Overlay(silence_s=0.1),
            links=links or Links(),
            storage=storage or Storage(),
        )
        node = self.nodes[number] = BrokerServer(config)
        await node.start()
        return f"postroad://127.0.0.1:{port}"

    async def stop(self, number: int = 1) -> None:
        await self.nodes.pop(number).stop()


def run(tmp_path: Path, scenario: Callable[[Brokers], Awaitable[None]]) -> None:
    async def whole() -> None:
        brokers = Brokers(tmp_path)
        try:
            async with asyncio.timeout(60):
                await scenario(brokers)
        finally:
            for number in list(brokers.nodes):
                await brokers.stop(number)

    asyncio.run(whole())


async def take(subscription: postroad.Subscription, count: int) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        number = (await anext(subscription))["n"]
        assert isinstance(number, int)
        numbers.append(number)
    return numbers


async def nothing_comes(subscription: postroad.Subscription) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await anext(subscription)


@pytest.mark.parametrize(("feature", "carrier"), [("rows", DeliverRows), ("another", Deliver)])
def test_messages_arrive_in_order_with_what_they_were_published_with(
    tmp_path: Path, feature: str, carrier: type[Deliver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes of every kind, payload and id come out as they went in, whether the client takes few rows as values or not."""
    carriers: set[type] = set()

    def decode_and_look(frame: Frame) -> Decoded:
        decoded = decode(frame)
        if isinstance(decoded[0], Deliver):
            carriers.add(type(decoded[0]))
        return decoded

    monkeypatch.setattr("postroad.client.link.ROWS", feature)
    monkeypatch.setattr("postroad.client.link.decode", decode_and_look)

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        async with postroad.connect(url) as client:
            subscription = await client.subscribe("n BETWEEN 1 AND 2")
            publisher = client.publisher()
            values: dict[str, bool | int | float | str | bytes] = {"flag": True, "price": 1.5, "symbol": "ÄÖ", "blob": b"\0\xff"}
            ids = [await publisher.publish({"n": number, **values}, bytes([number])) for number in range(4)]
            first, second = await anext(subscription), await anext(subscription)
            assert [first.id, second.id] == ids[1:3]
            assert first.attributes == {"n": 1, **values}
            assert second.payload == b"\2"
            assert client.broker == 1

    run(tmp_path, scenario)
    assert carriers == {carrier}


def test_a_broker_that_comes_back_gets_what_it_missed_and_gives_what_it_has(tmp_path: Path) -> None:
    """Publisher and subscriber go on across a restart without a loss or a duplicate."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        async with postroad.connect(url) as client, postroad.connect(url) as other:
            subscription = await client.subscribe()
            publisher = other.publisher()
            for number in range(50):
                await publisher.publish({"n": number})
            assert await take(subscription, 20) == list(range(20))
            await brokers.stop()
            waiting = asyncio.create_task(publisher.publish({"n": 50}))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await brokers.start()
            await waiting
            await publisher.flush(20)
            assert await take(subscription, 31) == list(range(20, 51))
            await nothing_comes(subscription)

    run(tmp_path, scenario)


def test_new_messages_go_to_the_next_address_and_doubtful_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 9, live: while its broker is away a publisher uses another; what was in doubt arrives when the first is back."""

    async def scenario(brokers: Brokers) -> None:
        urls = [await brokers.start(1), await brokers.start(2)]
        async with postroad.connect(urls) as client:
            publisher = client.publisher()
            first = await publisher.publish({"n": 1})
            await publisher.flush()
            node = brokers.nodes[1]
            monkeypatch.setattr(node._disk, "append", lambda _order: None)
            doubtful = await publisher.publish({"n": 2})
            await asyncio.sleep(0.1)  # it is on its way, and will never be acknowledged by this life of the broker
            for peer in list(node.peers.values()):
                peer.channel.abort()
            await brokers.stop(1)
            second = await publisher.publish({"n": 3})
            assert (first.broker, doubtful.broker, second.broker) == (1, 1, 2)
            assert [doubt.first for doubt in publisher.doubtful()] == [doubtful]
            with pytest.raises(UnfinishedError):
                await publisher.flush(0.3)
            await brokers.start(1)
            await publisher.flush(20)
            assert publisher.doubtful() == []
        async with postroad.connect(urls[0]) as client:
            assert await take(await client.subscribe(start="earliest"), 2) == [1, 2]

    run(tmp_path, scenario)


def test_a_position_file_carries_a_subscription_over_the_clients_death(tmp_path: Path) -> None:
    """What was acknowledged does not come again; what was not does."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        file = tmp_path / "positions"
        async with postroad.connect(url) as publishing:
            publisher = publishing.publisher()
            client = postroad.connect(url)
            await client.__aenter__()
            subscription = await client.subscribe("n >= 0", position_file=file)
            for number in range(10):
                await publisher.publish({"n": number})
            await publisher.flush()
            assert await take(subscription, 6) == list(range(6))
            await subscription.ack()
            assert await take(subscription, 2) == [6, 7]
            await client.close(flush=False)  # without an ack of the last two
            async with postroad.connect(url) as again:
                later = await again.subscribe("n >= 0", position_file=file)
                assert await take(later, 4) == [6, 7, 8, 9]
                message = None
                await publisher.publish({"n": 10})
                message = await anext(later)
                await later.ack(message)
            async with postroad.connect(url) as again:
                later = await again.subscribe("n >= 0", position_file=file)
                await nothing_comes(later)
            async with postroad.connect(url) as again:
                with pytest.raises(PositionFileError, match="another file"):
                    await again.subscribe("n >= 1", position_file=file)

    run(tmp_path, scenario)


def test_a_durable_subscription_waits_and_moves_between_brokers() -> None:
    """Messages published while its client is away are there when it returns, at another broker too."""

    async def scenario(urls: dict[str, str]) -> None:
        async with postroad.connect(urls["a"]) as publishing:
            publisher = publishing.publisher()
            async with postroad.connect(urls["a"]) as client:
                subscription = await client.subscribe("n > 0", name="orders")
                await publisher.publish({"n": 1})
                assert await take(subscription, 1) == [1]
                await subscription.ack()
                await publisher.publish({"n": 2})
                assert await take(subscription, 1) == [2]
                await asyncio.sleep(0.2)
            await publisher.publish({"n": 3})
            await publisher.flush()
            async with postroad.connect(urls["b"]) as client:
                subscription = await client.subscribe("n > 0", name="orders")
                assert await take(subscription, 2) == [2, 3]
                await subscription.ack()
                await subscription.close(forget=True)

    with overlay([("a", "b")]) as urls:
        asyncio.run(scenario(urls))


def test_a_durable_subscription_that_no_broker_deleted_is_reported(tmp_path: Path) -> None:
    """With its broker down it stays, and can be deleted when the broker is back."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        async with postroad.connect(url) as client:
            subscription = await client.subscribe(name="orders")
            await brokers.stop()
            with pytest.raises(UnfinishedError, match="'orders' is deleted"):
                await subscription.close(forget=True)
            await brokers.start()
            await client.forget("orders")
            assert await client.durables() == []

    run(tmp_path, scenario)


def test_a_gap_is_raised_in_its_place_or_told(tmp_path: Path) -> None:
    """Retention passed its bound: the subscription learns what it lost and goes on."""

    async def scenario(brokers: Brokers) -> None:
        small = Storage(retention_bytes=4096, segment_bytes=1024)
        url = await brokers.start(1, storage=small)
        async with postroad.connect(url) as client:
            publisher = client.publisher()
            first = await client.subscribe(name="late")
            await first.close()
            told: list[GapError] = []
            other = await client.subscribe(name="told")
            await other.close()
            for number in range(200):
                await publisher.publish({"n": number}, b"x" * 100)
                if number % 10 == 0:
                    await publisher.flush()
            await publisher.flush()
        await brokers.stop()
        await brokers.start(1, storage=small)
        async with postroad.connect(url) as client:
            first = await client.subscribe(name="late")
            with pytest.raises(GapError) as caught:
                await anext(first)
            assert caught.value.lo < caught.value.hi
            (number,) = await take(first, 1)
            assert number > 0
            assert await take(first, 199 - number) == list(range(number + 1, 200))
            other = await client.subscribe(name="told", on_gap=told.append)
            assert (await anext(other))["n"] == number
            assert [gap.pubend for gap in told] == [256]

    run(tmp_path, scenario)


def test_a_reader_that_is_slow_makes_the_broker_wait_not_the_memory_grow(tmp_path: Path) -> None:
    """Received and unread messages are bounded; all of them arrive in the end."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        config = ClientConfig(receive_bytes=200_000)
        async with postroad.connect(url, config) as slow, postroad.connect(url) as fast:
            subscription = await slow.subscribe("n >= 0")
            publisher = fast.publisher()
            for number in range(20_000):
                await publisher.publish({"n": number}, b"x" * 1000)
            await publisher.flush()
            await asyncio.sleep(0.5)
            # Beside its own bound, what was under way when it said stop: the broker's backlog and the buffers of the kernel.
            assert subscription._buffered < 10_000_000
            other = slow.publisher()  # the connection is read all the while
            await other.publish({"x": 1})
            await other.flush(5)
            second = await slow.subscribe("x = 2")
            await other.publish({"x": 2})
            assert (await anext(second))["x"] == 2
            assert await take(subscription, 20_000) == list(range(20_000))

    run(tmp_path, scenario)


def test_a_reader_that_does_not_read_for_long_stays_connected(tmp_path: Path) -> None:
    """An application that takes nothing for longer than any timeout keeps its connection and its place."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start(links=Links(client_heartbeat_s=0.1, client_timeout_s=0.6))
        config = ClientConfig(receive_bytes=50_000, heartbeat_s=0.1, timeout_s=0.6)
        async with postroad.connect(url, config) as slow, postroad.connect(url) as fast:
            subscription = await slow.subscribe()
            publisher = fast.publisher()
            for number in range(500):
                await publisher.publish({"n": number}, b"x" * 1000)
            await publisher.flush()
            link = slow._main
            await asyncio.sleep(1.5)
            assert slow._main is link
            assert await take(subscription, 500) == list(range(500))
            assert slow._main is link

    run(tmp_path, scenario)


def test_the_window_bounds_what_is_not_acknowledged(tmp_path: Path) -> None:
    """publish() waits when the window is full and goes on with the acknowledgements."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        session = SessionConfig(publishing=PublishingConfig(window_messages=10))
        async with postroad.connect(url, ClientConfig(session=session)) as client:
            publisher = client.publisher()
            most = 0
            for number in range(100):
                await publisher.publish({"n": number})
                most = max(most, publisher.outstanding)
            await publisher.flush()
            assert most == 10
            assert publisher.outstanding == 0

    run(tmp_path, scenario)


def test_columns_are_published_and_received_as_columns(tmp_path: Path) -> None:
    """Lists, numpy and Arrow columns; nulls are missing attributes; ids are made in order."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        async with postroad.connect(url) as client:
            subscription = await client.subscribe("n >= 0")
            publisher = client.publisher()
            columns = {"n": np.arange(10_000), "symbol": ["A", None] * 5_000}
            ids = await publisher.publish_many(columns, [b"p"] * 10_000)
            assert len(ids) == 10_000
            assert list(ids[:3]) == sorted(ids[:3])
            table = pa.table({"n": [10_000, 10_001], "payload": pa.array([b"x", b"y"], pa.binary())})
            await publisher.publish_many(table)
            await publisher.publish_many([({"n": 10_002}, b"z")])
            received: list[Batch] = []
            async for batch in subscription.batches():
                received.append(batch)
                if sum(map(len, received)) == 10_003:
                    break
            messages = [message for batch in received for message in batch]
            assert [message["n"] for message in messages] == list(range(10_003))
            assert messages[0]["symbol"] == "A"
            assert messages[1].get("symbol") is None
            assert [message.payload for message in messages[-3:]] == [b"x", b"y", b"z"]
            assert messages[5].id == ids[5]

    run(tmp_path, scenario)


def test_everything_published_is_durable_when_the_client_has_left(tmp_path: Path) -> None:
    """Leaving `async with` waits for the acknowledgements; a client that is closed says so."""

    async def scenario(brokers: Brokers) -> None:
        url = await brokers.start()
        async with postroad.connect(url) as client:
            publisher = client.publisher()
            for number in range(1_000):
                await publisher.publish({"n": number})
        with pytest.raises(ClosedError):
            await publisher.publish({"n": 0})
        with pytest.raises(ClosedError):
            client.publisher()
        async with postroad.connect(url) as client:
            assert await take(await client.subscribe(start="earliest"), 1_000) == list(range(1_000))

    run(tmp_path, scenario)


def test_no_broker_is_told_with_the_addresses_that_were_tried() -> None:
    """An unreachable broker is a typed error, in time."""
    (port,) = free_ports(1)

    async def scenario() -> None:
        async with postroad.connect(f"postroad://127.0.0.1:{port}", ClientConfig(connect_s=0.3)):
            pass

    with pytest.raises(NotConnectedError, match=f"127.0.0.1:{port}"):
        asyncio.run(scenario())


def test_the_blocking_face_has_the_same_names() -> None:
    """publish, publish_many, subscribe, iteration, batches, ack, positions, close."""
    with broker() as url, postroad.sync.connect(url) as client:
        with client.subscribe("n > 1", name="sync") as subscription, client.publisher() as publisher:
            publisher.publish({"n": 1})
            message_id = publisher.publish({"n": 2}, b"two")
            publisher.flush()
            message = next(subscription)
            assert (message.id, message.payload) == (message_id, b"two")
            subscription.ack()
            assert list(subscription.positions()) == list(subscription.starts)
            publisher.publish_many({"n": [5, 6]}, [b"", b""])
            assert [message["n"] for message in next(iter(subscription.batches()))] == [5, 6]
            assert publisher.doubtful() == []
            assert subscription.name == "sync"
        assert client.broker == 1


@pytest.mark.parametrize("url", ["http://x:1", "postroad://", "postroad://host:port", "postroad://h:0", "postroad://h:70000"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """The text says how an address is written."""
    with pytest.raises(InvalidValueError, match=r"host:port"):
        parse_addresses(url)


def test_addresses_are_tried_in_the_order_given() -> None:
    """Several in one URL, several URLs, ports by default, IPv6."""
    addresses = parse_addresses(["postroad://a:1,b", "postroad://[::1]:5/"])
    assert [str(address) for address in addresses] == ["a:1", "b:7400", "[::1]:5"]


def test_positions_survive_in_a_file_and_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """The file is replaced as a whole; what is not one of ours is named."""
    file = tmp_path / "positions"
    assert load_positions(file, "x > 1") == {}
    save_positions(file, "x > 1", {256: 1 << 60, 512: 5})
    assert load_positions(file, "x > 1") == {256: 1 << 60, 512: 5}
    assert [each.name for each in tmp_path.iterdir()] == ["positions"]
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(PositionFileError, match="not a file of positions"):
        load_positions(file, "x > 1")
    with pytest.raises(PositionFileError, match="cannot save"):
        save_positions(tmp_path / "missing" / "positions", "", {})
