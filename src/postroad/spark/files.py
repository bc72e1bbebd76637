"""Pubend streams from the files of brokers, running or not: see `postroad.storage.segment.observer`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from postroad.core.filters.filter import Filter
from postroad.core.layout import Layout
from postroad.errors import GapError, SparkOptionError, UnknownPubendError
from postroad.spark.options import ReadOptions
from postroad.spark.pieces import FilePiece, Missing, MissingPiece, Piece
from postroad.storage.directory import find_logs
from postroad.storage.segment.observer import LogView, layouts, observe, parts, read_part


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
        for pubend in pubends:
            view = views.get(pubend)
            if view is None:
                raise UnknownPubendError(f"no given directory holds a log of pubend {pubend}")
            begin, end = (view.released, view.last) if ranges is None else ranges[pubend]
            if begin < view.released:
                planned += self._released(view, begin, min(end, view.released))
                begin = view.released
            planned += self._pieces(view, max(begin, lo), min(end, hi))
        return planned

    def tick_after(self, pubend: int, lo: int, hi: int, rows: int, wanted: Filter | None) -> tuple[int, int]:
        """Return the tick up to which at most `rows` matching messages follow on `lo`, and how many they are."""
        view = self._views()[pubend]
        count = 0
        for part in parts(view, lo, hi, self._options.partition_bytes):
            for batch in read_part(part):
                matching = batch if wanted is None else batch.filter(wanted.evaluate(batch))
                if count + len(matching) > rows:
                    last = lo if count == rows else int(matching.ticks()[rows - count - 1])
                    return max(lo, last), rows
                count += len(matching)
                lo = int(batch.ticks()[-1])
        return hi, count

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
                raise UnknownPubendError(f"no given directory holds a log of pubend {pubend}; there are: {listed}")
        return {pubend: found[pubend] for pubend in self._options.pubends}

    def _released(self, view: LogView, lo: int, hi: int) -> list[tuple[float, Piece]]:
        error = GapError(view.pubend, lo, hi)
        if not self._options.skip_gaps:
            raise error
        return [(0.0, MissingPiece(view.pubend, Missing(lo, hi, str(error))))]

    def _pieces(self, view: LogView, lo: int, hi: int) -> list[tuple[float, Piece]]:
        pieces: list[tuple[int, float, Piece]] = []
        for hole in view.holes:
            begin, end = max(lo, hole.lo), min(hi, hole.hi)
            if begin < end or lo <= hole.lo == hole.hi <= hi:
                pieces.append((begin, 0.0, MissingPiece(view.pubend, Missing(begin, max(begin, end), str(hole.error)))))
        wanted = self._bytes_wanted(view)
        cut = parts(view, lo, hi, wanted)
        pieces += [(part.lo, min(1.0, (part.segment.end - part.offset) / wanted), FilePiece(part)) for part in cut]
        return [(share, piece) for _, share, piece in sorted(pieces, key=lambda each: each[0])]

    def _bytes_wanted(self, view: LogView) -> int:
        rows = self._options.rows_per_partition
        if rows is None:
            return self._options.partition_bytes
        closed = [segment for segment in view.segments if segment.trailer is not None]
        known = sum(segment.trailer.rows for segment in closed if segment.trailer is not None)
        size = sum(segment.end - segment.start for segment in closed)
        return max(1, rows * size // known) if known else max(1, rows * 256)
