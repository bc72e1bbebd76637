"""Tick ranges and sets of them.

A `TickRange` is the half-open interval (lo, hi]: the ticks after `lo` up to and including `hi`, which is how knowledge is
stated on the wire. A `RangeSet` is a set of ticks kept as sorted, disjoint, non-adjacent ranges; every operation costs the
logarithm of the number of ranges plus the ranges it touches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class TickRange(NamedTuple):
    """The ticks t with lo < t <= hi."""

    lo: int
    hi: int

    def __contains__(self, tick: object) -> bool:
        return isinstance(tick, int) and self.lo < tick <= self.hi

    @property
    def is_empty(self) -> bool:
        return self.hi <= self.lo


class RangeSet:
    """A mutable set of ticks."""

    __slots__ = ("_his", "_los")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        # Invariant: _los[i] < _his[i] < _los[i + 1]; equal-length sorted lists.
        self._los: list[int] = []
        self._his: list[int] = []
        for lo, hi in ranges:
            self.add(lo, hi)

    def add(self, lo: int, hi: int) -> None:
        """Put the ticks of (lo, hi] in; an empty range changes nothing."""
        if hi <= lo:
            return
        first = bisect_left(self._his, lo)
        last = bisect_right(self._los, hi)
        if first < last:
            lo = min(lo, self._los[first])
            hi = max(hi, self._his[last - 1])
        self._los[first:last] = [lo]
        self._his[first:last] = [hi]

    def remove(self, lo: int, hi: int) -> None:
        """Take the ticks of (lo, hi] out."""
        if hi <= lo:
            return
        first = bisect_right(self._his, lo)
        last = bisect_left(self._los, hi)
        if first >= last:
            return
        keep_lo, keep_hi = self._los[first], self._his[last - 1]
        los, his = [], []
        if keep_lo < lo:
            los.append(keep_lo)
            his.append(lo)
        if hi < keep_hi:
            los.append(hi)
            his.append(keep_hi)
        self._los[first:last] = los
        self._his[first:last] = his

    def intersect(self, lo: int, hi: int) -> Iterator[TickRange]:
        """Yield the parts of the set within (lo, hi]."""
        first = bisect_right(self._his, lo)
        last = bisect_left(self._los, hi)
        for index in range(first, last):
            yield TickRange(max(lo, self._los[index]), min(hi, self._his[index]))

    def missing(self, lo: int, hi: int) -> Iterator[TickRange]:
        """Yield the parts of (lo, hi] that are not in the set."""
        for held in self.intersect(lo, hi):
            if lo < held.lo:
                yield TickRange(lo, held.lo)
            lo = held.hi
        if lo < hi:
            yield TickRange(lo, hi)

    def covers(self, lo: int, hi: int) -> bool:
        """Tell whether every tick of (lo, hi] is in the set."""
        if hi <= lo:
            return True
        index = bisect_right(self._los, lo) - 1
        return index >= 0 and self._his[index] >= hi

    def contiguous_from(self, lo: int) -> int:
        """Return the largest hi such that (lo, hi] is in the set, or `lo` if there is none."""
        index = bisect_right(self._los, lo) - 1
        return self._his[index] if index >= 0 and self._his[index] > lo else lo

    def __contains__(self, tick: int) -> bool:
        index = bisect_left(self._los, tick) - 1
        return index >= 0 and self._his[index] >= tick

    def __iter__(self) -> Iterator[TickRange]:
        return map(TickRange, self._los, self._his)

    def __len__(self) -> int:
        """Count the ranges, which is what memory depends on, not the ticks."""
        return len(self._los)

    def __bool__(self) -> bool:
        return bool(self._los)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._los == other._los and self._his == other._his

    __hash__ = None  # type: ignore[assignment]  # mutable: must not be used as a key

    def __repr__(self) -> str:
        return f"RangeSet({[tuple(r) for r in self]})"
