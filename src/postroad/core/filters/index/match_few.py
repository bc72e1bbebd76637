"""Matching a batch of few rows: each row is looked up, and nothing else is touched.

The join of a shard costs dozens of numpy calls however few rows there are. Here the work is that of the rows and of their
candidates, in plain Python: the value of an attribute gives its cell, the cell the postings whose access it satisfies, and each
posting brings its checks along. What belongs to a cell is read out of the table when a row first has that cell, and remembered.

That pays as long as candidates are few too. So it is given up, before anything is checked, as soon as the rows have more than
`CANDIDATES_MAX` of them in all; the join does the batch then. A cell that alone has more is remembered as such.

The answer is that of the join in every respect, the order of the entries included: postings without checks, those with few
candidates, entries of several postings, opaque entries, and postings that the join would match by bitmap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

import numpy as np

from postroad.core.filters.evaluate.whole_batch import Columns, Select, select
from postroad.core.filters.index.axis import Ints, Rows
from postroad.core.filters.index.match_many import CANDIDATES_PER_WORD
from postroad.core.filters.index.postings import Access, Flags, Longs, PostingTable

FEW_ROWS: Final = 64
"""Rows of a batch up to which they are looked up."""

CANDIDATES_MAX: Final = 384
"""Candidates of all rows above which the join is as fast. Entries without access are not counted: they cost either the same."""

KNOWN_POSTINGS_MAX: Final = 1 << 16
"""Postings that a shard, and cells with their postings that an access remembers; they forget all when there are more."""

ALONE_MAX: Final = 8
"""Candidates of an opaque entry up to which it is evaluated for each; for more it is evaluated over the batch."""


class Tested(Protocol):
    """What is asked of an entry that is opaque."""

    def select(self) -> Select:
        """Return the compiled condition, for evaluation as a whole."""

    def holds(self, columns: Columns, row: int) -> bool:
        """Say whether the condition as a whole is true for a row."""


class Listed:
    """What was found: the places of the entries that match, each with its rows in ascending order."""

    __slots__ = ("_found",)

    def __init__(self, found: Sequence[tuple[int, list[int]]]) -> None:
        self._found = found

    def by_place(self) -> Listed:
        return Listed(sorted(self._found, key=itemgetter(0)))

    def places(self) -> list[int]:
        return [place for place, _ in self._found]

    def counts(self) -> list[int]:
        return [len(rows) for _, rows in self._found]

    def rows_at(self, i: int) -> Ints:
        return np.array(self._found[i][1], np.int32)

    def items(self) -> Iterable[tuple[int, Ints]]:
        """Return the places and the rows; the arrays are parts of one, because making many would cost more than finding them."""
        if not self._found:
            return ()
        joined = np.fromiter(chain.from_iterable([rows for _, rows in self._found]), np.int32)
        items: list[tuple[int, Ints]] = []
        start = 0
        for place, rows in self._found:
            stop = start + len(rows)
            items.append((place, joined[start:stop]))
            start = stop
        return items


NOTHING: Final = Listed(())


class _Check(NamedTuple):
    """A range of cells, and for a set its cuts."""

    axis: int
    low: int
    high: int
    cuts: list[int] | None


class _Posting(NamedTuple):
    """`special` if its entry has several postings or is opaque."""

    number: int
    entry: int
    special: bool
    checks: tuple[_Check, ...]
    has_set: bool


class _Postings(dict[int, _Posting]):
    """The postings of a shard that were met so far, by number, read out of its arrays."""

    __slots__ = ("_entry", "_special", "_table")

    def __init__(self, table: PostingTable, entry: Longs, special: Flags) -> None:
        super().__init__()
        self._table = table
        self._entry = entry
        self._special = special

    def read(self, numbers: Sequence[int]) -> tuple[_Posting, ...] | None:
        """Return the postings of these numbers, or None if they are too many."""
        if len(numbers) > CANDIDATES_MAX:
            return None
        if len(self) > KNOWN_POSTINGS_MAX:
            self.clear()
        return tuple(map(self.__getitem__, numbers))

    def __missing__(self, number: int) -> _Posting:
        table, entry = self._table, self._entry.item(number)
        first = table.first_check.item(number)
        checks = tuple(self._check(first + i) for i in range(table.check_count.item(number)))
        posting = self[number] = _Posting(number, entry, self._special.item(entry), checks, table.has_set.item(number))
        return posting

    def _check(self, number: int) -> _Check:
        checks, cuts = self._table.checks, None
        which = checks.set_number.item(number)
        if which >= 0:
            ends = checks.set_first[which : which + 2].tolist()
            cuts = (
                checks.set_cuts[slice(*ends) if len(ends) == 2 else slice(ends[0], None)] - which * checks.set_stride
            ).tolist()
        return _Check(checks.axis.item(number), checks.low.item(number), checks.high.item(number), cuts)


class _Known(dict[int, "tuple[_Posting, ...] | None"]):
    """For an access, the postings of each cell met so far, by number; None where they are too many."""

    __slots__ = ("_access", "_highs", "_postings", "_size")

    def __init__(self, access: Access, postings: _Postings) -> None:
        super().__init__()
        self._access = access
        self._highs = access.highs[access.high_places]
        self._postings = postings
        self._size = 0

    def __missing__(self, cell: int) -> tuple[_Posting, ...] | None:
        access = self._access
        numbers = list(range(access.offsets.item(cell), access.offsets.item(cell + 1)))
        if len(access.lows):
            begun = np.searchsorted(access.lows, cell, "right")
            numbers += (np.flatnonzero(self._highs[:begun] > cell) + access.first_range).tolist()
        postings = self._postings.read(numbers)
        if self._size > KNOWN_POSTINGS_MAX:
            self.clear()
            self._size = 0
        self._size += 1 + (len(postings) if postings else 0)
        self[cell] = postings
        return postings


class Lookup:
    """The table of a shard for batches of few rows. `entry` is that of each posting; `special` and `opaque` are by entry."""

    __slots__ = ("_accesses", "_axes", "_entries", "_everywhere", "_opaque")

    def __init__(self, table: PostingTable, entries: Sequence[Tested], entry: Longs, special: Flags, opaque: Flags) -> None:
        postings = _Postings(table, entry, special)
        self._entries = entries
        self._axes = table.axes
        self._accesses = [(access.axis, _Known(access, postings)) for access in table.accesses]
        self._everywhere = postings.read(table.everywhere)
        self._opaque = opaque

    def match(self, rows: Rows, alive: Flags | None) -> Listed | None:
        """Say which entries match; None if there are too many candidates. `alive` is None if all are."""
        candidates = self._candidates(rows)
        if candidates is None:
            return None
        if candidates and alive is not None:
            candidates = [each for each in candidates if alive[each[0].entry]]
        if not candidates:
            return NOTHING
        plain: list[tuple[int, list[int]]] = []
        few: list[tuple[int, list[int]]] = []
        many: list[tuple[int, list[int]]] = []
        united: dict[int, set[int]] = {}
        cells: dict[int, list[int]] = {}
        many_from = CANDIDATES_PER_WORD * ((rows.count + 63) >> 6) + 1
        for (_, entry, special, checks, has_set), concerned in candidates:
            matched = self._check_rows(checks, concerned, cells, rows) if checks else concerned
            if not matched:
                continue
            if special:
                united.setdefault(entry, set()).update(matched)
            elif not checks:
                plain.append((entry, matched))
            elif len(concerned) >= many_from and not has_set:
                many.append((entry, matched))
            else:
                few.append((entry, matched))
        if united:
            few += self._unite(united, rows)
        return Listed([*plain, *few, *many])

    def _candidates(self, rows: Rows) -> list[tuple[_Posting, list[int]]] | None:
        """Find the postings that have candidates, in the order of the join, by their access alone."""
        if self._everywhere is None:
            return None
        left = CANDIDATES_MAX
        cells: list[list[tuple[tuple[_Posting, ...], list[int]]]] = []
        for axis, known in self._accesses:
            own = []
            for cell, concerned in self._axes[axis].rows_by_cell(rows).items():
                postings = known[cell]
                if postings is None:
                    return None
                left -= len(postings) * len(concerned)
                if left < 0:
                    return None
                if postings:
                    own.append((postings, concerned))
            if own:
                cells.append(own)
        found = [(posting, list(range(rows.count))) for posting in self._everywhere]
        for own in cells:
            found += _by_posting(own)
        return found

    def _check_rows(self, checks: Sequence[_Check], concerned: list[int], cells: dict[int, list[int]], rows: Rows) -> list[int]:
        """Return those of the rows that pass; `cells` has those of the axes that were needed so far."""
        for axis, low, high, cuts in checks:
            own = cells.get(axis)
            if own is None:
                own = cells[axis] = self._axes[axis].listed_cells(rows)
            concerned = [
                row for row in concerned if low <= own[row] < high and (cuts is None or bisect_right(cuts, own[row]) & 1)
            ]
        return concerned

    def _unite(self, united: dict[int, set[int]], rows: Rows) -> list[tuple[int, list[int]]]:
        """Return the entries of several postings, and those of the opaque ones that are true for a candidate."""
        several: list[tuple[int, list[int]]] = []
        opaque: list[tuple[int, list[int]]] = []
        for entry in sorted(united):
            matched = sorted(united[entry])
            if not self._opaque[entry]:
                several.append((entry, matched))
                continue
            matched = _evaluate(self._entries[entry], matched, rows.columns)
            if matched:
                opaque.append((entry, matched))
        return several + opaque


def _by_posting(cells: Sequence[tuple[Sequence[_Posting], list[int]]]) -> list[tuple[_Posting, list[int]]]:
    """Turn cells with their postings and rows into postings, by number, with the rows of all their cells."""
    found: dict[int, tuple[_Posting, list[int]]] = {}
    for postings, rows in cells:
        for posting in postings:
            number = posting[0]
            found[number] = (posting, sorted(found[number][1] + rows) if number in found else rows)
    return [found[number] for number in sorted(found)]


def _evaluate(entry: Tested, candidates: list[int], columns: Columns) -> list[int]:
    """Return the rows for which an entry as a whole is true; they are all among the candidates."""
    if len(candidates) > ALONE_MAX:
        return np.flatnonzero(select(entry.select(), columns)).tolist()
    return [row for row in candidates if entry.holds(columns, row)]
