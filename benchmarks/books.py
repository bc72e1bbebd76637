"""Close the books of a real overlay: five broker processes, durable subscribers with overlapping filters, two kills, then Spark.

First act: messages are published at three brokers while two brokers are killed and started again. Every subscriber must get what
it should, once. Then all ids are traced and compared with what the subscribers got, and the books must close.
Second act: the brokers leave out one delivery in so many from their tracks, on purpose. The audit must name exactly those.

`python -m benchmarks.books --messages 1000000` is the large version; `tests/acceptance` runs a small one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

import postroad
from postroad.core.batch.batch import Ids
from postroad.runtime.config import Links, Neighbour, NodeConfig, Overlay, Tracking
from postroad.runtime.process import BrokerProcess
from postroad.spark import session
from postroad.spark.jobs.arrow import id_column, schema_of
from postroad.spark.jobs.audit import Audit, audit
from postroad.spark.jobs.published import all_ids, open_logs
from postroad.spark.jobs.trace import entries, trace
from postroad.spark.jobs.tracks import open_tracks
from postroad.testing import free_ports
from postroad.tracking.histories.tracker import omitted

DIALS: Final = {1: (), 2: (1,), 3: (1,), 4: (2, 3), 5: (4,)}
ORIGINS: Final = (1, 3, 5)
KILLED: Final = (4, 2)
KINDS: Final = ("quote", "trade", "news", "order")
CHUNK: Final = 500
Strategy = Literal["exact", "bloom", "async"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What one durable subscriber wants."""

    name: str
    broker: int
    kinds: tuple[int, ...]
    threshold: int

    @property
    def filter(self) -> str:
        listed = ", ".join(f"'{KINDS[kind]}'" for kind in self.kinds)
        return f"kind IN ({listed}) AND value >= {self.threshold}"

    def wants(self, kinds: Any, values: Any) -> Any:
        return np.isin(kinds, self.kinds) & (values >= self.threshold)


def wishes(count: int) -> list[Wish]:
    found = []
    for number in range(count):
        first = number % len(KINDS)
        kinds = (first, (first + 1) % len(KINDS)) if number % 3 else (first,)
        found.append(Wish(f"sub{number}", 1 + number % 5, kinds, number % 8))
    return found


@dataclass(slots=True)
class Act:
    """What happened in one act: published messages in chunks, and what each subscriber received."""

    published: list[tuple[Ids, Any, Any]] = field(default_factory=list)
    received: dict[str, list[Ids]] = field(default_factory=dict)

    def expected(self, wish: Wish) -> int:
        return sum(int(wish.wants(kinds, values).sum()) for _, kinds, values in self.published)

    def got(self, name: str) -> int:
        return sum(len(ids) for ids in self.received[name])

    @property
    def messages(self) -> int:
        return sum(len(ids) for ids, _, _ in self.published)


class Books:
    """The overlay and its subscribers in one directory."""

    def __init__(self, directory: Path, subscribers: int, seed: int) -> None:
        self.directory = directory
        self.wishes = wishes(subscribers)
        self.data = [str(directory / f"broker{number}") for number in DIALS]
        self._ports = dict(zip(DIALS, free_ports(len(DIALS)), strict=True))
        self._random = np.random.default_rng(seed)

    def config(self, number: int, tracking: Tracking) -> NodeConfig:
        return NodeConfig(
            id=number,
            name=f"broker{number}",
            listen=f"127.0.0.1:{self._ports[number]}",
            data_dir=self.data[number - 1],
            neighbours=tuple(Neighbour(address=f"127.0.0.1:{self._ports[each]}") for each in DIALS[number]),
            links=Links(heartbeat_s=0.5, timeout_s=5.0, retry_s=0.05, retry_s_max=0.5),
            overlay=Overlay(silence_s=0.2, subscriber_grace_s=60.0),
            tracking=tracking,
        )

    def play(self, messages: int, tracking: Tracking, kills: Sequence[int]) -> Act:
        """Run one act: all brokers start, messages flow, brokers are killed on the way, all end in good order."""
        with ExitStack() as stack:
            brokers = {
                number: stack.enter_context(BrokerProcess(self.config(number, tracking), self.directory)) for number in DIALS
            }
            act = asyncio.run(self._act(brokers, messages, kills))
            for broker in brokers.values():
                broker.stop()
                broker.start()  # its context ends it; a restart also shows that the tracks can be opened again
            return act

    async def _act(self, brokers: dict[int, BrokerProcess], messages: int, kills: Sequence[int]) -> Act:
        act = Act()
        async with AsyncExitStack() as stack:
            clients = {
                number: await stack.enter_async_context(postroad.connect(broker.url)) for number, broker in brokers.items()
            }
            tasks, subscriptions = [], []
            for wish in self.wishes:
                subscription = await clients[wish.broker].subscribe(wish.filter, name=wish.name, timeout=60)
                subscriptions.append(subscription)
                act.received[wish.name] = []
                tasks.append(asyncio.create_task(_receive(subscription, act.received[wish.name])))
            publishing = [
                asyncio.create_task(self._publish(clients[origin], messages // len(ORIGINS), act)) for origin in ORIGINS
            ]
            for part, number in enumerate(kills, 1):
                due = messages * part / (len(kills) + 1)
                await _until(lambda due=due: act.messages >= due or all(task.done() for task in publishing))  # type: ignore[misc]
                await asyncio.to_thread(brokers[number].kill)
                await asyncio.sleep(0.7)
                await asyncio.to_thread(brokers[number].start)
            await asyncio.gather(*publishing)
            await self._settle(act)
            for subscription in subscriptions:
                await subscription.ack()
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return act

    async def _publish(self, client: postroad.Client, count: int, act: Act) -> None:
        publisher = client.publisher()
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            kinds, values = self._random.integers(0, len(KINDS), size), self._random.integers(0, 10, size)
            columns = {"kind": [KINDS[kind] for kind in kinds.tolist()], "value": values}
            ids: Any = await publisher.publish_many(columns, [b"x" * 40] * size)
            act.published.append((ids.array(), kinds, values))
            await asyncio.sleep(0)
            await _until(lambda: publisher.outstanding <= 20 * CHUNK, pause_s=0.01)
        await publisher.flush(120)

    async def _settle(self, act: Act) -> None:
        """Wait until every subscriber has what it should, and a little longer for what it should not."""
        deadline = time.monotonic() + 180
        await _until(lambda: time.monotonic() > deadline or all(act.got(wish.name) >= act.expected(wish) for wish in self.wishes))
        await asyncio.sleep(1.0)


async def _until(condition: Callable[[], bool], pause_s: float = 0.05) -> None:
    while not condition():  # noqa: ASYNC110  # conditions on many tasks and processes have no event
        await asyncio.sleep(pause_s)


async def _receive(subscription: postroad.Subscription, received: list[Ids]) -> None:
    batches = 0
    async for batch in subscription.batches():
        received.append(batch.ids().copy())
        batches += 1
        if batches % 50 == 0:
            await subscription.ack()


# --- the checks -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """What is printed at the end."""

    persistence_ms: int = 0  # T_p
    strategy: str = ""
    subscribers: int = 0
    kills: int = 0
    messages: int = 0
    deliveries: int = 0
    not_exactly_once: int = 0
    traced_per_s: float = 0.0
    unpublished: int = 0
    untracked: int = 0
    untracked_unexplained: int = 0
    false_entries: int = 0
    false_by_chance: float = 0.0
    isolated: int = 0
    first_missing: int = -1
    first_closes: bool = False
    first_explained: int = 0
    left_out: int = 0
    named: int = 0
    wrongly_named: int = 0
    not_named: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        return (
            not any((self.not_exactly_once, self.unpublished, self.untracked_unexplained, self.first_missing, self.wrongly_named))
            and self.first_closes
            and self.not_named == 0
            and self.named > 0
            and self.false_entries <= self.false_by_chance + 4 * self.false_by_chance**0.5 + 1
        )


def deliveries(acts: Sequence[Act]) -> Iterator[tuple[str, Ids]]:
    for act in acts:
        for name, parts in act.received.items():
            if parts:
                yield name, np.concatenate(parts)


def check_clients(books: Books, act: Act, result: Result) -> None:
    """Every subscriber got exactly what it should, once."""
    for wish in books.wishes:
        got = np.concatenate(act.received[wish.name]) if act.received[wish.name] else np.empty(0, "V16")
        wanted = np.concatenate([ids[wish.wants(kinds, values)] for ids, kinds, values in act.published])
        once = len(np.unique(got)) == len(got)
        result.not_exactly_once += not (once and np.array_equal(np.sort(got.view("S16")), np.sort(wanted.view("S16"))))
        result.deliveries += len(got)
    result.messages += act.messages


def write_truth(path: Path, acts: Sequence[Act]) -> None:
    schema = schema_of([pa.field("id", pa.binary()), pa.field("subscriber", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for name, ids in deliveries(acts):
            writer.write_table(pa.table([id_column(ids), pa.array([name] * len(ids))], schema=schema))


def check_traces(spark: SparkSession, books: Books, acts: Sequence[Act], result: Result) -> None:
    """Trace all ids and hold the result against what subscribers got."""
    write_truth(books.directory / "truth.parquet", acts)
    truth = spark.read.parquet(str(books.directory / "truth.parquet")).withColumn("true", F.lit(1))
    tracks = open_tracks(spark, books.data)
    began = time.monotonic()
    traced = trace(all_ids(open_logs(spark, books.data)), tracks, ordered=True)
    count = traced.traces.agg(F.count("*"), F.sum((~F.col("published")).cast("long"))).first()
    assert count is not None
    result.traced_per_s = count[0] / (time.monotonic() - began)
    result.unpublished = int(count[1] or 0) + abs(sum(act.messages for act in acts) - int(count[0]))
    found = (
        entries(traced.traces).filter("kind = 'subscriber'").select("id", "subscriber", "isolated").withColumn("found", F.lit(1))
    )
    both = truth.join(found, ["id", "subscriber"], "full_outer")
    unfound = both.filter("found is null").join(traced.traces.select("id", "holes"), "id")
    explained = F.exists("holes", lambda hole: hole["kind"] == "crash")
    row = unfound.agg(F.count("*"), F.sum((~explained).cast("long"))).first()
    false = both.filter("true is null").agg(F.count("*"), F.sum(F.col("isolated").cast("long"))).first()
    assert row is not None
    assert false is not None
    result.untracked, result.untracked_unexplained = int(row[0]), int(row[1] or 0)
    result.false_entries, result.isolated = int(false[0]), int(false[1] or 0)
    result.false_by_chance = traced.summary().by_chance
    tracks.close()


def run_audit(spark: SparkSession, books: Books, *, full: bool) -> Audit:
    return audit(open_logs(spark, books.data), open_tracks(spark, books.data), full=full)


def check_names(done: Audit, acts: Sequence[Act], one_in: int, result: Result) -> None:
    """The audit names exactly the deliveries that were left out of the tracks."""
    rows = done.findings.filter("kind = 'subscriber' and verdict = 'missing'").collect()
    named = {(bytes(row["id"]), row["subscriber"]) for row in rows}
    left_out = {
        (bytes(item), name) for name, ids in deliveries(acts) for item in ids.tolist() if omitted(name, bytes(item), one_in)
    }
    result.left_out, result.named = len(left_out), len(named)
    result.wrongly_named, result.not_named = len(named - left_out), len(left_out - named)


def close_books(
    directory: Path,
    messages: int,
    subscribers: int,
    strategy: Strategy,
    seed: int,
    master: str,
    second: int,
    persistence_ms: int,
) -> Result:
    books = Books(directory, subscribers, seed)
    result = Result(persistence_ms=persistence_ms, strategy=strategy, subscribers=subscribers, kills=len(KILLED))
    tracking = Tracking(strategy=strategy, persistence_ms=persistence_ms, few_as_ids=False)
    one_in = max(second // 20, 10)

    def timed(name: str, began: float) -> float:
        result.seconds[name] = round(time.monotonic() - began, 1)
        print(f"{name}: {result.seconds[name]} s", file=sys.stderr, flush=True)
        return time.monotonic()

    clock = time.monotonic()
    first = books.play(messages, tracking, KILLED)
    check_clients(books, first, result)
    clock = timed("first act", clock)
    with session.running(master, app="books") as spark:
        clock = timed("Spark starts", clock)
        check_traces(spark, books, [first], result)
        clock = timed("trace of all ids, compared", clock)
        done = run_audit(spark, books, full=False)
        result.first_missing, result.first_closes = done.summary.missing, done.summary.closes
        result.first_explained = done.summary.explained
        done.close()
        clock = timed("audit", clock)
        last = books.play(second, msgspec.structs.replace(tracking, omit_one_in=one_in), ())
        check_clients(books, last, result)
        clock = timed("second act", clock)
        done = run_audit(spark, books, full=False)
        check_names(done, [last], one_in, result)
        done.close()
        timed("audit with deliveries left out", clock)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--second", type=int, default=6_000, help="messages of the second act")
    parser.add_argument("--subscribers", type=int, default=40)
    parser.add_argument("--strategy", choices=["exact", "bloom", "async"], default="bloom")
    parser.add_argument("--persistence-ms", type=int, default=2_000, help="T_p of the brokers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", type=Path, help="keep everything here; otherwise a temporary directory is used")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postroad-books-") as temporary:
        directory = given.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        result = close_books(
            directory,
            given.messages,
            given.subscribers,
            given.strategy,
            given.seed,
            given.master,
            given.second,
            given.persistence_ms,
        )
    print(json.dumps({name: getattr(result, name) for name in Result.__slots__} | {"sound": result.sound}, indent=2))
    return 0 if result.sound else 1


if __name__ == "__main__":
    sys.exit(main())
