"""Pubend streams from the files of brokers, running or not: see `postroad.storage.segment.external_reader`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from postroad.core.batch.schema import Layout
from postroad.core.filters.filter import Filter
from postroad.errors import GapError, SparkOptionError, UnknownPubendError
from postroad.spark.options import ReadOptions
from postroad.spark.pieces import FilePiece, Missing, MissingPiece, Piece
from postroad.storage.directory import find_logs
from postroad.storage.segment.external_reader import LogView, layouts, observe, part_records, parts
from postroad.storage.segment.reader import checked_body

PARTITION_BYTES_MIN: Final = 16 << 20
PARTITION_BYTES_MAX: Final = 128 << 20  # a task costs a worker 50 ms, whatever it reads


class Files:
    """The streams in data directories."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return for each pubend the ticks (released, last] that can be read now."""
        return {pubend: (view.released, view.last) for pubend, view in self._views().items()}

    def layouts(self) -> Iterator[Layout]:
        views = self._views()
        wanted = self._options.infer_records
        each = None if wanted is None else max(1, wanted // max(1, len(views)))
        for view in views.values():
            yield from layouts(view, each)

    def plan(
        self, ranges: dict[int, tuple[int, int]] | None, lo: int, hi: int, pubends: Iterable[int]
    ) -> list[tuple[float, Piece]]:
        """Return pieces, each with its share of a partition: the range of each pubend (default: all of it), cut to (lo, hi]."""
        planned: list[tuple[float, Piece]] = []
        views = self._views()
        wanted = self._bytes_wanted([views[pubend] for pubend in pubends if pubend in views])
        for pubend in pubends:
            view = views.get(pubend)
            if view is None:
                raise UnknownPubendError(f"no given directory contains a log of pubend {pubend}")
            begin, end = (view.released, view.last) if ranges is None else ranges[pubend]
            if begin < view.released:
                planned += self._find_released(view, begin, min(end, view.released))
                begin = view.released
            planned += self._pieces(view, max(begin, lo), min(end, hi), wanted)
        return planned

    def tick_after(self, pubend: int, lo: int, hi: int, rows: int, wanted: Filter | None) -> tuple[int, int]:
        """Return the tick up to which at most `rows` matching messages follow on `lo`, and how many they are."""
        count = 0
        for part in parts(self._views()[pubend], lo, hi, PARTITION_BYTES_MAX):
            for window, record in part_records(part):
                whole = record.first > part.lo and record.last <= part.hi
                if wanted is None and whole and count + record.rows <= rows:
                    count, lo = count + record.rows, record.last  # its header says it all
                    continue
                batch = checked_body(window, part.segment, record).within(part.lo, part.hi)
                matching = batch if wanted is None else batch.filter(wanted.evaluate(batch))
                if count + len(matching) > rows:
                    return (int(matching.ticks()[rows - count - 1]) if count < rows else lo), rows
                count, lo = count + len(matching), min(record.last, part.hi)
        return hi, count

    def tick_after_bytes(self, pubend: int, lo: int, hi: int, size: int, wanted: Filter | None) -> tuple[int, int]:
        """Return the tick up to which about `size` bytes of the log follow on `lo`, at least a record, and how many they are."""
        del wanted  # what does not match is read as well
        taken = 0
        for part in parts(self._views()[pubend], lo, hi, PARTITION_BYTES_MAX):
            for _, record in part_records(part):
                if taken and taken + record.size > size:
                    return lo, taken
                taken, lo = taken + record.size, min(record.last, part.hi)
        return hi, taken

    def cuts(self, pubend: int, lo: int, hi: int) -> list[int]:
        """Return ticks that cut (lo, hi] into stretches of `rowsPerPartition` messages or so, the same whenever it is asked.

        They lie between records, which never change, whatever becomes of the files they stand in.
        """
        rows, count, cut = self._options.rows_per_partition, 0, [lo]
        if rows is not None:
            view = self._views()[pubend]
            for part in parts(view, max(lo, view.released), hi, PARTITION_BYTES_MAX):
                for _, record in part_records(part):
                    count += record.rows
                    if count >= rows and lo < record.last < hi:
                        cut.append(record.last)
                        count = 0
        return [*cut, hi]

    # --- inside ---

    def _views(self) -> dict[int, LogView]:
        tolerant = self._options.skip_gaps
        return {pubend: observe(path, pubend, tolerant=tolerant) for pubend, path in self._logs().items()}

    def _logs(self) -> dict[int, Path]:
        found: dict[int, Path] = {}
        for directory in self._options.directories:
            for pubend, path in find_logs(directory).items():
                if pubend in found:
                    raise SparkOptionError(f"the log of pubend {pubend} is in two directories: {found[pubend]} and {path}")
                found[pubend] = path
        if self._options.pubends is None:
            return found
        for pubend in self._options.pubends:
            if pubend not in found:
                listed = ", ".join(map(str, found)) or "none"
                raise UnknownPubendError(f"no given directory contains a log of pubend {pubend}; there are: {listed}")
        return {pubend: found[pubend] for pubend in self._options.pubends}

    def _find_released(self, view: LogView, lo: int, hi: int) -> list[tuple[float, Piece]]:
        error = GapError(view.pubend, lo, hi)
        if not self._options.skip_gaps:
            raise error
        return [(0.0, MissingPiece(view.pubend, Missing(lo, hi, str(error))))]

    def _pieces(self, view: LogView, lo: int, hi: int, wanted: int) -> list[tuple[float, Piece]]:
        pieces: list[tuple[int, float, Piece]] = []
        for hole in view.holes:
            begin, end = max(lo, hole.lo), min(hi, hole.hi)
            if begin < end or lo <= hole.lo == hole.hi <= hi:
                pieces.append((begin, 0.0, MissingPiece(view.pubend, Missing(begin, max(begin, end), str(hole.error)))))
        cut = parts(view, lo, hi, wanted)
        pieces += [(part.lo, min(1.0, (part.segment.end - part.offset) / wanted), FilePiece(part)) for part in cut]
        return [(share, piece) for _, share, piece in sorted(pieces, key=lambda each: each[0])]

    def _bytes_wanted(self, views: list[LogView]) -> int:
        """Return how much one task should read: what was asked for, else enough work for every core, within bounds."""
        if self._options.rows_per_partition is not None:
            closed = [segment for view in views for segment in view.segments if segment.trailer is not None]
            rows = sum(segment.trailer.rows for segment in closed if segment.trailer is not None)
            size = sum(segment.end - segment.start for segment in closed)
            return max(1, self._options.rows_per_partition * (size // rows if rows else 256))
        if self._options.partition_bytes is not None:
            return self._options.partition_bytes
        total = sum(view.size for view in views)
        if self._options.partitions_min is not None:
            return max(1, min(total // self._options.partitions_min, PARTITION_BYTES_MAX))
        share = total // (2 * (os.cpu_count() or 1))
        return min(max(share, PARTITION_BYTES_MIN), PARTITION_BYTES_MAX)
