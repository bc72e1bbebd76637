"""The nine traps: for each, a schedule in which the checkers catch what goes wrong without the guard, and which passes with it.

The schedules are written by hand: what matters happens at stated times, so they stay valid when the machines change. The
product has no switches for its guards: each is taken out by a mutant of `tests/mutants/bugs_of_traps.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
from tests.mutants import bugs_of_traps
from tests.mutants.planting import MUTANTS

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


def silence_is_relative() -> Overlay:
    """A durable subscriber of B comes back at a broker whose cache knows B's ticks as silence, asked for with filter A."""
    overlay = Overlay(1)
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


def a_subscription_starts_somewhere_exact() -> Overlay:
    """A message is published after `subscribe` returned, while the interest would still be on its way to the far broker."""
    overlay = Overlay(1)
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


def horizons_survive_crashes() -> Overlay:
    """A broker that has announced silence crashes and comes back with a clock that went back."""
    overlay = Overlay(1)
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


def publishers_retry() -> Overlay:
    """A broker crashes after a message is durable and before its publisher has heard of it; the publisher sends it again."""
    overlay = Overlay(1)
    overlay.brokers(1)
    overlay.client("writer", 1, profile=FAR_CLIENT)
    overlay.client("reader", 1)
    follow(overlay, 1.0, "reader", "all", None)
    publish(overlay, "writer", "A", 2.0, 3.0)  # the second arrives at 3.2 and is durable a few milliseconds later
    overlay.at(3.3, overlay.node(1).crash)
    overlay.at(3.5, overlay.node(1).start)
    overlay.run(6.0)
    return overlay


def release_is_per_broker() -> Overlay:
    """A durable subscriber's broker is cut off for a while; everybody else has got everything."""
    overlay = Overlay(1)
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


def durable_subscribers_move(*, moves: bool = True) -> Overlay:
    """A durable subscriber goes on at another broker while its acknowledgements are on the way to the former one."""
    overlay = Overlay(1)
    overlay.brokers(1, 2)
    overlay.link(1, 2)
    overlay.client("writer", 1)
    overlay.client("reader", 1, profile=FAR_CLIENT)
    follow(overlay, 1.0, "reader", "all", None, durable=True)
    publish(overlay, "writer", "A", *every(0.05, 2.0, 6.0))
    if moves:
        overlay.at(4.0, lambda: overlay.clients["reader"].move([overlay.node(2)]))
    overlay.run(8.0)
    return overlay


def overflow_drops_data_only() -> Overlay:
    """A broker comes into reach while the only way to the subscriber's broker is full of data."""
    overlay = Overlay(1)
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


def views_disagree_in_a_loop(*, loop: bool = True) -> Overlay:
    """A short way closes a loop: one broker has it for its parent while the others still send along the long way."""
    overlay = Overlay(1)
    overlay.brokers(1, 2, 3)
    overlay.link(1, 2, FAR)
    overlay.link(2, 3, FAR)
    short = overlay.link(1, 3)
    overlay.client("writer", 1)
    overlay.client("reader", 3)
    overlay.at(0.5, short.cut)
    follow(overlay, 2.0, "reader", "all", None)
    publish(overlay, "writer", "A", *every(0.2, 5.0, 9.0))
    if loop:
        overlay.at(7.0, short.heal)
    overlay.run(11.0)
    return overlay


def unacknowledged_messages_belong_to_their_broker() -> Overlay:
    """A broker crashes after a message is durable; its publisher, which does not know that, goes on at another broker."""
    overlay = Overlay(1)
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


# mutant -> (schedule, what the checkers find with it)
TRAPS: Final[dict[str, tuple[Callable[[], Overlay], str]]] = {
    "take_any_silence": (silence_is_relative, "lost"),
    "start_before_the_path_is_ready": (a_subscription_starts_somewhere_exact, "lost"),
    "forget_the_announced_horizon": (horizons_survive_crashes, "lost"),
    "forget_publishers_without_a_link": (publishers_retry, "duplicated"),
    "drop_the_holds_of_the_unreachable": (release_is_per_broker, "released"),
    "take_the_cursors_of_the_home": (durable_subscribers_move, "duplicated"),
    "drop_control_when_full": (overflow_drops_data_only, "stuck"),
    "trust_that_knowledge_comes_once": (views_disagree_in_a_loop, "duplicated"),
    "publish_doubtful_messages_elsewhere": (unacknowledged_messages_belong_to_their_broker, "duplicated"),
}

# mutant -> its schedule without what the trap is about
QUIET: Final[dict[str, Callable[[], Overlay]]] = {
    "take_the_cursors_of_the_home": partial(durable_subscribers_move, moves=False),
    "trust_that_knowledge_comes_once": partial(views_disagree_in_a_loop, loop=False),
}


def found(schedule: Callable[[], Overlay]) -> list[str]:
    overlay = schedule()
    overlay.heal()
    overlay.settle(30.0)
    assert overlay.messages > 0
    return sorted({violation.kind for violation in overlay.violations()})


def test_every_trap_has_its_schedule() -> None:
    """A guard nobody can see failing is not tested."""
    assert len(TRAPS) == 9
    assert set(TRAPS) == {name for name, mutant in MUTANTS.items() if mutant.plant.__module__ == bugs_of_traps.__name__}


@pytest.mark.parametrize("name", TRAPS)
def test_with_the_guard_nothing_is_found(name: str) -> None:
    """With every guard in place the schedule passes."""
    assert found(TRAPS[name][0]) == []


@pytest.mark.parametrize("name", TRAPS)
def test_without_the_guard_the_checkers_find_it(name: str) -> None:
    """With this one guard taken out the checkers catch what it prevents."""
    schedule, kind = TRAPS[name]
    with MUTANTS[name].planted():
        assert kind in found(schedule)


@pytest.mark.parametrize("name", QUIET)
def test_without_the_guard_nothing_is_found_where_the_trap_is_not(name: str) -> None:
    """It is the move, and the loop, that the guard is for: the same schedule without these passes with the bug."""
    with MUTANTS[name].planted():
        assert found(QUIET[name]) == []
