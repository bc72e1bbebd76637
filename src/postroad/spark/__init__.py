"""Postroad and Spark: a session, a data source and sink named `postroad`, and the jobs of the data pipeline.

Needs the extra `spark`; without it, importing this package raises `SparkUnavailableError`, and the rest of Postroad works.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from postroad.errors import SparkUnavailableError

if find_spec("pyspark") is None:
    raise SparkUnavailableError("PySpark is not installed; install it with: pip install 'postroad[spark]'")

if TYPE_CHECKING:
    from postroad.spark.frames import messages
    from postroad.spark.session import running, start, stop
    from postroad.spark.source import register

__all__ = ["messages", "register", "running", "start", "stop"]

_LATER: Final = {
    "messages": "postroad.spark.frames",
    "register": "postroad.spark.source",
    "running": "postroad.spark.session",
    "start": "postroad.spark.session",
    "stop": "postroad.spark.session",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'postroad.spark' has no attribute {name!r}")
