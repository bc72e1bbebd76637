"""A pipeline from one broker through Spark to another, and what happens to it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.integration.brokers import config

import postroad.sync
from postroad.errors import PostroadError
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports

ROWS_PER_TRIGGER = 150
CHUNK = 40


class Feeder(threading.Thread):
    """Publishes numbers from 0 on, a few at a time, whatever happens to the broker meanwhile."""

    def __init__(self, url: str, count: int, seconds: float) -> None:
        super().__init__(name="feeder", daemon=True)
        self.url, self.count, self.seconds = url, count, seconds
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with postroad.sync.connect(self.url) as client:
                publisher = client.publisher()
                for first in range(0, self.count, CHUNK):
                    publisher.publish_many([({"n": n}, b"x" * 50) for n in range(first, min(first + CHUNK, self.count))])
                    time.sleep(self.seconds * CHUNK / self.count)
                publisher.flush(60)
        except PostroadError as error:
            self.error = error

    def finish(self) -> None:
        self.join(90)
        assert not self.is_alive()
        assert self.error is None


class Collector(threading.Thread):
    """A durable subscriber that notes every number it gets."""

    def __init__(self, url: str) -> None:
        super().__init__(name="collector", daemon=True)
        self.url = url
        self.numbers: list[int] = []
        self.ready = threading.Event()
        self.stopping = threading.Event()

    def run(self) -> None:
        asyncio.run(self._collect())

    async def _collect(self) -> None:
        async with postroad.connect(self.url) as client:
            subscription = await client.subscribe(name="collector", start="earliest")
            self.ready.set()
            batches = subscription.batches()
            following = asyncio.ensure_future(anext(batches))
            while not self.stopping.is_set():
                await asyncio.wait({following}, timeout=0.2)
                if following.done():
                    self.numbers += [int(message["n"]) for message in following.result()]
                    await subscription.ack()
                    following = asyncio.ensure_future(anext(batches))
            following.cancel()
            await asyncio.wait({following})

    def __enter__(self) -> Self:
        self.start()
        assert self.ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(30)

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while len(self.numbers) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)  # for what should not come


class Brokers:
    """A broker to read from and one to publish at."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(2)
        self.source = BrokerProcess(config(1, "source", ports[0], directory, []), directory)
        self.sink = BrokerProcess(config(2, "sink", ports[1], directory, []), directory)

    def __enter__(self) -> Self:
        self.source.start()
        self.sink.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.source, self.sink):
            if each.running:
                each.kill()

    def crash(self, which: BrokerProcess, seconds: float) -> None:
        which.kill()
        time.sleep(seconds)
        which.start()


def start(spark: SparkSession, source: str, sink: str, checkpoint: Path, *, to_the_end: bool = False) -> StreamingQuery:
    """Start the query: read numbers at one broker, publish them at the other."""
    reading = spark.readStream.format("postroad").schema("n bigint")
    rows = reading.options(url=source, maxRowsPerTrigger=ROWS_PER_TRIGGER, timeoutSeconds=20).load()
    writing = rows.writeStream.format("postroad").options(url=sink, timeoutSeconds=20, checkpointLocation=str(checkpoint))
    if to_the_end:
        writing = writing.trigger(availableNow=True)
    return writing.start()


def finish(spark: SparkSession, source: str, sink: str, checkpoint: Path) -> None:
    """Let the query read to the end; it must not fail any more."""
    query = start(spark, source, sink, checkpoint, to_the_end=True)
    assert query.awaitTermination(120)
    error = query.exception()
    assert error is None, error


def forget_commit(checkpoint: Path) -> bool:
    """Take back the last commit, as if Spark had died just before it wrote it: the micro-batch will be repeated."""
    commits = [each for each in (checkpoint / "commits").glob("*") if each.name.isdecimal()]
    if not commits:
        return False
    last = max(commits, key=lambda each: int(each.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return True


def disturb(spark: SparkSession, brokers: Brokers, checkpoint: Path, chosen: random.Random, rounds: int) -> None:
    """Run the query while it, and the brokers, are killed at random moments."""
    query: StreamingQuery | None = None
    for _ in range(rounds):
        if query is None or not query.isActive:
            query = start(spark, brokers.source.url, brokers.sink.url, checkpoint)
        time.sleep(0.2 + chosen.random() * 2.0)
        match chosen.choice(("query", "source", "sink", "both")):
            case "query":
                with suppress(PySparkException):
                    query.stop()
                if chosen.random() < 0.7:
                    forget_commit(checkpoint)
            case "source":
                brokers.crash(brokers.source, chosen.random())
            case "sink":
                brokers.crash(brokers.sink, chosen.random())
            case _:
                brokers.crash(brokers.sink, 0.1)
                with suppress(PySparkException):
                    query.stop()
                brokers.crash(brokers.source, 0.1)
    if query is not None:
        with suppress(PySparkException):
            query.stop()


class SparkProcess:
    """The query in a process of its own, to be killed as a crash would."""

    def __init__(self, source: str, sink: str, checkpoint: Path) -> None:
        command = [sys.executable, "-m", "tests.spark.crashing", source, sink, str(checkpoint)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        """Kill it with the Java process and the workers it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


def main(source: str, sink: str, checkpoint: str) -> None:
    """Run the query until killed."""
    from postroad.spark import session

    with session.running("local[2]", quick=True) as spark:
        while True:
            query = start(spark, source, sink, Path(checkpoint))
            print("running", flush=True)  # noqa: T201  # tells the parent
            with suppress(PySparkException):
                query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
