"""`postroad pipeline` as a person uses it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from tests.spark.jobs.conftest import SMALL, Opened
from tests.spark.jobs.synthetic import World, some_subscribers

from postroad.cli import main
from postroad.cli.pipeline import audit as pipeline_audit
from postroad.cli.pipeline import report as pipeline_report
from postroad.cli.pipeline import trace as pipeline_trace
from postroad.cli.pipeline import upkeep as pipeline_upkeep
from postroad.console.books import read_books
from postroad.runtime.rate_profile import publisher_rates
from postroad.spark.jobs.running import Cluster, plain_errors
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.histories.tracker import omitted
from postroad.types import MessageId


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a command on the session of the tests instead of one of its own."""

    @contextmanager
    def running(cluster: Cluster, title: str) -> Iterator[SparkSession]:
        with plain_errors():
            yield spark

    for module in (pipeline_audit, pipeline_report, pipeline_trace, pipeline_upkeep):
        monkeypatch.setattr(module, "running", running)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["pipeline", *arguments])

    return invoke


def data_of(world: World) -> list[str]:
    return [part for path in world.data for part in ("--data", path)]


def test_trace_tells_the_way_of_a_message(mixed: Opened, run: object, tmp_path: Path) -> None:
    """Ids as text, in a file or all; told in words and written as tables."""
    assert callable(run)
    item = next(item for item, broker, _ in sorted(mixed.world.truth.routed) if broker == 5)
    told = run("trace", str(MessageId.from_bytes(item)), *data_of(mixed.world))
    assert told.exit_code == 0, told.output
    upstream = next(up for each, broker, up in mixed.world.truth.routed if each == item and broker == 5)
    assert f"broker {upstream} -> broker 5" in told.output
    file = tmp_path / "ids.txt"
    file.write_text(f"{item.hex()}\n\n{mixed.world.truth.published[0].hex()}\n")
    done = run("trace", "--ids-file", str(file), *data_of(mixed.world), "--out", str(tmp_path / "out"), "--format", "csv")
    assert done.exit_code == 0, done.output
    rows = [row for part in (tmp_path / "out" / "traces").glob("*.csv") for row in csv.DictReader(part.read_text().splitlines())]
    assert {row["id"] for row in rows} == {str(MessageId.from_bytes(each)) for each in (item, mixed.world.truth.published[0])}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trace", "zz", "--data", "x"), "32 hexadecimal digits"),
        (("trace", "--data", "x"), "give ids, --ids-file or --all"),
        (("audit",), "give --data"),
        (("compact", "--data", "x"), "either --out DIR or --in-place"),
        (("audit", "--data", "/nowhere"), "no pubend logs in /nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(run: object, arguments: tuple[str, ...], words: str) -> None:
    """No stack traces for people."""
    assert callable(run)
    done = run(*arguments)
    assert done.exit_code != 0
    assert words in done.output
    assert "Traceback" not in done.output


def test_a_damaged_file_is_named_by_the_command(mixed: Opened, run: object, tmp_path: Path) -> None:
    """An error of a worker of Spark reaches the terminal as one line with its code."""
    assert callable(run)
    bad = tmp_path / "tracks" / "0000000001-0000000001.parquet"
    bad.parent.mkdir()
    bad.write_bytes(b"nothing")
    done = run("trace", mixed.world.truth.published[0].hex(), "--data", str(tmp_path))
    assert done.exit_code == 1
    assert str(bad) in done.output.replace("\n", "")
    assert "[error 409]" in done.output


def test_ingest_rates_report_and_compact_run(mixed: Opened, run: object, tmp_path: Path) -> None:
    """Each does its work and says so."""
    assert callable(run)
    data = data_of(mixed.world)
    done = run("ingest", *data, "--lake", str(tmp_path / "lake"))
    assert f"{len(mixed.world.truth.published):,} rows" in done.output, done.output
    assert run("rates", "--lake", str(tmp_path / "lake"), "--out", str(tmp_path / "p.json")).exit_code == 0
    entries = json.loads((tmp_path / "p.json").read_bytes())["entries"]
    assert len(entries) == 6
    for broker in (1, 5):  # as that broker reads it for its admission control
        peaks = {each["publisher"]: each["peak_1s"] for each in entries if each["broker"] == broker}
        assert peaks
        assert dict(publisher_rates(tmp_path / "p.json", broker)) == peaks
    assert run("report", *data, "--out", str(tmp_path / "report")).exit_code == 0
    assert (tmp_path / "report" / "report.html").read_text().count("<svg") == 3  # the overlay, rates, latencies
    compacted = run("compact", *data, "--out", str(tmp_path / "small"))
    assert compacted.exit_code == 0, compacted.output


def test_audit_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    """With its own Spark: quiet, exit code 1 when something is missing, which it names; tables beside."""
    settings = TrackingSettings(SMALL.strategy, SMALL.m, SMALL.k, SMALL.n, persistence_ms=2_000, omit_one_in=20)
    world = World(tmp_path / "data", some_subscribers(3), settings=settings, origins=[1])
    world.run(2_000, rate=100)
    world.finish()
    missing = sorted(item for item, _, name in world.truth.delivered if omitted(str(name), item, 20))
    assert missing
    command = [
        sys.executable,
        "-m",
        "postroad.cli",
        "pipeline",
        "audit",
        "--master",
        "local[1]",
        "--data",
        str(tmp_path / "data"),
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out"), "--format", "json", "--books", str(tmp_path / "books.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "The books do not close." in done.stdout
    assert str(MessageId.from_bytes(missing[0])) in done.stdout
    assert "WARN" not in done.stderr
    written = [
        json.loads(line) for file in (tmp_path / "out" / "findings").glob("*.json") for line in file.read_text().splitlines()
    ]
    assert {row["id"] for row in written if row["verdict"] == "missing"} == {str(MessageId.from_bytes(item)) for item in missing}
    books = read_books(tmp_path / "books.json")
    assert (books["verdict"], books["published"]) == ("does not close", len(world.truth.published))
    assert books["missing"] == sum(row["missing"] for row in books["subscribers"]) == len(missing)
    assert {each["id"] for each in books["named"]} >= {str(MessageId.from_bytes(item)) for item in missing}
    assert sum(row["expected"] - row["delivered"] for row in books["subscribers"]) == len(missing)


def test_without_spark_the_command_says_what_to_install() -> None:
    """The rest of Postroad works without it; the pipeline asks for the extra."""
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'pyspark' else real(name, *rest)\n"
        "from postroad.cli import main; main(['pipeline', 'audit', '--data', '.'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'postroad[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
