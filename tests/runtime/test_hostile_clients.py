"""One client, whatever it sends, ends at most its own connection: the broker lives, within its memory, and serves the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.runtime.raw_client import HELLO, assert_still_serves, error_of, raw, talk

import postroad
from postroad.core import packets
from postroad.core.broker import Broker
from postroad.errors import ConfigError, HandshakeError, InternalError
from postroad.runtime.config import NodeConfig, parse_config
from postroad.runtime.node import Node
from postroad.testing import broker
from postroad.transport.channel import Channel
from postroad.wire.codec import decode
from postroad.wire.framing import FRAME_BYTES_MAX_LEAST
from postroad.wire.packets.session import Hello, Role
from postroad.wire.packets.telesto import Error


def node_at(directory: Path, **changes: object) -> Node:
    return Node(NodeConfig(id=1, data_dir=str(directory), listen="127.0.0.1:0", log_level="error", **changes))  # type: ignore[arg-type]


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
