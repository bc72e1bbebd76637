"""DataFrames of messages whose conditions are pushed down safely.

Spark 4.3 remembers what the source made of a query's conditions once per loaded DataFrame, not once per use of it. A DataFrame
that is used twice in a query (a union, a self-join), or first with a condition and then without, is then read with the wrong
condition: rows are missing. So `format("postroad")` pushes nothing unless it is told to (`pushdown=true`), and `messages` gives
a DataFrame in which every use has a source of its own: its table is a proxy that makes a new one for each scan.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from postroad.spark.cluster import has_context

log = logging.getLogger("postroad.spark")

FORMAT: Final = "postroad"
_INTERFACES: Final = ("Table", "SupportsRead")
_CATALOG: Final = "org.apache.spark.sql.connector.catalog."


class _NewTable(Protocol):
    def __call__(self) -> Any: ...


def messages(
    spark: SparkSession, path: str | None = None, *, schema: StructType | str | None = None, **options: str | float
) -> DataFrame:
    """Return the messages in data directories (`path`), or of a live overlay (`url`), as a DataFrame.

    Options are those of `format("postroad")`. Conditions on it are done where the messages are, in files or at the broker.
    """
    reader = spark.read.format(FORMAT).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    if not has_context(spark):  # Spark Connect has no Java to reach
        return reader.option("pushdown", "false").load(path)
    try:
        return _with_own_scans(spark, reader.option("pushdown", "true").load(path))
    except (Py4JError, AttributeError) as error:
        log.warning("conditions are not pushed down, because this version of Spark is not supported: %s", error)
        return reader.option("pushdown", "false").load(path)


def _with_own_scans(spark: SparkSession, loaded: DataFrame) -> DataFrame:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  # there is no public way to the Java side
    jvm = gateway.jvm
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    relation = loaded._jdf.queryExecution().analyzed()  # noqa: SLF001
    table, options = relation.table(), relation.options()
    schema = table.schema()
    no_transforms = gateway.new_array(jvm.org.apache.spark.sql.connector.expressions.Transform, 0)

    def new_table() -> Any:
        source = jvm.org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2()
        source.setShortName(FORMAT)
        return source.getTable(schema, no_transforms, options)

    proxy = _proxy(gateway, jvm, table, new_table)
    output, travel = relation.output(), relation.timeTravelSpec()
    copied = relation.copy(proxy, output, relation.catalog(), relation.identifier(), options, travel)
    dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, copied)  # noqa: SLF001
    return DataFrame(dataset, spark)


def _proxy(gateway: Any, jvm: Any, table: Any, new_table: _NewTable) -> Any:
    loader = table.getClass().getClassLoader()
    interfaces = gateway.new_array(jvm.java.lang.Class, len(_INTERFACES))
    for index, name in enumerate(_INTERFACES):
        interfaces[index] = jvm.java.lang.Class.forName(_CATALOG + name, True, loader)
    return jvm.java.lang.reflect.Proxy.newProxyInstance(loader, interfaces, _Handler(jvm, table, new_table))


class _Handler:
    """Answers the calls to a table: a scan gets a table of its own, all else the one that was loaded."""

    def __init__(self, jvm: Any, table: Any, new_table: _NewTable) -> None:
        self._identity = jvm.java.lang.System.identityHashCode
        self._table = table
        self._new_table = new_table

    def invoke(self, proxy: Any, method: Any, arguments: Any) -> Any:
        match method.getName():
            case "newScanBuilder":
                return self._new_table().newScanBuilder(arguments[0])
            case "equals":
                return arguments[0] is not None and self._identity(proxy) == self._identity(arguments[0])
            case "hashCode":
                return self._identity(proxy)
            case _:
                return method.invoke(self._table, arguments)

    class Java:
        implements: Final = ["java.lang.reflect.InvocationHandler"]  # py4j wants a list
