"""Whatever a peer sends, it gets a typed error, the broker stays up, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.runtime.raw_client import HELLO, answers, assert_still_serves, error_of, raw, talk

import postroad
import postroad.sync
from postroad.core.protocol import packets
from postroad.errors import (
    DurableBusyError,
    DurableFilterError,
    FilterSyntaxError,
    InvalidValueError,
    MalformedPacketError,
    NotConnectedError,
    ProtocolVersionError,
    PublishRefusedError,
    StorageFullError,
)
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import Limits, NodeConfig
from postroad.storage.segment.disk import Disk
from postroad.testing import broker
from postroad.wire.codec import decode, encode
from postroad.wire.packets.session import Error, Hello, Ping, Pong, Role, Welcome


@pytest.fixture
def url() -> Iterator[str]:
    with broker() as address:
        yield address


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">IHI", 5, 1, 1), 301),  # shorter than its own header
        (b"GET / HTTP/1.1\r\n\r\n", 302),  # read as a length, that is a very large frame
        (struct.pack(">IHI", 1 << 20, 0x0101, 1), 302),  # too large before the hello
        (struct.pack(">IHI", 10, 0x7777, 9), 303),  # no such method
        (struct.pack(">IHI", 13, 0x0101, 1) + b"\xff\xff\xff", 304),  # no hello at all
        (raw(packets.OpenPublisher()), 306),  # before the hello
        (raw(Hello(90, 99, Role.CLIENT, 0, "future")), 307),
        (raw(HELLO) + raw(HELLO, 2), 351),
        (raw(Hello(1, 1, Role.BROKER, 0, "nobody")), 351),  # 0 stands for no broker
        (raw(HELLO) + struct.pack(">IHI", 1 << 30, 0x0203, 1), 302),  # too large after it, too
        (raw(HELLO) + struct.pack(">IHI", 14, 0x0211, 7) + b"\x91\xc0ab", 304),
        (raw(HELLO) + raw(packets.Nack(1, 1, []), 3), 305),  # only brokers may
    ],
)
def test_bytes_that_break_the_protocol_get_an_error_and_an_end(url: str, data: bytes, code: int) -> None:
    """The code is stable and tells what was wrong; others do not notice."""
    assert error_of(url, data)[0] == code
    assert_still_serves(url)


def test_an_unknown_packet_of_a_client_gets_an_error_and_an_end(url: str) -> None:
    """A client uses only what the broker has named, so an unknown method is a fault."""
    assert error_of(url, raw(HELLO), struct.pack(">IHI", 11, 0x02FF, 7) + b"\x90") == (303, 7)
    assert_still_serves(url)


def test_an_unknown_packet_of_a_neighbour_is_left_out_and_the_link_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A neighbour of a newer release may send kinds of packets that this one does not know; its known ones are taken."""
    unknown = struct.pack(">IHI", 13, 0x03FF, 0) + b"\x91\xa1x"
    hello = Hello(1, 1, Role.BROKER, 2, "newer", incarnation=1)
    state = packets.LinkState(2, 1, 1, [(1, 1)], [packets.pubend_id(2)])

    async def scenario() -> None:
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0"))
        await node.start()
        frames = await talk(node.url, raw(hello), unknown + raw(state) + unknown, raw(Ping(), 9), wait_s=0.5)
        kinds = [type(decode(frame)[0]) for frame in frames]
        assert Error not in kinds
        assert kinds[-1] is Pong
        assert node.stats()["unknown_packets"] == 2
        assert packets.pubend_id(2) in node.stats()["streams"]  # type: ignore[operator]
        await node.stop()

    with caplog.at_level("WARNING"):
        asyncio.run(scenario())
    assert sum("0x03ff" in record.message for record in caplog.records) == 1


def test_a_batch_that_is_none_gets_an_error_and_an_end(url: str) -> None:
    """Columns of a hostile publisher are checked before the machine sees them."""
    body = b"".join(encode(packets.PublishColumns(0), 5, [b"\xff" * 64]))
    assert error_of(url, raw(HELLO), raw(packets.OpenPublisher(), 2), body) == (102, 5)
    assert_still_serves(url)


def test_an_error_before_it_does_not_spoil_a_sound_request(url: str) -> None:
    """Sound frames that stand before a malformed one are answered."""
    replies = answers(url, raw(HELLO) + raw(Ping(), 2) + struct.pack(">IHI", 3, 0, 0))
    assert [type(reply) for reply, _ in replies] == [Welcome, Pong, Error]


def test_a_peer_that_says_nothing_is_sent_away(tmp_path: Path) -> None:
    """A connection without a hello ends after the configured time."""

    async def scenario() -> tuple[msgspec.Struct, int]:
        limits = Limits(handshake_s=0.2)
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", limits=limits))
        await node.start()
        frames = await talk(f"postroad://127.0.0.1:{node.port}")
        await node.stop()
        return decode(frames[0])[:2]

    error, _ = asyncio.run(scenario())
    assert isinstance(error, Error)
    assert error.code == 351


def test_connections_beyond_the_maximum_are_refused(tmp_path: Path) -> None:
    """The one that is too many hears why, and there is room again when another leaves."""

    async def scenario() -> None:
        limits = Limits(connections_max=1)
        node = BrokerServer(NodeConfig(id=1, data_dir=str(tmp_path), listen="127.0.0.1:0", limits=limits))
        await node.start()
        url = f"postroad://127.0.0.1:{node.port}"
        async with postroad.connect(url):
            (frame,) = await talk(url)
            refusal = decode(frame)[0]
            assert isinstance(refusal, Error)
            assert (refusal.code, refusal.retryable) == (352, True)
        async with postroad.connect(url):
            pass
        await node.stop()

    asyncio.run(scenario())


def test_a_client_hears_that_versions_differ(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """The error is typed at the client too."""
    monkeypatch.setattr("postroad.client.link.PROTOCOL_VERSION", 9)
    monkeypatch.setattr("postroad.client.link.PROTOCOL_VERSION_OLDEST", 8)
    config = postroad.ClientConfig(connect_s=0.5)
    with pytest.raises(NotConnectedError, match="no common protocol version"), postroad.sync.connect(url, config):
        pass
    assert ProtocolVersionError.code == 307


def test_a_filter_that_does_not_parse_is_refused_at_either_end(url: str) -> None:
    """Our client sees it before it asks; a broker that is asked anyway answers with the same code and the connection lives."""
    with postroad.sync.connect(url) as client, pytest.raises(FilterSyntaxError, match="position 7"):
        client.subscribe("price >")
    replies = answers(url, raw(HELLO), raw(packets.Subscribe(1, "price >"), 2), raw(Ping(), 3), wait_s=0.5)
    refusal, packet_id = replies[1]
    assert isinstance(refusal, Error)
    assert (refusal.code, packet_id) == (201, 2)
    assert isinstance(replies[2][0], Pong)


def test_an_attribute_of_an_unsupported_type_is_refused_at_either_end(url: str) -> None:
    """Our client raises at once; a broker answers a client that sends it all the same with an error, and serves the others."""
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        with pytest.raises(InvalidValueError, match="'when'"):
            publisher.publish({"when": [2026]})  # type: ignore[dict-item]
        publisher.publish({"when": 2026})
        publisher.flush()

    async def hostile() -> list[msgspec.Struct]:
        opened = decode((await talk(url, raw(HELLO), raw(packets.OpenPublisher(), 2), wait_s=0.5))[1])[0]
        assert isinstance(opened, packets.PublisherOpened)
        publisher = opened.publisher + 1  # ids are given out in order

        def message(counter: int, value: object) -> tuple[bytes, dict[str, object], bytes]:
            return struct.pack(">IIQ", publisher, 1, counter), {"x": value}, b""

        publish = packets.Publish(publisher, [message(1, [1, 2]), message(2, 5)])  # type: ignore[list-item]
        frames = await talk(url, raw(HELLO), raw(packets.OpenPublisher(), 2), raw(publish, 3), wait_s=1.0)
        return [decode(frame)[0] for frame in frames]

    replies = asyncio.run(hostile())
    assert any(isinstance(reply, Error) and reply.code == MalformedPacketError.code for reply in replies)
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        publisher.publish({"when": b"bytes travel apart"})
        publisher.flush()


def test_a_second_client_with_the_same_durable_name_is_refused(url: str) -> None:
    """The first keeps the subscription; when it leaves, the second may have it, with the same filter only."""
    with postroad.sync.connect(url) as first, postroad.sync.connect(url) as second:
        held = first.subscribe("x > 1", name="orders")
        with pytest.raises(DurableBusyError):
            second.subscribe("x > 1", name="orders")
        held.close()
        with pytest.raises(DurableFilterError):
            second.subscribe("x > 2", name="orders")
        second.subscribe("x > 1", name="orders").close(forget=True)


def publish_until_taken(publisher: postroad.sync.Publisher, attributes: dict[str, int]) -> None:
    """Publish again while the broker says that there is no room: it looks for some once a second."""
    for _ in range(100):
        publisher.publish(attributes)
        try:
            publisher.flush(10)
        except PublishRefusedError as refused:
            if not refused.retryable:
                raise
            time.sleep(0.1)
        else:
            return
    pytest.fail("the broker refuses although there is room")


def test_a_full_disk_refuses_messages_and_loses_none_that_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The publisher hears a typed error, the broker stays up, and takes messages again when there is room."""
    full = False
    write = Disk.write

    def limited(self: Disk, descriptor: int, buffers: list[bytes], offset: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        write(self, descriptor, buffers, offset)

    monkeypatch.setattr(Disk, "write", limited)
    with broker(data_dir=tmp_path) as url, postroad.sync.connect(url) as client:
        publisher = client.publisher()
        publisher.publish({"n": 1})
        publisher.flush()
        full = True
        publisher.publish({"n": 2})
        with pytest.raises(PublishRefusedError) as caught:
            publisher.flush(10)
        assert caught.value.cause.code == StorageFullError.code
        full = False
        publish_until_taken(publisher, {"n": 3})
    with broker(data_dir=tmp_path) as url, postroad.sync.connect(url) as client:
        subscription = client.subscribe(start="earliest")
        assert [next(subscription)["n"] for _ in range(2)] == [1, 3]


def test_a_refusal_that_has_just_come_is_raised_by_a_flush(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not outstanding any more, and nobody was told of it yet."""

    def full(_disk: Disk, _descriptor: int, _buffers: list[bytes], _offset: int) -> None:
        raise OSError(28, "No space left on device")

    async def scenario(url: str) -> None:
        async with asyncio.timeout(20), postroad.connect(url) as client:
            publisher = client.publisher()
            await publisher.publish({"n": 1})
            await publisher.flush()
            monkeypatch.setattr(Disk, "write", full)
            await publisher.publish({"n": 2})
            monkeypatch.setattr(client, "_link_arrived", lambda: None)  # the moment before it is told
            while publisher.outstanding:  # noqa: ASYNC110  # what changes it is the broker's answer
                await asyncio.sleep(0.001)
            with pytest.raises(PublishRefusedError):
                await publisher.flush()
            monkeypatch.undo()

    with broker(data_dir=tmp_path) as url:
        asyncio.run(scenario(url))
