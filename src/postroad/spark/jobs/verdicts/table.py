"""The table of verdicts: a directory, local or at a URI, that says what was audited up to when, and with which result.

    verdicts/00000012.json      what audit 12 found: one object, for people and programs
    states/00000012.msgpack     what it hands to the audit that continues behind it
    accounts/00000012.parquet   up to when each account was checked that it checked further than before
    balances/00000012/*.parquet what was promised in the messages that it looked at

The object in `verdicts` is written last and appears whole, so an audit that was interrupted has left nothing that anybody reads.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from postroad.errors import VerdictTableError
from postroad.spark.jobs.arrow import schema_of
from postroad.spark.jobs.audit import Audit, Summary
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.expectations import Target
from postroad.spark.jobs.filesystems import Place, place
from postroad.spark.jobs.verdicts import balances
from postroad.spark.jobs.verdicts.settled import VERSION, State
from postroad.types import COUNTER_BITS

LISTED: Final = "verdicts/*.json"
NAMED_MAX: Final = 100
CLOSED: Final = "closes"
FILES, CONTINUED, KEPT = "files", "continued", "kept"  # what an audit was made of


class AuditRecord(msgspec.Struct, frozen=True):
    """What one audit found. `until_ms` is up to when messages were looked at, by the ticks of each pubend (hexadecimal)."""

    version: int
    number: int
    at_ms: int
    evidence: str  # `files`: everything was read; `continued`: what was new; `kept`: files, and balances for what logs released
    behind: int  # the audit that this one continued, 0 for none
    reason: str  # why it did not continue behind an earlier one
    verdict: str
    until_ms: dict[str, int]
    published: int
    expected: int
    counted: int
    missing: int
    skipped: int
    unexpected: int
    explained: int
    lost: int
    doubtful: int
    waiting: int
    unexplained: int
    doubts: tuple[str, ...]
    stated: tuple[str, ...]
    without: tuple[int, ...]
    lake: str
    named: tuple[str, ...] = ()  # messages that are missing, at most `NAMED_MAX`: id, account
    accepted: bool = False  # what is missing is known: later audits continue behind this one
    balances: tuple[int, ...] = ()  # numbers of the audits whose balances together cover all messages

    @property
    def is_base(self) -> bool:
        """Whether audits may continue behind it."""
        return self.verdict == CLOSED or self.accepted


@dataclass(frozen=True, slots=True)
class VerdictTable:
    place: Place
    spark: SparkSession

    @classmethod
    def open(cls, spark: SparkSession, root: str) -> VerdictTable:
        return cls(place(spark, root), spark)

    def records(self) -> list[AuditRecord]:
        """Return all verdicts, oldest first."""
        return [self._read(each.path.rpartition("/")[2]) for each in self.place.listed(LISTED)]

    def last(self) -> AuditRecord | None:
        listed = self.place.listed(LISTED)
        return self._read(listed[-1].path.rpartition("/")[2]) if listed else None

    def base(self, scope: Scope, lake: str | None) -> AuditRecord | None:
        """Return the newest verdict that can be continued: over the same brokers, with messages from the same source."""
        for each in reversed(self.place.listed(LISTED)):
            found = self._read(each.path.rpartition("/")[2])
            if found.is_base and found.without == tuple(sorted(scope.without)) and found.lake == (lake or ""):
                return found
        return None

    def _read(self, name: str) -> AuditRecord:
        try:
            found = msgspec.json.decode(self.place.read(f"verdicts/{name}"), type=AuditRecord)
        except msgspec.MsgspecError as error:
            raise VerdictTableError(self.place.root, f"verdicts/{name} is invalid ({error})") from error
        if found.version != VERSION:
            raise VerdictTableError(self.place.root, f"verdicts/{name} has version {found.version}, this release reads {VERSION}")
        return found

    def state(self, record: AuditRecord) -> State:
        name = f"states/{record.number:08d}.msgpack"
        try:
            return msgspec.msgpack.decode(self.place.read(name), type=State)
        except (msgspec.MsgspecError, FileNotFoundError) as error:
            raise VerdictTableError(self.place.root, f"{name} cannot be read ({error})") from error

    def balances(self, record: AuditRecord) -> DataFrame:
        """Return what the audits up to this one kept of what was promised."""
        return self.spark.read.schema(balances.BALANCES).parquet(*(self._balances(number) for number in record.balances))

    def _balances(self, number: int) -> str:
        return f"{self.place.root}/balances/{number:08d}"

    def write(self, record: AuditRecord, done: Audit, state: State | None, former: State | None) -> None:
        """Add a verdict; one that closes comes with its state and balances."""
        number = record.number
        if state is not None:
            outcome = done.outcome
            balances.named(outcome.counts, outcome.claims).write.mode("overwrite").parquet(self._balances(number))
            for name in (f"states/{number:08d}.msgpack", f"accounts/{number:08d}.parquet"):
                self.place.remove(name)  # of an audit that was interrupted
            self.place.create(f"states/{number:08d}.msgpack", msgspec.msgpack.encode(state))
            self.place.create(f"accounts/{number:08d}.parquet", _accounts(record, state, former))
        try:
            self.place.create(f"verdicts/{number:08d}.json", msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        except FileExistsError as error:
            raise VerdictTableError(self.place.root, f"another audit wrote verdict {number} meanwhile") from error
        for each in self.place.listed("states/*.msgpack"):  # the new one and the one before it are enough
            name = each.path.rpartition("/")[2]
            if state is not None and name < f"{record.behind or number:08d}":
                self.place.remove(f"states/{name}")


def record_of(
    found: Summary,
    scope: Scope,
    *,
    number: int,
    evidence: str,
    behind: AuditRecord | None,
    reason: str,
    ranges: dict[int, tuple[int, int]],
    lake: str | None,
    named: Sequence[str] = (),
    accept: bool = False,
) -> AuditRecord:
    verdicts = {Verdict.CLOSES: CLOSED, Verdict.DOES_NOT_CLOSE: "does not close", Verdict.CANNOT_TELL: "cannot tell"}
    names = ("published", "expected", "counted", "missing", "skipped", "unexpected", "explained", "lost", "doubtful", "waiting")
    return AuditRecord(
        version=VERSION,
        number=number,
        at_ms=scope.now_ms,
        evidence=evidence,
        behind=behind.number if behind is not None else 0,
        reason=reason,
        verdict=verdicts[found.verdict],
        until_ms={f"{pubend:x}": last >> COUNTER_BITS for pubend, (_, last) in sorted(ranges.items())},
        **{name: getattr(found, name) for name in names},
        unexplained=found.unexplained,
        doubts=found.doubts,
        stated=found.unread,
        without=tuple(sorted(scope.without)),
        lake=lake or "",
        named=tuple(named),
        accepted=accept and found.verdict is Verdict.DOES_NOT_CLOSE,
        balances=(*(behind.balances if behind is not None and evidence == CONTINUED else ()), number),
    )


_ACCOUNTS: Final = schema_of(
    [
        *(pa.field("audit", pa.int64()), pa.field("kind", pa.string()), pa.field("origin", pa.int64())),
        *(pa.field("broker", pa.int64()), pa.field("subscriber", pa.string()), pa.field("pubend", pa.string())),
        *(pa.field("checked_until", pa.timestamp("ms", tz="UTC")), pa.field("evidence", pa.string())),
    ]
)


def _accounts(record: AuditRecord, state: State, former: State | None) -> bytes:
    """Return a row for each account and pubend that was checked further than before, as a Parquet file."""
    before: dict[tuple[Target, int], int] = {}
    if former is not None and record.evidence == CONTINUED:
        before = {(target, pubend): tick for target, pubend, tick in former.reached}
    rows: list[dict[str, Any]] = [
        {
            "audit": record.number,
            **target._asdict(),
            "pubend": f"{pubend:x}",
            "checked_until": max(tick, 0) >> COUNTER_BITS,
            "evidence": record.evidence,
        }
        for target, pubend, tick in state.reached
        if tick > before.get((target, pubend), -2)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=_ACCOUNTS), sink)
    return sink.getvalue()
