"""Jobs, the source and the sink on a standalone cluster, as its users start them: `make cluster`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from tests.cluster.conftest import CONF, ROOT, SETTINGS, SPARK_HOME, Cluster
from tests.spark.data import batch_of, write_log
from tests.spark.jobs.synthetic import KINDS, World

import postroad.testing
from postroad.core.protocol.packets import pubend_id
from postroad.spark import session
from postroad.types import MessageId

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def data_of(world: World) -> list[str]:
    return [part for path in world.data for part in ("--data", path)]


def test_trace_runs_on_the_cluster_with_a_properties_file_and_file_uris(cluster: Cluster, world: World, tmp_path: Path) -> None:
    """Executors have our Python and our package, though nobody told them; every message is found."""
    properties = tmp_path / "spark.conf"
    told = "".join(f"{key} {value}\n" for key, value in SETTINGS.items())
    properties.write_text(f"# where\nspark.master={cluster.master}\n{told}")
    uris = [part for path in world.data for part in ("--data", Path(path).as_uri())]
    command = (sys.executable, "-m", "postroad", "pipeline", "trace", "--all", *uris, "--properties-file", str(properties))
    done = cluster.run(*command, "--out", str(tmp_path / "out"), "--format", "csv")
    assert done.returncode == 0, done.stderr
    rows = [row for part in (tmp_path / "out" / "traces").glob("*.csv") for row in csv.DictReader(part.read_text().splitlines())]
    delivered = {(row["id"], row["subscriber"]) for row in rows if row["kind"] == "subscriber"}
    assert {(str(MessageId.from_bytes(item)), name) for item, _, name in world.truth.delivered} <= delivered


def test_audit_runs_on_the_cluster(cluster: Cluster, world: World) -> None:
    """The books close there as they do here."""
    done = cluster.pipeline("audit", *data_of(world))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "The books close." in done.stdout


def test_ingest_and_jobs_on_the_lake_run_on_the_cluster(cluster: Cluster, world: World, tmp_path: Path) -> None:
    """A lake that executors write is read by executors."""
    lake = str(tmp_path / "lake")
    done = cluster.pipeline("ingest", *data_of(world), "--lake", lake)
    assert done.returncode == 0, done.stderr
    done = cluster.pipeline("rates", "--lake", lake, "--by", "kind", "--out", str(tmp_path / "rates.json"))
    assert done.returncode == 0, done.stderr
    assert all(kind in (tmp_path / "rates.json").read_text() for kind in KINDS)


@pytest.mark.parametrize("job", ["compact", "report"])
def test_upkeep_runs_on_the_cluster(cluster: Cluster, world: World, tmp_path: Path, job: str) -> None:
    """Compacted tracks and the report are written."""
    done = cluster.pipeline(job, *data_of(world), "--out", str(tmp_path / job))
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / job).rglob("*.parquet" if job == "compact" else "report.html"))


def test_spark_submit_runs_the_example(cluster: Cluster, tmp_path: Path) -> None:
    """Java is started by spark-submit, which also says where the master is; the program ends without an error."""
    symbols = ["IBM", "SAP", "IBM", "IBM"] * 25
    data = write_log(tmp_path / "data", {pubend_id(1): [batch_of(0, 100, {"symbol": symbols})]})
    told = ("--master", cluster.master, *CONF, str(ROOT / "examples" / "spark_counts.py"))
    done = cluster.run(str(SPARK_HOME / "bin" / "spark-submit"), *told, "--data", str(data))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["IBM 75", "SAP 25"]
    assert "Traceback" not in done.stderr


def test_source_and_sink_work_on_the_cluster(cluster: Cluster, world: World) -> None:
    """Messages of log files go through executors into a running broker, once each, and are read back."""
    with postroad.testing.broker() as url, session.running(cluster.master, conf=SETTINGS) as spark:
        messages = spark.read.format("postroad").load(world.data[0]).select("kind", "value")
        expected = messages.count()
        assert expected == sum(MessageId.from_bytes(item).broker == 1 for item in world.truth.published)
        messages.write.format("postroad").option("url", url).mode("append").save()
        assert spark.read.format("postroad").option("url", url).load().count() == expected


def test_an_error_names_its_root_cause(cluster: Cluster, world: World) -> None:
    """Executors whose Python does not exist: the error says so in one line, without a stack trace."""
    done = cluster.pipeline("rates", *data_of(world), "--conf", "spark.pyspark.python=/nowhere/python")
    assert done.returncode == 1
    assert "/nowhere/python" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
