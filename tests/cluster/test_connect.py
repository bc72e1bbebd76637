"""Jobs, the source and the sink through a Spark Connect server: a client without Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.conftest import Cluster
from tests.spark.jobs.synthetic import World

import postroad.spark
import postroad.testing
from postroad.core.protocol.packets import pubend_id
from postroad.spark import session
from postroad.types import MessageId

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_every_job_runs_through_a_connect_server(connect: Cluster, world: World, tmp_path: Path) -> None:
    """Traces, an audit that closes, a lake, rates of it, compacted tracks and a report, without Java in the client."""
    data = [part for path in world.data for part in ("--data", path)]
    lake, out = str(tmp_path / "lake"), str(tmp_path / "traces")
    for job, expected in (
        (("trace", "--all", *data, "--out", out), f"{len(world.truth.published):,}"),
        (("audit", *data), "The books close."),
        (("ingest", *data, "--lake", lake), f"{len(world.truth.published):,} rows"),
        (("rates", "--lake", lake), "broker"),
        (("compact", *data, "--out", str(tmp_path / "compacted")), "elements"),
        (("report", *data, "--out", str(tmp_path / "report")), "report.html"),
    ):
        done = connect.run("env", "JAVA_HOME=/nowhere", "python", "-m", "postroad", "pipeline", *job, "--master", connect.master)
        assert done.returncode == 0, f"{job[0]}: {done.stderr}"
        assert expected in done.stdout, job[0]
    assert any(Path(out).rglob("*.parquet"))


def test_source_and_sink_work_through_a_connect_server(connect: Cluster, world: World, tmp_path: Path) -> None:
    """Messages go from log files into a broker and back; a stream of them is written as Parquet."""
    expected = sum(MessageId.from_bytes(item).broker == 1 for item in world.truth.published)
    with postroad.testing.broker() as url, session.connected(connect.master) as spark:
        messages = postroad.spark.messages(spark, world.data[0], pubends=pubend_id(1)).select("kind", "value")
        messages.write.format("postroad").option("url", url).mode("append").save()
        assert spark.read.format("postroad").option("url", url).load().count() == expected
        stream = spark.readStream.format("postroad").schema("kind string, tick long").option("url", url).load()
        written = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = written.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        assert spark.read.parquet(str(tmp_path / "out")).count() == expected
