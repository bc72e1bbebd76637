"""A quiet Spark session, started and ended completely.

`start` finds a Java, starts Spark with settings that suit Postroad and registers the data source. Whatever the Java process
prints goes to a log file, not to the terminal. `stop` ends the session, its Java process and its temporary files; `running` does
both. A session the caller made otherwise works as well: `postroad.spark.source.register(spark)`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from postroad.errors import SparkUnavailableError
from postroad.spark.causes import root_cause
from postroad.spark.cluster import is_local, is_on_this_machine, source_path, workers_python
from postroad.spark.java import find_java
from postroad.spark.source import register

LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for short work, such as tests: it starts sooner and is slower in the long run."""

LOUD: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark that print every exception to stderr, with the whole Java stack, besides raising it."""

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit says that it has started Java."""

CONNECTED: Final = "SPARK_CONNECT_MODE_ENABLED"
"""The environment variable by which PySpark's functions know whether columns are those of Spark Connect."""

END_S_MAX: Final = 20.0
LOG_SHOWN_MAX: Final = 2000
_LAUNCHER_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # the short-lived Java that only composes the command line


class _Session:
    """What belongs to the one session of this process, beside Spark's own object."""

    def __init__(self, directory: Path, gateway: Any) -> None:
        self.directory = directory
        self.gateway = gateway


_running: dict[str, _Session] = {}  # at most one: Spark has one context per process


def start(
    master: str = "local[*]",
    *,
    app: str = "postroad",
    conf: Mapping[str, str] | None = None,
    quick: bool = False,
    log: Path | None = None,
) -> SparkSession:
    """Start Spark, or raise `SparkUnavailableError`.

    `conf` adds to our settings and wins over them. `quick` is for short work (tests): Java starts sooner and runs slower. `log`
    is where Java's output is kept; without it, it is thrown away at the end, and shown only if the start fails. Under
    `spark-submit` the Java is there already, and what it was told wins over `master` and our settings.
    """
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # no public way to ask without starting one
        raise SparkUnavailableError(
            "this process has a Spark session already; stop it first, or use it: postroad.spark.source.register"
        )
    end_java()  # a session that was ended with Spark's own stop()
    directory = Path(tempfile.mkdtemp(prefix="postroad-spark-"))
    written = log or directory / "java.log"
    try:
        if SUBMITTED in os.environ:
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]  # the Java that spark-submit has started
            told = dict(SparkConf(loadDefaults=True, _jvm=gateway.jvm).getAll())
            settings = _settings(told.get("spark.master", master), app, directory, {**told, **(conf or {})}, quick=False)
            del settings[JAVA_OPTIONS]  # Java runs already
            spark_conf = _spark_conf(settings)
        else:
            settings = _settings(master, app, directory, conf or {}, quick=quick)
            gateway = _launch(settings, find_java().home_for_spark(directory), written)
            spark_conf = _spark_conf(settings)
        _running["session"] = _Session(directory, gateway)
        session = _open(spark_conf, gateway, written)
        register(session)
    except BaseException:
        end_java()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    atexit.register(end_java)
    _quieten()
    return session


def _quieten() -> None:
    for name in LOUD:
        logging.getLogger(name).disabled = True


def stop(session: SparkSession) -> None:
    """End the session, its Java process and its temporary files."""
    for query in session.streams.active:
        query.stop()
    session.stop()
    end_java()


@contextmanager
def running(
    master: str = "local[*]",
    *,
    app: str = "postroad",
    conf: Mapping[str, str] | None = None,
    quick: bool = False,
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """Give a session for the time of a `with` block."""
    session = start(master, app=app, conf=conf, quick=quick, log=log)
    try:
        yield session
    finally:
        stop(session)


@contextmanager
def connected(url: str, *, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a session of a Spark Connect server (`sc://host:port`) for the time of a `with` block."""
    try:
        from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415  # needs grpcio
    except (ImportError, PySparkException) as error:
        raise SparkUnavailableError(f"Spark Connect needs more packages; pip install 'postroad[connect]' ({error})") from error
    _quieten()
    with _environment({CONNECTED: "1"}):
        session: Any = RemoteSession.builder.remote(url).create()
        try:
            for key, value in (conf or {}).items():
                session.conf.set(key, value)
            register(session)
            yield session
        finally:
            session.stop()


def end_java() -> None:
    """End the Java process of the session `start` made, and remove its files; nothing if there is none."""
    ended = _running.pop("session", None)
    if ended is None:
        return
    atexit.unregister(end_java)
    process = ended.gateway.proc
    if process is None:  # it belongs to spark-submit, and ends with this process
        shutil.rmtree(ended.directory, ignore_errors=True)
        return
    if SparkContext._gateway is ended.gateway:  # noqa: SLF001  # else the next session would use a process that has ended
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    with suppress(Exception):  # it may have died
        ended.gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(ended.directory, ignore_errors=True)


def _open(conf: SparkConf, gateway: Any, log: Path) -> SparkSession:
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError) as error:
        raise SparkUnavailableError(f"Spark did not start: {root_cause(error)}{_refusal(log)}") from error
    # Otherwise the workers of functions would run whatever `python3` is on their PATH.
    context.pythonExec = workers_python(str(context.master), dict(conf.getAll()))
    return SparkSession(context)


def _refusal(log: Path) -> str:
    """Return the last thing Java said before it gave up, such as that a master did not answer."""
    said = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.split(": ", 1)[-1] for line in said.splitlines() if " ERROR " in line]
    return f" ({lines[0][:LOG_SHOWN_MAX]})" if lines else ""


def _settings(master: str, app: str, directory: Path, conf: Mapping[str, str], *, quick: bool) -> dict[str, str]:
    options = [f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}", f"-Djava.io.tmpdir={directory}"]
    if quick:
        options.append(QUICK_START)
    settings = {
        "spark.master": master,
        "spark.app.name": app,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    if not is_local(master):
        settings["spark.pyspark.python"] = workers_python(master, conf)
        if (source := source_path()) is not None:
            settings["spark.executorEnv.PYTHONPATH"] = source
    if is_on_this_machine(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if is_local(master):
        cores = os.cpu_count() or 1
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.local.dir": str(directory / "local"),
            "spark.sql.shuffle.partitions": str(max(8, 2 * cores)),
        }
    settings |= conf
    settings[JAVA_OPTIONS] = " ".join([*options, conf.get(JAVA_OPTIONS, "")]).strip()
    return settings


def _spark_conf(settings: Mapping[str, str]) -> SparkConf:
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    return conf


def _launch(settings: Mapping[str, str], java_home: Path, log: Path) -> Any:
    """Start Java; its environment, which Spark takes from ours, is set only meanwhile."""
    source = str(Path(__file__).parents[2])  # the same code in Spark's workers, installed or not
    environment = {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": workers_python(settings["spark.master"], settings),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])),
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", _LAUNCHER_OPTIONS),
    }
    if is_local(settings["spark.master"]) or is_on_this_machine(settings["spark.master"]):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    with log.open("ab") as output, _environment(environment):
        try:
            return launch_gateway(_spark_conf(settings), {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        except (PySparkException, OSError) as error:
            said = log.read_text(encoding="utf-8", errors="replace")[-LOG_SHOWN_MAX:].strip()
            raise SparkUnavailableError(f"Spark did not start with the Java in {java_home}: {said or error}") from error


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
