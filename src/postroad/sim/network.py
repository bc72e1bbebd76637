"""Cables and connections.

A *cable* joins two peers (two brokers, or a client and a broker) with a latency, jitter and bandwidth; it can be cut, healed
and squeezed. Over a cable that works there is at most one *connection*, which behaves as TCP does: each direction is a FIFO
of bytes, and when it breaks, what was on the way arrives up to some byte and no further. Each end gets a link id that is never
used again.

In front of each direction stands a backlog with two priorities. Control frames overtake data frames there (not on the wire).
A data frame that would take the backlog of a cable between brokers over its bound is dropped; a control frame never is, unless
the guard is off. Clients' cables drop nothing: the broker is told when the backlog passes its high mark, and again when it has
fallen under its low mark, and holds back the rows itself.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from postroad.sim.world import World

SPLIT_ONE_IN: Final = 8  # this share of frames arrives in two pieces
RESET_DELAY_S_MAX: Final = 0.05  # a peer's death is heard of quickly, a cut only by silence


@dataclass(frozen=True, slots=True)
class CableProfile:
    """What a cable can do."""

    latency_s: float = 0.002
    jitter_s: float = 0.0
    bytes_per_s: float = 10e6
    backlog_bytes_max: int = 256 * 1024
    drops_data: bool = True  # else the sender is told when to hold back
    silence_s_max: float = 1.0  # a cut is noticed within this time
    redial_s_max: float = 0.3


class Peer(Protocol):
    """What stands at the end of a cable."""

    @property
    def alive(self) -> bool: ...

    def connected(self, end: End) -> None:
        """Take note of a new connection; its id is `end.link`."""

    def received(self, end: End, data: bytes) -> None:
        """Take bytes."""

    def disconnected(self, end: End) -> None:
        """Take note that the connection is gone. Not called on a peer that died itself."""

    def held_back(self, end: End, congested: bool) -> None:
        """Take note that the backlog passed its high mark, or fell under its low mark."""


class End:
    """One end of a connection: where one peer sends and hears."""

    __slots__ = ("_busy_until", "_control", "_data", "_in_flight", "_last_arrival", "_pumping", "bytes_per_s_max",
                 "cable", "congested", "dropped",
                 "far", "link", "open", "paused", "peer", "queued", "queued_data", "sent", "told", "wired")  # fmt: skip

    def __init__(self, cable: Cable, peer: Peer, link: int) -> None:
        self.cable = cable
        self.peer = peer
        self.link = link
        self.far: End = self
        self.open = True  # the peer has not heard of its end
        self.wired = True  # bytes still pass
        self.told = False  # the peer knows of the connection
        self.bytes_per_s_max = float("inf")  # the sender's own limit
        self.paused = False  # the far peer does not read
        self.congested = False
        self.queued = 0
        self.queued_data = 0
        self.sent = 0  # bytes that have left
        self.dropped = 0
        self._control: deque[bytes] = deque()
        self._data: deque[bytes] = deque()
        self._in_flight: deque[tuple[float, bytes]] = deque()
        self._busy_until = 0.0
        self._last_arrival = 0.0
        self._pumping = False

    def send(self, frame: bytes, *, data: bool = False) -> bool:
        """Queue a frame; return False when it was dropped."""
        if not self.wired:
            return True  # lost with the connection, as bytes in a dead socket's buffer are
        cable, world = self.cable, self.cable.world
        if not self.queued and not self.paused and world.now >= self._busy_until:
            self._launch(frame)
            return True
        if self._overflows(len(frame), data):
            self.dropped += 1
            cable.network.dropped += 1
            return False
        (self._data if data and cable.profile.drops_data else self._control).append(frame)
        self.queued += len(frame)
        self.queued_data += len(frame) if data else 0
        self._mark()
        self._pump()
        return True

    def _overflows(self, size: int, data: bool) -> bool:
        """Tell whether a frame must be dropped. One that meets an empty backlog is taken, whatever its size."""
        profile = self.cable.profile
        if not profile.drops_data:
            return False
        return data and self.queued_data > 0 and self.queued_data + size > profile.backlog_bytes_max

    def pause(self, paused: bool) -> None:
        """Stop or go on taking bytes from the backlog: the far peer stopped reading, or reads again."""
        self.paused = paused
        self._pump()

    def _pump(self) -> None:
        if not self._pumping and self.queued and not self.paused and self.wired:
            self._pumping = True
            self.cable.world.at(self._busy_until, self._next)

    def _next(self) -> None:
        self._pumping = False
        if not self.wired or self.paused or not self.queued:
            return
        if self.cable.world.now < self._busy_until:
            self._pump()
            return
        data = not self._control
        frame = self._data.popleft() if data else self._control.popleft()
        self.queued -= len(frame)
        self.queued_data -= len(frame) if data else 0
        self._launch(frame)
        self._mark()
        self._pump()

    def _mark(self) -> None:
        if self.cable.profile.drops_data:
            return
        high = self.cable.profile.backlog_bytes_max
        if not self.congested and self.queued > high:
            self.congested = True
            self.peer.held_back(self, congested=True)
        elif self.congested and self.queued <= high // 2:
            self.congested = False
            self.peer.held_back(self, congested=False)

    def _launch(self, frame: bytes) -> None:
        cable, world = self.cable, self.cable.world
        self._busy_until = max(world.now, self._busy_until) + len(frame) / min(cable.bytes_per_s, self.bytes_per_s_max)
        jitter = cable.chance.random() * cable.profile.jitter_s
        arrival = max(self._last_arrival, self._busy_until + cable.profile.latency_s + jitter)
        self._last_arrival = arrival
        self._in_flight.append((arrival, frame))
        cable.bytes_sent += len(frame)
        self.sent += len(frame)
        world.at(arrival, self._arrive)

    def _arrive(self) -> None:
        far = self.far
        if not self._in_flight or self._in_flight[0][0] > self.cable.world.now:
            return  # lost, or sped up and arrived before
        _, frame = self._in_flight.popleft()
        if not far.open or not far.peer.alive:
            return
        self.cable.world.trace(frame)
        if self.cable.chance.randrange(SPLIT_ONE_IN) == 0 and len(frame) > 1:
            cut = self.cable.chance.randrange(1, len(frame))
            far.peer.received(far, frame[:cut])
            if far.open and far.peer.alive:  # type: ignore[redundant-expr]  # taking the first part may have closed it
                far.peer.received(far, frame[cut:])
        else:
            far.peer.received(far, frame)

    def speed_up(self, factor: float) -> None:
        """Finish the frame in transmission as many times faster."""
        world = self.cable.world
        if not self.wired or self._busy_until <= world.now or not self._in_flight:
            return
        saved = (self._busy_until - world.now) * (1 - 1 / factor)
        arrival, frame = self._in_flight.pop()
        before = self._in_flight[-1][0] if self._in_flight else world.now
        self._busy_until -= saved
        self._last_arrival = max(before, arrival - saved)
        self._in_flight.append((self._last_arrival, frame))
        world.at(self._last_arrival, self._arrive)
        self._pumping = False
        self._pump()

    def break_off(self, deliver: int) -> None:
        """Lose the backlog and all that is on the way but the first `deliver` frames; of the next, a piece arrives."""
        self.wired = False
        self._control.clear()
        self._data.clear()
        self.queued = self.queued_data = 0
        kept = list(self._in_flight)[:deliver]
        torn = list(self._in_flight)[deliver : deliver + 1]
        self._in_flight = deque(kept)
        for arrival, frame in torn:
            if len(frame) > 1:
                self._in_flight.append((arrival, frame[: self.cable.chance.randrange(1, len(frame))]))

    @property
    def on_the_way(self) -> int:
        return len(self._in_flight)


class Connection:
    """Two ends, joined until broken."""

    __slots__ = ("a", "b", "broken")

    def __init__(self, a: End, b: End) -> None:
        a.far, b.far = b, a
        self.a, self.b = a, b
        self.broken = False


class Cable:
    """Where two peers may connect. `a` dials."""

    def __init__(self, network: Network, a: Peer, b: Peer, profile: CableProfile, name: str) -> None:
        self.network = network
        self.world = network.world
        self.a, self.b = a, b
        self.profile = profile
        self.name = name
        self.chance: random.Random = network.world.chance(f"cable/{name}")
        self.bytes_per_s = profile.bytes_per_s
        self.wanted = True  # the dialling side wants a connection
        self.is_cut = False
        self.is_removed = False
        self.connection: Connection | None = None
        self.bytes_sent = 0  # in both directions
        self._dialling = False

    # --- what happens to a cable

    def dial(self, delay: float | None = None) -> None:
        """Begin to connect, now or after a back-off; does nothing when one is being made."""
        if self._dialling or self.connection is not None or not self.wanted:
            return
        self._dialling = True
        wait = self.chance.uniform(0.01, self.profile.redial_s_max) if delay is None else delay
        self.world.after(wait, self._finish_dial)

    def cut(self) -> None:
        """Break it: nothing passes, and each end notices by silence, in its own time."""
        self.is_cut = True
        self._break(self.profile.silence_s_max)

    def remove(self) -> None:
        """Cut it for good."""
        self.is_removed = True
        self.cut()

    def heal(self) -> None:
        if self.is_removed:
            return
        if self.connection is not None:
            self.connection.a.pause(False)
            self.connection.b.pause(False)
        if self.is_cut:
            self.is_cut = False
            self.dial()

    def break_for_one(self, seconds: float) -> None:
        """Break the connection so that one end hears of it at once and the other only after a while: half-open."""
        self._break(RESET_DELAY_S_MAX, far_notice_s=seconds)

    def stall(self, seconds: float) -> None:
        """Let nothing pass in one direction for a while; longer than the silence that is borne, and the connection breaks."""
        connection = self.connection
        if connection is None:
            return
        end = self.chance.choice((connection.a, connection.b))
        end.pause(True)
        if seconds > self.profile.silence_s_max:
            self.world.after(self.profile.silence_s_max, self._break_off, connection)
        else:
            self.world.after(seconds, end.pause, False)

    def _break_off(self, connection: Connection) -> None:
        if self.connection is connection:
            self.reset()

    def reset(self) -> None:
        """Break the connection only; a new one is made at once (a flap)."""
        self._break(RESET_DELAY_S_MAX)

    def hang_up(self) -> None:
        """Close from the dialling side: what it sent still arrives."""
        self.wanted = False
        self._break(RESET_DELAY_S_MAX, orderly=True)

    def squeeze(self, factor: float) -> None:
        """Give it this share of its bandwidth from now on."""
        before, self.bytes_per_s = self.bytes_per_s, self.profile.bytes_per_s * factor
        speed_up = self.bytes_per_s / before
        if speed_up > 1 and self.connection is not None:
            self.connection.a.speed_up(speed_up)
            self.connection.b.speed_up(speed_up)

    def peer_died(self) -> None:
        self._break(RESET_DELAY_S_MAX)

    # --- inside

    def _finish_dial(self) -> None:
        self._dialling = False
        if self.connection is not None or not self.wanted or not self.a.alive:
            return
        if self.is_cut or not self.b.alive:
            self.dial()
            return
        a, b = End(self, self.a, self.network.next_link()), End(self, self.b, self.network.next_link())
        self.connection = connection = Connection(a, b)
        arrival = self.world.now + self.profile.latency_s
        # The accepting side hears first; the dialling side hears with the answer, before anything sent after it.
        a._last_arrival, b._last_arrival = arrival, arrival + self.profile.latency_s  # noqa: SLF001
        self.world.at(arrival, self._tell, connection, b)
        self.world.at(arrival + self.profile.latency_s, self._tell, connection, a)

    def _tell(self, connection: Connection, end: End) -> None:
        if not connection.broken and end.peer.alive:
            end.told = True
            end.peer.connected(end)

    def _break(self, notice_s_max: float, *, orderly: bool = False, far_notice_s: float = 0.0) -> None:
        connection = self.connection
        if connection is None:
            return
        self.connection = None
        connection.broken = True
        for end in (connection.a, connection.b):
            end.break_off(end.on_the_way if orderly else self.chance.randint(0, end.on_the_way))
            late_s = far_notice_s if end is connection.b else 0.0
            self.world.after(late_s + self.chance.uniform(0, notice_s_max), self._notice, end)
        self.dial(notice_s_max + self.chance.uniform(0.01, self.profile.redial_s_max))

    @staticmethod
    def _notice(end: End) -> None:
        if not end.open:
            return
        end.open = False
        if end.peer.alive and end.told:
            end.peer.disconnected(end)


class Network:
    """All cables of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cables: list[Cable] = []
        self.dropped = 0
        self._links = 0

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def cable(self, a: Peer, b: Peer, profile: CableProfile, name: str) -> Cable:
        cable = Cable(self, a, b, profile, name)
        self.cables.append(cable)
        return cable

    def forget(self, cable: Cable) -> None:
        """Take a cable out for good; what is on the way still arrives."""
        if cable in self.cables:
            self.cables.remove(cable)

    def peer_died(self, peer: Peer) -> None:
        """Break what a peer held, as the kernel does for a dead process: the other ends hear of it soon."""
        for cable in self.cables:
            if cable.a is peer or cable.b is peer:
                cable.peer_died()

    def peer_returned(self, peer: Peer) -> None:
        for cable in self.cables:
            if cable.a is peer or cable.b is peer:
                cable.dial()
