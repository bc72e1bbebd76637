"""Subscriptions that wait for admission, while other things happen to them."""

from __future__ import annotations

from functools import partial

from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig


def test_a_durable_subscription_that_waits_at_another_broker_is_deleted() -> None:
    """That broker once confirmed the deletion without asking the home, which held the logs for ever (seed 4000361)."""
    settings = AdmissionSettings(Criterion(Policy.FULL), verdict_s=3.0, link_rate=1_000.0)
    overlay = Overlay(1, config=TrackedConfig(admission=settings, silence_s=0.2, subscriber_grace_s=1.0))
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    far = overlay.link(2, 3)
    reader, writer = overlay.client("reader", 1), overlay.client("writer", 3)
    text = overlay.filter(everything())
    overlay.at(0.1, lambda: writer.advertise("", 10.0))
    overlay.at(1.0, lambda: reader.follow(text, subscription="kept", name="kept"))
    overlay.at(2.0, lambda: writer.publish({"n": 1}, b"first"))
    overlay.at(2.95, far.cut)
    overlay.at(3.0, lambda: reader.move([overlay.node(2)]))
    overlay.at(3.4, lambda: reader.end(reader.following[0]))
    for number in range(8):
        overlay.at(5.0 + number / 10, partial(writer.publish, {"n": number}, f"later {number}".encode()))
    overlay.run(6.0)
    overlay.heal()
    assert overlay.settle(60.0)
    overlay.rest()
    assert overlay.violations() == []
