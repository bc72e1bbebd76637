"""Which of many ids are in which of many elements: the kernel of every bulk search. Arrays in, arrays out.

Ids are sorted by (origin, timestamp) once. Then the ids that an element may hold, its *candidates*, lie side by side: a search
for the ends of its range gives them, and one for each singleton. Elements that keep ids as they are (`exact`, `async`) are looked
up the other way round: their ids in those asked for. Blooms are probed for all pairs of element and candidate at once: the
first bit of every pair, the second of the pairs that are left, and so on. Half of the pairs leave at each step, so a pair
costs about two probes, whatever k is.

The probability of a hit is equation (2) with the blooms at hand: 1 - prod(1 - fpp_i) over the matching set, which is every bloom
of the history that the id is a candidate of. An id found as it is has probability 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS, COUNTER_MAX, MESSAGE_ID_BYTES

Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

PAIRS_MAX: Final = 1 << 16  # pairs of element and candidate that are probed together; bounds the memory
SETS_MAX: Final = 10  # neighbours of a routing set whose subsets are tried
_ID: Final = np.dtype((np.void, MESSAGE_ID_BYTES))
_TIME_BITS: Final = 48


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements as columns. `low_ms` and `high_ms` bound the part of each that is asked about here: the rest is asked elsewhere.

    The body of element i lies in `data` from `starts[i]` to `starts[i + 1]`: ids of 16 bytes where `packed`, else bits.
    """

    history: Longs  # a number per history
    origin: Longs
    broker: Longs  # whose history it is; salts the hashes
    low_ms: Longs
    high_ms: Longs
    from_ms: Longs
    to_ms: Longs
    singletons: Longs  # of all elements, one after the other
    singleton_of: Longs  # the element of each
    m: Longs
    k: Longs
    count: Longs
    neighbours: Longs  # how many the routing sets of this element name; 0 without such sets
    packed: Flags
    starts: Longs
    data: Bytes

    def __len__(self) -> int:
        return len(self.history)


@dataclass(frozen=True, slots=True)
class Matches:
    """Hits, sorted by (id, history), each once; and what was tested, per history."""

    row: Longs  # of the id among those asked for
    history: Longs
    probability: Floats
    tested: dict[int, tuple[int, float]]  # history -> candidates, false positives to expect among them


@dataclass(frozen=True, slots=True)
class _Slices:
    """Candidates: `element[i]` may hold the ids at positions [first[i], after[i]) of the sorted ones."""

    element: Longs
    first: Longs
    after: Longs

    def of(self, chosen: Flags) -> _Slices:
        return _Slices(self.element[chosen], self.first[chosen], self.after[chosen])


def match(ids: Ids, elements: Elements) -> Matches:
    """Search for ids, of which none stands twice."""
    at = _coordinates(ids, elements.origin)
    order = np.argsort(at.ids, kind="stable")
    sorted_ids = ids[order]
    slices = _candidates(at.ids[order], at.origin_of_elements, elements)
    packed = elements.packed[slices.element]
    found = [_lookup(sorted_ids, elements, np.unique(slices.element[packed]))]
    probing = slices.of(~packed)
    found += _probe(sorted_ids, elements, probing)
    position, history, certain = (np.concatenate(column) for column in zip(*found, strict=True))
    return _matches(order, position, history, certain, elements, probing)


@dataclass(frozen=True, slots=True)
class _Coordinates:
    ids: Longs
    origin_of_elements: Longs  # already shifted; negative when no id has this origin


def _coordinates(ids: Ids, origins: Longs) -> _Coordinates:
    """Give every id one number, ordered by (origin, timestamp)."""
    parts = ids.view(ID_DTYPE)
    brokers = parts["broker"].astype(np.int64)
    milliseconds = (parts["tick"].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
    known = np.unique(brokers)
    ranks = np.searchsorted(known, origins)
    missing = known[np.minimum(ranks, len(known) - 1)] != origins if len(known) else np.ones(len(origins), np.bool_)
    shifted = ranks << _TIME_BITS
    shifted[missing] = -1
    return _Coordinates((np.searchsorted(known, brokers) << _TIME_BITS) + milliseconds, shifted)


def _candidates(at: Longs, origin: Longs, elements: Elements) -> _Slices:
    """Find the ids that each element may hold: those of its range and of its singletons outside the range."""
    each = np.arange(len(elements))
    late, of = elements.singletons, elements.singleton_of
    outside = (late < elements.from_ms[of]) | (late > elements.to_ms[of])
    late, of = late[outside], of[outside]
    element = np.concatenate([each, of])
    low = np.concatenate([np.maximum(elements.from_ms, elements.low_ms), np.maximum(late, elements.low_ms[of])])
    high = np.concatenate([np.minimum(elements.to_ms, elements.high_ms), np.minimum(late, elements.high_ms[of])])
    sound = (low <= high) & (origin[element] >= 0)
    element, low, high = element[sound], low[sound], high[sound]
    base = origin[element]
    first, after = np.searchsorted(at, base + low, "left"), np.searchsorted(at, base + high, "right")
    return _Slices(element, first, after).of(first < after)


# --- ids kept as they are -----------------------------------------------------------------------------------------------


def _lookup(ids: Ids, elements: Elements, wanted: Longs) -> tuple[Longs, Longs, Flags]:
    """Find the entries of packed elements among the ids."""
    pieces = [elements.data[elements.starts[each] : elements.starts[each + 1]] for each in wanted.tolist()]
    lengths = np.array([len(piece) // MESSAGE_ID_BYTES for piece in pieces], np.int64)
    if not pieces or not len(ids):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    entries = np.concatenate(pieces).view(_ID)
    position, entry = find(ids, entries)
    history = np.repeat(elements.history[wanted], lengths)[entry]
    return position, history, np.ones(len(position), np.bool_)


def find(ids: Ids, entries: Ids) -> tuple[Longs, Longs]:
    """Return pairs (position in `ids`, position in `entries`) of equal ids. Those in `ids` differ; entries may repeat.

    Both are brought onto 64-bit keys that begin with the time, so that entries in order of time walk through memory in order.
    Different ids may share a key; then the ones behind it are looked at, too.
    """
    keys = _keys(ids)
    order = np.argsort(keys, kind="stable")
    keys, words, wanted = keys[order], _words(ids[order]), _words(entries)
    place = np.searchsorted(keys, entry_keys := _keys(entries), "left")
    left = np.flatnonzero(place < len(keys))
    left = left[keys[place[left]] == entry_keys[left]]
    found: list[tuple[Longs, Longs]] = []
    while len(left):
        same = (words[place[left]] == wanted[left]).all(axis=1)
        found.append((order[place[left[same]]], left[same]))
        left = left[~same]
        place[left] += 1
        left = left[place[left] < len(keys)]
        left = left[keys[place[left]] == entry_keys[left]]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def _words(ids: Ids) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(ids).view(np.uint64).reshape(-1, 2)


def _keys(ids: Ids) -> np.ndarray[Any, np.dtype[np.uint64]]:
    parts = np.ascontiguousarray(ids).view(ID_DTYPE)
    tick = parts["tick"].astype(np.uint64)
    rest = parts["publisher"].astype(np.uint64) * np.uint64(0x9E37_79B9) + (tick & np.uint64(COUNTER_MAX))
    return (tick >> np.uint64(COUNTER_BITS) << np.uint64(32)) | (rest & np.uint64(0xFFFF_FFFF))


# --- blooms -------------------------------------------------------------------------------------------------------------


def _probe(ids: Ids, elements: Elements, slices: _Slices) -> Iterator[tuple[Longs, Longs, Flags]]:
    """Probe all pairs, for each broker and shape of bloom by themselves: they share the positions of ids."""
    shape = np.stack([elements.broker, elements.m, elements.k, elements.neighbours], axis=1)[slices.element]
    for broker, m, k, neighbours in np.unique(shape, axis=0).tolist():
        chosen = slices.of((shape == (broker, m, k, neighbours)).all(axis=1))
        span = slice(int(chosen.first.min()), int(chosen.after.max()))
        for mask in range(1 << min(neighbours, SETS_MAX)):
            masks = np.full(span.stop - span.start, mask, np.uint64) if neighbours else None
            columns = blooms.positions(ids[span], m, k, masks, broker).T
            for element, position in _pairs(chosen):
                hit_element, hit = _survivors(columns, elements, element, position - span.start)
                yield hit + span.start, elements.history[hit_element], np.zeros(len(hit), np.bool_)


def _pairs(slices: _Slices) -> Iterator[tuple[Longs, Longs]]:
    """Yield (element, position) for every candidate, in blocks; a slice longer than a block is cut."""
    ends = np.cumsum(slices.after - slices.first)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, PAIRS_MAX):
        pair = np.arange(start, min(start + PAIRS_MAX, total))
        which = np.searchsorted(ends, pair, "right")
        yield slices.element[which], (slices.after[which] - (ends[which] - pair)).astype(np.int64, copy=False)


def _survivors(columns: np.ndarray[Any, Any], elements: Elements, element: Longs, position: Longs) -> tuple[Longs, Longs]:
    """Return the pairs whose k bits are all set."""
    start = elements.starts[element]
    for column in columns:
        bit = column[position]
        byte = elements.data[start + (bit >> np.uint32(3))]
        left = np.flatnonzero(byte >> (bit & np.uint32(7)).astype(np.uint8) & np.uint8(1))
        if len(left) < len(position):
            element, position, start = element[left], position[left], start[left]
        if not len(position):
            break
    return element, position


# --- the answer ---------------------------------------------------------------------------------------------------------


def _matches(order: Longs, position: Longs, history: Longs, certain: Flags, elements: Elements, probing: _Slices) -> Matches:
    known = np.unique(elements.history)
    rank = np.searchsorted(known, history)
    key = order[position] * len(known) + rank if len(known) else position
    by = np.lexsort((~certain, key))
    key, position, rank, certain = key[by], position[by], rank[by], certain[by]
    once = np.ones(len(key), np.bool_)
    once[1:] = key[1:] != key[:-1]
    position, rank, certain = position[once], rank[once], certain[once]
    weight = _weights(elements)
    probability = -np.expm1(_matching_sets(rank, position, np.searchsorted(known, elements.history), probing, weight, len(order)))
    probability = np.clip(probability, 0.0, 1.0)  # the difference of two sums may be a little off
    probability[certain] = 0.0
    return Matches(order[position], known[rank], probability, _test(elements, probing, weight))


def _weights(elements: Elements) -> Floats:
    """Return log(1 - fpp) of every bloom; with routing sets an id is tried with every set."""
    weight = np.zeros(len(elements), np.float64)
    bloom = np.flatnonzero(~elements.packed)
    m, k, count = (column[bloom].astype(np.float64) for column in (elements.m, elements.k, elements.count))
    fpp = np.power(-np.expm1(k * count * np.log1p(-1 / m)), k)
    weight[bloom] = np.log1p(-np.minimum(fpp, 1 - 1e-12)) * np.exp2(np.minimum(elements.neighbours[bloom], SETS_MAX))
    return weight


def _matching_sets(rank: Longs, position: Longs, rank_of: Longs, slices: _Slices, weight: Floats, ids: int) -> Floats:
    """Sum the weights of the slices of a history that contain a position, for many (history, position) at once.

    That is: of the slices of this history that begin at or before it, less those that end at or before it. Keys are ordered by
    history first; what earlier histories add to both sums is the same.
    """
    stride = ids + 1
    base, sums = rank_of[slices.element] * stride, weight[slices.element]
    begin, end = base + slices.first, base + slices.after
    wanted = rank * stride + position
    return _sum_up_to(begin, sums, wanted) - _sum_up_to(end, sums, wanted)


def _sum_up_to(keys: Longs, values: Floats, wanted: Longs) -> Floats:
    order = np.argsort(keys, kind="stable")
    totals = np.concatenate([np.zeros(1), np.cumsum(values[order])])
    return totals[np.searchsorted(keys[order], wanted, "right")]


def _test(elements: Elements, slices: _Slices, weight: Floats) -> dict[int, tuple[int, float]]:
    count = slices.after - slices.first
    expected = count * -np.expm1(weight[slices.element])
    known, rank = np.unique(elements.history[slices.element], return_inverse=True)
    counts = np.bincount(rank, count, len(known)).astype(np.int64).tolist()
    sums = np.bincount(rank, expected, len(known)).tolist()
    return {history: (counts[i], sums[i]) for i, history in enumerate(known.tolist())}
