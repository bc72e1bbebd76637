"""What was delivered, batch by batch, taken apart by subscriber."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.ids import make_ids

from postroad.core.batch.batch import Ids
from postroad.tracking.histories import events as events_module
from postroad.tracking.histories.elements import Horizon, Span
from postroad.tracking.histories.events import Delivered, Deliveries, Forwarded, Published, Routed, TrackEvent, apart
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.tap.event_buffer import EventBuffer

Sent = list[tuple[int, int, list[tuple[str, list[int]]]]]  # batches: pubend, rows, who got which

selections = st.lists(st.integers(0, 7), unique=True).map(sorted)
batches = st.lists(
    st.tuples(
        st.sampled_from([256, 257, 512]),
        st.just(8),
        st.lists(st.tuples(st.sampled_from("abcd"), selections), max_size=4, unique_by=lambda each: each[0]),
    ),
    max_size=6,
)


def pieces(ids: Ids) -> list[bytes]:
    """Return ids as a batch of few rows has them: one by one."""
    return [item.tobytes() for item in ids]


@given(batches, st.integers(1, 4), st.booleans())
def test_each_subscriber_gets_its_own_in_the_order_of_sending(sent: Sent, orders: int, one_by_one: bool) -> None:
    """Taking all batches apart at once gives what going through them one by one does, in however many orders they come."""
    expected: dict[tuple[int, str], list[bytes]] = {}
    noted = [EventBuffer() for _ in range(orders)]
    for number, (pubend, rows, whose) in enumerate(sent):
        ids = make_ids(rows, seed=number)
        known = {tuple(each): np.array(each, np.intp) for _, each in whose}  # equal selections are one object
        noted[number * orders // len(sent)].delivered(
            pubend, [ids.tobytes()], rows, [name for name, _ in whose], [known[tuple(each)] for _, each in whose]
        )
        for name, each in whose:
            expected.setdefault((pubend, name), []).extend(ids[row].tobytes() for row in each)
    events = [event for each in noted for event in each.take()]
    found: dict[tuple[int, str], list[bytes]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events_module, "LONG_ROWS", 1 << 20 if one_by_one else 0)
        for pubend in {event.pubend for event in events if isinstance(event, Deliveries)}:
            those = [event for event in events if isinstance(event, Deliveries) and event.pubend == pubend]
            table = np.concatenate([make_ids(3, seed=99), *(event.ids for event in those)])
            firsts = np.cumsum([3, *(len(event.ids) for event in those[:-1])]).tolist()
            for name, rows_of in apart(those, firsts):
                assert (pubend, name) not in found
                found[pubend, name] = [item.tobytes() for item in table[rows_of]]
    assert found == expected


def test_only_events_of_the_same_batches_share_their_ids() -> None:
    """Though the first batch, the last one and their number are the same."""
    first, second, other, last = ([make_ids(1, seed=number).tobytes()] for number in range(4))
    noted = EventBuffer()
    for ids in (first, second, last):
        noted.published(256, ids)
    for ids in (first, other, last):
        noted.forwarded(256, 9, ids)
    published, forwarded = noted.take()
    assert isinstance(published, Published)
    assert isinstance(forwarded, Forwarded)
    assert published.ids.tobytes() == b"".join(first + second + last)
    assert forwarded.ids.tobytes() == b"".join(first + other + last)


def test_events_in_columns_say_the_same() -> None:
    """A tracker makes the same histories and records of them, and spans come after the messages they speak of."""
    ids = [make_ids(4, seed=number) for number in range(12)]
    span = Span("a", 1, 256, "", 0, 9, 1)
    one_by_one: list[TrackEvent] = []
    noted = EventBuffer()
    for number in range(0, 12, 4):
        first, second, third, fourth = ids[number : number + 4]
        firsts, seconds = pieces(first), pieces(second)  # the same object is given twice, as of one batch
        masked = Routed(512, 7, fourth, np.ones(4, np.uint64), (7,))
        noted.published(256, firsts)
        noted.routed(512, 7, seconds)
        noted.routed(512, 8, pieces(third))
        noted.others.append(masked)
        noted.forwarded(512, 9, seconds)
        noted.delivered(256, firsts, 4, ["a", "b"], [np.array([0, 1]), np.array([3])])
        noted.others.append(span)
        noted.delivered(512, seconds, 4, ["b"], [np.array([2])])
        one_by_one += [
            Published(256, first),
            Routed(512, 7, second),
            Routed(512, 8, third),
            masked,
            Forwarded(512, 9, second),
            Delivered("a", 256, first[:2]),
            Delivered("b", 256, first[3:]),
            span,
            Delivered("b", 512, second[2:3]),
        ]
    noted.others.append(Horizon(256, 5))
    one_by_one.append(Horizon(256, 5))
    few = noted.take()
    messages = [Published, Routed, Routed, Forwarded, Deliveries, Deliveries]
    assert [type(event) for event in few] == [*messages, *[Routed, Span] * 3, Horizon]
    assert noted.take() == ()
    published, *_, deliveries, _ = few[:6]
    assert isinstance(published, Published)
    assert isinstance(deliveries, Deliveries)
    assert published.ids is deliveries.ids, "they are of the same batches"

    def flushed(given: Sequence[TrackEvent]) -> list[str]:
        tracker = Tracker(1, 1, TrackingSettings(per_neighbour=True), wall_ms=0)
        tracker.take(given, 10)
        flush = tracker.flush(20, farewell=True)
        elements = [(each.key, each.count, b"" if each.ids is None else each.ids.tobytes()) for each in flush.closed]
        return [*sorted(map(repr, elements)), *map(repr, flush.records)]

    assert flushed(few) == flushed(one_by_one)
