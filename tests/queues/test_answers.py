"""Answers that nobody reads: what waits for a connection is bounded, whatever it asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import postroad.testing
from postroad.queues.answers import CONNECTION_ANSWER_BYTES_MAX, AnswerRoom
from postroad.queues.client import QueueClient
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService
from postroad.storage.queues.memory import MemoryQueueStorage
from postroad.wire.codec import encode
from postroad.wire.framing import HEADER
from postroad.wire.packets import queues as q
from postroad.wire.packets import telesto as t
from postroad.wire.registry import Packet

PAYLOAD = 200_000
MESSAGES = 60  # 12 MB in the queue
REQUESTS = 250


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def ask(port: int, requests: list[Packet], client_id: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send many requests at once and read no answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    writer.writelines(encode(t.IdentifyClient(client_id), 1))
    await read_frame(reader)
    writer.writelines([bytes(part) for number, packet in enumerate(requests, 2) for part in encode(packet, number)])
    return reader, writer


async def read_frame(reader: asyncio.StreamReader) -> None:
    size, _, _ = HEADER.unpack(await asyncio.wait_for(reader.readexactly(HEADER.size), 60))
    await reader.readexactly(size - HEADER.size)


async def filled(port: int) -> tuple[int, int]:
    """Return the id of a client and of a queue that holds many large messages."""
    async with QueueClient.open("127.0.0.1", port, name="ann") as ann:
        queue = await ann.open_queue("jobs")
        for _ in range(MESSAGES // 20):
            await ann.put_batch([q.NewMessage(queue.queue_id, bytes(PAYLOAD))] * 20)
        return ann.client_id, queue.queue_id


def requests_of(kind: str, queue_id: int) -> list[Packet]:
    if kind == "peeks":
        return [t.GetMessages(queue_id)] * REQUESTS
    if kind == "large takes":
        return [q.TakeMessages(queue_id, limit=40)] * REQUESTS
    return [q.TakeMessages(queue_id, limit=1)] * REQUESTS


@pytest.mark.parametrize("kind", ["peeks", "large takes", "small takes"])
def test_unread_answers_of_queues_hold_little_memory_and_others_are_served(kind: str) -> None:
    """Ten connections ask for hundreds of megabytes and read nothing; then one of them reads all it asked for."""

    async def body(port: int) -> None:
        client_id, queue_id = await filled(port)
        before = rss()
        asked = [await ask(port, requests_of(kind, queue_id), client_id) for _ in range(10)]
        async with QueueClient.open("127.0.0.1", port, name="bob") as bob:
            other = await bob.open_queue("other")
            for number in range(50):  # time and turns enough for every request to be looked at
                await bob.put(other, b"x")
                taken = await bob.take(other)
                assert taken is not None, number
                await taken.done()
        assert rss() - before < 250 << 20
        reader, _ = asked[0]
        for _ in range(REQUESTS):
            await read_frame(reader)
        for _, writer in asked:
            writer.close()

    with postroad.testing.broker() as url:
        asyncio.run(body(urlsplit(url).port or 0))


def test_a_connection_that_reads_nothing_stops_what_is_read_for_it() -> None:
    """The storage is asked for a few pages, not for as many as there are requests."""

    class Counting(MemoryQueueStorage):
        pages = 0

        async def get_messages_from_queue(self, *args: object, **more: object) -> list[t.QueueMessage]:
            self.pages += 1
            return await super().get_messages_from_queue(*args, **more)  # type: ignore[arg-type]

    async def body() -> None:
        storage = Counting()
        async with QueueServer(QueueService(storage)) as server:
            client_id, queue_id = await filled(server.port)
            _, writer = await ask(server.port, requests_of("peeks", queue_id), client_id)
            async with QueueClient.open("127.0.0.1", server.port, name="bob") as bob:
                for _ in range(300):
                    await bob.ping()
                assert 0 < storage.pages < 40
            writer.close()

    asyncio.run(body())


def test_room_is_given_in_order_and_comes_back_when_a_waiter_leaves() -> None:
    """A small answer does not pass a large one; one that is cancelled holds nothing."""

    async def body() -> None:
        shared = AnswerRoom(100)
        room, other = AnswerRoom(100, shared), AnswerRoom(100, shared)
        assert room.try_enter(80)
        order: list[str] = []

        async def enter(place: AnswerRoom, name: str, size: int) -> None:
            await place.enter(size)
            order.append(name)

        large = asyncio.create_task(enter(room, "large", 90))
        small = asyncio.create_task(enter(room, "small", 5))
        foreign = asyncio.create_task(enter(other, "foreign", 30))
        await asyncio.sleep(0.01)
        assert order == []
        large.cancel()
        await asyncio.gather(large, return_exceptions=True)
        room.leave(80)
        await asyncio.gather(small, foreign)
        assert (room.held, other.held, shared.held) == (5, 30, 35)
        room.set_congested(True)
        assert not room.try_enter(1)
        waiting = asyncio.create_task(enter(room, "later", CONNECTION_ANSWER_BYTES_MAX))
        room.leave(5)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        other.leave(30)
        room.set_congested(False)
        await waiting
        assert room.held == CONNECTION_ANSWER_BYTES_MAX

    asyncio.run(body())
