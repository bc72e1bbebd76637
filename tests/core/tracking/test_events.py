"""What was delivered, batch by batch, taken apart by subscriber."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.core.tracking.ids import make_ids

from postroad.core.tracking.elements import Horizon, Span
from postroad.core.tracking.events import DeliveredRows, Deliveries, Forwarded, Published, Routed, TrackEvent, in_columns, joined
from postroad.core.tracking.settings import TrackingSettings
from postroad.core.tracking.tracker import Tracker

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


@given(batches)
def test_each_subscriber_gets_its_own_in_the_order_of_sending(sent: Sent) -> None:
    """Taking all batches apart at once gives what going through them one by one does."""
    expected: dict[tuple[int, str], list[bytes]] = {}
    given_batches = []
    for number, (pubend, rows, whose) in enumerate(sent):
        ids = make_ids(rows, seed=number)
        known = {tuple(each): np.array(each, np.intp) for _, each in whose}  # equal selections are one object
        names = [name for name, _ in whose]
        given_batches.append(DeliveredRows(names, pubend, ids, [known[tuple(each)] for _, each in whose]))
        for name, each in whose:
            expected.setdefault((pubend, name), []).extend(ids[row].tobytes() for row in each)
    apart = [(together, *each) for together in in_columns(given_batches) for each in together.apart()]
    found = {(together.pubend, name): [item.tobytes() for item in together.ids[rows]] for together, name, rows in apart}
    assert found == expected


def test_joined_events_say_the_same() -> None:
    """A tracker makes the same histories and records of them, and spans come after the messages they speak of."""
    ids = [make_ids(4, seed=number) for number in range(12)]
    span = Span("a", 1, 256, "", 0, 9, 1)
    events: list[TrackEvent | DeliveredRows] = []
    for number in range(0, 12, 4):
        events += [
            Published(256, ids[number]),
            Routed(512, 7, ids[number + 1]),
            Routed(512, 8, ids[number + 2]),
            Routed(512, 7, ids[number + 3], np.ones(4, np.uint64), (7,)),
            Forwarded(512, 9, ids[number + 1]),
            DeliveredRows(["a", "b"], 256, ids[number], [np.array([0, 1]), np.array([3])]),
            span,
            DeliveredRows(["b"], 512, ids[number + 1], [np.array([2])]),
        ]
    events.append(Horizon(256, 5))
    few = joined(events)
    messages = [Published, Routed, Routed, Forwarded, Deliveries, Deliveries]
    assert [type(event) for event in few] == [*messages, *[Routed, Span] * 3, Horizon]

    def flushed(given: tuple[TrackEvent, ...] | list[TrackEvent]) -> list[str]:
        tracker = Tracker(1, 1, TrackingSettings(per_neighbour=True), wall_ms=0)
        tracker.take(given, 10)
        flush = tracker.flush(20, farewell=True)
        elements = [(each.key, each.count, b"" if each.ids is None else each.ids.tobytes()) for each in flush.closed]
        return [*sorted(map(repr, elements)), *map(repr, flush.records)]

    one_by_one = [each for event in events for each in (in_columns([event]) if isinstance(event, DeliveredRows) else [event])]
    assert flushed(few) == flushed(one_by_one)
