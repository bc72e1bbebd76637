"""A connection that floods waits for itself: the others have their turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.waiting import until

from postroad.errors import BufferLimitError, WireError
from postroad.transport import channel as channels
from postroad.transport.channel import OWNER, Channel
from postroad.transport.outbox import OutboxLimits
from postroad.transport.turns import FRAMES_PER_SLICE, SLICES_PER_TURN, Turns
from postroad.wire.framing import Frame, encode_frame

TURN = FRAMES_PER_SLICE * SLICES_PER_TURN


class Owner:
    """Writes down whose frames are processed, and in which order."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order
        self.ids: list[int] = []
        self.ended = False

    def opened(self) -> None: ...

    def received(self, frames: Sequence[Frame]) -> None:
        self.order += [self.name] * len(frames)
        self.ids += [frame[1] for frame in frames]

    def malformed(self, error: WireError) -> None: ...

    def congested(self) -> None: ...

    def drained(self) -> None: ...

    def exceeded(self, error: BufferLimitError) -> None: ...

    def lost(self) -> None:
        self.ended = True


class FakeTransport(asyncio.Transport):
    """Remembers whether the connection is read."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def connection(name: str, order: list[str], turns: Turns) -> tuple[Channel, Owner, FakeTransport]:
    channel = Channel(asyncio.get_running_loop(), OutboxLimits(), ordered=True, turns=turns)
    owner, transport = Owner(name, order), FakeTransport()
    channel.owner = owner
    channel.connection_made(transport)
    return channel, owner, transport


def frames(count: int) -> bytes:
    return b"".join(b"".join(encode_frame(3, number, b"")) for number in range(1, count + 1))


def test_a_few_frames_of_another_do_not_wait_for_a_flood() -> None:
    """Between two frames of one client at most two turns of another are processed."""

    async def scenario() -> None:
        order: list[str] = []
        turns = Turns(asyncio.get_running_loop())
        flood, flooder, transport = connection("a", order, turns)
        other, polite, _ = connection("b", order, turns)
        flood.data_received(frames(20_000))
        assert not transport.reading
        for _ in range(10):
            other.data_received(frames(1))
            await asyncio.sleep(0)
        assert polite.ids == [1] * 10
        longest = max(map(len, "".join(order).split("b")))
        assert longest <= 2 * TURN
        await until(lambda: len(flooder.ids) == 20_000)
        assert flooder.ids == list(range(1, 20_001))
        await until(lambda: transport.reading)

    asyncio.run(scenario())


def test_two_that_flood_take_turns() -> None:
    """Neither is served before the other."""

    async def scenario() -> None:
        order: list[str] = []
        turns = Turns(asyncio.get_running_loop())
        first, one, _ = connection("a", order, turns)
        second, two, _ = connection("b", order, turns)
        first.data_received(frames(5_000))
        second.data_received(frames(5_000))
        await until(lambda: len(one.ids) == len(two.ids) == 5_000)
        assert max(map(len, "".join(order[:4_000]).split("b"))) <= 3 * TURN

    asyncio.run(scenario())


def test_what_was_received_waits_while_the_connection_is_not_read_for_another_reason() -> None:
    """A service that is full gets no more of the frames that came in the same read."""

    async def scenario() -> None:
        order: list[str] = []
        turns = Turns(asyncio.get_running_loop())
        channel, owner, transport = connection("a", order, turns)
        channel.data_received(frames(1_000))
        channel.pause(OWNER)
        await asyncio.sleep(0)
        before = len(owner.ids)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(owner.ids) == before < 1_000
        channel.resume(OWNER)
        await until(lambda: len(owner.ids) == 1_000)
        await until(lambda: transport.reading)

    asyncio.run(scenario())


def test_costly_frames_are_processed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a slice took long, the clock is looked at after each frame; quick frames come in slices again."""
    clock, cost_s = 0.0, 0.01
    monkeypatch.setattr(channels, "monotonic", lambda: clock)

    async def scenario() -> None:
        nonlocal clock, cost_s
        order: list[str] = []
        channel, owner, _ = connection("a", order, Turns(asyncio.get_running_loop()))
        take = owner.received

        def costly(frames: Sequence[Frame]) -> None:
            nonlocal clock
            clock += cost_s * len(frames)
            take(frames)

        monkeypatch.setattr(owner, "received", costly)
        channel.data_received(frames(1_000))
        channel.take_turn()
        for _ in range(10):
            before = len(order)
            channel.take_turn()
            assert len(order) == before + 1
        cost_s = 0.0
        channel.take_turn()
        before = len(order)
        channel.take_turn()
        assert len(order) == before + TURN

    asyncio.run(scenario())


def test_after_a_costly_frame_the_others_have_their_turn_before_more_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With uvloop the loop reads on at once while there is more: ten frames of 15 ms were processed in one turn of the loop."""
    clock = 0.0
    monkeypatch.setattr(channels, "monotonic", lambda: clock)

    async def scenario() -> None:
        order: list[str] = []
        channel, owner, transport = connection("a", order, Turns(asyncio.get_running_loop()))
        take = owner.received

        def costly(frames: Sequence[Frame]) -> None:
            nonlocal clock
            clock += 0.015
            take(frames)

        channel.data_received(frames(1))
        assert not channel._paused, "it was quick"
        monkeypatch.setattr(owner, "received", costly)
        channel.data_received(frames(1))
        assert not transport.reading
        await until(lambda: transport.reading)

    asyncio.run(scenario())


def test_a_connection_without_turns_is_read_on_after_a_costly_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has one connection: nobody waits for it."""
    clock = iter(range(1_000))
    monkeypatch.setattr(channels, "monotonic", lambda: float(next(clock)))

    async def scenario() -> None:
        channel = Channel(asyncio.get_running_loop(), OutboxLimits(), ordered=True)
        channel.owner, transport = Owner("a", []), FakeTransport()
        channel.connection_made(transport)
        channel.data_received(frames(1))
        assert transport.reading

    asyncio.run(scenario())
