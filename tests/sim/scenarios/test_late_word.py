"""Live delivery goes on only over silence that is complete for it.

A broker leaves its parent for another and comes back to it, and the parent has heard of neither. What it had sent in between,
under the old interest, arrives when it is the parent again. Random runs hardly ever have this: it is not among the mutants.
"""

from __future__ import annotations

from functools import partial

from tests.mutants.planting import Planter

from postroad.core.broker.subscribing.edge import FOREVER, EdgeStream
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import equals


def late_word_under_an_old_interest() -> Overlay:
    """Broker 4 has 2 for its parent, goes by 5 and 3 while the link 1-2 is cut, and subscribes to B meanwhile."""
    overlay = Overlay(1)
    overlay.broker(1)
    for number in range(2, 9):
        overlay.broker(number, pubends=0)
    near = overlay.link(1, 2, CableProfile(silence_s_max=0.1))
    overlay.link(2, 4, CableProfile(latency_s=0.5, silence_s_max=20.0))
    for a, b in ((1, 3), (3, 5), (5, 4)):  # what 4 hears of 1 while 1-2 is cut
        overlay.link(a, b, CableProfile(latency_s=0.15))
    for a, b in ((1, 6), (6, 7), (7, 2)):  # what 2 hears of 1 then
        overlay.link(a, b)
    for a, b in ((7, 8), (8, 4)):  # that 1-2 is back comes this way first
        overlay.link(a, b)
    writer, old, new = overlay.client("writer", 1), overlay.client("old", 4), overlay.client("new", 4)
    wants_a, wants_b = (overlay.filter(equals("symbol", symbol)) for symbol in "AB")
    overlay.at(1.0, lambda: old.follow(wants_a, subscription="wants-a"))
    overlay.at(4.5, lambda: _let_4_send_to_2(overlay, False))
    overlay.at(5.0, near.cut)
    overlay.at(5.6, lambda: new.follow(wants_b, subscription="wants-b"))
    overlay.at(8.0, near.heal)
    overlay.at(9.5, lambda: _let_4_send_to_2(overlay, True))
    for step in range(140):
        for symbol in "AB":
            publish = partial(writer.publish, {"symbol": symbol}, f"{symbol} {step}".encode())
            overlay.at(2.0 + step / 20, publish)
    overlay.run(10.0)
    overlay.heal()
    assert overlay.settle(30.0)
    return overlay


def _let_4_send_to_2(overlay: Overlay, may: bool) -> None:
    connection = overlay.cable(2, 4).connection
    assert connection is not None
    (end,) = (each for each in (connection.a, connection.b) if each.far.peer is overlay.node(2))
    end.pause(not may)


def test_silence_under_an_old_interest_is_not_taken_for_an_answer() -> None:
    """What matches the newer subscription comes, though the parent said that nothing came."""
    assert late_word_under_an_old_interest().violations() == []


def test_without_the_label_that_is_needed_messages_are_lost() -> None:
    """The schedule is one in which it matters."""
    plant = Planter()
    plant.set(EdgeStream, "need_at", lambda _self, _tick: (0, FOREVER))
    try:
        kinds = {violation.kind for violation in late_word_under_an_old_interest().violations()}
    finally:
        plant.take_out()
    assert "lost" in kinds
