"""Joining postings with the rows of one batch: candidates, pairs, bitmaps. Numpy only; `shard` says what for.

The rows of a batch are put in order of their cells on an axis. Orders are numbered: 0 is the batch as it is, the others come as
they are needed, and all are stored one behind the other, so that a slice of any order is just two positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from postroad.core.filters.index.axis import Ints
from postroad.core.filters.index.postings import Access, Checks, Flags, Longs, PostingTable, expanded

Bitmaps: TypeAlias = npt.NDArray[np.uint64]

PAIRS_PER_CHUNK: Final = 1 << 14
"""Pairs checked at a time, so that the arrays stay in the cache and memory does not grow with the number of pairs."""

CANDIDATES_PER_WORD: Final = 2
"""Candidates for each word of a bitmap above which a posting is matched by bitmap."""

BITMAPS_PER_CHUNK: Final = 1 << 10
"""Postings matched by bitmaps at a time, likewise."""


@dataclass(frozen=True, slots=True)
class Slices:
    """Postings, each with a slice of a store of rows: their candidates or, once checked, their matches."""

    postings: Longs
    starts: Longs
    stops: Longs

    def where(self, chosen: Flags) -> Slices:
        places = np.flatnonzero(chosen)
        return Slices(self.postings.take(places), self.starts.take(places), self.stops.take(places))

    @property
    def counts(self) -> Longs:
        return self.stops - self.starts


class Join:
    """One batch against one table. `cells` has a line for each axis; on those in `absent` every row is NULL."""

    def __init__(self, table: PostingTable, cells: Ints, absent: Sequence[bool]) -> None:
        self.table = table
        self.count = cells.shape[1]
        self._absent = absent
        self.words = (self.count + 63) >> 6
        self._cells = cells
        self._orders: list[Ints] = [np.arange(self.count, dtype=np.int32)]
        self._sorted: list[Ints] = [self._orders[0]]
        self._order_numbers: dict[int, int] = {}

    def order(self, axis: int) -> int:
        """Return the number of the order of an axis."""
        number = self._order_numbers.get(axis)
        if number is None:
            number = self._order_numbers[axis] = len(self._orders)
            cells = self._cells[axis]
            narrow = self.table.axes[axis].count < 1 << 16  # sixteen bits are sorted by radix
            order = np.argsort(cells.astype(np.uint16) if narrow else cells, kind="stable")
            self._orders.append(order.astype(np.int32))
            self._sorted.append(cells[order])
        return number

    def store(self) -> Ints:
        return np.concatenate(self._orders)

    def candidates(self) -> Slices:
        """Find the postings that have candidates, by their access alone."""
        everywhere = self.table.everywhere
        found = [self._all_rows(np.arange(everywhere.start, everywhere.stop))]
        for access in self.table.accesses:
            if self._absent[access.axis]:
                if len(access.of_null):
                    found.append(self._all_rows(access.of_null))
                continue
            number = self.order(access.axis)
            base = number * self.count
            for postings, starts, stops in (_by_point(access, self._sorted[number]), _by_range(access, self._sorted[number])):
                found.append(Slices(postings, starts + base, stops + base))
        return concatenated(found)

    def _all_rows(self, postings: Longs) -> Slices:
        return Slices(postings, np.zeros(len(postings), np.int64), np.full(len(postings), self.count))

    def pairs(self, candidates: Slices, store: Ints) -> tuple[Slices, Ints]:
        """Join postings with their candidates one by one and apply the checks: the matches, as slices of new rows."""
        counts = candidates.counts
        ends = np.cumsum(counts)
        kept: list[Longs] = []
        rows: list[Ints] = []
        begin = 0
        while begin < len(ends):
            reach = (ends[begin - 1] if begin else 0) + PAIRS_PER_CHUNK
            end = max(begin + 1, int(np.searchsorted(ends, reach, "right")))
            numbers, places = expanded(candidates.starts[begin:end], counts[begin:end])
            hits, passed = self._check_pairs(candidates.postings[begin:end], numbers, store.take(places))
            kept.append(hits + begin)
            rows.append(passed)
            begin = end
        if not kept:
            return candidates, np.zeros(0, np.int32)
        hits = np.concatenate(kept)
        starts, stops = runs(hits)
        return Slices(candidates.postings[hits[starts]], starts, stops), np.concatenate(rows)

    def _check_pairs(self, postings: Longs, hits: Longs, rows: Ints) -> tuple[Longs, Ints]:
        """Thin out pairs (a place in `postings`, a row) by all checks of the posting."""
        first, count = self.table.first_check.take(postings), self.table.check_count.take(postings)
        passed = self._find_passing(first, hits, rows)
        hits, rows = hits.take(passed), rows.take(passed)
        for nth in range(1, int(count.max())):
            concerned = np.flatnonzero((count > nth)[hits])
            last = np.minimum(first + nth, first + count - 1)
            kept = np.ones(len(hits), np.bool_)
            kept[concerned] = False
            kept[concerned[self._find_passing(last, hits[concerned], rows[concerned])]] = True
            hits, rows = hits[kept], rows[kept]
        return hits, rows

    def _find_passing(self, numbers: Longs, hits: Longs, rows: Ints) -> Longs:
        """Return which pairs pass; pair i is checked by the check `numbers[hits[i]]`."""
        checks = self.table.checks
        low = checks.low.take(numbers)
        found = self._cells.ravel().take((checks.axis.take(numbers) * self.count).take(hits) + rows)
        # One unsigned comparison for low <= cell < high.
        width = (checks.high.take(numbers) - low).view(np.uint32)
        passed = np.flatnonzero((found - low.take(hits)).view(np.uint32) < width.take(hits))
        sets = checks.set_number.take(numbers)
        if sets.max(initial=-1) >= 0:
            passed = passed[_in_sets(checks, sets[hits[passed]], found[passed])]
        return passed

    def bitmaps(self, candidates: Slices) -> tuple[Longs, Bitmaps]:
        """Match postings without sets by bitmaps: those that match a row, and which."""
        if not len(candidates.postings):
            return candidates.postings, np.zeros((0, self.words), np.uint64)
        count = self.table.check_count[candidates.postings]
        owners, checks = expanded(self.table.first_check[candidates.postings], count)
        starts, stops = self._prefixes_of(checks)
        prefixes = np.concatenate([_prefixes(order, self.words) for order in self._orders])
        access = candidates.starts // self.count  # each order has one prefix more than rows
        found: list[Bitmaps] = []
        for begin in range(0, len(count), BITMAPS_PER_CHUNK):
            chunk = slice(begin, begin + BITMAPS_PER_CHUNK)
            maps = prefixes.take(candidates.stops[chunk] + access[chunk], axis=0)
            maps ^= prefixes.take(candidates.starts[chunk] + access[chunk], axis=0)
            own = slice(*np.searchsorted(owners, (begin, begin + BITMAPS_PER_CHUNK)).tolist())
            both = prefixes.take(stops[own], axis=0)
            both ^= prefixes.take(starts[own], axis=0)
            offsets = np.searchsorted(owners[own], np.arange(begin, begin + len(maps)))
            maps &= np.bitwise_and.reduceat(both, offsets, axis=0)
            found.append(maps)
        maps = np.concatenate(found)
        matched = np.flatnonzero(maps.any(axis=1))
        return candidates.postings[matched], maps[matched]

    def _prefixes_of(self, checks: Longs) -> tuple[Longs, Longs]:
        """Return for checks the numbers of the two prefixes between which their rows stand."""
        starts, stops = np.empty(len(checks), np.int64), np.empty(len(checks), np.int64)
        axes = self.table.checks.axis[checks]
        for axis in np.unique(axes).tolist():
            number = self.order(axis)
            own = np.flatnonzero(axes == axis)
            base = number * (self.count + 1)
            starts[own] = base + np.searchsorted(self._sorted[number], self.table.checks.low[checks[own]])
            stops[own] = base + np.searchsorted(self._sorted[number], self.table.checks.high[checks[own]])
        return starts, stops


def _by_point(access: Access, cells: Ints) -> tuple[Longs, Longs, Longs]:
    """Find the postings of the cells that occur, given the cells of all rows in order."""
    starts, stops = runs(cells)
    present = cells[starts]
    first = access.offsets[present]
    places, postings = expanded(first, access.offsets[present + 1] - first)
    return postings, starts.take(places), stops.take(places)


def _by_range(access: Access, cells: Ints) -> tuple[Longs, Longs, Longs]:
    """Find the postings whose range holds a row."""
    starts = _rows_below(access.lows, cells)
    stops = _rows_below(access.highs, cells)[access.high_places]
    hit = np.flatnonzero(stops > starts)
    return hit + access.first_range, starts[hit], stops[hit]


def _rows_below(bounds: Longs, cells: Ints) -> Longs:
    """For each of the ascending bounds, count the rows whose cell is less. Linear in the bounds, without a search for each."""
    return np.cumsum(np.bincount(np.searchsorted(bounds, cells, "right"), minlength=len(bounds) + 1)[:-1])


def _in_sets(checks: Checks, sets: Ints, cells: Ints) -> Flags:
    passed = sets < 0
    concerned = np.flatnonzero(~passed)
    numbers = sets[concerned].astype(np.int64)
    places = np.searchsorted(checks.set_cuts, numbers * checks.set_stride + cells[concerned], "right")
    passed[concerned] = (places - checks.set_first[numbers]) & 1 > 0
    return passed


def _prefixes(order: Ints, words: int) -> Bitmaps:
    """Line k is the bitmap of the first k rows of an order."""
    prefixes = np.zeros((len(order) + 1, words), np.uint64)
    prefixes[np.arange(1, len(order) + 1), order >> 6] = np.uint64(1) << (order & 63).astype(np.uint64)
    return np.bitwise_or.accumulate(prefixes, axis=0, out=prefixes)


def rows_of(bitmaps: Bitmaps, count: int) -> tuple[Longs, Longs]:
    """Return the set bits of bitmaps as (line, row)."""
    lines, rows = np.unpackbits(bitmaps.view(np.uint8), axis=1, count=count, bitorder="little").nonzero()
    return lines, rows


def concatenated(parts: list[Slices]) -> Slices:
    return Slices(
        np.concatenate([part.postings for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.stops for part in parts]),
    )


def runs(values: npt.NDArray[Any]) -> tuple[Longs, Longs]:
    """Return where each run of equal values starts and stops."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    if not len(values):
        return edges, edges
    return np.concatenate(([0], edges)), np.concatenate((edges, [len(values)]))
