"""Blooms: ADD and CONTAINS (section 3.1), and the false positive probability (equation 1), over whole arrays of ids.

The paper takes its k hash functions from MD5. We read an id as two numbers, one times a constant plus the other, mix that with
the finaliser of splitmix64 into three numbers a, b, c of w bits and step through them, all modulo 2**w:

    for each of the k functions:  position = a * m >> w;  a += b;  b += c

w is 32, and 16 when m is 2**16, one of the paper's sizes and our default: half the bits are half the work. The position comes
from the high bits, so it is uniform for any m and a shift when m is a power of two. Why three numbers: plain double hashing (c =
0) has almost five times the false positives of equation (1) at k = 16, m = 65,536, n = 2,521, because arithmetic progressions
overlap. *Enhanced* double hashing (b += i + 1, modulo m) mends that, but leaves an id only m * m different sets of positions, and
n / m**2 of the ids that were never added share all positions of one that was: 6e-7, where equation (1) promises 4e-6. With c from
the id as well that is n / m**3 and no longer seen. `tests/tracking/histories` measures it.

Each broker salts its hashes with its number. The paper says that false positives are not correlated among brokers (section
5.3), and the rule that unmasks them by asking the neighbours lives on that. But brokers next to each other route much the
same messages, so with the same hash functions everywhere their blooms are much alike, and so are their errors.

Bit i of a bloom is bit `i & 7` of byte `i >> 3`. A mask, where given, becomes a part of the key (routing sets, section 3.3).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import expm1, log1p
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from postroad import compiled
from postroad.core.batch.batch import Ids
from postroad.tracking.histories.elements import Masks, RowNumbers

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint16]] | np.ndarray[Any, np.dtype[np.uint32]]  # (ids, k)
Bits: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Sizes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.intp]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_Width = TypeVar("_Width", np.uint16, np.uint32)

M_MAX: Final = 1 << 32
K_MAX: Final = 64

WORTH: Final = 1_024 if compiled.library is None else 128  # ids that are worth an addition

_CHUNK: Final = 4_096  # ids whose positions stay in the processor's cache
_FEW: Final = 48  # with fewer than one position in so many bits, unpacking the whole bloom costs more than it saves
_HALF: Final = np.uint64(32)
_GAMMA: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND: Final = np.uint64(0x94D0_49BB_1331_11EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))


def fpp(m: int, k: int, count: int) -> float:
    """Return the probability that a bloom with this many ids claims one it does not hold: equation (1)."""
    return float((-expm1(k * count * log1p(-1 / m))) ** k)


def words_of(ids: Ids) -> Words:
    """Return ids as two numbers each: publisher and broker, and the tick."""
    return np.ascontiguousarray(ids).view(">u8").reshape(-1, 2).astype(np.uint64)


def ticks_of(ids: Ids) -> Words:
    """Return the ticks of ids."""
    ticks: Words = ids.view(">u8")[1::2].astype(np.uint64)
    return ticks


def _finish(x: Words) -> Words:
    """Mix in place: every bit of the result depends on every bit of the number."""
    high = x >> _SHIFTS[0]
    x ^= high
    x *= _FIRST
    x ^= np.right_shift(x, _SHIFTS[1], out=high)
    x *= _SECOND
    x ^= np.right_shift(x, _SHIFTS[2], out=high)
    return x


def salt(broker: int) -> int:
    return broker * 0xD1B5_4A32_D192_ED03 & 0xFFFF_FFFF_FFFF_FFFF


def mix(ids: Ids, masks: Masks | None = None, broker: int = 0) -> Words:
    """Return 64 well mixed bits per id, or per id and mask."""
    words = np.ascontiguousarray(ids).view("<u8")
    mixed = words[::2] * _GAMMA
    mixed += words[1::2]
    mixed += np.uint64(salt(broker))
    _finish(mixed)
    if masks is not None:
        mixed ^= masks + _GAMMA
        _finish(mixed)
    return mixed


def positions(ids: Ids, m: int, k: int, masks: Masks | None = None, broker: int = 0) -> Positions:
    """Return the k positions of each id in a bloom of this broker, one row per id."""
    mixed = mix(ids, masks, broker)
    if m == 1 << 16:
        return _steps(mixed >> np.uint64(48), mixed >> _HALF, mixed >> np.uint64(16), k, np.uint16).T
    found = _steps(mixed >> _HALF, mixed, _finish(mixed + _GAMMA) >> _HALF, k, np.uint32)
    if m & (m - 1) == 0:
        return (found >> np.uint32(33 - m.bit_length())).T
    return (found.astype(np.uint64) * np.uint64(m) >> _HALF).astype(np.uint32).T


def _steps(a: Words, b: Words, c: Words, k: int, width: type[_Width]) -> np.ndarray[Any, np.dtype[_Width]]:
    """Return what the k steps give, a row each, modulo the width: after i of them a + i * b + (0 + 1 + ... + (i - 1)) * c."""
    steps = np.arange(k, dtype=width)
    found = np.multiply.outer(steps * (steps - width(1)) // width(2), c.astype(width))
    found += np.multiply.outer(steps, b.astype(width))
    found += a.astype(width)
    return found


def empty(m: int) -> Bits:
    return np.zeros(m + 7 >> 3, np.uint8)


def add(bits: Bits, where: Positions) -> None:
    """Set the bits at these positions."""
    flat = where.T.reshape(-1).astype(np.intp)  # the order in which `positions` lays them out: no other copy
    if flat.size * _FEW < bits.size * 8:
        _add_few(bits, flat)
        return
    flags = np.unpackbits(bits, bitorder="little")
    flags[flat] = 1
    bits[:] = np.packbits(flags, bitorder="little")


def _add_few(bits: Bits, flat: np.ndarray[Any, np.dtype[np.intp]]) -> None:
    """Set bits byte by byte. Of writers to one byte the last wins; the others write again."""
    index = flat >> 3
    value = np.left_shift(np.uint8(1), (flat & 7).astype(np.uint8))
    while index.size:
        bits[index] |= value
        lost = np.flatnonzero(bits[index] & value == 0)
        index, value = index[lost], value[lost]


class Addition(NamedTuple):
    """Ids, or those of them that stand in these rows, for a bloom."""

    bits: Bits
    ids: Ids
    rows: RowNumbers | None = None
    masks: Masks | None = None

    @property
    def size(self) -> int:
        return len(self.ids if self.rows is None else self.rows)


def add_all(additions: Sequence[Addition], m: int, k: int, broker: int = 0) -> None:
    """Hash ids and add them to their blooms.

    By one call of compiled code where there is some, which lets other threads run. It trusts the caller that there are such rows.
    """
    if compiled.library is None:
        for bits, ids, rows, masks in additions:
            add_ids_by_numpy(bits, ids if rows is None else ids[rows], m, k, masks, broker)
        return
    sound = [_check_layout(addition, m) for addition in additions]  # which keeps them alive
    tables = {id(addition.ids): addition.ids for addition in sound}  # mostly one
    addresses = {number: _address(ids) for number, ids in tables.items()}
    parts = np.array(
        [(_address(each.bits), addresses[id(each.ids)], _address(each.rows), _address(each.masks), each.size) for each in sound],
        np.uintp,
    )
    compiled.library.bloom_add(_address(parts), len(sound), m, k, salt(broker))


class Additions:
    """What is to be added to blooms of one broker: many additions at once cost less than one by one.

    Nothing that was given may be written to before it is made.
    """

    __slots__ = ("_broker", "_k", "_m", "_waiting")

    def __init__(self, m: int, k: int, broker: int) -> None:
        self._m, self._k, self._broker = m, k, broker
        self._waiting: list[Addition] = []

    def add(self, bits: Bits, ids: Ids, rows: RowNumbers | None = None, masks: Masks | None = None) -> None:
        self._waiting.append(Addition(bits, ids, rows, masks))

    def make(self) -> None:
        """Make those that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            add_all(waiting, self._m, self._k, self._broker)


def add_ids(bits: Bits, ids: Ids, m: int, k: int, masks: Masks | None = None, broker: int = 0) -> None:
    """Hash ids and add them to one bloom."""
    add_all([Addition(bits, ids, None, masks)], m, k, broker)


def _check_layout(addition: Addition, m: int) -> Addition:
    """Return an addition whose arrays lie in memory as the compiled code expects them."""
    bits, ids, rows, masks = addition
    assert bits.nbytes == m + 7 >> 3
    assert bits.flags.carray
    assert masks is None or len(masks) == addition.size
    rows = None if rows is None else np.ascontiguousarray(rows, np.uint32)
    masks = None if masks is None else np.ascontiguousarray(masks, np.uint64)
    return Addition(bits, np.ascontiguousarray(ids), rows, masks)


def _address(array: np.ndarray[Any, Any] | None) -> int:
    if array is None:
        return 0
    if array.flags.writeable and array.nbytes:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # a fourth of the time
    return array.ctypes.data


def extents(ids: Ids, rows: RowNumbers, stops: Sizes) -> tuple[Words, Words]:
    """Return the lowest and the highest tick of each part of the rows, of which none is empty; part i ends before stops[i]."""
    if compiled.library is None:
        starts = np.concatenate([[0], stops[:-1]])
        ticks = ticks_of(ids)[rows]
        return np.minimum.reduceat(ticks, starts), np.maximum.reduceat(ticks, starts)
    assert rows.dtype == np.uint32
    assert int(rows.max()) < len(ids)
    found = np.empty((2, len(stops)), np.uint64)
    lows, highs = found
    keys, which, ends = np.ascontiguousarray(ids), np.ascontiguousarray(rows), stops.astype(np.uintp)
    found_at = _address(lows), _address(highs)
    compiled.library.extents(_address(keys), _address(which), _address(ends), len(ends), *found_at)
    return lows, highs


def add_ids_by_numpy(bits: Bits, ids: Ids, m: int, k: int, masks: Masks | None = None, broker: int = 0) -> None:
    """Do the same a chunk at a time."""
    for start in range(0, len(ids), _CHUNK):
        stop = start + _CHUNK
        add(bits, positions(ids[start:stop], m, k, None if masks is None else masks[start:stop], broker))


def contains(bits: Bits | bytes | memoryview, where: Positions) -> Flags:
    """Say for each row of positions whether all its bits are set. Rows leave the race at their first bit that is not."""
    table = np.frombuffer(bits, np.uint8)
    found = np.zeros(len(where), np.bool_)
    columns = where.T
    left = np.arange(len(where))
    for column in columns:
        at = column[left]
        left = left[(table[at >> 3] >> (at & 7).astype(np.uint8) & np.uint8(1)).view(np.bool_)]
        if not left.size:
            return found
    found[left] = True
    return found
