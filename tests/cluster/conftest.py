"""A standalone cluster on this machine: a master and two workers, from the PySpark package."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark
from tests.spark.jobs.conftest import SMALL
from tests.spark.jobs.synthetic import World, some_subscribers

from postroad.spark import session
from postroad.spark.java import find_java

START_S = 120.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
SETTINGS = {
    "spark.executor.memory": "700m",
    "spark.executor.extraJavaOptions": session.QUICK_START,
    "spark.driver.extraJavaOptions": session.QUICK_START,
    "spark.sql.shuffle.partitions": "4",
}
CONF = tuple(part for setting in SETTINGS.items() for part in ("--conf", "=".join(setting)))


@dataclass(frozen=True)
class Cluster:
    """A running cluster. Its processes know neither our Python nor our package: no PYSPARK_PYTHON, no PYTHONPATH."""

    master: str
    environment: dict[str, str]

    def run(self, *command: str, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run a program that uses the cluster, from a checkout."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # an active virtual environment
        environment = {**self.environment, "PYTHONPATH": str(ROOT / "src"), "PATH": path}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)

    def pipeline(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "postroad", "pipeline", *arguments, "--master", self.master, *CONF)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON", "SPARK"))}
    environment |= {"JAVA_HOME": str(find_java().home_for_spark(directory)), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = session.QUICK_START
    processes: list[subprocess.Popen[bytes]] = []

    def start(role: str, *arguments: str) -> Path:
        log = directory / f"{role}{len(processes)}.log"
        name = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
        command = [str(SPARK_HOME / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen([*command, *arguments], env=environment, stdout=output, stderr=output, cwd=directory)
            )
        return log

    try:
        master = found_in(start("master"), r"Starting Spark master at (spark://\S+)")
        for number in range(2):
            place = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}"))
            found_in(start("worker", *place, master), r"Successfully registered with master (\S+)")
        yield Cluster(master, environment)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def found_in(log: Path, pattern: str) -> str:
    """Wait until a process has written a line."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        match = re.search(pattern, log.read_text(errors="replace"))
        if match is not None:
            return match.group(1)
        time.sleep(0.2)
    raise AssertionError(f"{log.name} does not say {pattern!r}:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def connect(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a Spark Connect server in local mode, whose workers have our Python and our package."""
    directory = tmp_path_factory.mktemp("connect")
    log = directory / "server.log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
    told |= {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    told |= {"spark.sql.warehouse.dir": str(directory), "spark.driver.extraJavaOptions": session.QUICK_START}
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]"]
    command += [part for setting in told.items() for part in ("--conf", "=".join(setting))]
    environment = {**cluster.environment, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "spark-internal"], env=environment, stdout=output, stderr=output, cwd=directory)
    try:
        found_in(log, r"(Spark Connect server started)")
        yield Cluster(f"sc://127.0.0.1:{port}", cluster.environment)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five brokers that ran for some seconds and ended."""
    made = World(tmp_path_factory.mktemp("world"), some_subscribers(8), settings=SMALL, origins=[1, 5])
    made.run(4_000, rate=100)
    made.finish()
    return made
