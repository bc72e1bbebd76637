"""A broker is gone for good, and the others are told so in their files."""

from __future__ import annotations

from functools import partial

import pytest

from postroad.sim.clients import Habits
from postroad.sim.history import Delivered, Gapped, Logged
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedConfig


def triangle(*, keeps_file: bool) -> Overlay:
    """Join three brokers; a durable subscription is at home at the first, and somebody publishes at the second."""
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=1.0, home_query_s=0.5))
    overlay.brokers(1, 2, 3)
    for a, b in ((1, 2), (2, 3), (1, 3)):
        overlay.link(a, b)
    reader = overlay.client("reader", 1, habits=Habits(keeps_file=keeps_file))
    text = overlay.filter(everything())
    overlay.at(0.5, lambda: reader.follow(text, subscription="kept", name="kept"))
    writer = overlay.client("writer", 2)
    for step in range(70):
        overlay.at(1.0 + step / 10, partial(writer.publish, {"n": step}, f"{step}".encode()))
    return overlay


def settled(overlay: Overlay) -> Overlay:
    overlay.run(9.0)
    assert overlay.settle(60.0)
    overlay.rest()
    assert overlay.violations() == []
    return overlay


def test_a_durable_subscription_moves_though_a_broker_is_retired() -> None:
    """Its cursor in the pubend of that broker was waited for, so nothing was confirmed at the new home, ever."""
    overlay = triangle(keeps_file=False)
    overlay.at(3.0, partial(overlay.retire, 3))
    overlay.at(6.0, lambda: overlay.clients["reader"].move([overlay.node(2)]))
    settled(overlay)
    assert not any(isinstance(each, Gapped) for each in overlay.history)


@pytest.mark.parametrize("keeps_file", [False, True])
def test_a_durable_subscription_whose_home_is_retired_goes_on_elsewhere(keeps_file: bool) -> None:
    """From the positions of its client; without any it is told a gap up to now, and was refused for ever before."""
    overlay = triangle(keeps_file=keeps_file)
    overlay.at(3.0, overlay.clients["reader"].crash)
    overlay.at(3.1, partial(overlay.retire, 1))
    overlay.at(6.0, overlay.clients["reader"].start)
    settled(overlay)
    after = {each.payload for each in overlay.history if isinstance(each, Logged) and each.at > 6.5}
    assert after <= {each.payload for each in overlay.history if isinstance(each, Delivered)}
    assert any(isinstance(each, Gapped) and not each.lo for each in overlay.history) is not keeps_file


def test_a_pubend_that_is_reached_later_is_told_as_lost_also_by_a_home_that_was_started_again() -> None:
    """That its cursor is lost there is stored with the subscription, until its client shows that it knows."""
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=1.0))
    overlay.brokers(1, 2, 3)
    for a, b in ((1, 2), (2, 3), (1, 3)):
        overlay.link(a, b)
    far, reader = overlay.client("far", 3), overlay.client("reader", 1, habits=Habits(keeps_file=False))
    text = overlay.filter(everything())
    overlay.at(0.5, lambda: reader.follow(text, subscription="kept", name="kept"))
    for step in range(20):
        overlay.at(1.0 + step / 10, partial(far.publish, {"n": step}, f"{step}".encode()))
    overlay.at(2.0, reader.crash)
    overlay.at(3.1, overlay.cable(2, 3).cut)
    overlay.at(4.4, partial(overlay.retire, 1))
    overlay.at(6.0, partial(reader.move, [overlay.node(2)]))
    overlay.at(6.1, reader.start)
    overlay.at(9.0, overlay.node(2).crash)
    overlay.at(9.2, overlay.node(2).start)
    overlay.at(11.0, overlay.cable(2, 3).heal)
    overlay.run(14.0)
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    assert {each.pubend for each in overlay.history if isinstance(each, Gapped)} == {512, 768}


def test_what_was_delivered_before_does_not_come_again_from_a_pubend_that_is_reached_later() -> None:
    """The new home began there a minute before it took the subscription over, so acknowledged messages came again."""
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=1.0))
    overlay.brokers(1, 2, 3)
    for a, b in ((1, 2), (2, 3), (1, 3)):
        overlay.link(a, b)
    far, reader = overlay.client("far", 3), overlay.client("reader", 1, habits=Habits(keeps_file=False))
    away = overlay.client("away", 3)
    text = overlay.filter(everything())
    overlay.at(0.5, lambda: reader.follow(text, subscription="kept", name="kept"))
    overlay.at(0.5, lambda: away.follow(text, subscription="away", name="away"))
    overlay.at(0.9, away.crash)  # its home holds the log
    for step in range(40):
        overlay.at(1.0 + step / 10 + 8.0 * (step >= 20), partial(far.publish, {"n": step}, f"{step}".encode()))
    overlay.at(3.5, reader.crash)
    overlay.at(3.6, overlay.cable(2, 3).cut)
    overlay.at(4.4, partial(overlay.retire, 1))
    overlay.at(6.0, partial(reader.move, [overlay.node(2)]))
    overlay.at(6.1, reader.start)
    overlay.at(8.0, overlay.cable(2, 3).heal)
    overlay.at(14.0, away.start)
    overlay.run(15.0)
    assert overlay.settle(60.0)
    assert overlay.violations() == []
    came = [each.payload for each in overlay.history if isinstance(each, Delivered) and each.subscription == "kept"]
    assert len(came) == len(set(came)) == 40
