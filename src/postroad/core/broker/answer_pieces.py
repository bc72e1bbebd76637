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


def bare(batch: Batch) -> Batch:
    """Return the rows of a batch without payloads and attributes."""
    return Batch.from_columns(batch.ids().tobytes(), [b""] * len(batch), {}, batch.ticks())
