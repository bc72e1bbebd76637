"""A broker whose disk is full: it says so once, refuses messages, serves the past, starts, and goes on when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.brokers import BrokerProcess, config

import postroad
from postroad.errors import PublishRefusedError, StorageFullError
from postroad.testing import free_ports

MESSAGES = 200
SIZE = 24 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, some megabytes large."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(  # fixed arguments
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)  # fixed arguments


def fill(path: Path) -> Path:
    """Leave no room on the disk of a directory."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    assert os.statvfs(path).f_bavail == 0
    return filler


async def publish(client: postroad.Client, numbers: range, payload_bytes: int = 200) -> None:
    publisher = client.publisher()
    for number in numbers:
        await publisher.publish({"n": number}, b"%d" % number + b" " * payload_bytes)
    await publisher.flush(20)


async def is_refused(client: postroad.Client, number: int) -> bool:
    """Publish one message; tell whether the broker refused it for want of room."""
    refusals: list[PublishRefusedError] = []
    publisher = client.publisher(on_refused=refusals.append)
    await publisher.publish({"n": number}, b"%d" % number + b" " * 8192)  # more than what is left of a page
    await publisher.flush(20)
    for each in refusals:
        assert each.cause.code == StorageFullError.code
        assert each.retryable
    return bool(refusals)


async def read_past(url: str) -> list[int]:
    """Subscribe anew, from the earliest message on."""
    numbers: list[int] = []
    async with postroad.connect(url) as client, asyncio.timeout(30):
        async for message in await client.subscribe("n >= 0", start="earliest"):
            numbers.append(int(message.payload))
            if len(numbers) == MESSAGES:
                return numbers
    raise AssertionError("the subscription ended")


def test_a_full_disk_refuses_messages_and_nothing_else(small_disk: Path, tmp_path: Path) -> None:
    """While it runs, and when it is started on the full disk; two lines of the log, not one per refusal."""
    (port,) = free_ports(1)
    broker = BrokerProcess(config(1, "broker", port, small_disk, []), tmp_path)
    past = list(range(MESSAGES))

    async def while_full(attempts: int) -> None:
        async with postroad.connect(broker.url) as client:
            assert all([await is_refused(client, MESSAGES + each) for each in range(attempts)])
        assert await read_past(broker.url) == past

    async def with_room() -> None:
        async with postroad.connect(broker.url) as client:
            for number in range(MESSAGES, MESSAGES + 300):
                if not await is_refused(client, number):
                    return
                await asyncio.sleep(0.1)
        raise AssertionError("messages are refused though there is room")

    async def before() -> None:
        async with postroad.connect(broker.url) as client:
            await publish(client, range(MESSAGES))

    def lines(text: str) -> int:
        return sum(text in line for line in broker.log.read_text(encoding="utf-8").splitlines())

    with broker:
        asyncio.run(before())
        filler = fill(small_disk)
        asyncio.run(while_full(100))
        assert lines("the disk is full") == 1
        broker.kill()
        broker.start()
        asyncio.run(while_full(20))
        broker.kill()
        broker.start()
        asyncio.run(while_full(5))
        assert lines("the disk is full") == 3
        filler.unlink()
        asyncio.run(with_room())
        assert lines("there is space on the disk again") == 1
        errors = [line for line in broker.log.read_text(encoding="utf-8").splitlines() if " ERROR " in line]
        assert len([line for line in errors if "track" not in line]) == 3, errors
