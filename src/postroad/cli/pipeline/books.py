"""The result of an audit as a small file, which the web console shows (`console.books` reads it)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import functions as F  # noqa: N812  # the usual name

from postroad.console.books import ROWS_MAX, BooksFile, BooksRow, NamedMessage
from postroad.spark.jobs.audit import Audit
from postroad.spark.jobs.evidence import Verdict
from postroad.types import MessageId

WORDS: Final = {Verdict.CLOSES: "closes", Verdict.DOES_NOT_CLOSE: "does not close", Verdict.CANNOT_TELL: "cannot tell"}


def write_books(path: Path, done: Audit, at_ms: int) -> None:
    """Write the file under another name first, so that a reader never sees half of it."""
    found = done.summary
    books = BooksFile(
        verdict=WORDS[found.verdict],
        told=_tell(done),
        at_ms=at_ms,
        published=found.published,
        expected=found.expected,
        delivered=found.counted,
        missing=found.missing + found.skipped,
        explained=found.explained,
        subscribers=_rows(done),
        named=_named(done),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(msgspec.json.encode(books))
    partial.replace(path)


def _tell(done: Audit) -> str:
    found = done.summary
    compared = f"{found.intervals:,} intervals were compared"
    told = [f"{compared}, {found.open_intervals:,} differ." if found.open_intervals else f"{compared} and agree."]
    told += [f"In doubt: {text}." for text in found.doubts[:20]]
    told += [f"Not checked: {text}." for text in found.unread[:20] if text not in found.doubts]
    return " ".join(told)


def _rows(done: Audit) -> list[BooksRow]:
    sums = (F.sum("expected").alias("expected"), F.sum("counted").alias("counted"))
    accounts = done.counts.filter(F.col("kind") == "subscriber").groupBy("subscriber").agg(*sums)
    lost = F.sum(F.col("verdict").isin("missing", "skipped").cast("long")).alias("missing")
    missing = {row["subscriber"]: row["missing"] for row in done.findings.groupBy("subscriber").agg(lost).collect()}
    rows = [
        BooksRow(row["subscriber"], row["expected"], row["counted"], missing.get(row["subscriber"], 0))
        for row in accounts.orderBy("subscriber").limit(10 * ROWS_MAX).collect()
    ]
    return sorted(rows, key=lambda row: (-row.missing, row.subscriber))[:ROWS_MAX]


def _named(done: Audit) -> list[NamedMessage]:
    rows = done.findings.orderBy("verdict", "subscriber", "tick").limit(ROWS_MAX).collect()
    return [
        NamedMessage(
            row["verdict"],
            str(MessageId.from_bytes(bytes(row["id"]))),
            row["subscriber"] or f"{row['kind']} history of broker {row['broker']}",
            row["reason"] or "",
        )
        for row in rows
    ]
