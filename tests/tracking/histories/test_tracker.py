"""The tracker: when it wants to flush, what a flush holds, and its bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.ids import WALL_MS, make_ids
from tests.tracking.overlay import ids_of

from postroad.core.protocol.packets import pubend_id
from postroad.tracking.histories import tracker as module
from postroad.tracking.histories.elements import (
    NO_SINGLETONS,
    Crash,
    Element,
    Farewell,
    Flush,
    HistoryKey,
    Horizon,
    Kind,
    Links,
    Lost,
    Span,
)
from postroad.tracking.histories.events import Delivered, Deliveries, Forwarded, Published, Routed, TrackEvent
from postroad.tracking.histories.settings import OFF, Strategy, TrackingSettings
from postroad.tracking.histories.tracker import NEIGHBOURS_MAX, Tracker, omitted
from postroad.tracking.queries.search import search

PUBEND = pubend_id(1)
EMPTY = Flush((), (), ())
SETTINGS = TrackingSettings(persistence_ms=1_000, skew_tolerance_ms=100, jitter_ms=0)


def started(settings: TrackingSettings = SETTINGS) -> Tracker:
    return Tracker(1, 7, settings, wall_ms=WALL_MS)


def published(count: int, at_ms: int) -> Published:
    return Published(PUBEND, make_ids(count, start_ms=at_ms, per_ms=1_000, seed=at_ms % 1_000))


def span(number: int, to_tick: int, pubend: int = PUBEND) -> Span:
    return Span("a", number, pubend, "TRUE", 0, to_tick, WALL_MS)


# --- flushes -------------------------------------------------------------------------------------------------------------------


def test_nothing_new_is_nothing_to_flush() -> None:
    """Before the first event, and again after each flush."""
    tracker = started()
    assert not tracker.wants_flush(WALL_MS + 10_000)
    assert tracker.flush(WALL_MS + 10_000) == EMPTY
    tracker.take([published(3, WALL_MS)], WALL_MS)
    assert len(tracker.flush(WALL_MS + 11_000).closed) == 1
    assert not tracker.wants_flush(WALL_MS + 30_000)
    assert tracker.flush(WALL_MS + 30_000) == EMPTY


def test_a_flush_is_wanted_when_the_persistence_interval_is_over() -> None:
    """T_p after the flush before, if something is new."""
    tracker = started()
    tracker.take([published(3, WALL_MS)], WALL_MS)
    assert not tracker.wants_flush(WALL_MS + 999)
    assert tracker.wants_flush(WALL_MS + 1_000)


def test_an_element_is_closed_by_the_flush_at_the_end_of_its_lifetime() -> None:
    """With T_n below T_p every flush at T_p closes everything, and leaves nothing in memory."""
    tracker = started()
    tracker.take([published(3, WALL_MS + 500)], WALL_MS + 500)
    flush = tracker.flush(WALL_MS + 1_000)
    assert [(element.count, element.number) for element in flush.closed] == [(3, 1)]
    assert flush.copies == ()
    assert (tracker.memory_bytes, tracker.histories) == (0, 0)


def test_a_successor_of_a_full_element_is_copied_first() -> None:
    """It began when the full one ended, so it is younger than T_p at the flush: stored as a copy, and closed later."""
    tracker = started(replace(SETTINGS, ids_max=10))
    tracker.take([published(14, WALL_MS + 600)], WALL_MS + 600)
    first = tracker.flush(WALL_MS + 1_000)
    assert [(element.number, element.count) for element in first.closed] == [(1, 10)]
    assert [(element.number, element.count) for element in first.copies] == [(2, 4)]
    tracker.take([published(2, WALL_MS + 1_100)], WALL_MS + 1_100)
    second = tracker.flush(WALL_MS + 2_000)
    assert [(element.number, element.count) for element in second.closed] == [(2, 6)]
    assert second.copies == ()


def test_a_broker_with_t_p_below_t_n_replaces_copies() -> None:
    """Section 4.3: stored every T_p, closed only after T_n; each copy holds what the one before held."""
    tracker = started(replace(SETTINGS, lifetime_min_ms=3_000))
    copies: list[Element] = []
    for turn in range(1, 4):
        at_ms = WALL_MS + 1_000 * turn
        tracker.take([published(5, at_ms - 500)], at_ms - 500)
        assert tracker.wants_flush(at_ms)
        flush = tracker.flush(at_ms)
        copies += flush.copies
        if turn < 3:
            assert flush.closed == ()
        else:
            assert [(element.number, element.count) for element in flush.closed] == [(1, 15)]
            assert flush.copies == ()
    assert [(element.number, element.count) for element in copies] == [(1, 5), (1, 10)]


def test_a_copied_element_is_closed_even_when_nothing_comes_any_more() -> None:
    """Its lifetime ends, a flush is wanted, and it leaves the copies for good."""
    tracker = started(replace(SETTINGS, lifetime_min_ms=3_000))
    tracker.take([published(5, WALL_MS)], WALL_MS)
    assert len(tracker.flush(WALL_MS + 1_000).copies) == 1
    assert not tracker.wants_flush(WALL_MS + 2_000)
    assert tracker.flush(WALL_MS + 2_000) == EMPTY
    assert tracker.wants_flush(WALL_MS + 3_000)
    assert [element.count for element in tracker.flush(WALL_MS + 3_000).closed] == [5]


def test_a_clock_that_is_set_back_does_not_keep_anything_from_the_disk() -> None:
    """A flush is wanted at once, closes what began at times still to come, and things go on from the new time."""
    tracker = started(replace(SETTINGS, lifetime_min_ms=5_000))
    tracker.take([published(3, WALL_MS)], WALL_MS)
    back = WALL_MS - 3_600_000
    tracker.take([published(4, back)], back)
    assert tracker.wants_flush(back)
    flush = tracker.flush(back)
    assert (sum(element.count for element in flush.closed), flush.copies) == (7, ())
    assert len(search(flush.closed, published(4, back).ids)) == 4
    tracker.take([published(5, back)], back + 1)
    assert not tracker.wants_flush(back + 2)
    assert [element.count for element in tracker.flush(back + 6_000).closed] == [5]


def test_the_copies_of_a_flush_are_all_that_lives_on() -> None:
    """Also those that did not change, as the file of the copies before is replaced."""
    tracker = started(replace(SETTINGS, lifetime_min_ms=5_000))
    tracker.take([Delivered("a", PUBEND, make_ids(2)), Delivered("b", PUBEND, make_ids(2))], WALL_MS)
    tracker.flush(WALL_MS + 1_000)
    tracker.take([Delivered("b", PUBEND, make_ids(1))], WALL_MS)
    assert [element.key.subscriber for element in tracker.flush(WALL_MS + 2_000).copies] == ["a", "b"]


def test_a_copy_does_not_change_any_more() -> None:
    """What was given out for writing stays as it is while the element grows."""
    for strategy in (Strategy.BLOOM, Strategy.EXACT, Strategy.ASYNC):
        tracker = started(replace(SETTINGS, strategy=strategy, few_as_ids=False, lifetime_min_ms=9_000))
        tracker.take([published(600, WALL_MS)], WALL_MS)
        (copy,) = tracker.flush(WALL_MS + 1_000).copies
        before = bytes(np.asarray(copy.bits if copy.bits is not None else copy.ids).tobytes())
        tracker.take([published(1_200, WALL_MS + 1_100)], WALL_MS + 1_100)
        list(tracker.open_elements())
        assert np.asarray(copy.bits if copy.bits is not None else copy.ids).tobytes() == before


def test_a_farewell_closes_everything() -> None:
    """The last flush of an incarnation says that nothing is missing, even when there is nothing else to say."""
    tracker = started(replace(SETTINGS, lifetime_min_ms=9_000))
    tracker.take([published(5, WALL_MS)], WALL_MS)
    flush = tracker.flush(WALL_MS + 10, farewell=True)
    assert len(flush.closed) == 1
    assert flush.copies == ()
    assert flush.records == (Farewell(WALL_MS + 10),)
    assert started().flush(WALL_MS, farewell=True) == Flush((), (), (Farewell(WALL_MS),))


# --- what goes where -----------------------------------------------------------------------------------------------------------


def test_events_go_to_the_histories_they_speak_of() -> None:
    """A key per kind, origin and peer or subscriber; numbers ascend in the order of the first event."""
    ids = make_ids(4)
    events: list[TrackEvent] = [
        Delivered("s", pubend_id(2, 1), ids[:1]),
        Published(PUBEND, ids),
        Routed(pubend_id(3), 9, ids),
        Forwarded(pubend_id(3), 5, ids),
        Delivered("s", pubend_id(2, 0), ids[1:]),
        Published(PUBEND, ids[:0]),
    ]
    tracker = started()
    tracker.take(events, WALL_MS)
    closed = tracker.flush(WALL_MS + 1_000).closed
    assert [(element.key, element.count, element.number) for element in closed] == [
        (HistoryKey(Kind.SUBSCRIBER, 2, subscriber="s"), 4, 1),
        (HistoryKey(Kind.PUBLISHER, 1), 4, 2),
        (HistoryKey(Kind.ROUTING, 3, peer=9), 4, 3),
        (HistoryKey(Kind.NEIGHBOUR, 3, peer=5), 4, 4),
    ]
    assert {element.incarnation for element in closed} == {7}


def test_events_without_ids_open_nothing() -> None:
    """An empty batch leaves no trace."""
    tracker = started()
    tracker.take([Published(PUBEND, make_ids(0))], WALL_MS)
    assert not tracker.wants_flush(WALL_MS + 1_000)
    assert tracker.flush(WALL_MS + 1_000).closed == ()
    assert tracker.memory_bytes == 0


def test_null_keeps_records_only() -> None:
    """Without histories the records still explain what subscribers were promised."""
    tracker = started(replace(OFF, persistence_ms=1_000))
    tracker.take([published(5, WALL_MS), span(1, 5)], WALL_MS)
    assert tracker.flush(WALL_MS + 1_000) == Flush((), (), (span(1, 5),))


def test_of_spans_and_horizons_the_newest_is_written() -> None:
    """Others are written as often as they come, in their order."""
    tracker = started()
    lost = Lost("a", PUBEND, 1, 2, WALL_MS)
    events: list[TrackEvent] = [
        span(1, 5),
        Links(WALL_MS, (2,)),
        Horizon(PUBEND, 5),
        span(2, 6),
        lost,
        lost,
        span(1, 9),
        Horizon(PUBEND, 8),
    ]
    tracker.take([*events, span(1, 4, pubend_id(2)), Crash(7, 1, 2)], WALL_MS)
    records = tracker.flush(WALL_MS + 1_000).records
    assert records == (
        Links(WALL_MS, (2,)),
        span(2, 6),
        lost,
        lost,
        span(1, 9),
        Horizon(PUBEND, 8),
        span(1, 4, pubend_id(2)),
        Crash(7, 1, 2),
    )


def test_records_that_wait_can_be_seen() -> None:
    """An explanation looks at what is not written yet, too."""
    tracker = started()
    tracker.take([span(1, 5), span(1, 9)], WALL_MS)
    assert list(tracker.open_records()) == [span(1, 9)]
    tracker.flush(WALL_MS + 1_000)
    assert list(tracker.open_records()) == []


def test_elements_that_became_full_hold_all_they_were_given() -> None:
    """Bits are set for many elements at once, some after the element was closed; who looks sees them all."""
    tracker = started(replace(SETTINGS, strategy=Strategy.BLOOM, m=4_096, k=4, n=600))
    event = published(1_450, WALL_MS)
    for start, stop in ((0, 20), (20, 300), (300, 1_450)):  # ids that wait to be hashed; some more; two elements in one go
        tracker.take([Published(PUBEND, event.ids[start:stop]), Delivered("a", PUBEND, event.ids[start:stop])], WALL_MS)
    counts: list[int] = []
    for element in tracker.open_elements():
        if element.key.kind is Kind.PUBLISHER:
            given = event.ids[sum(counts) :][: element.count]
            counts.append(element.count)
            assert len(search([element], given).rows) == element.count
    assert counts == [600, 600, 250]


@given(st.lists(st.tuples(st.integers(1, 25), st.integers(0, 2_000), st.booleans()), min_size=1, max_size=8))
def test_orders_that_waited_are_taken_as_if_they_had_not(orders: list[tuple[int, int, bool]]) -> None:
    """Elements begin and end when the ids were ordered, so that waiting makes no message late, however short T_s and T_j are."""
    wall_ms = WALL_MS
    said: list[tuple[int, list[TrackEvent]]] = []
    for number, (count, passes_ms, is_shared) in enumerate(orders):
        wall_ms += passes_ms
        ids = make_ids(count, start_ms=wall_ms, per_ms=1_000, seed=number)
        others = ids if is_shared else make_ids(count, start_ms=wall_ms, per_ms=1_000, seed=99 - number)
        whose, counts, rows = (np.array(each, np.uint32) for each in ([1, 0, 1], [1, count, 1], [0, *range(count), count - 1]))
        said.append((wall_ms, [Published(PUBEND, ids), Deliveries(("a", "b"), PUBEND, others, whose, counts, rows)]))

    def flushed(tracker: Tracker) -> list[tuple[Any, ...]]:
        flush = tracker.flush(wall_ms + 50)
        parts = [*((element, False) for element in flush.closed), *((element, True) for element in flush.copies)]
        return sorted((e.key, *(getattr(e, name) for name in names), ids_of([e]), is_copy) for e, is_copy in parts)

    names = ("opened_ms", "closed_ms", "from_ms", "to_ms", "count")
    at_once, in_time = (started(replace(SETTINGS, ids_max=20)) for _ in range(2))
    at_once.take_orders(said)
    for ordered_ms, events in said:
        in_time.take(events, ordered_ms)
    found = flushed(at_once)
    assert found == flushed(in_time)
    assert sum(each[5] for each in found) == sum(2 * count + 2 for count, _, _ in orders)


def test_open_elements_hold_what_is_not_written() -> None:
    """Full ones that wait for the flush, and unfinished ones."""
    tracker = started(replace(SETTINGS, ids_max=10))
    event = published(14, WALL_MS)
    tracker.take([event], WALL_MS)
    assert sorted(element.count for element in tracker.open_elements()) == [4, 10]
    assert search(tracker.open_elements(), event.ids).rows.tolist() == list(range(14))


# --- bounds --------------------------------------------------------------------------------------------------------------------


def test_too_much_memory_stores_the_fullest_early() -> None:
    """A flush is wanted at once; it closes the largest elements and keeps the small ones as copies."""
    tracker = started(replace(SETTINGS, memory_bytes_max=100_000))
    tracker.take([Delivered(f"s{number}", PUBEND, make_ids(1)) for number in range(20)], WALL_MS)
    assert not tracker.wants_flush(WALL_MS + 1)
    tracker.take([Delivered("large", PUBEND, make_ids(6_000, per_ms=1_000))], WALL_MS)
    assert tracker.wants_flush(WALL_MS + 1)
    flush = tracker.flush(WALL_MS + 1)
    assert [element.key.subscriber for element in flush.closed] == ["large"]
    assert len(flush.copies) == 20
    assert tracker.memory_bytes <= 50_000
    assert not tracker.wants_flush(WALL_MS + 2)


def test_full_elements_that_wait_count_as_memory() -> None:
    """They are in memory until they are handed over."""
    tracker = started(replace(SETTINGS, ids_max=100, memory_bytes_max=100_000))
    tracker.take([published(6_000, WALL_MS)], WALL_MS)
    assert tracker.memory_bytes > 96_000
    assert tracker.wants_flush(WALL_MS)
    assert sum(element.count for element in tracker.flush(WALL_MS).closed) == 6_000
    assert tracker.memory_bytes == 0


def test_too_many_histories_close_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: those opened first are written with the next flush."""
    monkeypatch.setattr(module, "HISTORIES_MAX", 10)
    tracker = started()
    tracker.take([Delivered(f"s{number}", PUBEND, make_ids(1)) for number in range(25)], WALL_MS)
    assert tracker.histories == 10
    assert [element.key.subscriber for element in tracker.flush(WALL_MS).closed] == [f"s{number}" for number in range(15)]


def test_a_history_that_was_closed_early_begins_anew_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next element does not reach back before that, so ranges of its elements overlap no more than the skew allows."""
    monkeypatch.setattr(module, "HISTORIES_MAX", 1)
    tracker = started()
    for name, wall_ms in (("a", WALL_MS), ("b", WALL_MS + 900), ("a", WALL_MS + 900)):
        tracker.take([Delivered(name, PUBEND, make_ids(1, start_ms=WALL_MS))], wall_ms)
    (reopened,) = (
        element for element in tracker.open_elements() if element.opened_ms > WALL_MS and element.key.subscriber == "a"
    )
    assert reopened.singletons.tolist() == [WALL_MS]


def test_a_history_that_is_closed_early_ends_with_the_last_order_that_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with that of the history it makes room for, which may be older than its own last id."""
    monkeypatch.setattr(module, "HISTORIES_MAX", 1)
    tracker = started()
    early, late = (make_ids(1, start_ms=WALL_MS + passed) for passed in (0, 500))
    orders = [
        (WALL_MS, [Delivered("a", PUBEND, early), Delivered("b", PUBEND, early)]),
        (WALL_MS + 500, [Delivered("a", PUBEND, late)]),
    ]
    tracker.take_orders(orders)
    first = tracker.flush(WALL_MS + 1_000).closed[0]
    assert (first.key.subscriber, first.count, first.closed_ms - WALL_MS) == ("a", 2, 500)


def test_too_many_records_want_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are bounded like everything that grows."""
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    tracker = started()
    tracker.take([span(number, 1) for number in range(3)], WALL_MS)
    assert tracker.wants_flush(WALL_MS)


# --- hooks ---------------------------------------------------------------------------------------------------------------------


def test_omit_one_in_leaves_out_exactly_the_deliveries_of_the_predicate() -> None:
    """Deliveries whose hash divides by N; published messages are all there."""
    ids = make_ids(500)
    tracker = started(replace(SETTINGS, omit_one_in=7))
    tracker.take([Published(PUBEND, ids), Delivered("é", PUBEND, ids), Delivered("b", PUBEND, ids[:1])], WALL_MS)
    hits = search(tracker.flush(WALL_MS + 1_000).closed, ids)
    left_out = [row for row, one in enumerate(ids) if xxhash.xxh64("é".encode() + one.tobytes()).intdigest() % 7 == 0]
    assert 40 < len(left_out) < 110
    assert [row for row in range(500) if omitted("é", ids[row].tobytes(), 7)] == left_out
    found = [row for row, key, _, _ in hits if key.subscriber == "é"]
    assert sorted({*range(500)} - {*found}) == left_out
    assert sum(key.kind is Kind.PUBLISHER for key in hits.keys) == 500


def test_a_delivery_that_is_omitted_alone_opens_no_history() -> None:
    """An empty rest is no event."""
    ids = make_ids(200)
    row = next(row for row in range(200) if omitted("b", ids[row].tobytes(), 5))
    tracker = started(replace(SETTINGS, omit_one_in=5))
    tracker.take([Delivered("b", PUBEND, ids[row : row + 1])], WALL_MS)
    assert tracker.flush(WALL_MS + 1_000).closed == ()


def test_the_same_events_give_the_same_flushes() -> None:
    """Byte for byte, whatever the strategy."""
    for strategy in Strategy:
        settings = replace(SETTINGS, strategy=strategy, n=300, ids_max=300)
        one, other = _run(settings), _run(settings)
        assert [_plain(flush) for flush in one] == [_plain(flush) for flush in other]


def _run(settings: TrackingSettings) -> list[Flush]:
    tracker, flushes = started(settings), []
    random = np.random.default_rng(3)
    for turn in range(40):
        at_ms = WALL_MS + 100 * turn
        ids = make_ids(100, start_ms=at_ms, seed=turn)
        events = [Delivered(f"s{random.integers(0, 9)}", PUBEND, ids[row : row + 3]) for row in range(0, 97, 4)]
        tracker.take([Published(PUBEND, ids), *events, span(1, turn)], at_ms)
        if tracker.wants_flush(at_ms):
            flushes.append(tracker.flush(at_ms))
    return [*flushes, tracker.flush(WALL_MS + 4_000, farewell=True)]


def _plain(flush: Flush) -> list[object]:
    return [
        [
            replace(element, bits=np.asarray(element.bits).tobytes(), ids=None, singletons=NO_SINGLETONS).__repr__()
            + str(element.singletons.tolist())
            + str(None if element.ids is None else element.ids.tobytes())
            for element in (*flush.closed, *flush.copies)
        ],
        flush.records,
    ]


# --- routing sets --------------------------------------------------------------------------------------------------------------


def routed(masks: Sequence[int], neighbours: tuple[int, ...]) -> Routed:
    return Routed(PUBEND, 4, make_ids(len(masks)), np.array(masks, np.uint64), neighbours)


def test_routing_sets_tell_where_a_message_went() -> None:
    """The set of neighbours comes out of the bloom's key."""
    tracker = started(replace(SETTINGS, strategy=Strategy.BLOOM, routing_sets=True))
    event = routed([0, 1, 2, 3, 5, 7], (11, 12, 13))
    tracker.take([event], WALL_MS)
    hits = search(tracker.flush(WALL_MS + 1_000).closed, event.ids)
    assert hits.rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert hits.forwarded == ((), (11,), (12,), (11, 12), (11, 13), (11, 12, 13))


def test_routing_sets_of_too_many_neighbours_are_not_kept() -> None:
    """A search would have to try 2**D sets: beyond the bound the ids alone are the keys, and all are found."""
    tracker = started(replace(SETTINGS, strategy=Strategy.BLOOM, routing_sets=True))
    event = routed([0, 1, 2], tuple(range(NEIGHBOURS_MAX + 1)))
    tracker.take([event, Routed(PUBEND, 4, event.ids)], WALL_MS)
    hits = search(tracker.flush(WALL_MS + 1_000).closed, event.ids)
    assert hits.rows.tolist() == [0, 1, 2]
    assert hits.forwarded == (None, None, None)


def test_routing_sets_are_for_blooms_only() -> None:
    """Other strategies keep the ids, and say nothing of sets."""
    tracker = started(replace(SETTINGS, strategy=Strategy.EXACT, routing_sets=True))
    event = routed([0, 1, 2], (11, 12))
    tracker.take([event], WALL_MS)
    (element,) = tracker.flush(WALL_MS + 1_000).closed
    assert element.neighbours == ()
    assert search([element], event.ids).forwarded == (None, None, None)


def test_long_work_comes_in_pieces() -> None:
    """An event loop beside it gets a word in after each history, when ids are taken and when they are flushed."""
    pauses: list[None] = []
    tracker = Tracker(1, 7, SETTINGS, wall_ms=WALL_MS, pause=lambda: pauses.append(None))
    ids = make_ids(300)
    tracker.take([Delivered(f"s{number}", PUBEND, ids[number : number + 1]) for number in range(300)], WALL_MS)
    assert len(pauses) >= 300
    pauses.clear()
    assert len(tracker.flush(WALL_MS + SETTINGS.lifetime_ms).closed) == 300
    assert len(pauses) >= 300
