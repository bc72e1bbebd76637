"""Real broker processes for tests, and a proxy that breaks the links between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Self

from postroad.runtime.config import Links, Neighbour, NodeConfig, Overlay, Storage
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports

__all__ = ["QUICK_LINKS", "QUICK_OVERLAY", "BrokerProcess", "FaultProxy", "config"]

QUICK_LINKS = Links(heartbeat_s=0.3, timeout_s=2.5, retry_s=0.05, retry_s_max=0.5)
QUICK_OVERLAY = Overlay(silence_s=0.2, subscriber_grace_s=30.0)


def config(number: int, name: str, port: int, directory: Path, neighbours: list[int], **changes: object) -> NodeConfig:
    return NodeConfig(
        id=number,
        name=name,
        listen=f"127.0.0.1:{port}",
        data_dir=str(directory / name),
        neighbours=tuple(Neighbour(address=f"127.0.0.1:{each}") for each in neighbours),
        links=QUICK_LINKS,
        overlay=QUICK_OVERLAY,
        storage=Storage(),
        **changes,  # type: ignore[arg-type]  # a test's own choice of keys
    )


class FaultProxy:
    """Stands between two brokers on one link; `cut` breaks it, `heal` lets it work again."""

    def __init__(self, target_port: int) -> None:
        self.port = free_ports(1)[0]
        self._target_port = target_port
        self._whole = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Drop the connections there are and refuse new ones."""
        self._whole = False
        for writer in list(self._writers):
            writer.transport.abort()

    def heal(self) -> None:
        self._whole = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        try:
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward_writer}
        for source, target in ((reader, onward_writer), (onward_reader, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        self._writers.discard(writer)
        writer.transport.abort()


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Wait for something another process does."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
