"""The hull of a box: for each key one interval that holds everything the box allows.

All values of an attribute are put in one order: the single points (NULL, NaN, bytes, booleans), then numbers, then strings. A
constraint lies between its lowest and its highest *position*. One box can only lie in another if each interval of the other holds
its own interval of the same key. That is necessary, not sufficient (`x IN (1, 9)` has the hull of `x BETWEEN 1 AND 9`), so hulls
choose candidates, and `covers` decides.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from postroad.core.filters.algebra.constraints import Constraint
from postroad.core.filters.algebra.normal_form import Box, Normal

BOXES_MAX: Final = 8
"""Boxes of one filter that are looked at; a filter with more is no candidate to cover another."""

Position: TypeAlias = tuple[int, Any, int]  # (kind, value, below or above it)

_POINT: Final = 0
_NUMBER: Final = 1
_STRING: Final = 2
_END: Final[Position] = (3, 0, 0)


class Hull(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The intervals of one box, by key in order. `points` tells for each key whether only one value is allowed."""

    keys: tuple[str, ...]
    lows: tuple[Position, ...]
    highs: tuple[Position, ...]
    points: tuple[bool, ...]

    def holds(self, other: Hull) -> bool:
        """Tell whether the box of `other` may lie in the box of this one. The keys must be among those of `other`."""
        if self.keys == other.keys:
            for place, low in enumerate(self.lows):
                if low > other.lows[place] or self.highs[place] < other.highs[place]:
                    return False
            return True
        places = {key: place for place, key in enumerate(other.keys)}
        for key, low, high in zip(self.keys, self.lows, self.highs, strict=True):
            there = places.get(key)
            if there is None or low > other.lows[there] or high < other.highs[there]:
                return False
        return True

    def meets(self, other: Hull) -> bool:
        """Tell whether the two boxes may have a point in common."""
        places = {key: place for place, key in enumerate(other.keys)}
        for key, low, high in zip(self.keys, self.lows, self.highs, strict=True):
            there = places.get(key)
            if there is not None and (low >= other.highs[there] or other.lows[there] >= high):
                return False
        return True


def hulls_of(normal: Normal) -> tuple[Hull, ...]:
    """Return the hulls of the first boxes of a filter."""
    return tuple(_hull(box) for box in normal.boxes[:BOXES_MAX])


def weight_of(normal: Normal) -> int:
    """Return about how many parts a comparison with the filter looks at."""
    return sum(1 + constraint.size for box in normal.boxes for constraint in box.values())


def _hull(box: Box) -> Hull:
    keys = tuple(sorted(box))
    lows = tuple(_low(box[key]) for key in keys)
    highs = tuple(_high(box[key]) for key in keys)
    points = tuple(_is_point(box[key], low) for key, low in zip(keys, lows, strict=True))
    return Hull(keys, lows, highs, points)


def _low(constraint: Constraint) -> Position:
    if constraint.flags:
        return (_POINT, constraint.flags & -constraint.flags, 0)
    if constraint.numbers:
        value, side = constraint.numbers[0]
        return (_NUMBER, value, side)
    if isinstance(constraint.strings, tuple) and constraint.strings:
        return (_STRING, constraint.strings[0][1], 0)
    return (_STRING, "", 0)


def _high(constraint: Constraint) -> Position:
    if constraint.strings:
        if not isinstance(constraint.strings, tuple):
            return _END
        end, text = constraint.strings[-1]
        return _END if end else (_STRING, text, 0)
    if constraint.numbers:
        value, side = constraint.numbers[-1]
        return (_NUMBER, value, side)
    return (_POINT, 1 << constraint.flags.bit_length() - 1 if constraint.flags else 0, 1)


def _is_point(constraint: Constraint, low: Position) -> bool:
    if not constraint.is_plain:
        return False
    kind, value, _ = low
    if kind == _POINT:
        return not constraint.numbers and not constraint.strings and constraint.flags == value
    if kind == _NUMBER:
        return not constraint.strings and constraint.numbers == ((value, 0), (value, 1))
    return constraint.strings == ((0, value), (0, value + "\0"))
