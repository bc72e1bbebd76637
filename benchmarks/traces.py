"""How long traces take: `python -m benchmarks.traces [--messages N]`.

Eight broker processes in a tree on this machine, three subscribers at its ends; every message is traced one by one, then all
in one call, by a client at the root and by one at the end of another branch. Times are wall-clock, of the whole call.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from postroad.client.connection import connect
from postroad.runtime.config import Neighbour, NodeConfig, Overlay
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports
from postroad.types import MessageId

ABOVE = {2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 7: 3, 8: 4}  # the broker that each one links to
READERS = {8: "", 5: "half = TRUE", 7: "n < 100"}


def start(directory: Path, stack: ExitStack) -> dict[int, str]:
    ports = dict(zip(range(1, 9), free_ports(8), strict=True))
    for number, port in ports.items():
        near = (Neighbour(f"127.0.0.1:{ports[ABOVE[number]]}"),) if number in ABOVE else ()
        config = NodeConfig(
            id=number,
            data_dir=str(directory / str(number)),
            listen=f"127.0.0.1:{port}",
            neighbours=near,
            overlay=Overlay(silence_s=0.2),
        )
        stack.enter_context(BrokerProcess(config, directory))
    return {number: f"postroad://127.0.0.1:{port}" for number, port in ports.items()}


async def send(urls: dict[int, str], count: int) -> list[MessageId]:
    """Publish at the root, and wait until the furthest subscriber has everything."""
    async with connect(urls[1]) as writer, connect(urls[8]) as a, connect(urls[5]) as b, connect(urls[7]) as c:
        pairs = zip(READERS.values(), (a, b, c), strict=True)
        subscriptions = [await client.subscribe(text, name=f"reader{n}") for n, (text, client) in enumerate(pairs)]
        publisher = writer.publisher()
        ids = [await publisher.publish({"n": n, "half": n % 2 == 0}) for n in range(count)]
        await publisher.flush()
        for _ in range(count):
            await anext(subscriptions[0])
        return ids


async def measure(url: str, ids: list[MessageId], where: str) -> None:
    async with connect(url) as client:
        await client.trace_many(ids)
        together = min([await _timed(client.trace_many(ids)) for _ in range(5)])
        single = [await _timed(client.trace(each)) for each in ids]
        explained = min([await _timed(client.explain(ids[1], "reader1")) for _ in range(5)])
    ranked = sorted(single)
    times = [ranked[0], statistics.median(ranked), ranked[len(ranked) * 99 // 100]]
    figures = [f"{seconds * 1e3:.1f}" for seconds in times] + [f"{sum(single) * 1e3:,.0f}", f"{together * 1e3:.0f}"]
    figures += [f"{sum(single) / together:.0f}", f"{explained * 1e3:.1f}"]
    print(f"| {where} | " + " | ".join(figures) + " |")


async def _timed(call: object) -> float:
    begun = perf_counter()
    await call  # type: ignore[misc]  # a coroutine of one of several types
    return perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure traces on eight live brokers.")
    parser.add_argument("--messages", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="postroad-traces-") as directory, ExitStack() as stack:
        urls = start(Path(directory), stack)
        ids = asyncio.run(send(urls, arguments.messages))
        print("| asked at | one trace, ms: best | p50 | p99 | all, one by one, ms | all in one call, ms | ratio | explain, ms |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for number, where in ((1, "the root"), (6, "the end of another branch")):
            asyncio.run(measure(urls[number], ids, where))


if __name__ == "__main__":
    main()
