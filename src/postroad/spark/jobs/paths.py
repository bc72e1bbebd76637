"""From hits to paths: which brokers a message came through, along the edges of the overlay from its origin (section 3.3).

A routing hit at a broker names the neighbour the message came from. It counts when that neighbour is the origin and published the
message, or has a hit that counts itself, or has a hole there: then it may have seen the message though it does not say so. Ids
are worked on together: a table with a cell for every id and broker holds the hops from the origin, and each turn marks the
brokers one hop further. There are as many turns as the longest path has edges. What is left over is *isolated*: a broker claims a
message that none of its neighbours passed on, most likely a false positive (section 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.spark.jobs.arrow import array, flat, floats, id_column, ids_of, lists, record_batch
from postroad.spark.jobs.bucketed_search import NumberedHistory
from postroad.spark.jobs.matching import Flags, Floats, Longs
from postroad.spark.jobs.tracks import ABSENT, UNKNOWN_BROKER, TrackHole
from postroad.tracking.histories.elements import ID_DTYPE, Kind
from postroad.tracking.queries.answers import HoleKind
from postroad.types import COUNTER_BITS

CELLS_MAX: Final = 4 << 20  # of the table of ids and brokers
UNREACHED: Final = 255
HOPS_MAX: Final = 254

_EDGE: Final = "array<struct<broker: long, upstream: long, hops: int, probability: double, isolated: boolean>>"
_DELIVERY: Final = "array<struct<subscriber: string, broker: long, probability: double, isolated: boolean>>"
_FORWARD: Final = "array<struct<broker: long, neighbour: long, probability: double, isolated: boolean>>"
_HOLE: Final = "array<struct<broker: long, kind: string, from_ms: long, to_ms: long, reason: string>>"
TRACES: Final = (
    "id binary, origin long, publisher long, timestamp_ms long, published boolean, published_probability double, "
    f"path {_EDGE}, subscribers {_DELIVERY}, forwarded {_FORWARD}, holes {_HOLE}"
)
"""The columns of a trace; docs/reference/pipeline.md says what each means."""

Hops: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class HistoryMap:
    """What the workers must know beside the hits: the histories by number, the brokers, and the holes."""

    kind: np.ndarray[Any, Any]
    broker: Longs  # of a history, as an index into `brokers`
    peer: Longs
    subscriber: tuple[str, ...]
    brokers: Longs  # sorted ids
    holes: tuple[TrackHole, ...]

    @classmethod
    def of(cls, histories: Sequence[NumberedHistory], tracked: Iterable[int], holes: Iterable[TrackHole]) -> HistoryMap:
        """Brokers that are named and have no tracks here are a hole for all times."""
        tracked = set(tracked)
        named = {broker for history in histories for broker in (history.broker, history.peer, history.origin) if broker}
        brokers = np.array(sorted(named | tracked), np.int64)
        absent = [TrackHole(broker, ABSENT, 0, 1 << 60, "its tracks are missing") for broker in sorted(named - tracked)]
        index = {broker: place for place, broker in enumerate(brokers.tolist())}
        return cls(
            kind=np.array([history.kind for history in histories], "U10"),
            broker=np.array([index[history.broker] for history in histories], np.int64),
            peer=np.array([index.get(history.peer, 0) for history in histories], np.int64),
            subscriber=tuple(history.subscriber for history in histories),
            brokers=brokers,
            holes=(*holes, *absent),
        )


class Reconstruction:
    """A function for `mapInArrow`: rows of `passes.HITS` to rows of `TRACES`."""

    def __init__(self, overlay: HistoryMap) -> None:
        self.overlay = overlay

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = max(CELLS_MAX // max(len(self.overlay.brokers), 1), 1)
        for batch in batches:
            known = batch.filter(batch.column("id").is_valid())
            for start in range(0, known.num_rows, rows):
                yield traces(self.overlay, known.slice(start, rows))


@dataclass(frozen=True, slots=True)
class _Hits:
    """Hits of one kind: the row of the id, the history, the probability."""

    row: Longs
    history: Longs
    probability: Floats

    def of(self, chosen: Flags) -> _Hits:
        return _Hits(self.row[chosen], self.history[chosen], self.probability[chosen])


def traces(overlay: HistoryMap, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Reconstruct the paths of the ids of one batch."""
    ids = ids_of(batch.column("id"))
    history, bounds = flat(batch.column("hits"))
    doubts = floats(batch.column("probabilities"))
    hits = _Hits(np.repeat(np.arange(len(ids)), np.diff(bounds)), history, doubts)
    kinds = overlay.kind[history]
    by_kind = {kind: hits.of(kinds == kind.value) for kind in Kind}
    asked = _Asked.of(ids, overlay)
    published, doubt = _find_published(by_kind[Kind.PUBLISHER], overlay, asked)
    gaps = _Gaps.of(overlay, asked)
    reached = _reach(overlay, by_kind[Kind.ROUTING], asked, published, gaps)
    return record_batch(
        [
            id_column(ids),
            array(asked.origin),
            array(asked.publisher),
            array(asked.timestamp_ms),
            array(published),
            array(doubt, mask=~published),
            _path(overlay, by_kind[Kind.ROUTING], reached, gaps, len(ids)),
            _deliveries(overlay, by_kind[Kind.SUBSCRIBER], reached, gaps, len(ids)),
            _forwards(overlay, by_kind[Kind.NEIGHBOUR], reached, gaps, len(ids)),
            gaps.column(overlay, len(ids)),
        ],
        names=[*_NAMES],
    )


_NAMES: Final = (
    *("id", "origin", "publisher", "timestamp_ms", "published", "published_probability"),
    *("path", "subscribers", "forwarded", "holes"),
)


@dataclass(frozen=True, slots=True)
class _Asked:
    origin: Longs
    publisher: Longs
    timestamp_ms: Longs
    place: Longs  # of the origin in `brokers`; -1 for a broker nobody knows

    @classmethod
    def of(cls, ids: Ids, overlay: HistoryMap) -> _Asked:
        parts = ids.view(ID_DTYPE)
        origin = parts["broker"].astype(np.int64)
        timestamp = (parts["tick"].astype(np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
        place = np.searchsorted(overlay.brokers, origin)
        unknown = overlay.brokers[np.minimum(place, len(overlay.brokers) - 1)] != origin if len(overlay.brokers) else place >= 0
        return cls(origin, parts["publisher"].astype(np.int64), timestamp, np.where(unknown, -1, place))


def _find_published(hits: _Hits, overlay: HistoryMap, asked: _Asked) -> tuple[Flags, Floats]:
    """Say which ids the publisher history of their own broker holds."""
    own = overlay.broker[hits.history] == asked.place[hits.row]
    published, doubt = np.zeros(len(asked.origin), np.bool_), np.zeros(len(asked.origin), np.float64)
    published[hits.row[own]] = True
    doubt[hits.row[own]] = hits.probability[own]
    return published, doubt


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Which ids lie in which holes, and the same as a table of ids and brokers."""

    row: Longs
    hole: Longs
    open: Flags  # (ids, brokers): the broker may have routed or delivered the message though it does not say so
    unsure: Flags  # of each id: its origin may have published it though it does not say so

    @classmethod
    def of(cls, overlay: HistoryMap, asked: _Asked) -> _Gaps:
        order = np.argsort(asked.timestamp_ms, kind="stable")
        times = asked.timestamp_ms[order]
        low = np.array([hole.from_ms for hole in overlay.holes], np.int64)
        high = np.array([hole.to_ms for hole in overlay.holes], np.int64)
        first, after = np.searchsorted(times, low, "left"), np.searchsorted(times, high, "right")
        count = np.maximum(after - first, 0)
        hole = np.repeat(np.arange(len(count)), count)
        within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        row = order[np.repeat(first, count) + within]
        table = np.zeros((len(asked.origin), len(overlay.brokers)), np.bool_)
        unsure = asked.place < 0
        for number, each in enumerate(overlay.holes):
            rows = row[hole == number] if count[number] else row[:0]
            if each.broker == UNKNOWN_BROKER:
                table[rows] = True
                unsure[rows] = True
                continue
            place = int(np.searchsorted(overlay.brokers, each.broker))
            if place < len(overlay.brokers) and overlay.brokers[place] == each.broker:
                table[rows, place] = True
                if each.kind != HoleKind.CRASH:  # the log gives a publisher history back what a crash took
                    unsure[rows[asked.place[rows] == place]] = True
        return cls(row, hole, table, unsure)

    def column(self, overlay: HistoryMap, ids: int) -> Any:
        order = np.lexsort((self.hole, self.row))
        chosen = array(self.hole[order])
        holes = overlay.holes
        columns: dict[str, pa.Array[Any]] = {
            "broker": array([hole.broker for hole in holes], pa.int64()),
            "kind": array([hole.kind for hole in holes], pa.string()),
            "from_ms": array([hole.from_ms for hole in holes], pa.int64()),
            "to_ms": array([hole.to_ms for hole in holes], pa.int64()),
            "reason": array([hole.reason for hole in holes], pa.string()),
        }
        return _lists(self.row[order], ids, {name: column.take(chosen) for name, column in columns.items()})


def _reach(overlay: HistoryMap, hits: _Hits, asked: _Asked, published: Flags, gaps: _Gaps) -> Hops:
    """Return the hops from the origin for every id and broker, `UNREACHED` where no path leads."""
    hops = np.full((len(asked.origin), len(overlay.brokers)), UNREACHED, np.uint8)
    known = np.flatnonzero((published | gaps.unsure) & (asked.place >= 0))
    hops[known, asked.place[known]] = 0
    broker, upstream, row = overlay.broker[hits.history], overlay.peer[hits.history], hits.row
    for turn in range(1, min(len(overlay.brokers), HOPS_MAX)):
        fresh = (hops[row, upstream] == turn - 1) & (hops[row, broker] == UNREACHED)
        if not bool(fresh.any()):
            break
        hops[row[fresh], broker[fresh]] = turn
    return _behind_holes(hops, row, broker, upstream, gaps.open[row, upstream])


def _behind_holes(hops: Hops, row: Longs, broker: Longs, upstream: Longs, behind_hole: Flags) -> Hops:
    """Count what a broker with a hole passed on, and what lies behind; how many hops that is from the origin, nobody knows."""
    for _ in range(hops.shape[1]):
        passed_on = (hops[row, upstream] != UNREACHED) | behind_hole
        fresh = passed_on & (hops[row, broker] == UNREACHED)
        if not bool(fresh.any()):
            break
        hops[row[fresh], broker[fresh]] = HOPS_MAX
    return hops


def _path(overlay: HistoryMap, hits: _Hits, reached: Hops, gaps: _Gaps, ids: int) -> Any:
    broker, upstream = overlay.broker[hits.history], overlay.peer[hits.history]
    counted = (reached[hits.row, upstream] != UNREACHED) | gaps.open[hits.row, upstream]
    hops = np.where(reached[hits.row, upstream] < HOPS_MAX, reached[hits.row, upstream].astype(np.int32) + 1, 0)
    order = np.lexsort((broker, np.where(counted, hops, UNREACHED), hits.row))
    known = (counted & (hops > 0))[order]
    columns: dict[str, pa.Array[Any]] = {
        "broker": array(overlay.brokers[broker[order]]),
        "upstream": array(overlay.brokers[upstream[order]]),
        "hops": array(hops[order].astype(np.int32), mask=~known),
        "probability": array(hits.probability[order]),
        "isolated": array(~counted[order]),
    }
    return _lists(hits.row[order], ids, columns)


def _deliveries(overlay: HistoryMap, hits: _Hits, reached: Hops, gaps: _Gaps, ids: int) -> Any:
    names = array(overlay.subscriber, pa.string())
    order = np.lexsort((hits.history, hits.row))
    broker = overlay.broker[hits.history[order]]
    seen = (reached[hits.row[order], broker] != UNREACHED) | gaps.open[hits.row[order], broker]
    columns: dict[str, pa.Array[Any]] = {
        "subscriber": names.take(array(hits.history[order])),
        "broker": array(overlay.brokers[broker]),
        "probability": array(hits.probability[order]),
        "isolated": array(~seen),
    }
    return _lists(hits.row[order], ids, columns)


def _forwards(overlay: HistoryMap, hits: _Hits, reached: Hops, gaps: _Gaps, ids: int) -> Any:
    order = np.lexsort((hits.history, hits.row))
    broker = overlay.broker[hits.history[order]]
    seen = (reached[hits.row[order], broker] != UNREACHED) | gaps.open[hits.row[order], broker]
    columns: dict[str, pa.Array[Any]] = {
        "broker": array(overlay.brokers[broker]),
        "neighbour": array(overlay.brokers[overlay.peer[hits.history[order]]]),
        "probability": array(hits.probability[order]),
        "isolated": array(~seen),
    }
    return _lists(hits.row[order], ids, columns)


def _lists(row: Longs, ids: int, columns: dict[str, pa.Array[Any]]) -> Any:
    """Make a list of structs per id from rows that are sorted by id."""
    return lists(row, ids, pa.StructArray.from_arrays(list(columns.values()), list(columns)))
