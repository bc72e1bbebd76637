"""Digests of what finished elements hold, where they list their ids. Blooms have none: only their counts can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from postroad.core.batch.digest import digests_between, lanes
from postroad.errors import TrackFileError
from postroad.spark.cluster import parallelism
from postroad.spark.jobs import trackfiles
from postroad.spark.jobs.arrow import Longs, array, binary_bytes, integers, record_batch
from postroad.spark.jobs.matching import pack_ids
from postroad.spark.jobs.tracks import FILES_PER_TASK, Tracks
from postroad.tracking.files.schema import HISTORY_KINDS
from postroad.types import MESSAGE_ID_BYTES

ELEMENT_DIGESTS: Final = "file string, row int, low long, high long"


def element_digests(tracks: Tracks) -> DataFrame:
    """Return the digest of each finished element that lists its ids, by its place in a track file."""
    paths = [file.path for file in tracks.files if file.low_ms <= file.high_ms and not file.copies]
    files = tracks.spark.createDataFrame([(path,) for path in paths], "file string")
    tasks = max(parallelism(tracks.spark), len(paths) // FILES_PER_TASK)
    return files.repartition(tasks, "file").mapInArrow(read_digests, ELEMENT_DIGESTS)


def read_digests(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: names of files to the digests of their elements; a file that is damaged was said to be before."""
    for batch in batches:
        for name in map(str, batch.column("file").to_pylist()):
            try:
                rows = trackfiles.whole(name, trackfiles.open_table(name, trackfiles.read(name)))
                yield from _digests(name, rows)
            except (FileNotFoundError, TrackFileError):
                continue


def _digests(name: str, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    history = np.asarray(pc.is_in(rows.column("kind"), array(sorted(HISTORY_KINDS))))
    listed = np.asarray(rows.column("milliseconds").is_valid())
    packed = np.asarray(pc.not_equal(rows.column("strategy"), pa.scalar("bloom")).fill_null(False))
    for chosen, pack in ((history & listed, _list_ids), (history & ~listed & packed, _packed_ids)):
        place = np.flatnonzero(chosen)
        if len(place):
            data, bounds = pack(name, rows.take(array(place)))
            low, high = lanes(data.view(np.dtype((np.void, MESSAGE_ID_BYTES))))
            names = array([name]).take(array(np.zeros(len(place), np.int64)))
            arrays = [
                names,
                array(place.astype(np.int32)),
                array(digests_between(low, bounds)),
                array(digests_between(high, bounds)),
            ]
            yield record_batch(arrays, names=["file", "row", "low", "high"])


def _list_ids(name: str, rows: pa.RecordBatch) -> tuple[Any, Longs]:
    columns, bounds = trackfiles.listed_ids(name, rows)
    return pack_ids(columns, bounds, integers(rows.column("origin")))[0], bounds


def _packed_ids(name: str, rows: pa.RecordBatch) -> tuple[Any, Longs]:
    bits, _ = trackfiles.bit_bodies(name, rows)
    data, starts = binary_bytes(bits)
    return data[starts[0] : starts[-1]], (starts - starts[0]) // MESSAGE_ID_BYTES
