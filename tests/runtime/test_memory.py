"""Whatever clients and other brokers send or do not read, a broker's memory stays within its budget and others are served."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.integration.brokers import QUICK_LINKS, BrokerProcess, config
from tests.runtime.raw_client import HELLO, raw
from tests.waiting import until

import postroad
from postroad.core.broker.subscribing.range_reads import AT_ONCE_OF_A_CLIENT_MAX
from postroad.core.protocol import packets
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, NodeConfig, Tracking
from postroad.testing import free_ports
from postroad.wire.packets.session import Hello, Ping, Role

MIB = 1 << 20
BUDGET_BYTES = 64 * MIB
OVERHEAD_BYTES = 320 * MIB  # of the interpreter: copies on their way, caches, memory the allocator keeps


class Hostile:
    """Connections that send and do not read, until the broker ends them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, *, limit: int = 1 << 10) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=limit)
        self._writers.append(writer)
        return reader, writer

    async def flood(self, hello: Hello, data: bytes, times: int = 1) -> None:
        """Send in the background, as fast as it is taken."""
        reader, writer = await self.connect()

        async def send() -> None:
            try:
                writer.write(raw(hello))
                await reader.read(1)  # we are known now
                for _ in range(times):
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass

        self._tasks.append(asyncio.create_task(send()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def hostile(port: int) -> AsyncIterator[Hostile]:
    clients = Hostile(port)
    try:
        yield clients
    finally:
        await clients.end()


def rss_bytes(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


async def watch(broker: BrokerProcess, client: postroad.Client, seconds: float) -> int:
    """Publish and receive with a good client for a while; return the most memory that the broker took meanwhile."""
    subscription = await client.subscribe("alive = TRUE")
    publisher = client.publisher()
    most, loop = 0, asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await publisher.publish({"alive": True})
        async with asyncio.timeout(20):
            await anext(subscription)
        most = max(most, rss_bytes(broker))
        await asyncio.sleep(0.02)
    return most


def attack(
    directory: Path, how: Callable[[Hostile, postroad.Client], Awaitable[None]], seconds: float = 3.0, **limits: int
) -> None:
    """Attack a broker for a few seconds; it must live, serve, and keep to its budget."""
    (port,) = free_ports(1)
    bounds = Limits(buffers_bytes_max=BUDGET_BYTES, **limits)
    settings = config(1, "victim", port, directory, [], limits=bounds, tracking=Tracking(strategy="null"))
    settings = msgspec.structs.replace(settings, links=msgspec.structs.replace(QUICK_LINKS, backlog_control_bytes=16 * MIB))

    async def scenario(broker: BrokerProcess) -> tuple[int, int]:
        async with postroad.connect(broker.url) as client, hostile(port) as clients:
            before = await watch(broker, client, 0.3)
            await how(clients, client)
            return before, await watch(broker, client, seconds)

    with BrokerProcess(settings, directory) as broker:
        before, most = asyncio.run(scenario(broker))
        assert broker.running
        assert most - before < BUDGET_BYTES + OVERHEAD_BYTES, f"{(most - before) // MIB} MiB more"


def test_unfinished_frames_share_a_budget(tmp_path: Path) -> None:
    """Forty peers that promise 16 MiB each and send all but the end get room one after the other."""

    async def unfinished(clients: Hostile, _client: postroad.Client) -> None:
        frame = struct.pack(">IHI", 16 * MIB, 0x0203, 1) + bytes(16 * MIB - 100)
        for _ in range(40):
            await clients.flood(HELLO, frame)

    attack(tmp_path, unfinished, 6.0)


def test_answers_that_are_not_read_share_a_budget(tmp_path: Path) -> None:
    """Ranges of the log asked for by peers that read none of them."""

    async def unread(clients: Hostile, client: postroad.Client) -> None:
        publisher = client.publisher()
        for number in range(400):
            await publisher.publish({"n": number}, bytes(50_000))
        await publisher.flush()
        ask = raw(packets.ReadRange(pubend_id(1), "", 0, (1 << 63) - 1, bare=False), 2)
        for _ in range(60):
            await clients.flood(HELLO, ask * 100, 20)

    attack(tmp_path, unread)


def test_pongs_that_are_not_read_share_a_budget(tmp_path: Path) -> None:
    """Millions of tiny answers take more memory than their bytes."""

    async def pings(clients: Hostile, _client: postroad.Client) -> None:
        for _ in range(20):
            await clients.flood(HELLO, raw(Ping(), 2) * 10_000, 100)

    attack(tmp_path, pings)


def test_control_packets_that_a_link_does_not_read_cut_it(tmp_path: Path) -> None:
    """A neighbour that announces thousands of pubends and reads nothing is sent our interest in each, up to the bound."""

    async def unread_link(clients: Hostile, client: postroad.Client) -> None:
        await client.subscribe(f"text = '{'x' * 50_000}'")
        hello = Hello(1, 1, Role.BROKER, 9, "mute", incarnation=1)
        others = range(100, 120)
        states = [packets.LinkState(9, 1, 1, [(1, 1), *((each, 1) for each in others)], [])]
        states += [packets.LinkState(each, 1, 1, [(9, 1)], [each << 8 | place for place in range(256)]) for each in others]
        await clients.flood(hello, b"".join(map(raw, states)))

    attack(tmp_path, unread_link)


RANGE = packets.ReadRange(pubend_id(1), "n <> 7", 0, (1 << 63) - 1, bare=False)


@pytest.mark.parametrize("request_", [Ping(), RANGE], ids=["pings", "ranges"])
def test_a_peer_that_does_not_read_is_not_read_either(request_: msgspec.Struct, tmp_path: Path) -> None:
    """Its requests wait at its own end once a few megabytes of answers wait at ours."""

    async def scenario() -> None:
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0"))
        await node.start()
        async with postroad.connect(node.url) as client:
            publisher = client.publisher()
            for number in range(40):
                await publisher.publish({"n": number}, bytes(50_000))
        async with hostile(node.port) as clients:
            await clients.flood(HELLO, raw(request_, 2) * 10_000, 1_000)
            await until(lambda: any(not peer.channel.reading for peer in node.peers.values()), 20.0)
            (peer,) = (peer for peer in node.peers.values() if not peer.channel.reading)
            assert peer.channel.unread
            under_way = AT_ONCE_OF_A_CLIENT_MAX * 2 * MIB  # the log is read for so many of its requests, two megabytes for each
            assert node.budget.held < 8 * MIB + under_way
        await node.stop()

    asyncio.run(scenario())
