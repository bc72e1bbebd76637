"""What tracking costs within one broker: `python -m benchmarks.switched [--loads columns messages 5000 500] [--pairs 40]`.

Two brokers that are alike differ by a tenth in latency for as long as they live, which is twice what tracking may cost. So one
broker is compared with itself: its tracking is switched off and on, in random order within each pair of stretches. While it is
off the machine notes nothing, as with the strategy `null`, and the tracking process sleeps. Brokers are started anew after some
pairs. Figures are medians over pairs; in brackets where 90% of such medians lie when pairs are drawn again by chance.

For latency the load is that of the tracking paper (200 publishers, 500 subscribers). A stretch has 12 s, of which the first does
not count: the flush that switching off begins with ends in it. So there is one flush in each 11 s that count with tracking, a
tenth less than in a broker's life (T_p is 10 s). `p99_seconds_ms` is the geometric mean of p99 of each second: a moment in which
the machine stands still moves it little, a flush as much as it should. For throughput a stretch is the flow of
`benchmarks.overlay a`, in columns or message by message.

On a virtual machine others may take the processor away (`steal` in /proc/stat), for minutes at a time, and then a message takes
seconds. Pairs in which more than `STOLEN_MAX` of the processors was taken do not count; how many did is said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np

import postroad
from benchmarks.overlay import (
    FLOW_S_MAX,
    FLOWS,
    LOADS,
    STRATEGIES,
    Flow,
    Moment,
    Start,
    Worker,
    cpu_s,
    publish_columns,
    publish_messages,
    publish_paced,
    ratios,
    receive_flow,
    receive_paced,
)
from benchmarks.records import RESULTS
from postroad.core.protocol.rights import Rights
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.runtime.serve import serve
from postroad.runtime.services import Answer, ServiceConnection, ServiceHost
from postroad.testing import free_ports

STRETCH_S: Final = 12.0
SETTLING_S: Final = 1.0
WARM_S: Final = 12.0
STOLEN_MAX: Final = 0.02
OFF, ON = signal.SIGUSR1, signal.SIGUSR2
Floats: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Pair: TypeAlias = dict[bool, dict[str, float]]  # the figures without and with tracking
PERCENTS: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99.9_ms": 99.9}


# --- the broker ------------------------------------------------------------------------------------------------------------


class Switch:
    """A service that serves nobody: signals let the broker's machine note nothing for a while."""

    methods: Final[frozenset[int]] = frozenset()
    _node: BrokerServer

    async def start(self, host: ServiceHost) -> None:
        self._node = cast("BrokerServer", host)
        self._broker = self._node._broker  # noqa: SLF001  # what is switched here, nobody else needs to
        self._notes = self._broker.recorder
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(OFF, self.off)
        loop.add_signal_handler(ON, self.on)

    async def stop(self) -> None:
        self.on()  # so that the tracks end in good order

    def open(
        self,
        send: Answer,  # noqa: ARG002  # the protocol's names
        on_room: Callable[[], None],  # noqa: ARG002
        rights: Rights,  # noqa: ARG002
    ) -> ServiceConnection:
        raise AssertionError("it has no methods")

    def off(self) -> None:
        """Have everything written that was noted, and note nothing more."""
        self._broker.flush_tracks()
        self._node._pump()  # noqa: SLF001
        self._note_with(None)

    def on(self) -> None:
        """Note again; the first flush comes after T_p."""
        self._broker._track_at = asyncio.get_running_loop().time() + self._node.config.tracking.persistence_ms / 1000  # noqa: SLF001
        self._note_with(self._notes)

    def _note_with(self, notes: Any) -> None:
        self._broker.recorder = notes


def _serve(config: NodeConfig, pipe: Connection) -> None:
    serve(config, pipe.send, [Switch()])


@contextmanager
def switched_broker(strategy: str) -> Iterator[tuple[str, int]]:
    """Run a broker whose tracking can be switched; give its address and its process."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        listen = f"127.0.0.1:{free_ports(1)[0]}"
        config = NodeConfig(id=1, data_dir=directory, listen=listen, tracking=STRATEGIES[strategy], log_level="warning")
        process = spawn.Process(target=_serve, args=(config, theirs))
        process.start()
        try:
            if not ours.poll(60):
                raise TimeoutError("the broker does not start")
            ours.recv()
            assert process.pid is not None
            yield f"postroad://{listen}", process.pid
        finally:
            process.terminate()
            process.join()


def stolen_s() -> float:
    """Return how long, of all processors together, others had what was wanted here."""
    return int(Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


# --- stretches -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """From when to when tracking was on or off, in nanoseconds of the clock that all processes share."""

    tracking: bool
    began_ns: int
    ended_ns: int
    cpu: float  # of a core
    stolen: float  # share of all cores


def switch_in_turns(pid: int, pairs: int, seed: int) -> list[Stretch]:
    """Switch a broker's tracking; the two stretches of a pair follow each other in random order."""
    rng = random.Random(seed)
    stretches = []
    for _ in range(pairs):
        first = rng.random() < 0.5
        for tracking in (first, not first):
            os.kill(pid, ON if tracking else OFF)
            time.sleep(SETTLING_S)
            began, used, stolen = time.monotonic_ns(), cpu_s(pid), stolen_s()
            time.sleep(STRETCH_S - SETTLING_S)
            ended = time.monotonic_ns()
            seconds = (ended - began) / 1e9
            share = (stolen_s() - stolen) / seconds / (os.cpu_count() or 1)
            stretches.append(Stretch(tracking, began, ended, (cpu_s(pid) - used) / seconds, share))
    return stretches


def p99_of_seconds(latencies_ms: Floats, seconds: Floats) -> float:
    """Return the geometric mean of p99 of each whole second."""
    whole = [np.percentile(latencies_ms[seconds == each], 99) for each in range(int(STRETCH_S - SETTLING_S))]
    return float(np.exp(np.mean(np.log(whole))))


def measure(rate: float, strategy: str, pairs: int, seed: int) -> list[Pair]:
    """Return for each pair the figures without and with tracking."""
    seconds = WARM_S + 2 * pairs * STRETCH_S
    with switched_broker(strategy) as (url, pid):
        receiver = Worker.start(receive_paced, [url], seconds + 2)
        receiver.ready()
        sender = Worker.start(publish_paced, [url], rate, seconds + 1)
        sender.ready()
        receiver.go()
        sender.go()
        time.sleep(WARM_S)
        stretches = switch_in_turns(pid, pairs, seed)
        sender.result(seconds)
        (moments, latencies), _ = receiver.result(seconds)
    published_ns, latencies_ms = np.array(moments) - np.array(latencies), np.array(latencies) / 1e6
    found = []
    for both in zip(stretches[::2], stretches[1::2], strict=True):
        pair = {}
        for each in both:
            within = (published_ns >= each.began_ns) & (published_ns < each.ended_ns)
            those, seconds_of = latencies_ms[within], (published_ns[within] - each.began_ns) // 1_000_000_000
            figures = {name: float(np.percentile(those, percent)) for name, percent in PERCENTS.items()}
            figures["p99_seconds_ms"] = p99_of_seconds(those, seconds_of)
            pair[each.tracking] = {**figures, "mean_ms": float(those.mean()), "broker_cpu": each.cpu, "stolen": each.stolen}
        found.append(pair)
    return found


async def publish_switched(
    start: Start, url: str, pid: int, stretches: Sequence[bool], flow: Flow
) -> list[tuple[Moment, Moment]]:
    """Publish the flow once for each stretch; return when each began and when everything in it was acknowledged."""
    publish = publish_messages if flow.batch_rows == 1 else publish_columns
    moments = []
    async with postroad.connect(url) as client:
        publisher = client.publisher()
        await start()
        for tracking in stretches:
            os.kill(pid, ON if tracking else OFF)
            await asyncio.sleep(SETTLING_S)
            began = Moment.now()
            await publish(publisher, flow)
            await publisher.flush()
            moments.append((began, Moment.now()))
    return moments


def measure_flow(flow: Flow, strategy: str, pairs: int, seed: int) -> list[Pair]:
    """Do as `measure` for messages as fast as they come, after one stretch that does not count."""
    rng = random.Random(seed)
    turns = [tracking for _ in range(pairs) for tracking in rng.sample((False, True), 2)]
    stretches, seconds_max = [True, *turns], FLOW_S_MAX * (2 * pairs + 1)
    with switched_broker(strategy) as (url, pid):
        receiver = Worker.start(receive_flow, [url] * len(stretches), flow)
        receiver.ready()
        sender = Worker.start(publish_switched, url, pid, stretches, flow)
        sender.ready()
        receiver.go()
        sender.go()
        (published, _), (received, _) = sender.result(seconds_max), receiver.result(seconds_max)
    figures = []
    for (began, acknowledged), (waited, ended) in zip(published[1:], received[1:], strict=True):
        clients = acknowledged.cpu_s - began.cpu_s + ended.cpu_s - waited.cpu_s
        figures.append({"messages_per_s": flow.count / (ended.at_s - began.at_s), "clients_cpu_us": clients / flow.count * 1e6})
    return [dict(zip(turns[at : at + 2], figures[at : at + 2], strict=True)) for at in range(0, len(turns), 2)]


# --- the whole -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", default=LOADS, choices=LOADS, help="in columns, one by one, messages per second")
    parser.add_argument("--pairs", type=int, default=40, help="of stretches, of each load; each takes up to 24 s")
    parser.add_argument("--each", type=int, default=5, help="pairs after which the broker is started anew")
    parser.add_argument("--strategy", default="bloom", choices=[name for name in STRATEGIES if name != "null"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "switched.json", help="where the results are written")
    options = parser.parse_args()
    results = []
    for load in options.loads:
        pairs: list[Pair] = []
        while len(pairs) < options.pairs:
            print(f"{load}: {len(pairs)} of {options.pairs} pairs", file=sys.stderr, flush=True)
            some, seed = min(options.each, options.pairs - len(pairs)), options.seed + len(pairs)
            if load in FLOWS:
                pairs += measure_flow(FLOWS[load], options.strategy, some, seed)
            else:
                pairs += measure(float(load), options.strategy, some, seed)
        results.append({"load": load, "pairs": [{"off": pair[False], "on": pair[True]} for pair in pairs]})
        _print(load, options.strategy, pairs)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps({"strategy": options.strategy, "results": results}, indent=2) + "\n", encoding="utf-8")


def _print(load: str, strategy: str, pairs: list[Pair]) -> None:
    counted = [pair for pair in pairs if max(each.get("stolen", 0.0) for each in pair.values()) <= STOLEN_MAX]
    print(f"\n| {load}, {len(counted)} of {len(pairs)} pairs | off | {strategy} | ratio |\n|---|---:|---:|---|")
    for figure in pairs[0][False]:
        off, on = (np.array([pair[tracking][figure] for pair in counted]) for tracking in (False, True))
        if counted and figure != "stolen":
            print(f"| {figure} | {np.median(off):,.2f} | {np.median(on):,.2f} | {ratios(on / off, 1)} |", flush=True)


if __name__ == "__main__":
    main()
