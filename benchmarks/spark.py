"""How fast Spark reads and writes messages: log files beside Parquet, a live overlay, streams, the sink; and the memory it takes.

    python -m benchmarks.spark [--rows N] [--master local[2]] [--only SHAPE ...]

Rows have two attributes and payloads of 100 bytes. Shapes:

- files: every column of every row read (Spark's noop sink), from log files and from the same rows in Parquet, in turns;
- narrow: a sum over one column, with a schema of that column only, from both;
- live: everything read through a broker, and 1% of it with the condition pushed down;
- stream: micro-batches from files and from a broker;
- sink: a DataFrame published, in one partition and in two.

Each figure is of the best of three rounds. Memory is the peak of the Python workers together while files are read.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import postroad.sync
from postroad.core.batch.batch import Batch
from postroad.core.batch.checks import id_array_of
from postroad.core.batch.schema import layout_of
from postroad.core.protocol.packets import pubend_id
from postroad.runtime.config import NodeConfig, Storage
from postroad.runtime.process import BrokerProcess
from postroad.spark import messages, session
from postroad.storage import open_broker_storage
from postroad.testing import free_ports

BATCH_ROWS: Final = 1000
PAYLOAD_BYTES: Final = 100
ROUNDS: Final = 3
PUBEND: Final = pubend_id(1)
SHAPES: Final = ("files", "narrow", "live", "stream", "sink")


def make_log(path: Path, rows: int) -> None:
    """Write a data directory with so many messages."""
    layout = layout_of(("price", "symbol"), ("float", "string"))
    chance = np.random.default_rng(1)
    offsets = pa.array(np.arange(0, (BATCH_ROWS + 1) * PAYLOAD_BYTES, PAYLOAD_BYTES, dtype=np.int32)).buffers()[1]
    prices, symbols = pa.array(chance.random(BATCH_ROWS)), pa.array([f"SYM{i % 500}" for i in range(BATCH_ROWS)])
    storage = open_broker_storage(path, 1, [PUBEND])
    start = (time.time_ns() // 1_000_000 - 60_000) << 16
    for first in range(0, rows, BATCH_ROWS):
        ticks = np.arange(start + first, start + first + BATCH_ROWS, dtype=np.uint64)
        ids = np.empty(BATCH_ROWS, [("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])
        ids["publisher"], ids["broker"], ids["tick"] = np.arange(BATCH_ROWS) % 200, 1, ticks
        content = pa.py_buffer(chance.bytes(BATCH_ROWS * PAYLOAD_BYTES))  # no two alike, as payloads are
        payloads = pa.Array.from_buffers(pa.binary(), BATCH_ROWS, [None, offsets, content])
        columns = [pa.array(ticks), id_array_of(ids.tobytes()), payloads, prices, symbols]
        storage.logs[PUBEND].append([Batch(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)])
    storage.close()


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best_of(*works: Callable[[], object]) -> list[float]:
    """Return the best time of each, taken in turns so that all see the same machine."""
    rounds = [[seconds(work) for work in works] for _ in range(ROUNDS)]
    return [min(each) for each in zip(*rounds, strict=True)]


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def told(label: str, rows: int, taken: float, beside: float | None = None) -> None:
    ratio = "" if beside is None else f"   {beside / taken:.2f} of Parquet's rate"
    print(f"{label:<44} {rows / taken:>12,.0f} rows/s{ratio}", flush=True)


def worker_bytes(java: int) -> int:
    """Add up the memory of the Python workers below a Java process."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        except OSError:
            continue
        pid = int(lines["Pid"])
        parents[pid], sizes[pid] = int(lines["PPid"]), int(lines.get("RssAnon", "0 kB").split()[0]) << 10
    return sum(size for pid, size in sizes.items() if _below(pid, java, parents))


def _below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 1:
        if pid == ancestor:
            return True
    return False


class PeakMemory(threading.Thread):
    """Watches the workers' memory."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(daemon=True)
        self._java = int(spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # noqa: SLF001  # no public way
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.1):
            self.peak = max(self.peak, worker_bytes(self._java))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak


def files(spark: SparkSession, data: Path, parquet: Path, rows: int) -> None:
    ours, theirs = messages(spark, str(data)), spark.read.parquet(str(parquet))
    memory = PeakMemory(spark)
    memory.start()
    taken, beside = best_of(lambda: consume(ours), lambda: consume(theirs))
    told("Parquet, all columns", rows, beside)
    told("log files, all columns", rows, taken, beside)
    print(f"{'peak memory of the Python workers':<44} {memory.stop() / 1e6:>12,.0f} MB", flush=True)


def narrow(spark: SparkSession, data: Path, parquet: Path, rows: int) -> None:
    ours, theirs = messages(spark, str(data), schema="price double"), spark.read.parquet(str(parquet))
    taken, beside = best_of(lambda: ours.selectExpr("sum(price)").collect(), lambda: theirs.selectExpr("sum(price)").collect())
    told("Parquet, sum of one column", rows, beside)
    told("log files, sum of one column", rows, taken, beside)
    selective = messages(spark, str(data))
    (pushed,) = best_of(lambda: consume(selective.where("symbol = 'SYM7'")))
    told("log files, 1 of 500 symbols (rows looked at)", rows, pushed)


def live(spark: SparkSession, data: Path, _parquet: Path, rows: int) -> None:
    with running(data) as url:
        frame = messages(spark, url=url)
        whole, part = best_of(lambda: consume(frame), lambda: consume(frame.where("symbol = 'SYM7'")))
    told("broker, everything", rows, whole)
    told("broker, 1 of 500 symbols (rows looked at)", rows, part)


def stream(spark: SparkSession, data: Path, _parquet: Path, rows: int) -> None:
    def run(**options: str) -> None:
        with tempfile.TemporaryDirectory() as checkpoint:
            reader = spark.readStream.format("postroad").schema(
                "id binary, tick bigint, payload binary, price double, symbol string"
            )
            writing = reader.options(maxRowsPerTrigger=max(1, rows // 8), **options).load().writeStream.format("noop")
            writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    (taken,) = best_of(lambda: run(path=str(data), rowsPerPartition=str(max(1, rows // 16))))
    told("stream from files, 8 micro-batches", rows, taken)
    with running(data) as url:
        (taken,) = best_of(lambda: run(url=url))
    told("stream from a broker, 8 micro-batches", rows, taken)


def sink(spark: SparkSession, data: Path, _parquet: Path, rows: int) -> None:
    written = rows // 4
    for partitions in (1, 2):
        frame = spark.range(0, written, 1, partitions).selectExpr(
            "cast(id as double) price", "concat('SYM', id % 500) symbol", "repeat('x', 100) payload"
        )
        with tempfile.TemporaryDirectory() as place, running(Path(place) / "data") as url:
            writer = frame.write.format("postroad").mode("append").option("url", url)
            (taken,) = best_of(writer.save)
        told(f"sink, {partitions} partition(s), durable", written, taken)
    del data


class running:  # noqa: N801  # used as a function
    """A broker process on a data directory."""

    def __init__(self, data: Path) -> None:
        storage = Storage(keep_s=1e6)
        self._place = tempfile.TemporaryDirectory()
        config = NodeConfig(id=1, name="bench", data_dir=str(data), listen=f"127.0.0.1:{free_ports(1)[0]}", storage=storage)
        self._process = BrokerProcess(config, Path(self._place.name))

    def __enter__(self) -> str:
        self._process.start()
        with postroad.sync.connect(self._process.url) as client:
            client.pubends()
        return self._process.url

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._place.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", nargs="*", choices=SHAPES, default=list(SHAPES))
    given = parser.parse_args()
    shapes: dict[str, Callable[[SparkSession, Path, Path, int], None]] = {
        "files": files,
        "narrow": narrow,
        "live": live,
        "stream": stream,
        "sink": sink,
    }
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as place, session.running(given.master, app="bench") as spark:
        data, parquet = Path(place) / "data", Path(place) / "parquet"
        make_log(data, given.rows)
        messages(spark, str(data)).write.parquet(str(parquet))
        for name in given.only:
            shapes[name](spark, data, parquet, given.rows)


if __name__ == "__main__":
    main()
