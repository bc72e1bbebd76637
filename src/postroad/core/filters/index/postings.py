"""How a set of boxes is laid out for matching: axes, postings and checks, as arrays.

A *predicate* is a constraint of a box in cells: the range `[low, high)` that holds it and, if it is not the whole of that range,
its several ranges. Each box gives one of its predicates as *access*, and for it a *posting* (for IN: one for each value); its
other predicates become *checks*. Postings are numbered so that those found together stand together: by axis, points before
ranges, by cell; last those without any predicate.

The access is the predicate that promises to find the smallest share of the rows: a point of an axis with many points, else the
range that spans the fewest cells. The thresholds of the filters themselves are the only statistics used.

Python runs once for each predicate here, to look its cuts up; everything else is numpy, because a broker that takes in a
hundred thousand subscriptions should not stand still for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from postroad.core.filters.algebra.constraints import Constraint
from postroad.core.filters.algebra.normal_form import ATTRIBUTE_KEY, Box
from postroad.core.filters.index.axis import Axis, Ints, Range

Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

POINTS_MAX: Final = 64
"""Values of an IN list that get a posting each; a longer list is found through the range it spans."""

_HALF: Final = 0.5
"""The share of rows assumed to be NULL, true, false, and so on: cells that hold many alike values."""


class Access(NamedTuple):
    """The postings whose access is on one axis.

    Points: those of cell c are the postings from `offsets[c]` to `offsets[c + 1]`. Ranges: posting `first_range + i` has the i-th
    of the ascending `lows`; its end stands at `high_places[i]` among the ascending `highs`. `of_null` are the postings that NULL
    satisfies, for batches that do not have the attribute.
    """

    axis: int
    offsets: Longs
    first_range: int
    lows: Longs
    highs: Longs
    high_places: Longs
    of_null: Longs


class Checks(NamedTuple):
    """Predicates to apply after the access: a range of cells on an axis each, and for a few a set of ranges.

    Set s is the part of `set_cuts` from `set_first[s]` on; its cuts are stored as `s * set_stride + cell`, so that one search
    finds the place of a cell in any set.
    """

    axis: Longs
    low: Ints
    high: Ints
    set_number: Ints
    set_cuts: Longs
    set_first: Longs
    set_stride: int


@dataclass(frozen=True, slots=True)
class PostingTable:
    """`box` is the box of each posting; its checks are those from `first_check`, `check_count` many, with a set or without."""

    axes: Sequence[Axis]
    accesses: Sequence[Access]
    everywhere: range
    box: Longs
    first_check: Longs
    check_count: Longs
    has_set: Flags
    checks: Checks


class _Predicates(NamedTuple):
    """All predicates, box by box; `several` has the ranges of those that have more than one."""

    box: Longs
    axis: Longs
    low: Longs
    high: Longs
    several: dict[int, list[Range]]


def build_posting_table(boxes: Sequence[Box]) -> PostingTable:
    axes, predicates = _compile(boxes)
    access = _cheapest(axes, predicates)
    by_points = np.array([_are_points(ranges) for ranges in predicates.several.values()], np.bool_)
    several = np.array(list(predicates.several), np.int64)
    # The access finds exactly the rows of its range, so only a predicate that is not its whole range is checked again.
    is_check = np.ones(len(predicates.box), np.bool_)
    is_check[access] = False
    is_check[several[~by_points]] = True
    kept = np.flatnonzero(is_check)
    count = np.bincount(predicates.box[kept], minlength=len(boxes))
    first = np.cumsum(count) - count
    points, ranges = _split(predicates, access)
    everywhere = np.setdiff1d(np.arange(len(boxes)), predicates.box[access])
    box = np.concatenate((points[2], ranges[3], everywhere))
    # Checks stand in the order of the postings, repeated where a box has several: neighbours are read together.
    _, places = expanded(first[box], count[box])
    return PostingTable(
        axes,
        _accesses(axes, points, ranges),
        range(len(box) - len(everywhere), len(box)),
        box,
        np.cumsum(count[box]) - count[box],
        count[box],
        np.isin(box, predicates.box[np.intersect1d(kept, several)]),
        _checks(predicates, kept[places]),
    )


def _compile(boxes: Sequence[Box]) -> tuple[list[Axis], _Predicates]:
    numbers: dict[str, int] = {}
    constraints: list[list[Constraint]] = []
    box_of: list[int] = []
    axis_of: list[int] = []
    flat: list[Constraint] = []
    for i, box in enumerate(boxes):
        for key, constraint in box.items():
            if key[0] == ATTRIBUTE_KEY and constraint.is_plain:
                number = numbers.setdefault(key, len(numbers))
                if number == len(constraints):
                    constraints.append([])
                constraints[number].append(constraint)
                box_of.append(i)
                axis_of.append(number)
                flat.append(constraint)
    axes = [Axis(key.removeprefix(ATTRIBUTE_KEY), own) for key, own in zip(numbers, constraints, strict=True)]
    lows: list[int] = []
    highs: list[int] = []
    several: dict[int, list[Range]] = {}
    for i, constraint in enumerate(flat):
        places = axes[axis_of[i]].places(constraint)
        lows.append(places[0])
        highs.append(places[-1])
        if len(places) > 2:
            several[i] = list(zip(places[::2], places[1::2], strict=True))
    return axes, _Predicates(
        np.array(box_of, np.int64), np.array(axis_of, np.int64), np.array(lows, np.int64), np.array(highs, np.int64), several
    )


def _are_points(ranges: Sequence[Range]) -> bool:
    return len(ranges) <= POINTS_MAX and all(high - low == 1 for low, high in ranges)


def _cheapest(axes: Sequence[Axis], predicates: _Predicates) -> Longs:
    """Return for each box that has predicates the one with the smallest share, in the order of the boxes."""
    axis, low, width = predicates.axis, predicates.low, predicates.high - predicates.low
    cells = np.array([each.count for each in axes], np.int64)[axis]
    single = np.flatnonzero(width == 1)
    stride = 1 + int(predicates.high.max(initial=0))
    distinct = np.unique(axis[single] * stride + low[single]) // stride
    points = np.maximum(1, np.bincount(distinct, minlength=len(axes)))
    share = width / cells
    first, last, null = np.array([each.crowded for each in axes], np.int64).reshape(-1, 3)[axis[single]].T
    crowded = ((first <= low[single]) & (low[single] <= last)) | (low[single] == null)
    share[single] = np.where(crowded, _HALF, 1 / points[axis[single]])
    for i, ranges in predicates.several.items():
        if _are_points(ranges):
            share[i] = len(ranges) / points[axis[i]]
    order = np.lexsort((share, predicates.box))
    return order[np.searchsorted(predicates.box, np.unique(predicates.box))]


def _split(predicates: _Predicates, access: Longs) -> tuple[Longs, Longs]:
    """Return the postings: points as columns (axis, cell, box) and ranges as (axis, low, high, box), in their order."""
    axis, low, high, box = (column[access] for column in (predicates.axis, predicates.low, predicates.high, predicates.box))
    is_point = high - low == 1
    listed: list[tuple[int, int, int]] = []
    for place, predicate in enumerate(access.tolist()):
        ranges = predicates.several.get(predicate)
        if ranges is not None and _are_points(ranges):
            listed += [(int(axis[place]), cell, int(box[place])) for cell, _ in ranges]
    several = np.array(listed, np.int64).reshape(-1, 3).T
    by_list = np.zeros(len(access), np.bool_)
    if listed:
        by_list[np.isin(box, several[2])] = True
    points = np.concatenate((np.stack((axis, low, box))[:, is_point], several), axis=1)
    ranges_ = np.stack((axis, low, high, box))[:, ~is_point & ~by_list]
    return points[:, np.lexsort((points[1], points[0]))], ranges_[:, np.lexsort((ranges_[1], ranges_[0]))]


def _accesses(axes: Sequence[Axis], points: Longs, ranges: Longs) -> list[Access]:
    accesses = []
    for i, axis in enumerate(axes):
        own_points = slice(*np.searchsorted(points[0], (i, i + 1)).tolist())
        own_ranges = slice(*np.searchsorted(ranges[0], (i, i + 1)).tolist())
        if own_points.stop > own_points.start or own_ranges.stop > own_ranges.start:
            offsets = own_points.start + np.searchsorted(points[1, own_points], np.arange(axis.count + 1))
            lows, highs = ranges[1, own_ranges], ranges[2, own_ranges]
            ascending = np.sort(highs)
            first_range = points.shape[1] + own_ranges.start
            of_null = np.concatenate(
                (
                    np.arange(offsets[axis.null], offsets[axis.null + 1]),
                    first_range + np.flatnonzero((lows <= axis.null) & (axis.null < highs)),
                )
            )
            accesses.append(Access(i, offsets, first_range, lows, ascending, np.searchsorted(ascending, highs), of_null))
    return accesses


def _checks(predicates: _Predicates, kept: Longs) -> Checks:
    low, high = predicates.low[kept].astype(np.int32), predicates.high[kept].astype(np.int32)
    stride = 1 + int(predicates.high.max(initial=0))
    numbers = np.full(len(predicates.box), -1, np.int32)
    cuts: list[int] = []
    first: list[int] = []
    for predicate, ranges in predicates.several.items():
        numbers[predicate] = len(first)
        base = len(first) * stride
        first.append(len(cuts))
        cuts += [base + cell for ends in ranges for cell in ends]
    return Checks(predicates.axis[kept], low, high, numbers[kept], np.array(cuts, np.int64), np.array(first, np.int64), stride)


def expanded(starts: Longs, counts: Longs) -> tuple[Longs, Longs]:
    """Return for slices the number of the slice and the position of each of their elements."""
    numbers = np.repeat(np.arange(len(counts)), counts)
    offsets = starts - np.cumsum(counts) + counts
    return numbers, offsets.take(numbers) + np.arange(len(numbers))
