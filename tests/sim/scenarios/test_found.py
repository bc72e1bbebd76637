"""What the simulator has found, each as a schedule of its own.

A seed's run changes when workload or faults change, so a seed that once failed guards nothing; the schedules keep their meaning.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest

from postroad.core.broker.context import Context
from postroad.core.broker.subscribing.range_reads import OF_A_READ
from postroad.core.protocol.packets import CatchUp, PubendsQuery, Unicast, pubend_id
from postroad.sim.clients import Habits
from postroad.sim.disk import DiskProfile
from postroad.sim.network import CableProfile
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import equals, everything
from postroad.tracking.queries.packets import TrackQuery
from postroad.tracking.queries.questions import TracksQuestion
from postroad.tracking.tap.tracked_broker import TrackedConfig

FORGETFUL: Final = Habits(keeps_file=False)


def line_of(*brokers: int, config: TrackedConfig | None = None, profile: CableProfile | None = None) -> Overlay:
    """Join brokers in a line."""
    overlay = Overlay(1, config=config)
    for broker in brokers:
        overlay.broker(broker, disk=DiskProfile(segment_batches=1))
    for a, b in pairwise(brokers):
        overlay.link(a, b, profile)
    return overlay


def publish_all(overlay: Overlay, client: str, begin: float, end: float, step: float = 0.1, size: int = 0) -> None:
    count = int((end - begin) / step)
    for number in range(count):
        payload = f"{client} {begin} {number}".encode() + bytes(size)
        overlay.at(begin + number * step, partial(overlay.clients[client].publish, {"symbol": "A"}, payload))


def holds(overlay: Overlay, until: float, within: float = 60.0) -> None:
    overlay.run(until)
    overlay.heal()
    assert overlay.settle(within), "it does not converge"
    assert overlay.violations() == []
    assert overlay.deliveries > 0


def test_rows_do_not_overtake_the_answer_to_subscribe() -> None:
    """What is behind a subscription's start in a cache nearby waits until the client knows where it begins."""
    overlay = line_of(1, 2, profile=CableProfile(latency_s=0.2))
    overlay.client("writer", 2)
    reader = overlay.client("reader", 2)
    publish_all(overlay, "writer", 1.0, 5.0)
    text = overlay.filter(everything())
    overlay.at(3.0, lambda: reader.follow(text, subscription="all", earliest=True))
    holds(overlay, 6.0, within=10.0)


def test_a_gap_larger_than_the_cache_is_filled() -> None:
    """After a long cut more is missing than the cache can hold."""
    overlay = line_of(1, 2, config=TrackedConfig(cache_bytes=1_500))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all"))
    publish_all(overlay, "writer", 2.0, 8.0, size=500)
    overlay.at(3.0, overlay.cable(1, 2).cut)
    overlay.at(7.0, overlay.cable(1, 2).heal)
    holds(overlay, 9.0)


def test_the_last_message_is_missed_though_nothing_follows_it() -> None:
    """After a crash the horizon is ahead of the clock, so no silence follows what was lost on the way."""
    overlay = line_of(1, 2)
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all"))
    overlay.at(2.5, overlay.node(1).crash)
    overlay.at(2.6, overlay.node(1).start)
    publish_all(overlay, "writer", 4.0, 4.5)
    overlay.at(4.2, overlay.cable(1, 2).cut)
    overlay.at(6.0, overlay.cable(1, 2).heal)
    holds(overlay, 7.0, within=8.0)


def test_catching_up_ends_over_a_link_slower_than_the_retry() -> None:
    """An answer that takes longer than the retry counts all the same."""
    overlay = line_of(1, 2, config=TrackedConfig(keep_s=60.0), profile=CableProfile(bytes_per_s=15_000))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2)
    publish_all(overlay, "writer", 1.0, 3.0, step=0.05, size=1_500)
    text = overlay.filter(everything())
    overlay.at(4.0, lambda: reader.follow(text, subscription="all", earliest=True))
    holds(overlay, 5.0)


def test_positions_brought_are_not_acknowledged() -> None:
    """A client that received, reconnected and then crashed gets again what its application had not finished."""
    overlay = line_of(1)
    overlay.client("writer", 1)
    reader = overlay.client("reader", 1, habits=Habits(keeps_file=True, acknowledges_after_s=1.0))
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 4.0)
    overlay.at(4.1, reader.cut_off)
    overlay.at(4.6, reader.crash)
    overlay.at(5.0, reader.start)
    holds(overlay, 6.0)


def test_a_durable_subscription_is_not_begun_anew_where_it_is_unknown() -> None:
    """Its client, without a file, comes to a broker that was cut off when the subscription was made."""
    overlay = line_of(1, 2)
    overlay.client("writer", 2)
    reader = overlay.client("reader", 2, habits=FORGETFUL)
    text = overlay.filter(equals("symbol", "A"))
    overlay.at(1.0, overlay.cable(1, 2).cut)
    overlay.at(3.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 4.0, 14.0)
    overlay.at(5.0, lambda: reader.crash(lose_file=True))
    overlay.at(5.0, lambda: reader.move([overlay.node(1)]))
    overlay.at(5.5, reader.start)
    overlay.at(7.0, overlay.cable(1, 2).heal)
    holds(overlay, 15.0)


def test_a_restarted_broker_knows_where_durable_subscriptions_are_at_home() -> None:
    """A client without a file comes to a broker that has just restarted and has no links yet."""
    overlay = line_of(1, 2)
    overlay.client("writer", 2)
    reader = overlay.client("reader", 2, habits=FORGETFUL)
    text = overlay.filter(equals("symbol", "A"))
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 6.0)
    overlay.at(3.0, reader.crash)
    overlay.at(3.0, lambda: reader.move([overlay.node(1)]))
    overlay.at(3.9, overlay.node(1).crash)
    overlay.at(4.0, overlay.node(1).start)
    overlay.at(4.0, reader.start)
    holds(overlay, 7.0)


def test_a_home_that_never_settled_does_not_know_better_than_the_client() -> None:
    """A client that loses its file goes back to its settled home, and from there to the other, which has older word of it."""
    overlay = line_of(1, 2, profile=CableProfile(bytes_per_s=200_000))
    overlay.client("writer", 2)
    reader = overlay.client("reader", 1)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 6.0, size=10_000)
    overlay.at(2.5, overlay.node(1).crash)
    overlay.at(2.5, lambda: reader.move([overlay.node(2)]))  # which cannot settle: a pubend is out of reach
    overlay.at(6.5, lambda: reader.crash(lose_file=True))
    overlay.at(6.5, lambda: reader.move([overlay.node(1)]))
    overlay.at(7.0, overlay.node(1).start)
    overlay.at(8.0, reader.start)
    overlay.at(9.5, overlay.node(1).crash)  # on the way through what it had got already
    overlay.at(9.5, lambda: reader.move([overlay.node(2)]))
    holds(overlay, 11.0)


def test_no_question_has_the_number_of_one_of_a_former_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may be on its way still, and would be taken for the answer to the new one."""
    asked: dict[type, dict[int, set[int]]] = {CatchUp: {}, PubendsQuery: {}, TrackQuery: {}}
    reads: dict[int, set[int]] = {}
    unicast = Context.unicast

    def watched(context: Context, packet: Unicast, **how: Any) -> bool:
        if isinstance(packet, CatchUp | PubendsQuery | TrackQuery) and context.broker == packet.source == 1:
            kinds = reads if packet.request >= OF_A_READ else asked[type(packet)]
            kinds.setdefault(context.incarnation, set()).add(packet.request)
        return unicast(context, packet, **how)

    monkeypatch.setattr(Context, "unicast", watched)
    overlay = line_of(1, 2, config=TrackedConfig(cache_bytes=1))
    overlay.client("writer", 2)
    reader, other = overlay.client("reader", 1), overlay.client("other", 1)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    for life in (2.0, 12.0):
        overlay.at(life, reader.crash)
        publish_all(overlay, "writer", life, life + 2)
        overlay.at(life + 3, reader.start)
        overlay.at(life + 6, lambda: other.read(pubend_id(2), 0, 1 << 60))
        overlay.at(life + 6, other.list_pubends)
        overlay.at(life + 6, lambda: other.ask(2, TracksQuestion(bytes(16))))
    overlay.at(11.0, overlay.node(1).crash)
    overlay.at(11.1, overlay.node(1).start)
    holds(overlay, 22.0)
    for numbers in (reads, *asked.values()):
        assert [*numbers] == [1, 2], "asked in both lives"
        assert all(number % OF_A_READ >> 32 == life for life, those in numbers.items() for number in those)


def test_a_pubend_that_comes_into_reach_later_is_held_before_it_is_announced() -> None:
    """What its broker writes between the announcement and the hold must not be released."""
    overlay = line_of(1, 2, config=TrackedConfig(silence_s=0.1), profile=CableProfile(latency_s=0.3))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2, habits=Habits(acknowledges_after_s=2.0))
    text = overlay.filter(everything())
    overlay.at(1.0, overlay.cable(1, 2).cut)
    overlay.at(3.0, lambda: reader.follow(text, subscription="all"))
    publish_all(overlay, "writer", 4.0, 8.0)
    overlay.at(5.0, overlay.cable(1, 2).heal)
    holds(overlay, 9.0)


def test_a_client_returns_before_its_broker_noticed_that_it_was_gone() -> None:
    """The durable subscription is busy for a moment; the client tries again."""
    overlay = line_of(1)
    overlay.client("writer", 1)
    reader = overlay.client("reader", 1)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 4.0)
    overlay.at(3.0, lambda: reader.cut_off(silently=True))
    holds(overlay, 5.0)


def release_all(overlay: Overlay, until: float) -> None:
    """Check that everything converges, and that the logs then let go of what nobody needs."""
    overlay.run(until)
    overlay.heal()
    assert overlay.settle(), "it does not converge"
    overlay.rest()
    assert overlay.violations() == []
    assert overlay.messages > 0


def test_a_broker_that_needs_nothing_says_so_after_a_restart() -> None:
    """It crashes while it cannot tell the pubend's broker that its last subscription has ended."""
    overlay = line_of(1, 2, config=TrackedConfig(subscriber_grace_s=0.5))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all"))
    publish_all(overlay, "writer", 2.0, 4.0)
    overlay.at(3.0, overlay.cable(1, 2).cut)
    overlay.at(4.0, lambda: reader.end(reader.following[0]))
    overlay.at(11.0, overlay.node(2).crash)  # after it has stored that it needs nothing
    overlay.at(11.5, overlay.node(2).start)
    release_all(overlay, 12.0)


def test_a_hold_that_rose_is_told_again_when_the_pubends_broker_has_crashed() -> None:
    """It had confirmed the higher hold before that was on its disk."""
    overlay = line_of(1, 2, config=TrackedConfig(subscriber_grace_s=0.5))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 2)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all"))
    publish_all(overlay, "writer", 2.0, 6.4)
    overlay.at(6.5, lambda: reader.end(reader.following[0]))
    overlay.at(8.5, overlay.node(1).crash)  # told a moment ago that nothing is held; that is stored every five seconds
    overlay.at(9.0, overlay.node(1).start)
    release_all(overlay, 10.0)


def test_a_durable_name_is_forgotten_while_it_moves() -> None:
    """Its client unsubscribes before the former home has answered: nobody holds the logs for it after that."""
    overlay = line_of(1, 2, profile=CableProfile(latency_s=0.4))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 1)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 8.0)
    overlay.at(5.0, lambda: reader.move([overlay.node(2)]))
    overlay.at(5.5, lambda: reader.end(reader.following[0]))
    release_all(overlay, 8.0)


def move_where_it_cannot_settle(habits: Habits) -> Overlay:
    """Let a durable subscription move from broker 1 to 2 and back, while a pubend it has a cursor in is out of reach."""
    overlay = line_of(1, 2, 3, config=TrackedConfig(subscriber_grace_s=0.5))
    overlay.client("writer", 1)
    reader = overlay.client("reader", 1, habits=habits)
    text = overlay.filter(everything())
    overlay.at(1.0, lambda: reader.follow(text, subscription="all", name="all"))
    publish_all(overlay, "writer", 2.0, 9.0)
    overlay.at(2.5, overlay.node(3).crash)
    overlay.at(3.0, lambda: reader.move([overlay.node(2)]))
    overlay.at(5.0, reader.crash)
    overlay.at(5.0, lambda: reader.move([overlay.node(1)]))
    overlay.at(5.5, reader.start)
    overlay.at(7.0, overlay.node(3).start)
    return overlay


def test_a_home_that_never_settled_holds_no_logs_when_its_client_is_gone() -> None:
    """The former home took the client back: nobody comes for what the other one kept."""
    release_all(move_where_it_cannot_settle(Habits()), 10.0)


def test_a_home_that_has_not_settled_confirms_no_acknowledgement() -> None:
    """Its client may go back to the former home, which would deliver again what was confirmed."""
    holds(move_where_it_cannot_settle(FORGETFUL), 10.0)
