"""The tracking thread's work, without the thread and with it: full disks, lost events, logs read back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from postroad.core.batch.batch import Batch, Ids
from postroad.core.protocol.orders import BrokerState, PubendState
from postroad.core.protocol.packets import pubend_id
from postroad.errors import CorruptSegmentError, TooManyError
from postroad.storage.base import LogSlice
from postroad.tracking.files.catalog import TrackOptions
from postroad.tracking.files.directories import MemoryFiles
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import Horizon, Kind
from postroad.tracking.histories.events import Delivered, Published, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.process import recording as tracks_module
from postroad.tracking.process.backlog import ORDER_BYTES
from postroad.tracking.process.recording import FOREVER, LogIds, Tracks
from postroad.tracking.process.worker import QUESTIONS_MAX, Tracking
from postroad.tracking.tap.orders import Track, Tracked

WALL_MS = 1_700_000_000_000
PUBEND = pubend_id(1)
SETTINGS = TrackingSettings(persistence_ms=1000)
ID = np.dtype((np.void, 16))
TAKEN = 100
BACKLOG = TAKEN // 10 * (160 + ORDER_BYTES)  # ten orders of ten entries


def ids(first: int, count: int) -> Ids:
    made = [(1).to_bytes(4) + (1).to_bytes(4) + (WALL_MS << 16 | n).to_bytes(8) for n in range(first, first + count)]
    return np.frombuffer(b"".join(made), ID)


class ListLog:
    """A pubend's log in memory: message n has the tick n."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.reads = 0
        self.damaged = False

    def append(self, first: int, count: int) -> Ids:
        made = ids(first, count)
        self.batches.append(Batch.from_columns(made, [b""] * count, {}, ticks=list(range(first, first + count))))
        return made

    @property
    def last_tick(self) -> int:
        return int(self.batches[-1].ticks()[-1]) if self.batches else 0

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice:
        assert bytes_max > 0
        self.reads += 1
        if self.damaged:
            raise CorruptSegmentError("log", 0, "damaged for a test")
        for batch in self.batches:
            part = batch.within(lo, hi)
            if len(part):
                return LogSlice(int(part.ticks()[-1]), (part,), 0)
        return LogSlice(hi, (), 0)


class Broker:
    """What outlives a crash of one: its files and its log. `order` makes what its machine would order."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log = ListLog()
        self.incarnation = 0
        self.wall_ms = WALL_MS

    def start(self, settings: TrackingSettings = SETTINGS) -> Tracks:
        return Tracks(self.files, self._state(), {PUBEND: LogIds(self.log)}, settings, TrackOptions(), wall_ms=self.wall_ms)

    def thread(
        self, settings: TrackingSettings = SETTINGS, *, backlog_bytes_max: int = 64 << 20
    ) -> tuple[Tracking, list[Tracked]]:
        told: list[Tracked] = []
        logs = {PUBEND: LogIds(self.log)}
        state, options = self._state(), TrackOptions()
        return Tracking(self.files, state, logs, settings, options, told.append, backlog_bytes_max=backlog_bytes_max), told

    def _state(self) -> BrokerState:
        self.incarnation += 1
        return BrokerState(1, self.incarnation, (PubendState(PUBEND, last_tick=self.log.last_tick),))

    def publish(self, count: int) -> Track:
        return self.order(Published(PUBEND, self.log.append(self.log.last_tick + 1, count)))

    def deliver(self, first: int, count: int) -> Track:
        return self.order(Delivered("books", PUBEND, ids(first, count)))

    def flush(self, *, farewell: bool = False) -> Track:
        return self.order(Horizon(PUBEND, self.log.last_tick), flush=True, farewell=farewell)

    def order(self, *events: TrackEvent, flush: bool = False, farewell: bool = False) -> Track:
        self.wall_ms += 10
        count = sum(len(event.ids) for event in events if isinstance(event, Published | Delivered))
        return Track(self.wall_ms, events, count, 16 * count, flush, farewell)


def found(store: TrackStore, kind: Kind, count: int, elements: Sequence[object] = ()) -> set[int]:
    """Return which of the first messages are in histories of a kind."""
    hits = store.search(ids(1, count), elements).hits  # type: ignore[arg-type]  # elements
    return {row + 1 for row, key, _, _ in hits if key.kind is kind}


def everything(count: int) -> set[int]:
    return set(range(1, count + 1))


def replay(tracks: Tracks) -> int:
    pieces = 0
    while tracks.replaying:
        tracks.replay()
        pieces += 1
    return pieces


# --- without the thread --------------------------------------------------------------------------------------------------------


def test_what_was_flushed_is_found_by_the_next_incarnation() -> None:
    """And a farewell means that nothing is missing."""
    broker = Broker()
    tracks = broker.start()
    assert tracks.take([broker.publish(50), broker.deliver(1, 50), broker.flush(farewell=True)])
    assert tracks.tracked() == (Horizon(PUBEND, 50),)
    after = broker.start()
    assert found(after.store, Kind.PUBLISHER, 60) == found(after.store, Kind.SUBSCRIBER, 60) == everything(50)
    assert (after.figures.holes, after.replaying) == (0, False)
    assert (tracks.figures.entries, tracks.figures.elements) == (100, 2)
    assert 0 < tracks.figures.bytes_written <= tracks.figures.stored_bytes


def test_the_publisher_history_is_completed_from_the_log_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piece by piece, beyond the horizon only; until it is done the horizon stays."""
    monkeypatch.setattr(tracks_module, "REPLAY_BYTES", 1)
    broker = Broker()
    tracks = broker.start()
    tracks.take([broker.publish(30), broker.flush(), *(broker.publish(10) for _ in range(4)), broker.deliver(1, 70)])
    after = broker.start()
    assert after.figures.holes == 1
    assert found(after.store, Kind.PUBLISHER, 70, after.view().elements) == everything(30)
    after.take([broker.publish(5), broker.flush()])
    assert after.tracked() == (Horizon(PUBEND, 30),)
    assert replay(after) == 4
    assert found(after.store, Kind.PUBLISHER, 75, after.view().elements) == everything(75)
    assert found(after.store, Kind.SUBSCRIBER, 75, after.view().elements) == set()
    after.take([broker.flush()])
    assert after.tracked() == (Horizon(PUBEND, 75),)


def test_a_crash_in_the_middle_of_a_replay_loses_nothing() -> None:
    """Whatever was added is added again, beyond the horizon that is on disk."""
    broker = Broker()
    broker.start().take([broker.publish(20), broker.publish(20), broker.publish(20)])
    middle = broker.start()
    middle.replay()
    middle.take([broker.flush()])
    last = broker.start()
    assert last.tracked() in {(), (Horizon(PUBEND, 0),)}
    replay(last)
    last.take([broker.flush()])
    assert found(last.store, Kind.PUBLISHER, 60) == everything(60)


def test_a_log_that_cannot_be_read_leaves_the_horizon_where_it_was() -> None:
    """The publisher history has a hole then, and does not claim to have none."""
    broker = Broker()
    broker.start().take([broker.publish(20), broker.flush(), broker.publish(20)])
    broker.log.damaged = True
    after = broker.start()
    replay(after)
    after.take([broker.publish(5), broker.flush(), broker.flush()])
    replay(after)
    assert after.tracked() == (Horizon(PUBEND, 20),)
    assert broker.log.reads == 1


def test_a_full_disk_is_waited_out() -> None:
    """What could not be written is searched in memory, and written when there is room."""
    broker = Broker()
    tracks = broker.start()
    broker.files.room_bytes = 0
    tracks.take([broker.publish(20), broker.deliver(1, 20), broker.flush(), broker.publish(20), broker.flush()])
    assert tracks.tracked() == (Horizon(PUBEND, FOREVER),)  # the log must be able to shrink
    view = tracks.view()
    assert found(tracks.store, Kind.PUBLISHER, 40, view.elements) == everything(40)
    assert found(tracks.store, Kind.SUBSCRIBER, 40, view.elements) == everything(20)
    broker.files.room_bytes = None
    tracks.take([broker.flush()])
    assert tracks.tracked() == (Horizon(PUBEND, 40),)
    assert found(tracks.store, Kind.PUBLISHER, 40) == everything(40)
    assert found(tracks.store, Kind.SUBSCRIBER, 40) == everything(20)
    assert (tracks.figures.dropped, tracks.figures.holes) == (0, 0)


def test_a_full_disk_that_stays_full_costs_tracks_and_no_memory() -> None:
    """Beyond the bound elements go and a hole remains; the publisher history is repaired when there is room again."""
    broker = Broker()
    settings = TrackingSettings(persistence_ms=1000, memory_bytes_max=100_000)
    tracks = broker.start(settings)
    broker.files.room_bytes = 0
    for number in range(30):
        tracks.take([broker.publish(1000), broker.deliver(1000 * number + 1, 1000), broker.flush()])
        assert tracks.figures.memory_bytes < 3 * settings.memory_bytes_max
    assert tracks.figures.dropped > 30_000
    assert tracks.figures.holes > 0
    broker.files.room_bytes = None
    tracks.take([broker.flush()])
    tracks.take([broker.flush()])
    replay(tracks)
    tracks.take([broker.flush()])
    assert tracks.tracked() == (Horizon(PUBEND, 30_000),)
    assert found(tracks.store, Kind.PUBLISHER, 30_000) == everything(30_000)
    (hole, *_) = tracks.store.search(ids(1, 1)).holes
    assert hole.concerns(WALL_MS)


def test_events_that_were_dropped_are_a_hole_and_the_publisher_history_is_repaired() -> None:
    """A hole is reported for deliveries; what was published is in the log."""
    broker = Broker()
    tracks = broker.start()
    tracks.take([broker.publish(10), broker.deliver(1, 10), broker.flush()])
    lost = [broker.publish(10), broker.deliver(11, 10)]
    tracks.missed(20, lost[0].wall_ms, lost[-1].wall_ms)
    tracks.take([broker.publish(10), broker.flush()])
    assert tracks.tracked() == (Horizon(PUBEND, 10),)
    replay(tracks)
    tracks.take([broker.flush()])
    assert tracks.tracked() == (Horizon(PUBEND, 30),)
    assert found(tracks.store, Kind.PUBLISHER, 30) == everything(30)
    assert found(tracks.store, Kind.SUBSCRIBER, 30) == everything(10)
    assert tracks.store.search(ids(11, 1)).holes
    assert (tracks.figures.dropped, tracks.figures.holes) == (20, 1)


def test_memory_is_freed_by_writing_early() -> None:
    """Between two flushes of the machine the bound holds, too."""
    broker = Broker()
    settings = TrackingSettings(persistence_ms=1000, memory_bytes_max=100_000)
    tracks = broker.start(settings)
    for number in range(50):
        tracks.take([broker.deliver(1000 * number + 1, 1000)])
        assert tracks.figures.memory_bytes <= settings.memory_bytes_max
    assert tracks.figures.elements > 0
    assert found(tracks.store, Kind.SUBSCRIBER, 50_000, tracks.view().elements) == everything(50_000)


# --- with the thread -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[Broker]:
    before = set(threading.enumerate())
    yield Broker()
    assert {each for each in threading.enumerate() if each.name == "tracking"} <= before


def wait_until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def test_an_answer_knows_everything_that_was_ordered_before(broker: Broker) -> None:
    """Also what is in no flush yet."""
    tracking, told = broker.thread()
    tracking.track(broker.publish(20))
    tracking.track(broker.flush())
    tracking.track(broker.deliver(1, 20))
    answer = tracking.ask(lambda store, view: (found(store, Kind.SUBSCRIBER, 30, view.elements), len(view.elements)))
    assert answer.result(5.0)[0] == everything(20)
    tracking.track(broker.flush(farewell=True))
    assert tracking.close()
    assert told[-1].horizons == (Horizon(PUBEND, 20),)
    assert tracking.stats()["tracking_backlog_bytes"] == 0
    assert broker.start().figures.holes == 0


def test_an_error_of_a_question_is_the_askers(broker: Broker) -> None:
    """Tracking goes on."""
    tracking, _ = broker.thread()
    assert isinstance(tracking.ask(lambda _store, _view: 1 // 0).exception(5.0), ZeroDivisionError)
    assert tracking.ask(lambda _store, _view: 7).result(5.0) == 7
    assert tracking.close()


def test_a_thread_that_lags_neither_blocks_the_broker_nor_grows(broker: Broker) -> None:
    """Events beyond the bound are dropped, counted, and reported as a hole; what was published comes from the log."""
    tracking, told = broker.thread(backlog_bytes_max=BACKLOG)
    stuck, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        stuck.set()
        go_on.wait(60.0)

    tracking.ask(wait)
    assert stuck.wait(5.0)
    began = time.monotonic()
    for number in range(200):
        tracking.track(broker.publish(10))
        tracking.track(broker.deliver(10 * number + 1, 10))
        assert tracking.backlog_bytes <= BACKLOG
    assert time.monotonic() - began < 3.0
    go_on.set()
    wait_until(lambda: tracking.backlog_bytes == 0)
    tracking.track(broker.flush())
    assert told[:1] == [Tracked((), forgotten=True)], "links and spans may be among what was dropped"
    wait_until(lambda: len(told) > 1)
    tracking.track(broker.flush(farewell=True))
    assert tracking.close()
    assert tracking.stats()["tracking_dropped"] == 4000 - TAKEN
    assert tracking.stats()["tracking_holes"] == 1
    after = broker.start()
    replay(after)  # what the thread had not repaired when it ended
    assert found(after.store, Kind.PUBLISHER, 2000, after.view().elements) == everything(2000)
    assert len(found(after.store, Kind.SUBSCRIBER, 2000)) <= TAKEN
    assert after.store.search(ids(1000, 1)).holes


def test_questions_are_bounded(broker: Broker) -> None:
    """A crowd of askers is refused with an error that says so."""
    tracking, _ = broker.thread()
    go_on = threading.Event()
    answers = [tracking.ask(lambda _store, _view: go_on.wait(60.0)) for _ in range(QUESTIONS_MAX + 2)]  # one of them is under way
    assert isinstance(answers[-1].exception(30.0), TooManyError)
    go_on.set()
    assert answers[0].result(30.0)
    assert tracking.close()


def test_a_failure_ends_the_tracking_and_nothing_else(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown, the logs are freed, questions are refused; orders are taken and dropped."""

    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Tracker, "take_orders", fail)
    tracking, told = broker.thread()
    tracking.track(broker.publish(5))
    tracking.track(broker.flush())
    wait_until(lambda: tracking.stats()["tracking_failed"] == 1)
    tracking.track(broker.publish(5))
    assert told[-1].horizons == (Horizon(PUBEND, FOREVER),)
    assert tracking.ask(lambda _store, _view: 1).exception(30.0) is not None
    assert tracking.stats()["tracking_dropped"] == 5
    assert tracking.close()


def test_a_directory_that_cannot_be_used_ends_the_tracking(tmp_path: Path) -> None:
    """As every other failure of tracking, it does not end the broker."""
    place = tmp_path / "tracks"
    place.write_text("not a directory", encoding="ascii")
    told: list[Tracked] = []
    tracking = Tracking(place, BrokerState(1, 1, (PubendState(PUBEND),)), {}, SETTINGS, TrackOptions(), told.append)
    wait_until(lambda: tracking.stats()["tracking_failed"] == 1)
    assert tracking.close()


BLOOM = TrackingSettings(strategy=Strategy.BLOOM, few_as_ids=False)


def track_at(rate: int, seconds: int, settings: TrackingSettings) -> Tracks:
    """Track a publisher history at a rate, with a flush every T_p."""
    broker = Broker()
    tracks = broker.start(settings)
    for second in range(1, seconds + 1):
        broker.wall_ms = WALL_MS + 1000 * second
        first = broker.log.last_tick + 1
        broker.log.append(first, rate)
        stamps = [(broker.wall_ms << 16) + number for number in range(rate)]
        made = b"".join((1).to_bytes(4) + (1).to_bytes(4) + stamp.to_bytes(8) for stamp in stamps)
        order = broker.order(Published(PUBEND, np.frombuffer(made, ID)), flush=second % 10 == 0)
        tracks.take([order])
    return tracks


def test_blooms_that_fill_too_fast_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The defaults bear 280 messages per second of one history: beyond, the log says what to set, and figures show it."""
    tracks = track_at(600, 30, BLOOM)
    (record,) = [each for each in caplog.records if "Bloom filters are too small" in each.message]
    assert "2 T_s + T_j <= w T_n" in record.message
    assert "n >= 5," in record.message
    assert 500 <= tracks.figures.rate_peak <= 700
    assert tracks.figures.matching_set == 4


@pytest.mark.parametrize(("rate", "settings"), [(200, BLOOM), (600, SETTINGS)])
def test_blooms_that_suffice_and_other_strategies_are_not_told_of(
    caplog: pytest.LogCaptureFixture, rate: int, settings: TrackingSettings
) -> None:
    """Nothing to repair."""
    tracks = track_at(rate, 20, settings)
    assert "blooms" not in caplog.text
    assert tracks.figures.matching_set == (2 if settings is BLOOM else 0)
