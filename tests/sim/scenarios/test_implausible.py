"""A broker says what cannot be: the others go on, and whoever it speaks for outbids it."""

from __future__ import annotations

from functools import partial

import pytest

from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX, RESERVED_SHIFT, STEP_SHIFT, leaves_room
from postroad.core.protocol.packets import (
    HOPS_MAX,
    DurableHome,
    Hold,
    HoldConfirmed,
    HomeQuery,
    HomeReply,
    InterestActive,
    Knowledge,
    LinkState,
    NameAnswer,
    NameReserve,
    Packet,
    Released,
    pubend_id,
)
from postroad.sim.brokers import WALL_MS_AT_START
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.tracking.tap.tracked_broker import TrackedBroker, TrackedConfig

P1, P3 = pubend_id(1), pubend_id(3)
HUGE = ((1 << 64) - 1, (1 << 64) - 2, 1 << 63, 1 << 62, COUNT_MAX)


def line() -> Overlay:
    """Join 1, 2 and 3; a client of 3 follows what one of 1 publishes."""
    overlay = Overlay(1, config=TrackedConfig(silence_s=0.5))
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    overlay.client("reader", 3)
    overlay.at(1.0, lambda: overlay.clients["reader"].follow(overlay.filter(everything()), subscription="all"))
    for step in range(60):
        overlay.at(2.0 + step / 10, partial(overlay.clients["writer"].publish, {"n": step}, f"{step}".encode()))
    return overlay


def say(overlay: Overlay, to: int, by: int, packet: Packet) -> None:
    """Let a broker hear a packet on its link from another."""
    node = overlay.node(to)
    link = next(end.link for end in node._ends.values() if end.far.peer is overlay.node(by))
    node._receive(link, packet, 0, None)


def machine(overlay: Overlay, broker: int) -> TrackedBroker:
    found = overlay.node(broker).machine
    assert found is not None
    return found


def finish(overlay: Overlay, *restarted: int) -> None:
    """Go on after the restart of some brokers, and check that all that was published arrived."""
    overlay.run(5.0)
    for broker in restarted:
        overlay.node(broker).crash()
        overlay.node(broker).start()
    overlay.run(9.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []
    assert overlay.messages == 60
    assert overlay.deliveries == 60


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("origin", [1, 3, 9])
def test_a_link_state_with_a_number_beyond_its_bound_changes_nothing(number: int, origin: int) -> None:
    """Neither an incarnation nor a sequence that leaves no room above it is taken in, and nobody dies of it or is excluded."""
    overlay = line()
    for packet in (LinkState(origin, number, 1, [], []), LinkState(origin, 1, number, [], [])):
        overlay.at(3.0, partial(say, overlay, 2, 3 if origin == 1 else 1, packet))
    finish(overlay, *([origin] if origin in overlay.nodes else []))


@pytest.mark.parametrize(
    "record", [LinkState(1, 1, 1 << 40, [], []), LinkState(1, 77, 1, [], [P1]), LinkState(1, 1 << 30, 5, [], [])]
)
def test_an_origin_outbids_a_newer_record_of_itself(record: LinkState) -> None:
    """A neighbour that floods a record the origin never wrote cuts it off only until it hears of that."""
    overlay = line()
    overlay.at(3.0, partial(say, overlay, 2, 3, record))
    overlay.run(4.0)
    assert machine(overlay, 3).machine._router.reachable(1)
    finish(overlay, 1)
    assert machine(overlay, 1).machine._context.incarnation > record.incarnation - 1


@pytest.mark.parametrize(
    ("incarnation", "sequence"),
    [(INCARNATION_MAX - 1, COUNT_MAX - 1), (INCARNATION_MAX - 1, 1), (1, COUNT_MAX - 1), (2, COUNT_MAX - 2)],
)
def test_the_highest_numbers_of_a_link_state_shut_nobody_out(incarnation: int, sequence: int) -> None:
    """A record that its origin could not outbid is left out, also by those who know nothing of the origin yet."""
    overlay = line()
    for to, by in ((1, 2), (2, 3), (3, 2)):
        overlay.at(3.0, partial(say, overlay, to, by, LinkState(1, incarnation, sequence, [], [])))
    overlay.run(4.0)
    assert machine(overlay, 3).machine._router.reachable(1)
    finish(overlay, 1)


def test_numbers_near_their_bound_rise_in_small_steps() -> None:
    """Where a number was taken as high as it may be, its owner goes on above it, many times."""
    top = COUNT_MAX - (COUNT_MAX >> RESERVED_SHIFT) + (COUNT_MAX >> STEP_SHIFT) - 1
    assert leaves_room(top, 0, COUNT_MAX)
    assert not leaves_room(top + 1, 0, COUNT_MAX)
    assert leaves_room(top + 1, top, COUNT_MAX)
    assert not leaves_room(COUNT_MAX - 1, top, COUNT_MAX)


def test_incarnations_rise_over_one_that_was_outbid() -> None:
    """Each later start has a higher one, so that no number of a life is used again."""
    overlay = line()
    overlay.at(3.0, partial(say, overlay, 1, 2, LinkState(1, 500, 1, [], [])))
    overlay.run(4.0)
    seen = [machine(overlay, 1).machine._context.incarnation]
    for _ in range(2):
        overlay.node(1).crash()
        overlay.node(1).start()
        seen.append(machine(overlay, 1).machine._context.incarnation)
    assert seen == [501, 502, 503]


@pytest.mark.parametrize("number", HUGE)
def test_a_home_with_a_version_beyond_its_bound_is_refused(number: int) -> None:
    """The name can be taken, used and found again after restarts."""
    overlay = line()
    overlay.client("durable", 2)
    overlay.at(3.0, partial(say, overlay, 2, 1, DurableHome("kept", number, 1, settled=True)))
    overlay.at(3.5, lambda: overlay.clients["durable"].follow(overlay.filter(everything()), subscription="kept", name="kept"))
    overlay.run(5.0)
    for broker in (1, 2, 3):
        overlay.node(broker).crash()
        overlay.node(broker).start()
    overlay.run(9.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []


@pytest.mark.parametrize(
    ("incarnation", "version"),
    [
        (1, 1 << 40),
        (60, 1),
        (1, COUNT_MAX),
        (1 << 63, 1),
        (INCARNATION_MAX, 1),
        (1, COUNT_MAX - 1),
        (INCARNATION_MAX - 1, 1),
        (INCARNATION_MAX - 1, COUNT_MAX - 1),
    ],
)
def test_a_hold_in_the_name_of_another_broker_is_outbid(incarnation: int, version: int) -> None:
    """The broker it names is told, and its later holds count again."""
    overlay = line()
    forged = Hold(1, 3, HOPS_MAX, incarnation, version, {P1: 1 << 63})
    overlay.at(3.0, partial(say, overlay, 1, 2, forged))
    overlay.client("late", 3)
    overlay.at(4.0, lambda: overlay.clients["late"].follow(overlay.filter(everything()), subscription="late"))
    overlay.run(6.0)
    state = overlay.clients["late"].session
    assert state is not None
    assert all(each.active for each in state.subscriptions.values())
    overlay.run(9.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []


def test_a_hold_of_a_broker_from_another_broker_is_ignored() -> None:
    """Otherwise its own holds would be older than that one, and no subscription at it would ever become active."""
    overlay = line()
    overlay.at(3.0, partial(say, overlay, 1, 2, Hold(1, 1, HOPS_MAX, 9, 1 << 20, {})))
    overlay.client("late", 1)
    overlay.at(4.0, lambda: overlay.clients["late"].follow(overlay.filter(everything()), subscription="late"))
    overlay.run(6.0)
    state = overlay.clients["late"].session
    assert state is not None
    assert all(each.active for each in state.subscriptions.values())
    overlay.run(9.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []


@pytest.mark.parametrize("number", [*HUGE, COUNT_MAX - 1])
@pytest.mark.parametrize("kind", ["query", "reply", "answer", "reserve", "home"])
def test_a_version_of_a_name_that_leaves_no_room_is_ignored(kind: str, number: int) -> None:
    """In whatever packet it comes, the home of the name writes a record that it can read, and that others believe."""
    overlay = line()
    overlay.client("durable", 1)
    overlay.at(2.0, lambda: overlay.clients["durable"].follow(overlay.filter(everything()), subscription="kept", name="kept"))
    forged: dict[str, Packet] = {
        "query": HomeQuery(1, 9, HOPS_MAX, "kept", number, doubtful=True),
        "reply": HomeReply(1, 9, HOPS_MAX, "new", 1, True, False, "", {}, home_version=number),
        "answer": NameAnswer(1, 9, HOPS_MAX, "new", 1 << 32 | 1, True, 0, number, 0, 0, [9]),
        "reserve": NameReserve(1, 9, HOPS_MAX, "new", 1, number),
        "home": DurableHome("kept", number, 9, settled=True),
    }
    overlay.at(3.0, partial(say, overlay, 1, 2, forged[kind]))
    overlay.run(5.0)
    for broker in (1, 2, 3):
        overlay.node(broker).crash()
        overlay.node(broker).start()
    overlay.run(9.0)
    assert overlay.settle(20.0)
    assert overlay.violations() == []
    assert machine(overlay, 1).machine._durables.here["kept"].version < COUNT_MAX >> 1


def test_a_hold_keeps_to_what_its_target_hosts_and_has_announced() -> None:
    """Ticks beyond the horizon hold nothing less, and pubends of others are left out."""
    overlay = line()
    overlay.run(3.0)
    say(overlay, 1, 2, Hold(1, 9, HOPS_MAX, 1, 1, {P1: 1 << 63, P3: 5, 1 << 40: 7}))
    held = machine(overlay, 1).machine._table._records[9].ticks
    assert held == {P1: machine(overlay, 1).machine._pubends[P1].horizon}


def tick(offset_s: float) -> int:
    return WALL_MS_AT_START + int(offset_s * 1000) << 16


@pytest.mark.parametrize("hi", [tick(3600.0), tick(0.0) + 1, (1 << 63), (1 << 64) - 1])
@pytest.mark.parametrize(("to", "by", "pubend"), [(1, 2, P1), (2, 3, P1), (2, 1, P3)])
def test_silence_from_any_link_but_the_parents_is_ignored(hi: int, to: int, by: int, pubend: int) -> None:
    """Not for a hosted pubend, and not from a child, whatever the label: delivery goes on."""
    overlay = line()
    for label in (0, 1 << 32, (1 << 64) - 1):
        overlay.at(3.05, partial(say, overlay, to, by, Knowledge(pubend, 0, hi, label)))
    overlay.at(3.05, partial(say, overlay, to, by, InterestActive(pubend, (1 << 64) - 1, hi)))
    overlay.at(3.05, partial(say, overlay, to, by, Released(pubend, hi)))
    finish(overlay)


@pytest.mark.parametrize("hi", [tick(48 * 3600.0), 1 << 63, (1 << 64) - 1])
def test_silence_far_beyond_the_clock_is_ignored_from_the_parent_too(hi: int) -> None:
    """It would keep everything from being delivered for as long as it reaches."""
    overlay = line()
    overlay.run(3.05)
    epoch = machine(overlay, 3).machine._streams[P1].epoch_active
    say(overlay, 3, 2, Knowledge(P1, tick(0.0), hi, epoch))
    say(overlay, 3, 2, Released(P1, hi))
    assert machine(overlay, 3).stats()["disbelieved"] == 2
    finish(overlay)


def test_a_confirmation_of_what_was_never_sent_confirms_nothing() -> None:
    """Else a subscription would count on a hold that its broker does not have."""
    overlay = line()
    overlay.run(3.0)
    say(overlay, 3, 2, HoldConfirmed(3, 1, HOPS_MAX, 1, 1 << 40, {P1: tick(1.0)}))
    assert not machine(overlay, 3).machine._keeper.is_confirmed(1, 1 << 20)
