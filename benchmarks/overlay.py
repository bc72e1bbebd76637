"""Publish/subscribe through real brokers: fsync on, 100-byte payloads, loopback.

    python -m benchmarks.overlay                 # every shape
    python -m benchmarks.overlay a c             # throughput, with the default tracking and without it (about 2 minutes)
    python -m benchmarks.overlay b               # latency at three rates, likewise (about 3 minutes)
    python -m benchmarks.overlay d               # matching (about 1 minute)
    python -m benchmarks.overlay e --minutes 10  # memory over time
    python -m benchmarks.overlay t --rounds 32 --strategies bloom  # what tracking costs; each load takes 10 to 20 minutes

Shapes, as in benchmarks/notes/overlay.md: (a) one publisher, ten subscribers that match 10% each, in columns and message by
message, and ten that want everything; (b) 200 publishers, 500 subscribers, 500 topics, 5,000 messages per second: latency;
(c) one and two relay hops; (d) matching cost by number of subscriptions to 500 symbols, with the rows of every match; (e)
the broker's memory under (b); (t) the columns and messages of (a) and the latencies of (b) with each tracking strategy, in
turn, as ratios to `null`. Each broker, the publishers and the subscribers are processes of their own. Raw results go to
`benchmarks/results/overlay-SHAPE.json`, one file for each shape.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

import postroad
from benchmarks.records import RESULTS, circumstances, save
from postroad.core.batch.batch import Batch
from postroad.core.batch.build import build_batches
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.runtime.config import Neighbour, NodeConfig, Tracking
from postroad.runtime.process import BrokerProcess, with_children
from postroad.testing import free_ports
from postroad.transport.loops import run

PAYLOAD: Final = b"x" * 100
DEFAULT: Final = Tracking()
STRATEGIES: Final = {"null": Tracking(strategy="null"), "bloom": Tracking(strategy="bloom"), "exact": Tracking(strategy="exact")}
TRACKINGS: Final = {"default": DEFAULT, "null": STRATEGIES["null"]}
LOADS: Final = ("columns", "messages", "5000", "2000", "500")
THROUGHPUT: Final = ("messages_per_s", "broker_cpu_us", "all_cpu_us")
LATENCY: Final = ("p50_ms", "p99_ms", "p99_second_ms", "broker_cpu")
PERCENTILES: Final = {"50": 50.0, "99": 99.0, "999": 99.9}
SYMBOLS: Final = [f"S{number}" for number in range(10)]


# --- processes -----------------------------------------------------------------------------------------------------------


def broker(directory: Path, number: int = 1, neighbours: Sequence[str] = (), tracking: Tracking = DEFAULT) -> BrokerProcess:
    """Give a broker that runs as a process inside `with`."""
    config = NodeConfig(
        id=number,
        data_dir=str(directory / str(number)),
        listen=f"127.0.0.1:{free_ports(1)[0]}",
        neighbours=tuple(Neighbour(address=each) for each in neighbours),
        tracking=tracking,
        log_level="warning",
    )
    return BrokerProcess(config, directory)


def cpu_s(broker_pid: int) -> float:
    """Return the CPU time a broker has used, its tracking process included."""
    pids = with_children(broker_pid)
    used = [Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[11:13] for pid in pids]
    return sum(int(ticks) for each in used for ticks in each) / os.sysconf("SC_CLK_TCK")


def _cpu_of(brokers: Sequence[BrokerProcess]) -> float:
    return sum(cpu_s(each.pid) for each in brokers)


def memory_mb(process: BrokerProcess) -> float:
    """Return the memory that a broker holds for itself, its tracking process included."""
    texts = [Path(f"/proc/{pid}/status").read_text(encoding="ascii") for pid in process.pids]
    return sum(int(text.split("VmRSS:")[1].split()[0]) for text in texts) / 1024


READY_S_MAX: Final = 600.0
FLOW_S_MAX: Final = 120.0  # of one turn

Task = Callable[..., Coroutine[Any, Any, Any]]


@dataclass
class Worker:
    """An asyncio program in a process. It says when it is ready, starts when told, and sends one result."""

    process: Any
    pipe: Connection

    @classmethod
    def start(cls, task: Task, *arguments: Any) -> Worker:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, task, arguments), daemon=True)
        process.start()
        return cls(process, ours)

    def ready(self) -> None:
        assert self._get(READY_S_MAX) == "ready"

    def go(self) -> None:
        self.pipe.send("go")

    def result(self, seconds: float) -> tuple[Any, float]:
        """Return what the task returned, which should take so many seconds, and the CPU seconds it used since the start."""
        value, cpu = self._get(seconds + READY_S_MAX)
        self.process.join()
        return value, cpu

    def _get(self, seconds_max: float) -> Any:
        if not self.pipe.poll(seconds_max):
            raise TimeoutError("a worker is stuck")
        value = self.pipe.recv()
        if isinstance(value, Exception):
            raise value
        return value


class Start:
    """Handed to a worker's task: call it when everything is set up; it returns when all are."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.cpu_s = 0.0  # used before the start

    async def __call__(self) -> None:
        self._pipe.send("ready")
        await asyncio.to_thread(self._pipe.recv)
        self.cpu_s = time.process_time()


def _work(pipe: Connection, task: Task, arguments: tuple[Any, ...]) -> None:
    start = Start(pipe)
    try:
        value = run(task(start, *arguments))
        pipe.send((value, time.process_time() - start.cpu_s))
    except Exception as error:  # noqa: BLE001  # the parent shows it
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


# --- (a) and (c): throughput ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When something was, and the CPU time its process had used by then."""

    at_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(time.time(), time.process_time())


@dataclass(frozen=True)
class Flow:
    """One publisher and some subscribers, as fast as they can: so many messages, in this form, and who wants which."""

    count: int
    filters: Sequence[str]
    share: float  # of the messages that each filter matches
    batch_rows: int = 1  # 1: message by message

    @property
    def expected(self) -> int:
        """Return how many messages each subscriber gets."""
        return int(self.count * self.share)


REST_S: Final = 1.0  # after a turn: what the brokers still have to do


async def publish_flow(start: Start, turns: Sequence[str], flow: Flow) -> list[tuple[Moment, Moment]]:
    """Publish to each broker in its turn; return when each turn began and when everything in it was acknowledged."""
    publish = publish_messages if flow.batch_rows == 1 else publish_columns
    async with AsyncExitStack() as stack:
        clients = {url: await stack.enter_async_context(postroad.connect(url)) for url in sorted(set(turns))}
        publishers = {url: client.publisher() for url, client in clients.items()}
        await start()
        moments = []
        for number, url in enumerate(turns):
            if number:
                await asyncio.sleep(REST_S)
            began = Moment.now()
            await publish(publishers[url], flow)
            await publishers[url].flush()
            moments.append((began, Moment.now()))
        return moments


async def publish_columns(publisher: postroad.Publisher, flow: Flow) -> None:
    rows = flow.batch_rows
    symbols = (SYMBOLS * (rows // len(SYMBOLS) + 1))[:rows]
    columns = {"symbol": symbols, "price": np.arange(rows, dtype=np.float64), "volume": np.arange(rows)}
    payloads = [PAYLOAD] * rows
    for _ in range(flow.count // rows):
        await publisher.publish_many(columns, payloads)


async def publish_messages(publisher: postroad.Publisher, flow: Flow) -> None:
    publish = publisher.publish
    for number in range(flow.count):
        await publish({"symbol": SYMBOLS[number % 10], "price": number * 0.5, "volume": number}, PAYLOAD)


async def receive_flow(start: Start, turns: Sequence[str], flow: Flow) -> list[tuple[Moment, Moment]]:
    """Return from when each turn was waited for, and when its last message came."""
    receive = _receive_messages if flow.batch_rows == 1 else _receive_columns
    async with AsyncExitStack() as stack:
        subscriptions: dict[str, list[postroad.Subscription]] = {}
        for url in sorted(set(turns)):
            clients = await stack.enter_async_context(_clients(url, len(flow.filters)))
            subscriptions[url] = [await client.subscribe(text) for client, text in zip(clients, flow.filters, strict=True)]
        await start()
        moments = []
        for url in turns:
            waited = Moment.now()
            await asyncio.gather(*(receive(subscription, flow.expected) for subscription in subscriptions[url]))
            moments.append((waited, Moment.now()))
        return moments


async def _receive_columns(subscription: postroad.Subscription, expected: int) -> None:
    seen = 0
    async for batch in subscription.batches():
        seen += len(batch)
        if seen >= expected:
            return


async def _receive_messages(subscription: postroad.Subscription, expected: int) -> None:
    seen = 0
    total = 0.0
    async for message in subscription:
        total += message["price"]  # type: ignore[operator]  # the application looks at something
        seen += 1
        if seen >= expected:
            return


class _clients:  # noqa: N801  # a context manager
    def __init__(self, url: str, count: int) -> None:
        self._clients = [postroad.connect(url) for _ in range(count)]

    async def __aenter__(self) -> list[postroad.Client]:
        return [await client.__aenter__() for client in self._clients]

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.close(flush=False)


def throughput(name: str, flow: Flow, tracking: str, hops: int = 0) -> dict[str, Any]:
    """Run one publisher and the subscribers, `hops` relays apart; count from the first publish to the last delivery."""
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory, ExitStack() as stack:
        chosen = TRACKINGS[tracking]
        brokers = [stack.enter_context(broker(Path(directory), tracking=chosen))]
        for number in range(2, hops + 3 if hops else 2):
            brokers.append(stack.enter_context(broker(Path(directory), number, [brokers[-1].config.listen], chosen)))
        if hops:
            time.sleep(2.5)
        (figures,), (cpu,) = _run_flow(flow, [(brokers[0].url, brokers[-1].url)], [brokers])
        used = {"broker_cpu_us": round(cpu / flow.count * 1e6, 2)}  # per message, all brokers together
        return {"shape": name, "tracking": tracking, "messages": flow.count, **figures, **used}


def throughput_in_turns(flow: Flow, trackings: dict[str, Tracking], rounds: int, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Let brokers that differ in their tracking live side by side and give each the whole flow, in turns."""
    names = _random_turns(trackings, rounds, seed)
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory, ExitStack() as stack:
        brokers = _side_by_side(stack, Path(directory), trackings)
        turns = [(brokers[name].url, brokers[name].url) for name in names]
        runs, cpus = _run_flow(flow, turns, [[each] for each in brokers.values()])
        used = {name: cpu / (flow.count * rounds) * 1e6 for name, cpu in zip(brokers, cpus, strict=True)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trackings}
    for name, each in zip(names, runs, strict=True):
        all_cpu = used[name] + each["publisher_cpu_us"] + each["subscribers_cpu_us"]
        found[name].append({**each, "broker_cpu_us": used[name], "all_cpu_us": all_cpu})
    return found


def _run_flow(
    flow: Flow, turns: Sequence[tuple[str, str]], groups: Sequence[Sequence[BrokerProcess]]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Run a flow once for each turn: the addresses of its publisher and of its subscribers.

    Return the figures of each turn, and the CPU time that each group of brokers used in all of them.
    """
    receiver = Worker.start(receive_flow, [there for _, there in turns], flow)
    receiver.ready()
    sender = Worker.start(publish_flow, [here for here, _ in turns], flow)
    sender.ready()
    before = [_cpu_of(group) for group in groups]
    receiver.go()
    sender.go()
    seconds_max = FLOW_S_MAX * len(turns)
    (published, _), (received, _) = sender.result(seconds_max), receiver.result(seconds_max)
    cpus = [_cpu_of(group) - used for group, used in zip(groups, before, strict=True)]
    runs = []
    for (began, acknowledged), (waited, ended) in zip(published, received, strict=True):
        elapsed = ended.at_s - began.at_s
        runs.append(
            {
                "seconds": round(elapsed, 3),
                "messages_per_s": round(flow.count / elapsed),
                "deliveries_per_s": round(flow.expected * len(flow.filters) / elapsed),
                "publisher_cpu_us": round((acknowledged.cpu_s - began.cpu_s) / flow.count * 1e6, 2),
                "subscribers_cpu_us": round((ended.cpu_s - waited.cpu_s) / flow.count * 1e6, 2),
            }
        )
    return runs, cpus


def _random_turns(trackings: dict[str, Tracking], rounds: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [name for _ in range(rounds) for name in random.permutation(list(trackings)).tolist()]


def _side_by_side(stack: ExitStack, directory: Path, trackings: dict[str, Tracking]) -> dict[str, BrokerProcess]:
    """Start brokers that differ in their tracking.

    A machine that is slow for a while is slow for all of them, which it is not when they run one after the other. Two at a time
    are best: a broker at rest, with 700 connections, still keeps its clients informed, which takes 0.07 of a core.
    """
    return {
        name: stack.enter_context(broker(directory, number, tracking=tracking))
        for number, (name, tracking) in enumerate(trackings.items(), 1)
    }


TENTH: Final = [f"symbol = '{symbol}'" for symbol in SYMBOLS]
EVERYTHING: Final = [""] * 10


def shape_a(scale: float, trackings: Sequence[str]) -> Iterator[dict[str, Any]]:
    flows = {
        "a: columns, 10% each": Flow(_rounded(4_000_000 * scale), TENTH, 0.1, 1000),
        "a: columns, all want everything": Flow(_rounded(2_000_000 * scale), EVERYTHING, 1.0, 1000),
        "a: messages, 10% each": Flow(_rounded(1_500_000 * scale), TENTH, 0.1),
    }
    for name, flow in flows.items():
        for tracking in trackings:
            yield throughput(name, flow, tracking)


def shape_c(scale: float, trackings: Sequence[str]) -> Iterator[dict[str, Any]]:
    flow = Flow(_rounded(2_000_000 * scale), TENTH, 0.1, 1000)
    for hops in (1, 2):
        for tracking in trackings:
            yield throughput(f"c: columns, 10% each, {hops} relay hop{'s' * (hops > 1)}", flow, tracking, hops)


def _rounded(count: float) -> int:
    return max(10_000, int(count) // 10_000 * 10_000)


# --- (b) and (e): the tracking paper's shape ----------------------------------------------------------------------------------


PUBLISHERS: Final = 200
SUBSCRIBERS: Final = 500
TOPICS: Final = 500


async def publish_paced(start: Start, turns: list[str], rate: float, seconds: float) -> tuple[int, int]:
    """Publish at a steady rate over many connections to each broker, which have turns of so many seconds.

    The payload starts with the time of publishing. Return how many were sent, and when that began.
    """
    rng = random.Random(1)
    async with AsyncExitStack() as stack:
        clients = {url: await stack.enter_async_context(_clients(url, PUBLISHERS)) for url in sorted(set(turns))}
        publishers = {url: [client.publisher() for client in those] for url, those in clients.items()}
        await start()
        loop = asyncio.get_running_loop()
        began, began_ns, sent = loop.time(), time.monotonic_ns(), 0
        while (elapsed := loop.time() - began) < seconds * len(turns):
            due, each = int(elapsed * rate), publishers[turns[int(elapsed / seconds)]]
            while sent < due:
                stamp = time.monotonic_ns().to_bytes(8, "big")
                await each[sent % PUBLISHERS].publish({"topic": f"T{rng.randrange(TOPICS)}", "n": sent}, stamp + PAYLOAD[8:])
                sent += 1
            await asyncio.sleep(0.001)
        for each in publishers.values():
            for publisher in each:
                await publisher.flush()
        return sent, began_ns


async def receive_paced(start: Start, urls: list[str], seconds: float) -> tuple[list[int], list[int]]:
    """Return when messages came and how long after their publishing, in nanoseconds of the clock that all processes share."""
    moments: list[int] = []
    latencies: list[int] = []
    async with AsyncExitStack() as stack:
        clients = [client for url in urls for client in await stack.enter_async_context(_clients(url, SUBSCRIBERS))]
        subscriptions = [await client.subscribe(f"topic = 'T{number % TOPICS}'") for number, client in enumerate(clients)]
        await start()

        async def take(subscription: postroad.Subscription) -> None:
            async for message in subscription:
                now = time.monotonic_ns()
                moments.append(now)
                latencies.append(now - int.from_bytes(message.payload[:8], "big"))

        tasks = [asyncio.create_task(take(subscription)) for subscription in subscriptions]
        await asyncio.sleep(seconds + 1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return moments, latencies


def typical_second(moments: np.ndarray[Any, Any], latencies: np.ndarray[Any, Any], percent: float) -> float:
    """Return the percentile of each whole second, of these the median: a machine that now and then stands still spoils few."""
    seconds = (moments - moments[0]) // 1_000_000_000
    return float(np.median([np.percentile(latencies[seconds == each], percent) for each in np.unique(seconds)[:-1]]))


def paced(
    seconds: float,
    watch: Callable[[BrokerProcess, float], None] | None = None,
    tracking: Tracking = DEFAULT,
    rate: float = 5000.0,
) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory,
        broker(Path(directory), tracking=tracking) as process,
    ):
        receiver = Worker.start(receive_paced, [process.url], seconds)
        receiver.ready()
        sender = Worker.start(publish_paced, [process.url], rate, seconds)
        sender.ready()
        before, began = cpu_s(process.pid), time.monotonic()
        receiver.go()
        sender.go()
        while time.monotonic() - began < seconds:
            if watch is not None:
                watch(process, time.monotonic() - began)
            time.sleep(min(5.0, seconds / 4))
        (sent, _), _ = sender.result(seconds)
        cpu = cpu_s(process.pid) - before
        (moments, taken), _ = receiver.result(seconds)
        skip = len(taken) // 10  # the beginning, while connections warm up
        at, latencies = np.array(moments[skip:]), np.array(taken[skip:]) / 1e6
        return {
            "shape": f"b: {PUBLISHERS} publishers, {SUBSCRIBERS} subscribers, {TOPICS} topics, {rate:,.0f} msg/s",
            "sent": sent,
            "received": len(taken),
            "mean_ms": round(float(latencies.mean()), 2),
            **{f"p{name}_ms": round(float(np.percentile(latencies, percent)), 2) for name, percent in PERCENTILES.items()},
            "p99_second_ms": round(typical_second(at, latencies, 99), 2),
            "broker_cpu": round(cpu / seconds, 2),
            "memory_mb": round(memory_mb(process), 1),
        }


TURN_S: Final = 22.0
SETTLING_S: Final = 11.0  # of a turn, in which the broker before flushes its tracks; a flush in the rest counts: T_p is 10 s


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Let what is started meanwhile run on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cores(*, apart: bool) -> tuple[set[int], set[int]]:
    """Return the cores of the brokers, with their tracking processes, and those of their clients."""
    cores = sorted(os.sched_getaffinity(0))
    return (set(cores[::2]), set(cores[1::2])) if apart and len(cores) > 1 else (set(cores), set(cores))


def latency_in_turns(
    rate: float, trackings: dict[str, Tracking], rounds: int, seed: int, *, apart: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Let brokers that differ in their tracking live side by side and give each the whole load for some seconds, in turns.

    Where brokers and clients share their cores, one waits for the other; `apart` it is as on two machines.
    """
    names = _random_turns(trackings, rounds, seed)
    servers, others = _cores(apart=apart)
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory, ExitStack() as stack:
        with _on(servers):
            brokers = _side_by_side(stack, Path(directory), trackings)
        seconds = TURN_S * len(names)
        with _on(others):
            receiver = Worker.start(receive_paced, [each.url for each in brokers.values()], seconds)
            receiver.ready()
            sender = Worker.start(publish_paced, [brokers[name].url for name in names], rate, TURN_S)
            sender.ready()
        before = {name: cpu_s(process.pid) for name, process in brokers.items()}
        receiver.go()
        sender.go()
        (_, began_ns), _ = sender.result(seconds)
        (moments, taken), _ = receiver.result(seconds)
        cpu = {name: (cpu_s(process.pid) - before[name]) / (TURN_S * rounds) for name, process in brokers.items()}
    published_s, latencies = (np.array(moments) - np.array(taken) - began_ns) / 1e9, np.array(taken) / 1e6
    turns, within_s = np.divmod(published_s, TURN_S)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in trackings}
    for number, name in enumerate(names):
        counts = (turns == number) & (within_s >= SETTLING_S)
        those = latencies[counts]
        percentiles = {f"p{digits}_ms": float(np.percentile(those, percent)) for digits, percent in PERCENTILES.items()}
        typical = typical_second(np.array(moments)[counts], those, 99)
        found[name].append({**percentiles, "p99_second_ms": typical, "broker_cpu": cpu[name]})
    return found


def shape_b(scale: float, trackings: Sequence[str], rates: Sequence[float]) -> Iterator[dict[str, Any]]:
    for rate in rates:
        for tracking in trackings:
            result = paced(
                max(5.0, 22 * scale), tracking=TRACKINGS[tracking], rate=rate
            )  # with a flush of the tracks: T_p is 10 s
            yield {"shape": result.pop("shape"), "tracking": tracking, **result}


def shape_e(minutes: float) -> Iterator[dict[str, Any]]:
    samples: list[tuple[float, float]] = []
    result = paced(minutes * 60, lambda process, at: samples.append((round(at), round(memory_mb(process), 1))))
    tenth = max(1, len(samples) // 10)
    early, late = samples[tenth : 2 * tenth], samples[-tenth:]
    yield {
        **result,
        "shape": f"e: memory of the broker under (b), {minutes:g} minutes",
        "memory_early_mb": round(statistics.mean(value for _, value in early or samples), 1),
        "memory_late_mb": round(statistics.mean(value for _, value in late), 1),
        "samples": samples[:: max(1, len(samples) // 40)],
    }


# --- (d): matching -------------------------------------------------------------------------------------------------------------


MATCHED_SYMBOLS: Final = 500
MATCH_ROUNDS: Final = 20


def shape_d(scale: float, counts: Sequence[int] = (10, 1_000, 10_000, 100_000)) -> Iterator[dict[str, Any]]:
    """Match until every row number of every match is there: the index itself answers lazily.

    The symbols stay the same, so matches grow with the subscriptions, as they do for a broker.
    """
    rng = random.Random(2)
    batch = _random_batch(rng)
    for count in counts:
        index: FilterIndex[int] = FilterIndex()
        for number in range(count):
            index.add(number, Filter(_random_filter(rng)))
        matches = _materialise(index, batch)  # the first match compiles what was added
        times = []
        for _ in range(max(3, round(MATCH_ROUNDS * scale))):
            began = time.perf_counter()
            matches = _materialise(index, batch)
            times.append(time.perf_counter() - began)
        yield {
            "shape": f"d: a batch of 1,000 against {count:,} subscriptions to {MATCHED_SYMBOLS} symbols",
            "matches": matches,
            "us_per_batch": round(statistics.median(times) * 1e6, 1),
            "us_per_match": round(statistics.median(times) / max(1, matches) * 1e6, 3),
            "samples": [round(each * 1e6, 1) for each in times],
        }


def _materialise(index: FilterIndex[int], batch: Batch) -> int:
    return sum(len(np.asarray(rows)) for _, rows in index.match(batch).items())


def _random_filter(rng: random.Random) -> str:
    symbol = f"symbol = 'X{rng.randrange(MATCHED_SYMBOLS)}'"
    return rng.choice(
        [symbol, f"{symbol} AND price > {rng.randrange(1000)}", f"{symbol} AND price BETWEEN 10 AND {rng.randrange(11, 999)}"]
    )


def _random_batch(rng: random.Random) -> Batch:
    rows: list[tuple[bytes, dict[str, bool | int | float | str | bytes], bytes]] = [
        (number.to_bytes(16, "big"), {"symbol": f"X{rng.randrange(MATCHED_SYMBOLS)}", "price": rng.random() * 1000}, PAYLOAD)
        for number in range(1000)
    ]
    (batch,) = build_batches(rows)
    return batch.with_ticks(np.arange(1, 1001, dtype=np.uint64))


# --- (t): tracking ------------------------------------------------------------------------------------------------------------

FLOWS: Final = {"columns": Flow(2_000_000, TENTH, 0.1, 1000), "messages": Flow(800_000, TENTH, 0.1)}
PAIRS_MIN: Final = 5  # that can be drawn again by chance


def shape_t(
    scale: float, rounds: int, rounds_each: int, strategies: Sequence[str], loads: Sequence[str], *, apart: bool
) -> Iterator[dict[str, Any]]:
    """Run loads with each strategy and without tracking in turns, many times; the medians, and the ratios of turn to turn.

    Brokers are started anew after some turns: two that are alike may differ for as long as they live. All comparisons go on side
    by side, so that the noise, if it is asked for by the strategy null, is measured at the same time as what it is compared with.
    """
    flows = {name: replace(flow, count=_rounded(flow.count * scale)) for name, flow in FLOWS.items()}
    series = {name: STRATEGIES[name] for name in ("null", *(each for each in strategies if each != "null"))}
    if "null" in strategies:
        series["null again"] = STRATEGIES["null"]
    for load in loads:
        turns: dict[str, dict[str, list[dict[str, Any]]]] = {name: {"null": [], name: []} for name in [*series][1:]}
        for done in range(0, rounds, rounds_each):
            for name, found in turns.items():
                print(f"{load}: {name} and null, {done} of {rounds} turns each", file=sys.stderr, flush=True)
                pair = {each: series[each] for each in (found if done // rounds_each % 2 else reversed(found))}
                some = min(rounds_each, rounds - done)
                if load in flows:
                    taken = throughput_in_turns(flows[load], pair, some, seed=done)
                else:
                    taken = latency_in_turns(float(load), pair, some, seed=done, apart=apart)
                for each, runs in taken.items():
                    found[each] += runs
        yield from compared(load, turns, THROUGHPUT if load in flows else LATENCY, rounds_each)


def compared(
    load: str, turns: dict[str, dict[str, list[dict[str, Any]]]], figures: Sequence[str], rounds_each: int
) -> Iterator[dict[str, Any]]:
    """Compare each turn with the one without tracking beside it. *Null again* is without tracking itself: the noise."""
    for figure in figures:
        plain = {name: [run[figure] for run in both["null"]] for name, both in turns.items()}
        samples = {name: [run[figure] for run in both[name]] for name, both in turns.items()}
        by_name = {name: ratios(np.array(samples[name]) / np.array(plain[name]), rounds_each) for name in turns}
        others = [name for name in turns if name != "null again"]
        yield {
            "shape": f"t: {load}",
            "figure": figure,
            "null": round(statistics.median(value for each in plain.values() for value in each), 2),
            **{name: round(statistics.median(samples[name]), 2) for name in others},
            **{f"{name} / null": by_name[name] for name in others},
            "null again": by_name.get("null again", ""),
            "samples": {"null": plain, **samples},
        }


def ratios(found: np.ndarray[Any, np.dtype[np.float64]], rounds_each: int) -> str:
    """Return the median of the turns' ratios, and where 90% of such medians lie when pairs of brokers are drawn again by chance.

    With few pairs, single turns are drawn.
    """
    pairs = np.split(found, range(rounds_each, len(found), rounds_each))
    drawn_from = pairs if len(pairs) >= PAIRS_MIN else np.split(found, len(found))
    random = np.random.default_rng(1)
    numbers = random.integers(len(drawn_from), size=(4_000, len(drawn_from)))
    drawn = [np.median(np.concatenate([drawn_from[number] for number in each])) for each in numbers]
    low, high = np.quantile(drawn, (0.05, 0.95))
    return f"{np.median(found):.2f} ({low:.2f} to {high:.2f})"


# --- the whole -----------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=["a", "b", "c", "d"], help="a, b, c, d, e, t (default: all but e and t)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of messages and the time of (b)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (e) runs")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each in (t), of 3 to 22 s; fewer tell little")
    parser.add_argument(
        "--loads", nargs="+", default=LOADS, choices=LOADS, help="which (t) runs: in columns, one by one, per second"
    )
    parser.add_argument("--each", type=int, default=2, help="turns after which the brokers of (t) are started anew")
    parser.add_argument(
        "--strategies", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES), help="which (t) compares; null: the noise"
    )
    parser.add_argument(
        "--apart", action="store_true", help="for the latencies of (t), brokers and their clients have cores of their own"
    )
    parser.add_argument(
        "--tracking", nargs="+", default=list(TRACKINGS), choices=list(TRACKINGS), help="(a), (b), (c): with which tracking"
    )
    parser.add_argument("--rates", nargs="+", type=float, default=[500.0, 2000.0, 5000.0], help="messages per second of (b)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the directory for raw results")
    options = parser.parse_args()
    shapes: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "a": lambda: shape_a(options.scale, options.tracking),
        "b": lambda: shape_b(options.scale, options.tracking, options.rates),
        "c": lambda: shape_c(options.scale, options.tracking),
        "d": lambda: shape_d(options.scale),
        "e": lambda: shape_e(options.minutes),
        "t": lambda: shape_t(options.scale, options.rounds, options.each, options.strategies, options.loads, apart=options.apart),
    }
    machine = circumstances()
    for shape in options.shapes:
        results = []
        columns: list[str] = []
        for result in shapes[shape]():
            results.append(result)
            row = {key: value for key, value in result.items() if key != "samples"}
            if list(row) != columns:
                columns = list(row)
                print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
            cells = [f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()]
            print(f"| {' | '.join(cells)} |", flush=True)
        save(options.results / f"overlay-{shape}.json", machine, results)


if __name__ == "__main__":
    main()
