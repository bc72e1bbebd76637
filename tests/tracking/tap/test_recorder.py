"""What broker machines tell their trackers, and that they tell nothing when they do not track."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.tracking.overlay import T_P_S, TRACKING, FakeOverlay, each_of, id_list, ids_of

from postroad.core.batch.batch import Batch
from postroad.core.broker.machine import FAST_S
from postroad.core.protocol.orders import Append, Appended, LinkLost, Send
from postroad.core.protocol.packets import Deliver, Flow, Gap, Publish, pubend_id
from postroad.tracking.histories.elements import Horizon, Links, Lost, Span
from postroad.tracking.histories.events import Delivered, Deliveries, Forwarded, Published, Routed
from postroad.tracking.histories.settings import OFF
from postroad.tracking.queries.packets import AskTracks
from postroad.tracking.queries.questions import TracksQuestion
from postroad.tracking.tap import tracked_broker
from postroad.tracking.tap.orders import SearchTracks, Track, Tracked
from postroad.tracking.tap.recorder import EVENT_BYTES, QUIET_MS, SPANS_MAX, Recorder, name_subscriber
from postroad.tracking.tap.tracked_broker import MEMBERSHIP_S, RECORD_S, TrackedConfig

P1, P2 = pubend_id(1), pubend_id(2)
SLOW = TrackedConfig(cache_bytes=1, silence_s=0.5)


def bytes_held(values: Any) -> int:
    """Return how many bytes an array keeps in memory, be they its own or not."""
    return values.nbytes if values.base is None else memoryview(values.base).nbytes


def test_nothing_at_all_is_noted_without_tracking() -> None:
    """The strategy `null` costs no order and no event."""
    overlay = FakeOverlay(1, 2, tracking=OFF)
    overlay.subscribe(2, 1)
    overlay.publish(1, 3)
    overlay.run(3.0)
    assert len(overlay.answers(2, Deliver)) == 1
    assert overlay.tracks(1) == overlay.tracks(2) == []


def test_a_message_is_published_when_it_is_durable() -> None:
    """The event follows the fact that reports the append, not the order."""
    overlay = FakeOverlay(1)
    overlay.publish(1)  # which opens the publisher
    overlay.run(T_P_S / 2)  # the next flush is not before long
    overlay.tracks(1)
    machine = overlay.machines[1]
    machine.order_records()
    message_id = overlay._publishers[1].to_bytes(4) + (1).to_bytes(4) + (overlay.wall_ms << 16 | 999).to_bytes(8)
    machine.receive(Publish(overlay._publishers[1], [(message_id, {}, b"")]), link=101, now=overlay.now)
    orders = machine.outputs()
    (append,) = [order for order in orders if isinstance(order, Append)]
    assert not any(isinstance(order, Track) for order in orders)
    machine.fact(Appended(append.pubend, append.token), now=overlay.now)
    assert not any(isinstance(order, Track) for order in machine.outputs()), "it is gathered for a moment"
    machine.wake(now=overlay.now + RECORD_S)
    assert not any(isinstance(order, Track) for order in machine.outputs()), "there is enough to do in this turn"
    machine.wake(now=overlay.now + RECORD_S + FAST_S / 2)
    (track,) = [order for order in machine.outputs() if isinstance(order, Track)]
    (event,) = track.events
    assert isinstance(event, Published)
    assert (event.pubend, id_list(event.ids), track.entries) == (P1, [message_id], 1)


def order_times(overlay: FakeOverlay, steps: int, publish: Callable[[int], object]) -> list[float]:
    """Let so many milliseconds pass, with what is published in each; return when the broker ordered something tracked."""
    machine = overlay.machines[1]
    ordered: list[float] = []
    for step in range(steps):
        overlay.now += 0.001
        publish(step)
        deadline = machine.deadline()
        assert deadline is not None
        if deadline <= overlay.now:
            machine.wake(now=overlay.now)
        if any(isinstance(order, Track) for order in machine.outputs()):
            ordered.append(overlay.now)
    return ordered


def test_notes_are_ordered_in_a_turn_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times a second a broker looks after everybody: messages that wait for that should not wait for notes as well."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1)
    overlay.run(1.0)
    overlay.tracks(1)
    fast: list[float] = []
    monkeypatch.setattr(overlay.machines[1].machine._edge, "tell_positions", lambda: fast.append(overlay.now))
    ordered = order_times(overlay, 400, lambda _: overlay.publish(1, 5))
    assert len(fast) >= 7
    assert 3 <= len(ordered) <= 5
    assert not set(fast) & set(ordered)


def test_few_notes_are_ordered_twice_a_second() -> None:
    """An order wakes the tracking process: where little is published, it should not be in the way of every hundredth message."""
    overlay = FakeOverlay(1)
    overlay.publish(1)
    overlay.tracks(1)
    ordered = order_times(overlay, 3000, lambda step: overlay.publish(1) if step % 10 == 0 else None)
    assert 4 <= len(ordered) <= 10  # with those of flushes
    assert max(later - earlier for earlier, later in pairwise(ordered)) <= RECORD_S + 2 * FAST_S


def test_the_end_of_an_attachment_is_ordered_without_a_message() -> None:
    """After a crash nobody should look attached who had left."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1)
    overlay.run(3.0)
    before = len(overlay.orders[1])
    while not any(isinstance(order, Track) and order.flush for order in overlay.orders[1][before:]):
        overlay.run(FAST_S)  # after a flush the next one is not before long
    before = len(overlay.orders[1])
    overlay.unsubscribe(1, 1)
    overlay.run(RECORD_S + 3 * FAST_S)
    tracks = [order for order in overlay.orders[1][before:] if isinstance(order, Track) and not order.flush]
    assert any(isinstance(event, Span) and event.detached_ms for track in tracks for event in track.events)


def test_notes_are_ordered_at_once_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in a machine is bounded."""
    monkeypatch.setattr(tracked_broker, "RECORD_BYTES_MAX", 100 * 160)
    overlay = FakeOverlay(1)
    overlay.publish(1)
    before = len(overlay.tracks(1))
    for _ in range(101):
        overlay.publish(1, 10)
    (order,) = [order for order in overlay.orders[1] if isinstance(order, Track)][before:]
    assert order.entries == 101 * 10


def test_what_was_noted_is_ordered_before_a_search() -> None:
    """An answer knows all that happened before the question."""
    overlay = FakeOverlay(1)
    (message_id,) = overlay.publish(1)
    overlay.send(1, AskTracks(1, TracksQuestion(message_id)))
    *_, track, search = [order for order in overlay.orders[1] if isinstance(order, Track | SearchTracks)]
    assert isinstance(search, SearchTracks)
    assert isinstance(track, Track)
    assert ids_of([event for event in track.events if isinstance(event, Published)]) == [message_id]


def test_what_comes_from_a_neighbour_is_routed_once_with_its_name() -> None:
    """Every broker but the origin notes the messages that are new to it, and where they came from."""
    overlay = FakeOverlay(1, 2, 3)
    overlay.subscribe(3, 1)
    ids = overlay.publish(1, 3)
    assert ids_of(overlay.events(1, Published)) == ids
    assert overlay.events(1, Routed) == []
    for broker, upstream in ((2, 1), (3, 2)):
        (event,) = overlay.events(broker, Routed)
        assert (event.pubend, event.upstream, id_list(event.ids), event.masks) == (P1, upstream, ids, None)


def test_a_piece_of_the_past_is_routed_by_everyone_on_its_way() -> None:
    """Catching up passes messages through brokers that never saw them in the stream."""
    overlay = FakeOverlay(1, 2, 3, config=SLOW)
    ids = overlay.publish(1, 3)
    overlay.run(1.0)
    assert overlay.events(2, Routed) == []
    overlay.subscribe(3, 1, earliest=True)
    overlay.run(2.0)
    for broker, upstream in ((2, 1), (3, 2)):
        assert ids_of(overlay.events(broker, Routed)) == ids
        assert {event.upstream for event in overlay.events(broker, Routed)} == {upstream}
    assert ids_of(overlay.events(3, Delivered)) == ids


def test_a_delivery_is_noted_with_the_rows_that_were_sent() -> None:
    """Each subscription has its own, and one event tells of all of them."""
    overlay = FakeOverlay(1)
    for handle, text in ((1, "symbol = 'A'"), (2, ""), (3, ""), (4, "symbol = 'none'")):
        overlay.subscribe(1, handle, text, name=None if handle != 2 else "audit")
    a, b = overlay.publish(1, 2, "A"), overlay.publish(1, 2, "B")
    found: dict[str, list[bytes]] = {}
    for event in overlay.events(1, Delivered):
        found.setdefault(event.subscriber, []).extend(id_list(event.ids))
    assert found == {"~1.1.1@app1": a, "audit": a + b, "~1.1.3@app1": a + b}
    (event,) = [event for order in overlay.tracks(1) for event in order.events if isinstance(event, Deliveries)]
    assert (len(event.subscribers), len(event.rows)) == (3, 10)
    assert sum(order.entries for order in overlay.tracks(1)) == 4 + 6 + 4


def test_the_ids_of_a_note_are_copies() -> None:
    """An event that waits in a backlog keeps no frame in memory."""
    overlay = FakeOverlay(1, 2)
    overlay.subscribe(2, 1)
    overlay.publish(1, 2)
    for broker, kind in ((1, Published), (2, Routed), (2, Deliveries)):
        (event,) = [event for order in overlay.tracks(broker) for event in order.events if isinstance(event, kind)]
        assert bytes_held(event.ids) == event.ids.nbytes


def test_a_span_says_from_where_to_where_everything_was_sent() -> None:
    """It begins with the attachment, grows with the flushes and ends with the subscription."""
    overlay = FakeOverlay(1)
    starts = overlay.subscribe(1, 1, "symbol = 'A'")
    overlay.publish(1, 1, "B")
    overlay.run(2 * T_P_S)
    last = int(overlay.logs[P1][-1].ticks()[-1])
    began, grown = overlay.events(1, Span)[:2]
    assert (began.subscriber, began.filter, began.pubend) == ("~1.1.1@app1", "symbol = 'A'", P1)
    assert (began.from_tick, began.to_tick, began.detached_ms) == (starts[P1], starts[P1], 0)
    assert grown.number == began.number
    assert grown.to_tick >= last
    overlay.unsubscribe(1, 1)
    end = overlay.events(1, Span)[-1]
    assert (end.from_tick, end.detached_ms) == (starts[P1], overlay.wall_ms)
    assert end.to_tick >= grown.to_tick


@pytest.mark.parametrize("how", ["unsubscribe", "link", "farewell"])
def test_a_span_ends_whatever_ends_the_subscription(how: str) -> None:
    """The last record of a span is final."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1, name="audit")
    match how:
        case "unsubscribe":
            overlay.unsubscribe(1, 1)
        case "link":
            overlay.lose_client(1)
        case _:
            overlay.machines[1].farewell()
            overlay.settle()
            assert overlay.tracks(1)[-1].farewell
    assert overlay.events(1, Span)[-1].detached_ms > 0


def test_no_span_claims_more_than_the_deliveries_noted_before_it() -> None:
    """Not even of a subscriber that is behind: the cut is consistent at every moment."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1)
    overlay.send(1, Flow(1, open=False))
    noted: list[bytes] = []
    for number in range(12):
        overlay.publish(1, 2)
        overlay.run(0.7)
        if number == 7:
            overlay.send(1, Flow(1, open=True))
    rows = [(int(t), i) for b in overlay.logs[P1] for t, i in zip(b.ticks(), id_list(b.ids()), strict=True)]
    for order in overlay.tracks(1):
        for event in each_of(order):
            if isinstance(event, Delivered):
                noted += id_list(event.ids)
            if isinstance(event, Span):
                claimed = [each for tick, each in rows if event.from_tick < tick <= event.to_tick]
                assert set(claimed) <= set(noted)
    assert noted == [each for _, each in rows]


def test_a_gap_is_noted_as_lost() -> None:
    """What a subscriber was told is gone is no delivery that is missing."""
    overlay = FakeOverlay(1, 2, config=SLOW)
    overlay.publish(1, 2)
    last = int(overlay.logs[P1][-1].ticks()[-1])
    overlay.released[P1] = last
    overlay.subscribe(2, 1, positions={P1: 1, P2: 1})
    overlay.publish(1)
    overlay.run(3.0)
    (gap,) = [each for each in overlay.answers(2, Gap) if each.pubend == P1]
    (lost,) = [each for each in overlay.events(2, Lost) if each.pubend == P1]
    assert (lost.subscriber, lost.from_tick, lost.to_tick) == ("~2.1.1@app2", gap.lo, gap.hi)


def test_the_neighbours_are_noted_at_the_start_and_when_they_change() -> None:
    """A trace asks the neighbours of the time."""
    overlay = FakeOverlay(1, 2, 3)
    assert overlay.events(2, Links)[-1].neighbours == (1, 3)
    overlay.machines[2].fact(LinkLost(3), now=overlay.now)
    overlay.settle()
    assert overlay.events(2, Links)[-1].neighbours == (1,)
    assert overlay.events(1, Links)[-1].neighbours == (2,)


def test_a_flush_tells_how_far_the_publisher_history_is_complete() -> None:
    """Every row up to the horizon was noted before it."""
    overlay = FakeOverlay(1)
    overlay.publish(1, 2)
    overlay.run(2 * T_P_S)
    last = int(overlay.logs[P1][-1].ticks()[-1])
    flushes = [order for order in overlay.tracks(1) if order.flush]
    assert flushes
    horizons = [event for order in flushes for event in order.events if isinstance(event, Horizon)]
    assert horizons
    assert horizons[-1].tick >= last


def test_a_broker_at_rest_notes_almost_nothing() -> None:
    """Silence is not worth a file every few seconds."""
    overlay = FakeOverlay(1)
    overlay.subscribe(1, 1)
    overlay.publish(1)
    overlay.run(2 * T_P_S)
    before = len([event for order in overlay.tracks(1) for event in order.events])
    overlay.run(QUIET_MS / 1000)
    events = [event for order in overlay.tracks(1) for event in order.events][before:]
    assert 1 <= len(events) <= 4


def test_the_log_is_kept_until_what_it_holds_is_tracked() -> None:
    """After a crash, the publisher history is completed from the log: so the log must be there."""
    overlay = FakeOverlay(1)
    overlay.publish(1, 2)
    overlay.run(3 * T_P_S)
    assert overlay.released[P1] == 0
    (*_, horizon) = overlay.events(1, Horizon)
    overlay.machines[1].fact(Tracked((horizon,)), now=overlay.now)
    overlay.run(1.0)
    last = int(overlay.logs[P1][-1].ticks()[-1])
    assert last < horizon.tick
    assert overlay.released[P1] == last


def test_what_lasts_is_noted_again_when_it_was_forgotten() -> None:
    """Somebody dropped what was noted: who is attached and linked, and how far everything is, must not wait for a change."""
    overlay = FakeOverlay(1, 2)
    overlay.subscribe(1, 1)
    overlay.publish(1)
    overlay.run(2 * T_P_S)
    before = {kind: overlay.events(1, kind) for kind in (Span, Links, Horizon)}
    overlay.run(2 * T_P_S)
    assert all(overlay.events(1, kind) == before[kind] for kind in before), "nothing changes"
    overlay.machines[1].fact(Tracked((), forgotten=True), now=overlay.now)
    overlay.run(2 * T_P_S)
    again = {kind: overlay.events(1, kind)[len(events) :] for kind, events in before.items()}
    attached = {(span.number, span.pubend): span.to_tick for span in before[Span]}
    assert sorted(attached) == sorted((span.number, span.pubend) for span in again[Span])
    assert all(span.to_tick >= attached[span.number, span.pubend] for span in again[Span])
    assert [links.neighbours for links in again[Links]] == [(2,)]
    assert [horizon.pubend for horizon in again[Horizon]] == [P1]


def test_what_is_forwarded_is_noted_per_neighbour_when_asked_for() -> None:
    """Live and as a piece of the past, by the one that put it into a frame."""
    overlay = FakeOverlay(1, 2, 3, tracking=replace(TRACKING, per_neighbour=True), config=SLOW)
    overlay.subscribe(3, 1)
    ids = overlay.publish(1, 2)
    overlay.subscribe(3, 2, earliest=True)
    overlay.run(1.0)
    for broker, neighbour in ((1, 2), (2, 3)):
        events = overlay.events(broker, Forwarded)
        assert {event.neighbour for event in events} == {neighbour}
        assert set(ids_of(events)) == set(ids)
    assert overlay.events(3, Forwarded) == []


def test_a_routing_set_names_the_neighbours_a_message_went_on_to() -> None:
    """One bit for each, in the order in which the neighbours are listed."""
    overlay = FakeOverlay(1, 2, 3, tracking=replace(TRACKING, routing_sets=True))
    overlay.subscribe(2, 1)
    overlay.subscribe(3, 1, "symbol = 'A'")
    overlay.publish(1, 1, "A")
    overlay.publish(1, 1, "B")
    at_two = overlay.events(2, Routed)
    assert all(bytes_held(event.ids) == event.ids.nbytes for event in at_two), "they are copies, so that no frame is kept"
    assert [event.neighbours for event in at_two] == [(1, 3), (1, 3)]
    assert [event.masks.tolist() for event in at_two] == [[0b10], [0b00]]
    (at_three,) = overlay.events(3, Routed)
    assert at_three.masks.tolist() == [0]


def test_spans_that_last_take_turns() -> None:
    """A flush is bounded, however many are attached, and nobody is left out for ever."""
    notes = Recorder()
    reached = 1
    for number in range(SPANS_MAX + 10):
        notes.attached(f"s{number}", P1, "", 0, lambda: reached)
    notes.take()
    seen: list[str] = []
    for _ in range(2):
        reached += 1
        notes.published(P1, Batch.from_columns([bytes(16)], [b""], {}))
        notes.flush({})
        events = [event for event in notes.take()[0] if isinstance(event, Span)]
        assert len(events) == SPANS_MAX
        seen += [event.subscriber for event in events]
    assert len(set(seen)) == SPANS_MAX + 10


def test_what_waits_is_weighed_with_all_that_it_costs() -> None:
    """A backlog is bounded in bytes: objects and arrays count, not only ids."""
    notes = Recorder()
    batch = Batch.from_columns(bytes(16 * 100), [b""] * 100, {})
    selections = [np.arange(10, dtype=np.int32) for _ in range(50)]
    notes.delivered([f"s{number}" for number in range(50)], P1, batch, selections)
    events, entries, size = notes.take()
    assert (len(events), entries) == (1, 500)
    (event,) = events
    assert isinstance(event, Deliveries)
    numbers = (event.whose, event.counts, event.rows)
    assert size > event.ids.nbytes + sum(each.nbytes for each in numbers) + sys.getsizeof(event.subscribers)
    for each in numbers:
        assert bytes_held(each) == each.nbytes, "no selection is kept alive"
    notes.attached("s", P1, "", 0, lambda: 0)
    assert notes.take()[1:] == (0, EVENT_BYTES)


def test_more_neighbours_than_bits_leave_the_sets_out() -> None:
    """A set that cannot name all of them would be wrong about some."""
    notes = Recorder(routing_sets=True)
    notes.links(range(2, 70))
    notes.routed(P1, 2, Batch.from_columns([bytes(16)], [b""], {}), {})
    (routed, _), _, _ = notes.take()
    assert isinstance(routed, Routed)
    assert (routed.masks, routed.neighbours) == (None, ())


@pytest.mark.parametrize(
    ("name", "client", "expected"),
    [
        ("audit", "app", "audit"),
        (None, "app", "~7.2.3@app"),
        (None, "", "~7.2.3"),
        ("~7.2.3@app", "app", "~~7.2.3@app"),
    ],
)
def test_subscribers_have_names_that_cannot_be_confused(name: str | None, client: str, expected: str) -> None:
    """Durable ones their own, others one that nobody has had before."""
    assert name_subscriber(name, 7, 2, 3, client) == expected


def test_a_subscription_tells_its_deliveries_in_the_order_of_its_frames() -> None:
    """What is noted is what was put into frames, no more and no less."""
    overlay = FakeOverlay(1, 2)
    overlay.subscribe(2, 1, "symbol = 'A'", earliest=True)
    for number in range(6):
        overlay.publish(1, 1 + number % 3, "AB"[number % 2])
    overlay.run(1.0)
    sent = [order for order in overlay.orders[2] if isinstance(order, Send) and isinstance(order.message, Deliver)]
    assert ids_of(overlay.events(2, Delivered)) == [each for order in sent if order.batch for each in id_list(order.batch.ids())]


def test_a_new_attachment_does_not_wait_for_the_persistence_interval() -> None:
    """After a crash, who was attached is known: a flush is due a second after somebody came, and no sooner for messages alone."""
    overlay = FakeOverlay(1, tracking=replace(TRACKING, persistence_ms=600_000))
    overlay.publish(1)
    overlay.run(3 * MEMBERSHIP_S)
    assert not any(track.flush for track in overlay.tracks(1))
    overlay.subscribe(1, 1)
    overlay.run(1.5 * MEMBERSHIP_S)
    flushes = [track for track in overlay.tracks(1) if track.flush]
    assert len(flushes) == 1
    assert any(isinstance(record, Span) for track in overlay.tracks(1) for record in each_of(track))
    overlay.run(10.0)
    assert len([track for track in overlay.tracks(1) if track.flush]) == 1
