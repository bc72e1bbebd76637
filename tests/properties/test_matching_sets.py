"""Theorem 1 and Corollary 2 on the tracker itself, with publishers whose clocks, ways and rates are anything."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from postroad.core.batch.batch import Ids
from postroad.core.protocol.packets import pubend_id
from postroad.tracking.histories.elements import ID_DTYPE, Element
from postroad.tracking.histories.events import Published
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries.search import matching_sets, search

START_MS = 1_780_000_000_000


@dataclass(frozen=True)
class Run:
    """Messages of several publishers on their way to one broker."""

    skew_tolerance_ms: int  # T_s, and the clocks really keep within it
    jitter_ms: int  # T_j, and the ways really keep within it
    capacity: int
    persistence_ms: int
    lifetime_min_ms: int
    publishers: int
    mean_gap_ms: float  # between messages
    seed: int
    wild: bool = False  # some timestamps are anything at all

    def arrivals(self, count: int = 400) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Ids]:
        """Return when messages come, in order, and their ids."""
        random = np.random.default_rng(self.seed)
        bursts = random.exponential(self.mean_gap_ms, count) * random.choice([0.2, 1.0, 3.0], count)
        sent_ms = START_MS + np.cumsum(bursts).astype(np.int64)
        skews = random.integers(-self.skew_tolerance_ms, self.skew_tolerance_ms + 1, self.publishers)
        skews[: min(2, self.publishers)] = [-self.skew_tolerance_ms, self.skew_tolerance_ms][: min(2, self.publishers)]
        publisher = random.integers(0, self.publishers, count)
        came_ms = sent_ms + random.integers(0, self.jitter_ms + 1, count)
        timestamps = sent_ms + skews[publisher]
        if self.wild:
            strange = random.random(count) < 0.1
            timestamps[strange] += random.integers(-100_000, 100_000, int(strange.sum()))
        ids = np.zeros(count, ID_DTYPE)
        ids["publisher"], ids["broker"] = publisher + 1, 1
        ids["tick"] = (timestamps.astype(np.uint64) << np.uint64(16)) | np.arange(count, dtype=np.uint64)
        order = np.argsort(came_ms, kind="stable")
        return came_ms[order], ids[order].view("V16")

    def track(self) -> tuple[list[Element], Ids]:
        """Let a broker track the messages one by one; return its elements in order and all ids."""
        tracker = Tracker(
            1,
            1,
            TrackingSettings(
                strategy=Strategy.ASYNC,
                ids_max=self.capacity,
                persistence_ms=self.persistence_ms,
                lifetime_min_ms=self.lifetime_min_ms,
                skew_tolerance_ms=self.skew_tolerance_ms,
                jitter_ms=self.jitter_ms,
                singletons_max=1_000_000,
            ),
            wall_ms=START_MS,
        )
        elements: list[Element] = []
        came_ms, ids = self.arrivals()
        for row, at_ms in enumerate(came_ms.tolist()):
            tracker.take([Published(pubend_id(1), ids[row : row + 1])], at_ms)
            if tracker.wants_flush(at_ms):
                elements += tracker.flush(at_ms).closed
        elements += tracker.flush(int(came_ms[-1]), farewell=True).closed
        return sorted(elements, key=lambda element: element.number), ids


runs = st.builds(
    Run,
    skew_tolerance_ms=st.integers(0, 300),
    jitter_ms=st.just(0) | st.integers(0, 300),
    capacity=st.integers(2, 60),
    persistence_ms=st.integers(20, 600),
    lifetime_min_ms=st.just(0) | st.integers(0, 900),
    publishers=st.integers(1, 8),
    mean_gap_ms=st.floats(0.5, 40),
    seed=st.integers(0, 1_000_000),
)


def ends_of(elements: list[Element]) -> list[int]:
    """Return when elements ended, from the beginning on, without the last, which was not left to live."""
    return [START_MS, *(element.closed_ms for element in elements[:-1])]


def shortest_life(elements: list[Element]) -> int:
    """Return T_n as it was in this run."""
    return min((later - earlier for earlier, later in pairwise(ends_of(elements))), default=10**9)


def allowed(run: Run, elements: list[Element]) -> int:
    """Return the smallest w with 2 T_s + T_j < w T_n. Strictly, as clocks here have whole milliseconds and elements share one."""
    life_ms = shortest_life(elements)
    assume(life_ms > 0)
    return (2 * run.skew_tolerance_ms + run.jitter_ms) // life_ms + 1


def allowed_by_the_sum(run: Run, elements: list[Element]) -> int:
    """Return the same with the lives as they were, T_{i+1} + ... + T_{i+w}, in place of w T_n: the proof's inner line."""
    ends = ends_of(elements)
    for w in range(1, len(ends)):
        if all(
            later - earlier > 2 * run.skew_tolerance_ms + run.jitter_ms for earlier, later in zip(ends, ends[w:], strict=False)
        ):
            return w
    return len(elements)


def largest_set(elements: list[Element], ids: Ids) -> int:
    """Return the largest matching set of any timestamp: the set can only grow where a range begins or an id lies."""
    edges = np.zeros(len(elements), ID_DTYPE)
    edges["broker"], edges["tick"] = 1, [max(element.from_ms, 0) << 16 for element in elements]
    probes = np.concatenate([ids, edges.view("V16")])
    return max(int(sizes.max()) for sizes in matching_sets(elements, probes).values())


@settings(max_examples=60)
@given(runs)
@example(Run(100, 0, 5, 500, 0, 2, 20.0, 1))
def test_matching_sets_never_exceed_w_plus_1(run: Run) -> None:
    """If 2 T_s + T_j <= w T_n, no timestamp is in more than w + 1 elements; every id is found; nobody had to be a singleton."""
    elements, ids = run.track()
    assert largest_set(elements, ids) <= allowed(run, elements) + 1
    assert largest_set(elements, ids) <= allowed_by_the_sum(run, elements) + 1
    assert all(len(element.singletons) == 0 for element in elements)
    assert search(elements, ids).rows.tolist() == list(range(len(ids)))


@settings(max_examples=40)
@given(runs)
def test_ranges_keep_the_bound_whatever_comes(run: Run) -> None:
    """Timestamps that break every assumption become singletons: the ranges overlap no more than before, and all ids are found."""
    wild = Run(**{**run.__dict__, "wild": True})
    elements, ids = wild.track()
    w = allowed(wild, elements)
    for element in elements:
        if element.from_ms <= element.to_ms:
            assert sum(other.from_ms <= element.from_ms <= other.to_ms for other in elements) <= w + 1
    assert search(elements, ids).rows.tolist() == list(range(len(ids)))


def test_a_run_that_breaks_the_inequality_has_larger_matching_sets() -> None:
    """With lifetimes of 50 ms a skew of 500 ms puts a timestamp into many more than two elements."""
    broken = Run(500, 0, 10, 10_000, 0, 4, 5.0, 1)
    elements, ids = broken.track()
    assert shortest_life(elements) < 2 * broken.skew_tolerance_ms
    assert largest_set(elements, ids) > 5
    kept = Run(6, 0, 10, 10_000, 0, 4, 5.0, 1)
    elements, ids = kept.track()
    assert 2 * kept.skew_tolerance_ms < shortest_life(elements)
    assert largest_set(elements, ids) <= 2


def test_jitter_alone_breaks_the_inequality() -> None:
    """Corollary 2: clocks in perfect time do not help when the ways differ by more than an element lives."""
    elements, ids = Run(0, 1_000, 10, 10_000, 0, 4, 5.0, 1).track()
    assert largest_set(elements, ids) > 5
