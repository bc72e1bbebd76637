"""What clients do so that logs can be released: they save positions when nothing comes, and see deletions through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from postroad.sim.clients import ClientNode, Following, Habits
from postroad.sim.disk import DiskProfile
from postroad.sim.history import Discarded, Freed, Gapped, Logged
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import equals, everything
from postroad.tracking.tap.tracked_broker import TrackedConfig

SMALL = DiskProfile(segment_batches=1)


def two_brokers() -> Overlay:
    overlay = Overlay(seed=1, config=TrackedConfig(silence_s=0.2, subscriber_grace_s=0.5, home_query_s=0.5))
    for number in (1, 2):
        overlay.broker(number, disk=SMALL)
    overlay.link(1, 2)
    return overlay


def publish(overlay: Overlay, count: int) -> None:
    writer = overlay.client("writer", 1)
    for number in range(count):
        overlay.at(2.0 + number / 10, partial(writer.publish, {"n": number}, f"{number}".encode()))


def finish(overlay: Overlay) -> None:
    overlay.heal()
    assert overlay.settle()
    overlay.rest()
    assert overlay.violations() == []


def test_positions_in_a_file_follow_a_stream_in_which_nothing_matches() -> None:
    """Messages for others are released, since the client saves where it is every few seconds."""
    overlay = two_brokers()
    reader = overlay.client("reader", 2, habits=Habits(keeps_file=True))
    text = overlay.filter(equals("symbol", "IBM"))
    overlay.at(0.5, lambda: reader.follow(text, subscription="orders", name="orders"))
    publish(overlay, 10)
    overlay.run(5.0)
    finish(overlay)
    logged = [event.tick for event in overlay.history if isinstance(event, Logged)]
    assert max(event.tick for event in overlay.history if isinstance(event, Freed)) >= logged[-2]


def delete_at_another_broker(overlay: Overlay, reader: ClientNode, orders: Following) -> None:
    """Let a client ask a broker to delete it while its home does not know yet that the old connection is gone."""
    reader.cut_off(silently=True)
    reader.move([overlay.node(2)])
    overlay.at(4.3, lambda: reader.end(orders))


def delete_without_a_broker(overlay: Overlay, reader: ClientNode, orders: Following) -> None:
    """Let a client delete a subscription while its broker is down."""
    overlay.node(1).crash()
    overlay.at(5.0, lambda: reader.end(orders))


def delete_before_a_crash(overlay: Overlay, reader: ClientNode, orders: Following) -> None:
    """Let the broker crash before the deletion is on its disk."""
    overlay.node(1).disk.stall(3.0)
    reader.end(orders)
    overlay.at(4.5, overlay.node(1).crash)


@pytest.mark.parametrize("delete", [delete_at_another_broker, delete_without_a_broker, delete_before_a_crash])
def test_a_deletion_that_was_not_confirmed_is_asked_for_again(
    delete: Callable[[Overlay, ClientNode, Following], None],
) -> None:
    """Then the subscription is gone everywhere, and holds no log any more."""
    overlay = two_brokers()
    reader = overlay.client("reader", 1, habits=Habits(keeps_file=False))
    text = overlay.filter(everything())
    overlay.at(0.5, lambda: reader.follow(text, subscription="orders", name="orders"))
    publish(overlay, 10)
    overlay.at(4.0, lambda: delete(overlay, reader, reader.following[0]))
    overlay.run(8.0)
    finish(overlay)
    assert [event.subscription for event in overlay.history if isinstance(event, Discarded)] == ["orders"]
    machines = [node.machine for node in overlay.nodes.values() if node.machine is not None]
    assert not any(machine.machine._durables.here for machine in machines)


def test_one_that_wants_all_there_is_gets_no_gap_from_a_young_broker() -> None:
    """What was released lay before the first tick of the broker: a start there was taken for a position in a former life."""
    overlay = Overlay(seed=1, config=TrackedConfig(silence_s=0.2, keep_s=3.0))
    overlay.broker(1, disk=SMALL)
    writer, reader = overlay.client("writer", 1), overlay.client("reader", 1)
    text = overlay.filter(everything())
    for number in range(5):
        overlay.at(0.5 + number / 10, partial(writer.publish, {"n": number}, f"{number}".encode()))
    overlay.at(1.5, partial(reader.follow, text, subscription="all", earliest=True))
    overlay.run(4.0)
    assert not any(isinstance(event, Gapped) for event in overlay.history)
    assert overlay.deliveries == 5
    finish(overlay)
