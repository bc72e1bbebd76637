"""Damaged records: what takes their place hides nothing and repeats nothing."""

from __future__ import annotations

from functools import partial

from postroad.core.protocol.packets import pubend_id
from postroad.sim.clients import Habits
from postroad.sim.history import Gapped, WrittenOff
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig

P2 = pubend_id(2)


def two_brokers(messages: int) -> Overlay:
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=1.0))
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    text = overlay.filter(everything())
    reader = overlay.client("reader", 2, habits=Habits(keeps_file=False))
    overlay.at(0.2, lambda: reader.follow(text, subscription="kept", name="kept"))
    overlay.client("other", 1)
    overlay.at(0.2, lambda: overlay.clients["other"].follow(text, subscription="live"))
    writer = overlay.client("writer", 2)
    for step in range(messages):
        overlay.at(0.5 + step / 10, partial(writer.publish, {"n": step}, f"{step}".encode()))
    return overlay


def damage(overlay: Overlay, broker: int, key: str, at: float) -> None:
    """Let a broker start with a damaged record."""

    def strike() -> None:
        overlay.node(broker).crash()
        assert overlay.node(broker).spoil_record(key) == key

    overlay.at(at, strike)
    overlay.at(at + 0.3, overlay.node(broker).start)


def test_a_damaged_horizon_after_some_crashes_voids_no_position() -> None:
    """Each crash once took the stream 15 s further ahead of the clock, and the damage took it back to 15 s.

    The positions of clients then lay beyond what was announced, and a durable subscription began anew.
    """
    overlay = two_brokers(5)
    for number in range(2):
        overlay.at(1.0 + 2 * number, overlay.node(2).crash)
        overlay.at(1.2 + 2 * number, overlay.node(2).start)
    damage(overlay, 2, f"horizon/{P2}", 5.5)
    overlay.run(8.0)
    assert overlay.settle(30.0)
    assert overlay.violations() == []


def test_a_damaged_horizon_is_not_taken_for_a_lost_disk() -> None:
    """Others heard of a later horizon than the files show now, but of no message that is not there."""
    overlay = two_brokers(20)
    damage(overlay, 2, f"horizon/{P2}", 3.5)
    overlay.run(8.0)
    assert overlay.settle(30.0)
    assert not any(isinstance(each, WrittenOff | Gapped) for each in overlay.history)
    assert overlay.violations() == []
