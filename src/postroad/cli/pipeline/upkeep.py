"""`postroad pipeline ingest` and `compact`: keeping what brokers wrote."""

from __future__ import annotations

import sys
import time
from typing import Literal

import click
from rich.table import Table

from postroad.cli.pipeline.options import checked, cluster_options, data_option, on_damage_option
from postroad.cli.shared import console
from postroad.spark.jobs import compact as compacting
from postroad.spark.jobs import ingest as ingesting
from postroad.spark.jobs.lake_tables import format_of, open_table
from postroad.spark.jobs.running import Cluster, running


@click.command()
@data_option
@click.option("--lake", required=True, metavar="PATH", help="The lake: a directory, or any URI that Spark can access.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Format of a new lake: plain Parquet (default), Delta Lake or Apache Iceberg.",
)
@on_damage_option
@cluster_options
def ingest(
    data: tuple[str, ...],
    lake: str,
    form: Literal["parquet", "delta", "iceberg"] | None,
    on_damage: str,
    cluster: Cluster,
) -> None:
    """Add the messages of closed log segments to a lake of Parquet files, each message once.

    Run it as often as you like: it adds only new messages. The lake is partitioned by day and pubend. Delta Lake and Iceberg need
    the extra `lake` (pip install 'postroad[lake]').
    """
    checked(data, None, None)

    def told(so_far: ingesting.Ingested) -> None:
        click.echo(f"{so_far.rows:,} rows of {so_far.segments} segments", err=True)

    with running(cluster, "ingest") as spark:
        done = ingesting.ingest(spark, data, lake, form=form, tolerant=on_damage == "skip", told=told)
    click.echo(f"{done.rows:,} rows of {done.segments} closed segments in {done.commits} commits")
    for hole in done.holes:
        click.echo(f"not ingested: pubend {hole.pubend:x}, ticks ({hole.lo}, {hole.hi}]: {hole.problem}")


@click.command()
@click.option("--lake", required=True, metavar="PATH", help="The lake: a Delta Lake or Iceberg table.")
def optimise(lake: str) -> None:
    """Make the small files of a Delta Lake or Iceberg table large ones. Older versions of the table can still be read."""
    form = format_of(lake)
    if form is None:
        raise click.UsageError(f"{lake} is neither a Delta Lake nor an Iceberg table")
    before, after = open_table(lake, form).optimise()
    click.echo(f"{before:,} files became {after:,}")


@click.command()
@data_option
@click.option("--out", type=click.Path(), help="Write the compacted tracks to this directory, and do not change the given ones.")
@click.option("--in-place", is_flag=True, help="Replace the files in the given directories; the brokers may be running.")
@click.option("--expire-days", type=click.FloatRange(min=0, min_open=True), help="Delete tracks that are older than this.")
@cluster_options
def compact(data: tuple[str, ...], out: str | None, in_place: bool, expire_days: float | None, cluster: Cluster) -> None:
    """Merge many small elements of tracks into few full ones, and delete old ones.

    The result of a trace does not change: Bloom filters are merged only while their error stays within its limit.
    """
    checked(data, None, out)
    if (out is None) == (not in_place):
        raise click.UsageError("give either --out DIR or --in-place")

    expire_ms = 0 if expire_days is None else int((time.time() - expire_days * 86_400) * 1000)
    with running(cluster, "compact") as spark:
        rows = compacting.compact(spark, data, compacting.Options(expire_ms=expire_ms, out=out))
    totals = {
        name: sum(row[name] or 0 for row in rows)
        for name in ("files", "files_left", "elements", "elements_left", "bytes", "bytes_left")
    }
    table = Table("", "before", "after")
    for name in ("files", "elements", "bytes"):
        table.add_row(name, f"{totals[name]:,}", f"{totals[name + '_left']:,}")
    console().print(table)
    problems = [row["problem"] for row in rows if row["problem"]]
    for problem in problems:
        click.echo(f"not compacted: {problem}", err=True)
    sys.exit(1 if problems else 0)
