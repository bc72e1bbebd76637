"""`client.writer()` against real brokers: batches that are repeated and published once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import postroad
from postroad.core.protocol.packets import pubend_id
from postroad.errors import EpochChangedError, InvalidValueError, StaleEpochError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Overlay, Storage
from postroad.testing import broker, free_ports

PUBEND = pubend_id(1)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(whole())


async def write(url: str, epoch: int, first: int, count: int, *, finish: bool = True) -> int:
    async with postroad.connect(url) as client, client.writer("w", epoch) as writer:
        for start in range(first, first + count, 1000):
            stop = min(start + 1000, first + count)
            await writer.write({"n": list(range(start, stop))}, [b"x" * 100] * (stop - start))
        return await writer.finish() if finish else 0


async def published(url: str) -> list[int]:
    async with postroad.connect(url) as client:
        span = (await client.pubends())[PUBEND]
        return [int(message["n"]) async for batch in client.read(PUBEND, 0, span.last) for message in batch]


def test_a_batch_is_published_once_however_often_it_is_written() -> None:
    """Finished or abandoned halfway, by this or another client; the next batch follows it."""

    async def scenario() -> None:
        with broker() as url:
            await write(url, 0, 0, 30_000, finish=False)
            assert await write(url, 0, 0, 30_000) == 30_000
            assert await write(url, 0, 0, 30_000) == 30_000
            assert await write(url, 1, 30_000, 10) == 10
            assert await published(url) == list(range(30_010))
            with pytest.raises(EpochChangedError, match="with 10 rows, and has 11 now"):
                await write(url, 1, 30_000, 11)

    run(scenario)


def test_a_restart_of_the_broker_is_passed_over(tmp_path: Path) -> None:
    """The writer opens the batch again and sends what the broker does not have; bases are remembered over the restart."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        config = NodeConfig(
            id=1, data_dir=str(tmp_path), listen=f"127.0.0.1:{port}", overlay=Overlay(silence_s=0.1), storage=Storage()
        )
        url = f"postroad://127.0.0.1:{port}"
        node = BrokerServer(config)
        await node.start()
        async with postroad.connect(url) as client, client.writer("w", 0) as writer:
            for start in range(0, 20_000, 1000):
                await writer.write({"n": list(range(start, start + 1000))}, [b"x" * 200] * 1000)
                if start == 7000:
                    await node.stop()
                    node = BrokerServer(config)
                    await node.start()
            await writer.finish()
        await write(url, 0, 0, 20_000)
        assert await published(url) == list(range(20_000))
        await write(url, 2, 0, 1)
        with pytest.raises(StaleEpochError):
            await write(url, 1, 0, 1)
        await node.stop()

    run(scenario)


def test_a_value_no_message_may_have_is_refused_before_it_is_sent() -> None:
    """The error names the attribute."""

    async def scenario() -> None:
        with broker() as url:
            async with postroad.connect(url) as client, client.writer("w", 0) as writer:
                with pytest.raises(InvalidValueError, match="bad"):
                    await writer.write({"bad": [object()]}, [b""])

    run(scenario)
