"""One suite over every implementation of the pubend log."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.storage.rows import EVERYTHING, Row, batch_of, read_all, rows_of

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import PubendState
from postroad.errors import StorageFailedError
from postroad.storage import LogOptions, MemoryLog, PubendLog, SegmentLog

PUBEND = 9 << 8


class Store(Protocol):
    """A place where one log lives, across restarts."""

    log: PubendLog

    def restart(self, *, orderly: bool) -> None: ...

    def discard(self) -> None: ...


class MemoryStore:
    def __init__(self) -> None:
        self.log: PubendLog = MemoryLog(PUBEND)

    def restart(self, *, orderly: bool) -> None:
        assert isinstance(self.log, MemoryLog)
        if orderly:
            self.log.close()
        self.log.crash()

    def discard(self) -> None:
        self.log.close()


class SegmentStore:
    """Segments so small that they roll after a few appends."""

    def __init__(self) -> None:
        self._path = Path(tempfile.mkdtemp(prefix="postroad-log-"))
        self._options = LogOptions(segment_bytes=3000)
        self.log: PubendLog = SegmentLog.open(self._path / "log", PUBEND, self._options)

    def restart(self, *, orderly: bool) -> None:
        assert isinstance(self.log, SegmentLog)
        if orderly:
            self.log.close()
        else:
            self.log.abandon()
        self.log = SegmentLog.open(self._path / "log", PUBEND, self._options)
        assert self.log.torn is None

    def discard(self) -> None:
        self.log.close()
        shutil.rmtree(self._path)


STORES: dict[str, Callable[[], Store]] = {"memory": MemoryStore, "segment": SegmentStore}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    made: Store = STORES[request.param]()
    yield made
    made.discard()


def fill(log: PubendLog, batches: int = 30, rows: int = 5) -> list[Row]:
    """Append batches one by one, two ticks apart; return all rows."""
    made = [batch_of(range(2 + i * rows * 2, 2 + (i + 1) * rows * 2, 2), (1, 2, 3)) for i in range(batches)]
    for batch in made:
        log.append([batch])
    return rows_of(made)


def test_a_new_log_is_empty(store: Store) -> None:
    """Nothing to read, nothing remembered."""
    assert store.log.state() == PubendState(PUBEND)
    assert store.log.read(0, 100, 1000) == (100, (), 0)


@pytest.mark.parametrize("orderly", [True, False])
def test_appended_rows_are_read_back_after_a_restart(store: Store, orderly: bool) -> None:
    """All rows, in order, whether the log was closed or the process died."""
    rows = fill(store.log)
    assert read_all(store.log) == rows
    store.restart(orderly=orderly)
    assert read_all(store.log) == rows
    assert store.log.state().last_tick == rows[-1][0]


def test_several_batches_of_one_append_stay_in_order(store: Store) -> None:
    """A group commit is read as its batches; an empty batch adds nothing."""
    batches = [batch_of([1, 2]), batch_of([]), batch_of([5, 9])]
    store.log.append(batches)
    store.log.append([])
    assert rows_of(store.log.read(0, 100, 10_000).batches) == rows_of(batches)


def test_a_read_gives_the_rows_of_its_range_only(store: Store) -> None:
    """The range excludes its lower end, includes its upper one, and cuts through batches."""
    rows = fill(store.log)
    for lo, hi in [(0, 2), (2, 3), (2, 4), (13, 57), (57, 57), (100, 302), (298, EVERYTHING), (302, 400)]:
        assert read_all(store.log, lo, hi) == [row for row in rows if lo < row[0] <= hi], (lo, hi)


def test_a_read_stops_near_its_bound_but_gives_at_least_one_batch(store: Store) -> None:
    """With room for nothing it still advances by a batch, and says how far it came."""
    rows = fill(store.log)
    piece = store.log.read(0, EVERYTHING, 1)
    assert rows_of(piece.batches) == rows[:5]
    assert piece.hi == rows[4][0]
    assert read_all(store.log, bytes_max=1) == rows


def test_a_read_beyond_the_last_row_reaches_its_end(store: Store) -> None:
    """Ticks without rows are answered: silence needs no log."""
    fill(store.log)
    assert store.log.read(5000, 6000, 1000) == (6000, (), 0)


def test_released_rows_are_gone_and_the_rest_is_there(store: Store) -> None:
    """The mark never passes the tick asked for, and rows above the mark stay, also after a restart."""
    rows = fill(store.log)
    released = store.log.release(200)
    assert 0 < released <= 200
    for _ in range(2):
        assert store.log.state().released == released
        assert read_all(store.log) == [row for row in rows if row[0] > released]
        assert store.log.read(0, 1, 1000).released == released
        store.restart(orderly=False)
    assert store.log.release(100) == released


def test_retention_drops_the_oldest_rows_only_as_far_as_needed(store: Store) -> None:
    """A bound in bytes releases some, a generous one none."""
    rows = fill(store.log)
    assert store.log.retain(1 << 30) == 0
    released = store.log.retain(8000)
    assert 0 < released < rows[-1][0]
    assert read_all(store.log) == [row for row in rows if row[0] > released]


@pytest.mark.parametrize("orderly", [True, False])
def test_the_last_id_of_each_publisher_survives_restarts_and_release(store: Store, orderly: bool) -> None:
    """Also of publishers all whose rows were released."""
    store.log.append([batch_of([1, 2, 3], (77, 78))])
    rows = fill_after(store.log, 10)
    store.log.release(EVERYTHING)
    store.restart(orderly=orderly)
    publishers = dict(store.log.state().publishers)
    assert publishers == {77: 3, 78: 2, 5: rows[-1][0]}


def fill_after(log: PubendLog, tick: int) -> list[Row]:
    made = [batch_of(range(tick + i * 10, tick + i * 10 + 10), (5,)) for i in range(30)]
    for batch in made:
        log.append([batch])
    return rows_of(made)


def test_the_highest_id_counts_also_when_ids_do_not_ascend_with_ticks(store: Store) -> None:
    """A publisher's clock may lag behind the pubend's ticks."""
    early, late = batch_of([50, 60], (1,)), batch_of([10, 20], (1,))
    store.log.append([early.with_ticks([100, 101])])
    store.log.append([late.with_ticks([102, 103])])
    assert store.log.state().publishers == ((1, 60),)


def test_a_closed_log_is_out_of_use(store: Store) -> None:
    """Closing twice is fine, appending or reading afterwards is refused."""
    store.log.close()
    store.log.close()
    with pytest.raises(StorageFailedError):
        store.log.append([batch_of([1])])
    with pytest.raises(StorageFailedError):
        store.log.read(0, 10, 100)


def test_memory_loses_what_was_not_synced() -> None:
    """The twin's disk: written is not durable, and is not read before the sync."""
    log = MemoryLog(PUBEND)
    log.append([batch_of([1, 2])])
    log.write([batch_of([3])])
    log.write([batch_of([4])])
    assert [row[0] for row in read_all(log)] == [1, 2]
    log.crash()
    assert log.state() == PubendState(PUBEND, 2, 0, ((1, 2),))
    log.write([batch_of([5])])
    log.sync()
    assert [row[0] for row in read_all(log)] == [1, 2, 5]


class LogMachine(RuleBasedStateMachine):
    """A log does what a list of rows does, whatever is called and whenever it restarts."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.last = 0
        self.released = 0
        self.publishers: dict[int, int] = {}

    def _make(self, gaps: Sequence[int], publishers: Sequence[int]) -> Batch:
        ticks = []
        for gap in gaps:
            self.last += gap
            ticks.append(self.last)
        return batch_of(ticks, publishers)

    @rule(
        gaps=st.lists(st.lists(st.integers(1, 1000), max_size=12), max_size=4),
        publishers=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    )
    def append(self, gaps: list[list[int]], publishers: list[int]) -> None:
        batches = [self._make(some, publishers) for some in gaps]
        self.store.log.append(batches)
        for row in rows_of(batches):
            publisher = int.from_bytes(row[1][:4], "big")
            self.publishers[publisher] = max(self.publishers.get(publisher, 0), row[0])
            self.rows.append(row)

    @rule(lo=st.floats(0, 1.1), length=st.floats(0, 1.1), bytes_max=st.sampled_from([1, 700, 5000, 1 << 20]))
    def read(self, lo: float, length: float, bytes_max: int) -> None:
        start = int(lo * self.last)
        end = start + int(length * self.last)
        piece = self.store.log.read(start, end, bytes_max)
        assert piece.released == self.released
        assert start <= piece.hi <= end
        expected = [row for row in self.rows if start < row[0] <= piece.hi]
        assert rows_of(piece.batches) == expected
        assert piece.batches or piece.hi == end

    @rule(part=st.floats(0, 1.2))
    def release(self, part: float) -> None:
        tick = int(part * self.last)
        self._released(self.store.log.release(tick), tick)

    @rule(bytes_max=st.integers(0, 20_000))
    def retain(self, bytes_max: int) -> None:
        self._released(self.store.log.retain(bytes_max), self.last)

    def _released(self, mark: int, tick: int) -> None:
        assert self.released <= mark
        assert mark == self.released or mark <= tick
        self.released = mark
        self.rows = [row for row in self.rows if row[0] > mark]

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        self.store.restart(orderly=orderly)

    @invariant()
    def state_is_known(self) -> None:
        state = self.store.log.state()
        assert state.released == self.released
        assert dict(state.publishers) == self.publishers
        assert not self.rows or state.last_tick == self.rows[-1][0]

    def teardown(self) -> None:
        try:
            assert read_all(self.store.log) == self.rows
        finally:
            self.store.discard()


class MemoryLogMachine(LogMachine):
    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()


class SegmentLogMachine(LogMachine):
    @initialize()
    def begin(self) -> None:
        self.store = SegmentStore()


TestMemoryLog = MemoryLogMachine.TestCase
TestSegmentLog = SegmentLogMachine.TestCase
for case in (TestMemoryLog, TestSegmentLog):
    case.settings = settings(
        max_examples=25, stateful_step_count=30, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
