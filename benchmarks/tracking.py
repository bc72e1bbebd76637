"""What tracking costs: `python -m benchmarks.tracking [--seconds N]`.

Times are the best of many short runs on one core, of the tracker alone. Bytes are those of track files, and memory that of
the tracker, under the load of the tracking paper: 200 publishers, 500 topics, 500 subscribers, 5,000 messages per second in
and out, with the default settings (T_p = 10 s).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from experiments.tracking.load import PUBEND, WALL_MS, Load

from benchmarks.filters import best
from postroad.core.batch.batch import Ids
from postroad.tracking.files.schema import WRITE_OPTIONS, Stamp, to_table
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Element, Flush, Kind
from postroad.tracking.histories.events import Published, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker
from postroad.tracking.queries.search import search

SHAPES = ((1 << 16, 16, 2_521), (1 << 16, 8, 5_461), (1 << 20, 12, 38_836), (1 << 20, 16, 38_836), (1_000_003, 12, 38_836))
KINDS = (Strategy.ASYNC, Strategy.BLOOM, Strategy.EXACT)


def ids_of(count: int) -> Ids:
    turns = Load(count // 5_000 + 1).turns()
    return np.concatenate([turn.ids for turn in turns])[:count]


def measure_blooms() -> None:
    print("| blooms, 1,000 ids at a time | ADD, us per id | CONTAINS, held | CONTAINS, not held | one id, not held |")
    print("|---|---:|---:|---:|---:|")
    ids, others = ids_of(1_000), ids_of(200_000)[-1_000:]
    for m, k, n in SHAPES:
        full = blooms.empty(m)
        blooms.add_ids(full, ids_of(n), m, k)
        bits = blooms.empty(m)
        times = [
            best(lambda bits=bits, m=m, k=k: blooms.add_ids(bits, ids, m, k)) / 1_000,  # type: ignore[misc]
            _contains(full, ids, m, k) / 1_000,
            _contains(full, others, m, k) / 1_000,
            _contains(full, others[:1], m, k),
        ]
        print(f"| m = {m:,}, k = {k} | " + " | ".join(f"{1e6 * seconds:.3f}" for seconds in times) + " |")


def _contains(bits: blooms.Bits, ids: Ids, m: int, k: int) -> float:
    return best(lambda: blooms.contains(bits, blooms.positions(ids, m, k)))


def measure_tracker(seconds: int) -> None:
    print("\n| tracker | us per event of a few ids | us per id, 1,000 in an event | flush, ms per 10 s of the load |")
    print("|---|---:|---:|---:|")
    turns = list(Load(seconds).events())
    whole = ids_of(1_000)
    for strategy in (Strategy.NULL, *KINDS):
        settings = TrackingSettings(strategy=strategy)
        count = sum(len(events) for _, events in turns)
        per_event, flushing = min(_take(settings, turns) for _ in range(3))
        per_id = best(_taker(settings, whole)) / 1_000
        print(f"| `{strategy}` | {1e6 * per_event / count:.2f} | {1e6 * per_id:.3f} | {1e4 * flushing / seconds:.1f} |")


def _take(settings: TrackingSettings, turns: list[tuple[int, list[TrackEvent]]]) -> tuple[float, float]:
    tracker, taking, flushing = Tracker(1, 1, settings, wall_ms=WALL_MS), 0.0, 0.0
    for wall_ms, events in turns:
        started = perf_counter()
        tracker.take(events, wall_ms)
        taken = perf_counter()
        if tracker.wants_flush(wall_ms):
            tracker.flush(wall_ms)
        taking, flushing = taking + taken - started, flushing + perf_counter() - taken
    return taking, flushing


def _taker(settings: TrackingSettings, ids: Ids) -> Callable[[], None]:
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    calls = 0

    def take() -> None:
        nonlocal calls
        calls += 1
        tracker.take([Published(PUBEND, ids)], WALL_MS)
        if calls % 64 == 0:
            tracker.flush(WALL_MS + 20_000, farewell=True)

    return take


class Kept(NamedTuple):
    """What a run of the load left behind."""

    entries: dict[Kind, int]
    parts: dict[Kind, int]
    memory_bytes: int
    elements: list[Element]


def run(settings: TrackingSettings, seconds: int) -> Kept:
    """Track the load; count the bytes of the files that hold publisher entries alone, and subscriber entries alone."""
    tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
    flushes: list[Flush] = []
    memory = 0
    for wall_ms, events in Load(seconds).events():
        tracker.take(events, wall_ms)
        memory = max(memory, tracker.memory_bytes)
        if tracker.wants_flush(wall_ms):
            flushes.append(tracker.flush(wall_ms))
    flushes.append(tracker.flush(WALL_MS + 1_000 * seconds, farewell=True))
    entries, parts = dict.fromkeys(Kind, 0), dict.fromkeys(Kind, 0)
    for flush in flushes:
        for kind in (Kind.PUBLISHER, Kind.SUBSCRIBER):
            elements = [element for element in flush.closed if element.key.kind is kind]
            entries[kind] += sum(element.count for element in elements)
            parts[kind] += file_bytes(elements)
    return Kept(entries, parts, memory, [element for flush in flushes for element in flush.closed])


def file_bytes(elements: Iterable[Element]) -> int:
    """Return the size of a track file with these elements."""
    sink = pa.BufferOutputStream()
    pq.write_table(to_table(Stamp(1, 1, 1), elements, ()), sink, **WRITE_OPTIONS)
    return int(sink.getvalue().size)


def measure_storage(seconds: int) -> None:
    print(f"\n| {seconds} s of the load, T_p = 10 s | bytes per publisher entry | per subscriber entry | tracker's memory, MB |")
    print("|---|---:|---:|---:|")
    bloom = TrackingSettings(strategy=Strategy.BLOOM)
    large = replace(bloom, m=1 << 20, k=12, n=38_836)
    runs = {
        "`async`": TrackingSettings(strategy=Strategy.ASYNC),
        "`bloom`, m = 65,536, n = 2,521, few as ids": bloom,
        "`bloom`, the same, always blooms": replace(bloom, few_as_ids=False),
        "`bloom`, m = 1,048,576, n = 38,836, few as ids": large,
        "`exact`": TrackingSettings(strategy=Strategy.EXACT),
        "`exact`, T_p = 60 s": TrackingSettings(strategy=Strategy.EXACT, persistence_ms=60_000),
    }
    for name, settings in runs.items():
        kept = run(settings, max(seconds, 60) if settings.persistence_ms > 10_000 else seconds)
        each = [kept.parts[kind] / kept.entries[kind] for kind in (Kind.PUBLISHER, Kind.SUBSCRIBER)]
        print(f"| {name} | {each[0]:.2f} | {each[1]:.2f} | {kept.memory_bytes / 1e6:.1f} |")


def measure_search(seconds: int) -> None:
    print("\n| search | elements | 1 id, ms | 1,000 ids, ms |\n|---|---:|---:|---:|")
    for strategy in KINDS:
        elements = run(TrackingSettings(strategy=strategy), seconds).elements
        ids = ids_of(10_000)[::10]
        one, many = (best(lambda ids=part, held=elements: search(held, ids), 10, 0.01) for part in (ids[:1], ids))  # type: ignore[misc]
        print(f"| `{strategy}` | {len(elements):,} | {1e3 * one:.2f} | {1e3 * many:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="of the load (default 30)")
    seconds = parser.parse_args().seconds
    measure_blooms()
    measure_tracker(min(seconds, 20))
    measure_storage(seconds)
    measure_search(seconds)


if __name__ == "__main__":
    main()
