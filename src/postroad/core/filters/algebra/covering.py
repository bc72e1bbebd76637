"""The covering relation: F covers G when every message that matches G matches F.

Interest travels up the overlay reduced by covering and advertisements stand in a DAG ordered by it, so a wrong yes loses
messages while a wrong no only costs bandwidth. `covers` therefore says yes only with a proof, in the form of `normal`: every
box of G lies in the union of F's boxes.

* A box lies in another if each constraint of the other is implied by the first one's constraint on the same key. For boxes
  over attributes this is exact, because attributes are independent and no constraint in a box is empty.
* A box may lie in a union without lying in one of its boxes (`x < 9` in `x < 5 OR x > 3`). Then it is split: what a box of F
  does not hold is again a few boxes, and each of them must lie in the rest of F.

So the answer is exact for filters whose keys are all attributes, as long as the effort suffices; that includes all conjunctions
of single-attribute constraints, to which the first rule applies. Numbers are taken as the extended reals: `x > 1 AND x < 2` has
matches for us even where a sender would only use integers.

Effort is bounded (`EFFORT_MAX`); beyond it the answer is no, or None for `overlaps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroad.core.filters.algebra import constraints
from postroad.core.filters.algebra.constraints import EVERYTHING, Constraint
from postroad.core.filters.algebra.normal_form import Box, Boxes, Normal, prepare
from postroad.core.filters.language.ast import Condition

EFFORT_MAX: Final = 10_000
"""Comparisons of two constraints in one call, tens of milliseconds. A long one and one that walks automata count for more."""

_PARTS_PER_EFFORT: Final = 16
_WALK_EFFORT: Final = 500


def covers(f: Condition | Normal, g: Condition | Normal) -> bool:
    """Whether it is certain that every message which matches `g` matches `f`."""
    outer = f if isinstance(f, Normal) else prepare(f)
    inner = g if isinstance(g, Normal) else prepare(g)
    if len(outer.boxes) == 1 and len(inner.boxes) == 1 and outer.is_plain and inner.is_plain:
        return _box_within(inner.boxes[0], outer.boxes[0])
    effort = _Effort()
    return all(_box_within_union(box, outer.boxes, 0, effort) for box in inner.boxes)


def overlaps(f: Condition | Normal, g: Condition | Normal) -> bool | None:
    """Whether some message matches both; None when that is not known."""
    first = f if isinstance(f, Normal) else prepare(f)
    second = g if isinstance(g, Normal) else prepare(g)
    answer: bool | None = False
    effort = _Effort()
    for box in first.boxes:
        for other in second.boxes:
            found = _boxes_overlap(box, other, effort)
            if found and first.is_independent and second.is_independent:
                return True
            if found is not False:
                answer = None
    return answer


class _Effort:
    """What one call may still spend."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = EFFORT_MAX

    def spend(self, a: Constraint, b: Constraint) -> bool:
        self.left -= 1 + (a.size + b.size) // _PARTS_PER_EFFORT if a.is_plain and b.is_plain else _WALK_EFFORT
        return self.left >= 0


def _box_within(inner: Box, outer: Box) -> bool:
    """Whether one box lies in another. A key that `inner` does not have may have any value, which `outer` never allows."""
    for key, allowed in outer.items():
        constraint = inner.get(key)
        if constraint is None or not constraints.within(constraint, allowed):
            return False
    return True


def _box_within_union(box: Box, union: Boxes, start: int, effort: _Effort) -> bool:
    """Whether a nonempty box lies in the union of the boxes from `start` on."""
    if any(_box_within_by(box, union[i], effort) for i in range(start, len(union))):
        return True
    for i in range(start, len(union) - 1):
        common = _common(box, union[i], effort)
        if common is not None:
            return all(_box_within_union(piece, union, i + 1, effort) for piece in _outside(box, union[i], common, effort))
    return False


def _box_within_by(inner: Box, outer: Box, effort: _Effort) -> bool:
    """Do the work of `_box_within` within a budget."""
    for key, allowed in outer.items():
        constraint = inner.get(key)
        if constraint is None:
            return False
        if constraint != allowed and not (effort.spend(constraint, allowed) and constraints.within(constraint, allowed)):
            return False
    return True


def _common(box: Box, other: Box, effort: _Effort) -> dict[str, Constraint] | None:
    """Return the constraints of `box` narrowed by those of `other`, or None if nothing is left or it is too much work."""
    common = {}
    for key, allowed in other.items():
        current = box.get(key, EVERYTHING)
        if not effort.spend(current, allowed):
            return None
        common[key] = constraints.intersection([current, allowed])
        if constraints.is_empty(common[key]):
            return None
    return common


def _outside(box: Box, other: Box, common: Box, effort: _Effort) -> Iterator[Box]:
    """Yield disjoint boxes that make up what of `box` is outside of `other`: by the first key whose constraint fails."""
    rest = dict(box)
    for key, allowed in other.items():
        effort.left -= len(rest) // _PARTS_PER_EFFORT
        current = rest.get(key, EVERYTHING)
        outside = constraints.intersection([current, constraints.complement(allowed)])
        if not constraints.is_empty(outside):
            yield {**rest, key: outside}
        rest[key] = common[key]


def _boxes_overlap(first: Box, second: Box, effort: _Effort) -> bool | None:
    """Whether the boxes have a common point, if their keys were independent."""
    answer: bool | None = True
    for key in {**first, **second}:
        constraint, other = first.get(key, EVERYTHING), second.get(key, EVERYTHING)
        if not effort.spend(constraint, other):
            return None
        empty = constraints.is_empty(constraints.intersection([constraint, other]))
        if empty:
            return False
        if empty is None:
            answer = None
    return answer
