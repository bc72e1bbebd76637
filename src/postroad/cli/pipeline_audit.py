"""`postroad pipeline audit`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from postroad.cli.pipeline_options import (
    SHOWN_MAX,
    checked,
    data_option,
    lake_option,
    master_option,
    on_damage_option,
    out_option,
    published_in,
)
from postroad.core.tracking.answers import HoleKind
from postroad.spark.jobs import audit as auditing
from postroad.spark.jobs.audit import Audit
from postroad.spark.jobs.running import running, write
from postroad.spark.jobs.tracks import open_tracks
from postroad.types import MessageId


@click.command()
@data_option
@lake_option
@click.option("--full", is_flag=True, help="Look every message up, also where the counts close.")
@out_option
@on_damage_option
@master_option
def audit(
    data: tuple[str, ...],
    lake: str | None,
    full: bool,
    out: str | None,
    form: Literal["parquet", "csv", "json"],
    on_damage: Literal["fail", "skip"],
    master: str,
) -> None:
    """Close the books: what was published, who should have got it, who did.

    Ends with 0 when the books close and with 1 when something is missing or cannot be explained.
    """
    if not data:
        raise click.UsageError("give --data, a broker's data directory")
    checked(data, None, out)

    with running(master, "audit") as spark:
        published = published_in(spark, data, lake, on_damage)
        done = auditing.audit(published, open_tracks(spark, data, on_damage=on_damage), full=full, tolerant=on_damage == "skip")
        if out is not None:
            for name, table in (("counts", done.counts), ("hops", done.hops), ("findings", done.findings)):
                write(table, f"{out}/{name}", form)
        _tell_audit(done)
        closes = done.summary.closes
    sys.exit(0 if closes else 1)


def _tell_audit(done: Audit) -> None:
    found = done.summary
    console = Console(highlight=False)
    table = Table(title="The books", show_header=False)
    for title, value in (
        ("messages published", f"{found.published:,}"),
        ("deliveries claimed by spans", f"{found.expected:,}"),
        ("deliveries counted in histories", f"{found.counted:,}"),
        ("intervals compared, of which do not close", f"{found.intervals:,}, {found.open_intervals:,}"),
        ("missing", f"{found.missing:,}"),
        ("skipped between spans", f"{found.skipped:,}"),
        ("unexpected (by chance)", f"{found.unexpected:,} ({found.unexpected_by_chance:.3g})"),
        ("explained by crashes or holes", f"{found.explained:,}"),
        ("told lost", f"{found.lost:,}"),
        ("in doubt (behind the last span)", f"{found.doubtful:,}"),
        ("waiting for subscribers that are away", f"{found.waiting:,}"),
    ):
        table.add_row(title, value)
    console.print(table)
    for hole in found.track_holes:
        if hole.kind == HoleKind.DROPPED:
            since = datetime.fromtimestamp((hole.to_ms + 1) / 1000, UTC)
            console.print(f"broker {hole.broker} has tracks since {since:%Y-%m-%d %H:%M:%S} UTC", soft_wrap=True)
            continue
        console.print(f"hole: broker {hole.broker}, {hole.kind}: {hole.reason}", style="yellow", soft_wrap=True)
    for text in found.unread:
        console.print(f"not checked: {text}", style="yellow", soft_wrap=True)
    for row in done.findings.orderBy("verdict", "subscriber", "tick").limit(SHOWN_MAX).collect():
        who = row["subscriber"] or f"{row['kind']} history of broker {row['broker']}"
        told = f"{row['verdict']}: {MessageId.from_bytes(bytes(row['id']))}, {who}"
        console.print(told + (f" ({row['reason']})" if row["reason"] else ""), soft_wrap=True)
    console.print(
        "The books close." if found.closes else "The books do not close.", style="bold green" if found.closes else "bold red"
    )
