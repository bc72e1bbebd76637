"""A limited link keeps its average, and never delays control frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.waiting import until

from postroad.transport.bandwidth import BandwidthLimit
from postroad.transport.channel import Channel
from postroad.transport.outbox import OutboxLimits


def test_the_average_is_kept_for_frames_of_any_size() -> None:
    """A large frame leaves in one piece, and what follows waits for as long as it would have taken."""
    limit, now, sent = BandwidthLimit(10_000, 0.0), 0.0, 0
    for size in (100, 50_000, 1, 7_000, 300) * 20:
        now += limit.wait_s(now)
        assert not limit.wait_s(now)
        limit.take(size)
        sent += size
    assert sent - 50_000 <= 10_000 * now <= sent


def test_a_pause_saves_up_no_more_than_a_moment() -> None:
    """After an idle hour the link does not send an hour's worth at once."""
    limit = BandwidthLimit(10_000, 0.0)
    limit.wait_s(3600.0)
    limit.take(1_000)
    assert limit.wait_s(3600.0) > 0.05


class Sink(asyncio.Protocol):
    """Counts what arrives."""

    def __init__(self) -> None:
        self.data = bytearray()

    def data_received(self, data: bytes) -> None:
        self.data += data


class Owner:
    """An owner that only sends."""

    def opened(self) -> None:
        pass

    def lost(self) -> None:
        pass


def with_limited_channel(scenario: Callable[[Channel, Sink], Awaitable[None]], bytes_per_s: int) -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        sink = Sink()
        server = await loop.create_server(lambda: sink, "127.0.0.1", 0)
        channel = Channel(loop, OutboxLimits(), ordered=False)
        channel.owner = Owner()  # type: ignore[assignment]  # it hears nothing
        await loop.create_connection(lambda: channel, *server.sockets[0].getsockname())
        channel.limit_bandwidth(bytes_per_s)
        async with asyncio.timeout(20):
            await scenario(channel, sink)
        channel.abort()
        server.close()

    asyncio.run(whole())


def test_control_overtakes_data_that_waits() -> None:
    """An alert passes at once, though the data before it would take an hour."""

    async def scenario(channel: Channel, sink: Sink) -> None:
        channel.send_frame([b"d" * 100_000], control=False)
        channel.send_frame([b"e" * 100_000], control=False)
        await until(lambda: len(sink.data) == 100_000)
        channel.send_frame([b"control"], control=True)
        await until(lambda: sink.data.endswith(b"control"))
        assert channel.backlog == 100_000

    with_limited_channel(scenario, 100)


def test_what_waits_leaves_when_the_limit_ends() -> None:
    """An operator who lifts a limit does not wait for its debt."""

    async def scenario(channel: Channel, sink: Sink) -> None:
        for _ in range(3):
            channel.send_frame([b"d" * 100_000], control=False)
        await until(lambda: len(sink.data) == 100_000)
        channel.limit_bandwidth(0)
        await until(lambda: len(sink.data) == 300_000)
        assert channel.bandwidth_bytes_per_s == 0

    with_limited_channel(scenario, 100)


def test_data_goes_on_by_itself() -> None:
    """Nobody has to send anything for what waits to leave in its time."""

    async def scenario(channel: Channel, sink: Sink) -> None:
        for _ in range(10):
            channel.send_frame([b"d" * 10_000], control=False)
        await until(lambda: len(sink.data) == 100_000)

    with_limited_channel(scenario, 1_000_000)
