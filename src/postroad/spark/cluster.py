"""What differs between a local Spark, a cluster and a Connect server: how many tasks at once, which Python, where the code is."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

PYTHON: Final = "spark.pyspark.python"
ARCHIVES: Final = "spark.archives"
PROBE_ROWS: Final = 1 << 20
_asked: Final[dict[str, int]] = {}  # parallelism by session of Connect


def is_local(master: str) -> bool:
    return master.startswith("local")


def is_on_this_machine(master: str) -> bool:
    """Say whether a cluster can only be one of this machine, by the address of its master."""
    host = urlsplit(master).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def has_context(spark: SparkSession) -> bool:
    """Say whether the driver is in this process; with Spark Connect it is in the server."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the cluster runs at once, about."""
    if has_context(spark):
        return spark.sparkContext.defaultParallelism
    session = str(spark.session_id)  # type: ignore[attr-defined]  # of Connect: there is no context to ask, but a plan
    if session not in _asked:
        placed = spark.range(PROBE_ROWS).select(F.spark_partition_id().alias("partition"))
        row = placed.agg(F.max("partition").alias("highest")).first()
        assert row is not None
        _asked[session] = int(row["highest"]) + 1
    return _asked[session]


def workers_python(master: str, conf: Mapping[str, str]) -> str:
    """Return the Python that runs our functions: the one that is named, the one of an archive, or the path of this one."""
    named = conf.get(PYTHON) or os.environ.get("PYSPARK_PYTHON")
    if named or is_local(master):
        return named or sys.executable
    unpacked = [archive.rpartition("#")[2] for archive in conf.get(ARCHIVES, "").split(",") if "#" in archive]
    return f"./{unpacked[0]}/bin/python" if unpacked else sys.executable


def source_path() -> str | None:
    """Return where the package runs from, if that is a checkout: then workers on this machine need it on their path."""
    source = Path(__file__).parents[2]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return None if source.resolve() in installed else str(source)
