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

PYTHON: Final = "spark.pyspark.python"
ARCHIVES: Final = "spark.archives"
_SHUFFLE: Final = "spark.sql.shuffle.partitions"


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
    return int(spark.conf.get("spark.default.parallelism", None) or spark.conf.get(_SHUFFLE, "200") or 200)


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
