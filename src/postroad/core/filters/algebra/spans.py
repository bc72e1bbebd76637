"""Sets of ordered values as sorted lists of cuts.

A *cut* is a place between values; a set is the tuple of cuts where membership changes, read from below: in after the first,
out after the second, in after the third. Every set is a union of half-open spans `[cut, cut)` and has exactly one such tuple,
so equal sets are equal tuples, the complement toggles the two ends, and one sweep does unions and intersections.

Two axes use it:

* Numbers: the cut `(v, 0)` lies just below v, `(v, 1)` just above. Python compares int and float exactly, so nothing is
  rounded. The axis is the extended reals: minus and plus infinity are ordinary values at its ends; NaN is not on it.
* Strings, ordered by code point: the cut `(0, s)` lies just below s. Nothing stands between s and s + NUL, so `[s, s + NUL)` is
  the single string s, and all strings that start with p are the span from p to the successor of p. Finite sets, prefixes and
  whatever set algebra makes of them are therefore exact.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

NumberCut: TypeAlias = tuple[int | float, int]
StringCut: TypeAlias = tuple[int, str]
Numbers: TypeAlias = tuple[NumberCut, ...]
Words: TypeAlias = tuple[StringCut, ...]
Cut = TypeVar("Cut", NumberCut, StringCut)

NUMBER_ENDS: Final[tuple[NumberCut, NumberCut]] = ((-math.inf, 0), (math.inf, 1))
STRING_ENDS: Final[tuple[StringCut, StringCut]] = ((0, ""), (1, ""))

LAST_CHARACTER: Final = "\U0010ffff"
_BEFORE_SURROGATES: Final = "\ud7ff"
_AFTER_SURROGATES: Final = "\ue000"


def complement(spans: tuple[Cut, ...], ends: tuple[Cut, Cut]) -> tuple[Cut, ...]:
    if not spans:
        return ends
    low, high = ends
    toggled = list(spans)
    if spans[0] == low:
        del toggled[0]
    else:
        toggled.insert(0, low)
    if spans[-1] == high:
        del toggled[-1]
    else:
        toggled.append(high)
    return tuple(toggled)


def union(parts: Sequence[tuple[Cut, ...]]) -> tuple[Cut, ...]:
    return parts[0] if len(parts) == 1 else _deep_enough(parts, 1)


def intersection(parts: Sequence[tuple[Cut, ...]]) -> tuple[Cut, ...]:
    if len(parts) == 2 and len(parts[0]) == len(parts[1]) == 2:
        low, high = max(parts[0][0], parts[1][0]), min(parts[0][1], parts[1][1])
        return (low, high) if low < high else ()
    return parts[0] if len(parts) == 1 else _deep_enough(parts, len(parts))


def _deep_enough(parts: Iterable[tuple[Cut, ...]], least: int) -> tuple[Cut, ...]:
    """Keep what lies in at least `least` of the parts: one sweep over all cuts, n log n in their number."""
    events = [(cut, 1 - 2 * (i & 1)) for part in parts for i, cut in enumerate(part)]
    # Where one span ends and another starts at the same cut, start first, so that no empty gap is cut out between them.
    events.sort(key=lambda event: (event[0], -event[1]))
    kept: list[Cut] = []
    depth = 0
    for cut, change in events:
        before, depth = depth, depth + change
        if (before >= least) != (depth >= least):
            if kept and kept[-1] == cut:
                kept.pop()
            else:
                kept.append(cut)
    return tuple(kept)


def within(inner: tuple[Cut, ...], outer: tuple[Cut, ...]) -> bool:
    """Whether `inner` is a subset of `outer`."""
    if len(outer) == 2:
        return not inner or (outer[0] <= inner[0] and inner[-1] <= outer[1])
    for i in range(0, len(inner), 2):
        place = bisect_right(outer, inner[i])
        if not place & 1 or outer[place] < inner[i + 1]:
            return False
    return True


def contains_number(numbers: Numbers, value: float) -> bool:
    """Whether a number that is not NaN lies in the set."""
    return bool(bisect_right(numbers, (value, 0)) & 1)


def contains_string(words: Words, value: str) -> bool:
    return bool(bisect_right(words, (0, value)) & 1)


def points(values: Sequence[float]) -> Numbers:
    """Make the set of these numbers. Equal ones (1, 1.0) are one point."""
    if not values:
        return ()
    if len(values) == 1:
        return ((values[0], 0), (values[0], 1))
    return tuple(cut for value in sorted(set(values)) for cut in ((value, 0), (value, 1)))


def words(values: Sequence[str]) -> Words:
    """Make the set of these strings."""
    if len(values) == 1:
        return ((0, values[0]), (0, values[0] + "\0"))
    return union([((0, value), (0, value + "\0")) for value in values] or [()])


def prefixed(prefix: str) -> Words:
    """Make the set of all strings that start with `prefix`."""
    return ((0, prefix), _after_all_with(prefix))


def _after_all_with(prefix: str) -> StringCut:
    """Place the cut above every string that starts with the prefix: its successor among strings of at most that length."""
    stem = prefix.rstrip(LAST_CHARACTER)
    if not stem:
        return STRING_ENDS[1]
    return (0, stem[:-1] + next_character(stem[-1]))


def next_character(character: str) -> str:
    """Return the following code point that a message can hold: surrogates are none."""
    return _AFTER_SURROGATES if character == _BEFORE_SURROGATES else chr(ord(character) + 1)


def finite_words(spans: Words) -> list[str] | None:
    """List the members if the set is visibly finite: every span is one string."""
    members = []
    for i in range(0, len(spans), 2):
        (_, low), high = spans[i], spans[i + 1]
        if high != (0, low + "\0"):
            return None
        members.append(low)
    return members
