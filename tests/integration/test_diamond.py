"""Four real brokers in a diamond: every one is killed and started again, a link is cut, and nobody loses or doubles a message."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.brokers import BrokerProcess, FaultProxy, config

import postroad
from postroad.testing import free_ports
from postroad.types import MessageId

RATE_MSGS_PER_S = 1_500  # of each of two publishers
KINDS = ("quote", "trade", "news")


@dataclass
class Published:
    """What one publisher published, in order."""

    messages: list[tuple[MessageId, dict[str, bool | int | float | str | bytes]]] = field(default_factory=list)


@dataclass
class Received:
    """What one subscriber got, in order, and which messages it should have got."""

    name: str
    kinds: tuple[str, ...]
    threshold: int
    ids: list[MessageId] = field(default_factory=list)
    ticks: dict[int, list[int]] = field(default_factory=dict)

    @property
    def filter(self) -> str:
        kinds = ", ".join(f"'{kind}'" for kind in self.kinds)
        return f"kind IN ({kinds}) AND value >= {self.threshold}"

    def wants(self, attributes: dict[str, bool | int | float | str | bytes]) -> bool:
        value = attributes["value"]
        return attributes["kind"] in self.kinds and isinstance(value, int) and value >= self.threshold

    def take(self, message: postroad.Message) -> None:
        self.ids.append(message.id)
        self.ticks.setdefault(message.pubend, []).append(message.tick)


async def publish(client: postroad.Client, published: Published, who: str, stop: asyncio.Event) -> None:
    """Publish at a steady rate until told to stop, then wait until everything is durable."""
    publisher = client.publisher()
    number = 0
    while not stop.is_set():
        for _ in range(RATE_MSGS_PER_S // 50):
            number += 1
            attributes: dict[str, bool | int | float | str | bytes] = {
                "kind": KINDS[number % len(KINDS)],
                "value": number % 10,
                "who": who,
            }
            message_id = await publisher.publish(attributes, number.to_bytes(8, "big"))
            published.messages.append((message_id, attributes))
        await asyncio.sleep(0.02)
    await publisher.flush(40)


async def receive(client: postroad.Client, received: Received, name: str | None, subscribed: asyncio.Event) -> None:
    subscription = await client.subscribe(received.filter, name=name)
    subscribed.set()
    async for message in subscription:
        received.take(message)
        if name is not None and len(received.ids) % 100 == 0:
            await subscription.ack()


def missing(received: Received, everything: list[Published]) -> set[MessageId]:
    expected = {message_id for each in everything for message_id, attributes in each.messages if received.wants(attributes)}
    return expected - set(received.ids)


def check(received: Received, everything: list[Published]) -> None:
    """Exactly the matching messages, each once, in the order of each pubend and of each publisher."""
    expected = {message_id for each in everything for message_id, attributes in each.messages if received.wants(attributes)}
    assert len(received.ids) == len(set(received.ids)), f"{received.name} got a message twice"
    assert set(received.ids) == expected, f"{received.name}: {len(expected - set(received.ids))} missing"
    for ticks in received.ticks.values():
        assert ticks == sorted(ticks)
    for publisher, broker in {(each.publisher, each.broker) for each in received.ids}:
        own = [each for each in received.ids if (each.publisher, each.broker) == (publisher, broker)]
        assert own == sorted(own), f"{received.name} got the messages of a publisher out of order"


async def disturb(overlay: dict[str, BrokerProcess], proxy: FaultProxy) -> None:
    """Kill every broker in turn and start it again; cut a link and heal it."""
    for name in ("b", "c", "d", "a"):
        broker = overlay[name]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(0.7)
        await asyncio.to_thread(broker.start)
    await asyncio.sleep(1.5)
    proxy.cut()
    await asyncio.sleep(1.0)
    proxy.heal()
    await asyncio.sleep(1.5)


async def scenario(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        ports = dict(zip("abcd", free_ports(4), strict=True))
        proxy = await stack.enter_async_context(FaultProxy(ports["a"]))
        processes = stack.enter_context(ExitStack())
        neighbours: dict[str, list[int]] = {"a": [], "b": [proxy.port], "c": [ports["a"]], "d": [ports["b"], ports["c"]]}
        overlay = {
            name: processes.enter_context(BrokerProcess(config(number, name, ports[name], tmp_path, neighbours[name]), tmp_path))
            for number, name in enumerate("abcd", 1)
        }
        await asyncio.sleep(1.5)
        everything = [Published(), Published()]
        receivers = [
            (Received("live at d", ("quote", "trade"), 0), None, "d"),
            (Received("durable at b or c", ("trade", "news"), 3), "orders", "bc"),
            (Received("live at c", KINDS, 8), None, "c"),
            (Received("durable at a", ("quote",), 0), "quotes", "a"),
        ]
        tasks = []
        for received, name, at in receivers:
            client = await stack.enter_async_context(postroad.connect([overlay[each].url for each in at]))
            subscribed = asyncio.Event()
            tasks.append(asyncio.create_task(receive(client, received, name, subscribed)))
            async with asyncio.timeout(20):
                await subscribed.wait()
        stop = asyncio.Event()
        publishing = []
        for published, at, who in ((everything[0], "a", "one"), (everything[1], "db", "two")):
            client = await stack.enter_async_context(postroad.connect([overlay[each].url for each in at]))
            publishing.append(asyncio.create_task(publish(client, published, who, stop)))
        await disturb(overlay, proxy)
        stop.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*publishing)
        for _ in range(300):
            if any(task.done() for task in tasks) or not any(missing(received, everything) for received, _, _ in receivers):
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # a duplicate would come now
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for received, _, _ in receivers:
            check(received, everything)
        assert sum(len(each.messages) for each in everything) > 5_000


def test_every_subscriber_gets_exactly_the_matching_messages_whatever_crashes(tmp_path: Path) -> None:
    """Kill every broker in turn, cut a link, publish all the while: exactly once, in order, for durable and live subscribers."""
    asyncio.run(scenario(tmp_path))
