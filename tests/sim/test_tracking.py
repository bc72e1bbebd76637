"""Tracks in the simulator: they tell what happened, whatever fails, and a checker that can tell when they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import sqrt

import msgspec
import numpy as np
import pytest

from postroad.sim.checkers.tracking import SIGMAS, Tally, TracksAreTrue
from postroad.sim.disk import DiskProfile
from postroad.sim.history import Arrived, History, Kept, Refused, Tracks
from postroad.sim.overlay import Overlay
from postroad.sim.predicates import everything
from postroad.sim.soak import play, run_seed
from postroad.sim.workload import Shape
from postroad.tracking.histories.elements import Crash, Element, Kind
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.tap.tracked_broker import TrackedConfig

T_P_S = 1.0
EXACT = TrackingSettings(persistence_ms=int(T_P_S * 1000))
SMALL_BLOOMS = replace(EXACT, strategy=Strategy.BLOOM, m=256, k=4, n=40, few_as_ids=False)
KINDS = [Strategy.EXACT, Strategy.BLOOM, Strategy.ASYNC]


def line(settings: TrackingSettings, *, disk: DiskProfile | None = None) -> Overlay:
    """Three brokers in a line, a writer at the first, readers at the last, one durable and one not."""
    overlay = Overlay(1, config=TrackedConfig(tracking=settings, silence_s=0.2))
    for number in (1, 2, 3):
        overlay.broker(number, disk=disk)
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    text = overlay.filter(everything())
    for name, durable in (("reader", None), ("keeper", "books")):
        client = overlay.client(name, 3)
        overlay.at(1.0, partial(client.follow, text, subscription=name, name=durable))
    return overlay


def publish(overlay: Overlay, *times: float) -> None:
    for number, when in enumerate(times):
        overlay.at(when, partial(overlay.clients["writer"].publish, {"symbol": "A"}, f"{when} {number}".encode()))


def every(step: float, begin: float, end: float) -> list[float]:
    return [begin + step * number for number in range(int((end - begin) / step))]


def finish(overlay: Overlay, until: float) -> History:
    overlay.run(until)
    overlay.heal()
    assert overlay.settle()
    violations = overlay.violations()
    assert violations == [], str(violations[0])
    return overlay.history


def tally_of(history: History) -> Tally:
    checker = TracksAreTrue()
    assert list(checker.check(history, lambda _text, _attributes: True)) == []
    return checker.tally


def crashes_of(history: History, broker: int) -> list[Crash]:
    (tracks,) = [event for event in history if isinstance(event, Tracks) and event.broker == broker]
    return [record for record in tracks.records if isinstance(record, Crash)]


# --- the checker ---------------------------------------------------------------------------------------------------------------


def complaints(history: History) -> list[str]:
    return [violation.text for violation in TracksAreTrue().check(history, lambda _text, _attributes: True)]


def changed(history: History, broker: int, change: Callable[[Tracks], Tracks]) -> History:
    return History([change(e) if isinstance(e, Tracks) and e.broker == broker else e for e in history])


def without(kind: Kind) -> Callable[[Tracks], Tracks]:
    def change(tracks: Tracks) -> Tracks:
        stored, opened = (tuple(e for e in group if e.key.kind is not kind) for group in (tracks.elements, tracks.open_elements))
        return replace(tracks, elements=stored, open_elements=opened)

    return change


@pytest.fixture(scope="module")
def sound() -> History:
    """A run with a crash of the last broker, in which nothing is wrong."""
    overlay = line(EXACT)
    publish(overlay, *every(0.1, 2.0, 8.0))
    overlay.at(5.55, overlay.node(3).crash)
    overlay.at(6.0, overlay.node(3).start)
    return finish(overlay, 9.0)


@pytest.mark.parametrize(
    ("broker", "kind", "complaint"),
    [
        (1, Kind.PUBLISHER, "not in the publisher history"),
        (2, Kind.ROUTING, "the way of"),
        (3, Kind.ROUTING, "the way of"),
        (3, Kind.SUBSCRIBER, "did not track it"),
    ],
)
def test_a_history_that_is_missing_is_noticed(sound: History, broker: int, kind: Kind, complaint: str) -> None:
    """At the origin, on the way and at the end."""
    assert complaints(sound) == []
    assert any(complaint in text for text in complaints(changed(sound, broker, without(kind))))


def test_one_delivery_that_is_missing_is_noticed(sound: History) -> None:
    """The checker looks at every message."""

    def cut(elements: tuple[Element, ...]) -> Iterator[Element]:
        for element in elements:
            if element.key.subscriber == "books" and element.ids is not None and len(element.ids) > 3:
                yield replace(element, ids=element.ids[1:])
            else:
                yield element

    history = changed(sound, 3, lambda tracks: replace(tracks, elements=tuple(cut(tracks.elements))))
    assert any("did not track it" in text for text in complaints(history))
    assert any("its history lacks it" in text for text in complaints(history))


def test_a_crash_that_is_not_reported_is_noticed(sound: History) -> None:
    """A loss that nobody is told of is no better than a wrong answer."""
    assert len(crashes_of(sound, 3)) == 1
    history = changed(sound, 3, lambda tracks: replace(tracks, records=()))
    texts = complaints(history)
    assert any("does not say that incarnation 1 crashed" in text for text in texts)
    assert any("did not track it" in text for text in texts)  # what a window excused is no longer excused


def test_a_span_that_claims_too_much_is_noticed(sound: History) -> None:
    """The deliveries lost in the crash are excused, but nothing on disk may claim them."""

    def stretch(tracks: Tracks) -> Tracks:
        return replace(tracks, spans=tuple((i, msgspec.structs.replace(span, to_tick=(1 << 64) - 1)) for i, span in tracks.spans))

    assert any("its history lacks it" in text for text in complaints(changed(sound, 3, stretch)))


def test_an_entry_that_never_was_is_noticed(sound: History) -> None:
    """Histories of ids err never."""

    def invent(tracks: Tracks) -> Tracks:
        first = next(e for e in tracks.elements if e.key.kind is Kind.ROUTING)
        return replace(tracks, elements=(*tracks.elements, replace(first, key=replace(first.key, peer=77), number=999)))

    assert any("it never was there" in text for text in complaints(changed(sound, 2, invent)))


def test_blooms_that_claim_more_than_they_may_are_noticed() -> None:
    """A bloom whose bits are all set claims everything, far beyond equation (1)."""
    overlay = line(SMALL_BLOOMS)
    overlay.at(5.0, partial(overlay.clients["reader"].follow, overlay.filter(everything()), subscription="late"))
    overlay.at(6.0, partial(overlay.clients["reader"].cut_off))
    publish(overlay, *every(0.02, 2.0, 8.0))
    history = finish(overlay, 9.0)
    full = np.full(SMALL_BLOOMS.m // 8, 255, np.uint8)

    def fill(tracks: Tracks) -> Tracks:
        elements = [replace(e, bits=full, key=replace(e.key, peer=e.key.peer + 1)) for e in tracks.elements if e.bits is not None]
        return replace(tracks, elements=(*tracks.elements, *(e for e in elements if e.key.kind is Kind.ROUTING)))

    assert complaints(history) == []
    assert any("false claims" in text for text in complaints(changed(history, 2, fill)))


def test_deliveries_that_a_tracker_leaves_out_are_noticed() -> None:
    """The setting that tests of audits use: the checker finds what it omits."""
    result = run_seed(3, Shape(busy_s=6.0, omit_one_in=5))
    assert {violation.kind for violation in result.violations} == {"mistracked"}
    assert run_seed(3, Shape(busy_s=6.0)).sound


# --- what happens --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", KINDS)
def test_seeds_hold_with_each_strategy(strategy: Strategy) -> None:
    """With every kind of fault: nothing is missing but what crashes cost, and that is bounded by T_p and reported."""
    tally = Tally()
    shape = Shape(strategies=(strategy,))
    for seed in range(1000, 1012):
        overlay, _ = play(seed, shape)
        assert overlay.violations() == [], f"seed {seed}"
        assert list(TracksAreTrue(tally).check(overlay.history, overlay.predicates)) == []
    assert tally.entries > 10_000
    assert 0 < tally.lost < tally.entries / 20
    # T_p is at most 4 s, a pause delays a flush by 1.5 s, a stall its end by 2 s.
    assert tally.window_s < 4.0 + 1.5 + 2.0
    if strategy is Strategy.BLOOM:
        assert tally.expected > 3
        assert abs(tally.false - tally.expected) < SIGMAS * sqrt(tally.variance)
    else:
        assert (tally.false, tally.expected) == (0, 0.0)


@pytest.mark.parametrize("strategy", KINDS)
def test_without_faults_nothing_is_missing(strategy: Strategy) -> None:
    """Every entry is there, on disk or in memory."""
    overlay = line(replace(EXACT, strategy=strategy))
    publish(overlay, *every(0.05, 2.0, 6.0))
    tally = tally_of(finish(overlay, 7.0))
    assert tally.lost == 0
    assert tally.entries == 80 + 2 * 80 + 2 * 80  # published, delivered twice, on two brokers of the way


def test_a_broker_that_stops_in_good_order_loses_nothing() -> None:
    """It says farewell, and the next incarnation reports no crash."""
    overlay = line(EXACT)
    publish(overlay, *every(0.03, 2.0, 6.0))
    for broker in (1, 2, 3):
        overlay.at(3.0 + broker / 3, overlay.node(broker).stop)
        overlay.at(3.2 + broker / 3, overlay.node(broker).start)
    history = finish(overlay, 7.0)
    assert tally_of(history).lost == 0
    assert [crashes_of(history, broker) for broker in (1, 2, 3)] == [[], [], []]


def test_a_crash_costs_what_came_after_the_last_flush_and_says_so() -> None:
    """The middle of the interval: what was sent since then is gone from the tracks, and not one entry more."""
    overlay = line(EXACT)
    publish(overlay, *every(0.1, 2.0, 6.0))
    overlay.at(4.55, overlay.node(3).crash)
    overlay.at(5.0, overlay.node(3).start)
    history = finish(overlay, 7.0)
    tally = tally_of(history)
    cut_at = max(event.cut_at for event in history if isinstance(event, Kept) and (event.broker, event.incarnation) == (3, 1))
    came = [event for event in history if isinstance(event, Arrived) and event.incarnation == 1 and event.at > cut_at]
    sent = sum(len(event.ids) for event in came)
    assert 0 < tally.window_s < T_P_S
    assert 0 < sent <= tally.lost <= 2 * sent  # two deliveries of each message, and its routing
    (crash,) = crashes_of(history, 3)
    assert crash.incarnation == 1
    assert 0 < crash.to_ms - crash.from_ms < 2_000


@pytest.mark.parametrize("strategy", KINDS)
def test_the_publisher_history_survives_every_crash(strategy: Strategy) -> None:
    """What was not written is read back from the log."""
    overlay = line(replace(EXACT, strategy=strategy))
    publish(overlay, *every(0.02, 2.0, 7.0))
    for when in (3.3, 4.6, 5.9):
        overlay.at(when, overlay.node(1).crash)
        overlay.at(when + 0.1, overlay.node(1).start)
    history = finish(overlay, 8.0)
    assert tally_of(history).lost == 0
    assert len(crashes_of(history, 1)) == 3


def test_a_log_that_is_over_its_bound_is_tracked_before_it_is_needed() -> None:
    """Retention does not wait for tracks, but they hurry."""
    overlay = line(replace(EXACT, persistence_ms=60_000), disk=DiskProfile(segment_batches=1, retention_rows_max=20))
    publish(overlay, *every(0.05, 2.0, 7.0))
    overlay.at(6.5, overlay.node(1).crash)
    overlay.at(6.6, overlay.node(1).start)
    assert tally_of(finish(overlay, 8.0)).lost <= 1


@pytest.mark.parametrize("step_ms", [-20_000, 20_000])
def test_a_clock_that_is_stepped_hides_nothing(step_ms: int) -> None:
    """Neither the origin's, nor the one on the way, nor the last broker's."""
    overlay = line(SMALL_BLOOMS)
    publish(overlay, *every(0.05, 2.0, 8.0))
    for broker in (1, 2, 3):
        overlay.at(3.0 + broker, partial(overlay.node(broker).step_clock, step_ms))
    history = finish(overlay, 9.0)
    assert tally_of(history).lost == 0
    refused = [event for event in history if isinstance(event, Refused)]
    assert len(refused) <= 2


def test_clients_with_wrong_clocks_are_tracked_like_others() -> None:
    """Hours off, and stepped while they publish."""
    overlay = line(EXACT)
    writer = overlay.clients["writer"]
    writer.clock_offset_ms = 5 * 3_600_000
    publish(overlay, *every(0.05, 2.0, 8.0))
    for when, step_ms in ((3.0, -7_200_000), (5.0, 60_000), (6.0, -60_000)):
        overlay.at(when, partial(setattr, writer, "clock_offset_ms", writer.clock_offset_ms + step_ms))
    history = finish(overlay, 9.0)
    assert tally_of(history).lost == 0
    assert sum(isinstance(event, Refused) for event in history) <= 4


def test_brokers_that_do_not_track_leave_the_others_alone() -> None:
    """A path through such a broker cannot be followed further, and nobody complains."""
    overlay = Overlay(1)
    for number, strategy in ((1, Strategy.EXACT), (2, Strategy.NULL), (3, Strategy.BLOOM)):
        overlay.broker(number, config=TrackedConfig(tracking=replace(EXACT, strategy=strategy)))
    overlay.link(1, 2)
    overlay.link(2, 3)
    overlay.client("writer", 1)
    reader = overlay.client("reader", 3)
    overlay.at(1.0, partial(reader.follow, overlay.filter(everything()), subscription="all"))
    publish(overlay, *every(0.1, 2.0, 4.0))
    assert tally_of(finish(overlay, 5.0)).entries == 20 + 20 + 20


@pytest.mark.parametrize("persistence_s", [1.0, 4.0])
def test_a_crash_costs_what_was_tracked_within_t_p(persistence_s: float) -> None:
    """However it falls between two flushes: of 20 messages a second in three histories, no more than those of T_p are lost."""
    windows = []
    for offset in (0.55, 1.4, 2.9):
        overlay = line(replace(EXACT, persistence_ms=int(persistence_s * 1000)))
        publish(overlay, *every(0.05, 2.0, 11.0))
        overlay.at(5.0 + offset, overlay.node(3).crash)
        overlay.at(5.45 + offset, overlay.node(3).start)
        tally = tally_of(finish(overlay, 12.0))
        windows.append(tally.window_s)
        assert 0 < tally.window_s <= persistence_s + 0.1
        assert 0 < tally.lost <= 3 * 20 * (tally.window_s + 0.1)
    assert max(windows) > persistence_s / 2, "some crash falls late between two flushes"
