"""What tracking costs within one broker: `python -m benchmarks.switched [--rates 500 2000 5000] [--pairs 40]`.

Two brokers that are alike differ by a tenth in latency for as long as they live, which is twice what tracking may cost. So one
broker is compared with itself: its tracking is switched off and on, in random order within each pair of stretches, under the load
of the tracking paper (200 publishers, 500 subscribers). While it is off the machine notes nothing, as with the strategy `null`,
and the tracking process sleeps. A stretch has 12 s, of which the first does not count: the flush that switching off begins with
ends in it. So there is one flush in each 11 s that count with tracking, a tenth of them less than in the broker's life (T_p is
10 s). Brokers are started anew after some pairs, since those that are alike differ. Figures are medians over pairs; in brackets
where 90% of such medians lie when pairs are drawn again by chance.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from benchmarks.overlay import RESULTS, STRATEGIES, Worker, publish_paced, ratios, receive_paced
from postroad.runtime.config import NodeConfig
from postroad.runtime.node import Node
from postroad.runtime.serve import serve
from postroad.runtime.services import Answer, Exchanges, ServiceHost
from postroad.testing import free_ports

STRETCH_S: Final = 12.0
SETTLING_S: Final = 1.0
WARM_S: Final = 12.0
STOLEN_MAX: Final = 0.02
OFF, ON = signal.SIGUSR1, signal.SIGUSR2
PERCENTS: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p99.9_ms": 99.9}


# --- the broker ------------------------------------------------------------------------------------------------------------


class Switch:
    """A service that serves nobody: signals let the broker's machine note nothing for a while."""

    methods: Final[frozenset[int]] = frozenset()
    _node: Node

    async def start(self, host: ServiceHost) -> None:
        self._node = cast("Node", host)
        self._broker = self._node._broker  # noqa: SLF001  # what is switched here, nobody else needs to
        self._notes = self._broker._parts.notes  # noqa: SLF001
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(OFF, self.off)
        loop.add_signal_handler(ON, self.on)

    async def stop(self) -> None:
        self.on()  # so that the tracks end in good order

    def open(self, send: Answer, on_room: Callable[[], None]) -> Exchanges:  # noqa: ARG002  # the protocol's names
        raise AssertionError("it has no methods")

    def off(self) -> None:
        """Have everything written that was noted, and note nothing more."""
        self._broker._flush_tracks = True  # noqa: SLF001
        self._node._pump()  # noqa: SLF001
        self._note_with(None)

    def on(self) -> None:
        """Note again; the first flush comes after T_p."""
        self._broker._track_at = asyncio.get_running_loop().time() + self._node.config.tracking.persistence_ms / 1000  # noqa: SLF001
        self._note_with(self._notes)

    def _note_with(self, notes: Any) -> None:
        parts = self._broker._parts  # noqa: SLF001
        parts.notes = parts.edge._notes = notes  # noqa: SLF001


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


def cpu_s(pid: int) -> float:
    """Return the CPU time that a broker and its tracking process have used."""
    children = [each.read_text(encoding="ascii").split() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    used = 0
    for each in (str(pid), *(child for found in children for child in found)):
        fields = Path(f"/proc/{each}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


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


def measure(rate: float, strategy: str, pairs: int, seed: int) -> list[dict[bool, dict[str, float]]]:
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
            those = latencies_ms[(published_ns >= each.began_ns) & (published_ns < each.ended_ns)]
            figures = {name: float(np.percentile(those, percent)) for name, percent in PERCENTS.items()}
            pair[each.tracking] = {**figures, "mean_ms": float(those.mean()), "broker_cpu": each.cpu, "stolen": each.stolen}
        found.append(pair)
    return found


# --- the whole -------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", type=float, default=[500, 2000, 5000], help="messages per second")
    parser.add_argument("--pairs", type=int, default=40, help="of stretches, at each rate; each takes 24 s")
    parser.add_argument("--each", type=int, default=5, help="pairs after which the broker is started anew")
    parser.add_argument("--strategy", default="bloom", choices=[name for name in STRATEGIES if name != "null"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=RESULTS / "switched.json", help="where the results are written")
    options = parser.parse_args()
    results = []
    for rate in options.rates:
        pairs: list[dict[bool, dict[str, float]]] = []
        while len(pairs) < options.pairs:
            print(f"{rate:,.0f}/s: {len(pairs)} of {options.pairs} pairs", file=sys.stderr, flush=True)
            some = min(options.each, options.pairs - len(pairs))
            pairs += measure(rate, options.strategy, some, options.seed + len(pairs))
        results.append({"rate": rate, "pairs": [{"off": pair[False], "on": pair[True]} for pair in pairs]})
        _print(rate, options.strategy, pairs)
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps({"strategy": options.strategy, "results": results}, indent=2) + "\n", encoding="utf-8")


def _print(rate: float, strategy: str, pairs: list[dict[bool, dict[str, float]]]) -> None:
    counted = [pair for pair in pairs if max(each["stolen"] for each in pair.values()) <= STOLEN_MAX]
    print(f"\n| {rate:,.0f} messages/s, {len(counted)} of {len(pairs)} pairs | off | {strategy} | ratio |\n|---|---:|---:|---|")
    for figure in (*PERCENTS, "mean_ms", "broker_cpu"):
        off, on = (np.array([pair[tracking][figure] for pair in counted]) for tracking in (False, True))
        if counted:
            print(f"| {figure} | {np.median(off):.2f} | {np.median(on):.2f} | {ratios(on / off, 1)} |", flush=True)


if __name__ == "__main__":
    main()
