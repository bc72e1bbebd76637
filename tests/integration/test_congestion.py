"""Congestion control between real broker processes: a limited link slows the publisher, and nobody else.

publisher -> broker 1 -> broker 2 (link limited) -> slow subscriber
-> broker 3                -> quick subscriber
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from tests.integration.brokers import BrokerProcess, config
from tests.waiting import until

import postroad
from postroad.runtime.config import Congestion, Metrics
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


def command(*words: str) -> str:
    """Return what a command prints, its words separated by single spaces."""
    run = subprocess.run([sys.executable, "-m", "postroad", *words], capture_output=True, text=True, check=True, timeout=60)
    return " ".join(run.stdout.split())


def metric(port: int, name: str) -> list[float]:
    """Return the values that a broker shows a scraper."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"postroad_{name}{{")]


def test_a_limited_link_slows_the_publisher_until_the_limit_is_lifted(tmp_path: Path) -> None:
    """The publisher hears why, the other subscriber keeps up, nothing is lost, and the rate comes back."""

    async def scenario() -> None:
        *ports, scraped = free_ports(4)
        urls = [f"postroad://127.0.0.1:{port}" for port in ports]
        control = Congestion(rule="improved", query_s=0.3, no_alert_s=0.6)
        configs = [
            config(1, "one", ports[0], tmp_path, [], congestion=control, pubends=2, metrics=Metrics(f"127.0.0.1:{scraped}")),
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
                await until(lambda: publisher.throttled is not None and publisher.throttled.broker == 2)
                throttled = publisher.throttled
                assert throttled is not None
                assert abs(throttled.since - time.time()) < 30
                await until(lambda: publisher.throttled is not None and publisher.throttled.rate < RATE / 2)
                assert await rate_of(application, 3.0) < RATE * 0.6
                assert publisher.outstanding < RATE
                await until(lambda: application.published - len(quick.numbers) < RATE / 2)
                shown = await asyncio.to_thread(command, "status", "--url", urls[0])
                assert "broker 1 holds its publishers to" in shown
                assert "because of broker 2" in shown
                assert await asyncio.to_thread(metric, scraped, "throttled_pubends") == [1.0]
                assert max(await asyncio.to_thread(metric, scraped, "stream_throttled_by")) == 2.0
                assert max(await asyncio.to_thread(metric, scraped, "stream_rate_limit")) < RATE

                publishing.cancel()
                while publisher.try_publish({"n": application.published}, PAYLOAD) is not None:
                    application.published += 1
                assert publisher.throttled is not None
                publishing = asyncio.create_task(application.run())

                await asyncio.to_thread(command, "link", "limit", "2", "0", "--url", urls[0])
                while await rate_of(application, 2.0) < RATE * 0.7:
                    pass  # it rises for some seconds
                await until(lambda: publisher.throttled is None)
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
        async with asyncio.timeout(400):
            await scenario()

    asyncio.run(whole())
