"""Many selections of one batch at the price of one.

Taking rows out of a batch costs tens of microseconds however few they are; a slice of neighbouring rows, and so of any single
row, costs one, and a view of few rows, whose columns nobody may ever need, half of that. All selections that are no slices are
taken together, one after the other, and each then is a slice of that. Equal selections (the same array of row numbers) become
the same batch, so that it is encoded once; a selection of every row is the batch itself, with the bytes it came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import FEW_ROWS

Rows: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # row numbers of a batch, ascending
TOGETHER_MAX: Final = 1 << 18
_SHARING: Final = 64  # rows of a batch whose conversion to values costs as much as one selection's own


def select(batch: Batch, wanted: Sequence[Rows]) -> list[Batch]:
    """Return the rows of each selection; none of them may be empty."""
    taken: dict[int, Batch] = {}
    apart: dict[int, Rows] = {}
    few: dict[int, tuple[int, int]] = {}
    for rows in wanted:
        first, count = int(rows[0]), len(rows)
        if count > 1 and int(rows[-1]) - first >= count:
            apart[id(rows)] = rows
        elif count <= FEW_ROWS:
            few[id(rows)] = (first, first + count)
        elif id(rows) not in taken:
            taken[id(rows)] = batch.slice(first, first + count)
    if len(batch) <= _SHARING * len(few):
        taken.update(zip(few, batch.views(few.values()), strict=True))
    else:
        taken.update((key, batch.slice(start, stop)) for key, (start, stop) in few.items())
    if apart:
        _take_apart(batch, apart, taken)
    return [taken[id(rows)] for rows in wanted]


def _take_apart(batch: Batch, apart: dict[int, Rows], taken: dict[int, Batch]) -> None:
    group: list[Rows] = []
    size = 0
    for rows in apart.values():
        if size + len(rows) > TOGETHER_MAX:
            _take(batch, group, taken)
            group, size = [], 0
        group.append(rows)
        size += len(rows)
    _take(batch, group, taken)


def _take(batch: Batch, group: list[Rows], taken: dict[int, Batch]) -> None:
    if group:
        joined = batch.take(np.concatenate(group))
        start = 0
        for rows in group:
            taken[id(rows)] = joined.slice(start, start + len(rows))
            start += len(rows)
