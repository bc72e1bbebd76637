"""Shared subscriptions with real brokers and workers, which are killed with SIGKILL while they work."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.errors import SharedElsewhereError
from postroad.testing import free_ports

MESSAGES = 240
ACCOUNTS = 12
WORKER = """
import asyncio, sys, time
import postroad
from postroad.errors import RedeliveredError

async def main(urls, path):
    with open(path, "a", buffering=1) as log:
        def note(what, message):
            log.write(f"{time.monotonic_ns()} {what} {message['n']} {message['account']}\\n")
        async with postroad.connect(urls) as client:
            orders = await client.subscribe("n >= 0", name="work", shared=True, key="account", prefetch=4, timeout=60)
            async for message in orders:
                note("given", message)
                await asyncio.sleep(0.005)
                note("acks", message)
                try:
                    await message.ack()
                except RedeliveredError:
                    note("refused", message)
                else:
                    note("done", message)

asyncio.run(main(*sys.argv[1:]))
"""


class Noted(NamedTuple):
    """A line in the file of a worker."""

    at: int
    what: str
    n: int
    account: int
    worker: str


class Workers:
    """Workers in processes of their own. Each writes what it does into a file."""

    def __init__(self, directory: Path, urls: str) -> None:
        self._directory = directory
        self._urls = urls
        self._processes: list[asyncio.subprocess.Process] = []

    async def hire(self) -> asyncio.subprocess.Process:
        path = self._directory / f"worker-{len(self._processes)}.log"
        path.touch()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, self._urls, str(path))
        self._processes.append(process)
        return process

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()

    async def kill_all(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                await self.kill(process)

    def notes(self) -> list[Noted]:
        paths = self._directory.glob("worker-*.log")
        found = [(path.stem, line.split()) for path in paths for line in path.read_text().splitlines()]
        return sorted(
            Noted(int(line[0]), line[1], int(line[2]), int(line[3]), worker) for worker, line in found if len(line) == 4
        )

    async def until(self, condition: Callable[[list[Noted]], bool]) -> list[Noted]:
        """Wait until what the workers wrote meets a condition."""
        while not condition(notes := self.notes()):  # other processes write it
            ended = [each.returncode for each in self._processes if each.returncode not in (None, -signal.SIGKILL)]
            assert ended == [], "a worker ended by itself"
            await asyncio.sleep(0.05)
        return notes


def numbers(notes: list[Noted], *what: str) -> list[int]:
    return [each.n for each in notes if each.what in what]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(240):
            await scenario()

    asyncio.run(whole())


@asynccontextmanager
async def hired(directory: Path, urls: str) -> AsyncIterator[Workers]:
    workers = Workers(directory, urls)
    try:
        yield workers
    finally:
        await workers.kill_all()


async def publish(url: str) -> None:
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        for n in range(MESSAGES):
            await publisher.publish({"n": n, "account": n % ACCOUNTS})
            if n % 10 == 0:
                await asyncio.sleep(0.02)
        await publisher.flush(30)


def all_are_decided(notes: list[Noted]) -> bool:
    """Tell whether no worker that lives waits for an acknowledgement: each has noted what became of its last one."""
    last = {each.worker: each.what for each in notes}
    return all(what in ("done", "refused") for worker, what in last.items() if worker not in ("worker-0", "worker-1"))


def check_order(notes: list[Noted]) -> None:
    """Of one account, a message is given only when the one before was acknowledged."""
    for account in range(ACCOUNTS):
        own = [each for each in notes if each.account == account]
        for n in range(account, MESSAGES - ACCOUNTS, ACCOUNTS):
            acknowledged = min(each.at for each in own if (each.n, each.what) == (n, "acks"))
            following = min(each.at for each in own if (each.n, each.what) == (n + ACCOUNTS, "given"))
            assert acknowledged < following, (account, n)


def test_killed_workers_and_a_killed_home_lose_nothing_and_repeat_nothing_acknowledged(tmp_path: Path) -> None:
    """Workers that know both brokers find the home; one is killed, then the home, then another worker."""

    async def scenario() -> None:
        one, two = free_ports(2)
        home = BrokerProcess(config(1, "a", one, tmp_path, []), tmp_path)
        other = BrokerProcess(config(2, "b", two, tmp_path, [one]), tmp_path)
        with home, other:
            async with postroad.connect(home.url) as client:
                await client.subscribe("n >= 0", name="work", shared=True, key="account", prefetch=0)
            async with hired(tmp_path, f"postroad://127.0.0.1:{two},127.0.0.1:{one}") as workers:
                processes = [await workers.hire() for _ in range(3)]
                publishing = asyncio.create_task(publish(other.url))
                await workers.until(lambda notes: len(numbers(notes, "done")) > MESSAGES // 6)
                await workers.kill(processes[0])
                await workers.until(lambda notes: len(numbers(notes, "done")) > MESSAGES // 3)
                await asyncio.to_thread(home.kill)
                await asyncio.to_thread(home.start)
                await workers.until(lambda notes: len(numbers(notes, "done")) > MESSAGES // 2)
                await workers.kill(processes[1])
                await workers.hire()
                await publishing
                await workers.until(lambda notes: len({*numbers(notes, "acks")}) == MESSAGES)
                notes = await workers.until(all_are_decided)
        done = Counter(numbers(notes, "done"))
        assert [n for n, count in done.items() if count > 1] == []
        # The others were on their way when a worker or the home was killed: they are stored, and nobody was told so.
        assert len(done) >= MESSAGES - 3 * ACCOUNTS
        check_order(notes)

    run(scenario)


def test_a_member_at_another_broker_is_told_where_the_home_is(tmp_path: Path) -> None:
    """It knows only the other broker, so it cannot go there by itself."""

    async def scenario() -> None:
        one, two = free_ports(2)
        home = BrokerProcess(config(1, "a", one, tmp_path, []), tmp_path)
        other = BrokerProcess(config(2, "b", two, tmp_path, [one]), tmp_path)
        with home, other:
            async with postroad.connect(home.url) as client, postroad.connect(other.url) as elsewhere:
                await client.subscribe("n >= 0", name="work", shared=True)
                with pytest.raises(SharedElsewhereError) as caught:
                    await elsewhere.subscribe("n >= 0", name="work", shared=True)
                assert caught.value.home == 1

    run(scenario)
