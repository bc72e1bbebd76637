"""Cables, connections and what a cut does to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from postroad.sim.network import Cable, CableProfile, End, Network
from postroad.sim.world import World

PROFILE = CableProfile(latency_s=0.01, bytes_per_s=1000.0, backlog_bytes_max=100)


@dataclass(eq=False)
class Listener:
    """A peer that writes down what it hears."""

    world: World
    alive: bool = True
    end: End | None = None
    heard: bytearray = field(default_factory=bytearray)
    arrivals: list[float] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    marks: list[bool] = field(default_factory=list)

    def connected(self, end: End) -> None:
        self.end = end
        self.links.append(end.link)

    def received(self, end: End, data: bytes) -> None:
        assert end is self.end
        self.heard += data
        self.arrivals.append(self.world.now)

    def disconnected(self, end: End) -> None:
        self.lost.append(end.link)
        self.end = None

    def held_back(self, end: End, congested: bool) -> None:
        assert end is self.end
        self.marks.append(congested)


def joined(profile: CableProfile = PROFILE, seed: int = 1) -> tuple[World, Cable, Listener, Listener]:
    world = World(seed)
    network = Network(world)
    a, b = Listener(world), Listener(world)
    cable = network.cable(a, b, profile, "a-b")
    cable.dial(0.0)
    world.run(0.1)
    return world, cable, a, b


def test_a_frame_takes_its_latency_and_its_length() -> None:
    """A frame arrives after it was transmitted and has travelled."""
    world, _, a, b = joined()
    assert a.end is not None
    a.end.send(bytes(50))
    world.run(1.0)
    assert b.arrivals[0] == pytest.approx(0.1 + 0.05 + 0.01)


def test_bytes_arrive_in_the_order_they_were_sent() -> None:
    """Jitter does not reorder a connection."""
    world, _, a, b = joined(replace(PROFILE, jitter_s=0.5, backlog_bytes_max=10_000))
    assert a.end is not None
    for number in range(50):
        a.end.send(bytes([number]))
    world.run(60.0)
    assert bytes(b.heard) == bytes(range(50))


def test_control_overtakes_data_in_the_backlog() -> None:
    """Control frames wait only for the frame being transmitted."""
    world, _, a, b = joined()
    assert a.end is not None
    for frame, data in ((b"one", True), (b"two", True), (b"control", False)):
        a.end.send(frame, data=data)
    world.run(1.0)
    assert bytes(b.heard) == b"onecontroltwo"


def test_overflow_drops_data_and_never_control() -> None:
    """Beyond the bound a data frame is dropped, a control frame is not."""
    world, _, a, b = joined()
    assert a.end is not None
    assert all(a.end.send(bytes(50), data=True) for _ in range(3))  # one on the wire, two in the backlog
    assert not a.end.send(b"data", data=True)
    assert a.end.send(b"control")
    world.run(1.0)
    assert len(b.heard) == 3 * 50 + len(b"control")


def test_a_client_cable_drops_nothing_and_tells_its_marks() -> None:
    """A cable that does not drop says when its backlog is over the high mark and when it has drained."""
    world, _, a, b = joined(replace(PROFILE, drops_data=False))
    assert a.end is not None
    for _ in range(5):
        a.end.send(bytes(50), data=True)
    assert a.marks == [True]
    world.run(1.0)
    assert a.marks == [True, False]
    assert len(b.heard) == 250


def test_a_peer_that_does_not_read_fills_the_backlog() -> None:
    """While the far peer is paused nothing leaves; then everything does."""
    world, _, a, b = joined(replace(PROFILE, drops_data=False))
    assert a.end is not None
    a.end.pause(True)
    a.end.send(b"waits")
    world.run(1.0)
    assert not b.heard
    a.end.pause(False)
    world.run(2.0)
    assert bytes(b.heard) == b"waits"


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_delivers_a_prefix_of_the_bytes(seed: int) -> None:
    """What arrives of a broken connection is a prefix of what was sent, and both ends hear of the end once."""
    world, cable, a, b = joined(replace(PROFILE, latency_s=0.3, bytes_per_s=1e6, backlog_bytes_max=10_000), seed)
    world.run(2.0)
    assert a.end is not None
    sent = b"".join(bytes([number] * 7) for number in range(30))
    for start in range(0, len(sent), 7):
        a.end.send(sent[start : start + 7])
    world.run(2.1)
    cable.cut()
    world.run(10.0)
    assert sent.startswith(bytes(b.heard))
    assert a.lost == a.links
    assert b.lost == b.links


def test_a_healed_cable_connects_again_under_new_ids() -> None:
    """Link ids are never used twice."""
    world, cable, a, b = joined()
    cable.cut()
    world.run(5.0)
    cable.heal()
    world.run(10.0)
    assert len(a.links) == len(b.links) == 2
    assert len({*a.links, *b.links}) == 4
    assert a.end is not None
    a.end.send(b"again")
    world.run(11.0)
    assert bytes(b.heard) == b"again"


def test_a_dead_peer_is_dialled_until_it_returns() -> None:
    """A connection comes back with its peer."""
    world, cable, a, b = joined()
    b.alive = False
    cable.peer_died()
    world.run(5.0)
    assert a.lost == a.links[:1]
    assert a.end is None
    b.alive = True
    world.run(10.0)
    assert a.end is not None


def test_a_cable_that_is_no_longer_squeezed_finishes_its_frame_quickly() -> None:
    """A frame begun while bandwidth was short does not keep the cable for as long as it seemed then."""
    world, cable, a, b = joined()
    assert a.end is not None
    cable.squeeze(0.001)
    a.end.send(bytes(50))  # 50 s
    a.end.send(b"next")
    world.run(1.1)
    cable.squeeze(1.0)
    world.run(1.3)
    assert len(b.heard) == 54


def test_a_squeezed_cable_is_slower() -> None:
    """Bandwidth can be taken away."""
    world, cable, a, b = joined()
    cable.squeeze(0.1)
    assert a.end is not None
    a.end.send(bytes(50))
    world.run(1.0)
    assert b.arrivals[0] == pytest.approx(0.1 + 0.5 + 0.01)
