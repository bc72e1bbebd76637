"""Durable subscriptions with real brokers: what `ack()` promises, and brokers that come and go while a client is away."""

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


async def sees(url: str, brokers: int) -> None:
    """Wait until a broker has heard of the pubends of so many brokers."""
    for _ in range(400):
        async with postroad.connect(url) as client:
            if len(await client.pubends()) >= brokers:
                return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{url} did not hear of {brokers} brokers")


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


def test_messages_of_a_broker_added_while_the_client_is_away_are_there_when_it_returns(tmp_path: Path) -> None:
    """All of them, from the new broker's first on, also when its home was killed meanwhile."""

    async def scenario() -> None:
        one, two, three = free_ports(3)
        home = BrokerProcess(config(1, "a", one, tmp_path, []), tmp_path)
        other = BrokerProcess(config(2, "b", two, tmp_path, [one]), tmp_path)
        added = BrokerProcess(config(3, "c", three, tmp_path, [two]), tmp_path)
        with home, other:
            await sees(home.url, 2)
            async with postroad.connect(home.url) as client:
                await client.subscribe("n >= 0", name="orders")
            with added:
                await publish(added.url, range(100))
                await sees(home.url, 3)
                await publish(added.url, range(100, 200))
                await asyncio.to_thread(home.kill)
                await publish(added.url, range(200, 300))
                await asyncio.to_thread(home.start)
                await sees(home.url, 3)
                async with postroad.connect(home.url) as client:
                    subscription = await client.subscribe("n >= 0", name="orders")
                    assert await take(subscription, 300) == list(range(300))

    run(scenario)


def test_a_new_durable_name_can_be_created_while_one_of_three_brokers_is_down(tmp_path: Path) -> None:
    """A majority of the brokers keeps the name; the third hears of it when it is back, and the client may move there."""

    async def scenario() -> None:
        one, two, three = free_ports(3)
        first = BrokerProcess(config(1, "a", one, tmp_path, []), tmp_path)
        second = BrokerProcess(config(2, "b", two, tmp_path, [one]), tmp_path)
        third = BrokerProcess(config(3, "c", three, tmp_path, [one, two]), tmp_path)
        with first, second, third:
            for broker in (first, second, third):
                await sees(broker.url, 3)
            await asyncio.to_thread(third.kill)
            async with postroad.connect(first.url) as client:
                await client.subscribe("n >= 0", name="orders")
            await publish(second.url, range(50))
            await asyncio.to_thread(third.start)
            await sees(third.url, 3)
            async with postroad.connect(third.url) as client:
                subscription = await client.subscribe("n >= 0", name="orders")
                assert await take(subscription, 50) == list(range(50))
                await subscription.ack()

    run(scenario)
