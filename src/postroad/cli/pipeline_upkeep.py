"""`postroad pipeline ingest` and `compact`: keeping what brokers wrote."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.table import Table

from postroad.cli.pipeline_options import checked, data_option, master_option, on_damage_option
from postroad.spark.jobs import compact as compacting
from postroad.spark.jobs import ingest as ingesting
from postroad.spark.jobs.running import running


@click.command()
@data_option
@click.option("--lake", required=True, metavar="PATH", help="The lake: a directory, or any URI that Spark can reach.")
@on_damage_option
@master_option
def ingest(data: tuple[str, ...], lake: str, on_damage: str, master: str) -> None:
    """Bring a lake of Parquet tables up to date with closed segments of the logs, each message once.

    Run it as often as you like: it takes what is new. The tables are partitioned by day and pubend.
    """
    checked(data, None, None)

    def told(so_far: ingesting.Ingested) -> None:
        click.echo(f"{so_far.rows:,} rows of {so_far.segments} segments", err=True)

    with running(master, "ingest") as spark:
        done = ingesting.ingest(spark, data, lake, tolerant=on_damage == "skip", told=told)
    click.echo(f"{done.rows:,} rows of {done.segments} closed segments in {done.commits} commits")
    for hole in done.holes:
        click.echo(f"not taken: pubend {hole.pubend:x}, ticks ({hole.lo}, {hole.hi}]: {hole.problem}")


@click.command()
@data_option
@click.option("--out", type=click.Path(), help="Write the compacted tracks here and leave the given ones as they are.")
@click.option("--in-place", is_flag=True, help="Replace the files of the given directories; brokers may be running.")
@click.option("--expire-days", type=click.FloatRange(min=0, min_open=True), help="Drop what is older than this.")
@master_option
def compact(data: tuple[str, ...], out: str | None, in_place: bool, expire_days: float | None, master: str) -> None:
    """Merge many small elements of tracks into few full ones, and drop what is too old.

    Answers stay as they are: blooms are joined only as far as their error stays within what they were made for.
    """
    checked(data, None, out)
    if (out is None) == (not in_place):
        raise click.UsageError("give either --out DIR or --in-place")

    expire_ms = 0 if expire_days is None else int((time.time() - expire_days * 86_400) * 1000)
    with running(master, "compact") as spark:
        rows = compacting.compact(spark, data, compacting.Options(expire_ms=expire_ms, out=out))
    totals = {
        name: sum(row[name] or 0 for row in rows)
        for name in ("files", "files_left", "elements", "elements_left", "bytes", "bytes_left")
    }
    table = Table("", "before", "after")
    for name in ("files", "elements", "bytes"):
        table.add_row(name, f"{totals[name]:,}", f"{totals[name + '_left']:,}")
    Console().print(table)
    problems = [row["problem"] for row in rows if row["problem"]]
    for problem in problems:
        click.echo(f"left as it is: {problem}", err=True)
    sys.exit(1 if problems else 0)
