"""Which of very many filters match which rows of a batch.

The index is a short list of immutable shards (see `shard`), each at least `SHARD_RATIO` times as large as the next, so
there are about log(n) of them and a filter is compiled anew a bounded number of times, however adds and matches interleave.
New filters stand loose and are evaluated one by one until there are more than `LOOSE_MAX`; then they become the last shard,
which is merged upwards while it has grown too large for its place. Removal marks a filter dead; a shard that is mostly dead is
compiled anew.

Filters with the same normal form are one entry with several keys, so equal filters cost nothing extra.

The answer is exactly that of evaluating every filter alone. Order of results is deterministic.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.filters.algebra.normal_form import Normal, prepare
from postroad.core.filters.evaluate.one_message import Test, compile_test
from postroad.core.filters.evaluate.whole_batch import Columns, Select, compile_select
from postroad.core.filters.filter import Filter, attribute_names
from postroad.core.filters.index.axis import Ints, Rows
from postroad.core.filters.index.postings import Longs
from postroad.core.filters.index.shard import ROWS_MAX, Found, Loose, Shard
from postroad.core.filters.language.ast import Condition

SHARD_RATIO: Final = 4
"""How many times larger each shard is than the next, at least."""

LOOSE_MAX: Final = 16
"""Filters evaluated one by one, which costs about as much as matching a small shard and nothing to prepare."""

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", Shard[Any], Loose[Any])

_NO_ROWS: Final[Ints] = np.zeros(0, np.int32)


class Entry(Generic[K]):
    """A filter, with all keys that stand for it."""

    __slots__ = ("_filter", "_names", "_select", "_test", "condition", "keys", "normal", "place", "shard", "signature")

    def __init__(self, condition: Condition, normal: Normal, signature: Hashable, filter_: Filter | None = None) -> None:
        self.condition = condition
        self._filter = filter_  # which may be compiled already
        self.normal = normal
        self.signature = signature
        self.keys: dict[K, None] = {}
        self.shard: Shard[Entry[K]] | Loose[Entry[K]] | None = None
        self.place = -1
        self._select: Select | None = None
        self._test: Test | None = None
        self._names: list[str] = []

    def select(self) -> Select:
        if self._select is None:
            self._select = compile_select(self.condition) if self._filter is None else self._filter.select
        return self._select

    def holds(self, columns: Columns, row: int) -> bool:
        if self._test is None:
            self._test = compile_test(self.condition) if self._filter is None else self._filter.test
            self._names = sorted(set(attribute_names(self.condition)))
        listed = {name: columns.listed(name) for name in self._names}
        return self._test({name: each[1][row] for name, each in listed.items() if each is not None}) is True


class FilterIndex(Generic[K]):
    """Filters under keys. Adding and removing is cheap; the work is done at the next match."""

    def __init__(self, *, loose_max: int = LOOSE_MAX) -> None:
        self._loose_max = loose_max
        self._by_key: dict[K, Entry[K]] = {}
        self._by_signature: dict[Hashable, Entry[K]] = {}
        self._loose: dict[Hashable, Entry[K]] = {}
        self._placed_loose: Loose[Entry[K]] = Loose([])
        self._shards: list[Shard[Entry[K]]] = []
        self._sources: list[Shard[Entry[K]] | Loose[Entry[K]]] = []
        self._settled = 0
        self.version = 0
        """Changes with every change of the filters."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: K) -> bool:
        return key in self._by_key

    def add(self, key: K, wanted: Filter | Condition | str) -> None:
        """Put a filter under a key, in place of the one that was there; a text is parsed, a syntax tree taken as it is."""
        if isinstance(wanted, str):
            wanted = Filter(wanted)
        condition, normal = (wanted.condition, wanted.normal) if isinstance(wanted, Filter) else (wanted, prepare(wanted))
        self.remove(key)
        self.version += 1
        signature = frozenset(frozenset(box.items()) for box in normal.boxes)
        entry = self._by_signature.get(signature)
        if entry is None:
            given = wanted if isinstance(wanted, Filter) else None
            entry = self._by_signature[signature] = self._loose[signature] = Entry(condition, normal, signature, given)
        entry.keys[key] = None
        self._by_key[key] = entry

    def remove(self, key: K) -> bool:
        """Take a key away; False if it was not there."""
        entry = self._by_key.pop(key, None)
        if entry is None:
            return False
        self.version += 1
        del entry.keys[key]
        if not entry.keys:
            del self._by_signature[entry.signature]
            if isinstance(entry.shard, Shard):
                entry.shard.remove(entry.place)
            else:
                del self._loose[entry.signature]
        return True

    def match(self, batch: Batch) -> Matches[K]:
        """Say which filters match which rows. Read the result before the index changes."""
        if self._settled != self.version:
            self._settle()
        count = len(batch)
        blocks = [(start, Rows(Columns(batch.slice(start, start + ROWS_MAX)))) for start in range(0, count, ROWS_MAX)]
        parts = [_Parts(source, [(offset, source.match(rows)) for offset, rows in blocks]) for source in self._sources]
        return Matches(count, parts, self)

    def entry(self, key: K) -> Entry[K]:
        return self._by_key[key]

    def _settle(self) -> None:
        """Compile what was added, if it is much, and restore the proportions of the shards."""
        fresh: list[Entry[K]] = []
        if len(self._loose) > self._loose_max:
            fresh = list(self._loose.values())
            self._loose.clear()
        kept: list[Shard[Entry[K]]] = []
        for shard in self._shards:
            if shard.dead * 2 > len(shard.entries):
                fresh = _living(shard) + fresh
            else:
                kept.append(shard)
        kept.sort(key=_alive, reverse=True)
        while kept and fresh and _alive(kept[-1]) < SHARD_RATIO * len(fresh):
            fresh = _living(kept.pop()) + fresh
        if fresh:
            kept.append(_place(Shard(fresh)))
        self._shards = kept
        loose = list(self._loose.values())
        if loose != self._placed_loose.entries:
            self._placed_loose = _place(Loose(loose))
        self._sources = [*kept, self._placed_loose]
        self._settled = self.version


def _place(source: S) -> S:
    """Tell the entries of a shard where they stand."""
    for place, entry in enumerate(source.entries):
        entry.shard, entry.place = source, place
    return source


def _alive(shard: Shard[Entry[K]]) -> int:
    return len(shard.entries) - shard.dead


def _living(shard: Shard[Entry[K]]) -> list[Entry[K]]:
    return [entry for entry, alive in zip(shard.entries, shard.alive.tolist(), strict=True) if alive]


class Matches(Generic[K]):
    """The result of a match: for each filter that matches, its rows. Rows are worked out when they are asked for.

    Valid until filters are added to the index or removed from it.
    """

    __slots__ = ("_index", "_parts", "_version", "row_count")

    def __init__(self, row_count: int, parts: Sequence[_Parts[K]], index: FilterIndex[K]) -> None:
        self.row_count = row_count
        self._parts = parts
        self._index = index
        self._version = index.version

    def items(self) -> Iterator[tuple[K, Ints]]:
        """Yield each key whose filter matches a row, with these rows in ascending order. Keys of equal filters share an array."""
        for parts in self._current():
            for place, rows in parts.items():
                for key in parts.shard.entries[place].keys:
                    yield key, rows

    def rows_of(self, key: K) -> Ints:
        """Return the rows that the filter of a key matches, in ascending order."""
        parts = self._current()
        entry = self._index.entry(key)
        found = [each.rows_of(entry.place) for each in parts if each.shard is entry.shard]
        return found[0] if found else _NO_ROWS

    def keys(self) -> list[K]:
        """Return each key whose filter matches a row, without working out which rows."""
        return [key for parts in self._current() for place in parts.counts() for key in parts.shard.entries[place].keys]

    def keys_matching_all_rows(self) -> list[K]:
        """Return each key whose filter matches every row of the batch: the batch can be passed on as it is."""
        return [
            key
            for parts in self._current()
            for place, count in parts.counts().items()
            if count == self.row_count
            for key in parts.shard.entries[place].keys
        ]

    def pairs(self) -> tuple[list[K], Longs, Longs]:
        """Return all matches as two aligned arrays, places in the list of keys and rows, sorted by both."""
        keys: list[K] = []
        rows: list[Ints] = []
        for key, matched in self.items():
            keys.append(key)
            rows.append(matched)
        if not keys:
            return keys, np.zeros(0, np.int64), np.zeros(0, np.int64)
        return keys, np.repeat(np.arange(len(keys)), [len(each) for each in rows]), np.concatenate(rows).astype(np.int64)

    def _current(self) -> Sequence[_Parts[K]]:
        assert self._version == self._index.version, "the index has changed since the match"
        return self._parts


class _Parts(Generic[K]):
    """What one shard found, in each block of the batch."""

    __slots__ = ("_blocks", "_places", "shard")

    def __init__(self, shard: Shard[Entry[K]] | Loose[Entry[K]], blocks: Sequence[tuple[int, Found]]) -> None:
        self.shard = shard
        self._blocks = blocks
        self._places: list[dict[int, int]] | None = None

    def items(self) -> Iterable[tuple[int, Ints]]:
        """Return the place of each entry that matches, with its rows."""
        return self._blocks[0][1].items() if len(self._blocks) == 1 else self._collect()

    def _collect(self) -> Iterator[tuple[int, Ints]]:
        collected: dict[int, list[Ints]] = {}
        for offset, part in self._blocks:
            for place, rows in part.items():
                collected.setdefault(place, []).append(rows + np.int32(offset))
        for place, parts in collected.items():
            yield place, np.concatenate(parts)

    def counts(self) -> dict[int, int]:
        """Return the number of rows for each entry that matches."""
        totals: dict[int, int] = {}
        for _, part in self._blocks:
            for place, count in zip(part.places(), part.counts(), strict=True):
                totals[place] = totals.get(place, 0) + count
        return totals

    def rows_of(self, place: int) -> Ints:
        if self._places is None:
            self._places = [{each: i for i, each in enumerate(part.places())} for _, part in self._blocks]
        found = [
            part.rows_at(places[place]) + np.int32(offset)
            for (offset, part), places in zip(self._blocks, self._places, strict=True)
            if place in places
        ]
        return np.concatenate(found) if found else _NO_ROWS
