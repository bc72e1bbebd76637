"""`audit`: what was published against who should have got it against who did.

First the counts of each account are compared (`reconcile`). Where they differ, or everywhere on request, messages are named: each
id is searched in the histories of the accounts concerned and compared with its claims (`expectations`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import UnclaimedPubendError
from postroad.spark.jobs import evidence, reconcile
from postroad.spark.jobs.arrow import array, flat, floats, record_batch, schema_of
from postroad.spark.jobs.evidence import Scope, Verdict, describe_log_hole
from postroad.spark.jobs.expectations import (
    COUNTS,
    EVERYTHING,
    STANDINGS,
    WANTED,
    Claims,
    CountKernel,
    Standing,
    Target,
    WantedKernel,
    behind,
    claims_of,
    decided,
    lost_with_files,
    routed,
)
from postroad.spark.jobs.histories import NumberedHistory, histories_of, numbered
from postroad.spark.jobs.matching import Flags, Floats, Longs
from postroad.spark.jobs.published import Published
from postroad.spark.jobs.search import find_hits
from postroad.spark.jobs.tracks import TrackHole, Tracks
from postroad.spark.jobs.verdicts import balances
from postroad.spark.jobs.verdicts.digests import element_digests
from postroad.spark.jobs.verdicts.settled import Outcome, State, Totals, carried_rows
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.tracking.queries.answers import HoleKind
from postroad.types import COUNTER_BITS, MILLISECONDS_MAX

INTERVALS_MAX: Final = 100_000  # that do not close; beyond, everything is looked at
MISSING, UNEXPECTED, DELIVERED, TESTED = "missing", "unexpected", "delivered", "tested"
NAMED: Final = (MISSING, UNEXPECTED, "explained", "skipped")
_STANDING_NAMES: Final = {standing: standing.name.lower() for standing in Standing}

FINDINGS: Final = "id binary, pubend long, tick long, target int, verdict string, reason string, probability double, count long"


class NotContinuedError(Exception):
    """An account does not close behind an earlier audit; only one that reads everything can say why."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcome in numbers. `docs/reference/pipeline.md` explains each."""

    published: int
    expected: int
    counted: int
    intervals: int
    open_intervals: int
    missing: int
    skipped: int
    unexpected: int
    unexpected_by_chance: float
    explained: int
    lost: int
    doubtful: int
    waiting: int
    full: bool
    track_holes: tuple[TrackHole, ...]
    unread: tuple[str, ...]  # stated ranges of logs
    unexplained: int = 0  # open intervals that no finding, hole or stated range explains
    doubts: tuple[str, ...] = ()  # evidence that should be there and is not
    continued: bool = False  # only what an earlier audit left was read; the numbers are of all

    @property
    def unexpected_max(self) -> float:
        """How many unexpected deliveries chance explains, but for one case in thousands."""
        return self.unexpected_by_chance + 4 * sqrt(self.unexpected_by_chance)

    @property
    def verdict(self) -> Verdict:
        if self.missing or self.skipped or self.unexpected > self.unexpected_max or self.unexplained:
            return Verdict.DOES_NOT_CLOSE
        return Verdict.CANNOT_TELL if self.doubts else Verdict.CLOSES

    @property
    def closes(self) -> bool:
        return self.verdict is Verdict.CLOSES


@dataclass(frozen=True, slots=True)
class Audit:
    summary: Summary
    counts: DataFrame  # intervals of accounts
    hops: DataFrame  # totals per origin, broker and upstream neighbour
    findings: DataFrame  # messages with a verdict other than delivered
    outcome: Outcome  # for the audit that continues behind this one
    _kept: tuple[DataFrame, ...]

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self.outcome.tracks.close()


def audit(
    published: Published,
    tracks: Tracks,
    *,
    full: bool = False,
    tolerant: bool = False,
    scope: Scope | None = None,
    former: State | None = None,
    kept: DataFrame | None = None,
    digests: bool = False,
    by_id: bool = False,
) -> Audit:
    """Audit what is at hand. With `full` every message is looked up, also where the counts close.

    With `by_id` messages are looked up and counts are not compared, since those of `published` are not all there are.

    With `former`, what an earlier audit decided is not looked at again, and `tracks` were opened with what it knew of them; an
    account that does not close then raises `NotContinuedError`. With `kept`, counts that earlier audits kept of messages stand
    for those up to `former`, and `tracks` are all of them. With `digests`, balances can be kept of this one, and where tracks
    list ids, digests are compared as well as counts.
    """
    spark = published.spark
    scope = scope or Scope(time.time_ns() // 1_000_000)
    goes_on = former is not None and kept is None
    histories = histories_of(tracks.elements)
    if former is not None and goes_on:
        histories = numbered((*former.histories, *histories))
    claims = _claims(published, tracks)
    promised = decided(claims), routed(claims)
    still: set[Target] = set()
    if former is not None:
        still = behind(claims, former.settled() if goes_on else replace(former.settled(), waiting=()))
        published = published.behind(_unread_ticks(claims, former), former.seen)
    unknown = sorted({claim.pubend for claim in claims.claims} - published.ranges.keys())
    if not tolerant and (refused := [pubend for pubend in unknown if pubend_broker(pubend) not in scope.without]):
        raise UnclaimedPubendError(refused[0])
    counts = _count(published, claims, former if goes_on else None, still, kept, digests=digests)
    counts = counts.persist(StorageLevel.MEMORY_AND_DISK)
    carried = carried_rows(claims, former.carried) if former is not None and goes_on else []
    mixed = element_digests(tracks) if digests and not goes_on else None
    closing = reconcile.close_books(spark, claims, histories, tracks.elements, counts, carried, mixed)
    closing = (closing.limit(0) if by_id else closing).persist(StorageLevel.MEMORY_AND_DISK)
    named = reconcile.with_targets(spark, claims, closing).withColumn("closes", reconcile.closes())
    if goes_on and not evidence.unexplained(_find_open(spark, claims, closing), counts, {}).count():
        findings = spark.createDataFrame([], FINDINGS)
    else:
        findings = _findings(published, tracks, claims, histories, closing, full=full or by_id).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        findings = _certain(findings) if goes_on else findings
    summary = _summary(published, tracks, counts, named, findings, claims, unknown, full=full)
    if by_id:
        summary = _by_id(summary, counts, findings, claims)
    if former is not None and goes_on:
        summary = _with_former(summary, former, claims, carried)
    summary = _weigh(summary, published, tracks, claims, histories, closing, counts, unknown, scope, former)
    told = reconcile.with_targets(spark, claims, findings.filter(F.col("verdict").isin(*NAMED))).drop("count")
    outcome = Outcome(tracks, claims, *promised, published.ranges, counts, closing, _totals_of(summary))
    return Audit(summary, named, hops(spark, histories), told, outcome, (counts, closing, findings))


def _certain(findings: DataFrame) -> DataFrame:
    """Return what an audit that goes on can say: what is claimed and nowhere. The rest may be known of before."""
    lost = findings.filter(F.col("verdict").isin(MISSING, "skipped"))
    if lost.isEmpty():
        raise NotContinuedError("some intervals do not close")
    return lost


def _claims(published: Published, tracks: Tracks) -> Claims:
    starts = {
        (durable.subscriber, pubend): tick
        for directory in published.directories
        for durable in directory.durables
        for pubend, tick in durable.starts.items()
    }
    return claims_of(tracks, published.ranges, starts)


def _unread_ticks(claims: Claims, former: State) -> dict[int, int]:
    """Return of each pubend the tick behind which messages have to be read."""
    ticks = dict(former.seen)
    for claim in claims.claims:
        if claim.pubend in ticks:
            ticks[claim.pubend] = min(ticks[claim.pubend], claim.lo)
    return ticks


def _count(
    published: Published,
    claims: Claims,
    former: State | None,
    still: Collection[Target],
    kept: DataFrame | None,
    *,
    digests: bool,
) -> DataFrame:
    """Count claimed messages by account, standing and grain: those at hand, and what an earlier audit or several counted."""
    counts = published.map(CountKernel(claims, digests=digests), COUNTS, _attributes(claims))
    if former is not None:
        rows = [
            (claims.target(target), int(Standing.WAITING), grain, count, 0, 0)
            for target, grain, count in former.waiting
            if target in still
        ]
        counts = counts.unionByName(published.spark.createDataFrame(rows, COUNTS)) if rows else counts
    if kept is not None:
        counts = counts.unionByName(balances.numbered(kept, claims))
    sums = (F.sum(name).alias(name) for name in ("count", "low", "high"))
    return counts.groupBy("target", "standing", "grain").agg(*sums)


def _by_id(found: Summary, counts: DataFrame, findings: DataFrame, claims: Claims) -> Summary:
    """Take the numbers of deliveries from messages that were looked up."""
    own = F.col("target").isin([number for number, target in enumerate(claims.targets) if target.kind == "subscriber"])
    promised = F.col("standing").isin(int(Standing.EXPECTED), int(Standing.SKIPPED))
    expected = counts.filter(own & promised).agg(F.sum("count")).first()
    counted = findings.filter(own & (F.col("verdict") == DELIVERED)).agg(F.sum("count")).first()
    assert expected is not None
    assert counted is not None
    return replace(found, full=True, expected=int(expected[0] or 0), counted=int(counted[0] or 0) + found.unexpected)


def _with_former(found: Summary, former: State, claims: Claims, carried: Sequence[tuple[int, int, int, int, int]]) -> Summary:
    """Add what was counted before to the numbers of an audit that goes on."""
    own = [row for row in carried if claims.targets[row[0]].kind == "subscriber"]
    before = former.totals
    return replace(
        found,
        continued=True,
        published=before.published + found.published,
        expected=before.expected + found.expected - sum(row[3] for row in own),
        counted=before.counted + found.counted - sum(row[4] for row in own),
        explained=before.explained + found.explained,
        lost=before.lost + found.lost,
        unread=(*found.unread, *former.accepted),
        unexpected=before.unexpected,
        unexpected_by_chance=before.unexpected_by_chance,
    )


def _totals_of(found: Summary) -> Totals:
    return Totals(
        published=found.published,
        expected=found.expected,
        counted=found.counted,
        explained=found.explained,
        lost=found.lost,
        unexpected=found.unexpected,
        unexpected_by_chance=found.unexpected_by_chance,
    )


def _weigh(
    summary: Summary,
    published: Published,
    tracks: Tracks,
    claims: Claims,
    histories: Sequence[NumberedHistory],
    closing: DataFrame,
    counts: DataFrame,
    unknown: Sequence[int],
    scope: Scope,
    former: State | None,
) -> Summary:
    """Add what the numbers do not say: intervals that nothing explains, and evidence that is not there."""
    doubts = [*evidence.doubts(published, tracks, claims, histories, unknown, scope)]
    lost = evidence.lost_ranges(tracks)
    told = scope.without | {pubend_broker(hole.pubend) for hole in lost}
    first_ms = former.first_ms if former is not None else {}
    is_part = summary.full and not summary.intervals  # of the time: what was published before is not known
    lost_disks = [] if is_part else evidence.lost_disks(published, tracks, claims, histories, counts, first_ms)
    doubts += [str(each) for each in lost_disks if each.broker not in told]
    doubts += evidence.overdue(counts, claims, scope, tracks.persistence_ms or evidence.T_P_MS)
    left = 0
    if summary.open_intervals and not summary.continued:
        stretches = evidence.stretches_of((*published.holes, *published.absent, *lost), tracks, claims, histories)
        unread = {pubend_broker(pubend) for pubend in unknown} | scope.without
        twice = len({directory.broker for directory in published.directories}) < len(published.directories)
        for number, target in enumerate(claims.targets):
            if twice or target.origin in unread:
                stretches[number] = [(0, MILLISECONDS_MAX)]
            stretches[number] += [(0, each.begin_ms) for each in lost_disks if each.broker == target.origin]
        left = evidence.unexplained(_find_open(published.spark, claims, closing), counts, stretches).count()
    stated = (*summary.unread, *(describe_log_hole(hole) for hole in lost))
    return replace(summary, unexplained=left, doubts=tuple(doubts), unread=stated)


def _find_open(spark: SparkSession, claims: Claims, closing: DataFrame) -> DataFrame:
    """Return the intervals that do not close."""
    kinds = [(number, target.kind) for number, target in enumerate(claims.targets)]
    kind_of = F.broadcast(spark.createDataFrame(kinds, "target int, kind string"))
    return closing.join(kind_of, "target").filter(~reconcile.closes()).drop("kind")


def _attributes(claims: Claims) -> frozenset[str]:
    return frozenset(name for text in claims.filters for name in Filter(text).attributes)


# --- naming messages ------------------------------------------------------------------------------------------------------


def _findings(
    published: Published, tracks: Tracks, claims: Claims, histories: Sequence[NumberedHistory], closing: DataFrame, *, full: bool
) -> DataFrame:
    intervals, suspects = None, set(range(len(claims.targets)))
    if not full:
        bad = _find_open(published.spark, claims, closing).limit(INTERVALS_MAX + 1).collect()
        if not bad:
            return published.spark.createDataFrame([], FINDINGS)
        if len(bad) <= INTERVALS_MAX:
            intervals, suspects = reconcile.intervals_of(claims, bad), {row["target"] for row in bad}
    numbers = {target: number for number, target in enumerate(claims.targets)}
    target_of = np.full(len(histories), -1, np.int64)
    for history in histories:
        target = reconcile.target_of(history)
        if target is not None and numbers[target] in suspects:
            target_of[history.number] = numbers[target]
    searched = [history for history in histories if target_of[history.number] >= 0]
    wanted = published.map(WantedKernel(claims, intervals), WANTED, _attributes(claims))
    found = find_hits(tracks, wanted, searched, ordered=True)
    return found.mapInArrow(Verdicts(claims, target_of, suspects, _excuses(tracks, claims)), FINDINGS)


def _excuses(tracks: Tracks, claims: Claims) -> dict[int, list[TrackHole]]:
    """Return, by target, the holes in which its histories may miss what its spans claim.

    A crash is none: what a span claims was written with it. But an incarnation that dropped what it had to track says so in the
    same words, about itself.
    """
    rows = tracks.of_kind("crash").filter(F.col("number") == F.col("incarnation")).select("broker", "from_ms", "to_ms").collect()
    holes = [hole for hole in tracks.holes if hole.kind != HoleKind.CRASH]
    holes += [TrackHole(row["broker"], "dropped", row["from_ms"], row["to_ms"], "the broker could not keep up") for row in rows]
    brokers: dict[int, set[int]] = {}
    for claim, broker in zip(claims.claims, claims.broker_of, strict=True):
        brokers.setdefault(claim.target, set()).add(broker)
    for (broker, _), target in claims.routing_of.items():
        brokers.setdefault(target, set()).add(broker)
    return {target: [hole for hole in holes if hole.broker in where or hole.broker < 0] for target, where in brokers.items()}


@dataclass(frozen=True, slots=True)
class _Pairs:
    """(row, target) pairs of a batch as single numbers, sorted, with a value each."""

    key: Longs
    value: Any

    def find(self, keys: Longs) -> tuple[Flags, Longs]:
        """Say which keys are here, and where."""
        place = np.searchsorted(self.key, keys)
        inside = np.minimum(place, max(len(self.key) - 1, 0))
        there = self.key[inside] == keys if len(self.key) else np.zeros(len(keys), np.bool_)
        return there, inside


class Verdicts:
    """For `mapInArrow`: ids with what is wanted and what was found, to rows of `FINDINGS`."""

    def __init__(self, claims: Claims, target_of: Longs, suspects: set[int], excuses: Mapping[int, list[TrackHole]]) -> None:
        self._count = len(claims.targets)
        self._kinds = np.array([target.kind for target in claims.targets], "U10")
        self._target_of = target_of
        self._suspect = np.zeros(self._count, np.bool_)
        self._suspect[sorted(suspects)] = True
        self._excuses = excuses

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            has_id = batch.column("id").is_valid()
            messages = batch.filter(has_id)
            if messages.num_rows:
                yield from self._judge(messages)
            told = batch.filter(pc.invert(has_id))
            if told.num_rows:
                yield self._test(told)

    def _judge(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        wanted, standing = self._find_wanted(batch)
        hits = self._hits(batch)
        delivered, where = hits.find(wanted.key)
        row, target = np.divmod(wanted.key, self._count)
        for each in Standing:
            chosen = ~delivered & (standing == each)
            if each is Standing.EXPECTED:
                yield self._missing(batch, row[chosen], target[chosen])
            elif _STANDING_NAMES[each] in NAMED:
                yield _rows(batch, row[chosen], target[chosen], _STANDING_NAMES[each], "between spans", None)
            else:
                yield _totals(target[chosen], _STANDING_NAMES[each], np.zeros(int(chosen.sum())))
        yield _totals(target[delivered], DELIVERED, hits.value[where[delivered]])
        stranger = ~wanted.find(hits.key)[0]
        row, target = np.divmod(hits.key[stranger], self._count)
        subscribers = self._kinds[target] == "subscriber"
        yield _rows(batch, row[subscribers], target[subscribers], UNEXPECTED, "", hits.value[stranger][subscribers])

    def _find_wanted(self, batch: pa.RecordBatch) -> tuple[_Pairs, Longs]:
        codes, bounds = flat(batch.column("wanted"))
        row = np.repeat(np.arange(batch.num_rows), np.diff(bounds))
        target, standing = np.divmod(codes, STANDINGS)
        kept = self._suspect[target]
        key = row[kept] * self._count + target[kept]
        order = np.argsort(key, kind="stable")
        return _Pairs(key[order], None), standing[kept][order]

    def _hits(self, batch: pa.RecordBatch) -> _Pairs:
        histories, bounds = flat(batch.column("hits"))
        doubt = floats(batch.column("probabilities"))
        row, target = np.repeat(np.arange(batch.num_rows), np.diff(bounds)), self._target_of[histories]
        key = row * self._count + target
        order = np.lexsort((doubt, key))
        key, doubt = key[order], doubt[order]
        first = np.ones(len(key), np.bool_)
        first[1:] = key[1:] != key[:-1]
        return _Pairs(key[first], doubt[first])

    def _missing(self, batch: pa.RecordBatch, row: Longs, target: Longs) -> pa.RecordBatch:
        parts = [np.frombuffer(batch.column("id")[each].as_py(), ID_DTYPE)[0]["tick"] for each in row.tolist()]
        milliseconds = (np.array(parts, np.uint64) >> np.uint64(COUNTER_BITS)).astype(np.int64)
        reasons = np.full(len(row), "", object)
        for each in np.unique(target).tolist():
            for hole in self._excuses.get(each, ()):
                inside = (target == each) & (hole.from_ms <= milliseconds) & (milliseconds <= hole.to_ms)
                reasons[inside & (reasons == "")] = f"{hole.kind} tracks of broker {hole.broker}: {hole.reason}"
        excused = reasons != ""
        verdicts = np.where(excused, "explained", MISSING)
        return _rows(batch, row, target, verdicts, reasons, None)

    def _test(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        histories, _ = flat(batch.column("hits"))
        expected = floats(batch.column("probabilities"))
        target = self._target_of[histories]
        return _totals(target, TESTED, expected)


_FINDING_FIELDS: Final = schema_of(
    [
        *(
            pa.field("id", pa.binary()),
            pa.field("pubend", pa.int64()),
            pa.field("tick", pa.int64()),
            pa.field("target", pa.int32()),
        ),
        *(pa.field("verdict", pa.string()), pa.field("reason", pa.string())),
        *(pa.field("probability", pa.float64()), pa.field("count", pa.int64())),
    ]
)


def _rows(
    batch: pa.RecordBatch, row: Longs, target: Longs, verdict: Any, reason: Any, probability: Floats | None
) -> pa.RecordBatch:
    """Name messages, one row each."""
    chosen = array(row)
    count = len(row)
    arrays: list[Any] = [
        *(batch.column(name).take(chosen) for name in ("id", "pubend", "tick")),
        array(target.astype(np.int32)),
        array(np.broadcast_to(np.asarray(verdict, object), count).tolist(), pa.string()),
        array(np.broadcast_to(np.asarray(reason, object), count).tolist(), pa.string()),
        pa.nulls(count, pa.float64()) if probability is None else array(probability),
        array(np.ones(count, np.int64)),
    ]
    return record_batch(arrays, schema=_FINDING_FIELDS)


def _totals(target: Longs, verdict: str, probability: Floats) -> pa.RecordBatch:
    """Count messages that need no naming, per target."""
    known, code = np.unique(target, return_inverse=True)
    count = np.bincount(code, minlength=len(known))
    arrays: list[Any] = [
        *(pa.nulls(len(known), kind) for kind in (pa.binary(), pa.int64(), pa.int64())),
        array(known.astype(np.int32)),
        array([verdict] * len(known), pa.string()),
        pa.nulls(len(known), pa.string()),
        array(np.bincount(code, probability, len(known))),
        array(count),
    ]
    return record_batch(arrays, schema=_FINDING_FIELDS)


# --- the outcome ----------------------------------------------------------------------------------------------------------


def _summary(
    published: Published,
    tracks: Tracks,
    counts: DataFrame,
    named: DataFrame,
    findings: DataFrame,
    claims: Claims,
    unknown: Sequence[int],
    *,
    full: bool,
) -> Summary:
    subscribers = [number for number, target in enumerate(claims.targets) if target.kind == "subscriber"]
    of_subscribers = F.col("target").isin(subscribers)
    standing = {
        Standing(row["standing"]): int(row["count"])
        for row in counts.filter(of_subscribers).groupBy("standing").agg(F.sum("count").alias("count")).collect()
    }
    verdict = {
        row["verdict"]: (int(row["count"]), float(row["probability"] or 0.0))
        for row in findings.filter(of_subscribers | F.col("verdict").isin(MISSING, "explained"))
        .groupBy("verdict")
        .agg(F.sum("count").alias("count"), F.sum("probability").alias("probability"))
        .collect()
    }
    kept = named.filter(F.col("kind") == "subscriber").agg(F.sum("expected"), F.sum("counted")).first()
    total = named.agg(F.count("*"), F.sum((~F.col("closes")).cast("long"))).first()
    read = counts.filter(F.col("target") == EVERYTHING).agg(F.sum("count")).first()
    assert kept is not None
    assert total is not None
    assert read is not None
    none = (0, 0.0)
    return Summary(
        published=int(read[0] or 0),
        expected=int(kept[0] or 0),
        counted=int(kept[1] or 0),
        intervals=int(total[0] or 0),
        open_intervals=int(total[1] or 0),
        missing=verdict.get(MISSING, none)[0],
        skipped=verdict.get("skipped", none)[0],
        unexpected=verdict.get(UNEXPECTED, none)[0],
        unexpected_by_chance=max(0.0, verdict.get(TESTED, none)[1] - verdict.get(DELIVERED, none)[1]),
        explained=standing.get(Standing.EXPLAINED, 0) + _count_excused(findings),
        lost=standing.get(Standing.LOST, 0),
        doubtful=standing.get(Standing.DOUBTFUL, 0),
        waiting=standing.get(Standing.WAITING, 0),
        full=full,
        track_holes=tracks.holes,
        unread=(*_unread(published, unknown), *_list_lost_with_files(tracks), *tracks.unchained),
    )


def _count_excused(findings: DataFrame) -> int:
    """Count messages that a span claims and that a hole in the tracks explains."""
    return findings.filter((F.col("verdict") == "explained") & (F.col("reason") != "between spans")).count()


def _unread(published: Published, unknown: Sequence[int]) -> Iterator[str]:
    for hole in (*published.holes, *published.absent):
        yield describe_log_hole(hole)
    for pubend in unknown:
        yield f"pubend {pubend:x}: its log was not given, so its messages were not checked"


def _list_lost_with_files(tracks: Tracks) -> Iterator[str]:
    for pubend, lo, hi in lost_with_files(tracks):
        yield f"pubend {pubend:x}, ticks ({lo}, {hi}]: lost with former files of its broker"


def hops(spark: SparkSession, histories: Sequence[NumberedHistory]) -> DataFrame:
    """Return totals per origin, broker and upstream neighbour: what was published, routed, forwarded and delivered there."""
    rows: dict[tuple[int, int, int], dict[str, int]] = {}
    column = {"publisher": "published", "routing": "routed", "neighbour": "forwarded", "subscriber": "delivered"}
    for history in histories:
        upstream = history.peer if history.kind == "routing" else 0
        row = rows.setdefault((history.origin, history.broker, upstream), {})
        for name, added in ((column[history.kind], history.count), ("bytes", history.size), ("elements", history.elements)):
            row[name] = row.get(name, 0) + added
    names = ("published", "routed", "forwarded", "delivered", "elements", "bytes")
    values = [(*key, *(row.get(name, 0) for name in names)) for key, row in sorted(rows.items())]
    schema = "origin long, broker long, upstream long, " + ", ".join(f"{name} long" for name in names)
    return spark.createDataFrame(values, schema)
