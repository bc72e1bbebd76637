"""`postroad pipeline audit`."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal

import click
from pyspark.sql import SparkSession
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
)
from postroad.errors import PostroadError
from postroad.spark.jobs.audit import Audit
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.published import log_paths
from postroad.spark.jobs.running import Cluster, running, write
from postroad.spark.jobs.verdicts.continuing import Wish, audit_behind, describe_finding, keep, read_everything
from postroad.spark.jobs.verdicts.table import AuditRecord, VerdictTable
from postroad.spark.jobs.verdicts.watching import Round, watch
from postroad.tracking.queries.answers import HoleKind
from postroad.types import MILLISECONDS_MAX

log = logging.getLogger("postroad.pipeline")

ERROR_EXIT: Final = 4
ALARM_TIMEOUT_S: Final = 30.0
_SEVERITY: Final = (0, 3, 1, 4)  # exit codes, the worst last
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
@click.option("--since", metavar="TIME", help="Check only messages published from this time on (2026-03-01, 2026-03-01T14:30).")
@click.option("--until", metavar="TIME", help="Check only messages published before this time.")
@click.option("--verdicts", metavar="PATH", help="Table of verdicts (directory or URI): continue behind its last one.")
@click.option("--anew", is_flag=True, help="With --verdicts: read everything again, as the first audit did.")
@click.option("--accept", is_flag=True, help="With --verdicts: later audits continue behind this one, whatever is missing.")
@click.option("--watch", "watched", is_flag=True, help="With --verdicts: audit again and again, and raise alarms.")
@click.option("--every", type=click.FloatRange(1), default=20, show_default=True, help="Seconds between the audits of --watch.")
@click.option("--rounds", type=click.IntRange(1), help="End --watch after so many audits.")
@click.option("--alarm", metavar="COMMAND", help="Command that --watch runs at each alarm; it reads the alarm as JSON.")
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
    since: str | None,
    until: str | None,
    verdicts: str | None,
    anew: bool,
    accept: bool,
    watched: bool,
    every: float,
    rounds: int | None,
    alarm: str | None,
    out: str | None,
    form: Literal["parquet", "csv", "json"],
    books: Path | None,
    on_damage: Literal["fail", "skip"],
    cluster: Cluster,
) -> None:
    """Close the books: compare published messages with expected and actual deliveries.

    The exit code is 0 if the books close (every delivery is accounted for), 1 if they do not, 3 if it cannot be decided because
    evidence is missing, 4 if the audit itself failed, and 2 for wrong options. With --watch it is the worst of all audits.
    """
    if not data:
        raise click.UsageError("give --data with the data directory of a broker")
    checked(data, None, out)
    if watched and (out is not None or books is not None):
        raise click.UsageError("--out and --books do not go with --watch, which has no single result")
    if verdicts is None and (anew or accept or watched):
        raise click.UsageError("--anew, --accept and --watch need --verdicts")
    window = _window(since, until)
    if verdicts is not None and window is not None:
        raise click.UsageError("--since and --until do not go with --verdicts, which knows what was checked")
    wish = Wish(data, lake, on_damage, full, anew, accept, window)
    try:
        with running(cluster, "audit") as spark:
            if lake is None:
                log_paths(data)  # raises an error that names directories without logs
            if watched and verdicts is not None:
                code = _watch(
                    watch(spark, VerdictTable.open(spark, verdicts), wish, partial(_scope, without)), every, rounds, alarm
                )
            else:
                code = _audit_once(spark, wish, _scope(without), verdicts, out, form, books)
    except PostroadError as error:
        raise _AuditFailedError(f"{error}  [error {error.code}]") from error
    except Exception as error:
        log.debug("the audit failed", exc_info=True)
        raise _AuditFailedError(f"{type(error).__name__}: {error}") from error
    sys.exit(code)


def _scope(without: Sequence[int]) -> Scope:
    return Scope(time.time_ns() // 1_000_000, frozenset(without))


def _window(since: str | None, until: str | None) -> tuple[int, int] | None:
    """Return the period that two options name, in milliseconds."""
    if since is None and until is None:
        return None
    begin, end = (None if text is None else _moment(text) for text in (since, until))
    if begin is not None and end is not None and begin >= end:
        raise click.UsageError("--until is not after --since")
    return begin or 0, MILLISECONDS_MAX if end is None else end


def _moment(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{text} is not a time; write it as 2026-03-01T14:30 (UTC) or with an offset") from error
    return int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _audit_once(
    spark: SparkSession,
    wish: Wish,
    scope: Scope,
    verdicts: str | None,
    out: str | None,
    form: Literal["parquet", "csv", "json"],
    books: Path | None,
) -> int:
    if verdicts is None:
        done, record = read_everything(spark, wish, scope), None
    else:
        table = VerdictTable.open(spark, verdicts)
        made = audit_behind(spark, table, wish, scope)
        keep(table, wish, made)
        done, record = made.audit, made.record
    if out is not None:
        for name, frame in (("counts", done.counts), ("hops", done.hops), ("findings", done.findings)):
            write(frame, f"{out}/{name}", form)
    if books is not None:
        write_books(books, done, scope.now_ms)
    _tell_audit(done, scope, record)
    done.close()
    return int(done.summary.verdict)


def _watch(audits: Iterator[Round], every: float, rounds: int | None, alarm: str | None) -> int:
    """Raise the alarms of each round; return the worst code, or when interrupted the worst so far."""
    console, worst, ended = Console(stderr=True, highlight=False), 0, 0
    try:
        for found in audits:
            for text in found.alarms:
                console.print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} ALARM: {text}", style="bold red", soft_wrap=True)
            if found.alarms and alarm is not None:
                _run_alarm(alarm, found)
            worst = max(worst, found.code, key=_SEVERITY.index)
            ended += 1
            if rounds is not None and ended >= rounds:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        log.debug("the watch was interrupted")
    return worst


def _run_alarm(command: str, found: Round) -> None:
    """Run the operator's command; if that fails it is said, and the watch goes on."""
    verdict = found.record.verdict if found.record is not None else "failed"
    content = json.dumps({"verdict": verdict, "alarms": found.alarms})
    try:
        subprocess.run(command, shell=True, input=content, text=True, timeout=ALARM_TIMEOUT_S, check=True)  # noqa: S602
    except (OSError, subprocess.SubprocessError) as error:
        click.echo(f"the alarm command failed: {error}", err=True)


def _describe(record: AuditRecord) -> str:
    match record.evidence:
        case "continued":
            return f"audit {record.number}: continued behind audit {record.behind}"
        case "kept":
            return f"audit {record.number}: messages that the logs released are counted as audits up to {record.behind} kept them"
        case _:
            return f"audit {record.number}: everything was read, since {record.reason}"


class _AuditFailedError(click.ClickException):
    """The audit failed. Its exit code differs from those of the verdicts."""

    exit_code = ERROR_EXIT


def _tell_audit(done: Audit, scope: Scope, record: AuditRecord | None) -> None:
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
    if record is not None:
        console.print(_describe(record), soft_wrap=True)
    for text in found.doubts:
        console.print(f"in doubt: {text}", style="yellow", soft_wrap=True)
    for row in done.findings.orderBy("verdict", "subscriber", "tick").limit(SHOWN_MAX).collect():
        console.print(describe_finding(row), soft_wrap=True)
    console.print(_VERDICTS[found.verdict], style=_STYLES[found.verdict])
    if found.verdict is Verdict.CLOSES and (found.unread or scope.without):
        console.print("This covers what was checked; the lines above say what was not checked.", soft_wrap=True)
