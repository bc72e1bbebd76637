r"""LIKE patterns: a matcher that never backtracks, for one string and for a column.

`%` stands for any run of characters, `_` for exactly one (a code point, also a line break), everything else for itself. With
ESCAPE, the escape character makes a following `%`, `_` or escape character stand for itself; an escape character that is followed
by anything else, or by nothing, escapes nothing and has the meaning it has without ESCAPE (`LIKE 'a!b' ESCAPE '!'` matches `a!b`,
`LIKE '%a%' ESCAPE '%'` is `LIKE '%a%'`). That is what the selector test suites expect.

A pattern is split at `%` into segments. The first must stand at the start, the last at the end, and each segment between is
taken at its first occurrence after the one before: if there is a match at all, the leftmost choice leaves the most room. So no
choice is ever revised.

Finding a segment without `_` is `str.find`, linear by itself. A segment with `_` inside is searched by shift-and: bit i of a
Python integer says that the last i + 1 characters match the first i + 1 of the segment. That is one shift and one AND of
`like_length_max` bits for each character, whatever the text and the pattern.

Columns: the four common shapes are Arrow kernels on the UTF-8 bytes (a whole pattern matches by bytes exactly where it matches by
characters). Other patterns become a regular expression for Arrow's RE2, an automaton without backtracking - but only while the
automaton stays small: `%a`, thirty `_` and `b%` would need 2^31 states. The rest is dictionary-encoded and each distinct string
is tested once by the scalar matcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postroad.core.filters.evaluate.bitmaps import Mask, truth

CANONICAL_ESCAPE: Final = "\\"
RE2_LENGTH_MAX: Final = 128
RE2_SPAN_MAX: Final = 8

_ONE: Final = 1
_MANY: Final = 2
_Item: TypeAlias = str | int
"""A literal character, or `_ONE`, or `_MANY`."""


class LikePattern(NamedTuple):
    """`length` counts characters and wildcards, without escapes."""

    text: str
    escape: str | None
    length: int


def canonical(pattern: str, escape: str | None) -> LikePattern:
    r"""Rewrite a pattern to the one way of writing it: `%` once and after `_`, `\` as the escape where one is needed."""
    items = list(_items(pattern, escape))
    if not any(isinstance(item, str) and item in "%_" for item in items):
        return LikePattern("".join(_plain(item) for item in items), None, len(items))
    return LikePattern("".join(_escape(item) for item in items), CANONICAL_ESCAPE, len(items))


def literal_text(pattern: str, escape: str | None) -> str | None:
    """Return the one string that a pattern without wildcards matches, or None when it has wildcards."""
    items = list(_items(pattern, escape))
    return None if any(isinstance(item, int) for item in items) else "".join(_plain(item) for item in items)


def _items(pattern: str, escape: str | None) -> Iterator[_Item]:
    """Read a pattern; within a run of wildcards every `_` comes before the one `%`."""
    many = False
    for item in _read(pattern, escape):
        if item == _MANY:
            many = True
            continue
        if many and item != _ONE:
            yield _MANY
            many = False
        yield item
    if many:
        yield _MANY


def _read(pattern: str, escape: str | None) -> Iterator[_Item]:
    position, end = 0, len(pattern)
    while position < end:
        character = pattern[position]
        position += 1
        if character == escape and position < end and pattern[position] in ("%", "_", escape):
            yield pattern[position]
            position += 1
        elif character == "%":
            yield _MANY
        elif character == "_":
            yield _ONE
        else:
            yield character


def _plain(item: _Item) -> str:
    return item if isinstance(item, str) else "_" if item == _ONE else "%"


def _escape(item: _Item) -> str:
    return CANONICAL_ESCAPE + item if isinstance(item, str) and item in "%_\\" else _plain(item)


class LikePart:
    """A run of characters and `_` between two `%`."""

    __slots__ = ("_accept", "_any", "_longest", "_masks", "_pieces", "_text", "core", "items", "length")

    def __init__(self, items: list[_Item]) -> None:
        self.items = items
        self.length = len(items)
        self.core = len(items)
        """Length without the `_` at the end, which only ask for room."""
        while self.core and items[self.core - 1] == _ONE:
            self.core -= 1
        self._pieces = tuple(_pieces(items[: self.core]))
        self._longest = max(self._pieces, key=lambda piece: len(piece[1]), default=(0, ""))
        self._text = self._pieces[0][1] if len(self._pieces) == 1 else None
        self._masks, self._any = _shift_and_masks(items[: self.core])
        self._accept = 1 << self.core >> 1

    @property
    def is_literal(self) -> bool:
        return _ONE not in self.items

    def at(self, text: str, position: int) -> bool:
        """Say whether the segment stands at a position from which there is room for it."""
        return all(text.startswith(piece, position + offset) for offset, piece in self._pieces)

    def find(self, text: str, position: int, end: int) -> int:
        """Return where the first occurrence within [position, end) ends, or -1. The segment does not start with `_`."""
        tail = self.length - self.core
        last = end - tail
        offset, piece = self._longest
        found = text.find(piece, position + offset, last)
        if found < 0 or self._text is not None:
            return -1 if found < 0 else found + self.length
        state, masks, anything, accept = 0, self._masks, self._any, self._accept
        for index in range(found - offset, last):
            state = (state << 1 | 1) & masks.get(text[index], anything)
            if state & accept:
                return index + 1 + tail
        return -1


def _pieces(items: list[_Item]) -> Iterator[tuple[int, str]]:
    """Split a segment into its literal pieces, each with its offset."""
    start = 0
    for index, item in enumerate([*items, _ONE]):
        if item == _ONE:
            if index > start:
                yield start, "".join(_plain(character) for character in items[start:index])
            start = index + 1


def _shift_and_masks(items: list[_Item]) -> tuple[dict[str, int], int]:
    """For each character of the segment, the positions it may stand at; and the positions of `_`, where any may."""
    anything = sum(1 << index for index, item in enumerate(items) if item == _ONE)
    masks: dict[str, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, str):
            masks[item] = masks.get(item, anything) | 1 << index
    return masks, anything


class LikeMatcher:
    """A compiled pattern."""

    __slots__ = ("_column", "_length_min", "_segments")

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        segments: list[list[_Item]] = [[]]
        for item in _items(pattern, escape):
            if item == _MANY:
                segments.append([])
            else:
                segments[-1].append(item)
        self._segments = tuple(LikePart(items) for items in segments)
        self._length_min = sum(segment.length for segment in self._segments)
        self._column = _column_matcher(self._segments, self.matches)

    def matches(self, text: str) -> bool:
        length = len(text)
        if length < self._length_min:
            return False
        segments = self._segments
        first = segments[0]
        if len(segments) == 1:
            return length == first.length and first.at(text, 0)
        last = segments[-1]
        end = length - last.length
        if not first.at(text, 0) or not last.at(text, end):
            return False
        position = first.length
        for segment in segments[1:-1]:
            position = segment.find(text, position, end)
            if position < 0:
                return False
        return True

    def mask(self, column: pa.Array[Any]) -> Mask:
        """Say for each row of a string column whether it matches; rows that are null may say anything."""
        return self._column(column)


def _column_matcher(segments: tuple[LikePart, ...], matches: Callable[[str], bool]) -> Callable[[pa.Array[Any]], Mask]:
    if all(segment.is_literal for segment in segments):
        match ["".join(_plain(item) for item in segment.items) for segment in segments]:
            case [whole]:
                scalar = pa.scalar(whole)
                return lambda column: truth(pc.equal(column, scalar))
            case [prefix, ""]:
                return lambda column: truth(pc.starts_with(column, prefix))
            case ["", suffix]:
                return lambda column: truth(pc.ends_with(column, suffix))
            case ["", middle, ""]:
                return lambda column: truth(pc.match_substring(column, middle))
            case _:
                pass
    if _has_small_automaton(segments):
        expression = _re2(segments)
        return lambda column: truth(pc.match_substring_regex(column, expression))
    return lambda column: _mask_by_distinct(column, matches)


def _has_small_automaton(segments: tuple[LikePart, ...]) -> bool:
    """Say whether an automaton needs few states: about as many as the pattern has characters, times 2^RE2_SPAN_MAX at worst.

    A `_` costs nothing where its position is fixed (the first segment) or where it only asks for room (before a `%`). Elsewhere
    the automaton must remember, for each of the last characters, whether a match that started there may still come out right.
    """
    floating = [segment.items[: segment.core] for segment in segments[1:-1]] + [segment.items for segment in segments[1:][-1:]]
    return sum(segment.length for segment in segments) <= RE2_LENGTH_MAX and all(
        _ONE not in items or len(items) <= RE2_SPAN_MAX for items in floating
    )


def _re2(segments: tuple[LikePart, ...]) -> str:
    """Write the pattern for RE2, with the `_` before a `%` moved behind it, where they only count characters."""
    expression, room = [], 0
    for segment in segments:
        expression.append("." * room + "".join(_re2_item(item) for item in segment.items[: segment.core]))
        room = segment.length - segment.core
    return r"(?s)\A" + ".*".join(expression) + "." * room + r"\z"


def _re2_item(item: _Item) -> str:
    if not isinstance(item, str):
        return "."
    return item if item.isalnum() or not item.isascii() else f"\\x{ord(item):02x}"


def _mask_by_distinct(column: pa.Array[Any], matches: Callable[[str], bool]) -> Mask:
    encoded = column.dictionary_encode()
    distinct = cast("list[str]", encoded.dictionary.to_pylist())
    if not distinct:  # every row is null
        return np.zeros(len(column), np.bool_)
    table = np.array([matches(text) for text in distinct], np.bool_)
    return cast("Mask", table[encoded.indices.fill_null(0).to_numpy()])
