"""What subscriptions were promised, as claims on stretches of pubend streams, and which messages fall under them.

A span claims that everything of (from_tick, to_tick] that matches its filter was sent. Between and behind the spans of one
subscriber lie stretches of which no span speaks; they become claims of other standings, so that every message has one answer
per subscriber:

    expected    a span claims it
    explained   the incarnation that should have told was cut off, or dropped what it had to tell
    doubtful    behind the last span of a subscription that is attached still, or was when its broker died
    waiting     behind the last span of a durable subscription that is away
    skipped     between two spans of one durable subscription, and nothing explains it
    lost        the subscriber was told that it is lost

A durable subscription exists from its creation until it is forgotten, for every pubend there is. What was published between
its creation and its first span in a pubend is `skipped`, unless a crash explains it; where it has no span in a pubend at all,
messages are `waiting`, or `doubtful` while it is attached.

The publisher history claims everything up to its horizon, and the routing histories of a broker at least what its subscribers
were sent. What the log holds beyond the horizon is `doubtful`. Each of these accounts is a *target*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.batch.batch import Batch
from postroad.core.batch.digest import lanes
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.core.protocol.packets import pubend_broker
from postroad.spark.jobs.arrow import array, id_column, lists, record_batch
from postroad.spark.jobs.matching import Flags, Longs
from postroad.spark.jobs.published import Numbered
from postroad.spark.jobs.tracks import Tracks
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.tracking.queries.answers import HoleKind
from postroad.types import COUNTER_BITS

TICK_END: Final = (1 << 63) - 1
TEMPORARY: Final = "~"
GRAIN_MS: Final = 1_000  # counts are compared in steps of this
TOGETHER_MS: Final = 1_000  # attachments of one subscription that begin within this began together


class Standing(IntEnum):
    """How a claim stands; of several on one message the first counts."""

    EXPECTED = 0
    LOST = 1
    EXPLAINED = 2
    DOUBTFUL = 3
    WAITING = 4
    SKIPPED = 5


class Target(NamedTuple):
    """An account that has to close: the histories whose ids are held against claims."""

    kind: str  # of the histories: publisher, routing, subscriber
    origin: int
    broker: int  # 0 for a subscriber, who may move between brokers
    subscriber: str


class Claim(NamedTuple):
    target: int
    pubend: int
    filter: int
    lo: int
    hi: int
    standing: int


@dataclass(slots=True)
class Claims:
    """Everything claimed, for workers to hold messages against."""

    targets: list[Target] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    routing_of: dict[tuple[int, int], int] = field(default_factory=dict)  # (broker, origin) -> target
    broker_of: list[int] = field(default_factory=list)  # of each claim: where the span was
    seen: Mapping[int, int] = field(default_factory=dict)  # pubend -> tick up to which an earlier audit counted messages
    routed: Mapping[tuple[int, int], int] = field(default_factory=dict)  # (broker, pubend) -> the same for routing histories
    _targets: dict[Target, int] = field(default_factory=dict)
    _filters: dict[str, int] = field(default_factory=dict)

    def target(self, target: Target) -> int:
        if target not in self._targets:
            self._targets[target] = len(self.targets)
            self.targets.append(target)
        return self._targets[target]

    def numbers_of(self, kind: str, origin: int, subscriber: str, broker: int) -> Iterator[int]:
        """Yield the number of the account that a history belongs to, if there is one."""
        number = self._targets.get(Target(kind, origin, 0 if kind == "subscriber" else broker, subscriber))
        if number is not None:
            yield number

    def filter(self, text: str) -> int:
        if text not in self._filters:
            self._filters[text] = len(self.filters)
            self.filters.append(text)
        return self._filters[text]

    def add(self, target: Target, pubend: int, text: str, lo: int, hi: int, standing: Standing, broker: int) -> None:
        if lo < hi:
            self.claims.append(Claim(self.target(target), pubend, self.filter(text), lo, hi, standing))
            self.broker_of.append(broker)


@dataclass(frozen=True, slots=True)
class Settled:
    """What earlier audits decided and counted, by account and pubend: the next one looks at what lies behind.

    `waiting` are accounts whose waiting messages were counted up to `seen`; it holds while nothing more of them is decided.
    """

    reached: Mapping[tuple[Target, int], int]
    seen: Mapping[int, int]
    routed: Mapping[tuple[int, int], int]
    waiting: Collection[Target]


_DECIDED: Final = (Standing.EXPECTED, Standing.EXPLAINED, Standing.SKIPPED)


def decided(claims: Claims) -> dict[tuple[Target, int], int]:
    """Return up to which tick it is decided what each account was promised of each pubend."""
    found: dict[tuple[Target, int], int] = {}
    for claim in claims.claims:
        if claim.standing in _DECIDED and claim.hi < TICK_END:
            key = (claims.targets[claim.target], claim.pubend)
            found[key] = max(found.get(key, -1), claim.hi)
    return found


def routed(claims: Claims) -> dict[tuple[int, int], int]:
    """Return up to which tick of each pubend something was promised at each broker."""
    found: dict[tuple[int, int], int] = {}
    for claim, broker in zip(claims.claims, claims.broker_of, strict=True):
        if claim.standing == Standing.EXPECTED:
            found[broker, claim.pubend] = max(found.get((broker, claim.pubend), -1), claim.hi)
    return found


def behind(claims: Claims, settled: Settled) -> set[Target]:
    """Cut off what is settled; return the accounts whose waiting messages are as they were counted."""
    moved = {target for (target, pubend), tick in decided(claims).items() if tick > settled.reached.get((target, pubend), -1)}
    still = set(settled.waiting) - moved
    kept: list[tuple[Claim, int]] = []
    for claim, broker in zip(claims.claims, claims.broker_of, strict=True):
        target = claims.targets[claim.target]
        lo = max(claim.lo, settled.reached.get((target, claim.pubend), -1))
        if claim.standing == Standing.WAITING and target in still:
            lo = max(lo, settled.seen.get(claim.pubend, -1))
        if lo < claim.hi:
            kept.append((claim._replace(lo=lo), broker))
    claims.claims, claims.broker_of = [claim for claim, _ in kept], [broker for _, broker in kept]
    claims.seen, claims.routed = settled.seen, settled.routed
    return still


@dataclass(frozen=True, slots=True)
class SpanRow:
    broker: int
    incarnation: int
    filter: str
    lo: int
    hi: int
    attached_ms: int
    attached: bool


def claims_of(
    tracks: Tracks, pubends: Collection[int] = (), starts: Mapping[tuple[str, int], int] = MappingProxyType({})
) -> Claims:
    """Work out the claims from the records of all brokers.

    `pubends` are those whose messages are at hand, `starts` where durable subscriptions began in them, as far as their homes say.
    """
    claims = Claims()
    crashed = {
        (row["broker"], row["number"]): row["to_ms"]
        for row in tracks.of_kind("crash").select("broker", "number", "to_ms").collect()
    }
    lost = _find_lost(tracks)
    by_stream: dict[tuple[str, int], list[SpanRow]] = defaultdict(list)
    for row in _spans(tracks).collect():
        attached = row["closed_ms"] is None
        span = SpanRow(
            row["broker"], row["incarnation"], row["filter"], row["from_tick"], row["to_tick"], row["opened_ms"], attached
        )
        by_stream[row["subscriber"], row["pubend"]].append(span)
    for (subscriber, pubend), spans in sorted(by_stream.items()):
        claim_stream(claims, subscriber, pubend, spans, crashed, lost.get((subscriber, pubend), ()))
    kept_from = {hole.broker: hole.to_ms + 1 for hole in tracks.holes if hole.kind == HoleKind.DROPPED}
    claim_unstarted(claims, by_stream, pubends, crashed, starts, kept_from)
    horizons = _horizons(tracks)
    for pubend in sorted(horizons.keys() | set(pubends)):
        origin = pubend_broker(pubend)
        target = Target("publisher", origin, origin, "")
        tick = horizons.get(pubend, -1)
        claims.add(target, pubend, "", -1, tick, Standing.EXPECTED, origin)
        if pubend in pubends:
            claims.add(target, pubend, "", tick, TICK_END, Standing.DOUBTFUL, origin)
    return claims


def _spans(tracks: Tracks) -> DataFrame:
    """Return the newest version of every span."""
    columns = ("to_tick", "filter", "from_tick", "opened_ms", "closed_ms")
    newest = F.max_by(F.struct(*columns), F.struct("to_tick", "sequence")).alias("newest")
    spans = tracks.of_kind("span").groupBy("broker", "incarnation", "number", "subscriber", "pubend").agg(newest)
    return spans.select("broker", "incarnation", "number", "subscriber", "pubend", "newest.*")


def _find_lost(tracks: Tracks) -> dict[tuple[str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in tracks.of_kind("lost").select("subscriber", "pubend", "from_tick", "to_tick").distinct().collect():
        found[row["subscriber"], row["pubend"]].append((row["from_tick"], row["to_tick"]))
    return found


def lost_with_files(tracks: Tracks) -> list[tuple[int, int, int]]:
    """Return (pubend, lo, hi) of what brokers said is lost with the files of their former lives."""
    return sorted(
        (pubend, lo, hi) for (subscriber, pubend), told in _find_lost(tracks).items() if not subscriber for lo, hi in told
    )


def _horizons(tracks: Tracks) -> dict[int, int]:
    rows: list[Row] = tracks.of_kind("horizon").groupBy("pubend").agg(F.max("to_tick").alias("tick")).collect()
    return {row["pubend"]: row["tick"] for row in rows}


def claim_stream(
    claims: Claims,
    subscriber: str,
    pubend: int,
    spans: Sequence[SpanRow],
    crashed: Mapping[tuple[int, int], int],
    lost: Iterable[tuple[int, int]],
) -> None:
    """Cut the stream of one subscriber in one pubend into claims, from its first span to its end."""
    origin = pubend_broker(pubend)
    target = Target("subscriber", origin, 0, subscriber)
    ordered = sorted(spans, key=lambda span: (span.lo, span.attached_ms, span.hi))
    reached, latest = ordered[0].lo, ordered[0]
    for span in ordered:
        if span.lo > reached:
            standing = _standing_between(latest, span, crashed, subscriber)
            if standing is not None:
                claims.add(target, pubend, latest.filter, reached, span.lo, standing, latest.broker)
        claims.add(target, pubend, span.filter, span.lo, span.hi, Standing.EXPECTED, span.broker)
        if span.broker != origin:
            claims.routing_of.setdefault((span.broker, origin), claims.target(Target("routing", origin, span.broker, "")))
        if span.hi >= reached:
            reached, latest = span.hi, span
    _claim_tail(claims, target, pubend, reached, max(ordered, key=lambda span: (span.attached_ms, span.hi)), crashed)
    for lo, hi in lost:
        claims.add(target, pubend, latest.filter, lo, hi, Standing.LOST, latest.broker)


def claim_unstarted(
    claims: Claims,
    by_stream: Mapping[tuple[str, int], Sequence[SpanRow]],
    pubends: Collection[int],
    crashed: Mapping[tuple[int, int], int],
    starts: Mapping[tuple[str, int], int],
    kept_from: Mapping[int, int],
) -> None:
    """Claim what durable subscriptions should have had of pubends before their first span there.

    `kept_from` is when the tracks of brokers begin: spans of before may have been dropped.

    They have everything from where their home says that they began in it, or else from their creation, their first span of all.
    """
    by_name: dict[str, dict[int, Sequence[SpanRow]]] = defaultdict(dict)
    for (subscriber, pubend), spans in by_stream.items():
        if not is_temporary(subscriber):
            by_name[subscriber][pubend] = spans
    for subscriber, streams in sorted(by_name.items()):
        spans = [span for found in streams.values() for span in found]
        latest = max(spans, key=lambda span: (span.attached_ms, span.hi))
        created_ms = min(span.attached_ms for span in spans if span.filter == latest.filter)
        created = created_ms << COUNTER_BITS
        for pubend in sorted(streams.keys() | set(pubends)):
            target = Target("subscriber", pubend_broker(pubend), 0, subscriber)
            if pubend not in streams:
                standing = Standing.DOUBTFUL if latest.attached else Standing.WAITING
                claims.add(target, pubend, latest.filter, created, TICK_END, standing, latest.broker)
                continue
            first = min(streams[pubend], key=lambda span: (span.attached_ms, span.lo))
            kept = max(kept_from.get(span.broker, 0) for span in spans) << COUNTER_BITS
            begin = max(starts.get((subscriber, pubend), created), kept)
            is_late = (subscriber, pubend) in starts or first.attached_ms - created_ms > TOGETHER_MS
            if first.filter == latest.filter and is_late:
                is_explained = _was_cut_off(first, spans, crashed)
                standing = Standing.EXPLAINED if is_explained else Standing.SKIPPED
                claims.add(target, pubend, latest.filter, begin, first.lo, standing, first.broker)


def _was_cut_off(first: SpanRow, spans: Sequence[SpanRow], crashed: Mapping[tuple[int, int], int]) -> bool:
    """Say whether a crash took spans of before the first that is known in a pubend."""
    earlier = [span for span in spans if span.attached_ms < first.attached_ms]
    if not earlier:
        return any(broker == first.broker and incarnation < first.incarnation for broker, incarnation in crashed)
    before = max(earlier, key=lambda span: (span.attached_ms, span.hi))
    fell_ms = crashed.get((before.broker, before.incarnation))
    return fell_ms is not None and fell_ms <= first.attached_ms


def _standing_between(
    before: SpanRow, after: SpanRow, crashed: Mapping[tuple[int, int], int], subscriber: str
) -> Standing | None:
    if (before.broker, before.incarnation) in crashed:
        return Standing.EXPLAINED
    if before.filter != after.filter or is_temporary(subscriber):
        return None  # another subscription: the former was forgotten
    return Standing.SKIPPED


def _claim_tail(
    claims: Claims, target: Target, pubend: int, reached: int, last: SpanRow, crashed: Mapping[tuple[int, int], int]
) -> None:
    crash_ms = crashed.get((last.broker, last.incarnation))
    if is_temporary(target.subscriber):
        if last.attached:
            end = TICK_END if crash_ms is None else crash_ms << COUNTER_BITS
            standing = Standing.DOUBTFUL if crash_ms is None else Standing.EXPLAINED
            claims.add(target, pubend, last.filter, reached, end, standing, last.broker)
        return
    standing = Standing.DOUBTFUL if last.attached else Standing.WAITING
    claims.add(target, pubend, last.filter, reached, TICK_END, standing, last.broker)


def is_temporary(subscriber: str) -> bool:
    """Say whether a subscriber's name is one that is never used again: `~` and a digit."""
    return subscriber[:1] == TEMPORARY and subscriber[1:2].isdigit()


# --- in the workers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intervals:
    """Timestamps [low, high] that are looked at, by origin; sorted, not touching."""

    by_origin: Mapping[int, tuple[Longs, Longs]]

    def contain(self, origin: int, milliseconds: Longs) -> Flags:
        if origin not in self.by_origin:
            return np.zeros(len(milliseconds), np.bool_)
        low, high = self.by_origin[origin]
        place = np.searchsorted(low, milliseconds, "right") - 1
        return (place >= 0) & (milliseconds <= high[np.maximum(place, 0)])


class _Judge:
    """Claims as a worker holds them: by pubend, with the filters compiled once."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._by_pubend: dict[int, list[tuple[Claim, int]]] = defaultdict(list)
        self._indexes: dict[int, FilterIndex[int]] = {}
        for claim, broker in zip(claims.claims, claims.broker_of, strict=True):
            self._by_pubend[claim.pubend].append((claim, broker))

    def matches(self, pubend: int, batch: Batch) -> Iterator[tuple[Claim, int, Longs]]:
        """Yield the claims that rows fall under, each with its broker and the rows."""
        ticks = batch.ticks().astype(np.int64)
        if not len(ticks):
            return
        matched: dict[int, Any] = dict(self._index(pubend).match(batch).items())
        for claim, broker in self._by_pubend.get(pubend, ()):
            if claim.lo >= ticks[-1] or claim.hi < ticks[0] or claim.filter not in matched:
                continue
            first, after = np.searchsorted(ticks, [claim.lo, claim.hi], "right")
            rows = matched[claim.filter]
            if first > 0 or after < len(ticks):
                start, stop = np.searchsorted(rows, [first, after], "left")
                rows = rows[start:stop]
            if len(rows):
                yield claim, broker, rows.astype(np.int64)

    def _index(self, pubend: int) -> FilterIndex[int]:
        if pubend not in self._indexes:
            index: FilterIndex[int] = FilterIndex()
            for number in sorted({claim.filter for claim, _ in self._by_pubend.get(pubend, ())}):
                index.add(number, Filter(self._claims.filters[number]))
            self._indexes[pubend] = index
        return self._indexes[pubend]


def milliseconds_of(batch: Batch) -> Longs:
    ticks = batch.ids().view(ID_DTYPE)["tick"].astype(np.uint64)
    return (ticks >> np.uint64(COUNTER_BITS)).astype(np.int64)


EVERYTHING: Final = -1  # the target under which all messages are counted
COUNTS: Final = "target int, standing int, grain long, count long, low long, high long"


class CountKernel:
    """Counts claimed messages per target, standing and grain of time, on request with the digests of their ids."""

    def __init__(self, claims: Claims, *, digests: bool = False) -> None:
        self._claims, self._digests = claims, digests

    def __call__(self, rows: Numbered) -> Iterator[pa.RecordBatch]:
        judge = _Judge(self._claims)
        for pubend, batch in rows:
            yield self._count(judge, pubend, batch)

    def _count(self, judge: _Judge, pubend: int, batch: Batch) -> pa.RecordBatch:
        ticks = batch.ticks().astype(np.int64)
        cells = _Cells(milliseconds_of(batch) // GRAIN_MS, lanes(batch.ids()) if self._digests else None)
        cells.add((EVERYTHING, Standing.EXPECTED), np.flatnonzero(ticks > self._claims.seen.get(pubend, -1)))
        lost: dict[int, Flags] = {}
        at_broker: dict[int, Flags] = {}
        found = list(judge.matches(pubend, batch))
        for claim, _, which in found:
            if claim.standing == Standing.LOST:
                lost.setdefault(claim.target, np.zeros(len(batch), np.bool_))[which] = True
        for claim, broker, rows in found:
            which = rows[~lost[claim.target][rows]] if claim.target in lost and claim.standing != Standing.LOST else rows
            if claim.standing == Standing.EXPECTED and (broker, pubend_broker(pubend)) in self._claims.routing_of:
                at_broker.setdefault(broker, np.zeros(len(batch), np.bool_))[which] = True
            cells.add((claim.target, claim.standing), which)
        for broker, seen in at_broker.items():
            target = self._claims.routing_of[broker, pubend_broker(pubend)]
            fresh = seen & (ticks > self._claims.routed.get((broker, pubend), -1))
            cells.add((target, Standing.EXPECTED), np.flatnonzero(fresh))
        return cells.rows()


class _Cells:
    """Sums of the rows of a batch by key and grain: how many they are, and the two lanes of their digest."""

    def __init__(self, grain: Longs, mixed: tuple[Longs, Longs] | None) -> None:
        self._grains, self._code = np.unique(grain, return_inverse=True)
        self._mixed = mixed
        self._totals: dict[tuple[int, int], list[Longs]] = {}

    def add(self, key: tuple[int, int], which: Longs) -> None:
        code, size = self._code[which], len(self._grains)
        added = [np.bincount(code, minlength=size)]  # sums of 2^21 values of 32 bits are exact as floats
        added += [np.bincount(code, lane[which], size).astype(np.int64) for lane in self._mixed or ()]
        former = self._totals.get(key)
        self._totals[key] = added if former is None else [one + other for one, other in zip(former, added, strict=True)]

    def rows(self) -> pa.RecordBatch:
        keys = np.array(sorted(self._totals), np.int32).reshape(-1, 2)
        sums = [
            np.array([self._totals[key][lane] for key in sorted(self._totals)], np.int64).reshape(len(keys), len(self._grains))
            for lane in range(1 if self._mixed is None else 3)
        ]
        row, column = np.nonzero(sums[0])
        values = [each[row, column] for each in sums]
        values += [np.zeros(len(row), np.int64)] * (3 - len(values))
        arrays = [array(keys[row, 0]), array(keys[row, 1]), array(self._grains[column]), *map(array, values)]
        return record_batch(arrays, names=["target", "standing", "grain", "count", "low", "high"])


WANTED: Final = "id binary, pubend long, tick long, wanted array<int>"
STANDINGS: Final = 8  # a wanted entry is target * STANDINGS + standing


class WantedKernel:
    """For each message the accounts it is claimed by, each with the standing that counts; only within intervals, if given."""

    def __init__(self, claims: Claims, intervals: Intervals | None) -> None:
        self._claims, self._intervals = claims, intervals

    def __call__(self, rows: Numbered) -> Iterator[pa.RecordBatch]:
        judge = _Judge(self._claims)
        for pubend, batch in rows:
            if self._intervals is not None:
                inside = self._intervals.contain(pubend_broker(pubend), milliseconds_of(batch))
                batch = batch.filter(inside)  # noqa: PLW2901
            if len(batch):
                yield self._find_wanted(judge, pubend, batch)

    def _find_wanted(self, judge: _Judge, pubend: int, batch: Batch) -> pa.RecordBatch:
        row_parts, code_parts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        origin = pubend_broker(pubend)
        for claim, broker, rows in judge.matches(pubend, batch):
            row_parts.append(rows)
            code_parts.append(np.full(len(rows), claim.target * STANDINGS + claim.standing))
            if claim.standing == Standing.EXPECTED and (broker, origin) in self._claims.routing_of:
                row_parts.append(rows)
                code_parts.append(np.full(len(rows), self._claims.routing_of[broker, origin] * STANDINGS))
        row, code = _strongest(np.concatenate(row_parts), np.concatenate(code_parts))
        wanted = lists(row, len(batch), array(code.astype(np.int32)))
        pubends = array(np.full(len(batch), pubend, np.int64))
        ticks = array(batch.ticks().astype(np.int64))
        return record_batch([id_column(batch.ids()), pubends, ticks, wanted], names=["id", "pubend", "tick", "wanted"])


def _strongest(row: Longs, code: Longs) -> tuple[Longs, Longs]:
    """Keep of each row and target one code: that of what was told lost, else the first standing."""
    target, standing = code // STANDINGS, code % STANDINGS
    rank = np.where(standing == Standing.LOST, -1, standing)
    order = np.lexsort((rank, target, row))
    row, target, code = row[order], target[order], code[order]
    first = np.ones(len(row), np.bool_)
    first[1:] = (row[1:] != row[:-1]) | (target[1:] != target[:-1])
    return row[first], code[first]
