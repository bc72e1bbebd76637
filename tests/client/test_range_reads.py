"""`client.pubends()` and `client.read()` against real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import postroad
import postroad.sync
from postroad.core.protocol.packets import pubend_id
from postroad.errors import ClosedError, FilterSyntaxError, GapError, UnfinishedError, UnknownPubendError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, Overlay, Storage
from postroad.testing import broker, free_ports, overlay

PUBEND = pubend_id(1)


async def publish(url: str, first: int, count: int, *, bulk: int = 0) -> None:
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        columns = {"n": list(range(first, first + count))}
        await publisher.publish_many(columns, [bytes(bulk)] * count)
        await publisher.flush()


async def numbers(client: postroad.Client, pubend: int, lo: int, hi: int, text: str = "") -> list[int]:
    return [int(message["n"]) async for batch in client.read(pubend, lo, hi, text) for message in batch]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(whole())


def test_a_range_is_read_through_another_broker() -> None:
    """What was published at one broker is listed and read at another, filtered, without a subscription."""

    async def scenario() -> None:
        with overlay([("a", "b"), ("b", "c")]) as urls:
            async with postroad.connect(urls["c"]) as client, postroad.connect(urls["a"]) as holder:
                await holder.subscribe("")  # keeps the log from being released
                await publish(urls["a"], 0, 3000)
                while len(spans := await client.pubends()) < 3:  # noqa: ASYNC110  # the brokers do it by and by
                    await asyncio.sleep(0.05)  # until the links are up
                assert list(spans) == [pubend_id(1), pubend_id(2), pubend_id(3)]
                span = spans[PUBEND]
                assert await numbers(client, PUBEND, 0, span.last) == list(range(3000))
                assert await numbers(client, PUBEND, 0, span.horizon, "n >= 2990") == list(range(2990, 3000))
                assert await numbers(client, PUBEND, span.last, span.horizon) == []
                assert await numbers(client, PUBEND, 5, 5) == []

    run(scenario)


def test_reading_goes_on_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    """The reader asks again from where it was; nothing is missing and nothing comes twice."""

    async def scenario() -> None:
        (port,) = free_ports(1)
        storage = Storage(keep_s=3600.0)
        config = NodeConfig(
            id=1, data_dir=str(tmp_path), listen=f"127.0.0.1:{port}", overlay=Overlay(silence_s=0.1), storage=storage
        )
        node = BrokerServer(config)
        await node.start()
        url = f"postroad://127.0.0.1:{port}"
        await publish(url, 0, 20_000, bulk=500)
        async with postroad.connect(url) as client:
            span = (await client.pubends())[PUBEND]
            found: list[int] = []
            async for batch in client.read(PUBEND, 0, span.last):
                if not found:
                    await node.stop()
                    node = BrokerServer(config)
                    await node.start()
                found += [int(message["n"]) for message in batch]
            assert found == list(range(20_000))
        await node.stop()

    run(scenario)


def test_released_ticks_are_a_gap_error(tmp_path: Path) -> None:
    """The error carries the ticks, and reading from there on works."""

    async def scenario() -> None:
        storage = Storage(segment_bytes=1 << 20, keep_s=0.0)
        config = NodeConfig(
            id=1,
            data_dir=str(tmp_path),
            listen="127.0.0.1:0",
            overlay=Overlay(silence_s=0.05, cache_bytes=1 << 20),
            storage=storage,
        )
        node = BrokerServer(config)
        await node.start()
        url = f"postroad://127.0.0.1:{node.port}"
        for first in range(0, 8000, 1000):
            await publish(url, first, 1000, bulk=1000)
        async with postroad.connect(url) as client:
            while (span := (await client.pubends())[PUBEND]).released == 0:  # noqa: ASYNC110  # the broker does it by and by
                await asyncio.sleep(0.05)
            with pytest.raises(GapError) as caught:
                await numbers(client, PUBEND, 0, span.last)
            assert (caught.value.pubend, caught.value.lo) == (PUBEND, 0)
            assert caught.value.hi >= span.released
            lo, rest = caught.value.hi, [-1]
            while rest == [-1]:
                try:
                    rest = await numbers(client, PUBEND, lo, span.last)
                except GapError as error:  # more was released meanwhile
                    lo = error.hi
            assert rest == list(range(8000 - len(rest), 8000))
        await node.stop()

    run(scenario)


def test_bad_questions_are_refused() -> None:
    """An unknown pubend, a filter with a mistake, ticks that will not be decided soon, a client that is closed."""

    async def scenario() -> None:
        with broker() as url:
            async with postroad.connect(url) as client:
                with pytest.raises(UnknownPubendError, match="pubend 6300"):
                    await numbers(client, pubend_id(99), 0, 10)
                with pytest.raises(FilterSyntaxError):
                    await numbers(client, PUBEND, 0, 10, "n >")
                with pytest.raises(UnfinishedError):
                    await anext(client.read(PUBEND, 0, (1 << 63) - 1, timeout=0.3))
            with pytest.raises(ClosedError):
                client.read(PUBEND, 0, 10)

    run(scenario)


def test_a_reader_may_stop_early_and_the_client_goes_on() -> None:
    """What was asked for and not taken is forgotten."""

    async def scenario() -> None:
        with broker() as url:
            async with postroad.connect(url) as client:
                subscription = await client.subscribe("")
                await publish(url, 0, 5000)
                span = (await client.pubends())[PUBEND]
                reading = client.read(PUBEND, 0, span.last)
                first = await anext(reading)
                await reading.aclose()  # type: ignore[attr-defined]  # an async generator
                assert len(first) > 0
                assert await numbers(client, PUBEND, 0, span.last, "n < 10") == list(range(10))
                await subscription.close()

    run(scenario)


def test_the_blocking_client_reads_too() -> None:
    """The same names, blocking."""
    with broker() as url, postroad.sync.connect(url) as client:
        subscription = client.subscribe("")
        publisher = client.publisher()
        publisher.publish_many([({"n": n}, b"x") for n in range(100)])
        publisher.flush()
        span = client.pubends()[PUBEND]
        assert [message["n"] for batch in client.read(PUBEND, 0, span.last) for message in batch] == list(range(100))
        subscription.close()
