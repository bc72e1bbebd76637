"""Bound queues, fed from a fake overlay that repeats, overlaps and breaks off."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Mapping

import pytest
from tests.private_postgres import PrivatePostgres
from tests.waiting import until

from postroad.errors import ConnectionLostError, DurableFilterError
from postroad.queues.feeder import FedBatch, Feeder
from postroad.queues.service import QueueService
from postroad.storage.queues.base import Binding, FeedRow, QueueStorage, TakeRequest
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.storage.queues.postgres import PostgresQueueStorage

PUBENDS, TICKS = 3, 400


class FakeOverlay:
    """Every third tick of each pubend matches. Streams start below the cursor, come in random cuts, and break off at times."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fed: Counter[int] = Counter()

    @property
    def expected(self) -> list[bytes]:
        return sorted(b"%d/%d" % (pubend, tick) for pubend in range(PUBENDS) for tick in range(0, TICKS, 3))

    async def open(self, _binding: Binding, cursors: Mapping[int, int]) -> AsyncGenerator[FedBatch, None]:
        places = {pubend: max(-1, cursors.get(pubend, -1) - self.random.randrange(20)) for pubend in range(PUBENDS)}
        while any(place < TICKS for place in places.values()):
            await asyncio.sleep(0)
            if self.random.random() < 0.1:
                raise ConnectionLostError("the overlay is away for a moment")
            pubend = self.random.randrange(PUBENDS)
            upto = min(TICKS, places[pubend] + self.random.randrange(1, 40))
            ticks = [t for t in range(places[pubend] + 1, upto + 1) if t % 3 == 0 and t < TICKS]
            rows = [FeedRow(t, b"%d/%d" % (pubend, t) + bytes(8), b"%d/%d" % (pubend, t)) for t in ticks]
            yield FedBatch(pubend, upto, rows)
            places[pubend] = upto
        await asyncio.sleep(3_600)

    def on_fed(self, _binding: Binding, pubend: int, upto: int) -> None:
        assert upto >= 0
        self.fed[pubend] = max(self.fed[pubend], upto)


async def fed_fully(storage: QueueStorage, binding_id: int) -> None:
    async with asyncio.timeout(60):
        while set((await storage.cursors(binding_id)).items()) != {(pubend, TICKS) for pubend in range(PUBENDS)}:  # noqa: ASYNC110 - the database does not call back
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_queue_gets_each_message_once_from_a_stream_that_breaks_and_repeats(seed: int) -> None:
    """Repeat with the seed in the test's name."""

    async def body() -> None:
        overlay, service = FakeOverlay(seed), QueueService(MemoryQueueStorage())
        await service.start()
        queue = await service.storage.create_queue("jobs")
        async with Feeder(service, overlay.open, on_fed=overlay.on_fed, look_s=0.02):
            binding = await service.storage.bind(queue.queue_id, "TRUE")
            await fed_fully(service.storage, binding.binding_id)
        taken = await service.storage.take(TakeRequest(queue.queue_id, 1, limit=10_000))
        assert sorted(m.message for m in taken) == overlay.expected
        assert overlay.fed == dict.fromkeys(range(PUBENDS), TICKS)
        await service.stop()

    asyncio.run(body())


def test_two_brokers_feed_a_binding_once_also_when_the_feeder_is_replaced(
    postgres_cluster: PrivatePostgres, postgres_schema: str
) -> None:
    """One holds the claim; when it is gone the other goes on from the cursors. A waiting take at either is woken."""

    async def body() -> None:
        services = [QueueService(PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema)) for _ in range(2)]
        for service in services:
            await service.start()
        queue = await services[0].storage.create_queue("jobs")
        binding = await services[0].storage.bind(queue.queue_id, "TRUE")
        first, second = (Feeder(s, FakeOverlay(i).open, look_s=0.02, claim_ms=300) for i, s in enumerate(services))
        async with second:
            async with first:
                await asyncio.sleep(0.2)
            await fed_fully(services[1].storage, binding.binding_id)
        taken = await services[0].storage.take(TakeRequest(queue.queue_id, 1, limit=1_000))
        assert sorted(m.message for m in taken) == FakeOverlay(0).expected
        for service in services:
            await service.stop()

    asyncio.run(body())


def test_the_operator_is_told_once_why_a_queue_gets_nothing_and_it_goes_on_when_that_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error that is not retryable ended the feeding for good, and nobody was told."""

    async def body() -> None:
        service = QueueService(MemoryQueueStorage())
        await service.start()
        queue = await service.storage.create_queue("jobs")
        binding = await service.storage.bind(queue.queue_id, "x > 1")
        tries = 0

        async def stream(_binding: Binding, _cursors: Mapping[int, int]) -> AsyncGenerator[FedBatch, None]:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise DurableFilterError("the durable subscription has another filter")
            yield FedBatch(1, 1, [])
            await asyncio.sleep(3_600)

        async with Feeder(service, stream, look_s=0.02):
            await until(lambda: tries == 3)
            async with asyncio.timeout(20):
                while await service.storage.cursors(binding.binding_id) != {1: 1}:  # noqa: ASYNC110 - the database does not call back
                    await asyncio.sleep(0.02)
        await service.stop()

    with caplog.at_level("WARNING", "postroad.queues"):
        asyncio.run(body())
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "x > 1" in record.message


def test_an_ended_binding_is_no_longer_fed() -> None:
    """The feeder notices and stops its stream."""

    async def body() -> None:
        service = QueueService(MemoryQueueStorage())
        await service.start()
        queue = await service.storage.create_queue("jobs")
        binding = await service.storage.bind(queue.queue_id, "TRUE")
        closed = asyncio.Event()

        async def stream(_binding: Binding, _cursors: Mapping[int, int]) -> AsyncGenerator[FedBatch, None]:
            try:
                yield FedBatch(1, 1, [])
                await asyncio.sleep(3_600)
            finally:
                closed.set()

        async with Feeder(service, stream, look_s=0.02):
            await asyncio.sleep(0.1)
            await service.storage.unbind(binding.binding_id)
            await asyncio.wait_for(closed.wait(), 5)
        await service.stop()

    asyncio.run(body())
