"""The one line of an error of Spark that says why, and where jobs run."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from postroad.cli.pipeline.options import cluster_options, read_properties
from postroad.spark.causes import root_cause
from postroad.spark.cluster import is_on_this_machine, workers_python
from postroad.spark.jobs.running import Cluster

OF_A_TASK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    process()
  File "/x/job.py", line 7, in kernel
    raise ValueError("a message id has 16 bytes")
ValueError: a message id has 16 bytes

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Caused by: java.io.EOFException: the other end"""
OF_JAVA = """An error occurred while calling o61.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: org.apache.spark.SparkException: Job aborted
Caused by: java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1)
Caused by: java.io.IOException: error=2, No such file or directory"""


class Throwable:
    """A Java exception as py4j shows it."""

    def __init__(self, text: str, cause: Throwable | None = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:  # noqa: N802  # Java's name
        return self._text

    def getCause(self) -> Throwable | None:  # noqa: N802
        return self._cause


class JavaError(Exception):
    def __init__(self, text: str, origin: Throwable) -> None:
        super().__init__(text)
        self._origin = origin


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Exception(OF_A_TASK), "ValueError: a message id has 16 bytes"),
        (Exception(OF_JAVA), 'IOException: Cannot run program "/nowhere/python": error=2, No such file or directory'),
        (Exception("[TABLE_NOT_FOUND] no such table\n'Project [*]"), "[TABLE_NOT_FOUND] no such table"),
        (
            JavaError(
                "Job aborted",
                Throwable("org.apache.spark.SparkException: Job aborted", Throwable("java.net.ConnectException: refused")),
            ),
            "ConnectException: refused",
        ),
        (Exception(), "Exception"),
    ],
)
def test_the_root_cause_is_the_last_error_of_a_task_or_of_java(error: Exception, expected: str) -> None:
    """Not what Spark wraps around it."""
    assert root_cause(error) == expected


def test_the_python_of_workers_is_the_named_the_shipped_or_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without options runs the path of this Python."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert workers_python("spark://host:7077", {}) == sys.executable
    assert workers_python("yarn", {"spark.archives": "a.zip,e.tar.gz#env"}) == "./env/bin/python"
    assert workers_python("yarn", {"spark.archives": "e.tar.gz#env", "spark.pyspark.python": "/p"}) == "/p"
    monkeypatch.setenv("PYSPARK_PYTHON", "/q")
    assert workers_python("local[2]", {}) == "/q"


def test_a_master_on_this_machine_is_known_by_its_address() -> None:
    """Then the driver listens on the loopback address only."""
    assert is_on_this_machine("spark://127.0.0.1:7077")
    assert is_on_this_machine("sc://localhost")
    assert not is_on_this_machine("spark://host:7077")
    assert not is_on_this_machine("yarn")


def test_options_name_the_cluster_and_its_settings(tmp_path: Path) -> None:
    """Settings of the command line win over those of the file, which may name the master."""
    file = tmp_path / "spark.conf"
    file.write_text("# ours\n\nspark.master   spark://host:7077\nspark.executor.memory=1g\nspark.a: b c\nspark.empty\n")
    assert read_properties(file)["spark.a"] == "b c"
    seen: list[Cluster] = []

    @click.command()
    @cluster_options
    def command(cluster: Cluster) -> None:
        seen.append(cluster)

    command.main(
        ["--properties-file", str(file), "--conf", "spark.executor.memory=2g", "--packages", "a:b:1"], standalone_mode=False
    )
    assert seen[0].master == "spark://host:7077"
    assert dict(seen[0].conf) == {
        "spark.executor.memory": "2g",
        "spark.a": "b c",
        "spark.empty": "",
        "spark.jars.packages": "a:b:1",
    }
    command.main(["--master", "yarn", "--conf", "spark.master=local"], standalone_mode=False)
    assert seen[1] == Cluster("yarn", {})
    with pytest.raises(click.UsageError, match="KEY=VALUE"):
        command.main(["--conf", "spark.memory"], standalone_mode=False)
