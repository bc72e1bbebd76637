"""What the commands of `postroad pipeline` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from pyspark.sql import SparkSession

from postroad.spark.jobs.message_table import open_lake_rows
from postroad.spark.jobs.published import Published, open_logs

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
SHOWN_MAX: Final = 20


def master_option(function: FunctionT) -> FunctionT:
    return click.option("--master", default="local[*]", show_default=True, help="Spark master.")(function)


def data_option(function: FunctionT) -> FunctionT:
    text = "Data directory of a broker, or a directory that contains several; may be repeated."
    return click.option("--data", "data", multiple=True, metavar="DIR", help=text)(function)


def lake_option(function: FunctionT) -> FunctionT:
    text = "Read messages from this lake instead of the logs in --data."
    return click.option("--lake", metavar="PATH", help=text)(function)


def on_damage_option(function: FunctionT) -> FunctionT:
    text = "On a damaged or missing file: end the job, or report its content as a hole."
    return click.option("--on-damage", type=click.Choice(["fail", "skip"]), default="fail", show_default=True, help=text)(
        function
    )


def out_option(function: FunctionT) -> FunctionT:
    format_option = click.option(
        "--format",
        "form",
        type=click.Choice(["parquet", "csv", "json"]),
        default="parquet",
        show_default=True,
        help="Format of the tables.",
    )
    return click.option("--out", type=click.Path(), help="Directory for the tables; it must not exist yet.")(
        format_option(function)
    )


def checked(data: Sequence[str], lake: str | None, out: str | None) -> None:
    if not data and not lake:
        raise click.UsageError("give --data with the data directory of a broker")
    if out is not None and Path(out).exists():
        raise click.UsageError(f"{out} exists already; choose a new directory")


def published_in(spark: SparkSession, data: Sequence[str], lake: str | None, on_damage: str) -> Published:
    return open_lake_rows(spark, lake, data) if lake else open_logs(spark, data, tolerant=on_damage == "skip")
