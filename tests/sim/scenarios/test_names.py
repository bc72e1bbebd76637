"""Durable names: who gets one when two want it, and brokers are cut off from each other or down."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from postroad.sim.history import Began, Delivered
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything


def line_of_three() -> Overlay:
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.client("writer", 2)
    overlay.client("left", 1)
    overlay.client("right", 3)
    return overlay


def began(overlay: Overlay) -> set[str]:
    return {event.subscription for event in overlay.history if isinstance(event, Began)}


def _held(overlay: Overlay, broker: int) -> list[str]:
    """Return the durable names of which a broker has a record."""
    machine = overlay.node(broker).machine
    return list(machine.machine._durables.here) if machine is not None else []


def test_two_creators_during_a_partition_share_no_name() -> None:
    """The side with two of three brokers creates it; the other is refused until then, and finds it taken afterwards."""
    overlay = line_of_three()
    cable = overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.at(2.0, cable.cut)
    overlay.at(3.0, partial(overlay.clients["left"].follow, "", subscription="s-left", name="orders"))
    overlay.at(3.0, partial(overlay.clients["right"].follow, "", subscription="s-right", name="orders"))
    overlay.at(12.0, cable.heal)
    overlay.run(20.0)
    assert began(overlay) == {"s-right"}
    machines = [node.machine for node in overlay.nodes.values() if node.machine is not None]
    assert [machine.machine._durables.homes["orders"].broker for machine in machines] == [3, 3, 3]


def test_two_creators_at_one_moment_share_no_name() -> None:
    """Both ask while the votes of the other are on their way."""
    overlay = line_of_three()
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.at(3.0, partial(overlay.clients["left"].follow, "", subscription="s-left", name="orders"))
    overlay.at(3.0, partial(overlay.clients["right"].follow, "", subscription="s-right", name="orders"))
    overlay.run(20.0)
    assert len(began(overlay)) == 1


def test_a_creator_that_crashes_at_any_moment_leaves_the_name_free_or_taken() -> None:
    """Whenever it crashes, the name can be had in the end, once it is back."""
    for step in range(12):
        overlay = line_of_three()
        overlay.link(1, 2)
        overlay.link(2, 3)
        overlay.at(3.0, partial(overlay.clients["left"].follow, "", subscription="s-left", name="orders"))
        overlay.at(3.0 + 0.002 * step, overlay.node(1).crash)
        overlay.at(3.5, overlay.clients["left"].crash)
        overlay.at(5.0, overlay.node(1).start)
        overlay.at(6.0, partial(overlay.clients["right"].follow, "", subscription="s-right", name="orders"))
        overlay.run(16.0)
        assert "s-right" in began(overlay), f"crashed {2 * step} ms after it was asked"


def test_a_name_is_not_created_again_at_a_new_broker_that_has_reached_nobody() -> None:
    """Its client comes before its first link is up, and without its file: it waits, and goes on at its home (seed 920288)."""
    overlay = Overlay(1)
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    writer, reader = overlay.client("writer", 1), overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, partial(reader.follow, text, subscription="all", name="all"))
    for index in range(40):
        overlay.at(2.0 + 0.1 * index, partial(writer.publish, {"symbol": "A"}, b"%d" % index))

    def add() -> None:
        node = overlay.broker(3, config=replace(overlay.config, has_neighbours=True))
        cable = overlay.link(2, 3)
        cable.cut()
        overlay.world.after(2.5, cable.heal)
        reader.crash(lose_file=True)
        reader.brokers = [node]
        reader.start()

    alone: list[str] = []
    overlay.at(4.0, add)
    overlay.at(6.0, lambda: alone.extend(_held(overlay, 3)))
    overlay.run(8.0)
    overlay.heal()
    assert overlay.settle()
    assert overlay.violations() == []
    assert alone == []
    assert _held(overlay, 3) == ["all"]


def test_a_name_deleted_at_its_home_stays_deleted_where_it_was_half_moved() -> None:
    """The broker it was moving to still believes in its client when word of the deletion comes (seed 900146)."""
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    cut_later = overlay.link(1, 3)
    reader = overlay.client("reader", 1)
    text = overlay.filter(everything())
    following = []
    overlay.at(1.0, lambda: following.append(reader.follow(text, subscription="all", name="all")))
    overlay.at(3.0, cut_later.cut)  # so that the second broker cannot hold all logs, and does not settle
    overlay.at(3.5, partial(reader.move, [overlay.node(2)]))

    def go_back() -> None:
        reader.cut_off(silently=True)
        reader.move([overlay.node(1)])

    overlay.at(6.0, go_back)
    overlay.at(6.2, lambda: reader.end(following[0]))
    overlay.run(9.0)
    overlay.heal()
    assert overlay.settle()
    overlay.rest()
    assert overlay.violations() == []
    assert [_held(overlay, broker) for broker in overlay.nodes] == [[], [], []]


def test_a_subscription_misses_nothing_of_a_broker_out_of_reach_whose_clock_is_behind() -> None:
    """What is published there after the creation has lower ticks than the time of the creation (seed 1001818)."""
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 3)
    cable = overlay.link(1, 2)
    writer, reader = overlay.client("writer", 2), overlay.client("reader", 1)
    text = overlay.filter(everything())
    overlay.at(2.0, partial(overlay.node(2).step_clock, -20_000))
    overlay.at(3.0, cable.cut)
    overlay.at(5.5, partial(reader.follow, text, subscription="all", name="all"))
    for index in range(10):
        overlay.at(7.0 + 0.1 * index, partial(writer.publish, {"symbol": "A"}, b"%d" % index))
    overlay.at(8.5, overlay.node(2).crash)  # afterwards it is ahead of the time of the creation
    overlay.at(8.7, overlay.node(2).start)
    overlay.at(9.0, cable.heal)
    overlay.run(10.0)
    overlay.heal()
    assert overlay.settle()
    assert overlay.violations() == []
    got = [event.payload for event in overlay.history if isinstance(event, Delivered)]
    assert got == [b"%d" % index for index in range(10)]
