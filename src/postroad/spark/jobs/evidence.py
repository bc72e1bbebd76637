"""What an audit may conclude from the evidence at hand: three verdicts, stated ranges, and what is in doubt.

A *stated range* is time that could not be compared, for a reason that is on record: a released log, tracks that were dropped, a
crash, damage that the caller accepted. It explains accounts that do not close in it. A *doubt* is evidence that should be there
and is not: the books may close without it, but nobody can tell. `docs/howto/audit.md` has the table of decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.core.protocol.packets import pubend_broker
from postroad.spark.jobs.arrow import array, integers
from postroad.spark.jobs.directories import DataDirectory, DurableName
from postroad.spark.jobs.expectations import GRAIN_MS, Claims, Standing
from postroad.spark.jobs.histories import NumberedHistory
from postroad.spark.jobs.published import LogHole, Published
from postroad.spark.jobs.tracks import LATE_MS, Tracks
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.tap.recorder import QUIET_MS
from postroad.types import COUNTER_BITS, MILLISECONDS_MAX

T_P_MS: Final = TrackingSettings().persistence_ms  # of brokers that do not say
MARGIN_MS: Final = 30_000  # beyond T_p: for the disk, a busy machine, a slow subscriber
NAMED_MAX: Final = 10  # of a list in one line

Stretches: TypeAlias = list[tuple[int, int]]  # [from_ms, to_ms]


class Verdict(IntEnum):
    """What an audit ends with; the numbers are exit codes."""

    CLOSES = 0
    DOES_NOT_CLOSE = 1
    CANNOT_TELL = 3


@dataclass(frozen=True, slots=True)
class Scope:
    """What an audit was told: its clock, and the brokers that it has to do without."""

    now_ms: int
    without: frozenset[int] = frozenset()


def describe_log_hole(hole: LogHole) -> str:
    return f"pubend {hole.pubend:x}, {_period(hole.lo, hole.hi)}, ticks ({hole.lo}, {hole.hi}]: {hole.reason}"


def _period(lo: int, hi: int) -> str:
    since, until = (tick >> COUNTER_BITS for tick in (lo, hi))
    return f"from {moment_text(since)} to {moment_text(until)}" if since else f"up to {moment_text(until)}"


def moment_text(milliseconds: int) -> str:
    """Return a time as people read it."""
    if not 0 <= milliseconds < MILLISECONDS_MAX // 2:
        return "the end"
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


# --- doubts ---------------------------------------------------------------------------------------------------------------


def doubts(
    published: Published,
    tracks: Tracks,
    claims: Claims,
    histories: Sequence[NumberedHistory],
    unknown: Collection[int],
    scope: Scope,
) -> Iterator[str]:
    """Yield what should be at hand and is not."""
    for hole in published.absent:
        if not hole.known and pubend_broker(hole.pubend) not in scope.without:
            yield describe_log_hole(hole)
    for pubend in unknown:
        if pubend_broker(pubend) not in scope.without:
            yield f"pubend {pubend:x}: its log was not given, so its messages were not checked"
    yield from _brokers_without_tracks(published, tracks, claims, histories, scope)
    yield from _directory_doubts(published.directories, tracks, scope)
    yield from tracks.doubts


def _brokers_without_tracks(
    published: Published, tracks: Tracks, claims: Claims, histories: Sequence[NumberedHistory], scope: Scope
) -> Iterator[str]:
    named: dict[int, str] = {}
    rows = tracks.of_kind("links").select("broker", F.explode("neighbours").alias("neighbour")).distinct().collect()
    for row in sorted(rows):
        named.setdefault(row["neighbour"], f"broker {row['broker']} had a link to it")
    for history in histories:
        named.setdefault(history.origin, f"broker {history.broker} has messages of it")
        if history.kind in {"routing", "neighbour"}:
            named.setdefault(history.peer, f"broker {history.broker} exchanged messages with it")
    for pubend in sorted({claim.pubend for claim in claims.claims} | published.ranges.keys()):
        named.setdefault(pubend_broker(pubend), f"it hosts pubend {pubend:x}")
    for directory in published.directories:
        named.setdefault(directory.broker, f"{directory.path} is its data directory")
    for broker, why in sorted(named.items()):
        if broker not in tracks.brokers and broker not in scope.without:
            yield f"broker {broker} has no tracks here, though {why}"


def _directory_doubts(directories: Sequence[DataDirectory], tracks: Tracks, scope: Scope) -> Iterator[str]:
    seen: dict[int, DataDirectory] = {}
    for directory in directories:
        if directory.broker in scope.without:
            continue
        if directory.broker in seen:
            yield f"{directory.path} and {seen[directory.broker].path} are both data directories of broker {directory.broker}"
        seen.setdefault(directory.broker, directory)
        if directory.problem:
            yield f"the durable subscriptions of broker {directory.broker} are not known: {directory.problem}"
    durables = [(directory.broker, each) for directory in seen.values() for each in directory.durables]
    if not durables:
        return
    reached: dict[tuple[str, int], int] = {}
    rows = tracks.of_kind("span").groupBy("subscriber", "pubend").agg(F.max("to_tick").alias("tick")).collect()
    for row in rows:
        reached[row["subscriber"], row["pubend"]] = row["tick"]
    names = {subscriber for subscriber, _ in reached}
    for broker, durable in durables:
        yield from _durable_doubts(broker, durable, names, reached, tracks, scope)


def _durable_doubts(
    broker: int,
    durable: DurableName,
    names: set[str],
    reached: Mapping[tuple[str, int], int],
    tracks: Tracks,
    scope: Scope,
) -> Iterator[str]:
    """Hold what a broker's metadata say of a durable subscription against the tracks. Where nothing comes, spans are rare."""
    cursors = {pubend: tick for pubend, tick in durable.cursors.items() if pubend_broker(pubend) not in scope.without}
    if durable.subscriber not in names:
        if is_overdue(max(cursors.values(), default=0) >> COUNTER_BITS, scope.now_ms):
            yield f"durable subscription {durable.subscriber!r} of broker {broker} is not in any tracks"
        return
    for pubend, tick in sorted(cursors.items()):
        told, at_ms = reached.get((durable.subscriber, pubend)), tick >> COUNTER_BITS
        if told is None or tick <= told or any(hole.from_ms <= at_ms <= hole.to_ms for hole in tracks.holes):
            continue
        if is_overdue(at_ms, scope.now_ms, QUIET_MS + (tracks.persistence_ms or T_P_MS)):
            yield (
                f"durable subscription {durable.subscriber!r} of broker {broker} has acknowledged pubend {pubend:x} up to "
                f"{moment_text(at_ms)}, but its tracks end at {moment_text(told >> COUNTER_BITS)}"
            )


class LostDisk(NamedTuple):
    """A broker whose own files begin later than what others have of its messages."""

    broker: int
    from_ms: int
    begin_ms: int

    def __str__(self) -> str:
        return (
            f"broker {self.broker} returned without its files: others have messages of it from {moment_text(self.from_ms)} on, "
            f"its own files begin at {moment_text(self.begin_ms)}; what it published before, and no other broker has, is lost"
        )


def lost_disks(
    published: Published,
    tracks: Tracks,
    claims: Claims,
    histories: Sequence[NumberedHistory],
    counts: DataFrame,
    first_ms: Mapping[int, int] = MappingProxyType({}),
) -> list[LostDisk]:
    """Find brokers that returned with empty disks: neither their logs nor their tracks know what others have of them.

    `first_ms` says when brokers published first, as far as an earlier audit saw it.
    """
    begins: dict[int, int] = {}
    for file in tracks.files:
        if not file.previous and not file.copies and file.written_ms:
            begins[file.broker] = min(begins.get(file.broker, file.written_ms), file.written_ms)
    seen: dict[int, int] = {}
    for history in histories:
        if history.broker != history.origin and history.from_ms:
            seen[history.origin] = min(seen.get(history.origin, history.from_ms), history.from_ms)
    late = {broker for broker, begin_ms in begins.items() if broker in seen and seen[broker] < begin_ms - LATE_MS}
    late -= {pubend_broker(hole.pubend) for hole in published.absent}
    if not late:
        return []
    logged = {**first_published(claims, counts), **first_ms}
    return [
        LostDisk(broker, seen[broker], begins[broker])
        for broker in sorted(late)
        if logged.get(broker, begins[broker]) > seen[broker] + LATE_MS
    ]


def first_published(claims: Claims, counts: DataFrame) -> dict[int, int]:
    """Return the time of the first message in the logs of each broker."""
    own = {number: target.origin for number, target in enumerate(claims.targets) if target.kind == "publisher"}
    rows = counts.filter(F.col("target").isin(*own)).groupBy("target").agg(F.min("grain").alias("grain")).collect()
    return {own[row["target"]]: row["grain"] * GRAIN_MS for row in rows}


def is_overdue(milliseconds: int, now_ms: int, persistence_ms: int = T_P_MS) -> bool:
    """Say whether tracks should tell of this moment by now. One that is far in the future says nothing: a clock went back."""
    return not -MARGIN_MS <= now_ms - milliseconds <= persistence_ms + MARGIN_MS


def overdue(counts: DataFrame, claims: Claims, scope: Scope, persistence_ms: int) -> list[str]:
    """Say of which accounts messages are in doubt for longer than T_p and a margin."""
    oldest = F.min("grain").alias("oldest")
    since = F.lit((scope.now_ms - persistence_ms - MARGIN_MS) // GRAIN_MS)
    late = (F.col("grain") < since) | (F.col("grain") > F.lit((scope.now_ms + MARGIN_MS) // GRAIN_MS))
    doubtful = counts.filter((F.col("standing") == int(Standing.DOUBTFUL)) & late)
    rows = doubtful.groupBy("target").agg(F.sum("count").alias("count"), oldest).orderBy("oldest").collect()
    told = []
    for row in rows:
        target = claims.targets[row["target"]]
        if target.origin in scope.without:
            continue
        who = f"the publisher history of broker {target.origin}"
        if target.kind == "subscriber":
            who = f"subscriber {target.subscriber} about broker {target.origin}"
        since_text = moment_text(row["oldest"] * GRAIN_MS)
        told.append(f"{row['count']:,} messages since {since_text} are not in tracks yet: {who}")
    if len(told) > NAMED_MAX:
        told[NAMED_MAX:] = [f"and {len(told) - NAMED_MAX:,} more accounts with messages that are not in tracks yet"]
    return told


# --- what explains an interval --------------------------------------------------------------------------------------------


def lost_ranges(tracks: Tracks) -> list[LogHole]:
    """Return what brokers say that they lost of their own pubends, when they came back without their files."""
    rows = tracks.of_kind("lost").filter(F.col("subscriber") == "").select("pubend", "from_tick", "to_tick").distinct().collect()
    reason = "lost with former files of its broker; subscribers that did not receive it got a gap"
    return [LogHole(row["pubend"], row["from_tick"], row["to_tick"], reason) for row in sorted(rows)]


def stretches_of(
    holes: Iterable[LogHole], tracks: Tracks, claims: Claims, histories: Sequence[NumberedHistory]
) -> dict[int, Stretches]:
    """Return by target the stretches of time in which its books cannot be expected to close, and it is known why."""
    by_origin: dict[int, Stretches] = defaultdict(list)
    for hole in holes:
        since, until = (tick >> COUNTER_BITS for tick in (hole.lo, hole.hi))
        by_origin[pubend_broker(hole.pubend)].append((since - LATE_MS if since else 0, until + LATE_MS))
    brokers: dict[int, set[int]] = defaultdict(set)
    for claim, broker in zip(claims.claims, claims.broker_of, strict=True):
        brokers[claim.target].add(broker)
    for (broker, _), target in claims.routing_of.items():
        brokers[target].add(broker)
    of_history = {(history.kind, history.origin, history.subscriber, history.broker) for history in histories}
    for kind, origin, subscriber, broker in of_history:
        for number in claims.numbers_of(kind, origin, subscriber, broker):
            brokers[number].add(broker)
    return {
        number: by_origin.get(target.origin, [])
        + [(hole.from_ms, hole.to_ms) for hole in tracks.holes if hole.broker in brokers[number] or hole.broker < 0]
        for number, target in enumerate(claims.targets)
    }


class Unexplained:
    """For `mapInArrow`: rows of `books.BOOKS` that lie in no stated range."""

    def __init__(self, stretches: Mapping[int, Stretches]) -> None:
        self._stretches = {target: np.array(sorted(found), np.int64).reshape(-1, 2) for target, found in stretches.items()}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            target, low, high = (integers(batch.column(name)) for name in ("target", "from_ms", "to_ms"))
            keep = [not self._explain(*row) for row in zip(target.tolist(), low.tolist(), high.tolist(), strict=True)]
            yield batch.filter(array(np.array(keep, np.bool_)))

    def _explain(self, target: int, low: int, high: int) -> bool:
        found: Any = self._stretches.get(target)
        return found is not None and bool(((found[:, 0] <= high) & (low <= found[:, 1])).any())


SOFT: Final = (Standing.LOST, Standing.EXPLAINED, Standing.DOUBTFUL, Standing.WAITING)


def unexplained(opened: DataFrame, counts: DataFrame, stretches: Mapping[int, Stretches]) -> DataFrame:
    """Return the open intervals that nothing explains: no stated range, and no messages that may or may not have been sent.

    Such messages explain entries of histories that no span claims, as many as they are.
    """
    left = opened.mapInArrow(Unexplained(stretches), opened.schema)
    soft = counts.filter(F.col("standing").isin(*(int(each) for each in SOFT)))
    soft = soft.select(F.col("target").alias("of"), (F.col("grain") * GRAIN_MS).alias("at_ms"), F.col("count").alias("soft"))
    inside = (F.col("of") == F.col("target")) & F.col("at_ms").between(F.col("from_ms"), F.col("to_ms"))
    summed = left.join(soft, inside, "left").groupBy(*left.columns).agg(F.coalesce(F.sum("soft"), F.lit(0)).alias("soft"))
    surplus = F.col("counted") - F.col("expected")
    swapped = (surplus == 0) & (F.col("soft") == 0)  # it is open although the counts agree: digests differ
    return summed.filter((surplus < 0) | (surplus > F.col("soft")) | swapped).drop("soft")
