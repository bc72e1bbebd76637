"""Brokers that track: real ones, with files, clients, crashes and clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.integration import brokers
from tests.waiting import until

import postroad
from postroad.core.batch.batch import Ids
from postroad.core.broker.machine import FAST_S
from postroad.core.protocol.packets import pubend_id
from postroad.errors import PublishRefusedError, SkewError
from postroad.runtime import broker_server as node_module
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Neighbour, NodeConfig, Overlay, Tracking
from postroad.testing import free_ports
from postroad.tracking.files.format import unpack
from postroad.tracking.files.schema import records_of
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import HistoryKey, Kind, Span
from postroad.tracking.process import worker as tracking_module
from postroad.tracking.queries.answers import Searched
from postroad.tracking.queries.questions import TracksQuestion
from postroad.tracking.tap.tracked_broker import RECORD_S
from postroad.types import MessageId

QUICK = Tracking(persistence_ms=300)


def config(tmp_path: Path, number: int = 1, port: int = 0, *neighbours: int, tracking: Tracking = QUICK) -> NodeConfig:
    return NodeConfig(
        id=number,
        data_dir=str(tmp_path / str(number)),
        listen=f"127.0.0.1:{port}",
        neighbours=tuple(Neighbour(address=f"127.0.0.1:{each}") for each in neighbours),
        overlay=Overlay(silence_s=0.05),
        tracking=tracking,
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(40):
            await scenario()

    asyncio.run(whole())


def array_of(ids: list[MessageId]) -> Ids:
    return np.frombuffer(b"".join(map(bytes, ids)), np.dtype((np.void, 16)))


async def search(node: BrokerServer, ids: list[MessageId]) -> Searched:
    assert node.tracking is not None
    await asyncio.sleep(2 * (RECORD_S + FAST_S))  # what the machine noted is ordered by then
    found = await asyncio.wrap_future(node.tracking.search(TracksQuestion(b"".join(map(bytes, ids)))))
    assert isinstance(found, Searched)
    return found


async def keys_of(node: BrokerServer, ids: list[MessageId]) -> list[set[HistoryKey]]:
    """Ask a broker in which of its histories each message is."""
    found = await search(node, ids)
    keys: list[set[HistoryKey]] = [set() for _ in ids]
    for row, key, _, _ in found.hits:
        keys[row].add(key)
    return keys


async def take(subscription: postroad.Subscription, count: int) -> None:
    async for _ in subscription:
        count -= 1
        if not count:
            return


def attached(tracks: Path) -> set[tuple[str, str]]:
    """Return who is attached by which filter, as the files have it."""
    tables = [unpack(pa.py_buffer(file.read_bytes())).whole() for file in tracks.glob("*.parquet")]
    records = [record for table in tables for record in records_of(pa.Table.from_batches([table]))]
    return {(record.subscriber, record.filter) for record in records if isinstance(record, Span)}


@pytest.mark.parametrize("strategy", ["exact", "bloom", "async"])
def test_two_brokers_tell_where_a_message_was(tmp_path: Path, strategy: str) -> None:
    """Its origin, the broker it came to, from which neighbour, and who got it by which name."""

    async def scenario() -> None:
        tracking = Tracking(strategy=strategy, persistence_ms=300)  # type: ignore[arg-type]  # one of the literals
        (port,) = free_ports(1)
        first, second = (
            BrokerServer(config(tmp_path, 1, port, tracking=tracking)),
            BrokerServer(config(tmp_path, 2, 0, port, tracking=tracking)),
        )
        await first.start()
        await second.start()
        async with postroad.connect(first.url) as writer, postroad.connect(second.url) as reader:
            live = await reader.subscribe("n < 100")
            books = await reader.subscribe("n >= 0", name="books")
            publisher = writer.publisher()
            ids = [await publisher.publish({"n": number}) for number in range(200)]
            await publisher.flush()
            await asyncio.gather(take(live, 100), take(books, 200))
            at_first, at_second = await keys_of(first, ids), await keys_of(second, ids)
        assert at_first == [{HistoryKey(Kind.PUBLISHER, 1)}] * 200
        way, durable = HistoryKey(Kind.ROUTING, 1, 1), HistoryKey(Kind.SUBSCRIBER, 1, subscriber="books")
        assert all({way, durable} <= keys for keys in at_second)
        others = [{key.subscriber for key in keys - {way, durable}} for keys in at_second]
        assert others[100:] == [set()] * 100
        assert len(set.union(*others)) == 1
        assert next(iter(others[0])).startswith("~2.1.")
        for node in (first, second):
            await node.stop()
            assert node.stats()["tracking_failed"] == 0

    run(scenario)


def test_who_came_is_on_disk_a_second_later(tmp_path: Path) -> None:
    """Though T_p is long and nothing else happened: a crash then forgets no attachment."""

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path, tracking=Tracking(persistence_ms=600_000)))
        await node.start()
        async with postroad.connect(node.url) as client:
            await client.subscribe("n > 1", name="books")
            await until(lambda: attached(tmp_path / "1" / "tracks") == {("books", "n > 1")})
        await node.stop()

    run(scenario)


def test_without_tracking_there_is_neither_thread_nor_file(tmp_path: Path) -> None:
    """The strategy `null`."""

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path, tracking=Tracking(strategy="null")))
        await node.start()
        async with postroad.connect(node.url) as client:
            publisher = client.publisher()
            await publisher.publish({})
            await publisher.flush()
        assert node.tracking is None
        assert not any(name.startswith("tracking") for name in node.stats())
        await node.stop()
        assert not (tmp_path / "1" / "tracks").exists()

    run(scenario)


@asynccontextmanager
async def gathering(path: Path) -> AsyncIterator[tuple[BrokerServer, postroad.Publisher]]:
    """Run a broker in which no flush is due, and somebody who publishes there."""
    node = BrokerServer(config(path, tracking=Tracking(persistence_ms=60_000)))
    await node.start()
    async with postroad.connect(node.url) as client:
        yield node, client.publisher()
    await node.stop()


def test_a_question_does_not_wait_for_orders_to_gather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was ordered before it is taken at once, and known to the answer."""
    monkeypatch.setattr(tracking_module, "GATHER_S", 3600.0)

    async def scenario() -> None:
        async with gathering(tmp_path) as (node, publisher):
            for _ in range(3):
                ids = [await publisher.publish({}) for _ in range(10)]
                await publisher.flush()
                await asyncio.sleep(0.1)  # the thread gathers
                keys = await keys_of(node, ids)
                assert [len(each) for each in keys] == [1] * 10

    run(scenario)


@pytest.mark.parametrize(("gather_s", "take_bytes"), [(0.2, 2 << 20), (3600.0, 200)])
def test_orders_are_taken_without_anybody_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gather_s: float, take_bytes: int
) -> None:
    """Where T_p is long, what gathers leaves after a moment, or when it is much."""
    monkeypatch.setattr(tracking_module, "GATHER_S", gather_s)
    monkeypatch.setattr(tracking_module, "TAKE_BYTES", take_bytes)

    async def scenario() -> None:
        async with gathering(tmp_path) as (node, publisher):
            for _ in range(10):
                await publisher.publish({})
            await publisher.flush()
            await until(lambda: node.stats()["tracking_entries"] == 10)

    run(scenario)


def test_a_broker_that_stops_says_farewell(tmp_path: Path) -> None:
    """The next start finds everything and reports no hole, though no flush was due."""

    async def scenario() -> None:
        ids: list[MessageId] = []
        slow = Tracking(persistence_ms=60_000)
        for _ in range(2):
            node = BrokerServer(config(tmp_path, tracking=slow))
            await node.start()
            async with postroad.connect(node.url) as client:
                subscription = await client.subscribe(name="books")
                publisher = client.publisher()
                ids += [await publisher.publish({}) for _ in range(10)]
                await publisher.flush()
                await take(subscription, 10)
                await subscription.ack()
                keys = await keys_of(node, ids)
            assert node.stats()["tracking_holes"] == 0
            assert [len(each) for each in keys] == [2] * len(ids)
            await node.stop()

    run(scenario)


def test_after_a_kill_what_was_published_is_known_and_the_rest_is_reported(tmp_path: Path) -> None:
    """The log completes the publisher history; deliveries of the last moment may be missing, and a hole says so."""
    (port,) = free_ports(1)
    slow = Tracking(persistence_ms=1000)
    process = brokers.BrokerProcess(brokers.config(1, "killed", port, tmp_path, [], tracking=slow), tmp_path)

    async def publish(count: int, wait_s: float) -> list[MessageId]:
        async with postroad.connect(process.url) as client:
            subscription = await client.subscribe(name="books")
            publisher = client.publisher()
            ids = [await publisher.publish({}) for _ in range(count)]
            await publisher.flush()
            await take(subscription, count)
            await subscription.ack()
            await asyncio.sleep(wait_s)
            return ids

    process.start()
    early = asyncio.run(publish(20, 1.5))
    late = asyncio.run(publish(20, 0.0))
    process.kill()

    async def scenario() -> None:
        node = BrokerServer(brokers.config(1, "killed", port, tmp_path, [], tracking=slow))
        await node.start()
        keys = await keys_of(node, early + late)
        published = [HistoryKey(Kind.PUBLISHER, 1) in each for each in keys]
        assert published == [True] * 40
        assert all(len(each) == 2 for each in keys[:20])
        assert node.stats()["tracking_holes"] == 1
        holes = (await search(node, late)).holes
        assert any(hole.concerns(late[-1].milliseconds) for hole in holes)
        await node.stop()

    run(scenario)


def test_the_files_are_what_the_store_reads(tmp_path: Path) -> None:
    """They lie in the broker's directory, under `tracks`."""

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path))
        await node.start()
        async with postroad.connect(node.url) as client:
            publisher = client.publisher()
            ids = [await publisher.publish({}) for _ in range(10)]
            await publisher.flush()
        await node.stop()
        store = TrackStore.open(tmp_path / "1" / "tracks", 1, 2, now_ms=time.time_ns() // 1_000_000)
        assert store.recovered.crash is None
        assert len(store.search(array_of(ids)).hits) == 10
        assert store.recovered.horizons[pubend_id(1)] > 0

    run(scenario)


def test_tracks_that_cannot_be_kept_do_not_stop_a_broker(tmp_path: Path) -> None:
    """The figures show it, and messages flow."""

    async def scenario() -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "tracks").write_text("in the way", encoding="ascii")
        node = BrokerServer(config(tmp_path))
        await node.start()
        async with postroad.connect(node.url) as client:
            subscription = await client.subscribe()
            publisher = client.publisher()
            for _ in range(10):
                await publisher.publish({})
            await publisher.flush()
            await take(subscription, 10)
        assert node.stats()["tracking_failed"] == 1
        await node.stop()
        assert node.failure is None

    run(scenario)


# --- clocks --------------------------------------------------------------------------------------------------------------------


class Clock:
    """The broker's wall clock, as far off as a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_ms = 0
        monkeypatch.setattr(node_module, "_wall_ms", self)

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.off_ms


@pytest.mark.parametrize("columns", [False, True])
def test_a_brokers_clock_that_jumps_ahead_costs_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: bool
) -> None:
    """What is under way is sent again with its age, and the next ids have the new time."""
    clock = Clock(monkeypatch)

    async def publish(publisher: postroad.Publisher, count: int) -> list[MessageId]:
        if columns:
            return list(await publisher.publish_many({"n": list(range(count))}, [b""] * count))
        return [await publisher.publish({"n": number}) for number in range(count)]

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path))
        await node.start()
        async with postroad.connect(node.url) as client:
            subscription = await client.subscribe()
            publisher = client.publisher()
            await publish(publisher, 100)
            clock.off_ms = 60_000
            await publish(publisher, 100)
            await publisher.flush(5.0)
            last = (await publish(publisher, 1))[0]
            await publisher.flush(5.0)
            await take(subscription, 201)
        assert abs(last.milliseconds - clock()) < 5_000
        await node.stop()

    run(scenario)


def test_a_brokers_clock_that_is_set_back_refuses_only_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application is told, may try again, and goes on at once with the right time."""
    clock = Clock(monkeypatch)

    async def scenario() -> None:
        node = BrokerServer(config(tmp_path))
        await node.start()
        async with postroad.connect(node.url) as client:
            subscription = await client.subscribe()
            publisher = client.publisher()
            await publisher.publish({"n": 0})
            await publisher.flush(5.0)
            clock.off_ms = -3_600_000
            await publisher.publish({"n": 1})
            with pytest.raises(PublishRefusedError) as caught:
                await publisher.flush(5.0)
            assert isinstance(caught.value.cause, SkewError)
            again = await publisher.publish({"n": 2})
            await publisher.flush(5.0)
            assert abs(again.milliseconds - clock()) < 5_000
            await take(subscription, 2)
        await node.stop()

    run(scenario)
