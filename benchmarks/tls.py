"""What TLS costs: `python -m benchmarks.tls [--turns 5] [--scale 1.0]`; writes `benchmarks/results/tls.json`.

Two brokers that are alike, one plain and one with TLS, run as processes of their own. The same program uses them in turns:

- `columns`: one publisher of batches of 1,000 rows with payloads of 100 bytes, and ten filtered subscribers (shape a);
- `messages`: many publishers and subscribers that send single messages at a fixed rate (shape b, smaller);
- `handshakes`: clients that connect, say hello, and go, one after the other.

What counts on a busy machine are CPU seconds: of the broker's process, and of the program that drives both ends. Times are shown,
too. Figures are medians over the turns; `ratio` is TLS divided by plain within a turn, and then the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import postroad
from benchmarks.records import RESULTS, circumstances, save
from postroad.runtime.config import NodeConfig, Security, Tracking
from postroad.runtime.process import BrokerProcess
from postroad.security.authority import create_authority, issue
from postroad.security.tls import broker_uri
from postroad.testing import free_ports

BATCH_ROWS: Final = 1_000
PAYLOAD: Final = b"x" * 100
SUBSCRIBERS: Final = 10
CLIENTS: Final = 20
RATE_PER_S: Final = 400


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers, as its clients see it."""

    name: str
    url: str
    broker: BrokerProcess
    authority: Path | None

    def connect(self) -> postroad.Client:
        return postroad.connect(self.url) if self.authority is None else postroad.connect(self.url, tls=self.authority, token="")

    def cpu_s(self) -> float:
        """Return the CPU seconds of the broker's process."""
        fields = Path(f"/proc/{self.broker.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def columns(side: Side, scale: float) -> dict[str, float]:
    """Move columns through a broker; return messages per second and the CPU it took for each."""
    rows = int(300_000 * scale) // BATCH_ROWS * BATCH_ROWS
    batch = {"price": np.arange(BATCH_ROWS, dtype=np.float64), "place": np.arange(BATCH_ROWS) % SUBSCRIBERS}
    payloads = [PAYLOAD] * BATCH_ROWS
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(side.connect()) for _ in range(SUBSCRIBERS)]
        subscriptions = [await client.subscribe(f"place = {place}") for place, client in enumerate(clients)]
        publisher = (await stack.enter_async_context(side.connect())).publisher()

        async def receive(subscription: postroad.Subscription) -> None:
            left = rows // SUBSCRIBERS
            async for received in subscription.batches():
                left -= len(received)
                if left <= 0:
                    return

        receiving = asyncio.gather(*map(receive, subscriptions))
        broker, own, begun = side.cpu_s(), time.process_time(), time.perf_counter()
        for _ in range(rows // BATCH_ROWS):
            await publisher.publish_many(batch, payloads)
        await publisher.flush()
        await receiving
        wall = time.perf_counter() - begun
        return {
            "messages_per_s": rows / wall,
            "broker_cpu_us_per_message": (side.cpu_s() - broker) / rows * 1e6,
            "clients_cpu_us_per_message": (time.process_time() - own) / rows * 1e6,
        }


async def messages(side: Side, scale: float) -> dict[str, float]:
    """Publish single messages at a rate from many clients; return the latency and the CPU for each."""
    total = int(2_000 * scale)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(side.connect()) for _ in range(CLIENTS)]
        subscriptions = [await client.subscribe(f"place = {place}") for place, client in enumerate(clients)]
        publishers = [client.publisher() for client in clients]
        times: list[float] = []

        async def receive(subscription: postroad.Subscription) -> None:
            for _ in range(total // CLIENTS):
                message = await anext(subscription)
                times.append(time.monotonic() - float(message["at"]))

        receiving = asyncio.gather(*map(receive, subscriptions))
        broker, own = side.cpu_s(), time.process_time()
        due = time.monotonic()
        for number in range(total // CLIENTS * CLIENTS):
            due += 1 / RATE_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            publisher = publishers[(number + 1) % CLIENTS]
            await publisher.publish({"place": number % CLIENTS, "at": time.monotonic()}, PAYLOAD)
        await receiving
        p50, p99 = np.percentile(np.array(times) * 1_000, (50, 99))
        return {
            "p50_ms": float(p50),
            "p99_ms": float(p99),
            "broker_cpu_us_per_message": (side.cpu_s() - broker) / total * 1e6,
            "clients_cpu_us_per_message": (time.process_time() - own) / total * 1e6,
        }


async def handshakes(side: Side, scale: float) -> dict[str, float]:
    """Connect again and again; return how many were done per second, and per CPU second of the broker."""
    total = int(100 * scale)
    broker, begun = side.cpu_s(), time.perf_counter()
    for _ in range(total):
        async with side.connect():
            pass
    wall, cpu = time.perf_counter() - begun, max(side.cpu_s() - broker, 0.01)
    return {"handshakes_per_s": total / wall, "handshakes_per_broker_cpu_s": total / cpu}


SHAPES: Final[dict[str, Callable[[Side, float], Awaitable[dict[str, float]]]]] = {
    "columns": columns,
    "messages": messages,
    "handshakes": handshakes,
}


def medians(turns: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return for each figure the medians of both sides and of their ratio."""
    return {
        figure: {
            "plain": round(statistics.median(turn["plain"][figure] for turn in turns), 3),
            "tls": round(statistics.median(turn["tls"][figure] for turn in turns), 3),
            "ratio": round(statistics.median(turn["tls"][figure] / turn["plain"][figure] for turn in turns), 3),
        }
        for figure in turns[0]["plain"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    machine, results = circumstances(), {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        create_authority(directory)
        made = issue(directory, directory, "broker", broker_uri(1))
        security = Security(certificate=str(made.certificate), key=str(made.key), authority=str(directory / "ca.pem"))
        ports = free_ports(2)
        plain, tls = (
            NodeConfig(
                id=1,
                name=title,
                data_dir=str(directory / title),
                listen=f"127.0.0.1:{port}",
                log_level="error",
                tracking=Tracking(strategy="null"),
                security=guard,
            )
            for title, port, guard in (("plain", ports[0], Security()), ("tls", ports[1], security))
        )
        with BrokerProcess(plain, directory) as one, BrokerProcess(tls, directory) as two:
            sides = [
                Side("plain", one.url, one, None),
                Side("tls", two.url.replace("postroad://", "postroads://"), two, directory / "ca.pem"),
            ]
            for shape in options.shapes:
                turns = []
                for number in range(options.turns):
                    order = sides if number % 2 == 0 else sides[::-1]
                    turns.append({side.name: asyncio.run(_run(shape, side, options.scale)) for side in order})
                results[shape] = medians(turns)
                print(json.dumps({shape: results[shape]}), flush=True)
    save(RESULTS / "tls.json", machine, results)


async def _run(shape: str, side: Side, scale: float) -> dict[str, float]:
    return await SHAPES[shape](side, scale)


if __name__ == "__main__":
    main()
