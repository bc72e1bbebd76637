"""An immutable index over a set of filters: the join of its postings with the rows of a batch.

Every filter is a union of boxes (`normal`), laid out as postings and checks over cells (`postings`, `cells`). A match is then

1. Translate each column to cells, once.
2. Sort the rows by cell on every axis that is used for access. The candidates of a posting are then one slice of that order:
   *points* are found by the cell through an offset table, which costs nothing for values that no row has; *ranges* by counting
   the rows below their ends, all at once. A filter on one attribute ends here: its result is the slice.
3. Postings with checks and few candidates are joined with them to pairs (posting, row), in chunks that stay in the cache, and
   one check after the other thins out the pairs.
4. Postings with checks and many candidates are matched by bitmaps of rows. The rows of a range of cells are the exclusive or of
   two prefixes of the order, and there are only as many prefixes as rows; so a posting costs a few words for each check, however
   many rows it matches, and its result stays a bitmap until somebody reads it.
5. Filters of several postings are united. Filters with a part that is no constraint on one attribute (arithmetic, comparison of
   attributes, LIKE with a wildcard before its end) are evaluated as a whole over the batch, but only if the rest of them has
   found a candidate.

No step loops in Python over rows, postings or filters, but for the filters evaluated as a whole.

Batches of few rows go another way, see `lookup`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from postroad.core.filters.algebra.normal_form import Normal
from postroad.core.filters.evaluate.whole_batch import select
from postroad.core.filters.index.axis import Ints, Rows
from postroad.core.filters.index.match_few import FEW_ROWS, NOTHING, Listed, Lookup, Tested
from postroad.core.filters.index.match_many import (
    BITMAPS_PER_CHUNK,
    CANDIDATES_PER_WORD,
    Bitmaps,
    Join,
    Slices,
    concatenated,
    rows_of,
    runs,
)
from postroad.core.filters.index.postings import Flags, Longs, build_posting_table, expanded

ROWS_MAX: Final = 1 << 12
"""Rows of one match: the prefixes of an order take `rows * rows / 8` bytes."""

LOOSE_MATCHES_MAX: Final = 8
"""Batches of few rows for which loose entries are evaluated one by one: so many cost what compiling a shard does."""


class Indexed(Tested, Protocol):
    """What a shard asks of an entry."""

    normal: Normal


E = TypeVar("E", bound=Indexed)


class Found(Protocol):
    """What a shard found."""

    def places(self) -> list[int]:
        """Return the places of the entries that match, each once."""

    def counts(self) -> list[int]:
        """Return the number of rows for each of `places`."""

    def rows_at(self, i: int) -> Ints:
        """Return the rows of the i-th of `places`, in ascending order."""

    def items(self) -> Iterable[tuple[int, Ints]]:
        """Return the place and the rows, in ascending order, of each entry that matches."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a join found: for each matched entry, once, a slice of `rows` (in no order) or a bitmap."""

    entries: Longs
    starts: Longs
    stops: Longs
    rows: Ints
    mapped_entries: Longs
    bitmaps: Bitmaps
    row_count: int

    def places(self) -> list[int]:
        return [*self.entries.tolist(), *self.mapped_entries.tolist()]

    def counts(self) -> list[int]:
        mapped = np.bitwise_count(self.bitmaps).sum(axis=1, dtype=np.int64)
        return [*(self.stops - self.starts).tolist(), *mapped.tolist()]

    def rows_at(self, i: int) -> Ints:
        if i < len(self.entries):
            return np.sort(self.rows[self.starts[i] : self.stops[i]])
        return rows_of(self.bitmaps[i - len(self.entries)][None, :], self.row_count)[1].astype(np.int32)

    def items(self) -> Iterator[tuple[int, Ints]]:
        for place, start, stop in zip(self.entries.tolist(), self.starts.tolist(), self.stops.tolist(), strict=True):
            yield place, np.sort(self.rows[start:stop])
        for begin in range(0, len(self.bitmaps), BITMAPS_PER_CHUNK):
            lines, found = rows_of(self.bitmaps[begin : begin + BITMAPS_PER_CHUNK], self.row_count)
            rows = found.astype(np.int32)
            places = self.mapped_entries[begin : begin + BITMAPS_PER_CHUNK].tolist()
            for place, start, stop in zip(places, *(ends.tolist() for ends in runs(lines)), strict=True):
                yield place, rows[start:stop]


class Loose(Generic[E]):
    """A few entries that are evaluated one by one: cheaper than compiling a shard for them.

    Not so for batches of few rows, once there have been some: then the entries are compiled for those.
    """

    __slots__ = ("_compiled", "_matches", "entries")

    def __init__(self, entries: Sequence[E]) -> None:
        self.entries = entries
        self._matches = 0
        self._compiled: Shard[E] | None = None

    def match(self, rows: Rows) -> Found:
        if not self.entries:
            return NOTHING
        if rows.count <= FEW_ROWS:
            found = self._look_up(rows)
            if found is not None:
                return found
        entries, matched = _evaluate(self.entries, np.arange(len(self.entries)), rows)
        starts, stops = runs(entries)
        nothing = np.zeros(0, np.int64)
        return Part(entries[starts], starts, stops, matched, nothing, np.zeros((0, 1), np.uint64), rows.count)

    def _look_up(self, rows: Rows) -> Listed | None:
        if self._compiled is None:
            self._matches += 1
            if self._matches <= LOOSE_MATCHES_MAX:
                return None
            self._compiled = Shard(self.entries)
        found = self._compiled.looked_up(rows)
        return None if found is None else found.by_place()


class Shard(Generic[E]):
    """Compiled from its entries; only `alive` changes, when entries are removed."""

    __slots__ = ("_entry", "_lookup", "_opaque", "_several", "_special", "_table", "alive", "dead", "entries")

    def __init__(self, entries: Sequence[E]) -> None:
        self.entries = entries
        self.alive = np.ones(len(entries), np.bool_)
        self.dead = 0
        self._table = build_posting_table([box for entry in entries for box in entry.normal.boxes])
        boxes = np.array([len(entry.normal.boxes) for entry in entries])
        self._entry = np.repeat(np.arange(len(entries)), boxes)[self._table.box]
        self._opaque = np.array([not (entry.normal.is_independent and entry.normal.is_plain) for entry in entries], np.bool_)
        self._several = (np.bincount(self._entry, minlength=len(entries)) > 1) & ~self._opaque
        self._special = self._several | self._opaque
        self._lookup: Lookup | None = None

    def remove(self, place: int) -> None:
        self.alive[place] = False
        self.dead += 1

    def match(self, rows: Rows) -> Found:
        assert 0 < rows.count <= ROWS_MAX
        found = self.looked_up(rows) if rows.count <= FEW_ROWS else None
        return self.joined(rows) if found is None else found

    def looked_up(self, rows: Rows) -> Listed | None:
        """Match few rows, one by one; None if they have many candidates."""
        if self._lookup is None:
            self._lookup = Lookup(self._table, self.entries, self._entry, self._special, self._opaque)
        return self._lookup.match(rows, self.alive if self.dead else None)

    def joined(self, rows: Rows) -> Part:
        """Match all rows at once."""
        table = self._table
        join = self._join(rows)
        found = join.candidates()
        if self.dead:
            found = found.where(self.alive.take(self._entry.take(found.postings)))
        checked = table.check_count.take(found.postings) > 0
        many = checked & (found.counts > join.words * CANDIDATES_PER_WORD) & ~table.has_set.take(found.postings)
        store = join.store()
        few, passed = join.pairs(found.where(checked & ~many), store)
        mapped, bitmaps = join.bitmaps(found.where(many))
        few = Slices(few.postings, few.starts + len(store), few.stops + len(store))
        slices = concatenated([found.where(~checked), few])
        part = Part(
            self._entry.take(slices.postings),
            slices.starts,
            slices.stops,
            np.concatenate((store, passed)),
            self._entry.take(mapped),
            bitmaps,
            rows.count,
        )
        return self._complete(part, rows)

    def _join(self, rows: Rows) -> Join:
        axes = self._table.axes
        cells, absent = np.empty((len(axes), rows.count), np.int32), [False] * len(axes)
        for i, axis in enumerate(axes):
            own = axis.cells(rows)
            absent[i] = own is None
            cells[i] = axis.null if own is None else own
        return Join(self._table, cells, absent)

    def _complete(self, part: Part, rows: Rows) -> Part:
        """Unite the results of entries with several postings, and evaluate the opaque entries that have candidates."""
        by_slice, by_map = self._special.take(part.entries), self._special.take(part.mapped_entries)
        if not by_slice.any() and not by_map.any():
            return part
        simple, simple_maps = np.flatnonzero(~by_slice), np.flatnonzero(~by_map)
        opaque = self._opaque
        candidates = np.concatenate((part.entries[opaque[part.entries]], part.mapped_entries[opaque[part.mapped_entries]]))
        pairs = [
            self._pairs(part, self._several, rows.count),
            _evaluate(self.entries, np.unique(candidates), rows),
        ]
        entries = np.concatenate([entries for entries, _ in pairs])
        starts, stops = runs(entries)
        base = len(part.rows)
        return Part(
            np.concatenate((part.entries.take(simple), entries[starts])),
            np.concatenate((part.starts.take(simple), starts + base)),
            np.concatenate((part.stops.take(simple), stops + base)),
            np.concatenate((part.rows, *(rows for _, rows in pairs))),
            part.mapped_entries.take(simple_maps),
            part.bitmaps.take(simple_maps, axis=0),
            rows.count,
        )

    def _pairs(self, part: Part, chosen: Flags, count: int) -> tuple[Longs, Ints]:
        """Return the matches of the chosen entries as pairs (entry, row), sorted, each once."""
        slices = np.flatnonzero(chosen.take(part.entries))
        numbers, places = expanded(part.starts[slices], part.stops[slices] - part.starts[slices])
        found = [part.entries[slices].take(numbers) * count + part.rows.take(places)]
        mapped = np.flatnonzero(chosen[part.mapped_entries])
        for begin in range(0, len(mapped), BITMAPS_PER_CHUNK):
            chunk = mapped[begin : begin + BITMAPS_PER_CHUNK]
            lines, rows = rows_of(part.bitmaps[chunk], count)
            found.append(part.mapped_entries[chunk][lines] * count + rows)
        pairs = np.sort(np.concatenate(found))
        entries, matched = np.divmod(pairs[runs(pairs)[0]], count)
        return entries, matched.astype(np.int32)


def _evaluate(entries: Sequence[Indexed], chosen: Longs, rows: Rows) -> tuple[Longs, Ints]:
    """Evaluate the chosen entries as a whole: their matches as pairs (entry, row), sorted."""
    found = [np.flatnonzero(select(entries[place].select(), rows.columns)) for place in chosen.tolist()]
    if not found:
        return chosen, np.zeros(0, np.int32)
    return np.repeat(chosen, [len(each) for each in found]), np.concatenate(found).astype(np.int32)
