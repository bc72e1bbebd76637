"""Durable names: who gets one when two want it, and brokers are cut off from each other or down."""

from __future__ import annotations

from functools import partial

from postroad.sim.history import Began
from postroad.sim.overlay import Overlay


def line_of_three() -> Overlay:
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.client("writer", 2)
    overlay.client("left", 1)
    overlay.client("right", 3)
    return overlay


def began(overlay: Overlay) -> set[str]:
    return {event.subscription for event in overlay.history if isinstance(event, Began)}


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
    assert [machine._durables.homes["orders"].broker for machine in machines] == [3, 3, 3]


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
