"""What a task reads: pieces of streams, each a range of ticks of one pubend.

A piece is planned on the driver, travels to a worker and reads itself there. It yields batches in tick order, and in the place of
what cannot be read a `Missing`, if gaps are to be stated; otherwise it raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pyspark.sql.datasource import InputPartition

from postroad.core.batch.batch import Batch, concat
from postroad.core.batch.schema import BatchLimits
from postroad.core.filters.filter import Filter
from postroad.errors import CorruptSegmentError, GapError
from postroad.storage.segment.external_reader import Part, read_part

GATHERED: Final = BatchLimits(rows=1 << 16, bytes=8 << 20)
ENOUGH_ROWS: Final = 8192
ENOUGH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Missing:
    """Ticks in (lo, hi] that cannot be read, and why."""

    lo: int
    hi: int
    why: str

    def __str__(self) -> str:
        return f"ticks ({self.lo}, {self.hi}] are missing: {self.why}"


class Piece(Protocol):
    """A part of one pubend's stream that can be read."""

    @property
    def pubend(self) -> int: ...

    def read(self, wanted: Filter | None, *, skip_gaps: bool) -> Iterator[Batch | Missing]:
        """Yield the messages that match."""
        ...


class MessagePartition(InputPartition):
    """What one task reads, in this order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A part of a segment."""

    part: Part

    @property
    def pubend(self) -> int:
        return self.part.pubend

    def read(self, wanted: Filter | None, *, skip_gaps: bool) -> Iterator[Batch | Missing]:
        position = self.part.lo
        try:
            for batch in read_part(self.part):
                position = int(batch.ticks()[-1])
                yield batch if wanted is None else batch.filter(wanted.evaluate(batch))
        except (CorruptSegmentError, GapError) as error:
            if not skip_gaps:
                raise
            yield Missing(position, self.part.hi, str(error))


@dataclass(frozen=True, slots=True)
class MissingPiece:
    """What was found missing when the read was planned."""

    pubend: int
    missing: Missing

    def read(self, wanted: Filter | None, *, skip_gaps: bool) -> Iterator[Batch | Missing]:
        del wanted
        assert skip_gaps
        yield self.missing


def gathered(found: Iterable[Batch | Missing]) -> Iterator[Batch | Missing]:
    """Join small batches: what is done with a batch costs by the batch, here and in Spark."""
    waiting: list[Batch] = []
    rows = size = 0
    for each in found:
        if isinstance(each, Missing):
            yield from concat(waiting, GATHERED)
            yield each
            waiting, rows, size = [], 0, 0
            continue
        if not len(each):
            continue
        waiting.append(each)
        rows, size = rows + len(each), size + each.size
        if rows >= ENOUGH_ROWS or size >= ENOUGH_BYTES:
            yield from concat(waiting, GATHERED)
            waiting, rows, size = [], 0, 0
    yield from concat(waiting, GATHERED)
