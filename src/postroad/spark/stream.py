"""The streaming side of the source: micro-batches between two sets of ticks.

An offset is a tick per pubend: everything up to it has been read. The ticks of a batch are chosen once and written to Spark's
checkpoint before the batch is read, and what lies between two decided ticks never changes; so a batch that is repeated, after a
crash of Spark or of a broker, gives the same rows. It also gives them in the same partitions and order, whatever happened to
files meanwhile: the sink counts on that.

A pubend that appears later joins with everything it still holds: first its beginning is written down, as an empty step, then it
is read from there. Nothing is ever released because Spark has committed; `commit` is not even sure to come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from postroad.core.filters.filter import Filter
from postroad.errors import DurableBusyError, NotConnectedError, SparkOptionError, UnknownPubendError
from postroad.spark.columns import columns_of
from postroad.spark.holding import hold
from postroad.spark.options import ReadOptions
from postroad.spark.pieces import MessagePartition
from postroad.spark.pushdown import Pushed
from postroad.spark.reading import Origin, origin_of, read_partition

log = logging.getLogger("postroad.spark")

Offset = dict[str, Any]  # pubend -> tick, as JSON wants it


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what has become readable since the last micro-batch."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        columns_of(schema)
        self._schema = schema
        self._options = options
        if options.until_ms is not None:
            raise SparkOptionError("endingTimestamp is for batches; a stream has no end")
        self._target: dict[int, int] | None = None  # with availableNow: where to stop
        self._held = False  # whether the subscription of the query, if it has one, stands where it should
        self._newest: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        offset = self._first_offset()
        self._hold(offset)
        return offset

    def _first_offset(self) -> Offset:
        spans = self._origin().spans()
        starting = self._options.starting
        if starting == "earliest":
            return _offset({pubend: min(self._options.cut(*span)[0], max(span)) for pubend, span in spans.items()})
        if starting == "latest":
            return _offset({pubend: last for pubend, (_, last) in spans.items()})
        for pubend in starting:
            if pubend not in spans:
                raise UnknownPubendError(f"option startingTicks names pubend {pubend}, which does not exist")
        return _offset({pubend: starting.get(pubend, released) for pubend, (released, _) in spans.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._target = {pubend: last for pubend, (_, last) in self._origin().spans().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        rows, size = self._options.rows_per_trigger, self._options.bytes_per_trigger
        if size is not None:
            return ReadMaxBytes(size)
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        """Choose the ticks at which the next micro-batch ends."""
        if not self._held:
            self._hold(start)
        try:
            spans = self._origin().spans()
        except NotConnectedError as error:
            if self._target is not None:
                raise
            log.warning("cannot look for new messages now: %s", error)
            return start
        position = _ticks(start)
        self._newest = _offset(
            {**position, **{pubend: max(last, position.get(pubend, 0)) for pubend, (_, last) in spans.items()}}
        )
        ends: dict[int, int] = {}
        for pubend, (released, last) in spans.items():
            if self._target is not None:
                last = min(last, self._target.get(pubend, 0))  # noqa: PLW2901  # what is not to be seen is not there
            if pubend not in position:
                ends[pubend] = released
            elif last > position[pubend]:
                ends[pubend] = last
        if isinstance(limit, ReadMaxRows):
            ends = self._limit(position, ends, limit.max_rows, by_bytes=False)
        if isinstance(limit, ReadMaxBytes):
            ends = self._limit(position, ends, limit.max_bytes, by_bytes=True)
        return _offset({**position, **ends})

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # Spark's name
        """Return the newest messages there were at the last look: what the progress of a query shows as `latestOffset`."""
        return self._newest

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return a partition per pubend and stretch (`rowsPerPartition` of files, `partitionSeconds` of a live stream)."""
        begins, ends, origin = _ticks(start), _ticks(end), self._origin()
        planned: list[InputPartition] = []
        for pubend, tick in ends.items():
            if begins.get(pubend, tick) >= tick:
                continue  # nothing new, or it joins now and is read next time
            for stretch in pairwise(origin.cuts(pubend, begins[pubend], tick)):
                pieces = [piece for _, piece in origin.plan({pubend: stretch}, *stretch, [pubend])]
                planned += [MessagePartition(pieces)] if pieces else []
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema, self._options, Pushed())

    def commit(self, end: Offset) -> None:
        """Let a subscription move on. The last commit of a query may never come, so nothing else depends on it."""
        self._hold(end)

    # --- inside ---

    def _hold(self, offset: Offset) -> None:
        if self._options.subscription is None:
            self._held = True
            return
        try:
            hold(self._options, _ticks(offset))
            self._held = True
        except (NotConnectedError, DurableBusyError) as error:
            if not self._held:
                raise
            log.warning("cannot move subscription %s now: %s", self._options.subscription, error)

    def _origin(self) -> Origin:
        return origin_of(self._options)

    def _limit(self, position: Mapping[int, int], ends: Mapping[int, int], most: int, *, by_bytes: bool) -> dict[int, int]:
        """Cut the ends so that no more than so many rows or bytes lie before them.

        Each pubend gets its share, and what others leave. A batch has at least one message, however long it is.
        """
        wanted = Filter(self._options.filter) if self._options.filter.strip() else None
        limited: dict[int, int] = {}
        news = [pubend for pubend in ends if pubend in position]
        for count, pubend in enumerate(sorted(news, key=lambda each: position[each])):
            share = max(1, most // (len(news) - count))
            if most <= 0:
                break
            stretch = (pubend, position[pubend], ends[pubend], share, wanted)
            tick, taken = self._origin().tick_after_bytes(*stretch) if by_bytes else self._origin().tick_after(*stretch)
            limited[pubend] = tick
            most -= taken
        return {**{pubend: tick for pubend, tick in ends.items() if pubend not in position}, **limited}


def _offset(ticks: Mapping[int, int]) -> Offset:
    return {str(pubend): ticks[pubend] for pubend in sorted(ticks)}


def _ticks(offset: Offset) -> dict[int, int]:
    try:
        return {int(pubend): int(tick) for pubend, tick in offset.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise SparkOptionError(f"the checkpoint was not written by this source: {offset!r}") from error
