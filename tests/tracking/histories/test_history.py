"""One history: ranges, singletons, capacities, and what its elements hold."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tracking.ids import WALL_MS, ids_at, make_ids

from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Element, HistoryKey, Kind, Masks
from postroad.tracking.histories.history import ELEMENT_BYTES, NO_RANGE, Entry, History, Ledger, OpenElement
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.strategies import sort_ids

KEY = HistoryKey(Kind.PUBLISHER, 1)
EXACT = TrackingSettings(strategy=Strategy.EXACT, ids_max=10, skew_tolerance_ms=100, jitter_ms=20, singletons_max=3)


class Bench:
    """A history and the elements it has closed."""

    def __init__(self, settings: TrackingSettings = EXACT) -> None:
        self.settings = settings
        self.ledger = Ledger(1, 1, settings)
        self.history = History(KEY, settings, WALL_MS, self.ledger)
        self.closed: list[Element] = []

    def add(self, timestamps: list[int], *, wall_ms: int = WALL_MS, masks: Masks | None = None, to: tuple[int, ...] = ()) -> None:
        entry = Entry.of(ids_at(timestamps), masks, to)
        for element in self.history.add(entry, min(timestamps), max(timestamps), wall_ms):
            self.closed.append(self.view(element))

    def view(self, element: OpenElement | None) -> Element:
        assert element is not None
        return self.history.element(element, WALL_MS)

    @property
    def current(self) -> Element:
        return self.view(self.history.current)


def test_the_range_grows_as_section_3_1_says() -> None:
    """The four cases: the first timestamp, an earlier one, a later one, one in between."""
    bench = Bench()
    ranges = []
    for offset in (50, 30, 70, 60):
        bench.add([WALL_MS + offset])
        ranges.append((bench.current.from_ms - WALL_MS, bench.current.to_ms - WALL_MS))
    assert ranges == [(50, 50), (30, 50), (30, 70), (30, 70)]


def test_a_late_timestamp_is_a_singleton() -> None:
    """A timestamp older than T_s + T_j before the element began leaves the range alone and is listed."""
    bench = Bench()
    bench.add([WALL_MS - 120, WALL_MS - 121, WALL_MS + 5])
    assert (bench.current.from_ms, bench.current.to_ms) == (WALL_MS - 120, WALL_MS + 5)
    assert bench.current.singletons.tolist() == [WALL_MS - 121]
    assert bench.current.count == 3


def test_a_timestamp_from_the_future_is_a_singleton() -> None:
    """So is one that is ahead of the broker's clock by more than T_s."""
    bench = Bench()
    bench.add([WALL_MS + 100])
    bench.add([WALL_MS + 101])
    assert (bench.current.from_ms, bench.current.to_ms) == (WALL_MS + 100, WALL_MS + 100)
    assert bench.current.singletons.tolist() == [WALL_MS + 101]


def test_an_element_of_late_ids_only_has_no_range() -> None:
    """Its range is empty, and its singletons are in order and listed once."""
    bench = Bench()
    bench.add([WALL_MS - 5_000, WALL_MS - 9_000, WALL_MS - 5_000])
    assert (bench.current.from_ms, bench.current.to_ms) == NO_RANGE
    assert bench.current.singletons.tolist() == [WALL_MS - 9_000, WALL_MS - 5_000]


def test_too_many_late_ids_get_an_element_of_their_own() -> None:
    """Beyond singletons_max the late ids go to another element, which has a range and the same capacity."""
    bench = Bench()
    bench.add([WALL_MS - 5_000 + offset for offset in range(3)])
    bench.add([WALL_MS - 4_000 + offset for offset in range(25)] + [WALL_MS - 5_000])
    assert bench.current.count == 4
    assert bench.current.singletons.tolist() == [WALL_MS - 5_000, WALL_MS - 4_999, WALL_MS - 4_998]
    late = [*bench.closed, bench.view(bench.history.late)]
    assert [(element.from_ms - WALL_MS, element.to_ms - WALL_MS, element.count) for element in late] == [
        (-4_000, -3_991, 10),
        (-3_990, -3_981, 10),
        (-3_980, -3_976, 5),
    ]
    assert all(len(element.singletons) == 0 for element in late)


def test_no_element_takes_more_than_its_capacity() -> None:
    """A batch is split where an element is full; all ids are there, in order, once."""
    bench = Bench()
    timestamps = [WALL_MS + offset for offset in range(37)]
    bench.add(timestamps[:4])
    bench.add(timestamps[4:])
    assert [element.count for element in bench.closed] == [10, 10, 10]
    elements = [*bench.closed, bench.current]
    held = np.concatenate([element.ids for element in elements if element.ids is not None])
    assert held.tobytes() == ids_at(timestamps).tobytes()
    assert [(element.from_ms, element.to_ms) for element in elements] == [
        (WALL_MS, WALL_MS + 9),
        (WALL_MS + 10, WALL_MS + 19),
        (WALL_MS + 20, WALL_MS + 29),
        (WALL_MS + 30, WALL_MS + 36),
    ]
    assert [element.number for element in elements] == [1, 2, 3, 4]


def test_what_was_timely_for_one_element_may_be_late_for_the_next() -> None:
    """Ids that fill an element which began long ago go on in one that begins now, and there they are singletons."""
    bench = Bench()
    bench.add([WALL_MS - 50])
    bench.add([WALL_MS - 40] * 12, wall_ms=WALL_MS + 1_000)
    (full,) = bench.closed
    assert (full.count, full.from_ms, full.to_ms, len(full.singletons)) == (10, WALL_MS - 50, WALL_MS - 40, 0)
    assert (bench.current.count, bench.current.from_ms, bench.current.to_ms) == (3, *NO_RANGE)
    assert bench.current.singletons.tolist() == [WALL_MS - 40]


def test_an_element_is_closed_as_soon_as_it_is_full() -> None:
    """Filled to the last id, it does not wait for another."""
    bench = Bench()
    bench.add([WALL_MS] * 10)
    assert [element.count for element in bench.closed] == [10]
    assert bench.history.open() == ()


def test_an_element_begins_where_the_one_before_ended() -> None:
    """What is late is measured from there, however long ago the next id comes."""
    bench = Bench()
    bench.add([WALL_MS] * 10, wall_ms=WALL_MS + 1_000)
    bench.add([WALL_MS + 880, WALL_MS + 879], wall_ms=WALL_MS + 2_000)
    assert (bench.current.from_ms, bench.current.to_ms) == (WALL_MS + 880, WALL_MS + 880)
    assert bench.current.singletons.tolist() == [WALL_MS + 879]


@pytest.mark.parametrize("strategy", [Strategy.EXACT, Strategy.ASYNC, Strategy.BLOOM])
def test_memory_is_what_the_open_elements_take(strategy: Strategy) -> None:
    """The ledger agrees with the open elements, and is zero when all are closed."""
    bench = Bench(TrackingSettings(strategy=strategy, m=1 << 12, k=4, n=300, ids_max=300, singletons_max=3))
    for offset in range(0, 2_000, 37):
        bench.add([WALL_MS + offset + more for more in range(37)], wall_ms=WALL_MS + offset)
        bench.add([WALL_MS - 100_000 - offset])
        assert bench.ledger.open_bytes == sum(element.nbytes for element in bench.history.open())
        assert bench.ledger.open_bytes >= ELEMENT_BYTES * len(bench.history.open())
    for element in bench.history.open():
        bench.history.close(element, WALL_MS)
    assert bench.ledger.open_bytes == 0


def test_ids_in_bits_take_no_memory_of_their_own() -> None:
    """The buffer that they waited in is gone."""
    bench = Bench(BLOOM)
    bench.add([WALL_MS] * 500)
    assert bench.ledger.open_bytes >= ELEMENT_BYTES + 500 * 16
    bench.add([WALL_MS] * 500)
    assert bench.ledger.open_bytes == ELEMENT_BYTES + 65_536 // 8


def test_exact_sorts_by_tick_and_publisher_and_async_does_not() -> None:
    """Columns of sorted ids compress; the naive log keeps the order of arrival."""
    ids = np.concatenate([make_ids(100, seed=3), make_ids(100, seed=4)])
    random = np.random.default_rng(5)
    for strategy in (Strategy.EXACT, Strategy.ASYNC):
        for count in (1, 20, 200):
            taken = random.permutation(ids)[:count]
            bench = Bench(TrackingSettings(strategy=strategy))
            bench.history.add(Entry.of(taken), WALL_MS, WALL_MS + 50, WALL_MS + 50)
            element = bench.current
            order = sorted(taken.tolist(), key=lambda one: one[8:] + one[:4]) if strategy is Strategy.EXACT else taken.tolist()
            assert element.ids is not None
            assert element.strategy is strategy
            assert element.ids.tolist() == order


def test_sorting_few_ids_and_many_agrees() -> None:
    """Small arrays take another way to the same order."""
    ids = np.random.default_rng(1).permutation(make_ids(1_000, per_ms=50))
    whole = sort_ids(ids)
    assert sort_ids(ids[:64]).tolist() == [one for one in whole.tolist() if one in set(ids[:64].tolist())]


BLOOM = TrackingSettings(strategy=Strategy.BLOOM, m=65_536, k=16, n=2_521)


def bloom_of(count: int, settings: TrackingSettings, step: int = 7) -> Element:
    bench = Bench(settings)
    ids = make_ids(count)
    for start in range(0, count, step):
        part = ids[start : start + step]
        bench.history.add(Entry.of(part), WALL_MS, WALL_MS + 1_000, WALL_MS + 1_000)
    return bench.current


def test_a_bloom_holds_what_adding_one_by_one_would() -> None:
    """Hashing later, many at a time, gives the same bits."""
    element = bloom_of(2_000, BLOOM)
    bits = blooms.empty(65_536)
    blooms.add_ids(bits, make_ids(2_000), 65_536, 16, broker=1)
    assert element.strategy is Strategy.BLOOM
    assert (element.m, element.k, element.n, element.count) == (65_536, 16, 2_521, 2_000)
    assert element.ids is None
    assert np.array_equal(np.asarray(element.bits), bits)


def test_a_bloom_with_few_ids_is_written_as_ids() -> None:
    """Up to m / 128 ids are shorter than the bits, and have no error."""
    element = bloom_of(512, BLOOM)
    assert element.strategy is Strategy.EXACT
    assert element.bits is None
    assert element.ids is not None
    assert element.ids.tobytes() == make_ids(512).tobytes()
    assert bloom_of(513, BLOOM).strategy is Strategy.BLOOM


def test_a_bloom_with_few_ids_is_a_bloom_when_asked_for() -> None:
    """`few_as_ids = false` gives the paper's blooms always."""
    element = bloom_of(3, TrackingSettings(strategy=Strategy.BLOOM, few_as_ids=False))
    assert element.strategy is Strategy.BLOOM
    assert element.bits is not None
    assert int(np.unpackbits(np.frombuffer(element.bits, np.uint8)).sum()) == 48


def test_routing_sets_of_other_neighbours_are_another_element() -> None:
    """Bits of masks have a meaning per element; with masks it is always a bloom."""
    bench = Bench(BLOOM)
    bench.add([WALL_MS] * 2, masks=np.array([1, 2], np.uint64), to=(7, 8))
    bench.add([WALL_MS] * 2, masks=np.array([1, 2], np.uint64), to=(7, 9))
    assert [element.neighbours for element in bench.closed] == [(7, 8)]
    assert bench.current.neighbours == (7, 9)
    assert bench.current.strategy is Strategy.BLOOM
