"""One suite over every queue storage: memory, SQLite, PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
import pytest

from postroad.errors import NameTakenError, UnknownBindingError, UnknownClientError, UnknownQueueError
from postroad.storage.queues.base import (
    ClientMode,
    FeedRow,
    Lease,
    LeaseStatus,
    Message,
    NewMessage,
    QueueSettings,
    QueueStorage,
    ReadMode,
    State,
    TakeRequest,
)
from postroad.storage.queues.memory import MemoryQueueStorage, wall_clock_ms
from postroad.storage.queues.postgres import PostgresQueueStorage
from postroad.storage.queues.sqlite import SqliteQueueStorage

ME, YOU, SOMEBODY = 1, 2, 3


class Bench:
    """A storage, a way to move its clock, and the words the tests use."""

    def __init__(
        self, make: Callable[[Callable[[], int]], QueueStorage], shift: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
        self._offset_ms = 0
        self._shift = shift
        self.storage = make(lambda: wall_clock_ms() + self._offset_ms)

    def run(self, test: Callable[[Bench], Awaitable[None]]) -> None:
        async def body() -> None:
            await self.storage.open()
            try:
                await test(self)
            finally:
                await self.storage.close()

        asyncio.run(body())

    async def advance(self, ms: int) -> None:
        self._offset_ms += ms
        if self._shift is not None:
            await self._shift(self._offset_ms)

    async def queue(self, name: str = "jobs", **settings: int) -> int:
        queue = await self.storage.create_queue(name)
        if settings:
            await self.storage.configure_queue(queue.queue_id, QueueSettings(**settings))
        return queue.queue_id

    async def put(self, queue_id: int, payload: bytes, **fields: object) -> int:
        new = NewMessage(queue_id, fields.pop("sender_id", SOMEBODY), payload, **fields)  # type: ignore[arg-type]
        (result,) = await self.storage.put([new])
        assert result.message_id is not None
        return result.message_id

    async def take(self, queue_id: int, client_id: int = ME, **fields: object) -> list[Message]:
        return await self.storage.take(TakeRequest(queue_id, client_id, **fields))  # type: ignore[arg-type]

    async def take_payloads(self, queue_id: int, client_id: int = ME, **fields: object) -> list[bytes]:
        return [m.message for m in await self.take(queue_id, client_id, **fields)]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Make a fresh storage of each kind in turn."""
    if request.param == "memory":
        return Bench(lambda clock: MemoryQueueStorage(clock_ms=clock))
    if request.param == "sqlite":
        return Bench(lambda clock: SqliteQueueStorage(tmp_path / "queues.db", clock_ms=clock))
    dsn, schema = request.getfixturevalue("postgres_cluster").dsn, request.getfixturevalue("postgres_schema")

    async def shift(offset_ms: int) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            f"CREATE OR REPLACE FUNCTION {schema}.queue_clock() RETURNS timestamptz LANGUAGE sql STABLE AS "
            f"$$ SELECT now() + {offset_ms} * interval '1 millisecond' $$"
        )
        await connection.close()

    return Bench(lambda _: PostgresQueueStorage(dsn, schema=schema), shift)


def lease(message: Message, client_id: int = ME) -> Lease:
    return Lease(message.queue_id, message.message_id, message.delivery, client_id)


# clients and queues


def test_clients_have_unique_names_and_are_found_by_id(bench: Bench) -> None:
    """A name is given once; an id finds its client; a deleted client is gone."""

    async def body(b: Bench) -> None:
        client = await b.storage.request_id("ann", ClientMode.READ)
        assert await b.storage.identify(client.client_id) == client
        with pytest.raises(NameTakenError):
            await b.storage.request_id("ann", ClientMode.READ_AND_PUT)
        await b.storage.delete_client(client.client_id)
        with pytest.raises(UnknownClientError):
            await b.storage.identify(client.client_id)
        with pytest.raises(UnknownClientError):
            await b.storage.delete_client(client.client_id)
        again = await b.storage.request_id("ann", ClientMode.READ)
        assert again.client_id > client.client_id

    bench.run(body)


def test_a_registration_with_the_same_key_is_the_same_client(bench: Bench) -> None:
    """A repeated registration returns the client; another key, or none, finds the name taken."""

    async def body(b: Bench) -> None:
        client = await b.storage.request_id("ann", ClientMode.READ, b"mine")
        assert await b.storage.request_id("ann", ClientMode.READ, b"mine") == client
        for other in (b"yours", None):
            with pytest.raises(NameTakenError):
                await b.storage.request_id("ann", ClientMode.READ, other)
        await b.storage.delete_client(client.client_id)
        assert (await b.storage.request_id("ann", ClientMode.READ, b"yours")).client_id > client.client_id
        await b.storage.request_id("bob", ClientMode.READ)
        with pytest.raises(NameTakenError):
            await b.storage.request_id("bob", ClientMode.READ)

    bench.run(body)


def test_queues_have_unique_names_and_are_found_by_name_and_id(bench: Bench) -> None:
    """Create, find, list in pages, delete."""

    async def body(b: Bench) -> None:
        first, second = await b.storage.create_queue("a"), await b.storage.create_queue("b")
        assert await b.storage.get_queue_id("a") == first
        assert await b.storage.get_queue_name(second.queue_id) == second
        with pytest.raises(NameTakenError):
            await b.storage.create_queue("a")
        assert await b.storage.list_queues(limit=10) == [first, second]
        assert await b.storage.list_queues(after=first.queue_id, limit=1) == [second]
        await b.storage.delete_queue(first.queue_id)
        assert await b.storage.list_queues(limit=10) == [second]
        with pytest.raises(UnknownQueueError):
            await b.storage.get_queue_id("a")
        with pytest.raises(UnknownQueueError):
            await b.storage.get_queue_name(first.queue_id)
        with pytest.raises(UnknownQueueError):
            await b.storage.delete_queue(first.queue_id)

    bench.run(body)


def test_every_call_on_an_unknown_queue_says_so(bench: Bench) -> None:
    """Put reports it as a result, all others as an error."""

    async def body(b: Bench) -> None:
        assert (await b.storage.put([NewMessage(77, ME, b"")]))[0].message_id is None
        with pytest.raises(UnknownQueueError):
            await b.take(77)
        with pytest.raises(UnknownQueueError):
            await b.take(77, lease_ms=0, limit=5)
        with pytest.raises(UnknownQueueError):
            await b.storage.get_messages_from_queue(77, limit=1, bytes_max=1)
        with pytest.raises(UnknownQueueError):
            await b.storage.depth(77)
        with pytest.raises(UnknownQueueError):
            await b.storage.depth_by_priority(77)
        with pytest.raises(UnknownQueueError):
            await b.storage.bind(77, "TRUE")
        with pytest.raises(UnknownQueueError):
            await b.storage.configure_queue(77, QueueSettings())
        with pytest.raises(UnknownQueueError):
            await b.queue(dead_letter_id=77)

    bench.run(body)


def test_deleting_a_queue_deletes_its_messages_and_bindings(bench: Bench) -> None:
    """Nothing of a deleted queue is left, and its ids are not used again."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        old = await b.put(queue_id, b"x", key=b"k")
        binding = await b.storage.bind(queue_id, "TRUE")
        await b.storage.feed(binding.binding_id, 1, 10, [])
        await b.storage.delete_queue(queue_id)
        assert await b.storage.bindings() == []
        with pytest.raises(UnknownBindingError):
            await b.storage.cursors(binding.binding_id)
        other = await b.queue()
        assert other != queue_id
        assert await b.take(other) == []
        assert await b.put(other, b"x", key=b"k") > old

    bench.run(body)


def test_active_queues_are_those_with_a_waiting_message_for_the_client(bench: Bench) -> None:
    """Messages for others, leased and scheduled ones do not make a queue active."""

    async def body(b: Bench) -> None:
        names = ("anybody", "mine", "yours", "leased", "scheduled", "expired", "empty")
        queues = {name: await b.queue(name) for name in names}
        await b.put(queues["anybody"], b"")
        await b.put(queues["mine"], b"", receiver_id=ME)
        await b.put(queues["yours"], b"", receiver_id=YOU)
        await b.put(queues["leased"], b"")
        await b.take(queues["leased"])
        await b.put(queues["scheduled"], b"", delay_ms=60_000)
        await b.put(queues["expired"], b"", ttl_ms=1_000)
        await b.advance(2_000)
        active = await b.storage.get_active_queues(ME, limit=10)
        assert [q.name for q in active] == ["anybody", "mine"]
        rest = await b.storage.get_active_queues(ME, after=active[0].queue_id, limit=10)
        assert [q.name for q in rest] == ["mine"]

    bench.run(body)


# reading


def test_reading_by_priority_gives_the_highest_first_then_the_oldest(bench: Bench) -> None:
    """Order by priority, ties by arrival; one at a time and in a batch alike."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for priority, payload in ((5, b"a"), (9, b"b"), (1, b"c"), (9, b"d"), (10, b"e")):
            await b.put(queue_id, payload, priority=priority)
        assert await b.take_payloads(queue_id) == [b"e"]
        assert await b.take_payloads(queue_id, limit=3) == [b"b", b"d", b"a"]
        assert await b.take_payloads(queue_id, limit=9) == [b"c"]

    bench.run(body)


def test_reading_by_time_gives_the_oldest_first(bench: Bench) -> None:
    """Priority does not matter when reading by time."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for priority, payload in ((1, b"a"), (9, b"b"), (5, b"c")):
            await b.put(queue_id, payload, priority=priority)
        assert await b.take_payloads(queue_id, mode=ReadMode.ARRIVAL) == [b"a"]
        assert await b.take_payloads(queue_id, mode=ReadMode.ARRIVAL, limit=5) == [b"b", b"c"]

    bench.run(body)


@pytest.mark.parametrize("mode", list(ReadMode))
def test_puts_keep_their_order_when_the_clock_goes_back(bench: Bench, mode: ReadMode) -> None:
    """The order of puts counts, not the time of arrival: also for responses and for what a binding feeds."""

    async def body(b: Bench) -> None:
        jobs, bound = await b.queue(), await b.queue("bound")
        binding = await b.storage.bind(bound, "TRUE")
        for place in range(4):
            await b.put(jobs, b"%d" % place)
            await b.put(jobs, b"mine %d" % place, receiver_id=ME)
            await b.put(jobs, b"response %d" % place, receiver_id=YOU, context=7)
            await b.storage.feed(binding.binding_id, 1, place + 1, [FeedRow(place + 1, b"%016d" % place, b"%d" % place)])
            await b.advance(-5_000)
        assert await b.take_payloads(jobs, SOMEBODY, mode=mode, limit=1) == [b"0"]
        assert await b.take_payloads(jobs, ME, mode=mode, limit=9) == [
            b"mine 0",
            *(x % i for i in (1, 2, 3) for x in (b"%d", b"mine %d")),
        ]
        assert await b.take_payloads(jobs, YOU, mode=mode, context=7, limit=9) == [b"response %d" % i for i in range(4)]
        assert await b.take_payloads(bound, ME, mode=mode, limit=9) == [b"%d" % i for i in range(4)]

    bench.run(body)


def test_puts_of_each_sender_under_way_together_keep_their_order(bench: Bench) -> None:
    """Single calls and batches of several senders, none waiting for an answer before the next is made."""

    async def body(b: Bench) -> None:
        queue_id, senders = await b.queue(), (11, 12, 13)
        calls = [
            b.storage.put([NewMessage(queue_id, sender, b"%d" % (10 * place + i)) for i in range(1 + place % 3)])
            for place in range(400)
            for sender in senders
        ]
        await asyncio.gather(*calls)
        for sender in senders:
            wanted = [b"%d" % (10 * place + i) for place in range(400) for i in range(1 + place % 3)]
            assert await b.take_payloads(queue_id, sender_id=sender, limit=1_000) == wanted

    bench.run(body)


@pytest.mark.parametrize("mode", list(ReadMode))
def test_a_reader_gets_messages_for_it_or_for_anybody(bench: Bench, mode: ReadMode) -> None:
    """Both kinds are merged in one order; messages for others stay."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for receiver_id, payload in ((None, b"a"), (ME, b"b"), (YOU, b"c"), (None, b"d"), (ME, b"e")):
            await b.put(queue_id, payload, receiver_id=receiver_id)
        assert await b.take_payloads(queue_id, ME, mode=mode, limit=9) == [b"a", b"b", b"d", b"e"]
        assert await b.take_payloads(queue_id, SOMEBODY, mode=mode) == []
        assert await b.take_payloads(queue_id, YOU, mode=mode) == [b"c"]

    bench.run(body)


@pytest.mark.parametrize("mode", list(ReadMode))
def test_a_reader_may_ask_for_one_sender(bench: Bench, mode: ReadMode) -> None:
    """Messages of other senders are left for others, also when they come first."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for sender_id, receiver_id, payload in ((8, None, b"a"), (9, None, b"b"), (9, ME, b"c"), (9, YOU, b"d"), (8, ME, b"e")):
            await b.put(queue_id, payload, sender_id=sender_id, receiver_id=receiver_id)
        assert await b.take_payloads(queue_id, ME, mode=mode, sender_id=9, limit=9) == [b"b", b"c"]
        assert await b.take_payloads(queue_id, ME, mode=mode, sender_id=9) == []
        assert await b.take_payloads(queue_id, ME, mode=mode, limit=9) == [b"a", b"e"]

    bench.run(body)


def test_a_response_is_found_by_receiver_and_context(bench: Bench) -> None:
    """Only a message addressed to the reader with that very context is a response."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"request", context=7)
        await b.put(queue_id, b"other", receiver_id=ME, context=8)
        await b.put(queue_id, b"not mine", receiver_id=YOU, context=7)
        assert await b.take_payloads(queue_id, ME, context=7) == []
        await b.put(queue_id, b"response", receiver_id=ME, context=7)
        assert await b.take_payloads(queue_id, ME, context=7, lease_ms=0) == [b"response"]
        assert await b.take_payloads(queue_id, ME, context=7) == []

    bench.run(body)


def test_a_message_may_wait_for_a_client_that_does_not_exist_yet(bench: Bench) -> None:
    """No client needs to exist when a message is addressed to its future id."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        first = await b.storage.request_id("first", ClientMode.READ)
        await b.put(queue_id, b"welcome", receiver_id=first.client_id + 1)
        second = await b.storage.request_id("second", ClientMode.READ)
        assert await b.take_payloads(queue_id, second.client_id) == [b"welcome"]

    bench.run(body)


def test_a_batch_is_bounded_by_bytes_but_gives_at_least_one(bench: Bench) -> None:
    """What does not fit stays waiting and is given next."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for payload in (b"a" * 100, b"b" * 100, b"c" * 100):
            await b.put(queue_id, payload)
        assert len(await b.take(queue_id, limit=3, bytes_max=250)) == 2
        assert len(await b.take(queue_id, limit=3, bytes_max=10)) == 1

    bench.run(body)


def test_all_fields_of_a_message_arrive(bench: Bench) -> None:
    """What was put is what is taken, byte for byte."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        payload = bytes(range(256))
        before = wall_clock_ms()
        message_id = await b.put(
            queue_id, payload, sender_id=4, receiver_id=ME, context=1 << 62, priority=10, key=b"\0key", attributes=b"\xff"
        )
        (message,) = await b.take(queue_id)
        assert (message.message_id, message.queue_id, message.sender_id) == (message_id, queue_id, 4)
        assert (message.receiver_id, message.context, message.priority) == (ME, 1 << 62, 10)
        assert (message.message, message.key, message.packed_attributes) == (payload, b"\0key", b"\xff")
        assert (message.state, message.delivery, message.origin_queue_id) == (State.LEASED, 1, None)
        assert before - 1_000 <= message.time_of_arrival_ms <= wall_clock_ms() + 1_000

    bench.run(body)


def test_all_messages_of_a_queue_are_read_in_pages(bench: Bench) -> None:
    """Pages are bounded by count and by bytes, cover everything once, and take nothing away."""

    async def body(b: Bench) -> None:
        queue_id, other = await b.queue(), await b.queue("other")
        await b.storage.put([NewMessage(queue_id, ME, b"%03d" % i * 10, priority=1 + i % 10) for i in range(100)])
        await b.put(other, b"x")
        await b.take(queue_id)
        seen: list[Message] = []
        while page := await b.storage.get_messages_from_queue(
            queue_id, after=seen[-1].message_id if seen else 0, limit=40, bytes_max=600
        ):
            assert len(page) <= 20
            seen += page
        assert [m.message for m in seen] == [b"%03d" % i * 10 for i in range(100)]
        assert [m.state for m in seen].count(State.LEASED) == 1
        huge = await b.storage.get_messages_from_queue(queue_id, limit=1, bytes_max=1)
        assert len(huge) == 1

    bench.run(body)


# putting


def test_putting_reports_the_queues_that_do_not_exist(bench: Bench) -> None:
    """The others get their message all the same."""

    async def body(b: Bench) -> None:
        first, second = await b.queue("a"), await b.queue("b")
        results = await b.storage.put([NewMessage(q, ME, b"x") for q in (first, 99, second)])
        assert [r.message_id is None for r in results] == [False, True, False]
        assert await b.take_payloads(first) == await b.take_payloads(second) == [b"x"]

    bench.run(body)


def test_a_put_repeated_with_its_key_is_one_message(bench: Bench) -> None:
    """Also within one batch, and after the message was taken and done; other senders and queues have their own keys."""

    async def body(b: Bench) -> None:
        queue_id, other = await b.queue(), await b.queue("other")
        new = NewMessage(queue_id, ME, b"x", key=b"key")
        results = await b.storage.put(
            [new, new, NewMessage(queue_id, YOU, b"y", key=b"key"), NewMessage(other, ME, b"z", key=b"key")]
        )
        assert [r.duplicate for r in results] == [False, True, False, False]
        assert results[1].message_id == results[0].message_id
        taken = await b.take(queue_id, limit=9)
        assert [m.message for m in taken] == [b"x", b"y"]
        await b.storage.done([lease(m) for m in taken])
        (late,) = await b.storage.put([new])
        assert late.duplicate
        assert late.message_id == results[0].message_id
        assert await b.take(queue_id) == []

    bench.run(body)


def test_keys_are_forgotten_after_their_time(bench: Bench) -> None:
    """Old keys are deleted in bounded steps, young ones stay."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for i in range(3):
            await b.put(queue_id, b"", key=b"%d" % i)
        await b.advance(10_000)
        await b.put(queue_id, b"", key=b"young")
        assert await b.storage.forget_keys(older_than_ms=5_000, rows_max=2) == 2
        assert await b.storage.forget_keys(older_than_ms=5_000) == 1
        assert await b.storage.forget_keys(older_than_ms=5_000) == 0
        assert (await b.storage.put([NewMessage(queue_id, SOMEBODY, b"", key=b"young")]))[0].duplicate

    bench.run(body)


# leases


def test_a_taken_message_is_invisible_until_it_is_done_for_ever(bench: Bench) -> None:
    """Nobody else gets it; done deletes it; done again finds it absent."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        assert await b.take(queue_id, YOU) == []
        assert await b.storage.done([lease(message)]) == [LeaseStatus.HELD]
        assert await b.storage.done([lease(message)]) == [LeaseStatus.ABSENT]
        await b.advance(3_600_000)
        await b.storage.promote()
        assert await b.take(queue_id) == []
        assert await b.storage.get_messages_from_queue(queue_id, limit=9, bytes_max=9) == []

    bench.run(body)


def test_a_released_message_comes_again_at_its_old_place(bench: Bench) -> None:
    """It keeps priority and arrival; its delivery number grows."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"first")
        await b.put(queue_id, b"second")
        (message,) = await b.take(queue_id)
        assert await b.storage.release([lease(message)]) == [LeaseStatus.HELD]
        (again,) = await b.take(queue_id, YOU)
        assert (again.message, again.delivery) == (b"first", 2)
        assert await b.storage.release([lease(message)]) == [LeaseStatus.LOST]
        assert await b.storage.done([lease(message)]) == [LeaseStatus.LOST]
        assert await b.storage.done([lease(again, YOU)]) == [LeaseStatus.HELD]

    bench.run(body)


def test_a_release_may_be_for_later(bench: Bench) -> None:
    """The message is scheduled and becomes visible when due."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        await b.storage.release([lease(message)], delay_ms=5_000)
        assert await b.take(queue_id) == []
        await b.advance(5_001)
        assert dict((await b.storage.promote()).visible) == {queue_id: 1}
        assert await b.take_payloads(queue_id) == [b"x"]

    bench.run(body)


def test_a_lease_that_ends_gives_the_message_back_and_fences_the_old_holder(bench: Bench) -> None:
    """After the end another client gets it, and the first can no longer end it."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue(lease_ms=1_000)
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        promotion = await b.storage.promote()
        assert not promotion.visible
        assert promotion.next_due_ms is not None
        assert 0 < promotion.next_due_ms <= 1_000
        await b.advance(1_001)
        assert dict((await b.storage.promote()).visible) == {queue_id: 1}
        (again,) = await b.take(queue_id, YOU)
        assert again.delivery == 2
        assert await b.storage.done([lease(message)]) == [LeaseStatus.LOST]
        assert await b.storage.done([lease(again, YOU)]) == [LeaseStatus.HELD]
        assert await b.storage.done([lease(message)]) == [LeaseStatus.ABSENT]

    bench.run(body)


def test_an_ended_lease_nobody_took_over_may_still_be_done(bench: Bench) -> None:
    """Work that was merely slow is not done twice if nobody has begun it again."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue(lease_ms=1_000)
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        await b.advance(1_500)
        assert await b.storage.done([lease(message)]) == [LeaseStatus.HELD]

    bench.run(body)


def test_a_lease_can_be_extended(bench: Bench) -> None:
    """The new end counts from now; a lease of somebody else cannot be extended."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue(lease_ms=1_000)
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        assert await b.storage.extend([lease(message)], lease_ms=10_000) == [LeaseStatus.HELD]
        assert await b.storage.extend([lease(message, YOU)], lease_ms=1) == [LeaseStatus.LOST]
        await b.advance(5_000)
        assert not (await b.storage.promote()).visible
        await b.advance(5_001)
        assert (await b.storage.promote()).visible

    bench.run(body)


def test_only_the_holder_ends_a_lease(bench: Bench) -> None:
    """Another client with the same numbers is refused, and statuses answer in the order asked."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        for payload in (b"a", b"b", b"c"):
            await b.put(queue_id, payload)
        first, second, third = await b.take(queue_id, limit=3)
        asked = [lease(third), lease(second, YOU), lease(first), Lease(queue_id, 1 << 40, 1, ME)]
        assert await b.storage.done(asked) == [LeaseStatus.HELD, LeaseStatus.LOST, LeaseStatus.HELD, LeaseStatus.ABSENT]
        assert [m.message for m in await b.storage.get_messages_from_queue(queue_id, limit=9, bytes_max=99)] == [b"b"]

    bench.run(body)


def test_a_take_without_lease_deletes_at_once(bench: Bench) -> None:
    """The report's read: at most once."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id, lease_ms=0)
        assert message.delivery == 1
        assert await b.storage.done([lease(message)]) == [LeaseStatus.ABSENT]
        assert (await b.storage.depth(queue_id)).leased == 0

    bench.run(body)


@pytest.mark.parametrize("ending", ["release", "lease end"])
def test_a_message_delivered_too_often_goes_to_the_dead_letters(bench: Bench, ending: str) -> None:
    """It remembers its queue, loses nothing, and waits there like any message."""

    async def body(b: Bench) -> None:
        dead = await b.queue("dead")
        queue_id = await b.queue(max_deliveries=2, dead_letter_id=dead, lease_ms=1_000)
        await b.put(queue_id, b"poison", priority=7, receiver_id=ME, ttl_ms=60_000)
        leases = []
        for _ in range(2):
            (message,) = await b.take(queue_id)
            leases.append(lease(message))
            if ending == "release":
                await b.storage.release([lease(message)], delay_ms=0)
            else:
                await b.advance(1_001)
                await b.storage.promote()
        assert await b.take(queue_id) == []
        assert await b.storage.done(leases) == [LeaseStatus.LOST] * 2
        (found,) = await b.take(dead)
        assert (found.message, found.priority, found.origin_queue_id, found.delivery) == (b"poison", 7, queue_id, 3)
        await b.storage.release([lease(found)])
        await b.advance(120_000)
        await b.storage.promote()
        assert await b.take_payloads(dead) == [b"poison"]

    bench.run(body)


def test_a_message_stays_when_its_dead_letter_queue_is_gone(bench: Bench) -> None:
    """Rather delivered once more than lost."""

    async def body(b: Bench) -> None:
        dead = await b.queue("dead")
        queue_id = await b.queue(max_deliveries=1, dead_letter_id=dead)
        await b.storage.delete_queue(dead)
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        await b.storage.release([lease(message)])
        assert await b.take_payloads(queue_id) == [b"x"]

    bench.run(body)


def test_an_undelivered_message_does_not_go_to_the_dead_letters(bench: Bench) -> None:
    """A take whose answer could not be sent is not the consumer's failure."""

    async def body(b: Bench) -> None:
        dead = await b.queue("dead")
        queue_id = await b.queue(max_deliveries=1, dead_letter_id=dead)
        await b.put(queue_id, b"x")
        (message,) = await b.take(queue_id)
        assert await b.storage.release([lease(message)], undelivered=True) == [LeaseStatus.HELD]
        assert await b.take_payloads(queue_id) == [b"x"]

    bench.run(body)


# time


def test_a_scheduled_message_becomes_visible_when_due(bench: Bench) -> None:
    """Not before; then at the place its priority and arrival give it."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.put(queue_id, b"later", delay_ms=10_000)
        await b.put(queue_id, b"now")
        promotion = await b.storage.promote()
        assert promotion.next_due_ms is not None
        assert 5_000 < promotion.next_due_ms <= 10_000
        assert await b.take_payloads(queue_id, limit=9) == [b"now"]
        await b.advance(10_001)
        assert dict((await b.storage.promote()).visible) == {queue_id: 1}
        assert await b.take_payloads(queue_id, limit=9) == [b"later"]

    bench.run(body)


def test_an_expired_message_is_never_given_and_then_deleted(bench: Bench) -> None:
    """Also before the clockwork has run; a leased one is left to its holder."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue(lease_ms=60_000)
        await b.put(queue_id, b"held", ttl_ms=1_000)
        (held,) = await b.take(queue_id)
        await b.put(queue_id, b"short", ttl_ms=1_000)
        await b.put(queue_id, b"scheduled", ttl_ms=1_000, delay_ms=5_000)
        await b.put(queue_id, b"long", ttl_ms=100_000)
        await b.advance(1_001)
        assert await b.take_payloads(queue_id, limit=9) == [b"long"]
        assert [m.message for m in await b.storage.get_messages_from_queue(queue_id, limit=9, bytes_max=99)] == [b"held", b"long"]
        assert (await b.storage.promote()).expired == 2
        assert await b.storage.done([lease(held)]) == [LeaseStatus.HELD]

    bench.run(body)


def test_an_expired_message_does_not_come_back_when_its_lease_ends(bench: Bench) -> None:
    """The end of the lease finds it expired."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue(lease_ms=1_000)
        await b.put(queue_id, b"x", ttl_ms=500)
        await b.take(queue_id)
        await b.advance(1_001)
        await b.storage.promote()
        assert await b.take(queue_id) == []
        assert (await b.storage.depth(queue_id)).waiting == 0

    bench.run(body)


def test_promotion_works_in_bounded_steps(bench: Bench) -> None:
    """More is due: the next due time is now."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        await b.storage.put([NewMessage(queue_id, ME, b"", delay_ms=1_000) for _ in range(5)])
        await b.advance(1_001)
        first = await b.storage.promote(rows_max=3)
        assert (dict(first.visible), first.next_due_ms) == ({queue_id: 3}, 0)
        second = await b.storage.promote(rows_max=3)
        assert (dict(second.visible), second.next_due_ms) == ({queue_id: 2}, None)

    bench.run(body)


def test_depth_counts_by_state_and_tells_the_oldest_age(bench: Bench) -> None:
    """Waiting, scheduled, leased; the age is of the oldest waiting one."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        empty = await b.storage.depth(queue_id)
        assert (empty.waiting, empty.scheduled, empty.leased, empty.oldest_age_ms) == (0, 0, 0, None)
        for _ in range(3):
            await b.put(queue_id, b"")
        await b.put(queue_id, b"", delay_ms=60_000)
        await b.take(queue_id)
        await b.advance(4_000)
        depth = await b.storage.depth(queue_id)
        assert (depth.waiting, depth.scheduled, depth.leased) == (2, 1, 1)
        assert depth.oldest_age_ms is not None
        assert 4_000 <= depth.oldest_age_ms < 8_000

    bench.run(body)


def test_depth_by_priority_counts_what_waits(bench: Bench) -> None:
    """Scheduled and leased messages, and those of other queues, do not count."""

    async def body(b: Bench) -> None:
        queue_id, other = await b.queue(), await b.queue("other")
        assert await b.storage.depth_by_priority(queue_id) == {}
        for priority in (9, 5, 5, 5):
            await b.put(queue_id, b"", priority=priority)
        await b.put(queue_id, b"", priority=7, delay_ms=60_000)
        await b.put(other, b"", priority=3)
        (taken,) = await b.take(queue_id)
        assert taken.priority == 9
        assert await b.storage.depth_by_priority(queue_id) == {5: 3}

    bench.run(body)


# bound queues


def feed_rows(*ticks: int) -> list[FeedRow]:
    return [FeedRow(tick, tick.to_bytes(16, "big"), b"m%d" % tick, b"attributes") for tick in ticks]


def test_a_bound_queue_is_fed_each_message_once(bench: Bench) -> None:
    """Batches that are repeated, overlap or were fed by two brokers add nothing twice; the cursor moves over silence too."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        binding = await b.storage.bind(queue_id, "price > 10", priority=8)
        assert await b.storage.bindings() == [binding]
        assert await b.storage.cursors(binding.binding_id) == {}
        assert await b.storage.feed(binding.binding_id, 1, 20, feed_rows(5, 15)) == 2
        assert await b.storage.feed(binding.binding_id, 1, 20, feed_rows(5, 15)) == 0
        assert await b.storage.feed(binding.binding_id, 1, 30, feed_rows(5, 15, 25)) == 1
        assert await b.storage.feed(binding.binding_id, 1, 40, []) == 0
        assert await b.storage.feed(binding.binding_id, 1, 35, feed_rows(33)) == 0
        assert await b.storage.feed(binding.binding_id, 2, 7, feed_rows(3)) == 1
        assert await b.storage.cursors(binding.binding_id) == {1: 40, 2: 7}
        taken = await b.take(queue_id, limit=9, mode=ReadMode.ARRIVAL)
        assert [m.message for m in taken] == [b"m5", b"m15", b"m25", b"m3"]
        assert {(m.priority, m.sender_id, m.packed_attributes) for m in taken} == {(8, 0, b"attributes")}
        assert taken[0].key == (5).to_bytes(16, "big")

    bench.run(body)


def test_a_claimed_binding_stays_claimed_by_the_same_process(bench: Bench) -> None:
    """Claiming again renews; an unknown binding is an error."""

    async def body(b: Bench) -> None:
        binding = await b.storage.bind(await b.queue(), "TRUE")
        assert await b.storage.claim(binding.binding_id, for_ms=1_000)
        assert await b.storage.claim(binding.binding_id, for_ms=1_000)
        with pytest.raises(UnknownBindingError):
            await b.storage.claim(77, for_ms=1_000)

    bench.run(body)


def test_rebinding_with_an_overlap_recognises_messages_by_their_id(bench: Bench) -> None:
    """A new binding starts with no cursor; the message id is the idempotency key."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        first = await b.storage.bind(queue_id, "TRUE")
        await b.storage.feed(first.binding_id, 1, 9, feed_rows(1, 2))
        await b.storage.unbind(first.binding_id)
        with pytest.raises(UnknownBindingError):
            await b.storage.feed(first.binding_id, 1, 10, feed_rows(10))
        with pytest.raises(UnknownBindingError):
            await b.storage.unbind(first.binding_id)
        second = await b.storage.bind(queue_id, "TRUE")
        assert await b.storage.feed(second.binding_id, 1, 9, feed_rows(1, 2, 3)) == 1

    bench.run(body)


def test_concurrent_feeders_put_each_message_once(bench: Bench) -> None:
    """Two feeders during a take-over send the same stream in different cuts."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        binding = await b.storage.bind(queue_id, "TRUE")

        async def feeder(step: int) -> int:
            put = 0
            for upto in range(step, 61, step):
                put += await b.storage.feed(binding.binding_id, 1, upto, feed_rows(*range(1, upto + 1)))
            return put

        assert sum(await asyncio.gather(feeder(3), feeder(4), feeder(5))) == 60
        assert sorted(await b.take_payloads(queue_id, limit=99)) == sorted(b"m%d" % i for i in range(1, 61))

    bench.run(body)


# many at once


def test_concurrent_takers_never_get_the_same_message(bench: Bench) -> None:
    """Takers, done and put interleave freely; each message is handed out once."""

    async def body(b: Bench) -> None:
        queue_id = await b.queue()
        got: list[bytes] = []

        async def taker(client_id: int) -> None:
            while taken := await b.take(queue_id, client_id, limit=3):
                got.extend(m.message for m in taken)
                assert await b.storage.done([lease(m, client_id) for m in taken]) == [LeaseStatus.HELD] * len(taken)

        await b.storage.put([NewMessage(queue_id, ME, b"%d" % i) for i in range(200)])
        await asyncio.gather(*(taker(c) for c in range(1, 9)))
        assert sorted(got) == sorted(b"%d" % i for i in range(200))

    bench.run(body)
