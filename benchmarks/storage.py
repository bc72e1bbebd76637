"""How fast the pubend log is: appends with and without the sync, sequential reads, and opening a large log.

    python -m benchmarks.storage [--batches N] [--log-bytes N] [--directory PATH] [--json]

Batches have 1,000 rows with two attributes and 100-byte payloads. Each figure is of the best of three rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Batch
from postroad.core.batch.checks import id_array_of
from postroad.core.batch.schema import layout_of
from postroad.storage import SegmentLog, SqliteMetadata
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.encoding import encode

ROWS = 1000
PAYLOAD_BYTES = 100
ROUNDS = 3
PUBEND = 1 << 8


class UnsyncedDisk(Disk):
    """Leaves syncing out, to see what the log itself costs."""

    def sync(self, descriptor: int) -> None:
        pass


def make_batches(count: int, publishers: int) -> list[Batch]:
    """Make batches of consecutive ticks, not yet encoded."""
    layout = layout_of(("price", "symbol"), ("float", "string"))
    chance = np.random.default_rng(1)
    payloads = pa.array([chance.bytes(PAYLOAD_BYTES) for _ in range(ROWS)], pa.binary())
    prices, symbols = pa.array(chance.random(ROWS)), pa.array([f"SYM{i % 500}" for i in range(ROWS)])
    made = []
    for i in range(count):
        ticks = np.arange(i * ROWS + 1, (i + 1) * ROWS + 1, dtype=np.uint64)
        ids = np.empty(ROWS, [("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])
        ids["publisher"], ids["broker"], ids["tick"] = np.arange(ROWS) % publishers, 1, ticks
        columns = [pa.array(ticks), id_array_of(ids.tobytes()), payloads, prices, symbols]
        made.append(Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout))
    return made


def best(work: Callable[[Path], list[float]], directory: Path) -> list[float]:
    """Return the times of the quickest of a few rounds, each in a fresh directory."""
    rounds = []
    for number in range(ROUNDS):
        place = directory / str(number)
        rounds.append(work(place))
        shutil.rmtree(place, ignore_errors=True)
    return min(rounds, key=sum)


def append_all(path: Path, batches: list[Batch], disk: Disk | None = None) -> list[float]:
    """Return the time each append took."""
    log = SegmentLog.open(path, PUBEND, disk=disk)
    times = []
    for batch in batches:
        fresh = Batch(batch.columns, batch.layout)  # a batch remembers its bytes, and encoding them is part of the cost
        start = time.perf_counter()
        log.append([fresh])
        times.append(time.perf_counter() - start)
    log.abandon()
    return times


def read_through(log: SegmentLog, bytes_max: int) -> tuple[float, int]:
    """Read a log from end to end; return the time and the rows."""
    rows, lo, hi = 0, 0, log.state().last_tick
    start = time.perf_counter()
    while lo < hi:
        piece = log.read(lo, hi, bytes_max)
        rows += sum(map(len, piece.batches))
        lo = piece.hi
    return time.perf_counter() - start, rows


def measure_appends(directory: Path, count: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for publishers in (1, 200):
        batches = make_batches(count, publishers)
        size = sum(map(len, encode(batches[0])))
        figures["batch_bytes"] = size
        plain = best(lambda path: append_all(path, batches, UnsyncedDisk()), directory)  # noqa: B023 - called at once
        synced = best(lambda path: append_all(path, batches), directory)  # noqa: B023 - called at once
        figures[f"append_us_p50_without_sync_{publishers}_publishers"] = median(plain) * 1e6
        figures[f"append_us_p50_{publishers}_publishers"] = median(synced) * 1e6
        figures[f"appends_per_s_{publishers}_publishers"] = count / sum(synced)
        figures[f"append_mb_per_s_{publishers}_publishers"] = count * size / sum(synced) / 1e6
    return figures


def measure_large_log(directory: Path, log_bytes: int) -> dict[str, float]:
    """Fill a log, then read it and open it, closed in good order and not."""
    batches = make_batches(100, 200)
    size = sum(map(len, encode(batches[0])))
    path = directory / "large"
    log = SegmentLog.open(path, PUBEND, disk=UnsyncedDisk())
    shift, count = np.uint64(0), 0
    while count * size < log_bytes:
        log.append([batch.with_ticks(batch.ticks() + shift) for batch in batches])
        shift, count = shift + np.uint64(len(batches) * ROWS), count + len(batches)
    bytes_on_disk = log.size
    log.abandon()
    crashed = min(_open_seconds(path, orderly=False) for _ in range(ROUNDS))
    _open_seconds(path, orderly=True)
    closed = min(_open_seconds(path, orderly=True) for _ in range(ROUNDS))
    log = SegmentLog.open(path, PUBEND)
    seconds, rows = min(read_through(log, 1 << 20) for _ in range(ROUNDS))
    log.close()
    return {
        "log_bytes": bytes_on_disk,
        "open_ms_after_crash": crashed * 1e3,
        "open_ms_after_close": closed * 1e3,
        "read_rows_per_s": rows / seconds,
        "read_mb_per_s": bytes_on_disk / seconds / 1e6,
    }


def _open_seconds(path: Path, *, orderly: bool) -> float:
    start = time.perf_counter()
    log = SegmentLog.open(path, PUBEND)
    elapsed = time.perf_counter() - start
    if orderly:
        log.close()
    else:
        log.abandon()
    return elapsed


def measure_metadata(directory: Path, count: int) -> dict[str, float]:
    metadata = SqliteMetadata(directory / "metadata.sqlite")
    start = time.perf_counter()
    for i in range(count):
        metadata.store([(f"key/{i % 100}", b"x" * 50)])
    elapsed = time.perf_counter() - start
    metadata.close()
    return {"metadata_stores_per_s": count / elapsed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--log-bytes", type=int, default=500_000_000, help="size of the log that is opened and read")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory unless told")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        figures = measure_appends(directory, arguments.batches)
        figures |= measure_large_log(directory, arguments.log_bytes)
        figures |= measure_metadata(directory, arguments.batches)
    if arguments.json:
        print(json.dumps(figures))
        return
    for label, value in figures.items():
        print(f"{label:40} {value:>16,.1f}")


if __name__ == "__main__":
    main()
