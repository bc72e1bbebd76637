"""One client, whatever it sends, ends at most its own connection: the broker lives, within its memory, and serves the others."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.brokers import BrokerProcess, config
from tests.runtime.raw_client import HELLO, assert_still_serves, error_of, raw, talk

import postroad
from postroad.core.broker.machine import Broker
from postroad.core.protocol import packets
from postroad.errors import ConfigError, HandshakeError, InternalError, TooManyConnectionsError
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig, parse_config
from postroad.runtime.connections import neighbours
from postroad.testing import broker, free_ports
from postroad.transport.channel import Channel
from postroad.wire.codec import decode
from postroad.wire.framing import FRAME_BYTES_MAX_LEAST, FrameDecoder
from postroad.wire.packets.session import Error, Hello, Ping, Role


def node_at(directory: Path, **changes: object) -> BrokerServer:
    return BrokerServer(NodeConfig(id=1, data_dir=str(directory), listen="127.0.0.1:0", log_level="error", **changes))  # type: ignore[arg-type]


# --- small frames ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_bytes_max", [0, 64, FRAME_BYTES_MAX_LEAST - 1])
def test_a_peer_that_takes_only_tiny_frames_is_refused(frame_bytes_max: int) -> None:
    """An error must fit into a frame, so a maximum below 64 KiB ends the handshake, and only that."""
    hello = Hello(1, 1, Role.CLIENT, 0, "tiny", frame_bytes_max=frame_bytes_max)
    with broker() as url:
        assert error_of(url, raw(hello) + raw(packets.Subscribe(1, "price >"), 2))[0] == HandshakeError.code
        assert_still_serves(url)


def test_the_least_maximum_of_a_frame_takes_every_error() -> None:
    """A peer that states the least allowed maximum gets its refusal and goes on."""
    hello = Hello(1, 1, Role.CLIENT, 0, "small", frame_bytes_max=FRAME_BYTES_MAX_LEAST)
    bad = "x" * 50_000 + " >"
    with broker() as url:
        frames = asyncio.run(talk(url, raw(hello) + raw(packets.Subscribe(1, bad), 2), wait_s=0.5))
        refusal = decode(frames[1])[0]
        assert isinstance(refusal, Error)
        assert refusal.code in {201, 202}
        assert_still_serves(url)


def test_a_broker_takes_no_smaller_maximum_from_its_file_than_from_a_peer() -> None:
    """A configured maximum that peers would refuse is refused when the file is read."""
    with pytest.raises(ConfigError, match="frame_bytes_max"):
        parse_config("id = 1\ndata_dir = 'x'\n[limits]\nframe_bytes_max = 65536\n", NodeConfig, "test")


# --- failures of our own ---------------------------------------------------------------------------------------------------


def test_an_order_that_cannot_be_carried_out_costs_only_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while an answer is sent closes that connection; the broker and its other clients go on."""
    send = Channel.send

    def broken(self: Channel, packet: object, *args: object, **kwargs: object) -> bool:
        if isinstance(packet, packets.PublisherOpened):
            raise OverflowError("planted")
        return send(self, packet, *args, **kwargs)  # type: ignore[arg-type]

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        async with postroad.connect(node.url) as other:
            monkeypatch.setattr(Channel, "send", broken)
            frames = await talk(node.url, raw(HELLO), raw(packets.OpenPublisher(), 2))
            monkeypatch.undo()
            error = decode(frames[-1])[0]
            assert isinstance(error, Error)
            assert error.code == InternalError.code
            await other.publisher().publish({"n": 1})
        assert node.failure is None
        assert node.stats()["internal_errors"] == 1
        await node.stop()

    asyncio.run(scenario())


def test_a_packet_on_which_the_machine_fails_costs_only_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that one packet reaches closes the connection it came by."""
    receive = Broker.receive

    def broken(self: Broker, message: object, **kwargs: object) -> None:
        if isinstance(message, packets.ListPubends):
            raise OverflowError("planted")
        receive(self, message, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Broker, "receive", broken)

    async def scenario() -> None:
        node = node_at(tmp_path)
        await node.start()
        error = decode((await talk(node.url, raw(HELLO), raw(packets.ListPubends(), 2)))[-1])[0]
        assert isinstance(error, Error)
        assert error.code == InternalError.code
        async with postroad.connect(node.url) as client:
            await client.publisher().publish({"n": 1})
        assert node.failure is None
        await node.stop()

    asyncio.run(scenario())


# --- links -----------------------------------------------------------------------------------------------------------------


def test_links_to_other_brokers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever claims to be one broker after the other does not make our link state too large for the others."""
    monkeypatch.setattr(neighbours, "NEIGHBOURS_MAX", 2)

    async def scenario() -> list[object]:
        node = node_at(tmp_path)
        await node.start()
        claims = [raw(Hello(1, 1, Role.BROKER, number, f"broker {number}", incarnation=1)) for number in (7, 8, 9)]
        talks = [asyncio.create_task(talk(node.url, claim, wait_s=0.5)) for claim in claims]
        first: list[object] = [decode((await task)[0])[0] for task in talks]
        await node.stop()
        return first

    refused = [packet.code for packet in asyncio.run(scenario()) if isinstance(packet, Error)]
    assert refused == [TooManyConnectionsError.code]


# --- floods ----------------------------------------------------------------------------------------------------------------


async def ping_times(port: int, count: int) -> list[float]:
    """Return how long the handshake took, and then each of so many pings, one after the other."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw(HELLO))
        decoder = FrameDecoder()
        while not decoder.feed(await reader.read(1 << 16)):
            pass
        times = [loop.time() - began]
        for number in range(count):
            began = loop.time()
            writer.write(raw(Ping(), number + 2))
            answered = False
            while not answered:
                answered = any(frame[1] == number + 2 for frame in decoder.feed(await reader.read(1 << 16)))
            times.append(loop.time() - began)
        return times
    finally:
        writer.transport.abort()


FLOOD = """
import socket, sys, threading, time
hello, ping = bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
end.sendall(hello)
threading.Thread(target=lambda: [None for _ in iter(lambda: end.recv(1 << 20), b"")], daemon=True).start()
began = time.monotonic()
while time.monotonic() < began + 1:
    end.sendall(ping * 20_000)
print("flooding", flush=True)
while True:
    end.sendall(ping * 20_000)
"""


def test_a_client_is_served_while_another_floods(tmp_path: Path) -> None:
    """A second of pipelined pings of another client costs a client that comes then milliseconds, not ten seconds."""
    (port,) = free_ports(1)
    with BrokerProcess(config(1, "victim", port, tmp_path, []), tmp_path) as running:
        before = asyncio.run(ping_times(port, 40))
        command = [sys.executable, "-c", FLOOD, str(port), raw(HELLO).hex(), raw(Ping(), 1).hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as flood:
            try:
                assert flood.stdout is not None
                assert flood.stdout.readline() == b"flooding\n"
                during = asyncio.run(ping_times(port, 40))
                flooded = flood.poll() is None
            finally:
                flood.kill()
        assert running.running
        assert sum(during) < 5.0, f"{max(during):.3f} s at most, and {max(before):.3f} s without the flood"
        assert flooded
