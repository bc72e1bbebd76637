"""From hits to paths: which brokers a message came through, along the edges of the overlay from its origin (section 3.3).

A routing hit at a broker names the neighbour the message came from. It counts when that neighbour is the origin and published the
message, or has a hit that counts itself, or has a hole there: then it may have seen the message though it does not say so. What
is left over is *isolated*: a broker claims a message that none of its neighbours passed on, most likely a false positive (section
5.3).

Most messages of an origin take one of a few ways. So ids with the same origin, the same routing hits and the same holes, a
*pattern*, are reconstructed once. A table with a cell for every pattern and broker holds the hops from the origin, and each turn
marks the brokers one hop further. There are as many turns as the longest path has edges. An id only looks up what its pattern
says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from postroad.core.batch.batch import Ids
from postroad.spark.jobs.arrow import array, id_column, lists, record_batch
from postroad.spark.jobs.histories import NumberedHistory
from postroad.spark.jobs.matching import Flags, Floats, Found, Longs, Sheet
from postroad.spark.jobs.tracks import ABSENT, UNKNOWN_BROKER, TrackHole
from postroad.tracking.histories.elements import ID_DTYPE, Kind
from postroad.tracking.queries.answers import HoleKind
from postroad.types import COUNTER_BITS

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

SUMMARY: Final = "ids long, published long, hops long, deliveries long, isolated long, in_holes long, by_chance double"
"""The columns of a summary: how many ids, published ones, routing and subscriber entries, isolated ones of these, ids in holes,
and how many entries would be there by chance if every id were unknown."""

FOUND: Final = "id binary, published boolean, hits array<int>, isolated array<int>"
"""The columns of traces as numbers of histories."""

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


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The holes that ids lie in. Between two ends of holes, ids lie in the same ones: that is a *stretch*."""

    stretch: Longs  # of each id
    covers: Flags  # (stretches, holes)
    open: Flags  # (stretches, brokers): the broker may have routed or delivered the message though it does not say so
    unsure: Flags  # (stretches, brokers): messages of this origin may be published though it does not say so

    @classmethod
    def of(cls, overlay: HistoryMap, timestamp_ms: Longs) -> _Gaps:
        low = np.array([hole.from_ms for hole in overlay.holes], np.int64)
        high = np.array([hole.to_ms for hole in overlay.holes], np.int64)
        ends = np.unique(np.concatenate([low, high + 1]))
        known, stretch = np.unique(np.searchsorted(ends, timestamp_ms, "right"), return_inverse=True)
        moment = np.concatenate([[-1], ends])[known]  # the first of each stretch
        covers = (low <= moment[:, None]) & (moment[:, None] <= high)
        table = np.zeros((len(known), len(overlay.brokers)), np.bool_)
        unsure = table.copy()
        for number, each in enumerate(overlay.holes):
            rows = covers[:, number]
            if each.broker == UNKNOWN_BROKER:
                table[rows] = True
                unsure[rows] = True
                continue
            place = int(np.searchsorted(overlay.brokers, each.broker))
            if place < len(overlay.brokers) and overlay.brokers[place] == each.broker:
                table[rows, place] = True
                if each.kind != HoleKind.CRASH:  # the log gives a publisher history back what a crash took
                    unsure[rows, place] = True
        return cls(stretch, covers, table, unsure)

    def column(self, overlay: HistoryMap) -> Any:
        holes = overlay.holes
        columns: dict[str, pa.Array[Any]] = {
            "broker": array([hole.broker for hole in holes], pa.int64()),
            "kind": array([hole.kind for hole in holes], pa.string()),
            "from_ms": array([hole.from_ms for hole in holes], pa.int64()),
            "to_ms": array([hole.to_ms for hole in holes], pa.int64()),
            "reason": array([hole.reason for hole in holes], pa.string()),
        }
        stretch, hole = np.nonzero(self.covers)
        row, place = _spread(stretch, self.stretch, len(self.covers))
        return _lists(row, len(self.stretch), {name: column.take(array(hole[place])) for name, column in columns.items()})


_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Patterns:
    """What is the same for many ids."""

    of: Longs  # the pattern of each id
    seen: Flags  # (patterns, brokers): the message came here, or may have
    edge_pattern: Longs  # of each routing hit of a pattern, sorted by pattern, then as a path is told
    edge: Longs  # the column of its history
    hops: Longs  # to its end; 0 where nobody knows
    counted: Flags


class Reconstruction:
    """Ids and what was found of them, ready to be told."""

    def __init__(self, overlay: HistoryMap, ids: Ids, found: Found) -> None:
        self.overlay: Final = overlay
        self.ids: Final = ids
        self.found: Final = found
        self.kind: Final = overlay.kind[found.histories]
        self.broker: Final = overlay.broker[found.histories]
        self.asked: Final = _Asked.of(ids, overlay)
        self.gaps: Final = _Gaps.of(overlay, self.asked.timestamp_ms)
        self.published, self.publisher_column = self._find_published()
        self.patterns: Final = self._patterns()

    def _find_published(self) -> tuple[Flags, Longs]:
        """Say which ids the publisher history of their own broker holds, and the column of that."""
        column = np.zeros(len(self.ids), np.int64)
        published = np.zeros(len(self.ids), np.bool_)
        for each in np.flatnonzero(self.kind == Kind.PUBLISHER.value).tolist():
            mine = self.found.flags[:, each] & (self.asked.place == self.broker[each])
            published |= mine
            column[mine] = each
        return published, column

    def _patterns(self) -> _Patterns:
        overlay, asked, gaps = self.overlay, self.asked, self.gaps
        routing = np.flatnonzero(self.kind == Kind.ROUTING.value)
        known = asked.place >= 0
        begins = self.published.copy()
        if bool(gaps.unsure.any()):
            begins |= known & gaps.unsure[gaps.stretch, asked.place]
        begins &= known
        routed = np.packbits(self.found.flags[:, routing], axis=1)
        first, of = _distinct([asked.place, gaps.stretch, begins.astype(np.int64)], routed)
        row, column = np.nonzero(self.found.flags[np.ix_(first, routing)])
        column = routing[column]
        broker, upstream = self.broker[column], overlay.peer[self.found.histories[column]]
        opened = gaps.open[gaps.stretch[first]]
        hops = np.full((len(first), len(overlay.brokers)), UNREACHED, np.uint8)
        starting = np.flatnonzero(begins[first])
        hops[starting, asked.place[first][starting]] = 0
        reached = _reach(hops, row, broker, upstream, opened)
        counted = (reached[row, upstream] != UNREACHED) | opened[row, upstream]
        away = np.where(reached[row, upstream] < HOPS_MAX, reached[row, upstream].astype(np.int64) + 1, 0)
        order = np.lexsort((broker, np.where(counted, away, UNREACHED), row))
        seen = (reached != UNREACHED) | opened
        return _Patterns(of, seen, row[order], column[order], np.where(counted, away, 0)[order], counted[order])

    def edges(self) -> tuple[Longs, Longs]:
        """Return the routing hits of all ids as a path is told: the id, and which of the patterns' edges."""
        return _spread(self.patterns.edge_pattern, self.patterns.of, len(self.patterns.seen))

    def entries(self, kind: Kind) -> tuple[Longs, Longs, Flags]:
        """Return the hits of a kind: the id, the column, and whether it is isolated."""
        row, column = self.found.pairs(self.kind == kind.value)
        return row, column, ~self.patterns.seen[self.patterns.of[row], self.broker[column]]


def _spread(group: Longs, of: Longs, groups: int) -> tuple[Longs, Longs]:
    """Give every id the members of its group; return the id and the member. Members are sorted by `group`, `of` is the ids'."""
    bounds = np.searchsorted(group, np.arange(groups + 1))
    count = np.diff(bounds)[of]
    row = np.repeat(np.arange(len(of)), count)
    within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    return row, bounds[:-1][of][row] + within


def _distinct(numbers: Sequence[Longs], bits: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[Longs, Longs]:
    """Return the first row of each pattern, and the pattern of each row: rows with the same numbers and bits."""
    width = -(-bits.shape[1] // 8)
    words = np.zeros((len(bits), width * 8), np.uint8)
    words[:, : bits.shape[1]] = bits
    columns = [*(each.astype(np.uint64) for each in numbers), *words.view(np.uint64).T]
    mixed = np.zeros(len(bits), np.uint64)
    for column in columns:
        mixed ^= column
        mixed *= np.uint64(0x9E37_79B9_7F4A_7C15)
        mixed ^= mixed >> np.uint64(29)
    _, first, of = np.unique(mixed, return_index=True, return_inverse=True)
    if all(bool((column[first][of] == column).all()) for column in columns):
        return first, of
    _, first, of = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)  # two mixed alike
    return first, of.reshape(-1)


def _reach(hops: Hops, row: Longs, broker: Longs, upstream: Longs, opened: Flags) -> Hops:
    """Return the hops from the origin for every pattern and broker, `UNREACHED` where no path leads."""
    for turn in range(1, min(hops.shape[1], HOPS_MAX)):
        fresh = (hops[row, upstream] == turn - 1) & (hops[row, broker] == UNREACHED)
        if not bool(fresh.any()):
            break
        hops[row[fresh], broker[fresh]] = turn
    return _behind_holes(hops, row, broker, upstream, opened[row, upstream])


def _behind_holes(hops: Hops, row: Longs, broker: Longs, upstream: Longs, behind_hole: Flags) -> Hops:
    """Count what a broker with a hole passed on, and what lies behind; how many hops that is from the origin, nobody knows."""
    for _ in range(hops.shape[1]):
        passed_on = (hops[row, upstream] != UNREACHED) | behind_hole
        fresh = passed_on & (hops[row, broker] == UNREACHED)
        if not bool(fresh.any()):
            break
        hops[row[fresh], broker[fresh]] = HOPS_MAX
    return hops


# --- answers --------------------------------------------------------------------------------------------------------------


class TraceRows:
    """An answer: rows of `TRACES`."""

    def __init__(self, overlay: HistoryMap) -> None:
        self._overlay = overlay

    def fresh(self) -> TraceRows:
        return self

    def take(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002  # the ids are all of them
        ids: Ids,
        sheet: Sheet,  # noqa: ARG002
        found: Found,
    ) -> Iterator[pa.RecordBatch]:
        made = Reconstruction(self._overlay, ids, found)
        asked, published = made.asked, made.published
        edge_row, edge = made.edges()
        own = np.flatnonzero(published)
        kinds = {kind: made.entries(kind) for kind in (Kind.SUBSCRIBER, Kind.NEIGHBOUR)}
        pairs = [(own, made.publisher_column[own]), (edge_row, made.patterns.edge[edge])]
        pairs += [(row, column) for row, column, _ in kinds.values()]
        every = found.probabilities(np.concatenate([row for row, _ in pairs]), np.concatenate([column for _, column in pairs]))
        ends = np.cumsum([len(row) for row, _ in pairs])
        doubt, of_path, of_deliveries, of_forwards = np.split(every, ends[:-1])
        own_doubt = np.zeros(len(ids), np.float64)
        own_doubt[own] = doubt
        yield record_batch(
            [
                id_column(ids),
                array(asked.origin),
                array(asked.publisher),
                array(asked.timestamp_ms),
                array(published),
                array(own_doubt, mask=~published),
                _path(made, edge_row, edge, of_path),
                _deliveries(made, *kinds[Kind.SUBSCRIBER], of_deliveries),
                _forwards(made, *kinds[Kind.NEIGHBOUR], of_forwards),
                made.gaps.column(made.overlay),
            ],
            names=[*_NAMES],
        )

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())


_NAMES: Final = (
    *("id", "origin", "publisher", "timestamp_ms", "published", "published_probability"),
    *("path", "subscribers", "forwarded", "holes"),
)


def _path(made: Reconstruction, row: Longs, edge: Longs, doubt: Floats) -> Any:
    overlay, patterns = made.overlay, made.patterns
    history = made.found.histories[patterns.edge]
    columns: dict[str, pa.Array[Any]] = {
        "broker": array(overlay.brokers[overlay.broker[history]][edge]),
        "upstream": array(overlay.brokers[overlay.peer[history]][edge]),
        "hops": array(patterns.hops.astype(np.int32)[edge], mask=(patterns.hops == 0)[edge]),
        "probability": array(doubt),
        "isolated": array(~patterns.counted[edge]),
    }
    return _lists(row, len(made.ids), columns)


def _deliveries(made: Reconstruction, row: Longs, column: Longs, isolated: Flags, doubt: Floats) -> Any:
    names = array(made.overlay.subscriber, pa.string())
    columns: dict[str, pa.Array[Any]] = {
        "subscriber": names.take(array(made.found.histories[column])),
        "broker": array(made.overlay.brokers[made.broker[column]]),
        "probability": array(doubt),
        "isolated": array(isolated),
    }
    return _lists(row, len(made.ids), columns)


def _forwards(made: Reconstruction, row: Longs, column: Longs, isolated: Flags, doubt: Floats) -> Any:
    columns: dict[str, pa.Array[Any]] = {
        "broker": array(made.overlay.brokers[made.broker[column]]),
        "neighbour": array(made.overlay.brokers[made.overlay.peer[made.found.histories[column]]]),
        "probability": array(doubt),
        "isolated": array(isolated),
    }
    return _lists(row, len(made.ids), columns)


def _lists(row: Longs, ids: int, columns: dict[str, pa.Array[Any]]) -> Any:
    """Make a list of structs per id from rows that are sorted by id."""
    return lists(row, ids, pa.StructArray.from_arrays(list(columns.values()), list(columns)))


class FoundRows:
    """An answer: rows of `FOUND`."""

    def __init__(self, overlay: HistoryMap) -> None:
        self._overlay = overlay

    def fresh(self) -> FoundRows:
        return self

    def take(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002
        ids: Ids,
        sheet: Sheet,  # noqa: ARG002
        found: Found,
    ) -> Iterator[pa.RecordBatch]:
        made = Reconstruction(self._overlay, ids, found)
        row, column = found.pairs()
        hits = lists(row, len(ids), array(found.histories[column].astype(np.int32)))
        alone = _find_isolated(made)
        isolated = lists(alone[0], len(ids), array(found.histories[alone[1]].astype(np.int32)))
        yield record_batch([id_column(ids), array(made.published), hits, isolated], names=["id", "published", "hits", "isolated"])

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())


def _find_isolated(made: Reconstruction) -> tuple[Longs, Longs]:
    """Return the isolated hits of all kinds, sorted by id."""
    patterns = made.patterns
    pairs: list[tuple[Longs, Longs]] = []
    if not bool(patterns.counted.all()):
        row, edge = made.edges()
        alone = ~patterns.counted[edge]
        pairs.append((row[alone], patterns.edge[edge[alone]]))
    if not bool(patterns.seen.all()):
        for kind in (Kind.SUBSCRIBER, Kind.NEIGHBOUR):
            row, column, isolated = made.entries(kind)
            pairs.append((row[isolated], column[isolated]))
    if not pairs:
        return _NONE, _NONE
    row, column = (np.concatenate(each) for each in zip(*pairs, strict=True))
    order = np.lexsort((column, row))
    return row[order], column[order]


class SummaryRow:
    """An answer: one row of `SUMMARY` per task."""

    def __init__(self, overlay: HistoryMap) -> None:
        self._overlay = overlay
        self._sums = dict.fromkeys(("ids", "published", "hops", "deliveries", "isolated", "in_holes"), 0)
        self._by_chance = 0.0

    def fresh(self) -> SummaryRow:
        return SummaryRow(self._overlay)

    def take(
        self,
        rows: pa.RecordBatch,  # noqa: ARG002
        ids: Ids,
        sheet: Sheet,
        found: Found,
    ) -> Iterator[pa.RecordBatch]:
        made = Reconstruction(self._overlay, ids, found)
        patterns, sums = made.patterns, self._sums
        ids_of_pattern = np.bincount(patterns.of, minlength=len(patterns.seen))
        sums["ids"] += len(ids)
        sums["published"] += int(made.published.sum())
        sums["hops"] += int(ids_of_pattern[patterns.edge_pattern].sum())
        sums["deliveries"] += int(found.flags[:, made.kind == Kind.SUBSCRIBER.value].sum())
        sums["isolated"] += int(ids_of_pattern[patterns.edge_pattern[~patterns.counted]].sum())
        if not bool(patterns.seen.all()):
            sums["isolated"] += int(made.entries(Kind.SUBSCRIBER)[2].sum())
        sums["in_holes"] += int(np.any(made.gaps.covers, axis=1, keepdims=True)[made.gaps.stretch].sum())
        self._by_chance += sum(expected for _, expected in sheet.tested.values())
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{**self._sums, "by_chance": self._by_chance}])
