"""Knowledge: ranges of a pubend's stream with a label.

A range states for every tick in (lo, hi] whether it has a message. The *label* is the epoch of the interest for which the
statement is complete: a row that this interest does not want may be missing. `COMPLETE` is the label of the pubend's own broker,
where no row is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroad.core.batch.batch import Batch

RANGE_BYTES: Final = 256  # memory of a range without its rows
ROWS_BYTES: Final = 3072  # memory of a batch without its bytes: each column is an object with its own buffers
COMPLETE: Final = (1 << 64) - 1  # the label of the pubend's own broker: silence for everybody


@dataclass(frozen=True, slots=True)
class KnowledgeRange:
    lo: int
    hi: int
    label: int
    rows: Batch | None  # None: every tick is silence

    @property
    def size(self) -> int:
        return RANGE_BYTES + (ROWS_BYTES + self.rows.size if self.rows is not None else 0)

    def cut(self, lo: int, hi: int) -> KnowledgeRange:
        """Return the part within (lo, hi], which must not be empty."""
        lo, hi = max(lo, self.lo), min(hi, self.hi)
        if (lo, hi) == (self.lo, self.hi):
            return self
        return KnowledgeRange(lo, hi, self.label, rows_within(self.rows, lo, hi))


def rows_within(rows: Batch | None, lo: int, hi: int) -> Batch | None:
    """Return the rows with lo < tick <= hi, without copying; None when there are none."""
    if rows is None:
        return None
    part = rows.within(lo, hi)
    return part if len(part) else None
