"""`RangeSet` against a plain set of integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from postroad.core.protocol.ranges import RangeSet, TickRange

SPAN = 24
ends = st.integers(0, SPAN)
operations = st.lists(st.tuples(st.sampled_from(["add", "remove"]), ends, ends), max_size=20)


def built(steps: list[tuple[str, int, int]]) -> tuple[RangeSet, set[int]]:
    ranges, oracle = RangeSet(), set[int]()
    for step, lo, hi in steps:
        ticks = set(range(lo + 1, hi + 1))
        if step == "add":
            ranges.add(lo, hi)
            oracle |= ticks
        else:
            ranges.remove(lo, hi)
            oracle -= ticks
    return ranges, oracle


def ticks_of(parts: Iterable[TickRange]) -> list[int]:
    return [t for lo, hi in parts for t in range(lo + 1, hi + 1)]


@given(operations)
def test_add_and_remove_agree_with_a_set_of_integers(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is added and removed, the same ticks are in."""
    ranges, oracle = built(steps)
    assert ticks_of(ranges) == sorted(oracle)
    assert all((t in ranges) == (t in oracle) for t in range(SPAN + 2))


@given(operations)
def test_ranges_stay_sorted_disjoint_and_merged(steps: list[tuple[str, int, int]]) -> None:
    """Two neighbouring ranges are always apart, so the form is unique and equality is structural."""
    ranges, oracle = built(steps)
    parts = list(ranges)
    assert all(part.lo < part.hi for part in parts)
    assert all(left.hi < right.lo for left, right in itertools.pairwise(parts))
    assert ranges == RangeSet((t - 1, t) for t in sorted(oracle))


@given(operations, ends, ends)
def test_queries_agree_with_a_set_of_integers(steps: list[tuple[str, int, int]], lo: int, hi: int) -> None:
    """Intersect, missing, covers and contiguous_from see the same ticks as the oracle."""
    ranges, oracle = built(steps)
    window = set(range(lo + 1, hi + 1))
    assert ticks_of(ranges.intersect(lo, hi)) == sorted(window & oracle)
    assert ticks_of(ranges.missing(lo, hi)) == sorted(window - oracle)
    assert ranges.covers(lo, hi) == (window <= oracle)
    end = ranges.contiguous_from(lo)
    assert set(range(lo + 1, end + 1)) <= oracle
    assert end + 1 not in oracle


def test_a_range_excludes_its_lower_end() -> None:
    """(3, 5] holds 4 and 5."""
    assert [t for t in range(8) if t in TickRange(3, 5)] == [4, 5]
    assert TickRange(5, 5).is_empty
