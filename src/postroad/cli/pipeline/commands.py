"""`postroad pipeline`: jobs over the logs and tracks of brokers, on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from postroad.cli.lazy import LazyGroup

# name -> (module, attribute, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "audit": ("postroad.cli.pipeline.audit", "audit", "Compare published messages with expected and actual deliveries."),
    "trace": ("postroad.cli.pipeline.trace", "trace", "Show the paths of messages: publisher, brokers, subscribers."),
    "ingest": ("postroad.cli.pipeline.upkeep", "ingest", "Add new messages of the logs to a lake of Parquet tables."),
    "ship": ("postroad.cli.pipeline.ship", "ship", "Copy closed log segments and tracks to an archive, such as S3."),
    "optimise": ("postroad.cli.pipeline.upkeep", "optimise", "Make small files of a Delta Lake or Iceberg table large ones."),
    "compact": ("postroad.cli.pipeline.upkeep", "compact", "Merge small elements of tracks, delete old ones."),
    "rates": (
        "postroad.cli.pipeline.report",
        "rates",
        "Measure the rates of publishers, as a profile for admission control.",
    ),
    "report": ("postroad.cli.pipeline.report", "report", "Write a report of traffic, latencies, storage and links."),
}
WITHOUT_SPARK: Final = frozenset({"ship"})


class SparkGroup(LazyGroup):
    """A group whose commands need Spark, and say so where it is not installed."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in WITHOUT_SPARK:
            import_module("postroad.spark")  # raises SparkUnavailableError, which says what to install
        return super().get_command(ctx, cmd_name)


@click.group(cls=SparkGroup, lazy=COMMANDS)
def pipeline() -> None:
    """Jobs over the logs and tracks of brokers, on Spark.

    They read the brokers' files; the brokers may be running. Spark runs on this machine unless --master names another one. The
    jobs need the extra `spark` (pip install 'postroad[spark]') and Java 17 or newer.
    """
