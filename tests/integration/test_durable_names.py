"""Listing and deleting durable subscriptions, through any broker of the overlay and from the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import pytest

import postroad
import postroad.testing
from postroad.core.broker.subscribing import range_reads as reading
from postroad.core.protocol.packets import DurableEntry
from postroad.errors import UnknownDurableError

POSTROAD = [sys.executable, "-m", "postroad.cli"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*POSTROAD, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_durable_names_are_listed_with_filter_home_and_lag_at_every_broker() -> None:
    """In order of names; a connected one is shown as such, one that is away falls behind."""

    async def body(urls: dict[str, str]) -> None:
        async with postroad.connect(urls["a"]) as a, postroad.connect(urls["b"]) as b:
            kept = await a.subscribe("price > 10", name="ann")
            for name, client in (("zoe", a), ("bob", b)):
                await (await client.subscribe("price > 20", name=name)).close()
            publisher = a.publisher()
            found: list[DurableEntry] = []
            for client in (a, b):
                found = []
                async with asyncio.timeout(30):
                    while [each.name for each in found if each.filter] != ["ann", "bob", "zoe"]:  # word of them is on its way
                        await publisher.publish({"price": 30}, b"")
                        await publisher.flush()
                        found = await client.durables()
                assert [each.filter for each in found] == ["price > 10", "price > 20", "price > 20"]
                assert [each.home for each in found] == [1, 2, 1]
                assert [each.connected for each in found] == [True, False, False]
            async with asyncio.timeout(30):
                while min(each.behind_ms for each in found if not each.connected) == 0:
                    await publisher.publish({"price": 30}, b"")
                    await publisher.flush()
                    found = await b.durables()
            await kept.close()

    with postroad.testing.overlay([("a", "b")]) as urls:
        asyncio.run(body(urls))


def test_many_durable_names_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once and in order, wherever they are at home."""
    monkeypatch.setattr(reading, "DURABLES_OF_A_PAGE", 3)

    async def body(urls: dict[str, str]) -> None:
        async with postroad.connect(urls["a"]) as a, postroad.connect(urls["b"]) as b:
            names = [f"name {number:02}" for number in range(14)]
            for number, name in enumerate(names):
                await (await (a, b)[number % 3 == 0].subscribe(f"price > {number}", name=name)).close()
            found: list[str] = []
            async with asyncio.timeout(30):
                while found != names:
                    found = [each.name for each in await a.durables() if each.filter is not None]

    with postroad.testing.overlay([("a", "b")]) as urls:
        asyncio.run(body(urls))


def test_a_durable_name_with_a_filter_is_forgotten_without_saying_the_filter() -> None:
    """By `subscribe --forget`, by `subscriptions forget`, and in a program; a name that is unknown is told."""
    with postroad.testing.broker() as url:
        for name in ("one", "two"):
            assert run("subscribe", "--url", url, "--name", name, "--filter", "price > 10", "--timeout", "0.1").returncode == 0
        listed = [json.loads(line) for line in run("subscriptions", "--url", url, "--json").stdout.splitlines()]
        assert [(each["name"], each["filter"]) for each in listed] == [("one", "price > 10"), ("two", "price > 10")]
        assert "price > 10" in run("subscriptions", "--url", url).stdout
        assert run("subscribe", "--url", url, "--name", "one", "--forget", "--timeout", "0.1").returncode == 0
        assert run("subscriptions", "forget", "two", "--url", url).returncode == 0
        assert run("subscriptions", "--url", url, "--json").stdout == ""
        missing = run("subscriptions", "forget", "two", "--url", url)
        assert missing.returncode == 1
        assert f"[error {UnknownDurableError.code}]" in missing.stderr


def test_ctrl_c_with_forget_deletes_the_name() -> None:
    """As the help says: at the end, however it ends."""
    with postroad.testing.broker() as url:
        command = [*POSTROAD, "subscribe", "--url", url, "--name", "one", "--filter", "price > 10", "--forget"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "subscribed" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert run("subscriptions", "--url", url, "--json").stdout == ""
