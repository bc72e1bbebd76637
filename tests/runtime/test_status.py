"""Brokers report how they are, to clients of any broker."""

import asyncio

import pytest

import postroad
from postroad.core.protocol.status import BrokerReport
from postroad.errors import UnfinishedError
from postroad.testing import broker, overlay


def test_a_broker_reports_its_links_streams_clients_and_subscriptions() -> None:
    """The report names what is there, also when another broker is asked by way of the own one."""

    async def scenario(urls: dict[str, str]) -> None:
        async with postroad.connect(urls["a"]) as asker, postroad.connect(urls["b"]) as reader:
            for number in range(3):
                await reader.subscribe(f"price > {number}", name="durable" if number == 0 else None)
            publisher = asker.publisher()
            await publisher.publish({"price": 10}, b"x")
            await publisher.flush()
            own = await asker.status()
            assert [link.broker for link in own.links] == [2]
            assert len(own.clients) == 1
            hosted = next(stream for stream in own.streams if stream.is_hosted)
            assert hosted.published_rows == 1
            assert await asker.brokers() == {1: [2], 2: [1]}
            other = await asker.status(2, page=2)
            assert (other.broker, other.subscription_count) == (2, 3)
            assert [(each.filter, each.name) for each in other.subscriptions] == [("price > 0", "durable"), ("price > 1", "")]
            rest = await asker.status(2, page=2, after=other.subscriptions[-1].number)
            assert [each.filter for each in rest.subscriptions] == ["price > 2"]
            found = await asker.status(2, page=9, wanted="durab")
            assert [each.filter for each in found.subscriptions] == ["price > 0"]
            assert isinstance(found, BrokerReport)

    with overlay([("a", "b")]) as urls:
        asyncio.run(scenario(urls))


def test_a_broker_that_is_not_there_is_named() -> None:
    """Asking for the status of a broker that nobody knows fails at once, and says which."""

    async def scenario(url: str) -> None:
        async with postroad.connect(url) as client:
            with pytest.raises(UnfinishedError, match="broker 9"):
                await client.status(9)

    with broker() as url:
        asyncio.run(scenario(url))
