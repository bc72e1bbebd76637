"""A client that sends whatever bytes it is told to."""

from __future__ import annotations

import asyncio

import msgspec

import postroad.sync
from postroad.wire.codec import decode, encode
from postroad.wire.framing import Frame, FrameDecoder
from postroad.wire.packets.session import Error, Hello, Role

HELLO = Hello(1, 1, Role.CLIENT, 0, "test")


async def talk(url: str, *sends: bytes, wait_s: float = 5.0) -> list[Frame]:
    """Send raw bytes and return the frames that came until the broker closed the connection or went quiet."""
    host, port = url.removeprefix("postroad://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    decoder, frames = FrameDecoder(), []
    try:
        for data in sends:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.05)
        async with asyncio.timeout(wait_s):
            while data := await reader.read(1 << 16):
                frames += decoder.feed(data)
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.transport.abort()
    return frames


def raw(packet: msgspec.Struct, packet_id: int = 1) -> bytes:
    return b"".join(encode(packet, packet_id))


def answers(url: str, *sends: bytes, wait_s: float = 5.0) -> list[tuple[msgspec.Struct, int]]:
    return [decode(frame)[:2] for frame in asyncio.run(talk(url, *sends, wait_s=wait_s))]


def error_of(url: str, *sends: bytes) -> tuple[int, int]:
    """Return the code of the error the broker closed the connection with, and the packet it answers."""
    last, packet_id = answers(url, *sends)[-1]
    assert isinstance(last, Error)
    return last.code, packet_id


def assert_still_serves(url: str) -> None:
    with postroad.sync.connect(url) as client:
        publisher = client.publisher()
        subscription = client.subscribe("alive = TRUE")
        publisher.publish({"alive": True}, b"yes")
        assert next(iter(subscription)).payload == b"yes"
