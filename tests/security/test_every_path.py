"""Random permissions against a running broker: whatever an identity obtains, by whichever path, matches its permission.

The paths: live, catching up, shared with other members, read by range, one message by its id, a bound queue, and the console's
tail and page of a message; status and links are refused. The machines alone are tested with more filters, and with lost packets,
in `tests/properties/test_permission_properties.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest
from tests.console.site import Site
from tests.security.guarded import Guard, guarded_node
from tests.security.test_console import enter

import postroad
from postroad.console.service import ConsoleService
from postroad.core.protocol.packets import pubend_id
from postroad.errors import PermissionDeniedError
from postroad.queues.broker_service import queues_of
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Console, NodeConfig
from postroad.transport.background import BackgroundLoop

IDENTITIES = 4
MESSAGES = 24
Attributes = Mapping[str, int | str]


def random_filter(random: Random) -> str:
    """Return a filter; some are written to escape from a careless conjunction."""
    terms = ["a = {n}", "a > {n}", "b = 'x'", "b LIKE 'y%'", "NOT (a = {n})", "c IS NULL", "a IN (1, {n})", "TRUE", "a <> {n}"]
    escapes = ["a = 1 OR TRUE", "a IS NULL OR a IS NOT NULL", ""]
    if random.random() < 0.25:
        return random.choice(escapes)
    parts = [random.choice(terms).format(n=random.randrange(4)) for _ in range(random.randint(1, 3))]
    return random.choice((" AND ", " OR ")).join(f"({part})" for part in parts)


def random_message(random: Random) -> Attributes:
    found: dict[str, int | str] = {"a": random.randrange(4), "b": random.choice(["x", "y", "yz"])}
    if random.random() < 0.5:
        found["c"] = random.randrange(2)
    return found


def numbers(seen: str, wanted: str, published: list[Attributes]) -> set[int]:
    """Return which messages an identity obtains: the oracle evaluates both filters alone."""
    both = postroad.Filter(seen), postroad.Filter(wanted)
    return {n for n, each in enumerate(published) if all(filter_.matches(each) is True for filter_ in both)}


class Obtained:
    """What one identity gets by each path, as numbers of messages."""

    def __init__(self, client: postroad.Client, wanted: str) -> None:
        self._client = client
        self._wanted = wanted
        self.by_path: dict[str, set[int]] = {}

    async def follow(
        self, path: str, subscription: postroad.Subscription, expected: set[int], *, acknowledge: bool = False
    ) -> None:
        found = self.by_path.setdefault(path, set())
        while not expected <= found:
            message = await subscription.get(timeout=10.0)
            assert message is not None, (path, self._wanted, expected - found)
            found.add(int(message.payload))
            if acknowledge:
                await message.ack()
        while (message := await subscription.get(timeout=0.05)) is not None:
            found.add(int(message.payload))

    async def read(self) -> None:
        found = self.by_path.setdefault("read by range", set())
        horizon = (await self._client.pubends())[pubend_id(1)].horizon
        async for batch in self._client.read(pubend_id(1), 0, horizon, self._wanted):
            found.update(int(message.payload) for message in batch)

    async def take(self, queue: str, expected: set[int]) -> None:
        found = self.by_path.setdefault("bound queue", set())
        while not expected <= found:
            delivery = await self._client.queue(queue).take(10.0)
            assert delivery is not None, (self._wanted, expected - found)
            found.add(int(delivery.payload))
        while (delivery := await self._client.queue(queue).take(0.05)) is not None:
            found.add(int(delivery.payload))


def numbers_on_page(text: str) -> set[int]:
    """Return the payloads in an answer of the console."""
    found = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            payload = value.get("payload")
            if isinstance(payload, dict) and "text" in payload:
                found.add(int(payload["text"]))
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(json.loads(text))
    return found


@pytest.mark.parametrize("seed", [1])
def test_whatever_is_obtained_matches_the_permission(seed: int, tmp_path: Path) -> None:
    """Repeat one with `-k "permission[SEED]"`."""
    random, guard = Random(seed), Guard(tmp_path)
    guard.identity("ops", publish=True, subscribe=True, queues=("manage:*",), trace=True, admin=True)
    permissions = {}
    for number in range(IDENTITIES):
        name, queue = f"i{number}", f"q{number}"
        seen, wanted = random_filter(random), random_filter(random)
        permissions[name] = (seen, wanted, queue)
        allowed: bool | str = seen or True
        guard.identity(name, subscribe=allowed, trace=True, queues=(f"take:{queue}", f"manage:{queue}"))
    published = [random_message(random) for _ in range(MESSAGES)]
    loop = BackgroundLoop("postroad-paths")
    settings = Console(listen="127.0.0.1:0")
    config = NodeConfig(id=1, data_dir=str(tmp_path / "data"), console=settings)
    queues = queues_of(config)
    assert queues is not None
    console = ConsoleService(config, queues)
    node = guarded_node(guard, tmp_path, services=(queues, console), console=settings)
    loop.call(node.start())
    try:
        site = Site(loop, [node], console, tmp_path / "data")
        asyncio.run(run_paths(guard, node, site, permissions, published))
    finally:
        loop.call(node.stop())
        loop.stop()


async def count_subscriptions(node: BrokerServer, loop: BackgroundLoop) -> int:
    async def read() -> int:
        return int(str(node.stats()["subscriptions"]))

    return await asyncio.to_thread(loop.call, read())


async def until_subscriptions(node: BrokerServer, loop: BackgroundLoop, count: int) -> None:
    async with asyncio.timeout(20):
        while await count_subscriptions(node, loop) < count:  # noqa: ASYNC110  # it is asked in another thread
            await asyncio.sleep(0.02)


def follow_tail(site: Site, wanted: str, expected: set[int]) -> set[int]:
    """Follow the tail of the console until all that was expected was counted, and a little longer."""
    found, more = set(), 4
    for turn in site.events(f"/api/tail?filter={quote(wanted)}"):
        found |= numbers_on_page(json.dumps(turn))
        assert turn["received"] <= len(expected), (wanted, expected)
        more -= turn["received"] == len(expected)
        if not more:
            break
    return found


async def run_paths(
    guard: Guard,
    node: BrokerServer,
    site: Site,
    permissions: dict[str, tuple[str, str, str]],
    published: list[Attributes],
) -> None:
    async with guard.connect(node, "ops") as ops:
        for name, (seen, wanted, queue) in permissions.items():
            expected, may_see = numbers(seen, wanted, published), numbers(seen, "", published)
            async with guard.connect(node, name) as client:
                obtained = Obtained(client, wanted)
                live = await client.subscribe(wanted)
                await (await client.subscribe(wanted, name="d")).close()
                team = await client.subscribe(wanted, name="team", shared=True)
                before = await count_subscriptions(node, site.loop)
                await client.queue(queue).bind(wanted)
                await until_subscriptions(node, site.loop, before + 1)
                session = await asyncio.to_thread(enter, site, guard, name)
                tail = asyncio.create_task(asyncio.to_thread(follow_tail, session, wanted, expected))
                await until_subscriptions(node, site.loop, before + 2)

                ids = [await ops.publish(each, str(n).encode()) for n, each in enumerate(published)]
                await obtained.follow("live", live, expected)
                await obtained.follow("catching up", await client.subscribe(wanted, name="d"), expected)
                await obtained.follow("shared", team, expected, acknowledge=True)
                await obtained.take(queue, expected)
                await obtained.read()
                for path, found in obtained.by_path.items():
                    assert found == expected, (path, name, seen, wanted)
                assert await tail <= expected, (name, seen, wanted)

                assert {n for n, id_ in enumerate(ids) if await client.message(id_) is not None} == may_see, (name, seen)
                for n, id_ in enumerate(ids[:6]):
                    page = await asyncio.to_thread(session.get, f"/api/messages/{id_}")
                    assert numbers_on_page(json.dumps(page)) == {n} & may_see, (name, seen)
                for refused in (client.status(), client.limit_link(2, 1000)):
                    with pytest.raises(PermissionDeniedError):
                        await refused
