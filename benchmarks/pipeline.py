"""How many ids a second the pipeline traces, how that grows with their number, and how much memory it takes.

Tracks are made for the purpose: five brokers in a diamond with a tail, one of them publishing, forty subscribers who each want
a quarter of the messages. All ids are traced, which is the most there is to find: about fourteen entries per id.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from postroad.core.batch.batch import Ids
from postroad.spark import session
from postroad.spark.jobs.arrow import id_column
from postroad.spark.jobs.trace import trace
from postroad.spark.jobs.tracks import open_tracks
from postroad.tracking.files.catalog import FileName
from postroad.tracking.files.format import Head, pack
from postroad.tracking.files.schema import to_table
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import ID_DTYPE, Element, HistoryKey, Kind
from postroad.tracking.histories.settings import Strategy

EPOCH_MS: Final = 1_700_000_000_000
RATE_PER_MS: Final = 5  # messages
ROUTES: Final = {2: 1, 3: 1, 4: 2, 5: 4}
SUBSCRIBERS: Final = 40
SHARE: Final = 0.25
ELEMENT_IDS: Final = {Strategy.BLOOM: 2_521, Strategy.EXACT: 65_536}
M, K = 65_536, 16
FILE_ELEMENTS: Final = 2_000
DEPTH: Final = 6  # of the tree of processes that Spark makes


def make_ids(count: int) -> Ids:
    """Ids of broker 1 in order of time."""
    ids = np.empty(count, ID_DTYPE)
    number = np.arange(count, dtype=np.uint64)
    ids["publisher"], ids["broker"] = number % 200, 1
    ids["tick"] = (np.uint64(EPOCH_MS) + number // RATE_PER_MS) << np.uint64(16) | number % np.uint64(RATE_PER_MS)
    return ids.view(np.dtype((np.void, 16)))


def histories(random: np.random.Generator, count: int) -> Iterator[tuple[int, HistoryKey, Any]]:
    """Yield broker, key and the rows of its messages."""
    yield 1, HistoryKey(Kind.PUBLISHER, 1), np.arange(count)
    for broker, upstream in ROUTES.items():
        yield broker, HistoryKey(Kind.ROUTING, 1, peer=upstream), np.arange(count)
    for number in range(SUBSCRIBERS):
        yield (
            1 + number % 5,
            HistoryKey(Kind.SUBSCRIBER, 1, subscriber=f"sub{number}"),
            np.flatnonzero(random.random(count) < SHARE),
        )


def elements(broker: int, key: HistoryKey, ids: Ids, strategy: Strategy) -> Iterator[Element]:
    size = ELEMENT_IDS[strategy]
    for number, start in enumerate(range(0, len(ids), size)):
        part = ids[start : start + size]
        times = (part.view(ID_DTYPE)["tick"].astype(np.uint64) >> np.uint64(16)).astype(np.int64)
        bits = None
        if strategy is Strategy.BLOOM:
            bits = blooms.empty(M)
            blooms.add_ids(bits, part, M, K, broker=broker)
        low, high = int(times[0]), int(times[-1])
        yield Element(
            *(key, 1, number, strategy, low, high, low, high, times[:0], len(part)),
            *((M, K, size) if bits is not None else (0, 0, size)),
            bits=bits,
            ids=None if bits is not None else part,
            broker=broker,
        )


def write_tracks(directory: Path, count: int, strategy: Strategy) -> int:
    """Write the tracks of all brokers; returns the bytes."""
    ids = make_ids(count)
    random = np.random.default_rng(1)
    waiting: dict[int, list[Element]] = {}
    sequence = dict.fromkeys(range(1, 6), 0)
    written = 0

    def flush(broker: int) -> int:
        sequence[broker] += 1
        head = Head(broker, 1, sequence[broker], EPOCH_MS, 0, complete=True)
        data, _ = pack(head, to_table(head.stamp, waiting.pop(broker), ()))
        path = directory / f"broker{broker}" / "tracks" / str(FileName(1, sequence[broker]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(data))
        return path.stat().st_size

    for broker, key, rows in histories(random, count):
        for element in elements(broker, key, ids[rows], strategy):
            waiting.setdefault(broker, []).append(element)
            if len(waiting[broker]) >= FILE_ELEMENTS:
                written += flush(broker)
    written += sum(flush(broker) for broker in list(waiting))
    with pq.ParquetWriter(directory / "ids.parquet", pa.schema([("id", pa.binary())])) as writer:
        for start in range(0, count, 1 << 20):
            writer.write_table(pa.table({"id": id_column(ids[start : start + (1 << 20)])}))
    return written


@contextmanager
def memory_watched() -> Iterator[Counter[str]]:
    """Note the most memory that the processes below this one held, by the name of the program, in bytes."""
    most: Counter[str] = Counter()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            most.update(_resident() - most)  # only what is more than before

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def _resident() -> Counter[str]:
    """Add up the resident memory of the processes below this one, by the name of the program."""
    parents, resident = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                before, _, after = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")
                pages = (entry / "statm").read_text(encoding="ascii").split()[1]
            except (OSError, IndexError):
                continue
            parents[int(entry.name)] = int(after.split()[1])
            resident[int(entry.name)] = (before.partition("(")[2], int(pages) * os.sysconf("SC_PAGE_SIZE"))
    mine = {os.getpid()}
    for _ in range(DEPTH):
        mine |= {process for process, parent in parents.items() if parent in mine}
    found: Counter[str] = Counter()
    for process in mine - {os.getpid()}:
        name, size = resident[process]
        found["java" if name == "java" else "python"] += size
    return found


def cpu_s() -> float:
    """Return the processor time of this process and all below it."""
    used = {number: (parent, ticks) for number, parent, ticks in _processes()}
    mine = {os.getpid()}
    for _ in range(DEPTH):
        mine |= {number for number, (parent, _) in used.items() if parent in mine}
    return sum(used[number][1] for number in mine if number in used) / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            yield int(entry.name), int(after[1]), sum(map(int, after[11:15]))


def measure(spark: SparkSession, directory: Path, count: int, strategy: Strategy, form: str) -> dict[str, Any]:
    if directory.exists():
        shutil.rmtree(directory)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:  # what it held is not the job's
        written = apart.submit(write_tracks, directory, count, strategy).result()
    with memory_watched() as most:
        began = time.perf_counter()
        tracks = open_tracks(spark, [str(directory)])
        opened = time.perf_counter()
        traced = trace(spark.read.parquet(str(directory / "ids.parquet")), tracks)
        busy = cpu_s()
        getattr(traced, form).write.format("noop").mode("overwrite").save()
        ended = time.perf_counter()
        busy = cpu_s() - busy
    tracks.close()
    return {
        "strategy": strategy.value,
        "form": form,
        "ids": count,
        "track_bytes": written,
        "open_s": round(opened - began, 2),
        "trace_s": round(ended - opened, 2),
        "ids_per_s": round(count / (ended - opened)),
        "trace_cpu_s": round(busy, 2),
        "ids_per_cpu_s": round(count / busy),
        "java_mb": most["java"] >> 20,
        "python_mb": most["python"] >> 20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--strategies", nargs="*", default=["bloom", "exact"])
    parser.add_argument("--forms", nargs="*", default=["found", "traces"], choices=["found", "traces"])
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    given = parser.parse_args()
    found = []
    columns = (
        "strategy",
        "form",
        "ids",
        "track_bytes",
        "trace_s",
        "ids_per_s",
        "trace_cpu_s",
        "ids_per_cpu_s",
        "java_mb",
        "python_mb",
    )
    print(" ".join(f"{name:>13}" for name in columns))
    with (
        session.running(given.master, app="benchmark") as spark,
        tempfile.TemporaryDirectory(prefix="postroad-pipeline-") as temporary,
    ):
        measure(spark, Path(temporary) / "warm", 10_000, Strategy.BLOOM, "traces")
        for strategy in given.strategies:
            for count in given.ids:
                for form in given.forms:
                    row = measure(spark, Path(temporary) / f"{strategy}{count}", count, Strategy(strategy), form)
                    found.append(row)
                    print(" ".join(f"{row[name]:>13}" for name in columns), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
