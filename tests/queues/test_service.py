"""The service over TCP: waiting, leases, limits, and what bad input gets."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.private_postgres import PrivatePostgres
from tests.waiting import until

from postroad.client.telesto import Delivery
from postroad.errors import (
    ConnectionLostError,
    FrameTooLargeError,
    InvalidValueError,
    LeaseLostError,
    MalformedPacketError,
    NameTakenError,
    NoResponseError,
    QueueBusyError,
    QueueLimitError,
    ReadOnlyClientError,
    StorageUnavailableError,
    UnknownBindingError,
    UnknownClientError,
    UnknownQueueError,
)
from postroad.queues.client import QueueClient
from postroad.queues.limits import QueueLimits
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService, Session
from postroad.queues.waiters import Waiter
from postroad.storage.queues.base import Message, NewMessage, PutResult, QueueStorage, TakeRequest
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.storage.queues.postgres import PostgresQueueStorage
from postroad.storage.queues.sqlite import SqliteQueueStorage
from postroad.wire.framing import HEADER
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.packets.telesto import ClientMode, ReadMode

MakeStorage = Callable[[], QueueStorage]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_storage(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStorage:
    """Return a maker of each kind of storage in turn."""
    if request.param == "memory":
        return MemoryQueueStorage
    if request.param == "sqlite":
        return lambda: SqliteQueueStorage(tmp_path / "queues.db")
    dsn, schema = request.getfixturevalue("postgres_cluster").dsn, request.getfixturevalue("postgres_schema")
    return lambda: PostgresQueueStorage(dsn, schema=schema)


def serve(
    body: Callable[[QueueServer, QueueClient], Awaitable[None]],
    storage: QueueStorage | None = None,
    *,
    limits: QueueLimits | None = None,
    poll_s: float = 60.0,
    retry_s: float = 0.0,
) -> None:
    """Run a server and a client `ann`. The slow poll is off, so a wait that ends early was signalled."""

    async def main() -> None:
        service = QueueService(storage or MemoryQueueStorage(), limits=limits, poll_s=poll_s)
        async with (
            QueueServer(service) as server,
            QueueClient.register("127.0.0.1", server.port, name="ann", retry_s=retry_s) as client,
        ):
            await body(server, client)

    asyncio.run(main())


def count_asleep(service: QueueService) -> int:
    """Return how many takes sleep, each after an attempt that found nothing."""
    return sum(waiter.sleeps for waiters in service._waiters._queues.values() for waiter in waiters)


async def until_asleep(service: QueueService, count: int = 1) -> None:
    await until(lambda: count_asleep(service) == count)


# waiting


def test_a_waiting_take_gets_a_later_put_at_once(make_storage: MakeStorage) -> None:
    """The poll is a minute away: only a signal can bring it."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        waiting = asyncio.create_task(client.take(queue, timeout=30))
        await until_asleep(server.service)
        await client.put(queue, b"x")
        delivery = await asyncio.wait_for(waiting, 5)
        assert delivery is not None

    serve(body, make_storage())


def test_a_wait_ends_empty_at_its_timeout(make_storage: MakeStorage) -> None:
    """Neither early nor much later."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        start = time.monotonic()
        assert await client.take(queue, timeout=0.3) is None
        assert 0.25 <= time.monotonic() - start < 3

    serve(body, make_storage())


def test_waiting_takes_get_what_a_release_a_lease_end_and_a_schedule_make_visible(make_storage: MakeStorage) -> None:
    """Each becomes visible without anybody putting anything."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        for case in ("release", "delayed release", "lease end", "schedule"):
            queue = await client.create_queue(case)
            await client.put(queue, case, delay=0.3 if case == "schedule" else 0)
            held = await client.take(queue, lease=0.3 if case == "lease end" else 30)
            assert (held is None) == (case == "schedule")
            waiting = asyncio.create_task(client.take(queue, timeout=20))
            await asyncio.sleep(0.05)
            if held is not None and "release" in case:
                await held.release(delay=0.2 if case == "delayed release" else 0)
            delivery = await asyncio.wait_for(waiting, 10)
            assert delivery is not None, case
            assert delivery.payload == case.encode()

    serve(body, make_storage())


def test_each_message_wakes_a_waiter_that_may_have_it(make_storage: MakeStorage) -> None:
    """Waiters for other senders or contexts sleep on; nobody misses a message."""

    async def body(server: QueueServer, ann: QueueClient) -> None:
        queue = await ann.create_queue("jobs")
        async with QueueClient.register("127.0.0.1", server.port, name="bob") as bob:
            wants = [
                asyncio.create_task(bob.take(queue, sender=ann.client_id, timeout=30)),
                asyncio.create_task(bob.take(queue, sender=bob.client_id, timeout=30)),
                asyncio.create_task(ann.take(queue, mode=ReadMode.ARRIVAL, timeout=30)),
            ]
            await until_asleep(server.service, 3)
            await bob.put(queue, b"for bob of bob", receiver=bob.client_id)
            await ann.put(queue, b"for bob of ann", receiver=bob.client_id)
            await bob.put(queue, b"for ann", receiver=ann.client_id)
            got = await asyncio.wait_for(asyncio.gather(*wants), 10)
        assert [d.payload for d in got if d] == [b"for bob of ann", b"for bob of bob", b"for ann"]

    serve(body, make_storage())


def test_two_brokers_wake_each_others_waiters(postgres_cluster: PrivatePostgres, postgres_schema: str) -> None:
    """A put through one broker ends a wait at the other by NOTIFY; request and response cross as well."""

    async def main() -> None:
        services = [QueueService(PostgresQueueStorage(postgres_cluster.dsn, schema=postgres_schema), poll_s=60) for _ in range(2)]
        async with (
            QueueServer(services[0]) as here,
            QueueServer(services[1]) as there,
            QueueClient.register("127.0.0.1", here.port, name="ann") as ann,
            QueueClient.register("127.0.0.1", there.port, name="bob") as bob,
        ):
            queue = await ann.create_queue("jobs")
            for i in range(20):
                waiting = asyncio.create_task(bob.take(queue, timeout=30))
                await asyncio.sleep(0.002 * i)
                await ann.put(queue, str(i))
                delivery = await asyncio.wait_for(waiting, 10)
                assert delivery is not None
                await delivery.done()

            async def answer() -> None:
                delivery = await bob.take(queue, timeout=30)
                assert delivery is not None
                async with delivery:
                    await delivery.reply(b"re: " + delivery.payload)

            answering = asyncio.create_task(answer())
            response = await ann.request(queue, b"hello", receiver=bob.client_id, timeout=30)
            await answering
            assert (response.message, response.sender_id) == (b"re: hello", bob.client_id)

    asyncio.run(main())


def test_a_request_nobody_answers_ends_in_a_typed_error() -> None:
    """And it does not stay in the queue for ever."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("calls")
        with pytest.raises(NoResponseError):
            await client.request(queue, b"anybody?", receiver=77, timeout=0.1)
        await asyncio.sleep(0.1)
        assert [m async for m in client.read_messages(queue)] == []

    serve(body)


# leases over TCP


def test_a_delivery_block_is_done_at_its_end_and_released_by_an_exception(make_storage: MakeStorage) -> None:
    """The usual way to consume."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        await client.put(queue, b"x")
        for attempt in (1, 2):
            delivery = await client.take(queue)
            assert delivery is not None
            assert delivery.delivery == attempt
            with pytest.raises(RuntimeError):
                async with delivery:
                    raise RuntimeError
        delivery = await client.take(queue)
        assert delivery is not None
        async with delivery:
            await delivery.extend(60)
        assert await client.take(queue) is None
        await delivery.done()  # absent: it was done before, so a repeat is harmless
        with pytest.raises(LeaseLostError):
            await delivery.release()

    serve(body, make_storage())


def test_poison_goes_to_the_dead_letters_over_tcp() -> None:
    """Settings travel; the dead letter remembers its queue."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        dead = await client.create_queue("dead")
        queue = await client.create_queue("jobs", max_deliveries=2, dead_letter=dead, lease=5)
        await client.put(queue, b"poison")
        for _ in range(2):
            delivery = await client.take(queue)
            assert delivery is not None
            await delivery.release()
        assert await client.take(queue) is None
        delivery = await client.take(dead)
        assert delivery is not None
        assert delivery.message.origin_queue_id == queue.queue_id

    serve(body)


def test_a_lease_outlives_the_connection(make_storage: MakeStorage) -> None:
    """The client reconnects and finishes its work; the message was not given to anybody else."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        await client.put(queue, b"x")
        delivery = await client.take(queue)
        assert delivery is not None
        server.drop_connections()
        await asyncio.sleep(0.05)
        assert await client.take(queue) is None
        await delivery.done()
        assert (await client.stats(queue)).leased == 0

    serve(body, make_storage(), retry_s=5)


def test_a_take_whose_client_went_away_gives_the_message_back(make_storage: MakeStorage) -> None:
    """A waiting take is cancelled with its connection and swallows nothing."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        for i in range(8):
            gone = await QueueClient.register("127.0.0.1", server.port, name=f"gone{i}", retry_s=0).connect()
            waiting = asyncio.create_task(gone.take(queue, sender=client.client_id, lease=1, timeout=30))
            await until(lambda: waiting.done() or count_asleep(server.service) == 1)  # noqa: B023  # done before the next turn
            await asyncio.gather(client.put(queue, b"x"), _later(0.0005 * i, gone.close()))
            await asyncio.gather(waiting, return_exceptions=True)
            for left in await client.take_batch(queue, 9):
                await left.release(delay=60)
        await asyncio.sleep(1.5)
        stats = await client.stats(queue)
        assert (stats.waiting + stats.scheduled, stats.leased) == (8, 0)

    serve(body, make_storage(), retry_s=0)


async def _later(delay_s: float, work: Awaitable[None]) -> None:
    await asyncio.sleep(delay_s)
    await work


def test_a_take_cancelled_while_the_storage_works_gives_back_what_it_got() -> None:
    """The storage finishes, nobody waits for its answer any more, the message is visible again."""

    class Slow(MemoryQueueStorage):
        async def take(self, request: TakeRequest) -> list[Message]:
            taken = await super().take(request)
            await asyncio.sleep(0.05)
            return taken

    async def body() -> None:
        service, session = QueueService(Slow()), Session()
        await service.start()
        await service.handle(t.RegisterClient("ann", ClientMode.READ_AND_PUT), session)
        await service.handle(t.CreateQueue("jobs"), session)
        await service.handle(t.PutMessage((1,), None, None, 5, b"x"), session)
        taking = asyncio.create_task(service.handle(q.TakeMessages(1), session))
        await asyncio.sleep(0.01)
        taking.cancel()
        await asyncio.sleep(0.1)
        stats = await service.stats(1)
        assert (stats.depth.waiting, stats.depth.leased) == (1, 0)
        await service.stop()

    asyncio.run(body())


def test_a_message_put_while_a_take_sleeps_is_handed_over_in_one_step(make_storage: MakeStorage) -> None:
    """It is put as leased: no second call to the storage, the same lease, and the next in line gets the next message."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        storage = server.service.storage
        queue = await client.create_queue("jobs", lease=30)
        sleeping = []
        for count in range(1, 4):
            sleeping.append(asyncio.create_task(client.take(queue, timeout=20)))
            await until_asleep(server.service, count)
        attempts = 0
        take = storage.take

        async def counted(request: TakeRequest) -> list[Message]:
            nonlocal attempts
            attempts += 1
            return await take(request)

        storage.take = counted  # type: ignore[method-assign]
        ids = [await client.put(queue, b"%d" % i, priority=7, key=b"%d" % i) for i in range(3)]
        got = [delivery.message for delivery in await asyncio.gather(*sleeping) if delivery is not None]
        assert [m.message_id for m in got] == ids
        assert [(m.message, m.priority, m.delivery, m.key) for m in got] == [(b"%d" % i, 7, 1, b"%d" % i) for i in range(3)]
        assert attempts == 0
        stored = [m async for m in client.read_messages(queue)]
        assert stored == got
        await client.done([Delivery(client, m) for m in got])
        assert (await client.stats(queue)).leased == 0

    serve(body, make_storage())


def test_a_duplicate_put_wakes_nobody_in_vain_and_harms_no_sleeper(make_storage: MakeStorage) -> None:
    """The sleeper that was promised a duplicate sleeps on and gets the next message."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        await client.put(queue, b"first", key=b"k")
        first = await client.take(queue)
        assert first is not None
        sleeping = asyncio.create_task(client.take(queue, timeout=20))
        await until_asleep(server.service)
        await client.put(queue, b"first", key=b"k")
        await until_asleep(server.service)
        assert not sleeping.done()
        await client.put(queue, b"second")
        second = await asyncio.wait_for(sleeping, 5)
        assert second is not None
        assert second.payload == b"second"

    serve(body, make_storage())


def test_a_sleeper_that_leaves_while_its_message_is_put_gives_it_back() -> None:
    """Whether it leaves before or just after the message is durable."""

    class Slow(MemoryQueueStorage):
        async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
            results = await super().put(rows)
            await asyncio.sleep(0.05)
            return results

    async def body(*, handed_already: bool) -> None:
        service, ann, bob = QueueService(Slow()), Session(), Session()
        await service.start()
        await service.handle(t.RegisterClient("ann", ClientMode.READ_AND_PUT), ann)
        await service.handle(t.RegisterClient("bob", ClientMode.READ), bob)
        await service.handle(t.CreateQueue("jobs"), ann)
        taking = asyncio.create_task(service.handle(q.TakeMessages(1, wait_ms=20_000), bob))
        await until_asleep(service)
        hand_over = service._hand_over

        def hand_over_and_leave(waiter: Waiter, row: NewMessage, result: PutResult) -> None:
            hand_over(waiter, row, result)
            taking.cancel()

        if handed_already:
            service._hand_over = hand_over_and_leave  # type: ignore[method-assign]
        putting = asyncio.create_task(service.handle(t.PutMessage((1,), None, None, 5, b"x"), ann))
        await asyncio.sleep(0.02)
        if not handed_already:
            taking.cancel()
        await putting
        await asyncio.sleep(0.05)
        depth = (await service.stats(1)).depth
        assert (depth.waiting, depth.leased) == (1, 0)
        assert taking.cancelled()
        await service.stop()

    asyncio.run(body(handed_already=False))
    asyncio.run(body(handed_already=True))


def test_an_answer_that_cannot_be_sent_is_given_back() -> None:
    """The service is told of it and releases without counting a delivery."""

    async def body() -> None:
        service, session = QueueService(MemoryQueueStorage()), Session()
        await service.start()
        await service.handle(t.RegisterClient("ann", ClientMode.READ_AND_PUT), session)
        await service.handle(t.CreateQueue("jobs"), session)
        await service.handle(t.PutMessage((1,), None, None, 5, b"x"), session)
        answer = await service.handle(q.TakeMessages(1), session)
        service.undelivered(answer, session)
        await asyncio.sleep(0.01)
        again = await service.handle(q.TakeMessages(1), session)
        assert isinstance(again, q.TakeMessagesResponse)
        assert len(again.messages) == 1
        await service.stop()

    asyncio.run(body())


# batches, keys, time


def test_batches_schedules_ttl_and_keys_over_tcp(make_storage: MakeStorage) -> None:
    """A thousand in one packet; a repeated key is one message; a short life ends."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        ids = await client.put_batch([q.NewMessage(queue.queue_id, b"%d" % i) for i in range(1_000)])
        assert len(set(ids)) == 1_000
        taken = await client.take_batch(queue, 1_000)
        assert [d.payload for d in taken] == [b"%d" % i for i in range(1_000)]
        await client.done(taken)
        first = await client.put(queue, b"x", key="order 7")
        assert await client.put(queue, b"x", key="order 7") == first
        await client.put(queue, b"short", ttl=0.05)
        await asyncio.sleep(0.1)
        assert [d.payload for d in await client.take_batch(queue, 9)] == [b"x"]

    serve(body, make_storage())


def test_stats_count_depth_age_and_rates(make_storage: MakeStorage) -> None:
    """What the metrics show."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        for _ in range(5):
            await client.put(queue, b"x")
        await client.put(queue, b"x", delay=60)
        taken = await client.take_batch(queue, 2)
        await taken[0].done()
        await asyncio.sleep(0.05)
        stats = await client.stats(queue)
        assert (stats.waiting, stats.scheduled, stats.leased) == (3, 1, 1)
        assert (stats.put_total, stats.taken_total, stats.done_total) == (6, 2, 1)
        assert stats.put_per_s > stats.taken_per_s > stats.done_per_s > 0
        assert stats.oldest_age_ms is not None
        (all_stats,) = await server.service.all_stats()
        assert (all_stats.queue.name, all_stats.depth.waiting) == ("jobs", 3)

    serve(body, make_storage())


def test_bindings_are_kept_and_filters_checked(make_storage: MakeStorage) -> None:
    """Bind, list, unbind; a filter the overlay refuses is refused here."""

    async def main() -> None:
        def check(text: str) -> None:
            if "??" in text:
                raise InvalidValueError("not a filter")

        service = QueueService(make_storage(), check_filter=check)
        async with QueueServer(service) as server, QueueClient.register("127.0.0.1", server.port, name="ann") as client:
            queue = await client.create_queue("jobs")
            binding_id = await client.bind(queue, "price > 10", priority=7)
            (binding,) = await client.bindings()
            assert (binding.binding_id, binding.filter_text, binding.priority) == (binding_id, "price > 10", 7)
            with pytest.raises(InvalidValueError):
                await client.bind(queue, "??")
            await client.unbind(binding_id)
            with pytest.raises(UnknownBindingError):
                await client.unbind(binding_id)

    asyncio.run(main())


# bad input


def test_bad_names_payloads_priorities_and_ids_get_typed_errors(make_storage: MakeStorage) -> None:
    """Nothing bad is stored, nothing good is lost, the connection lives on."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        kept = await client.put(queue, b"kept")
        refused: list[tuple[type[Exception], Awaitable[object]]] = [
            (MalformedPacketError, client.create_queue("n" * 256)),
            (MalformedPacketError, client.create_queue("")),
            (InvalidValueError, client.create_queue("line\nbreak")),
            (InvalidValueError, client.create_queue("nul\0")),
            (NameTakenError, client.create_queue("jobs")),
            (QueueLimitError, client.put(queue, b"x" * ((1 << 20) + 1))),
            (MalformedPacketError, client.put(queue, b"x" * ((8 << 20) + 1))),
            (FrameTooLargeError, client.put(queue, b"x" * (17 << 20))),
            (MalformedPacketError, client.put(queue, b"x", priority=0)),
            (MalformedPacketError, client.put(queue, b"x", priority=11)),
            (MalformedPacketError, client.put(queue, b"x", key=b"k" * 65)),
            (InvalidValueError, client.put(queue, b"x", receiver=1 << 40)),
            (UnknownQueueError, client.put(999, b"x")),
            (UnknownQueueError, client.put(1 << 40, b"x")),
            (UnknownQueueError, client.take(999)),
            (UnknownQueueError, client.take(999, timeout=1)),
            (UnknownQueueError, client.take(1 << 40)),
            (UnknownQueueError, client.get_queue_by_name("none")),
            (UnknownQueueError, client.get_queue_by_id(999)),
            (UnknownQueueError, client.delete_queue(999)),
            (UnknownQueueError, client.stats(999)),
            (UnknownClientError, client.delete_client(999)),
            (QueueLimitError, client.take(queue, lease=10 * 86_400)),
            (QueueLimitError, client.put(queue, b"x", delay=1e9)),
            (MalformedPacketError, client.take_batch(queue, 1_001)),
            (QueueLimitError, client.put_batch([q.NewMessage(queue.queue_id, b"x" * (1 << 20))] * 9)),
            (InvalidValueError, client.create_queue("limited", max_deliveries=3)),
        ]
        for expected, call in refused:
            with pytest.raises(expected):
                await call
        with pytest.raises(UnknownClientError):
            await QueueClient.identify("127.0.0.1", server.port, client_id=999, retry_s=0).connect()
        with pytest.raises(NameTakenError):
            await QueueClient.register("127.0.0.1", server.port, name="ann", retry_s=0).connect()
        assert [m.message_id async for m in client.read_messages(queue)] == [kept]

    serve(body, make_storage())


def test_a_read_only_client_may_take_but_not_put(make_storage: MakeStorage) -> None:
    """Every change is refused with a typed error; reading works."""

    async def body(server: QueueServer, ann: QueueClient) -> None:
        queue = await ann.create_queue("jobs")
        await ann.put(queue, b"x")
        async with QueueClient.register("127.0.0.1", server.port, name="reader", mode=ClientMode.READ) as reader:
            changes: list[Awaitable[object]] = [
                reader.put(queue, b"no"),
                reader.put_to_many([queue], b"no"),
                reader.create_queue("no"),
                reader.delete_queue(queue),
                reader.configure_queue(queue),
                reader.bind(queue, "TRUE"),
                reader.delete_client(ann.client_id),
            ]
            for change in changes:
                with pytest.raises(ReadOnlyClientError):
                    await change
            delivery = await reader.take(queue)
            assert delivery is not None
            await delivery.done()
            await reader.delete_client()

    serve(body, make_storage())


def test_a_take_after_the_connection_dropped_is_a_typed_error_and_loses_nothing() -> None:
    """Without retries the client hears of it; the next call connects again as the same client."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        await client.put(queue, b"x")
        waiting = asyncio.create_task(client.take(queue, sender=77, timeout=30))
        await until_asleep(server.service)
        server.drop_connections()
        with pytest.raises(ConnectionLostError):
            await waiting
        delivery = await client.take(queue)
        assert delivery is not None
        assert delivery.payload == b"x"
        await client.close()
        with pytest.raises(ConnectionLostError):
            await client.take(queue)

    serve(body, retry_s=0)


def test_nonsense_on_the_wire_gets_an_error_packet_and_harms_nobody() -> None:
    """Unknown methods and broken payloads are answered; a broken frame closes that connection only."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(HEADER.pack(10, 0x00FE, 7) + HEADER.pack(13, 0x21, 8) + b"\xc1\xc1\xc1" + HEADER.pack(3, 1, 9))
        answers = await asyncio.wait_for(reader.read(), 5)
        assert answers.count(b"malformed CreateQueue") == 1
        assert answers.count(b"unknown method 0x00fe") == 1
        writer.close()
        await writer.wait_closed()
        assert await client.ping() > 0

    serve(body)


def test_too_many_waiting_takes_are_refused() -> None:
    """The bound is a typed, retryable refusal."""

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        waiting = [asyncio.create_task(client.take(queue, timeout=20)) for _ in range(3)]
        await until_asleep(server.service, 3)
        with pytest.raises(QueueBusyError):
            await client.take(queue, timeout=1)
        for _ in waiting:
            await client.put(queue, b"x")
        assert all(await asyncio.gather(*waiting))

    serve(body, limits=QueueLimits(waiting_takes_max=3))


def test_postgres_away_is_a_retryable_error_and_the_service_comes_back(postgres_schema: str) -> None:
    """Calls fail typed while the server is down, waiting takes too; after the restart all works and nothing is lost."""

    async def main() -> None:
        with PrivatePostgres() as cluster:
            service = QueueService(PostgresQueueStorage(cluster.dsn, schema=postgres_schema, timeout_s=5), poll_s=0.2)
            async with (
                QueueServer(service) as server,
                QueueClient.register("127.0.0.1", server.port, name="ann", retry_s=0) as client,
            ):
                queue = await client.create_queue("jobs")
                await client.put(queue, b"before", receiver=client.client_id)
                waiting = asyncio.create_task(client.take(queue, sender=77, timeout=30))
                await until_asleep(service)
                await asyncio.to_thread(cluster.crash)
                with pytest.raises(StorageUnavailableError) as caught:
                    await client.put(queue, b"lost?")
                assert caught.value.retryable
                with pytest.raises(StorageUnavailableError):
                    await asyncio.wait_for(waiting, 10)
                await asyncio.to_thread(cluster.start)
                async with QueueClient.identify("127.0.0.1", server.port, client_id=client.client_id, retry_s=10) as again:
                    delivery = await again.take(queue, timeout=5)
                    assert delivery is not None
                    assert delivery.payload == b"before"
                    waiting = asyncio.create_task(again.take(queue, timeout=20))
                    await until_asleep(service)
                    await again.put(queue, b"after")
                    assert await asyncio.wait_for(waiting, 5) is not None

    asyncio.run(main())


# order


def test_pipelined_puts_of_one_client_are_read_in_their_order(make_storage: MakeStorage) -> None:
    """Two producers put at full speed while a consumer waits: each producer's messages come in the order of its calls."""
    count = 1_500

    async def body(server: QueueServer, ann: QueueClient) -> None:
        queue = await ann.create_queue("jobs")
        async with QueueClient.register("127.0.0.1", server.port, name="bob") as bob:
            got: dict[int, list[int]] = {ann.client_id: [], bob.client_id: []}

            async def consume(client: QueueClient) -> None:
                while sum(map(len, got.values())) < 2 * count:
                    for delivery in await client.take_batch(queue, random.choice((1, 3, 100)), timeout=5):
                        got[delivery.message.sender_id].append(int(delivery.payload))

            consumer = asyncio.create_task(consume(ann))
            await asyncio.gather(*(p.put(queue, str(i)) for i in range(count) for p in (ann, bob)))
            await asyncio.wait_for(consumer, 60)
            assert got == {ann.client_id: list(range(count)), bob.client_id: list(range(count))}

    serve(body, make_storage())


def test_a_later_put_is_not_handed_over_while_an_earlier_one_is_under_way() -> None:
    """The sleeping take gets the batch that came first, though a single message could have been handed to it."""

    class Slow(MemoryQueueStorage):
        def __init__(self) -> None:
            super().__init__()
            self.lane = asyncio.Lock()

        async def put(self, rows: Sequence[NewMessage]) -> list[PutResult]:
            async with self.lane:
                results = await super().put(rows)
                await asyncio.sleep(0.05)
                return results

    async def body(server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        waiting = asyncio.create_task(client.take_batch(queue, 5, timeout=20))
        await until_asleep(server.service)
        batch = asyncio.create_task(client.put_batch([q.NewMessage(queue.queue_id, b"a"), q.NewMessage(queue.queue_id, b"b")]))
        await asyncio.sleep(0)
        await asyncio.gather(batch, client.put(queue, b"c"))
        assert (await waiting)[0].payload == b"a"

    serve(body, Slow())


def test_requests_leave_in_the_order_of_the_calls_when_the_connection_has_room_again() -> None:
    """A call made while earlier ones wait for room does not pass them."""

    async def body(_server: QueueServer, client: QueueClient) -> None:
        queue = await client.create_queue("jobs")
        connection = client._connection
        assert connection is not None
        connection.pause_writing()
        calls = [asyncio.create_task(client.put(queue, b"1")), asyncio.create_task(client.put(queue, b"2"))]
        await asyncio.sleep(0)
        calls.append(asyncio.create_task(client.put(queue, b"3")))
        connection.resume_writing()
        await asyncio.gather(*calls)
        assert [m.message async for m in client.read_messages(queue)] == [b"1", b"2", b"3"]

    serve(body)
