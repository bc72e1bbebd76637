"""Shared subscriptions through the client: members, acknowledgements, handlers, and how one is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import postroad
import postroad.sync
from postroad.errors import DurableBusyError, InvalidValueError, RedeliveredError
from postroad.testing import broker

Scenario = Callable[[postroad.Client], Awaitable[None]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One broker for the module: every test uses attributes and names of its own."""
    with broker(data_dir=tmp_path_factory.mktemp("broker")) as address:
        yield address


def run(url: str, scenario: Scenario) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), postroad.connect(url) as client:
            await scenario(client)

    asyncio.run(whole())


async def publish(client: postroad.Client, kind: str, *numbers: int) -> None:
    for number in numbers:
        await client.publish({"t": kind, "n": number})


async def take(subscription: postroad.Subscription) -> postroad.Message:
    message = await subscription.get(timeout=20)
    assert message is not None
    return message


def test_what_a_member_leaves_unacknowledged_goes_to_another(url: str) -> None:
    """Before newer messages, and without what was acknowledged."""

    async def scenario(client: postroad.Client) -> None:
        first = await client.subscribe("t = 'left'", name="left", shared=True)
        await publish(client, "left", 1, 2, 3)
        taken = [await take(first) for _ in range(3)]
        await taken[1].ack()
        second = await client.subscribe("t = 'left'", name="left", shared=True)
        await first.close()
        await publish(client, "left", 4)
        assert [(await take(second))["n"] for _ in range(3)] == [1, 3, 4]
        await second.ack()
        await second.close()
        again = await client.subscribe("t = 'left'", name="left", shared=True)
        assert await again.get(timeout=0.3) is None

    run(url, scenario)


def test_a_key_gives_one_message_of_a_value_at_a_time(url: str) -> None:
    """The second message of an account comes when the first is acknowledged; another account does not wait."""

    async def scenario(client: postroad.Client) -> None:
        members = [await client.subscribe("t = 'key'", name="key", shared=True, key="n", prefetch=2) for _ in range(2)]
        await publish(client, "key", 1, 1, 2)
        got = {}
        for member in members:
            while (message := await member.get(timeout=0.5)) is not None:
                got[message["n"]] = message
        assert sorted(got) == [1, 2]
        await got[1].ack()
        found = [message for member in members if (message := await member.get(timeout=2)) is not None]
        assert [message["n"] for message in found] == [1]

    run(url, scenario)


def test_run_acknowledges_what_its_handler_has_done(url: str) -> None:
    """Also what is on its way when it is cancelled."""

    async def scenario(client: postroad.Client) -> None:
        done: list[object] = []
        all_done = asyncio.Event()

        async def handle(message: postroad.Message) -> None:
            done.append(message["n"])
            if len(done) == 20:
                all_done.set()

        subscription = await client.subscribe("t = 'run'", name="run", shared=True, prefetch=5)
        work = asyncio.create_task(subscription.run(handle, concurrency=4))
        await publish(client, "run", *range(20))
        await all_done.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await subscription.close()
        again = await client.subscribe("t = 'run'", name="run", shared=True)
        assert await again.get(timeout=0.3) is None
        assert sorted(map(str, done)) == sorted(map(str, range(20)))

    run(url, scenario)


def test_what_came_over_a_lost_connection_belongs_to_others(url: str) -> None:
    """Its `ack` raises, and the message comes again."""

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("t = 'lost'", name="lost", shared=True)
        await publish(client, "lost", 1)
        message = await take(subscription)
        assert client._main is not None
        client._main.channel.abort()
        again = await take(subscription)
        assert again.id == message.id
        with pytest.raises(RedeliveredError):
            await message.ack()
        await again.ack()

    run(url, scenario)


def test_only_the_last_member_can_delete_it(url: str) -> None:
    """`client.forget` deletes one that nobody uses."""

    async def scenario(client: postroad.Client) -> None:
        subscription = await client.subscribe("t = 'gone'", name="gone", shared=True, key="n")
        with pytest.raises(DurableBusyError):
            await client.forget("gone")
        entry = next(each for each in await client.durables() if each.name == "gone")
        assert (entry.shared, entry.key, entry.members) == (True, "n", 1)
        await subscription.close()
        await client.forget("gone")
        assert "gone" not in {each.name for each in await client.durables()}

    run(url, scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shared": True},
        {"shared": True, "name": "x", "auto_ack": True},
        {"shared": True, "name": "x", "positions": {1: 1}},
        {"shared": True, "name": "x", "prefetch": 100_000},
        {"name": "x", "key": "n"},
    ],
)
def test_arguments_that_do_not_fit_are_refused(url: str, arguments: dict[str, Any]) -> None:
    """A shared subscription has a name, and its members have no positions."""

    async def scenario(client: postroad.Client) -> None:
        with pytest.raises(InvalidValueError):
            await client.subscribe("t = 'x'", **arguments)

    run(url, scenario)


def test_the_blocking_client_shares_too(url: str) -> None:
    """From the same method."""
    with postroad.sync.connect(url) as client:
        subscription = client.subscribe("t = 'blocking'", name="blocking", shared=True)
        client.publish({"t": "blocking"})
        message = subscription.get(timeout=20)
        assert message is not None
        message.ack()
