"""Connections never take the descriptors that logs and links need."""

from __future__ import annotations

import asyncio
import resource
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.integration.brokers import config
from tests.waiting import until

import postroad
from postroad.runtime.config import Limits, Storage, dump_config
from postroad.runtime.connections import descriptors
from postroad.runtime.connections.descriptors import connections_within
from postroad.testing import free_ports
from postroad.transport.programs import own_command, own_environment
from postroad.wire.codec import decode
from postroad.wire.framing import FrameDecoder
from postroad.wire.packets.session import Error

DESCRIPTORS = 256
TOO_MANY = 330


@pytest.mark.parametrize(
    ("limit", "wanted", "links", "possible"),
    [(1 << 20, 10_000, 3, 10_000), (1_024, 10_000, 0, 896), (1_024, 10_000, 4, 888), (256, 10_000, 0, 192), (20, 10, 1, 1)],
)
def test_connections_get_what_the_rest_does_not_need(limit: int, wanted: int, links: int, possible: int) -> None:
    """The configured maximum counts where there is room for it."""
    assert connections_within(limit, wanted, links) == possible


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's default of 1,024 says nothing about what the machine can do."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: asked.append(limits))
    descriptors.raise_limit()
    assert asked == [(4_096, 4_096)]


def test_a_broker_with_few_descriptors_survives_many_connections(tmp_path: Path) -> None:
    """The surplus is refused with a typed error; the log gets new segments meanwhile, and there is room again afterwards."""
    (port,) = free_ports(1)
    settings = config(1, "small", port, tmp_path, [])
    settings = msgspec.structs.replace(settings, storage=Storage(segment_bytes=64 << 10), limits=Limits(handshake_s=60.0))
    file = tmp_path / "small.toml"
    file.write_text(dump_config(settings), encoding="utf-8")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            own_command("postroad.cli", "broker", "--config", str(file)),
            stdout=subprocess.PIPE,
            stderr=log,
            env=own_environment(),
        )
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))  # long before it looks
    try:
        assert process.stdout is not None
        assert b"listens on" in process.stdout.readline()
        asyncio.run(_crowd(port))
        assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")[-2000:]
        assert len(list((tmp_path / "small").rglob("*.segment"))) > 2
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()  # type: ignore[union-attr]


async def _crowd(port: int) -> None:
    async with postroad.connect(f"postroad://127.0.0.1:{port}") as client:
        publisher = client.publisher()
        writers, refused = [], 0
        for _ in range(TOO_MANY):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append((reader, writer))
        for reader, _ in writers:
            refused += await _is_refused(reader)
        assert refused >= TOO_MANY - DESCRIPTORS
        for number in range(40):
            await publisher.publish({"n": number}, bytes(20_000))
            await publisher.flush()
        for _, writer in writers:
            writer.transport.abort()
        opened = asyncio.Event()

        async def try_again() -> None:
            async with postroad.connect(f"postroad://127.0.0.1:{port}"):
                opened.set()

        task = asyncio.create_task(try_again())
        await until(opened.is_set)
        await task


async def _is_refused(reader: asyncio.StreamReader) -> bool:
    """Tell whether the broker has said that there are too many; the others wait for a hello."""
    try:
        async with asyncio.timeout(0.02):
            data = await reader.read(1 << 16)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    if data:
        error = decode(FrameDecoder().feed(data)[0])[0]
        assert isinstance(error, Error)
        assert (error.code, error.retryable) == (352, True)
    return True
