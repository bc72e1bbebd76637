"""One attribute's values cut into numbered cells, so that constraints become ranges of integers.

Collect the cuts of all constraints on an attribute. Between two neighbouring cuts all values are alike for these constraints:
they form a *cell*. Number the cells along one axis

    numbers | NaN | bytes | false | true | strings | NULL

and a constraint is a short list of ranges `[low, high)` of cells, nearly always one: also `x <> 5` is two and IS NOT NULL is one.
A column is translated to cells once for each batch, after which matching is integer arithmetic, the same for every kind.

Exactness lives here. A cut is a place between *exact* values (see `spans`); for a column of doubles it is moved to the least
double above it, for a column of int64 to the least integer, and one `searchsorted` then counts the cuts at or below each value
without any rounding. The same attribute may be int64 in one batch, double or string in the next.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from postroad.core.filters.algebra.constraints import BYTES, FALSE, NAN, NULL, TRUE, Constraint
from postroad.core.filters.algebra.spans import NUMBER_ENDS, NumberCut, Words
from postroad.core.filters.evaluate.vectors import Vector
from postroad.core.filters.evaluate.whole_batch import Columns
from postroad.core.filters.language.values import INT64_MAX, INT64_MIN, Kind

Ints: TypeAlias = npt.NDArray[np.int32]
Range: TypeAlias = tuple[int, int]

KNOWN_STRINGS_MAX: Final = 1 << 16
"""Strings whose cell an axis remembers; it forgets all when there are more."""

KNOWN_NUMBERS_MAX: Final = 1 << 12
"""Numbers likewise. Fewer, because they are found without much more work and more often new."""

_EXACT: Final = 1 << 53
# Members of an enumeration are slow to get at.
_STRING: Final = Kind.STRING
_NUMBER: Final = Kind.NUMBER
_BOOLEAN: Final = Kind.BOOLEAN


class Rows:
    """A batch as the index reads it: columns decoded once and strings dictionary-encoded once, for all shards."""

    __slots__ = ("_encoded", "columns", "count")

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.count = len(columns)
        self._encoded: dict[str, tuple[list[str], Ints]] = {}

    def strings(self, name: str, column: pa.Array[Any]) -> tuple[list[str], Ints]:
        """Return the distinct strings of a column and each row's place among them (0 where it is NULL)."""
        encoded = self._encoded.get(name)
        if encoded is None:
            dictionary = column.dictionary_encode()
            codes = dictionary.indices.fill_null(0) if column.null_count else dictionary.indices
            distinct = cast("list[str]", dictionary.dictionary.to_pylist())
            encoded = self._encoded[name] = (distinct, codes.to_numpy())
        return encoded


class Axis:
    """The cells of one attribute, for a fixed set of constraints."""

    __slots__ = (
        "_floats",
        "_ints",
        "_number_cells",
        "_number_places",
        "_special",
        "_string_cells",
        "_string_places",
        "count",
        "name",
        "null",
    )

    def __init__(self, name: str, constraints: Sequence[Constraint]) -> None:
        numbers = sorted({cut for constraint in constraints for cut in constraint.numbers})
        strings = sorted({cut for constraint in constraints for cut in cast("Words", constraint.strings)})
        self.name = name
        self._number_places = {cut: i + 1 for i, cut in enumerate(numbers)}
        self._ints, self._floats = _least_ints(numbers), _least_floats(numbers)
        first = len(numbers) + 1
        self._special = {NAN: first, BYTES: first + 1, FALSE: first + 2, TRUE: first + 3}
        self._string_places = {cut: first + 5 + i for i, cut in enumerate(strings)}
        texts = [text for above_all, text in strings if not above_all]
        self._number_cells: _NumberCells | None = None  # made for the first batch of few rows
        self.null = first + 4 + len(texts) + 1
        self._string_cells = _StringCells(texts, first + 4, self.null)
        self.count = self.null + 1

    def places(self, constraint: Constraint) -> list[int]:
        """Return the cells a constraint allows, as the ends of ascending ranges that do not touch."""
        numbers, strings, flags = constraint.numbers, constraint.strings, constraint.flags
        assert isinstance(strings, tuple)
        if not flags and not strings:
            return [self._number_places[cut] for cut in numbers]
        if not flags and not numbers:
            return [self._string_places[cut] for cut in strings]
        places = [self._number_places[cut] for cut in numbers]
        for flag, cell in self._special.items():
            if flags & flag:
                places += (cell, cell + 1)
        places += [self._string_places[cut] for cut in strings]
        if flags & NULL:
            places += (self.null, self.null + 1)
        return _join_ranges(places)

    @property
    def crowded(self) -> tuple[int, int, int]:
        """The first and last of the cells that many rows may share (NaN, bytes, booleans), and the cell of NULL, which is one."""
        return self._special[NAN], self._special[TRUE], self.null

    def cells(self, rows: Rows) -> Ints | None:
        """Translate the attribute's column: the cell of each row, or None if all are NULL."""
        vector = rows.columns.vector(self.name)
        if vector is None:
            return None
        cells = self._find_known_cells(vector, rows)
        if vector.known is not None:
            cells[~vector.known] = self.null
        return cells

    def listed_cells(self, rows: Rows) -> list[int]:
        """Do as `cells` for few rows, one by one."""
        listed = rows.columns.listed(self.name)
        if listed is None:
            return [self.null] * rows.count
        kind, values = listed
        return list(map(self._cell_of(kind), values))

    def _cell_of(self, kind: Kind) -> Callable[[Any], int]:
        """Return the way from a value of a kind, or None for NULL, to its cell."""
        if kind is _STRING:
            self._string_cells.forget()
            return self._string_cells.__getitem__
        if kind is _NUMBER:
            if self._number_cells is None:
                self._number_cells = _NumberCells(list(self._number_places), self._special[NAN], self.null)
            return self._number_cells.__getitem__
        if kind is _BOOLEAN:
            return {None: self.null, False: self._special[FALSE], True: self._special[TRUE]}.__getitem__
        return lambda value: self.null if value is None else self._special[BYTES]

    def rows_by_cell(self, rows: Rows) -> dict[int, list[int]]:
        """Return the cells that occur in few rows, each with its rows in ascending order."""
        listed = rows.columns.listed(self.name)
        if listed is None:
            return {self.null: list(range(rows.count))}
        kind, values = listed
        found: dict[int, list[int]] = {}
        for row, cell in enumerate(map(self._cell_of(kind), values)):
            if cell in found:
                found[cell].append(row)
            else:
                found[cell] = [row]
        return found

    def _find_known_cells(self, vector: Vector, rows: Rows) -> Ints:
        """Do as `cells`; what stands in a row without a value does not matter."""
        match vector.kind:
            case Kind.NUMBER if vector.values.dtype == np.float64:
                cells = _cuts_below(self._floats, vector.values)
                cells[np.isnan(vector.values)] = self._special[NAN]
                return cells
            case Kind.NUMBER:
                return _cuts_below(self._ints, vector.values)
            case Kind.STRING:
                distinct, codes = rows.strings(self.name, vector.values)
                return self._string_cells.lookup(distinct)[codes]
            case Kind.BOOLEAN:
                return np.where(vector.values, np.int32(self._special[TRUE]), np.int32(self._special[FALSE]))
            case Kind.BYTES:
                return np.full(rows.count, self._special[BYTES], np.int32)


class _KnownCells(dict[Any, int]):
    """The cell of each value met so far, and of NULL."""

    __slots__ = ("_known_max", "_null")

    def __init__(self, null: int, known_max: int) -> None:
        super().__init__({None: null})
        self._null = null
        self._known_max = known_max

    def forget(self) -> None:
        """Forget all if there are too many."""
        if len(self) > self._known_max:
            self.clear()
            self[None] = self._null


class _StringCells(_KnownCells):
    __slots__ = ("_base", "_cuts")

    def __init__(self, cuts: list[str], base: int, null: int) -> None:
        super().__init__(null, KNOWN_STRINGS_MAX)
        self._cuts = cuts
        self._base = base

    def __missing__(self, text: str) -> int:
        cell = self[text] = self._base + bisect_right(self._cuts, text)
        return cell

    def lookup(self, texts: list[str]) -> Ints:
        self.forget()
        return np.fromiter(map(self.__getitem__, texts), np.int32, len(texts))


class _NumberCells(_KnownCells):
    """Python compares int and float exactly, as keys too: 1 and 1.0 have one cell."""

    __slots__ = ("_cuts", "_nan")

    def __init__(self, cuts: list[NumberCut], nan: int, null: int) -> None:
        super().__init__(null, KNOWN_NUMBERS_MAX)
        self._cuts = cuts
        self._nan = nan

    def __missing__(self, number: float) -> int:
        if math.isnan(number):  # no key would find it again
            return self._nan
        self.forget()
        cell = self[number] = bisect_right(self._cuts, (number, 0))
        return cell


def _cuts_below(cuts: npt.NDArray[Any], values: npt.NDArray[Any]) -> Ints:
    return cast("Ints", np.searchsorted(cuts, values, "right").astype(np.int32))


def _join_ranges(places: list[int]) -> list[int]:
    """Join ranges that touch: an end that is followed by an equal start."""
    joined: list[int] = []
    for place in places:
        if joined and joined[-1] == place:
            joined.pop()
        else:
            joined.append(place)
    return joined


def _least_floats(cuts: list[NumberCut]) -> npt.NDArray[np.float64]:
    """Return for each cut the least double above it; cuts that no double is above, at the end, are left out."""
    nearest = [float(value) for value, _ in cuts]
    above = [side for _, side in cuts]
    for i, (value, _) in enumerate(cuts):
        # In Python, not numpy, which would round the integer before comparing it.
        if not -_EXACT <= value <= _EXACT and nearest[i] != value:
            above[i] = nearest[i] < value
    doubles = np.array(nearest, np.float64)
    with np.errstate(over="ignore"):  # above the largest double there is infinity
        least = np.where(np.array(above, np.bool_), np.nextafter(doubles, np.inf), doubles)
    return least[:-1] if cuts and cuts[-1] == NUMBER_ENDS[1] else least


def _least_ints(cuts: list[NumberCut]) -> npt.NDArray[np.int64]:
    """Return for each cut the least int64 above it, likewise."""
    least = [_least_int(value, side) for value, side in cuts]
    return np.array([value for value in least if value <= INT64_MAX], np.int64)


def _least_int(value: float, side: int) -> int:
    if value == -math.inf:
        return INT64_MIN
    if value == math.inf:
        return INT64_MAX + 1
    return max(INT64_MIN, math.floor(value) + 1 if side else math.ceil(value))
