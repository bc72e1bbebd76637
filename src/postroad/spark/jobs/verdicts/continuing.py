"""An audit that continues behind the last one, or reads everything where that is not possible.

1. The newest verdict that closes is the one to continue. Files that it read and that are no longer what they were are a reason
   not to; so are accounts that do not close. Then everything is read, so what is said of damage is what an audit without a table
   says.
2. What logs have released since is taken from the balances of earlier audits, and compared with all the tracks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.errors import PostroadError, VerdictTableError
from postroad.spark.jobs.audit import Audit, NotContinuedError, audit
from postroad.spark.jobs.evidence import Scope
from postroad.spark.jobs.message_table import open_lake_rows
from postroad.spark.jobs.published import Published, open_logs
from postroad.spark.jobs.tracks import OnDamage, open_tracks
from postroad.spark.jobs.verdicts import past
from postroad.spark.jobs.verdicts.settled import State, state_after
from postroad.spark.jobs.verdicts.table import CONTINUED, FILES, KEPT, NAMED_MAX, AuditRecord, VerdictTable, record_of
from postroad.types import MessageId

FILES_NAMED_MAX: Final = 3  # in a reason


@dataclass(frozen=True, slots=True)
class Wish:
    """What to audit, and how.

    `anew` reads everything, although an earlier audit could be continued. `accept` lets later audits continue behind this one,
    even if messages are missing.
    """

    sources: Sequence[str]
    lake: str | None = None
    on_damage: OnDamage = "fail"
    full: bool = False
    anew: bool = False
    accept: bool = False
    window: tuple[int, int] | None = None  # only messages that were published in it, each looked up

    def published(self, spark: SparkSession) -> Published:
        if self.lake is not None:
            return open_lake_rows(spark, self.lake, self.sources)
        return open_logs(spark, self.sources, tolerant=self.on_damage == "skip")


@dataclass(frozen=True, slots=True)
class Recorded:
    """An audit and its verdict. `state` is what the audit handed on that it continued, or whose messages it took as kept."""

    audit: Audit
    record: AuditRecord
    state: State | None
    identities: past.Identities


def audit_behind(spark: SparkSession, table: VerdictTable, wish: Wish, scope: Scope) -> Recorded:
    """Audit what is new since the last verdict that can be continued. The table stays as it is until `keep`."""
    last = table.last()
    base = table.base(scope, wish.lake)
    former, reason = None, "it is the first" if last is None else "no earlier verdict closes or was accepted"
    if base is not None:
        try:
            former = table.state(base)
        except VerdictTableError as error:
            reason = str(error)
    # Before anything is read: what changes while it is read differs from this the next time.
    identities = past.look(spark, wish.sources, wish.lake, None)
    done, kept = None, None
    if former is not None and wish.anew:
        reason = "it was asked to read everything"
    elif former is not None:
        done, reason = _continue(spark, wish, scope, former, identities)
    evidence = CONTINUED
    if done is None:
        kept = _kept(spark, table, wish, base, former)
        former = former if kept is not None else None
        evidence = FILES if kept is None else KEPT
        done = read_everything(spark, wish, scope, former, kept, digests=True)
    record = record_of(
        done.summary,
        scope,
        number=last.number + 1 if last is not None else 1,
        evidence=evidence,
        behind=base if former is not None else None,
        reason=reason,
        ranges=dict(done.outcome.ranges),
        lake=wish.lake,
        named=named_missing(done),
        accept=wish.accept,
    )
    return Recorded(done, record, former, identities)


def keep(table: VerdictTable, wish: Wish, made: Recorded) -> None:
    """Write a verdict into the table, with what the next audit needs to continue behind it."""
    record, state = made.record, None
    if record.is_base:
        goes_on = record.evidence == CONTINUED
        # Closed segments are looked at now: one that is closed only since was read while it was open.
        segments = past.look(table.spark, wish.sources, wish.lake, wish.published(table.spark))
        state = state_after(made.audit.outcome, made.state if goes_on else None, {**segments, **made.identities})
        if made.state is not None and not goes_on:
            state = _with_reached(state, made.state)
        if record.accepted:
            line = f"{record.missing + record.skipped:,} messages were missing in audit {record.number}, which was accepted"
            state = msgspec.structs.replace(state, accepted=(*state.accepted, line))
    table.write(record, made.audit, state, made.state if record.evidence == CONTINUED else None)


def _continue(
    spark: SparkSession, wish: Wish, scope: Scope, former: State, identities: past.Identities
) -> tuple[Audit | None, str]:
    """Look only at what is new; say why that does not do."""
    changed = past.changed_files(former.identities, identities)
    if changed:
        return None, f"changed since it was read: {_some(changed)}"
    try:
        tracks = open_tracks(spark, wish.sources, on_damage=wish.on_damage, trackless=True, known=former.known_tracks())
        published = wish.published(spark)
        now = {**identities, **past.look(spark, wish.sources, wish.lake, published)}
        changed = past.changed_files(former.identities, now) or past.missing_files(former.identities, now, tracks, published)
        if changed:
            return None, f"changed or missing since it was read: {_some(changed)}"
        return audit(published, tracks, tolerant=wish.on_damage == "skip", scope=scope, former=former, digests=True), ""
    except (NotContinuedError, PostroadError) as error:
        return None, str(error)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - FILES_NAMED_MAX
    return ", ".join(paths[:FILES_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _kept(
    spark: SparkSession, table: VerdictTable, wish: Wish, base: AuditRecord | None, former: State | None
) -> DataFrame | None:
    """Return the balances that stand for messages which were checked and whose logs are gone; None if all are at hand."""
    if base is None or former is None:
        return None
    gone = [hole for hole in wish.published(spark).absent if hole.known and hole.lo < former.seen.get(hole.pubend, -1)]
    return table.balances(base) if gone else None


def read_everything(
    spark: SparkSession,
    wish: Wish,
    scope: Scope,
    former: State | None = None,
    kept: DataFrame | None = None,
    *,
    digests: bool = False,
) -> Audit:
    """Audit all that is at hand; with `kept`, what earlier audits kept stands for messages up to `former`."""
    # Tracks first: then a running broker's logs are ahead of them, which is a doubt, and never behind.
    tracks = open_tracks(spark, wish.sources, on_damage=wish.on_damage, trackless=True)
    published = wish.published(spark)
    tolerant = wish.on_damage == "skip"
    if wish.window is not None:
        return audit(published.within(*wish.window), tracks, tolerant=tolerant, scope=scope, by_id=True)
    return audit(published, tracks, full=wish.full, tolerant=tolerant, scope=scope, former=former, kept=kept, digests=digests)


def named_missing(done: Audit) -> list[str]:
    """Name what is missing, each with the account that misses it."""
    missing = done.findings.filter(F.col("verdict").isin("missing", "skipped"))
    return [describe_finding(row) for row in missing.orderBy("tick", "subscriber").limit(NAMED_MAX).collect()]


def describe_finding(row: Row) -> str:
    who = row["subscriber"] or f"{row['kind']} history of broker {row['broker']}"
    told = f"{row['verdict']}: {MessageId.from_bytes(bytes(row['id']))}, {who}"
    return told + (f" ({row['reason']})" if row["reason"] else "")


def _with_reached(state: State, former: State) -> State:
    """Keep what was reached where nothing new tells of it: its messages are in the balances."""
    reached = {(target, pubend): tick for target, pubend, tick in former.reached}
    for target, pubend, tick in state.reached:
        reached[target, pubend] = max(tick, reached.get((target, pubend), -1))
    seen = {pubend: max(tick, former.seen.get(pubend, -1)) for pubend, tick in {**former.seen, **state.seen}.items()}
    listed = tuple((target, pubend, tick) for (target, pubend), tick in sorted(reached.items()))
    return msgspec.structs.replace(state, reached=listed, seen=seen)
