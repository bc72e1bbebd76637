"""Damaged records: what takes their place hides nothing and repeats nothing."""

from __future__ import annotations

from functools import partial

from postroad.core.protocol.packets import pubend_id
from postroad.sim.clients import Habits
from postroad.sim.history import Gapped, WrittenOff
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything, is_true
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


def moved(*, settled: bool) -> Overlay:
    """A durable subscription moves from broker 3 to broker 2, whose record of it is damaged then.

    It cannot settle there while broker 4 is down, which it has a cursor of.
    """
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=1.0, home_query_s=0.5))
    overlay.brokers(1, 2, 3, 4)
    for a, b in ((1, 2), (2, 3), (1, 3), (3, 4)):
        overlay.link(a, b)
    reader = overlay.client("reader", 3, habits=Habits(keeps_file=False))
    text = overlay.filter(everything())
    overlay.at(0.5, lambda: reader.follow(text, subscription="kept", name="kept"))
    writer = overlay.client("writer", 1)
    for step in range(60):
        overlay.at(1.0 + step / 10, partial(writer.publish, {"n": step}, f"{step}".encode()))
    if not settled:
        overlay.at(1.5, overlay.node(4).crash)
    overlay.at(2.0, partial(reader.move, [overlay.node(2)]))
    damage(overlay, 2, "durable/kept", 4.0)
    return overlay


def test_a_damaged_record_that_had_settled_is_not_dropped_for_the_former_home() -> None:
    """The former home has let go, so a client that brings no positions would be told that everything is gone (seed 2000016)."""
    overlay = moved(settled=True)
    reader = overlay.clients["reader"]
    overlay.at(4.05, reader.crash)
    overlay.at(4.06, partial(reader.move, [overlay.node(1)]))
    overlay.at(6.0, reader.start)
    overlay.run(9.0)
    assert overlay.settle(60.0)
    overlay.rest()
    assert overlay.violations() == []
    assert not any(isinstance(each, Gapped) for each in overlay.history)


def test_a_damaged_record_that_had_not_settled_ends_where_the_former_home_has_its_own() -> None:
    """Nothing else would end it: the client goes on at the former home, and the logs were held for ever."""
    overlay = moved(settled=False)
    overlay.at(4.05, partial(overlay.clients["reader"].move, [overlay.node(3)]))
    overlay.at(7.0, overlay.node(4).start)
    overlay.run(9.0)
    assert overlay.settle(60.0)
    overlay.rest()
    assert overlay.violations() == []
    assert not any(isinstance(each, Gapped) for each in overlay.history)


def test_a_damaged_record_stays_damaged_until_its_client_comes() -> None:
    """A new pubend changed it, so it was stored without a filter; its client was refused after the next start."""
    overlay = two_brokers(20)
    text = overlay.filter(is_true("even"))
    reader = overlay.client("selective", 2)
    overlay.at(0.3, lambda: reader.follow(text, subscription="even", name="even"))
    for step in range(20):
        overlay.at(0.55 + step / 10, partial(reader.publish, {"even": step % 2 == 0}, f"even {step}".encode()))
    overlay.at(1.5, reader.crash)
    damage(overlay, 2, "durable/even", 2.0)
    overlay.at(3.0, lambda: overlay.broker(3))
    overlay.at(3.1, lambda: overlay.link(2, 3))
    overlay.at(4.0, overlay.node(2).crash)
    overlay.at(4.2, overlay.node(2).start)
    overlay.at(6.0, reader.start)
    overlay.run(8.0)
    assert overlay.settle(30.0)
    assert overlay.violations() == []
