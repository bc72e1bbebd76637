"""What batch and streaming reads share: where streams come from, and how a task turns its pieces into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from postroad.core.batch.schema import Layout
from postroad.core.filters.filter import Filter
from postroad.spark.columns import Converter
from postroad.spark.files import Files
from postroad.spark.live import Overlay
from postroad.spark.options import ReadOptions
from postroad.spark.pieces import MessagePartition, Missing, Piece, gathered
from postroad.spark.pushdown import Pushed, Selection


class Origin(Protocol):
    """Where streams come from: files or an overlay."""

    def spans(self) -> dict[int, tuple[int, int]]: ...

    def layouts(self) -> Iterator[Layout]: ...

    def plan(
        self, ranges: dict[int, tuple[int, int]] | None, lo: int, hi: int, pubends: Sequence[int]
    ) -> list[tuple[float, Piece]]: ...

    def cuts(self, pubend: int, lo: int, hi: int) -> list[int]: ...

    def tick_after(self, pubend: int, lo: int, hi: int, rows: int, wanted: Filter | None) -> tuple[int, int]: ...

    def tick_after_bytes(self, pubend: int, lo: int, hi: int, size: int, wanted: Filter | None) -> tuple[int, int]: ...


def origin_of(options: ReadOptions) -> Origin:
    return Overlay(options) if options.urls else Files(options)


def read_partition(
    partition: InputPartition, schema: StructType, options: ReadOptions, pushed: Pushed
) -> Iterator[pa.RecordBatch]:
    """Read the pieces of a partition as record batches of a schema."""
    converter = Converter(schema, null_mismatches=options.null_mismatches, ignore_new=options.ignore_new)
    selection = Selection(pushed, converter, options.filter)
    for piece in partition.pieces if isinstance(partition, MessagePartition) else ():
        for found in gathered(piece.read(selection.raw, skip_gaps=options.skip_gaps)):
            if isinstance(found, Missing):
                rows = selection.gap(converter.gap(piece.pubend, found.hi, str(found)))
            else:
                rows = selection.rows(converter.convert(found, piece.pubend))
            if len(rows):
                yield rows


def packed(pieces: list[tuple[float, Piece]]) -> list[InputPartition]:
    """Put small pieces that follow each other into one partition; each comes with its share of one."""
    partitions: list[InputPartition] = []
    together: list[Piece] = []
    filled = 0.0
    for share, piece in pieces:
        if together and (filled + share > 1.0 or piece.pubend != together[-1].pubend):
            partitions.append(MessagePartition(together))
            together, filled = [], 0.0
        together.append(piece)
        filled += share
    if together:
        partitions.append(MessagePartition(together))
    return partitions
