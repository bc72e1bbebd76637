"""Durable subscriptions with real brokers: what `ack()` promises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.testing import free_ports


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(whole())


async def publish(url: str, numbers: range) -> None:
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        for number in numbers:
            await publisher.publish({"n": number})
        await publisher.flush(20)


async def take(subscription: postroad.Subscription, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        number = (await anext(subscription))["n"]
        assert isinstance(number, int)
        taken.append(number)
    return taken


def test_what_ack_returned_for_never_comes_again(tmp_path: Path) -> None:
    """The broker is killed the moment `ack()` has returned, and the client forgets everything."""

    async def scenario() -> None:
        with BrokerProcess(config(1, "a", free_ports(1)[0], tmp_path, []), tmp_path) as broker:
            client = postroad.connect(broker.url)
            await client.__aenter__()
            subscription = await client.subscribe("n >= 0", name="orders")
            await publish(broker.url, range(200))
            assert await take(subscription, 190) == list(range(190))
            await subscription.ack()
            await asyncio.to_thread(broker.kill)
            await client.close(flush=False)
            await asyncio.to_thread(broker.start)
            async with postroad.connect(broker.url) as again:
                subscription = await again.subscribe("n >= 0", name="orders")
                assert await take(subscription, 10) == list(range(190, 200))

    run(scenario)
