"""`postroad pipeline rates` and `report`: figures of what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.table import Table

from postroad.cli.pipeline.options import (
    SHOWN_MAX,
    checked,
    cluster_options,
    data_option,
    lake_option,
    on_damage_option,
    published_in,
)
from postroad.cli.shared import console
from postroad.figures import markdown, page
from postroad.spark.jobs import rates as measuring
from postroad.spark.jobs.audit import audit
from postroad.spark.jobs.report import document, gather
from postroad.spark.jobs.running import Cluster, running
from postroad.spark.jobs.tracks import open_tracks


@click.command()
@data_option
@lake_option
@click.option("--by", metavar="ATTRIBUTE", help="Measure each value of this attribute separately, for example each topic.")
@click.option("--out", type=click.Path(dir_okay=False), help="File for the profile, as JSON.")
@on_damage_option
@cluster_options
def rates(data: tuple[str, ...], lake: str | None, by: str | None, out: str | None, on_damage: str, cluster: Cluster) -> None:
    """Measure the rates of publishers, as a profile for admission control."""
    checked(data, lake, None)

    with running(cluster, "rates") as spark:
        made = measuring.profile(measuring.rates(published_in(spark, data, lake, on_damage), by=by), by)
    if out is not None:
        Path(out).write_bytes(measuring.encode(made))
    table = Table("broker", "publisher", by or "", "messages", "mean/s", "peak 1 s", "peak 10 s", "peak 60 s", "p99/s", "per day")
    for entry in sorted(made.entries, key=lambda each: -each.peak_60s)[:SHOWN_MAX]:
        numbers = (entry.mean, entry.peak_1s, entry.peak_10s, entry.peak_60s, entry.p99, entry.trend_per_day)
        cells = [str(entry.broker), str(entry.publisher), entry.value or "", f"{entry.messages:,}"]
        table.add_row(*cells, *(f"{number:,.1f}" for number in numbers))
    console().print(table)
    if len(made.entries) > SHOWN_MAX:
        click.echo(f"and {len(made.entries) - SHOWN_MAX:,} more" + ("" if out else "; --out writes them all"))


@click.command()
@data_option
@lake_option
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Directory for report.md and report.html.")
@click.option("--no-audit", is_flag=True, help="Leave out the verdict, which takes most of the time.")
@on_damage_option
@cluster_options
def report(
    data: tuple[str, ...], lake: str | None, out: str, no_audit: bool, on_damage: Literal["fail", "skip"], cluster: Cluster
) -> None:
    """Write a report of the verdict, traffic, latencies, storage and links, as Markdown and as HTML with plots."""
    if not data:
        raise click.UsageError("give --data with the data directory of a broker")

    with running(cluster, "report") as spark:
        tracks = open_tracks(spark, data, on_damage=on_damage)  # before the logs, as for an audit
        published = published_in(spark, data, lake, on_damage)
        done = None if no_audit else audit(published, tracks, tolerant=on_damage == "skip")
        made = document(gather(published, tracks, done))
    directory = Path(out)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.md").write_text(markdown(made), encoding="utf-8")
    (directory / "report.html").write_text(page(made), encoding="utf-8")
    click.echo(f"{directory / 'report.md'} and {directory / 'report.html'}")
