"""Congestion control between real broker processes: a limited link slows the publisher, and nobody else.

publisher -> broker 1 -> broker 2 (link limited) -> slow subscriber
-> broker 3                -> quick subscriber
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.integration.brokers import BrokerProcess, config
from tests.waiting import until

import postroad
from postroad.runtime.config import Congestion
from postroad.testing import free_ports

PAYLOAD = bytes(1_000)
LIMIT_BYTES_PER_S = 60_000
RATE = 300  # messages per second that the application wants to publish


class Reader:
    """A subscriber that counts."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ready = False

    async def read(self, url: str) -> None:
        async with postroad.connect(url) as client, await client.subscribe("") as subscription:
            self.ready = True
            async for message in subscription:
                self.numbers.append(int(message.attributes["n"]))


class Application:
    """Publishes at a steady rate, or as fast as `publish` lets it."""

    def __init__(self, publisher: postroad.Publisher) -> None:
        self.publisher = publisher
        self.published = 0
        self.refused = 0

    async def run(self) -> None:
        began, before = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - began) * RATE)
            for _ in range(min(due - before, RATE)):
                await self.publisher.publish({"n": self.published}, PAYLOAD)
                self.published += 1
            before = due
            await asyncio.sleep(0.02)


async def rate_of(application: Application, seconds: float) -> float:
    """Return how many messages per second the application gets rid of."""
    before, began = application.published, time.monotonic()
    await asyncio.sleep(seconds)
    return (application.published - before) / (time.monotonic() - began)


def test_a_limited_link_slows_the_publisher_until_the_limit_is_lifted(tmp_path: Path) -> None:
    """The publisher hears why, the other subscriber keeps up, nothing is lost, and the rate comes back."""

    async def scenario() -> None:
        ports = free_ports(3)
        urls = [f"postroad://127.0.0.1:{port}" for port in ports]
        control = Congestion(rule="improved", query_s=0.3, no_alert_s=0.6)
        configs = [
            config(1, "one", ports[0], tmp_path, [], congestion=control, pubends=2),
            config(2, "two", ports[1], tmp_path, [ports[0]], congestion=control),
            config(3, "three", ports[2], tmp_path, [ports[0]], congestion=control),
        ]
        brokers = [BrokerProcess(each, tmp_path) for each in configs]
        for broker in brokers:
            await asyncio.to_thread(broker.start)
        slow, quick = Reader(), Reader()
        readers = [asyncio.create_task(slow.read(urls[1])), asyncio.create_task(quick.read(urls[2]))]
        try:
            async with postroad.connect(urls[0]) as client, client.publisher() as publisher:
                await until(lambda: slow.ready and quick.ready)
                application = Application(publisher)
                publishing = asyncio.create_task(application.run())
                await until(lambda: len(slow.numbers) > 100 and len(quick.numbers) > 100)

                await client.limit_link(2, LIMIT_BYTES_PER_S)
                await until(lambda: publisher.throttled is not None)
                throttled = publisher.throttled
                assert throttled is not None
                assert throttled.broker == 2
                assert abs(throttled.since - time.time()) < 30
                await until(lambda: publisher.throttled is None or publisher.throttled.rate < RATE / 2)
                assert await rate_of(application, 3.0) < RATE * 0.6
                assert publisher.outstanding < RATE
                assert application.published - len(quick.numbers) < RATE

                publishing.cancel()
                while publisher.try_publish({"n": application.published}, PAYLOAD) is not None:
                    application.published += 1
                assert publisher.throttled is not None
                publishing = asyncio.create_task(application.run())

                await client.limit_link(2, 0)
                await until(lambda: publisher.throttled is None)
                assert await rate_of(application, 2.0) > RATE * 0.7
                publishing.cancel()
                await publisher.flush(20.0)
                await until(lambda: len(slow.numbers) == len(quick.numbers) == application.published)
            for reader in (slow, quick):
                assert reader.numbers == sorted(set(reader.numbers))
        finally:
            for task in readers:
                task.cancel()
            for broker in brokers:
                await asyncio.to_thread(broker.kill)

    async def whole() -> None:
        async with asyncio.timeout(90):
            await scenario()

    asyncio.run(whole())
