"""`postroad pipeline trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from rich.console import Console
from rich.table import Table

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
from postroad.cli.shared import console
from postroad.errors import InvalidValueError
from postroad.spark.jobs import trace as tracing
from postroad.spark.jobs.published import all_ids
from postroad.spark.jobs.running import Cluster, running, write
from postroad.spark.jobs.trace import TraceSummary
from postroad.spark.jobs.tracks import open_tracks
from postroad.types import MessageId


@click.command()
@click.argument("ids", nargs=-1)
@click.option(
    "--ids-file",
    type=click.Path(exists=True, dir_okay=True),
    help="File of ids: text with one id per line, or Parquet or CSV with a column id.",
)
@click.option("--all", "everything", is_flag=True, help="Trace every message in the logs or the lake.")
@data_option
@lake_option
@out_option
@on_damage_option
@cluster_options
def trace(
    ids: tuple[str, ...],
    ids_file: str | None,
    everything: bool,
    data: tuple[str, ...],
    lake: str | None,
    out: str | None,
    form: Literal["parquet", "csv", "json"],
    on_damage: Literal["fail", "skip"],
    cluster: Cluster,
) -> None:
    """Show the paths of any number of messages: publisher, brokers, subscribers.

    IDS have the form that `postroad publish --ids` and `postroad subscribe` print.
    """
    if not data:
        raise click.UsageError("give --data with the data directory of a broker")
    checked(data, None, out)
    if sum((bool(ids), ids_file is not None, everything)) != 1:
        raise click.UsageError("give ids, --ids-file or --all")
    given = [bytes(MessageId.parse(text)) for text in ids]

    with running(cluster, "trace") as spark:
        tracks = open_tracks(spark, data, on_damage=on_damage)
        if everything:
            wanted = all_ids(published_in(spark, data, lake, on_damage))
        else:
            wanted = (
                _ids_in_file(spark, ids_file)
                if ids_file
                else spark.createDataFrame([(bytearray(each),) for each in given], "id binary")
            )
        traced = tracing.trace(wanted, tracks, ordered=everything)
        if out is not None:
            write(tracing.entries(traced.traces) if form == "csv" else traced.traces, f"{out}/traces", form)
        _tell_summary(traced.summary())
        if not everything and ids:
            _tell_each(traced.traces)


def _ids_in_file(spark: SparkSession, path: str) -> DataFrame:

    if path.endswith(".csv"):
        rows = spark.read.option("header", "true").csv(path)
    elif path.endswith(".parquet") or Path(path).is_dir():
        rows = spark.read.parquet(path)
    else:
        rows = spark.read.text(path).filter(F.trim("value") != "").select(F.col("value").alias("id"))
    if "id" not in rows.columns:
        raise InvalidValueError(f"{path} has no column named id")
    if dict(rows.dtypes)["id"] == "binary":
        return rows.select("id")
    known = rows.select(F.col("id").alias("text"), tracing.id_of(F.col("id")).alias("id"))
    wrong = known.filter(F.col("id").isNull()).first()
    if wrong is not None:
        raise InvalidValueError(f"{path}: {str(wrong['text'])[:80]!r} is not a message id")
    return known.select("id")


def _tell_summary(found: TraceSummary) -> None:
    table = Table(show_header=False)
    for title, value in (
        ("ids", f"{found.ids:,}"),
        ("found published", f"{found.published:,}"),
        ("hops", f"{found.hops:,}"),
        ("deliveries", f"{found.deliveries:,}"),
        ("isolated entries (likely false)", f"{found.isolated:,}"),
        ("false entries to expect at most", f"{found.by_chance:.3g}"),
        ("ids in a hole of some track", f"{found.in_holes:,}"),
    ):
        table.add_row(title, value)
    console().print(table)


def _tell_each(traces: DataFrame) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for row in traces.limit(SHOWN_MAX).collect():
        console.print(f"\n{MessageId.from_bytes(bytes(row['id']))}")
        origin = "published" if row["published"] else "NOT found among the published"
        console.print(f"  publisher {row['publisher']} at broker {row['origin']}: {origin}{_doubt(row['published_probability'])}")
        for edge in row["path"]:
            console.print(f"  broker {edge['upstream']} -> broker {edge['broker']}{_doubt(edge['probability'])}{_isolate(edge)}")
        for each in row["subscribers"]:
            console.print(
                f"  delivered to {each['subscriber']} at broker {each['broker']}{_doubt(each['probability'])}{_isolate(each)}"
            )
        for hole in row["holes"]:
            console.print(f"  may be incomplete: broker {hole['broker']}, {hole['kind']}: {hole['reason']}")


def _doubt(probability: float | None) -> str:
    return f"  (by chance: {probability:.2g})" if probability else ""


def _isolate(entry: Any) -> str:
    return "  [isolated: likely false]" if entry["isolated"] else ""
