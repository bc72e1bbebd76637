"""What the commands of `postroad pipeline` have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click
from pyspark.sql import SparkSession

from postroad.spark.jobs.published import Published, open_logs
from postroad.spark.jobs.running import Cluster
from postroad.spark.jobs.table_rows import open_rows

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
SHOWN_MAX: Final = 20


def cluster_options(function: FunctionT) -> FunctionT:
    """Add the options that say where Spark runs; the command gets them as `cluster`."""

    @wraps(function)
    def command(
        *arguments: Any,
        master: str,
        conf: tuple[str, ...],
        properties_file: str | None,
        packages: str | None,
        **options: Any,
    ) -> Any:
        settings = read_properties(Path(properties_file)) if properties_file else {}
        settings |= dict(_setting(text) for text in conf)
        if packages:
            settings["spark.jars.packages"] = packages
        named = settings.pop("spark.master", "local[*]")
        return function(*arguments, cluster=Cluster(master or named, settings), **options)

    for option in reversed(
        (
            click.option(
                "--master",
                default="",
                metavar="URL",
                help="Spark master, such as spark://host:7077 or yarn, or sc://host for Spark Connect.  [default: local[*]]",
            ),
            click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be repeated."),
            click.option(
                "--properties-file",
                type=click.Path(exists=True, dir_okay=False),
                help="File of settings of Spark, as spark-submit reads it.",
            ),
            click.option("--packages", metavar="NAMES", help="Java packages that Spark fetches, by Maven coordinates."),
        )
    ):
        command = option(command)
    return cast("FunctionT", command)


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise click.UsageError(f"--conf {text}: write it as KEY=VALUE")
    return key, value


def read_properties(path: Path) -> dict[str, str]:
    """Read a file like spark-defaults.conf: a key and a value a line, with blanks, `=` or `:` between them."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            key, *rest = re.split(r"\s*[=:\s]\s*", text, maxsplit=1)
            found[key] = rest[0].strip() if rest else ""
    return found


def data_option(function: FunctionT) -> FunctionT:
    text = "Data directory of a broker, or a directory that contains several; may be repeated."
    return click.option("--data", "data", multiple=True, metavar="DIR", callback=_local_paths, help=text)(function)


def _local_paths(_context: click.Context, _option: click.Parameter, sources: tuple[str, ...]) -> tuple[str, ...]:
    """Take `file:` URIs for the paths they name."""
    return tuple(url2pathname(urlsplit(source).path) if source.startswith("file:") else source for source in sources)


def lake_option(function: FunctionT) -> FunctionT:
    text = "Read messages from this lake instead of the logs in --data. PATH@v12 is version 12 of a table."
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
    if not lake:
        return open_logs(spark, data, tolerant=on_damage == "skip")
    path, version = lake_version(lake)
    return open_rows(spark, path, data, version=version)


def lake_version(lake: str) -> tuple[str, int | None]:
    """Split `path@v12`, as Delta Lake writes a version of a table."""
    found = re.fullmatch(r"(.+)@v(\d+)", lake)
    return (found[1], int(found[2])) if found else (lake, None)
