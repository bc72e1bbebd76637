"""Which of many ids are in which of many elements: the kernel of every bulk search. Arrays in, arrays out.

A `Sheet` holds ids sorted by (origin, tick), and a bit for each id and history. Elements are laid under it, a batch at a time.
The ids that an element may hold, its *candidates*, lie side by side in the sheet. A search for the ends of its range gives them,
and one for each singleton. Blooms are probed for their candidates. Elements that keep ids as they are (`exact`, `async`) are
merged with the sheet, since both are in order of time. Both are compiled (`compiled/blooms.c`); without a compiler numpy does the
same: it probes all pairs of bloom and candidate at once, the first bit of every pair, the second of the pairs that are left, and
so on.

The probability of a hit is equation (2) with the blooms at hand: 1 - prod(1 - fpp_i) over the matching set, which is every bloom
of the history that the id is a candidate of. An id found as it is has probability 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from postroad import compiled
from postroad.core.batch.batch import Ids
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS, COUNTER_MAX, MESSAGE_ID_BYTES

Longs: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

PAIRS_MAX: Final = 1 << 16  # pairs of element and candidate that numpy probes together; bounds the memory
SETS_MAX: Final = 10  # neighbours of a routing set whose subsets are tried
CELLS_MAX: Final = 1 << 22  # of the tables of ids and histories that are made at a time
_ID: Final = np.dtype((np.void, MESSAGE_ID_BYTES))
_TIME_BITS: Final = 48


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements as columns.

    The body of element i lies in `data` from `starts[i]` to `starts[i + 1]`: ids of 16 bytes where `packed`, else bits.
    """

    history: Longs  # a number per history
    origin: Longs
    broker: Longs  # whose history it is; salts the hashes
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
    ordered: Flags | None = None  # whether the ids of a packed element ascend by (broker, tick); None: nobody has looked

    def __len__(self) -> int:
        return len(self.history)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + 128 * len(self) + 16 * len(self.singletons)


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


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Candidates of blooms as the probabilities need them: the rank of the history, and log(1 - fpp)."""

    rank: Longs
    first: Longs
    after: Longs
    weight: Floats


class Sheet:
    """Ids, of which none stands twice, and which of them were found in which histories."""

    def __init__(self, ids: Ids, histories: Longs) -> None:
        """`histories` are the numbers of those that elements of will come, ascending."""
        self.histories: Final = histories
        self._brokers, at, counters = _coordinates(ids)
        order = None if _ascending(at, counters) else np.lexsort((counters, at))
        self._order: Final = order
        self._ids: Final = np.ascontiguousarray(ids if order is None else ids[order])
        self._at: Final = at if order is None else at[order]
        self._stride: Final = (len(histories) + 7) >> 3
        self._found: Final = np.zeros((len(ids), self._stride), np.uint8)
        self._certain: Bytes | None = None  # the same, of ids that were found as they are
        self._weighed: list[_Weighed] = []
        self.tested: Final[dict[int, tuple[int, float]]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def put_under(self, elements: Elements) -> None:
        """Search for the ids in some elements."""
        slices = self._candidates(elements)
        if not len(slices.element):
            return
        rank = np.searchsorted(self.histories, elements.history)
        packed = elements.packed[slices.element]
        wanted = np.unique(slices.element[packed])
        if len(wanted):
            self._look_up(elements, wanted, rank)
        probing = slices.of(~packed)
        if len(probing.element):
            self._probe(elements, probing, rank)
            weight = _weights(elements)[probing.element]
            self._weighed.append(_Weighed(rank[probing.element], probing.first, probing.after, weight))
            self._count_tested(elements.history[probing.element], probing, weight)

    def found(self) -> Found:
        """Return what was found so far, in the order in which the ids were given."""
        flags = np.unpackbits(self._found, axis=1, count=len(self.histories), bitorder="little").view(np.bool_)
        certain = None
        if self._certain is not None:
            certain = np.unpackbits(self._certain, axis=1, count=len(self.histories), bitorder="little").view(np.bool_)
        position = np.arange(len(self))
        if self._order is not None:
            position[self._order] = np.arange(len(self))
            flags = flags[position]
            certain = None if certain is None else certain[position]
        return Found(self.histories, flags, certain, position, tuple(self._weighed))

    def _candidates(self, elements: Elements) -> _Slices:
        """Find the ids that each element may hold: those of its range and of its singletons outside the range."""
        origin = _shift(self._brokers, elements.origin)
        each = np.arange(len(elements))
        late, of = elements.singletons, elements.singleton_of
        outside = (late < elements.from_ms[of]) | (late > elements.to_ms[of])
        late, of = late[outside], of[outside]
        element = np.concatenate([each, of])
        low = np.concatenate([elements.from_ms, late])
        high = np.concatenate([elements.to_ms, late])
        sound = (low <= high) & (origin[element] >= 0)
        element, low, high = element[sound], low[sound], high[sound]
        base = origin[element]
        first, after = np.searchsorted(self._at, base + low, "left"), np.searchsorted(self._at, base + high, "right")
        return _Slices(element, first, after).of(first < after)

    def _count_tested(self, history: Longs, slices: _Slices, weight: Floats) -> None:
        count = slices.after - slices.first
        expected = count * -np.expm1(weight)
        known, rank = np.unique(history, return_inverse=True)
        counts = np.bincount(rank, count, len(known)).astype(np.int64).tolist()
        sums = np.bincount(rank, expected, len(known)).tolist()
        for number, candidates, errors in zip(known.tolist(), counts, sums, strict=True):
            before = self.tested.get(number, (0, 0.0))
            self.tested[number] = (before[0] + candidates, before[1] + errors)

    # --- blooms -----------------------------------------------------------------------------------------------------------

    def _probe(self, elements: Elements, slices: _Slices, rank: Longs) -> None:
        if compiled.library is None or compiled.library.finding is None:
            for history_rank, position in _probe_by_numpy(self._ids, elements, slices, rank):
                self._note(self._found, position, history_rank)
            return
        of = slices.element
        sets = np.minimum(elements.neighbours[of], SETS_MAX)
        data = np.ascontiguousarray(elements.data)
        columns = (
            data.ctypes.data + elements.starts[of],
            self._found.ctypes.data + (rank[of] >> 3),
            slices.first,
            slices.after,
            elements.m[of],
            elements.k[of],
            _salts(elements.broker)[of],
            np.where(elements.neighbours[of] > 0, 1 << sets, 0),
            1 << (rank[of] & 7),
        )
        probes = np.stack([np.asarray(column).astype(np.uint64) for column in columns], axis=1)
        finding = compiled.library.finding
        finding.bloom_find(probes.ctypes.data, len(probes), self._ids.ctypes.data, self._stride)

    def _note(self, table: Bytes, position: Longs, rank: Longs) -> None:
        np.bitwise_or.at(table, (position, rank >> 3), np.left_shift(1, rank & 7).astype(np.uint8))

    # --- ids kept as they are ---------------------------------------------------------------------------------------------

    def _look_up(self, elements: Elements, wanted: Longs, rank: Longs) -> None:
        """Find the entries of packed elements among the ids."""
        if self._certain is None:
            self._certain = np.zeros_like(self._found)
        if compiled.library is None or compiled.library.finding is None:
            position, history_rank = _look_up_by_numpy(self._ids, elements, wanted, rank)
            self._note(self._certain, position, history_rank)
        else:
            ordered = np.zeros(len(elements), np.bool_) if elements.ordered is None else elements.ordered
            data = np.ascontiguousarray(elements.data)
            columns = (
                data.ctypes.data + elements.starts[wanted],
                (elements.starts[wanted + 1] - elements.starts[wanted]) // MESSAGE_ID_BYTES,
                self._certain.ctypes.data + (rank[wanted] >> 3),
                1 << (rank[wanted] & 7),
                ordered[wanted],
            )
            lookups = np.stack([np.asarray(column).astype(np.uint64) for column in columns], axis=1)
            finding = compiled.library.finding
            finding.ids_find(lookups.ctypes.data, len(lookups), self._ids.ctypes.data, len(self), self._stride)
        np.bitwise_or(self._found, self._certain, out=self._found)


@dataclass(frozen=True, slots=True)
class Found:
    """A table of ids, as they were given, and histories: whether the id was found there."""

    histories: Longs  # of the columns
    flags: Flags
    certain: Flags | None
    _position: Longs  # of each id in the sheet
    _weighed: tuple[_Weighed, ...]

    def pairs(self, columns: Flags | None = None) -> tuple[Longs, Longs]:
        """Return the hits as (id, column), sorted; of some columns only, where given."""
        chosen = None if columns is None or bool(columns.all()) else np.flatnonzero(columns)
        flags = self.flags if chosen is None else self.flags[:, chosen]
        cell = np.flatnonzero(flags)  # of one dimension: `nonzero` of two takes three times as long
        row = cell // max(flags.shape[1], 1)
        column = cell - row * flags.shape[1]
        return row, column if chosen is None else chosen[column]

    def probabilities(self, row: Longs, column: Longs) -> Floats:
        """Return how likely hits are there by chance.

        For some histories at a time, the weight of what they were searched in is added up along the sheet.
        """
        found = np.zeros(len(row), np.float64)
        if not len(row) or not self._weighed:
            return found
        rank, first, after = (
            np.concatenate([getattr(each, name) for each in self._weighed]) for name in ("rank", "first", "after")
        )
        weight = np.concatenate([each.weight for each in self._weighed])
        stride = len(self.flags) + 1
        step = max(CELLS_MAX // stride, 1)
        position = self._position[row]
        for low in range(0, len(self.histories), step):
            size = min(step, len(self.histories) - low)
            mine = (rank >= low) & (rank < low + size)
            hits = slice(None) if size == len(self.histories) else np.flatnonzero((column >= low) & (column < low + size))
            base = (rank[mine] - low) * stride
            table = np.bincount(base + first[mine], weight[mine], size * stride)
            table -= np.bincount(base + after[mine], weight[mine], size * stride)
            sums = np.cumsum(table.reshape(size, stride), axis=1)
            found[hits] = sums[column[hits] - low, position[hits]]
        found = np.clip(-np.expm1(found), 0.0, 1.0)  # a difference of sums may be a little off
        if self.certain is not None:
            found[self.certain[row, column]] = 0.0
        return found


def match(ids: Ids, elements: Elements) -> Matches:
    """Search for ids, of which none stands twice, in one batch of elements."""
    sheet = Sheet(ids, np.unique(elements.history))
    sheet.put_under(elements)
    return matches(sheet, sheet.found())


def matches(sheet: Sheet, found: Found) -> Matches:
    row, column = found.pairs()
    return Matches(row, found.histories[column], found.probabilities(row, column), sheet.tested)


def _coordinates(ids: Ids) -> tuple[Longs, Longs, Longs]:
    """Give every id one number, ordered by (origin, timestamp); return the origins, these numbers and the counters."""
    parts = ids.view(ID_DTYPE)
    brokers = parts["broker"].astype(np.int64)
    ticks = parts["tick"].astype(np.uint64)
    milliseconds = (ticks >> np.uint64(COUNTER_BITS)).astype(np.int64)
    one = len(brokers) > 0 and bool((brokers == brokers[0]).all())
    known = brokers[:1] if one else np.unique(brokers)
    at = milliseconds if one else (np.searchsorted(known, brokers) << _TIME_BITS) + milliseconds
    return known, at, (ticks & np.uint64(COUNTER_MAX)).astype(np.int64)


def _ascending(at: Longs, counters: Longs) -> bool:
    return bool(((at[1:] > at[:-1]) | ((at[1:] == at[:-1]) & (counters[1:] >= counters[:-1]))).all())


def _shift(known: Longs, origins: Longs) -> Longs:
    """Return what the numbers of ids of these origins begin at; negative where no id has this origin."""
    if not len(known):
        return np.full(len(origins), -1, np.int64)
    ranks = np.searchsorted(known, origins)
    missing = known[np.minimum(ranks, len(known) - 1)] != origins
    shifted = ranks << _TIME_BITS
    shifted[missing] = -1
    return shifted


def _salts(brokers: Longs) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array([blooms.salt(broker) for broker in brokers.tolist()], np.uint64)


def _weights(elements: Elements) -> Floats:
    """Return log(1 - fpp) of every bloom; with routing sets an id is tried with every set."""
    weight = np.zeros(len(elements), np.float64)
    bloom = np.flatnonzero(~elements.packed)
    m, k, count = (column[bloom].astype(np.float64) for column in (elements.m, elements.k, elements.count))
    fpp = np.power(-np.expm1(k * count * np.log1p(-1 / m)), k)
    weight[bloom] = np.log1p(-np.minimum(fpp, 1 - 1e-12)) * np.exp2(np.minimum(elements.neighbours[bloom], SETS_MAX))
    return weight


# --- ids as they are ------------------------------------------------------------------------------------------------------


def pack_ids(columns: tuple[Longs, Ints, Longs], offsets: Longs, origins: Longs) -> tuple[Bytes, Flags]:
    """Make ids of milliseconds, counters and publishers; row i has those between offsets[i] and offsets[i + 1].

    Returns the bytes of all ids, and of each row whether its ids ascend by tick.
    """
    milliseconds, counters, publishers = columns
    if compiled.library is None or compiled.library.finding is None:
        return _pack_by_numpy(columns, offsets, origins)
    found = np.empty(len(milliseconds) * MESSAGE_ID_BYTES, np.uint8)
    ordered = np.empty(len(origins), np.uint8)
    times, numbers = np.ascontiguousarray(milliseconds, np.int64), np.ascontiguousarray(counters, np.int32)
    names, bounds, brokers = (np.ascontiguousarray(each, np.int64) for each in (publishers, offsets, origins))
    compiled.library.finding.ids_pack(
        *(times.ctypes.data, numbers.ctypes.data, names.ctypes.data, bounds.ctypes.data, brokers.ctypes.data),
        *(len(origins), found.ctypes.data, ordered.ctypes.data),
    )
    return found, ordered.view(np.bool_)


def _pack_by_numpy(columns: tuple[Longs, Ints, Longs], offsets: Longs, origins: Longs) -> tuple[Bytes, Flags]:
    milliseconds, counters, publishers = columns
    ids = np.empty(len(milliseconds), ID_DTYPE)
    ids["publisher"] = publishers
    ids["broker"] = np.repeat(origins, np.diff(offsets))
    ids["tick"] = milliseconds.astype(np.uint64) << np.uint64(COUNTER_BITS) | counters.astype(np.uint64)
    data = ids.view(np.uint8)
    return data, in_order(data, offsets * MESSAGE_ID_BYTES)


def in_order(data: Bytes, starts: Longs) -> Flags:
    """Say of each row of packed ids whether they ascend by (broker, tick)."""
    parts = data[starts[0] : starts[-1]].view(ID_DTYPE)
    brokers, ticks = parts["broker"].astype(np.uint32), parts["tick"].astype(np.uint64)
    falls = np.zeros(len(parts) + 1, np.int64)
    if len(parts):
        falls[1:-1] = (brokers[1:] < brokers[:-1]) | ((brokers[1:] == brokers[:-1]) & (ticks[1:] < ticks[:-1]))
    bounds = (starts - starts[0]) // MESSAGE_ID_BYTES
    falls[bounds] = 0  # between two rows
    before = np.concatenate([[0], np.cumsum(falls)])
    found: Flags = before[bounds[1:]] == before[bounds[:-1]]
    return found


def _look_up_by_numpy(ids: Ids, elements: Elements, wanted: Longs, rank: Longs) -> tuple[Longs, Longs]:
    pieces = [elements.data[elements.starts[each] : elements.starts[each + 1]] for each in wanted.tolist()]
    lengths = np.array([len(piece) // MESSAGE_ID_BYTES for piece in pieces], np.int64)
    entries = np.concatenate(pieces).view(_ID)
    position, entry = find(ids, entries)
    return position, np.repeat(rank[wanted], lengths)[entry]


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


# --- blooms, by numpy -----------------------------------------------------------------------------------------------------


def _probe_by_numpy(ids: Ids, elements: Elements, slices: _Slices, rank: Longs) -> Iterator[tuple[Longs, Longs]]:
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
                yield rank[hit_element], hit + span.start


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
