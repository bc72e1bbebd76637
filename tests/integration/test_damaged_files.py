"""A broker whose files are damaged while it is down: it starts, serves what is whole, and says what is not."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from msgspec import structs
from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.core.protocol.packets import pubend_id
from postroad.errors import GapError
from postroad.runtime.config import Overlay, Storage
from postroad.testing import free_ports

MESSAGES, ACKNOWLEDGED = 500, 100


async def publish(url: str, numbers: range) -> None:
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        for number in numbers:
            await publisher.publish({"n": number}, b"%d" % number)
        await publisher.flush()


async def receive(subscription: postroad.Subscription, last: int) -> list[int]:
    """Return the numbers that come, up to one of them."""
    numbers: list[int] = []
    async with asyncio.timeout(30):
        async for message in subscription:
            numbers.append(int(message.payload))
            if numbers[-1] == last:
                return numbers
    raise AssertionError("the subscription ended")


def flip_bit_of_cursor(file: Path, name: str) -> None:
    """Set a bit of the stored position that was clear, so that it lies in the future."""
    with sqlite3.connect(file) as connection:
        ((value,),) = connection.execute("SELECT value FROM pairs WHERE key = ?", (f"durable/{name}",))
        data = bytearray(value)
        place = value.rindex(b"\xcf") + 2
        data[place] |= ~data[place] & (data[place] + 1)
        connection.execute("UPDATE pairs SET value = ? WHERE key = ?", (bytes(data), f"durable/{name}"))
    connection.close()


def test_a_flipped_bit_in_a_stored_cursor_costs_no_message(tmp_path: Path) -> None:
    """The subscription is there, goes on from what is held, and the operator is told once."""
    (port,) = free_ports(1)
    broker = BrokerProcess(config(1, "broker", port, tmp_path, []), tmp_path)

    async def before() -> None:
        async with postroad.connect(broker.url) as client:
            subscription = await client.subscribe("n >= 0", name="reader")
            await publish(broker.url, range(MESSAGES))
            await receive(subscription, ACKNOWLEDGED - 1)
            await subscription.ack()

    async def after() -> list[int]:
        async with postroad.connect(broker.url) as client:
            return await receive(await client.subscribe("n >= 0", name="reader"), MESSAGES - 1)

    with broker:
        asyncio.run(before())
        broker.stop()
        flip_bit_of_cursor(tmp_path / "broker" / "metadata.sqlite", "reader")
        broker.start()
        numbers = asyncio.run(after())
        broker.stop()
        broker.start()
        broker.stop()
        broker.start()
    assert numbers == list(range(numbers[0], MESSAGES))
    assert numbers[0] <= ACKNOWLEDGED
    log = broker.log.read_text(encoding="utf-8")
    assert log.count("durable/reader") == 1, log


class Heard:
    """What a subscriber was given: numbers of messages, and gaps."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.gaps: list[GapError] = []
        self.live = asyncio.Event()

    async def listen(self, client: postroad.Client, name: str | None = None) -> None:
        subscription = await client.subscribe("n >= 0", start="earliest", name=name, on_gap=self.gaps.append)
        async for message in subscription:
            self.numbers.append(int(message.payload))
            if self.numbers[-1] >= LIVE:
                self.live.set()


LIVE = 1_000_000


def damage_closed_segment(log: Path) -> None:
    """Flip one byte in the middle of a closed segment."""
    file = sorted(log.glob("*.segment"))[2]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x55
    file.write_bytes(bytes(data))


async def hear_past_and_live(urls: tuple[str, str], names: tuple[str | None, str | None] = (None, None)) -> list[Heard]:
    """Let a subscriber at each of two brokers get what was published, while live messages flow, until both have got of those."""
    heard = [Heard(), Heard()]
    async with postroad.connect(urls[0]) as near, postroad.connect(urls[1]) as far, asyncio.timeout(60):
        listeners = zip(heard, (near, far), names, strict=True)
        tasks = [asyncio.create_task(each.listen(client, name)) for each, client, name in listeners]
        publisher = near.publisher()
        number = LIVE
        while not all(each.live.is_set() for each in heard):
            await publisher.publish({"n": number}, b"%d" % number)
            await publisher.flush()
            number += 1
            assert not any(task.done() for task in tasks)
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return heard


def assert_one_gap(heard: Heard) -> None:
    """All messages came once and in order, but for one stretch of at most ten, of which the subscriber was told."""
    old = [number for number in heard.numbers if number < LIVE]
    missing = sorted(set(range(MESSAGES)) - set(old))
    assert old == sorted(set(old))
    assert 0 < len(missing) <= 10
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert len(heard.gaps) == 1
    live = [number for number in heard.numbers if number >= LIVE]
    assert live == list(range(live[0], live[-1] + 1))


def test_a_damaged_segment_is_a_gap_to_its_readers_and_nothing_to_the_others(tmp_path: Path) -> None:
    """Here and at another broker; the rows around it come, new messages flow, no broker dies, the operator is told once."""
    ports = free_ports(2)
    small = Storage(segment_bytes=20_000, keep_s=3600.0)
    origin = BrokerProcess(structs.replace(config(1, "origin", ports[0], tmp_path, []), storage=small), tmp_path)
    other = BrokerProcess(config(2, "other", ports[1], tmp_path, [ports[0]]), tmp_path)

    async def before() -> None:
        async with postroad.connect(origin.url) as client:
            publisher = client.publisher()
            for number in range(MESSAGES):
                await publisher.publish({"n": number}, b"%d" % number)
                if number % 10 == 9:
                    await publisher.flush()

    with origin, other:
        asyncio.run(before())
        origin.stop()
        damage_closed_segment(tmp_path / "origin" / "pubends" / f"{pubend_id(1):016x}")
        origin.start()
        heard = asyncio.run(hear_past_and_live((origin.url, other.url)))
        assert origin.running
        assert other.running
    for each in heard:
        assert_one_gap(each)
    assert origin.log.read_text(encoding="utf-8").count("is damaged at offset") == 1


def test_a_durable_subscriber_that_comes_back_meets_what_was_damaged_while_the_brokers_ran(tmp_path: Path) -> None:
    """It has fallen behind the caches, so it catches up from the log, while live messages flow; nothing is restarted."""
    ports = free_ports(2)
    behind = Overlay(silence_s=0.2, cache_bytes=4_096)
    small = Storage(segment_bytes=20_000)
    settings = [config(1, "origin", ports[0], tmp_path, []), config(2, "other", ports[1], tmp_path, [ports[0]])]
    origin, other = (BrokerProcess(structs.replace(each, storage=small, overlay=behind), tmp_path) for each in settings)
    names = {origin.url: "near", other.url: "far"}

    async def subscribe_and_leave() -> None:
        for url, name in names.items():
            async with postroad.connect(url) as client:
                subscription = await client.subscribe("n >= 0", name=name)
                await subscription.close()

    with origin, other:
        asyncio.run(subscribe_and_leave())
        for begin in range(0, MESSAGES, 10):  # each batch is a record of the log
            asyncio.run(publish(origin.url, range(begin, begin + 10)))
        damage_closed_segment(tmp_path / "origin" / "pubends" / f"{pubend_id(1):016x}")
        heard = asyncio.run(hear_past_and_live((origin.url, other.url), ("near", "far")))
        assert origin.running
        assert other.running
    for each in heard:
        assert_one_gap(each)
        assert next(number for number in each.numbers if number >= LIVE) == LIVE
    assert origin.log.read_text(encoding="utf-8").count("is damaged at offset") == 1
