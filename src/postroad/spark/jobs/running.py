"""Running a job for a person: a session for its time, progress while it works, and errors in words instead of stack traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad import errors
from postroad.errors import PostroadError, SparkError, error_of_code
from postroad.spark import session
from postroad.spark.causes import root_cause
from postroad.spark.jobs.trace import text_of
from postroad.spark.progress import shown
from postroad.storage.remote import path_of

Format: TypeAlias = Literal["parquet", "csv", "json"]

_RAISED: Final = re.compile(r"postroad\.errors\.(\w+): (.*)")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a job runs, and what Spark is told beside."""

    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def running(cluster: Cluster, title: str) -> Iterator[SparkSession]:
    """Give a session for one job."""
    with plain_errors(), _session(cluster, f"postroad {title}") as spark, plain_errors(), shown(spark, title):
        yield spark


def _session(cluster: Cluster, app: str) -> AbstractContextManager[SparkSession]:
    if cluster.master.startswith("sc://"):
        return session.connected(cluster.master, conf=cluster.conf)
    return session.running(cluster.master, app=app, conf=cluster.conf)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what Spark wraps around an error of ours back into it, and its own errors into one that fits on a screen."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise plain_error(error) from error


def plain_error(error: Exception) -> PostroadError:
    text = str(error)
    raised = _RAISED.findall(text)
    if raised:
        name, message = raised[-1]
        known = getattr(errors, name, None)
        if isinstance(known, type) and issubclass(known, PostroadError):
            return error_of_code(known.code, message.strip())
    return SparkError(f"Spark failed: {root_cause(error)}")


def write(frame: DataFrame, path: str, form: Format) -> None:
    """Write a table as a directory of files; ids become text. The directory must not be there yet."""
    path = str(path_of(path).absolute())  # whoever writes it runs elsewhere
    told = frame.withColumn("id", text_of(F.col("id"))) if "id" in frame.columns else frame
    match form:
        case "parquet":
            told.write.parquet(path)
        case "csv":
            told.write.option("header", "true").csv(path)
        case "json":
            told.write.json(path)


def moment(milliseconds: Column) -> Column:
    """Return milliseconds as a timestamp."""
    return F.timestamp_millis(milliseconds)
