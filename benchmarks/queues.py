"""Queues beside their peers: one PostgreSQL with fsync on, the same work for everybody.

    python -m benchmarks.queues [--seconds S] [--backlog N] [--repeat N]    # about 4 minutes

Work: put, take and done messages of 100 bytes for S seconds, with eight producers and eight consumers at once, until all are
done; first one message a call, then a hundred. Producers wait while 5,000 messages are not done. Latency: from the call of put
to the consumer having the message, one at a time, the consumer waiting.

- postroad: eight clients over TCP to one server process (what a user has);
- postroad, embedded: the storage used as a library in this process, as the peers are;
- PGQueuer and Procrastinate: their own workers in this process, with their own batching; finished jobs are deleted (PGQueuer
  also logs them).

Then what a million waiting messages cost: put+take+done through the storage with 10 and with a million messages in the queue.
Peers need the `bench` dependency group; one that is missing is named and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Final

import asyncpg
from tests.private_postgres import PrivatePostgres

from benchmarks.records import RESULTS, circumstances, save
from postroad.queues.client import QueueClient
from postroad.storage.queues.base import ClientMode, Lease, NewMessage, TakeRequest
from postroad.storage.queues.postgres import PostgresQueueStorage
from postroad.wire.packets.queues import NewMessage as WireMessage

PAYLOAD: Final = b"x" * 100
WORKERS: Final = 8
BATCH: Final = 100
NOT_DONE_MAX: Final = 5_000
LATENCY_SAMPLES: Final = 100
GAP_S: Final = 0.05  # long enough that the consumer has finished the message before and waits


@dataclass
class Figures:
    """What one contender did. Rates in messages per second, latencies in milliseconds."""

    name: str
    single_per_s: float = 0.0
    batch_per_s: float = 0.0
    latency_p50_ms: float = 0.0
    latency_p99_ms: float = 0.0
    note: str = field(default="", compare=False)

    def keep_best(self, other: Figures) -> None:
        self.single_per_s = max(self.single_per_s, other.single_per_s)
        self.batch_per_s = max(self.batch_per_s, other.batch_per_s)
        if not self.latency_p50_ms or other.latency_p50_ms < self.latency_p50_ms:
            self.latency_p50_ms, self.latency_p99_ms = other.latency_p50_ms, other.latency_p99_ms


class Progress:
    """What was put and what is done, of one run."""

    def __init__(self) -> None:
        self.put = 0
        self.done = 0
        self.finished = asyncio.Event()
        self._putting = True

    def more_done(self, by: int = 1) -> None:
        self.done += by
        self._check()

    def end(self) -> None:
        self._putting = False
        self._check()

    def _check(self) -> None:
        if not self._putting and self.done >= self.put:
            self.finished.set()


async def in_parallel(seconds: float, size: int, work: Callable[[int], Awaitable[object]], progress: Progress) -> float:
    """Let eight producers put for a while in calls of `size`; return the messages per second until all are done."""
    began = time.perf_counter()

    async def producer() -> None:
        while time.perf_counter() - began < seconds:
            if progress.put - progress.done > NOT_DONE_MAX:
                await asyncio.sleep(0.001)
                continue
            progress.put += size
            await work(size)

    await asyncio.gather(*(producer() for _ in range(WORKERS)))
    progress.end()
    await progress.finished.wait()
    return progress.put / (time.perf_counter() - began)


async def latencies(put: Callable[[bytes], Awaitable[object]], arrived: asyncio.Queue[float]) -> tuple[float, float]:
    samples = []
    for _ in range(LATENCY_SAMPLES):
        await asyncio.sleep(GAP_S)
        start = time.perf_counter()
        await put(b"")
        samples.append(((await arrived.get()) - start) * 1000)
    return statistics.median(samples), statistics.quantiles(samples, n=100)[98]


# postroad


@contextlib.asynccontextmanager
async def server(dsn: str) -> AsyncIterator[int]:
    process = subprocess.Popen(  # noqa: ASYNC220 - once, before anything is measured
        [sys.executable, "-m", "postroad.queues.server", "--listen", "127.0.0.1:0", "--store", dsn],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        yield int(line.rsplit(":", 1)[1])
    finally:
        process.terminate()
        process.wait()


async def postroad_over_tcp(dsn: str, seconds: float) -> Figures:
    figures = Figures("postroad")
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(server(dsn))
        stamp = time.time_ns()
        clients = [
            await stack.enter_async_context(QueueClient.register("127.0.0.1", port, name=f"c{stamp}{i}")) for i in range(WORKERS)
        ]
        queue = await clients[0].create_queue(f"bench{stamp}")
        producers = itertools.cycle(clients)
        for size in (1, BATCH):
            progress = Progress()

            async def consumer(client: QueueClient, size: int = size, progress: Progress = progress) -> None:
                while not progress.finished.is_set():
                    taken = await client.take_batch(queue, size, timeout=0.2)
                    if taken:
                        await client.done(taken)
                        progress.more_done(len(taken))

            async def put(n: int) -> None:
                await next(producers).put_batch([WireMessage(queue.queue_id, PAYLOAD)] * n)

            consumers = [asyncio.create_task(consumer(client)) for client in clients]
            rate = await in_parallel(seconds, size, put, progress)
            await asyncio.gather(*consumers)
            if size == 1:
                figures.single_per_s = rate
            else:
                figures.batch_per_s = rate
        arrived: asyncio.Queue[float] = asyncio.Queue()

        async def waiting() -> None:
            for _ in range(LATENCY_SAMPLES):
                delivery = await clients[1].take(queue, timeout=10)
                assert delivery is not None
                arrived.put_nowait(time.perf_counter())
                await delivery.done()

        taker = asyncio.create_task(waiting())
        figures.latency_p50_ms, figures.latency_p99_ms = await latencies(lambda p: clients[0].put(queue, p), arrived)
        await taker
    return figures


async def postroad_embedded(dsn: str, seconds: float) -> Figures:
    figures = Figures("postroad, embedded")
    storage = PostgresQueueStorage(dsn)
    await storage.open()
    try:
        queue = (await storage.create_queue(f"embedded{time.time_ns()}")).queue_id
        senders = itertools.cycle(range(1, WORKERS + 1))
        for size in (1, BATCH):
            progress = Progress()

            async def consumer(client_id: int, size: int = size, progress: Progress = progress) -> None:
                while not progress.finished.is_set():
                    taken = await storage.take(TakeRequest(queue, client_id, limit=size))
                    if taken:
                        await storage.done([Lease(m.queue_id, m.message_id, m.delivery, client_id) for m in taken])
                        progress.more_done(len(taken))
                    else:
                        await asyncio.sleep(0.002)

            async def put(n: int) -> None:
                await storage.put([NewMessage(queue, next(senders), PAYLOAD)] * n)

            consumers = [asyncio.create_task(consumer(i + 1)) for i in range(WORKERS)]
            rate = await in_parallel(seconds, size, put, progress)
            await asyncio.gather(*consumers)
            if size == 1:
                figures.single_per_s = rate
            else:
                figures.batch_per_s = rate
    finally:
        await storage.close()
    return figures


# peers


async def pgqueuer(dsn: str, seconds: float) -> Figures:
    from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries  # noqa: PLC0415 - only with the bench group

    figures = Figures("PGQueuer")
    pool = await asyncpg.create_pool(dsn, min_size=2, max_size=8)
    queries = Queries(AsyncpgPoolDriver(pool))
    with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.DuplicateTableError):
        await queries.install()
    for size in (1, BATCH, 0):
        progress = Progress()
        arrived: asyncio.Queue[float] = asyncio.Queue()
        worker = PgQueuer(AsyncpgPoolDriver(pool))

        @worker.entrypoint("work")
        async def work(_job: Any, progress: Progress = progress, arrived: asyncio.Queue[float] = arrived) -> None:
            arrived.put_nowait(time.perf_counter())
            progress.more_done()

        async def put(n: int) -> None:
            await queries.enqueue(["work"] * n, [PAYLOAD] * n, [5] * n)

        running = asyncio.create_task(worker.run(dequeue_timeout=timedelta(seconds=1), batch_size=size or 10))
        await asyncio.sleep(0.5)
        if size:
            rate = await in_parallel(seconds, size, put, progress)
            if size == 1:
                figures.single_per_s = rate
            else:
                figures.batch_per_s = rate
        else:
            figures.latency_p50_ms, figures.latency_p99_ms = await latencies(lambda _: put(1), arrived)
        worker.shutdown.set()
        await running
    await pool.close()
    return figures


async def procrastinate(dsn: str, seconds: float) -> Figures:
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415 - only with the bench group

    figures = Figures("Procrastinate")
    app = App(connector=PsycopgConnector(conninfo=dsn, min_size=2, max_size=8))
    progress = Progress()
    arrived: asyncio.Queue[float] = asyncio.Queue()

    @app.task(queue="work", name="work")
    async def work(payload: str) -> None:  # noqa: ARG001
        arrived.put_nowait(time.perf_counter())
        progress.more_done()

    async with app.open_async():
        with contextlib.suppress(Exception):  # the schema is there from the round before
            await app.schema_manager.apply_schema_async()
        text = PAYLOAD.decode()
        for size in (1, BATCH, 0):
            progress = Progress()
            concurrency = WORKERS if size < BATCH else BATCH
            options: dict[str, Any] = {"queues": ["work"], "concurrency": concurrency, "delete_jobs": "always"}
            running = asyncio.create_task(app.run_worker_async(**options, install_signal_handlers=False, wait=True))
            await asyncio.sleep(0.5)

            async def put(n: int, task: Any = work) -> None:
                if n == 1:
                    await task.defer_async(payload=text)
                else:
                    await task.batch_defer_async(*[{"payload": text}] * n)

            if size:
                rate = await in_parallel(seconds, size, put, progress)
                if size == 1:
                    figures.single_per_s = rate
                else:
                    figures.batch_per_s = rate
                while not arrived.empty():
                    arrived.get_nowait()
            else:
                figures.latency_p50_ms, figures.latency_p99_ms = await latencies(lambda _: put(1), arrived)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
    return figures


# the backlog


async def cost_with_backlog(dsn: str, waiting: int, cycles: int = 400) -> tuple[float, float]:
    """Return milliseconds for put+take+done, by priority and by time: the best of five rounds, one call after the other."""
    storage = PostgresQueueStorage(dsn)
    await storage.open()
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "postroad"})
    try:
        queue = (await storage.create_queue(f"backlog{time.time_ns()}")).queue_id
        await storage.request_id(f"filler{time.time_ns()}", ClientMode.READ_AND_PUT)
        await connection.execute(
            "INSERT INTO messages (queue_id, sender_id, receiver_id, priority, message, time_of_arrival) "  # noqa: S608 - numbers only
            f"SELECT {queue}, i % 50 + 1, CASE WHEN i % 4 = 0 THEN i % 1000 + 10 END, i % 10 + 1, "
            f"decode(repeat('78', 100), 'hex'), now() + i * interval '1 microsecond' FROM generate_series(1, {waiting}) i",
            timeout=600,
        )
        await connection.execute("CHECKPOINT")
        results = []
        for mode in ("PRIORITY", "ARRIVAL"):
            rounds = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(cycles // 5):
                    await _cycle(storage, queue, mode)
                rounds.append((time.perf_counter() - start) / (cycles // 5) * 1000)
            results.append(min(rounds))
        return results[0], results[1]
    finally:
        await connection.close()
        await storage.close()


async def _cycle(storage: PostgresQueueStorage, queue: int, mode: str) -> None:
    from postroad.storage.queues.base import ReadMode  # noqa: PLC0415

    await storage.put([NewMessage(queue, 1, PAYLOAD, priority=10)])
    (message,) = await storage.take(TakeRequest(queue, 1, ReadMode[mode]))
    await storage.done([Lease(queue, message.message_id, message.delivery, 1)])


CONTENDERS: Final[list[Callable[[str, float], Awaitable[Figures]]]] = [
    postroad_over_tcp,
    postroad_embedded,
    pgqueuer,
    procrastinate,
]


async def run(seconds: float, backlog: int, repeat: int) -> dict[str, Any]:
    best: dict[str, Figures] = {}
    runs: list[dict[str, Any]] = []
    with PrivatePostgres(fsync=True) as cluster:
        print(f"{cluster.version}, fsync on; {seconds:g} s of each; best of {repeat}")
        for _ in range(repeat):
            for contender in CONTENDERS:
                try:
                    figures = await contender(cluster.dsn, seconds)
                except ImportError as error:
                    print(f"left out: {error}; install the `bench` dependency group")
                    continue
                runs.append(asdict(figures))
                best.setdefault(figures.name, figures).keep_best(figures)
        print(f"{'':22}{'single/s':>10}{'batch/s':>10}{'p50 ms':>9}{'p99 ms':>9}")
        for f in best.values():
            print(f"{f.name:22}{f.single_per_s:10,.0f}{f.batch_per_s:10,.0f}{f.latency_p50_ms:9.2f}{f.latency_p99_ms:9.2f}")
        costs = {waiting: await cost_with_backlog(cluster.dsn, waiting) for waiting in (10, backlog)}
    for waiting, (by_priority, by_time) in costs.items():
        print(f"{waiting:>9,} waiting: put+take+done {by_priority:.2f} ms by priority, {by_time:.2f} ms by time")
    ratio = max(costs[backlog][i] / costs[10][i] for i in range(2))
    print(f"cost ratio {ratio:.2f} (must stay below 2)")
    return {
        "figures": [asdict(f) for f in best.values()],
        "runs": runs,
        "backlog_ms": {str(k): v for k, v in costs.items()},
        "ratio": ratio,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - optional

        uvloop.install()
    machine = circumstances()
    results = asyncio.run(run(arguments.seconds, arguments.backlog, arguments.repeat))
    save(RESULTS / "queues.json", machine, results)


if __name__ == "__main__":
    main()
