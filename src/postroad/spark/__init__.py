"""Postroad and Spark: a session, a data source and sink named `postroad`, and the jobs of the data pipeline.

Needs the extra `spark`; without it, importing this package raises `SparkUnavailableError`, and the rest of Postroad works.
"""

from importlib.util import find_spec

from postroad.errors import SparkUnavailableError

if find_spec("pyspark") is None:
    raise SparkUnavailableError("PySpark is not installed; install it with: pip install 'postroad[spark]'")
