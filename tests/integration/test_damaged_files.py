"""A broker whose files are damaged while it is down: it starts, serves what is whole, and says what is not."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from tests.integration.brokers import BrokerProcess, config

import postroad
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
