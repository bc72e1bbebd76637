"""Why a subscriber got a message, or not: every verdict from its evidence."""

from __future__ import annotations

from dataclasses import replace

from postroad.tracking.queries.explanation import Evidence, Verdict, approximate_tick, explain
from postroad.tracking.queries.questions import (
    CoverageAnswer,
    HoleFound,
    LossFound,
    MapAnswer,
    MessageAnswer,
    SpanFound,
    Status,
)
from postroad.tracking.queries.reconstruction import Receipt, Trace, TrackHole, Unasked, Visit
from postroad.types import MessageId

ID = MessageId.make(5, 1, 1_790_000_000_000)
TICK = (1_790_000_000_500) << 16
MESSAGE = MessageAnswer(0, TICK + 9, 0, 256, TICK, (bytes(ID), {"price": 5, "symbol": "A"}, b"payload"))
GONE = MessageAnswer(0, TICK, TICK + 5, 256)
OVERLAY = MapAnswer({1: [2], 2: [1, 3], 3: [2]}, 0)
NOTHING = CoverageAnswer([], [], None, None, [])
CRASH = HoleFound("crash", 0, TICK, "it fell")


def span(text: str, lo: int = TICK - 100, hi: int = TICK + 100, detached_ms: int = 0) -> SpanFound:
    return SpanFound(text, lo, hi, 1000, detached_ms)


def path(*brokers: int) -> Trace:
    visits = [Visit(broker, brokers[place - 1] if place else None, 0.0) for place, broker in enumerate(brokers)]
    return Trace(ID, 0.0, tuple(visits), (), (), ())


def evidence(
    coverage: dict[int, CoverageAnswer], trace: Trace | None = None, message: MessageAnswer | None = MESSAGE
) -> Evidence:
    return Evidence(trace or path(1, 2, 3), "s", OVERLAY, message, {1: NOTHING, 2: NOTHING, 3: NOTHING, **coverage})


def test_a_recorded_delivery_is_delivered() -> None:
    """With the broker, the filter of that time, and the probability that it is not so."""
    trace = replace(path(1, 2, 3), subscribers=(Receipt("s", 3, 1e-5), Receipt("t", 2, 0.0)))
    found = explain(evidence({3: CoverageAnswer([span("price > 1")], [], None, None, [])}, trace))
    assert (found.verdict, found.broker, found.filter, found.probability) == (Verdict.DELIVERED, 3, "price > 1", 1e-5)
    assert found.attributes == {"price": 5, "symbol": "A"}
    assert found.tick == TICK


def test_an_isolated_delivery_does_not_count() -> None:
    """It is a false positive in all likelihood; the span says what really happened."""
    trace = replace(path(1), subscribers=(Receipt("s", 3, 1e-5, isolated=True),))
    found = explain(evidence({3: CoverageAnswer([span("price > 9")], [], None, None, [])}, trace))
    assert found.verdict is Verdict.FILTERED


def test_a_filter_that_does_not_match_is_named_with_the_broker_where_the_message_stopped() -> None:
    """Nobody behind broker 2 wanted it."""
    found = explain(evidence({3: CoverageAnswer([span("price > 9")], [], None, None, [])}, path(1, 2)))
    assert (found.verdict, found.broker, found.filter) == (Verdict.FILTERED, 2, "price > 9")
    assert "reached broker 2" in found.reason


def test_without_the_message_a_promise_that_was_kept_means_filtered() -> None:
    """All that matched was sent, and this was not."""
    found = explain(evidence({3: CoverageAnswer([span("price > 1")], [], None, None, [])}, path(1, 2), GONE))
    assert found.verdict is Verdict.FILTERED
    assert "no longer contains the message" in found.reason
    assert found.attributes is None


def test_a_promise_that_was_not_kept_is_missing() -> None:
    """The finding an audit looks for."""
    found = explain(evidence({3: CoverageAnswer([span("price > 1")], [], None, None, [])}))
    assert (found.verdict, found.broker) == (Verdict.MISSING, 3)


def test_a_promise_in_a_crash_window_may_have_been_kept() -> None:
    """The record of it may be what was lost."""
    found = explain(evidence({3: CoverageAnswer([span("price > 1")], [], None, None, [CRASH])}))
    assert found.verdict is Verdict.CRASHED


def test_a_loss_that_was_told_is_a_gap() -> None:
    """Also inside of a span."""
    lost = CoverageAnswer([span("price > 1")], [LossFound(TICK - 5, TICK + 5, 99)], None, None, [])
    assert explain(evidence({2: lost})).verdict is Verdict.GAP


def test_a_subscription_that_has_not_got_so_far_is_in_doubt() -> None:
    """It is attached, and its broker knows everything up to an earlier tick only."""
    behind = CoverageAnswer([], [], span("price > 1", TICK - 100, TICK - 50), None, [])
    found = explain(evidence({3: behind}))
    assert (found.verdict, found.broker) == (Verdict.IN_DOUBT, 3)


def test_a_durable_subscription_that_is_away_is_in_doubt_and_another_is_not_subscribed() -> None:
    """What matches waits for a durable one."""
    left = CoverageAnswer([], [], span("price > 1", TICK - 100, TICK - 50, detached_ms=7), None, [])
    assert explain(evidence({3: left})).verdict is Verdict.IN_DOUBT
    other = replace(evidence({3: left}), subscriber="~3.1.7@client")
    assert explain(other).verdict is Verdict.NOT_SUBSCRIBED


def test_a_filter_decides_also_for_who_is_away_or_not_that_far() -> None:
    """Nothing waits for them: the message will never match."""
    left = CoverageAnswer([], [], span("price > 9", TICK - 100, TICK - 50, detached_ms=7), None, [])
    behind = CoverageAnswer([], [], span("price > 9", TICK - 100, TICK - 50), None, [])
    for coverage in (left, behind):
        found = explain(evidence({3: coverage}))
        assert (found.verdict, found.filter) == (Verdict.FILTERED, "price > 9")
    unknown = explain(evidence({3: left}, message=GONE))
    assert unknown.verdict is Verdict.IN_DOUBT
    assert "2026-" in unknown.reason, "a time, not a tick"


def test_a_subscription_that_began_later_was_not_subscribed_then() -> None:
    """Its first span says when it began."""
    later = CoverageAnswer([], [], None, span("price > 1", TICK + 50, TICK + 500), [])
    found = explain(evidence({3: later}))
    assert (found.verdict, found.broker) == (Verdict.NOT_SUBSCRIBED, 3)
    assert "begins later" in found.reason


def test_between_two_spans_nobody_was_subscribed() -> None:
    """The name was used before and after."""
    before = span("price > 1", TICK - 100, TICK - 50, detached_ms=7)
    around = CoverageAnswer([], [], before, span("price > 1", TICK + 50, TICK + 500), [])
    assert explain(evidence({3: around})).verdict is Verdict.NOT_SUBSCRIBED


def test_a_name_that_nobody_knows_is_not_subscribed_unless_somebody_could_not_be_asked() -> None:
    """Silence of a broker that is away proves nothing."""
    assert explain(evidence({})).verdict is Verdict.NOT_SUBSCRIBED
    away = replace(evidence({}), unasked=(Unasked(4, Status.UNREACHABLE, "no way"),))
    assert explain(away).verdict is Verdict.UNKNOWN
    assert "did not answer: 4" in explain(away).reason


def test_a_subscriber_of_a_broker_that_fell_is_lost_in_the_crash() -> None:
    """It was there before, and what happened in the window is not known."""
    fell = CoverageAnswer([], [], span("price > 1", TICK - 100, TICK - 50, detached_ms=7), None, [CRASH])
    found = explain(evidence({3: fell}))
    assert (found.verdict, found.broker) == (Verdict.CRASHED, 3)


def test_holes_elsewhere_make_it_unknown_whether_somebody_was_subscribed() -> None:
    """Dropped tracks may have known the subscriber."""
    dropped = CoverageAnswer([], [], None, None, [HoleFound("dropped", 0, TICK, "too old")])
    assert explain(evidence({2: dropped})).verdict is Verdict.UNKNOWN


def test_a_message_that_neither_log_nor_tracks_know_was_not_published() -> None:
    """Unless the origin's tracks have a hole that may hide it."""
    nobody = Trace(ID, None, (), (), (), ())
    empty = MessageAnswer(0, TICK, 0, 256)
    assert explain(evidence({}, nobody, empty)).verdict is Verdict.NOT_PUBLISHED
    dropped = replace(nobody, holes=(TrackHole(1, "dropped", 0, TICK, "too old"),))
    assert explain(evidence({}, dropped, empty)).verdict is not Verdict.NOT_PUBLISHED


def test_without_a_tick_the_ids_own_comes_nearest() -> None:
    """For messages that the log has released."""
    assert approximate_tick(path(1), MESSAGE) == TICK
    assert approximate_tick(path(1), GONE) == ID.tick
    assert approximate_tick(path(1), None) == ID.tick


def test_a_filter_of_a_later_version_is_not_tried() -> None:
    """What cannot be parsed here is not called a mismatch."""
    found = explain(evidence({3: CoverageAnswer([span("price >>> 1")], [], None, None, [])}, path(1)))
    assert found.verdict is Verdict.FILTERED
    assert "cannot be checked" in found.reason
