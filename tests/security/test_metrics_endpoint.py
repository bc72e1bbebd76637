"""The metrics endpoint where others reach it: TLS, the token of an administrator, and few connections at a time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.security.guarded import Guard, guarded_node
from tests.waiting import until

from postroad.metrics import REQUESTS_OF_ADDRESS_MAX, MetricsService
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, Metrics
from postroad.security.tls import broker_uri


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    guard = Guard(tmp_path)
    guard.identity("ops", admin=True)
    guard.identity("shop", publish=True, subscribe=True, trace=True)
    return guard


@asynccontextmanager
async def served(guard: Guard) -> AsyncIterator[tuple[BrokerServer, MetricsService]]:
    metrics = MetricsService("0.0.0.0:0", None)
    node = guarded_node(guard, guard.directory, services=(metrics,), metrics=Metrics(listen="0.0.0.0:0"))
    await node.start()
    try:
        yield node, metrics
    finally:
        await node.stop()


async def scrape(guard: Guard, port: int, token: str = "") -> tuple[bytes, int]:
    """Ask for the metrics; return the answer and the serial number of the certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=guard.context())
    serial = int(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"], 16)
    header = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET /metrics HTTP/1.1\r\n{header}\r\n".encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer, serial


def test_only_an_administrator_reads_the_metrics(guard: Guard) -> None:
    async def scenario() -> None:
        async with served(guard) as (node, metrics):
            for token in ("", guard.tokens["shop"], "prt_nonsense"):
                assert (await scrape(guard, metrics.port, token))[0].startswith(b"HTTP/1.1 401")
            answer, before = await scrape(guard, metrics.port, guard.tokens["ops"])
            assert answer.startswith(b"HTTP/1.1 200")
            for name in Limits.__struct_fields__:
                assert f'postroad_limit{{limit="{name}"}}'.encode() in answer
            assert not any(token.encode() in answer for token in guard.tokens.values())
            guard.certificate(broker_uri(1), "broker-1")
            node.reload_certificates()
            assert (await scrape(guard, metrics.port))[1] != before
            plain, writer = await asyncio.open_connection("127.0.0.1", metrics.port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"postroad" not in await plain.read()
            writer.close()

    asyncio.run(scenario())


def test_half_handshakes_are_not_kept(guard: Guard) -> None:
    """Each would hold a quarter of a mebibyte and a descriptor. Another address is served meanwhile."""

    async def scenario() -> None:
        async with served(guard) as (_, metrics):
            address, source = ("127.0.0.1", metrics.port), ("127.0.0.9", 0)
            flood = [await asyncio.to_thread(socket.create_connection, address, 10.0, source) for _ in range(60)]
            try:
                await until(lambda: len(metrics.requests) == REQUESTS_OF_ADDRESS_MAX)
                answer, _ = await scrape(guard, metrics.port, guard.tokens["ops"])
                assert answer.startswith(b"HTTP/1.1 200")
            finally:
                for each in flood:
                    each.close()
            await until(lambda: not metrics.requests)

    asyncio.run(scenario())
