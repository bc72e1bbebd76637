"""Pubend streams of a running overlay, read through one of its brokers.

A read plans with what `client.pubends()` says: ticks up to the horizon are decided, so a range below it says the same thing
whenever it is read. Each task has a connection of its own; the broker evaluates the filter before it sends anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from postroad.client.connection import Client, ClientConfig, connect
from postroad.client.range_reads import read_pubends
from postroad.core.batch.batch import Batch
from postroad.core.batch.schema import Layout
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import PubendSpan
from postroad.errors import GapError, PubendUnreachableError, UnknownPubendError
from postroad.spark.options import ReadOptions
from postroad.spark.pieces import Missing, MissingPiece, Piece
from postroad.transport.background import BackgroundLoop
from postroad.types import COUNTER_BITS

STRETCHES_MAX: Final = 1000
SAMPLE_ROWS: Final = 2000
SAMPLE_MS: Final = 60_000


@contextmanager
def connected(urls: tuple[str, ...], timeout_s: float) -> Iterator[tuple[BackgroundLoop, Client]]:
    """Give a client, with the loop it runs in, to code that blocks."""
    loop = BackgroundLoop("postroad-spark")
    client = connect(urls, ClientConfig(name="spark", connect_s=timeout_s))
    try:
        loop.call(client.__aenter__())
        try:
            yield loop, client
        finally:
            loop.call(client.close(flush=False))
    finally:
        loop.stop()


@dataclass(frozen=True, slots=True)
class LivePiece:
    """Ticks in (lo, hi] of a pubend, to be asked of a broker."""

    pubend: int
    lo: int
    hi: int
    urls: tuple[str, ...]
    timeout_s: float

    def read(self, wanted: Filter | None, *, skip_gaps: bool) -> Iterator[Batch | Missing]:
        text = "" if wanted is None else str(wanted)
        lo = self.lo
        with connected(self.urls, self.timeout_s) as (loop, client):
            while lo < self.hi:
                try:
                    for batch in loop.iterate(client.read(self.pubend, lo, self.hi, text, timeout=self.timeout_s)):
                        lo = int(batch.ticks()[-1])
                        yield batch
                except GapError as error:
                    if not skip_gaps:
                        raise
                    yield Missing(error.lo, error.hi, str(error))
                    lo = error.hi
                else:
                    return


class Overlay:
    """The streams of an overlay."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return for each pubend within reach the ticks (released, last] that hold messages."""
        return {pubend: (span.released, max(span.released, span.last)) for pubend, span in self._spans().items()}

    def layouts(self) -> Iterator[Layout]:
        """Return the layouts of some of the oldest messages and of those of the last minute, or of all if so asked."""
        with connected(self._options.urls, self._options.timeout_s) as (loop, client):
            for pubend, span in loop.call(self._ask(client)).items():
                starts = (span.released, max(span.released, span.last - (SAMPLE_MS << COUNTER_BITS)))
                for lo in dict.fromkeys(starts if self._options.infer_records is not None else starts[:1]):
                    yield from loop.call(self._sample(client, pubend, lo, span.last))

    def plan(
        self, ranges: dict[int, tuple[int, int]] | None, lo: int, hi: int, pubends: Iterable[int]
    ) -> list[tuple[float, Piece]]:
        """Return pieces, each a partition: the range of each pubend (default: all of it), cut to (lo, hi]."""
        planned: list[tuple[float, Piece]] = []
        spans = self._spans() if ranges is None or self._options.skip_gaps else {}
        chosen = list(pubends)
        least = -(-(self._options.partitions_min or 1) // max(len(chosen), 1)) if ranges is None else 1  # of each pubend
        for pubend in chosen:
            begin, end = ranges[pubend] if ranges is not None else self._whole(spans[pubend])
            span = spans.get(pubend)
            if span is not None and begin < span.released and self._options.skip_gaps:
                gone = min(end, span.released)
                planned.append((1.0, MissingPiece(pubend, Missing(begin, gone, str(GapError(pubend, begin, gone))))))
                begin = gone
            planned += [(1.0, piece) for piece in self._pieces(pubend, max(begin, lo), min(end, hi), least)]
        return planned

    def tick_after(self, pubend: int, lo: int, hi: int, rows: int, wanted: Filter | None) -> tuple[int, int]:
        """Return the tick up to which at most `rows` matching messages follow on `lo`, and how many they are."""
        text = "" if wanted is None else str(wanted)
        with connected(self._options.urls, self._options.timeout_s) as (loop, client):
            return loop.call(self._count(client, pubend, lo, hi, rows, text))

    def tick_after_bytes(self, pubend: int, lo: int, hi: int, size: int, wanted: Filter | None) -> tuple[int, int]:
        """Return the tick up to which about `size` bytes of matching messages follow on `lo`, and how many they are."""
        text = "" if wanted is None else str(wanted)
        with connected(self._options.urls, self._options.timeout_s) as (loop, client):
            return loop.call(self._count_bytes(client, pubend, lo, hi, size, text))

    def cuts(self, pubend: int, lo: int, hi: int) -> list[int]:
        """Return ticks that cut (lo, hi] into stretches, the same whenever it is asked: see `partitionSeconds`."""
        return [lo, *(piece.hi for piece in self._pieces(pubend, lo, hi))]

    # --- inside ---

    def _spans(self) -> dict[int, PubendSpan]:
        with connected(self._options.urls, self._options.timeout_s) as (loop, client):
            return loop.call(self._ask(client))

    async def _ask(self, client: Client) -> dict[int, PubendSpan]:
        spans, unreachable = await read_pubends(client, self._options.timeout_s)
        if self._options.pubends is None:
            return spans
        for pubend in self._options.pubends:
            if pubend in unreachable:
                raise PubendUnreachableError(f"the broker of pubend {pubend} cannot be reached now")
            if pubend not in spans:
                listed = ", ".join(map(str, spans)) or "none"
                raise UnknownPubendError(f"no reachable broker hosts pubend {pubend}; there are: {listed}")
        return {pubend: spans[pubend] for pubend in self._options.pubends}

    def _whole(self, span: PubendSpan) -> tuple[int, int]:
        """Return the ticks of a pubend that hold messages; where they are cut by time, from the first message on."""
        end = max(span.released, span.last)
        if (self._options.partition_s is None and self._options.partitions_min is None) or end == span.released:
            return span.released, end
        with connected(self._options.urls, self._options.timeout_s) as (loop, client):
            first, _ = loop.call(self._count(client, span.pubend, span.released, end, 1, ""))
        return first - 1, end

    def _pieces(self, pubend: int, lo: int, hi: int, least: int = 1) -> list[LivePiece]:
        """Cut a range into stretches of `partitionSeconds`, counted from its end, or into so many; the first takes the rest."""
        if lo >= hi:
            return []
        step, count = hi - lo, 0
        if self._options.partition_s is not None:
            step = max(1, round(self._options.partition_s * 1000)) << COUNTER_BITS
            count = min((hi - lo - 1) // step, STRETCHES_MAX - 1)
        elif least > 1:
            step = -(-(hi - lo) // min(least, STRETCHES_MAX))
            count = (hi - lo - 1) // step
        edges = [lo, *(hi - step * index for index in range(count, 0, -1)), hi]
        return [LivePiece(pubend, begin, end, self._options.urls, self._options.timeout_s) for begin, end in pairwise(edges)]

    async def _sample(self, client: Client, pubend: int, lo: int, hi: int) -> list[Layout]:
        found: list[Layout] = []
        rows = 0
        batches = client.read(pubend, lo, hi, self._options.filter, timeout=self._options.timeout_s)
        try:
            async for batch in batches:
                found.append(batch.layout)
                rows += len(batch)
                if rows >= SAMPLE_ROWS and self._options.infer_records is not None:
                    break
        except GapError:
            pass  # released since: what is left tells enough of the layout
        return found

    async def _count_bytes(self, client: Client, pubend: int, lo: int, hi: int, size: int, text: str) -> tuple[int, int]:
        taken = 0
        async for batch in client.read(pubend, lo, hi, text, timeout=self._options.timeout_s):
            if taken and taken + batch.size > size:
                return lo, taken
            taken, lo = taken + batch.size, int(batch.ticks()[-1])
        return hi, taken

    async def _count(self, client: Client, pubend: int, lo: int, hi: int, rows: int, text: str) -> tuple[int, int]:
        count = 0
        async for batch in client.read(pubend, lo, hi, text, timeout=self._options.timeout_s, bare=True):
            if count + len(batch) > rows:
                return (int(batch.ticks()[rows - count - 1]) if rows > count else lo), rows
            count += len(batch)
            lo = int(batch.ticks()[-1])
        return hi, count
