"""The nine traps: for each, a schedule in which the checkers catch what goes wrong without the guard, and which passes with it.

The schedules are written by hand: what matters happens at stated times, so they stay valid when the machines change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Final

import pytest

from postroad.core.guards import ALL_ON, Guards
from postroad.sim.disk import DiskProfile
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import equals, everything

FAR: Final = CableProfile(latency_s=0.3)
FAR_CLIENT: Final = CableProfile(latency_s=0.2, drops_data=False)
SMALL_SEGMENTS: Final = DiskProfile(segment_batches=1)


def publish(overlay: Overlay, client: str, symbol: str, *times: float, bulk: int = 0) -> None:
    """Publish one message of a symbol at each of these times."""
    for number, when in enumerate(times):
        payload = f"{client} {symbol} {number}".encode() + bytes(bulk)
        overlay.at(when, partial(overlay.clients[client].publish, {"symbol": symbol}, payload))


def every(step: float, begin: float, end: float) -> list[float]:
    return [begin + step * index for index in range(int((end - begin) / step))]


def follow(overlay: Overlay, when: float, client: str, subscription: str, symbol: str | None, *, durable: bool = False) -> None:
    """Subscribe to a symbol, or to everything."""
    text = overlay.filter(everything() if symbol is None else equals("symbol", symbol))
    name = subscription if durable else None
    overlay.at(when, lambda: overlay.clients[client].follow(text, subscription=subscription, name=name))


def silence_is_relative(guards: Guards) -> Overlay:
    """A durable subscriber of B comes back at a broker whose cache knows B's ticks as silence, asked for with filter A."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    overlay.client("a", 3)
    overlay.client("b", 2)
    follow(overlay, 1.0, "a", "wants-a", "A")
    follow(overlay, 1.0, "b", "wants-b", "B", durable=True)
    publish(overlay, "writer", "A", *every(0.2, 2.0, 6.0))
    publish(overlay, "writer", "B", *every(0.2, 2.1, 6.1))
    overlay.at(3.0, overlay.clients["b"].crash)
    overlay.at(3.0, lambda: overlay.clients["b"].move([overlay.node(3)]))
    overlay.at(5.5, overlay.clients["b"].start)
    overlay.run(8.0)
    return overlay


def a_subscription_starts_somewhere_exact(guards: Guards) -> Overlay:
    """A message is published after `subscribe` returned, while the interest would still be on its way to the far broker."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2)
    overlay.link(1, 2, FAR)
    overlay.client("writer", 1)
    overlay.client("other", 2)
    overlay.client("reader", 2)
    follow(overlay, 1.0, "other", "wants-x", "X")  # so that knowledge flows, complete for X only
    follow(overlay, 4.0, "reader", "wants-a", "A")
    publish(overlay, "writer", "X", *every(0.05, 3.0, 6.0))
    publish(overlay, "writer", "A", *every(0.05, 4.01, 6.0))
    overlay.run(8.0)
    return overlay


def horizons_survive_crashes(guards: Guards) -> Overlay:
    """A broker that has announced silence crashes and comes back with a clock that went back."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    overlay.client("writer", 1)
    overlay.client("reader", 2)
    follow(overlay, 1.0, "reader", "all", None)
    publish(overlay, "writer", "A", 2.0)
    overlay.at(6.0, overlay.node(1).crash)
    overlay.at(6.1, lambda: overlay.node(1).step_clock(-3_000))
    overlay.at(6.2, overlay.node(1).start)
    publish(overlay, "writer", "B", 6.8, 7.0)
    overlay.run(8.0)
    return overlay


def publishers_retry(guards: Guards) -> Overlay:
    """A broker crashes after a message is durable and before its publisher has heard of it; the publisher sends it again."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1)
    overlay.client("writer", 1, profile=FAR_CLIENT)
    overlay.client("reader", 1)
    follow(overlay, 1.0, "reader", "all", None)
    publish(overlay, "writer", "A", 2.0, 3.0)  # the second arrives at 3.2 and is durable a few milliseconds later
    overlay.at(3.3, overlay.node(1).crash)
    overlay.at(3.5, overlay.node(1).start)
    overlay.run(6.0)
    return overlay


def release_is_per_broker(guards: Guards) -> Overlay:
    """A durable subscriber's broker is cut off for a while; everybody else has got everything."""
    overlay = Overlay(1, guards=guards)
    overlay.broker(1, disk=SMALL_SEGMENTS)
    overlay.broker(2)
    cable = overlay.link(1, 2)
    overlay.client("writer", 1)
    overlay.client("near", 1)
    overlay.client("far", 2)
    follow(overlay, 1.0, "near", "near", None)
    follow(overlay, 1.0, "far", "far", None, durable=True)
    publish(overlay, "writer", "A", *every(0.1, 2.0, 8.0))
    overlay.at(3.0, cable.cut)
    overlay.at(8.0, cable.heal)
    overlay.run(10.0)
    return overlay


def durable_subscribers_move(guards: Guards) -> Overlay:
    """A durable subscriber loses its connection, with acknowledgements on the way, and goes on at another broker."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    overlay.client("writer", 1)
    overlay.client("reader", 1, profile=FAR_CLIENT)
    follow(overlay, 1.0, "reader", "all", None, durable=True)
    publish(overlay, "writer", "A", *every(0.05, 2.0, 6.0))
    overlay.at(4.0, overlay.clients["reader"].cut_off)
    overlay.at(4.0, lambda: overlay.clients["reader"].move([overlay.node(2)]))
    overlay.run(8.0)
    return overlay


def overflow_drops_data_only(guards: Guards) -> Overlay:
    """A broker comes into reach while the only way to the subscriber's broker is full of data."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2, CableProfile(bytes_per_s=20_000, backlog_bytes_max=1_500))
    late = overlay.link(1, 3)
    overlay.client("writer", 1)
    overlay.client("late", 3)
    overlay.client("reader", 2)
    overlay.at(0.5, late.cut)
    follow(overlay, 2.0, "reader", "all", None)
    publish(overlay, "writer", "A", *every(0.02, 3.9, 4.9), bulk=3000)
    overlay.at(4.0, late.heal)
    publish(overlay, "late", "B", 6.0)
    overlay.run(7.0)
    return overlay


def views_disagree_in_a_loop(guards: Guards) -> Overlay:
    """A short way closes a loop: one broker has it for its parent while the others still send along the long way."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2, FAR)
    overlay.link(2, 3, FAR)
    short = overlay.link(1, 3)
    overlay.client("writer", 1)
    overlay.client("reader", 3)
    overlay.at(0.5, short.cut)
    follow(overlay, 2.0, "reader", "all", None)
    publish(overlay, "writer", "A", *every(0.2, 5.0, 9.0))
    overlay.at(7.0, short.heal)
    overlay.run(11.0)
    return overlay


def unacknowledged_messages_belong_to_their_broker(guards: Guards) -> Overlay:
    """A broker crashes after a message is durable; its publisher, which does not know that, goes on at another broker."""
    overlay = Overlay(1, guards=guards)
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    overlay.client("writer", 1, 2, profile=FAR_CLIENT)
    overlay.client("reader", 2)
    follow(overlay, 1.0, "reader", "all", None)
    publish(overlay, "writer", "A", 2.0, 3.0)  # the second arrives at 3.2 and is durable a few milliseconds later
    overlay.at(3.3, overlay.node(1).crash)
    overlay.at(6.0, overlay.node(1).start)
    overlay.run(8.0)
    return overlay


# guard -> (schedule, what the checkers find without it)
TRAPS: Final[dict[str, tuple[Callable[[Guards], Overlay], str]]] = {
    "silence_is_labelled": (silence_is_relative, "lost"),
    "subscribe_waits_for_path": (a_subscription_starts_somewhere_exact, "lost"),
    "horizon_is_reserved": (horizons_survive_crashes, "lost"),
    "publishers_are_remembered": (publishers_retry, "duplicated"),
    "holds_survive_links": (release_is_per_broker, "released"),
    "position_of_client_wins": (durable_subscribers_move, "duplicated"),
    "control_is_never_dropped": (overflow_drops_data_only, "stuck"),
    "knowledge_is_idempotent": (views_disagree_in_a_loop, "duplicated"),
    "doubtful_messages_stay": (unacknowledged_messages_belong_to_their_broker, "duplicated"),
}


def found(schedule: Callable[[Guards], Overlay], guards: Guards) -> list[str]:
    overlay = schedule(guards)
    overlay.heal()
    overlay.settle(30.0)
    assert overlay.messages > 0
    return sorted({violation.kind for violation in overlay.violations()})


def test_every_guard_has_its_schedule() -> None:
    """A guard nobody can see failing is not tested."""
    assert list(TRAPS) == [field.name for field in fields(Guards)]


@pytest.mark.parametrize("guard", TRAPS)
def test_with_the_guard_nothing_is_found(guard: str) -> None:
    """With every guard on the schedule passes."""
    assert found(TRAPS[guard][0], ALL_ON) == []


@pytest.mark.parametrize("guard", TRAPS)
def test_without_the_guard_the_checkers_find_it(guard: str) -> None:
    """With this one guard off the checkers catch what it prevents."""
    schedule, kind = TRAPS[guard]
    assert kind in found(schedule, replace(ALL_ON, **{guard: False}))
