"""Many selections of one batch at the price of one.

Taking rows out of a batch costs tens of microseconds however few they are. So all selections are taken together, one after the
other, and each then is a slice. Equal selections (the same array of row numbers) become the same batch, so that it is encoded
once; a selection of every row is the batch itself, with the bytes it came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch import Batch

Rows: TypeAlias = np.ndarray[Any, np.dtype[Any]]  # row numbers of a batch, ascending
TOGETHER_MAX: Final = 1 << 18


def select(batch: Batch, wanted: Sequence[Rows]) -> list[Batch]:
    """Return the rows of each selection; none of them may be empty."""
    distinct: dict[int, Rows] = {id(rows): rows for rows in wanted if len(rows) < len(batch)}
    taken: dict[int, Batch] = {}
    group: list[Rows] = []
    size = 0
    for rows in distinct.values():
        if size + len(rows) > TOGETHER_MAX:
            _take(batch, group, taken)
            group, size = [], 0
        group.append(rows)
        size += len(rows)
    _take(batch, group, taken)
    return [taken.get(id(rows), batch) for rows in wanted]


def _take(batch: Batch, group: list[Rows], taken: dict[int, Batch]) -> None:
    if len(group) == 1:
        taken[id(group[0])] = batch.take(group[0])
    elif group:
        joined = batch.take(np.concatenate(group))
        start = 0
        for rows in group:
            taken[id(rows)] = joined.slice(start, start + len(rows))
            start += len(rows)
