"""An index of the covering relation: it finds the members that may cover a filter, and those that a filter may cover.

Comparing a filter with every other one costs the square of their number. Here its hull (see `hulls`) finds the few worth
comparing. Members stand in *groups* by the keys of their box, in a group on *shelves* by the values of the keys that allow only
one, and on a shelf sorted by the interval of one more key. With one key, which is the usual case, everything is on one shelf.

A search goes through a limited number of members (`Search`), so it may miss one, but its cost does not grow with their number.
What is missed is an interest that is larger than it need be. Nothing is missed for filters on one attribute, and for conjunctions
with at most one range that are not many more than the limits.

Searches yield the closest candidates first: a shelf is read from the sought interval downwards, and larger groups of keys come
before smaller ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final, Generic, TypeAlias, TypeVar

from postroad.core.filters.algebra.hulls import Hull, Position

STEPS_MAX: Final = 128
"""Members, shelves and groups looked at in one search."""

BLOCK: Final = 64
"""Members of a block of a shelf, which holds at most twice as many."""

BLOCKS_PER_STEP: Final = 16
LINES_PER_STEP: Final = 16

KEYS_MAX: Final = 5
"""Keys of a filter for which every subset is tried; of more, the groups are tried one by one."""

_LEAST: Final[Position] = (-1, 0, 0)
_GREATEST: Final[Position] = (4, 0, 0)

M = TypeVar("M")
Keys: TypeAlias = tuple[str, ...]
Points: TypeAlias = tuple[Position, ...]
Line: TypeAlias = tuple[Position, int, Position, Hull, Any]  # low end, number, high end, hull, member


class Search:
    """What one search may still look at."""

    __slots__ = ("steps",)

    def __init__(self, steps: int = STEPS_MAX) -> None:
        self.steps = steps


class Shelf:
    """Intervals sorted by their low end, in blocks that know their highest end."""

    __slots__ = ("_blocks", "_firsts", "_highs")

    def __init__(self) -> None:
        self._blocks: list[list[Line]] = []
        self._firsts: list[tuple[Position, int]] = []
        self._highs: list[Position] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, line: Line) -> None:
        if not self._blocks:
            self._blocks.append([line])
            self._firsts.append(line[:2])
            self._highs.append(line[2])
            return
        at = max(bisect_right(self._firsts, line[:2]) - 1, 0)
        block = self._blocks[at]
        insort(block, line)
        if len(block) > 2 * BLOCK:
            self._blocks[at : at + 1] = [block[:BLOCK], block[BLOCK:]]
            self._firsts.insert(at + 1, block[BLOCK][:2])
            self._highs.insert(at + 1, block[BLOCK][2])
            self._measure(at + 1)
            self._measure(at)
            return
        self._firsts[at] = block[0][:2]
        self._highs[at] = max(self._highs[at], line[2])

    def remove(self, low: Position, number: int) -> None:
        at = max(bisect_right(self._firsts, (low, number)) - 1, 0)
        block = self._blocks[at]
        del block[bisect_left(block, (low, number))]
        if block:
            self._measure(at)
        else:
            del self._blocks[at], self._firsts[at], self._highs[at]

    def around(self, low: Position, high: Position, search: Search) -> Iterator[Line]:
        """Yield the intervals that hold [low, high], from the highest low end downwards."""
        at = bisect_right(self._firsts, (low, 1 << 62)) - 1
        while at >= 0 and search.steps > 0:
            search.steps -= not at % BLOCKS_PER_STEP
            if self._highs[at] >= high:
                block = self._blocks[at]
                search.steps -= len(block) // LINES_PER_STEP
                for place in range(bisect_right(block, (low, 1 << 62)) - 1, -1, -1):
                    if block[place][2] >= high:
                        search.steps -= 1
                        yield block[place]
                        if search.steps <= 0:
                            return
            at -= 1

    def inside(self, low: Position | None, high: Position | None, search: Search) -> Iterator[Line]:
        """Yield the intervals within [low, high], from below; None is no bound."""
        at = 0 if low is None else max(bisect_right(self._firsts, (low, -1)) - 1, 0)
        while at < len(self._blocks):
            block = self._blocks[at]
            for place in range(0 if low is None else bisect_left(block, (low, -1)), len(block)):
                line = block[place]
                search.steps -= 1
                if search.steps <= 0 or (high is not None and line[0] > high):
                    return
                if high is None or line[2] <= high:
                    yield line
            at += 1

    def meeting(self, low: Position, high: Position) -> Iterator[Line]:
        """Yield the intervals that have something in common with the one from `low` to `high`."""
        end = bisect_left(self._firsts, (high, -1))
        for at in range(end):
            if self._highs[at] > low:
                for line in self._blocks[at]:
                    if line[0] >= high:
                        return
                    if line[2] > low:
                        yield line

    def _measure(self, at: int) -> None:
        block = self._blocks[at]
        self._firsts[at] = block[0][:2]
        self._highs[at] = max(line[2] for line in block)


class Group:
    """The members whose boxes have the same keys."""

    __slots__ = ("shelves",)

    def __init__(self) -> None:
        self.shelves: dict[tuple[bool, ...], dict[Points, Shelf]] = {}  # which keys are points -> their values -> shelf


class CoveringIndex(Generic[M]):
    """Members under hulls. A member may stand under several."""

    def __init__(self) -> None:
        self._groups: dict[Keys, Group] = {}
        self._with_key: dict[str, dict[Keys, None]] = {}
        self._number = 0
        self._numbers: dict[M, list[tuple[Hull, int]]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, member: M) -> bool:
        return member in self._numbers

    def add(self, member: M, hulls: Sequence[Hull]) -> None:
        numbers = self._numbers[member] = []
        for hull in hulls:
            self._number += 1
            numbers.append((hull, self._number))
            group = self._groups.get(hull.keys)
            if group is None:
                group = self._groups[hull.keys] = Group()
                for key in hull.keys:
                    self._with_key.setdefault(key, {})[hull.keys] = None
            pattern, points, axis = _place(hull)
            shelves = group.shelves.setdefault(pattern, {})
            shelf = shelves.get(points)
            if shelf is None:
                shelf = shelves[points] = Shelf()
            low, high = _ends(hull, axis)
            shelf.add((low, self._number, high, hull, member))

    def remove(self, member: M) -> None:
        for hull, number in self._numbers.pop(member):
            pattern, points, axis = _place(hull)
            group = self._groups[hull.keys]
            shelf = group.shelves[pattern][points]
            shelf.remove(_ends(hull, axis)[0], number)
            if not len(shelf):
                del group.shelves[pattern][points]
                if not group.shelves[pattern]:
                    del group.shelves[pattern]
            if not group.shelves:
                del self._groups[hull.keys]
                for key in hull.keys:
                    del self._with_key[key][hull.keys]
                    if not self._with_key[key]:
                        del self._with_key[key]

    def above(self, hull: Hull, search: Search) -> Iterator[M]:
        """Yield members that may cover the box."""
        for keys in self._key_sets(hull, search):
            group = self._groups.get(keys)
            if group is None:
                continue
            places = [hull.keys.index(key) for key in keys]
            for pattern, shelves in group.shelves.items():
                if any(held and not hull.points[place] for held, place in zip(pattern, places, strict=True)):
                    continue
                shelf = shelves.get(tuple(hull.lows[place] for held, place in zip(pattern, places, strict=True) if held))
                if shelf is not None:
                    yield from _above_on(shelf, keys, pattern, hull, search)

    def below(self, hull: Hull, search: Search) -> Iterator[M]:
        """Yield members that the box may hold."""
        for keys in self._groups_with(hull):
            search.steps -= 1
            if search.steps <= 0:
                return
            if len(keys) < len(hull.keys) or not set(hull.keys).issubset(keys):
                continue
            places = {key: place for place, key in enumerate(hull.keys)}
            for pattern, shelves in self._groups[keys].shelves.items():
                yield from _below_in(shelves, keys, pattern, hull, places, search)

    def meeting(self, hull: Hull) -> Iterator[M]:
        """Yield every member that may have a message in common with the box, as often as it stands under hulls that meet it."""
        places = {key: place for place, key in enumerate(hull.keys)}
        for keys, group in self._groups.items():
            for pattern, shelves in group.shelves.items():
                yield from _meeting_in(shelves, keys, pattern, hull, places)

    def _key_sets(self, hull: Hull, search: Search) -> Iterator[Keys]:
        """Yield the sets of keys whose groups may hold a member above the box: the largest first."""
        count = len(hull.keys)
        if count <= KEYS_MAX:
            for size in range(count, -1, -1):
                yield from combinations(hull.keys, size)
            return
        wanted = set(hull.keys)
        yield from (() for _ in range(() in self._groups))
        for key in hull.keys:
            for keys in self._with_key.get(key, ()):
                search.steps -= 1
                if search.steps <= 0:
                    return
                if keys[0] == key and wanted.issuperset(keys):
                    yield keys

    def _groups_with(self, hull: Hull) -> Sequence[Keys] | dict[Keys, Any]:
        """Return the groups of the rarest key."""
        if not hull.keys:
            return self._groups
        nothing: dict[Keys, None] = {}
        return min((self._with_key.get(key, nothing) for key in hull.keys), key=len)


def _place(hull: Hull) -> tuple[tuple[bool, ...], Points, int]:
    """Return the pattern of point keys, their values, and the place of the key that a shelf is sorted by; -1 for none."""
    if len(hull.keys) <= 1:
        return (False,) * len(hull.keys), (), len(hull.keys) - 1
    points = tuple(low for low, is_point in zip(hull.lows, hull.points, strict=True) if is_point)
    axis = hull.points.index(False) if not all(hull.points) else -1
    return hull.points, points, axis


def _ends(hull: Hull, axis: int) -> tuple[Position, Position]:
    return (hull.lows[axis], hull.highs[axis]) if axis >= 0 else ((0, 0, 0), (0, 0, 0))


def _above_on(shelf: Shelf, keys: Keys, pattern: tuple[bool, ...], hull: Hull, search: Search) -> Iterator[Any]:
    axis = pattern.index(False) if not all(pattern) else -1
    place = hull.keys.index(keys[axis]) if axis >= 0 else -1
    low, high = _ends(hull, place)
    simple = len(pattern) - sum(pattern) <= 1
    for line in shelf.around(low, high, search):
        if simple or line[3].holds(hull):
            yield line[4]


def _below_in(
    shelves: dict[Points, Shelf], keys: Keys, pattern: tuple[bool, ...], hull: Hull, places: dict[str, int], search: Search
) -> Iterator[Any]:
    """Yield the members of some shelves that may lie in the box."""
    held = [key for key, is_point in zip(keys, pattern, strict=True) if is_point]
    if len(keys) > 1 and any(hull.points[place] and key not in held for key, place in places.items()):
        return  # the box allows one value of a key, and these members allow more
    if held and all(key in places and hull.points[places[key]] for key in held):
        shelf = shelves.get(tuple(hull.lows[places[key]] for key in held))
        found = [shelf] if shelf is not None else []
    else:
        found = list(_first(shelves, search))
    axis = keys[pattern.index(False)] if not all(pattern) else ""
    low = hull.lows[places[axis]] if axis in places else None
    high = hull.highs[places[axis]] if axis in places else None
    for shelf in found:
        for line in shelf.inside(low, high, search):
            if hull.holds(line[3]):
                yield line[4]
        if search.steps <= 0:
            return


def _first(shelves: dict[Points, Shelf], search: Search) -> Iterator[Shelf]:
    for count, shelf in enumerate(shelves.values()):
        if count >= search.steps:
            return
        yield shelf


def _meeting_in(
    shelves: dict[Points, Shelf], keys: Keys, pattern: tuple[bool, ...], hull: Hull, places: dict[str, int]
) -> Iterator[Any]:
    """Yield the members of some shelves that meet the box."""
    held = [key for key, is_point in zip(keys, pattern, strict=True) if is_point]
    if held and all(key in places and hull.points[places[key]] for key in held):
        shelf = shelves.get(tuple(hull.lows[places[key]] for key in held))
        found = [shelf] if shelf is not None else []
    else:
        bounds = [(number, places[key]) for number, key in enumerate(held) if key in places]
        found = [
            shelf
            for points, shelf in shelves.items()
            if all(hull.lows[place] <= points[number] < hull.highs[place] for number, place in bounds)
        ]
    axis = keys[pattern.index(False)] if not all(pattern) else ""
    low, high = (hull.lows[places[axis]], hull.highs[places[axis]]) if axis in places else (_LEAST, _GREATEST)
    for shelf in found:
        for line in shelf.meeting(low, high):
            if line[3].meets(hull):
                yield line[4]
