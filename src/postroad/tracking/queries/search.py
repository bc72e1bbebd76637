"""Which histories hold which ids: many ids against many elements at once.

First the matching sets (section 3.1): an element is asked for an id when the id's broker is the history's origin and the id's
timestamp lies in its range or is one of its singletons. Then CONTAINS on blooms, hashed once for all of one shape, and
equality on ids.

A hit says with what probability the same would have been answered for an id that the history does not hold: equation (2) over
the blooms of the matching set, each with the ids that it really took, and with routing sets once for every set that was
tried; 0 when the ids themselves are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log1p
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Element, HistoryKey
from postroad.types import COUNTER_BITS

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_FEW: Final = 4  # ids for which it is quicker to look at bits one by one
_CHUNK: Final = 4_096  # ids that are searched for at a time
_POOL: Final = 1 << 20  # ids that are compared at a time
_SURE: Final = 1 - 2**-53  # the highest probability below 1: an overfull bloom claims everything
_NO_ROWS: Final[Rows] = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Hits:
    """Columns of equal length: `keys[i]` holds the id at `rows[i]`, unless it is a false positive (`probability[i]`).

    `forwarded[i]` is the set of neighbours the id was forwarded to where routing sets tell (if several sets claimed it, their
    union), else None. Ordered by row and key.
    """

    rows: Rows
    keys: tuple[HistoryKey, ...]
    probability: Floats
    forwarded: tuple[tuple[int, ...] | None, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[int, HistoryKey, float, tuple[int, ...] | None]]:
        return zip(self.rows.tolist(), self.keys, self.probability.tolist(), self.forwarded, strict=True)


class _WantedIds(NamedTuple):
    """The ids that are looked for, as numbers."""

    ids: Ids
    sender: blooms.Words
    tick: blooms.Words
    broker: Numbers
    timestamp: Numbers

    def pick(self, rows: Rows) -> _WantedIds:
        return _WantedIds(self.ids[rows], self.sender[rows], self.tick[rows], self.broker[rows], self.timestamp[rows])


class _Matches(NamedTuple):
    """The matching sets: pairs of an element's number and an id's row, those of an element side by side (or in two places)."""

    elements: Rows
    rows: Rows


def search(elements: Iterable[Element], ids: Ids) -> Hits:
    """Return which of the ids are in which histories."""
    listed = list(elements)
    asked = _ask(ids)
    index = _Index(listed)
    order = np.lexsort((asked.timestamp, asked.broker))
    # Ids of about the same time have their matching sets in common, so a chunk of them looks into few elements.
    chunks = [order[start : start + _CHUNK] for start in range(0, len(order), _CHUNK)]
    return _join([_Search(listed, asked.pick(rows), index).hits(rows) for rows in chunks])


def matching_sets(elements: Iterable[Element], ids: Ids) -> dict[HistoryKey, Numbers]:
    """Return |M(H, t)| of every history for every id."""
    listed = list(elements)
    keys, key_of = _keys(listed)
    matches = _match(_Index(listed), _ask(ids))
    codes = key_of[matches.elements] * len(ids) + matches.rows
    sizes = np.bincount(codes, minlength=len(keys) * len(ids)).reshape(len(keys), len(ids))
    return dict(zip(keys, sizes, strict=True))


def _ask(ids: Ids) -> _WantedIds:
    words = blooms.words_of(ids)
    sender, tick = words[:, 0], words[:, 1]
    broker = (sender & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    return _WantedIds(np.ascontiguousarray(ids), sender, tick, broker, (tick >> np.uint64(COUNTER_BITS)).astype(np.int64))


def _keys(elements: Sequence[Element]) -> tuple[list[HistoryKey], Rows]:
    """Return the keys in order, and for each element the number of its key."""
    keys = sorted({element.key for element in elements})
    numbers = {key: number for number, key in enumerate(keys)}
    return keys, np.array([numbers[element.key] for element in elements], np.intp)


def _join(parts: list[Hits]) -> Hits:
    """Put the hits of several chunks together, ordered by row and key."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Hits(_NO_ROWS, (), np.empty(0, np.float64), ())
    keys = [key for part in parts for key in part.keys]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    rows = np.concatenate([part.rows for part in parts])
    order = np.lexsort((np.array([ranks[key] for key in keys], np.intp), rows))
    forwarded = [told for part in parts for told in part.forwarded]
    return Hits(
        rows[order],
        tuple(keys[place] for place in order.tolist()),
        np.concatenate([part.probability for part in parts])[order],
        tuple(forwarded[place] for place in order.tolist()),
    )


# --- matching sets -------------------------------------------------------------------------------------------------------------


class _Index:
    """The ranges and singletons of elements, as columns."""

    def __init__(self, elements: Sequence[Element]) -> None:
        self.origin: Final = np.array([element.key.origin for element in elements], np.int64)
        self.from_ms: Final = np.array([element.from_ms for element in elements], np.int64)
        self.to_ms: Final = np.array([element.to_ms for element in elements], np.int64)
        listing = [(number, element.singletons) for number, element in enumerate(elements) if len(element.singletons)]
        sizes = [len(values) for _, values in listing]
        self.single: Final = np.repeat(np.array([number for number, _ in listing], np.intp), sizes)
        self.single_ms: Final = np.concatenate([np.empty(0, np.int64), *(values for _, values in listing)])


def _match(index: _Index, asked: _WantedIds) -> _Matches:
    parts = [_Matches(_NO_ROWS, _NO_ROWS)]
    for origin in np.unique(asked.broker).tolist():
        rows = np.flatnonzero(asked.broker == origin)
        rows = rows[np.argsort(asked.timestamp[rows], kind="stable")]
        times = asked.timestamp[rows]
        numbers = np.flatnonzero(index.origin == origin)
        parts.append(_within(numbers, index.from_ms[numbers], index.to_ms[numbers], rows, times))
        ours = index.origin[index.single] == origin
        if ours.any():
            found = _within(index.single[ours], index.single_ms[ours], index.single_ms[ours], rows, times)
            parts.append(_outside(found, index, asked))
    return _Matches(np.concatenate([part.elements for part in parts]), np.concatenate([part.rows for part in parts]))


def _within(numbers: Rows, low: Numbers, high: Numbers, rows: Rows, times: Numbers) -> _Matches:
    """Match the ranges [low, high] of elements with ids in order of time."""
    first = np.searchsorted(times, low, side="left")
    count = np.maximum(np.searchsorted(times, high, side="right") - first, 0)
    offsets = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return _Matches(np.repeat(numbers, count), rows[np.repeat(first, count) + offsets])


def _outside(found: _Matches, index: _Index, asked: _WantedIds) -> _Matches:
    """Drop what the element's range matches too."""
    times = asked.timestamp[found.rows]
    extra = (times < index.from_ms[found.elements]) | (times > index.to_ms[found.elements])
    return _Matches(found.elements[extra], found.rows[extra])


# --- looking into the matching sets --------------------------------------------------------------------------------------------


class _Search:
    """One search. A *code* stands for an id and a key: row * keys + number of the key."""

    def __init__(self, elements: Sequence[Element], asked: _WantedIds, index: _Index) -> None:
        matches = _match(index, asked)
        used, numbers = np.unique(matches.elements, return_inverse=True)
        self._elements = [elements[number] for number in used.tolist()]
        self._asked = asked
        self._keys, self._key_of = _keys(self._elements)
        self._matches = _Matches(numbers, matches.rows)
        self._claimed: list[Rows] = [_NO_ROWS]  # codes
        self._certain: list[Rows] = [_NO_ROWS]
        self._forwarded: dict[int, set[int]] = {}  # by code
        self._look()

    def _look(self) -> None:
        starts = np.flatnonzero(np.diff(self._matches.elements, prepend=-1))
        stops = np.append(starts[1:], len(self._matches.rows))[: len(starts)]
        numbers = self._matches.elements[starts]
        shapes: dict[tuple[int, int, int, int], list[tuple[int, Rows]]] = {}
        named: list[int] = []
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True):
            element = self._elements[number]
            if element.bits is None:
                named.append(number)
            else:
                shape = (element.broker, element.m, element.k, len(element.neighbours))
                shapes.setdefault(shape, []).append((number, self._matches.rows[start:stop]))
        for shape, group in shapes.items():
            self._look_in_blooms(group, *shape)
        self._look_in_ids(named)

    def _codes(self, rows: Rows, number: int) -> Rows:
        codes: Rows = rows * len(self._keys) + self._key_of[number]
        return codes

    def _look_in_blooms(self, group: list[tuple[int, Rows]], broker: int, m: int, k: int, degree: int) -> None:
        """Ask blooms of one shape; with routing sets, for each of the sets."""
        rows = np.unique(np.concatenate([part for _, part in group]))
        place = np.zeros(len(self._asked.ids), np.intp)
        place[rows] = np.arange(len(rows))
        for mask in range(1 << degree):
            masks = np.full(len(rows), mask, np.uint64) if degree else None
            where = blooms.positions(self._asked.ids[rows], m, k, masks, broker)
            few = where.tolist() if len(rows) <= _FEW else None
            for number, part in group:
                bits = self._elements[number].bits
                assert bits is not None
                if few is None:
                    claimed = part[blooms.contains(bits, where[place[part]])]
                else:
                    claimed = np.array([row for row in part.tolist() if _has(bits, few[place[row]])], np.intp)
                if claimed.size:
                    self._claim(number, self._codes(claimed, number), mask)

    def _claim(self, number: int, codes: Rows, mask: int) -> None:
        self._claimed.append(codes)
        neighbours = self._elements[number].neighbours
        if neighbours:
            told = {neighbour for bit, neighbour in enumerate(neighbours) if mask >> bit & 1}
            for code in codes.tolist():
                self._forwarded.setdefault(code, set()).update(told)

    def _look_in_ids(self, named: list[int]) -> None:
        """Compare ids: those of many small elements at once."""
        if not named:
            return
        order = np.lexsort((self._asked.sender, self._asked.tick))
        pool: list[int] = []
        size = 0
        for number in named:
            ids = self._elements[number].ids
            assert ids is not None
            pool.append(number)
            size += len(ids)
            if size >= _POOL:
                self._compare(pool, order)
                pool, size = [], 0
        if pool:
            self._compare(pool, order)

    def _compare(self, pool: list[int], order: Rows) -> None:
        arrays = [ids for number in pool if (ids := self._elements[number].ids) is not None]
        held = blooms.words_of(np.concatenate(arrays))
        ticks = self._asked.tick[order]
        first = np.searchsorted(ticks, held[:, 1], side="left")
        known = np.flatnonzero(ticks[np.minimum(first, len(ticks) - 1)] == held[:, 1])
        if not known.size:
            return
        held, first = held[known], first[known]
        count = np.searchsorted(ticks, held[:, 1], side="right") - first
        owner = np.repeat(np.array(pool, np.intp), [len(ids) for ids in arrays])[known]
        offsets = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows = order[np.repeat(first, count) + offsets]
        same = self._asked.sender[rows] == np.repeat(held[:, 0], count)
        codes = rows[same] * len(self._keys) + self._key_of[np.repeat(owner, count)[same]]
        self._claimed.append(codes)
        self._certain.append(codes)

    def hits(self, rows: Rows) -> Hits:
        """Return what was found, `rows` being where the ids of this search stand among those that were asked for."""
        codes = np.unique(np.concatenate(self._claimed))
        keys = max(len(self._keys), 1)
        doubts = self._doubts(codes)
        doubts[np.isin(codes, np.concatenate(self._certain))] = 0.0
        told = (self._forwarded.get(code) for code in codes.tolist())
        forwarded = [None if neighbours is None else tuple(sorted(neighbours)) for neighbours in told]
        found = rows[codes // keys]
        order = np.lexsort((codes % keys, found))
        names = (codes % keys)[order].tolist()
        return Hits(
            found[order],
            tuple(self._keys[name] for name in names),
            doubts[order],
            tuple(forwarded[place] for place in order.tolist()),
        )

    def _doubts(self, codes: Rows) -> Floats:
        """Return 1 - product(1 - fpp) over the blooms of the matching set, for each code."""
        if not codes.size:
            return np.empty(0, np.float64)
        weights = np.array([_log_silence(element) for element in self._elements])[self._matches.elements]
        asked = self._matches.rows * len(self._keys) + self._key_of[self._matches.elements]
        place = np.minimum(np.searchsorted(codes, asked), len(codes) - 1)
        ours = codes[place] == asked
        return -np.expm1(np.bincount(place[ours], weights[ours], len(codes)))


def _log_silence(element: Element) -> float:
    """Return the logarithm of the probability that this element does not claim an id it does not hold."""
    if element.bits is None:
        return 0.0
    return (1 << len(element.neighbours)) * log1p(-min(blooms.fpp(element.m, element.k, element.count), _SURE))


def _has(bits: Any, where: list[int]) -> bool:
    return all(bits[at >> 3] >> (at & 7) & 1 for at in where)
