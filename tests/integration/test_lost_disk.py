"""Three real brokers: one is killed, its files are deleted, and it returns. What is lost is told, and the overlay goes on."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.integration.brokers import BrokerProcess, config
from tests.waiting import until

import postroad
from postroad.errors import GapError
from postroad.testing import free_ports
from postroad.types import MessageId

SECONDS_MAX = 60.0


async def publish(url: str, first: int, last: int) -> list[MessageId]:
    """Publish messages with these numbers and wait until all are durable."""
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        ids = [await publisher.publish({"n": number}, b"") for number in range(first, last + 1)]
        await publisher.flush(SECONDS_MAX)
        return ids


async def receive(subscription: postroad.Subscription, last: int) -> tuple[list[int], list[GapError]]:
    """Take messages up to the one with this number; return their numbers, and the gaps that were told."""
    numbers: list[int] = []
    gaps: list[GapError] = []
    while last not in numbers:
        try:
            async for message in subscription:
                numbers.append(int(message["n"]))
                if numbers[-1] == last:
                    break
        except GapError as gap:
            gaps.append(gap)
    await subscription.ack()
    return numbers, gaps


def brokers_in_line(directory: Path) -> list[BrokerProcess]:
    ports = free_ports(3)
    ends = [config(number, f"b{number}", ports[number - 1], directory, [ports[1]]) for number in (1, 3)]
    middle = config(2, "b2", ports[1], directory, [])
    return [BrokerProcess(each, directory) for each in (ends[0], middle, ends[1])]


@pytest.mark.parametrize("options", [(), ("--replace",)])
def test_a_broker_returns_without_its_files(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A durable subscriber elsewhere is told of a gap that holds all it missed, then gets the new messages; so do those there."""

    async def before(brokers: list[BrokerProcess]) -> list[MessageId]:
        async with postroad.connect(brokers[2].url) as client:
            subscription = await client.subscribe("n > 0", name="kept")
            await until(lambda: len(subscription.starts) == len(brokers))
            await publish(brokers[0].url, 1, 10)
            assert await receive(subscription, 10) == (list(range(1, 11)), [])
        return await publish(brokers[0].url, 11, 60)

    async def after(brokers: list[BrokerProcess], missed: list[MessageId]) -> None:
        async with postroad.connect(brokers[0].url) as there, postroad.connect(brokers[2].url) as elsewhere:
            here = await there.subscribe("n > 0")
            subscription = await elsewhere.subscribe("n > 0", name="kept")
            await until(lambda: len(here.starts) == len(subscription.starts) == len(brokers), SECONDS_MAX)
            await publish(brokers[0].url, 101, 110)
            await publish(brokers[2].url, 111, 111)
            numbers, gaps = await receive(subscription, 110)
            assert [number for number in numbers if number != 111] == list(range(101, 111))
            assert any(gap.lo >> 16 <= missed[0].milliseconds <= missed[-1].milliseconds <= gap.hi >> 16 for gap in gaps)
            assert set((await receive(here, 110))[0]) >= set(range(101, 111))

    brokers = brokers_in_line(tmp_path)
    with ExitStack() as stack:
        for broker in brokers:
            stack.enter_context(broker)
        missed = asyncio.run(asyncio.wait_for(before(brokers), SECONDS_MAX))
        brokers[0].kill()
        shutil.rmtree(tmp_path / "b1")
        brokers[0].start(*options)
        asyncio.run(asyncio.wait_for(after(brokers, missed), SECONDS_MAX))
    lines = [each for each in brokers[0].log.read_text().splitlines() if "were lost with this broker's former files" in each]
    assert lines  # a second line where a neighbour remembers more than the first one
    assert all(("ERROR" in line) == (not options) for line in lines)
