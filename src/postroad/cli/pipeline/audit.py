"""`postroad pipeline audit`."""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import click
from rich.console import Console
from rich.table import Table

from postroad.cli.pipeline.books import write_books
from postroad.cli.pipeline.options import (
    SHOWN_MAX,
    checked,
    cluster_options,
    data_option,
    lake_option,
    on_damage_option,
    out_option,
    published_in,
)
from postroad.errors import PostroadError
from postroad.spark.jobs import audit as auditing
from postroad.spark.jobs.audit import Audit
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.published import log_paths
from postroad.spark.jobs.running import Cluster, running, write
from postroad.spark.jobs.tracks import open_tracks
from postroad.tracking.queries.answers import HoleKind
from postroad.types import MessageId

log = logging.getLogger("postroad.pipeline")

ERROR_EXIT: Final = 4
_VERDICTS: Final = {
    Verdict.CLOSES: "The books close.",
    Verdict.DOES_NOT_CLOSE: "The books do not close.",
    Verdict.CANNOT_TELL: "It cannot be decided whether the books close: evidence is missing.",
}
_STYLES: Final = {Verdict.CLOSES: "bold green", Verdict.DOES_NOT_CLOSE: "bold red", Verdict.CANNOT_TELL: "bold yellow"}


@click.command()
@data_option
@lake_option
@click.option("--full", is_flag=True, help="Check every message, also where the counts agree.")
@click.option(
    "--without",
    type=int,
    multiple=True,
    metavar="BROKER",
    help="Do not use the files of this broker, and state that in the result.",
)
@out_option
@click.option(
    "--books",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the result to this file for the web console (`books` under `[console]`).",
)
@on_damage_option
@cluster_options
def audit(
    data: tuple[str, ...],
    lake: str | None,
    full: bool,
    without: tuple[int, ...],
    out: str | None,
    form: Literal["parquet", "csv", "json"],
    books: Path | None,
    on_damage: Literal["fail", "skip"],
    cluster: Cluster,
) -> None:
    """Close the books: compare published messages with expected and actual deliveries.

    The exit code is 0 if the books close (every delivery is accounted for), 1 if they do not, 3 if it cannot be decided because
    evidence is missing, 4 if the audit itself failed, and 2 for wrong options.
    """
    if not data:
        raise click.UsageError("give --data with the data directory of a broker")
    checked(data, None, out)
    scope = Scope(time.time_ns() // 1_000_000, frozenset(without))
    try:
        with running(cluster, "audit") as spark:
            if lake is None:
                log_paths(data)  # raises an error that names directories without logs
            # Tracks first: then a running broker's logs are ahead of them, which is a doubt, and never behind.
            tracks = open_tracks(spark, data, on_damage=on_damage, trackless=True)
            published = published_in(spark, data, lake, on_damage)
            done = auditing.audit(published, tracks, full=full, tolerant=on_damage == "skip", scope=scope)
            if out is not None:
                for name, table in (("counts", done.counts), ("hops", done.hops), ("findings", done.findings)):
                    write(table, f"{out}/{name}", form)
            if books is not None:
                write_books(books, done, scope.now_ms)
            _tell_audit(done, scope)
            verdict = done.summary.verdict
            done.close()
            tracks.close()
    except PostroadError as error:
        raise _AuditFailedError(f"{error}  [error {error.code}]") from error
    except Exception as error:
        log.debug("the audit failed", exc_info=True)
        raise _AuditFailedError(f"{type(error).__name__}: {error}") from error
    sys.exit(int(verdict))


class _AuditFailedError(click.ClickException):
    """The audit failed. Its exit code differs from those of the verdicts."""

    exit_code = ERROR_EXIT


def _tell_audit(done: Audit, scope: Scope) -> None:
    found = done.summary
    console = Console(highlight=False)
    table = Table(title="The books", show_header=False)
    for title, value in (
        ("messages published", f"{found.published:,}"),
        ("deliveries expected (from spans)", f"{found.expected:,}"),
        ("deliveries recorded (in histories)", f"{found.counted:,}"),
        ("intervals compared, of these open", f"{found.intervals:,}, {found.open_intervals:,}"),
        ("open intervals without an explanation", f"{found.unexplained:,}"),
        ("missing", f"{found.missing:,}"),
        ("skipped between spans", f"{found.skipped:,}"),
        ("unexpected (by chance)", f"{found.unexpected:,} ({found.unexpected_by_chance:.3g})"),
        ("explained by crashes or holes", f"{found.explained:,}"),
        ("reported to the subscriber as lost", f"{found.lost:,}"),
        ("in doubt (behind the last span)", f"{found.doubtful:,}"),
        ("waiting for disconnected subscribers", f"{found.waiting:,}"),
    ):
        table.add_row(title, value)
    console.print(table)
    for hole in found.track_holes:
        if hole.kind == HoleKind.DROPPED:
            since = datetime.fromtimestamp((hole.to_ms + 1) / 1000, UTC)
            console.print(f"broker {hole.broker} has tracks since {since:%Y-%m-%d %H:%M:%S} UTC", soft_wrap=True)
            continue
        console.print(f"hole: broker {hole.broker}, {hole.kind}: {hole.reason}", style="yellow", soft_wrap=True)
    unread = [text for text in found.unread if text not in found.doubts]
    for text in (*unread, *(f"broker {broker}: left out (--without)" for broker in sorted(scope.without))):
        console.print(f"not checked: {text}", style="yellow", soft_wrap=True)
    for text in found.doubts:
        console.print(f"in doubt: {text}", style="yellow", soft_wrap=True)
    for row in done.findings.orderBy("verdict", "subscriber", "tick").limit(SHOWN_MAX).collect():
        who = row["subscriber"] or f"{row['kind']} history of broker {row['broker']}"
        told = f"{row['verdict']}: {MessageId.from_bytes(bytes(row['id']))}, {who}"
        console.print(told + (f" ({row['reason']})" if row["reason"] else ""), soft_wrap=True)
    console.print(_VERDICTS[found.verdict], style=_STYLES[found.verdict])
    if found.verdict is Verdict.CLOSES and (found.unread or scope.without):
        console.print("This covers what was checked; the lines above say what was not checked.", soft_wrap=True)
