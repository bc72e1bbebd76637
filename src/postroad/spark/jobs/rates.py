"""`rates`: how fast publishers publish, as a profile that admission control reads (docs/reference/pipeline.md has its schema)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.batch import Batch
from postroad.core.broker.stats import STEP_MS, RateMeter
from postroad.spark.cluster import parallelism
from postroad.spark.jobs.arrow import Longs, array, binary_bytes, integers, record_batch, schema_of
from postroad.spark.jobs.published import Numbered, Published
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.types import COUNTER_BITS

VERSION: Final = 1
ENTRIES_MAX: Final = 1_000_000
_STEPS: Final = "broker long, publisher long, value string, step long, messages long, bytes long"
_RATES: Final = (
    "broker long, publisher long, value string, messages long, bytes long, first_ms long, last_ms long, mean double, "
    "peak_1s double, peak_10s double, peak_60s double, p50 double, p90 double, p99 double, trend_per_day double, fit double"
)


class Entry(msgspec.Struct, frozen=True):
    """The rates of one publisher, or of one value of an attribute among its messages; messages per second."""

    broker: int
    publisher: int
    value: str | None
    messages: int
    bytes: int
    first_ms: int
    last_ms: int
    mean: float
    peak_1s: float
    peak_10s: float
    peak_60s: float
    p50: float
    p90: float
    p99: float
    trend_per_day: float
    fit: float


class Profile(msgspec.Struct, frozen=True):
    version: int
    by: str | None  # the attribute whose values are told apart, if any
    from_ms: int
    to_ms: int
    entries: tuple[Entry, ...]


def rates(published: Published, *, by: str | None = None) -> DataFrame:
    """Measure the rates of every publisher, of each value of the attribute `by` if one is given."""
    steps = published.map(StepKernel(by), _STEPS, () if by is None else (by,), payloads=True)
    key = ("broker", "publisher", "value")
    counted = steps.groupBy(*key, "step").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    tasks = 2 * parallelism(published.spark)
    return counted.repartition(tasks, *key).sortWithinPartitions(*key, "step").mapInArrow(measure, _RATES)


def profile(measured: DataFrame, by: str | None) -> Profile:
    """Gather rates into the profile; publishers beyond the most that a profile holds are left out, the slowest first."""
    rows = measured.orderBy(F.desc("peak_60s")).limit(ENTRIES_MAX).collect()
    entries = tuple(sorted((Entry(*row) for row in rows), key=lambda each: (each.broker, each.publisher, each.value or "")))
    return Profile(
        VERSION,
        by,
        min((each.first_ms for each in entries), default=0),
        max((each.last_ms for each in entries), default=0),
        entries,
    )


def encode(made: Profile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


class StepKernel:
    """Counts messages per publisher, value and step of time (of the tick: when the pubend took them)."""

    def __init__(self, by: str | None) -> None:
        self._by = by

    def __call__(self, rows: Numbered) -> Iterator[pa.RecordBatch]:
        for _, batch in rows:
            if len(batch):
                yield self._count(batch)

    def _count(self, batch: Batch) -> pa.RecordBatch:
        ids = batch.ids().view(ID_DTYPE)
        steps = ((batch.ticks() >> np.uint64(COUNTER_BITS)).astype(np.int64)) // STEP_MS
        payload = payload_sizes(batch.payloads())
        values = self._values(batch)
        coded = values.dictionary_encode()
        code = integers(coded.indices, -1)
        key = np.stack([ids["broker"].astype(np.int64), ids["publisher"].astype(np.int64), code, steps], axis=1)
        found, place = np.unique(key, axis=0, return_inverse=True)
        place = place.reshape(-1)
        named = coded.dictionary.take(array(np.where(found[:, 2] < 0, 0, found[:, 2]), mask=found[:, 2] < 0))
        arrays: list[pa.Array[Any]] = [
            *(array(found[:, 0]), array(found[:, 1]), named, array(found[:, 3])),
            array(np.bincount(place, minlength=len(found))),
            array(np.bincount(place, payload, len(found)).astype(np.int64)),
        ]
        return record_batch(arrays, names=["broker", "publisher", "value", "step", "messages", "bytes"])

    def _values(self, batch: Batch) -> Any:
        found = batch.attribute(self._by) if self._by is not None else None
        if found is None:
            return pa.nulls(len(batch), pa.string())
        if pa.types.is_binary(found.type):
            return array([None if value is None else value.hex() for value in found.to_pylist()], pa.string())
        return found.cast(pa.string())


def payload_sizes(payloads: pa.Array[Any]) -> Longs:
    return np.diff(binary_bytes(payloads)[1])


def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn steps, ordered by publisher and value, into rates."""
    state: tuple[tuple[Any, ...], RateMeter, int] | None = None
    for batch in batches:
        for key, start, stop in _runs(batch):
            if state is None or state[0] != key:
                if state is not None:
                    yield _rates_row(*state)
                state = (key, RateMeter(), 0)
            part = batch.slice(start, stop - start)
            state[1].add(integers(part.column("step")), integers(part.column("messages")))
            state = (key, state[1], state[2] + int(integers(part.column("bytes")).sum()))
    if state is not None:
        yield _rates_row(*state)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    value = integers(batch.column("value").dictionary_encode().indices, -1)
    columns = [integers(batch.column("broker")), integers(batch.column("publisher")), value]
    change = np.zeros(batch.num_rows, np.bool_)
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    bounds = [0, *np.flatnonzero(change).tolist(), batch.num_rows]
    for start, stop in pairwise(bounds):
        if start < stop:
            yield (int(columns[0][start]), int(columns[1][start]), batch.column("value")[start].as_py()), start, stop


def _rates_row(key: tuple[Any, ...], meter: RateMeter, size: int) -> pa.RecordBatch:
    found = meter.rates()
    numbers = (found.mean, found.peaks[1], found.peaks[10], found.peaks[60])
    percentiles = (found.percentiles[50.0], found.percentiles[90.0], found.percentiles[99.0])
    row = (*key, found.messages, size, found.first_ms, found.last_ms, *numbers, *percentiles, found.trend_per_day, found.fit)
    return pa.RecordBatch.from_pylist([dict(zip(_RATES_SCHEMA.names, row, strict=True))], schema=_RATES_SCHEMA)


_ARROW: Final[dict[str, Any]] = {"long": pa.int64(), "double": pa.float64(), "string": pa.string()}
_RATES_SCHEMA: Final = schema_of(
    [pa.field(name, _ARROW[kind]) for name, kind in (field.split(" ") for field in _RATES.split(", "))]
)
