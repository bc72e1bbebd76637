"""Splits answers with older messages into pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from postroad.core.batch.batch import Batch, concat

CATCH_UP_BYTES: Final = 1 << 20
PIECES_MAX: Final = 8  # of one answer


def pieces(rows: list[Batch], hi: int) -> Iterator[tuple[Batch | None, int, bool]]:
    """Split an answer up to `hi` into batches; yield each with the tick that it reaches, and whether more follow."""
    batches = concat(rows)
    if not batches:
        yield None, hi, False
    for index, batch in enumerate(batches[:PIECES_MAX]):
        more = index + 1 < min(len(batches), PIECES_MAX)
        yield batch, hi if index + 1 == len(batches) else int(batch.ticks()[-1]), more


def first_part(rows: list[Batch], lo: int, hi: int, bytes_max: int) -> tuple[list[Batch], int]:
    """Return the first rows of an answer for (lo, hi], of about so many bytes but one at least, and how far they reach."""
    taken: list[Batch] = []
    for batch in rows:
        if batch.size > bytes_max:
            count = max(int(len(batch) * bytes_max / batch.size), 0 if taken else 1)
            if count < len(batch):
                reached = int(batch.ticks()[count - 1]) if count else int(taken[-1].ticks()[-1])
                return [*taken, *([batch.within(lo, reached)] if count else [])], reached
        taken.append(batch)
        bytes_max -= batch.size
    return taken, hi


def bare(batch: Batch) -> Batch:
    """Return the rows of a batch without payloads and attributes."""
    return Batch.from_columns(batch.ids().tobytes(), [b""] * len(batch), {}, batch.ticks())
