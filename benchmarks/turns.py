"""How long an attack keeps a broker's event loop busy at a time: `python -m benchmarks.turns [attack...] [--seconds 5]`.

What another client notices of an attack (`benchmarks.hostile`) depends on what else the machine does. This does not: it counts
the CPU time of the event loop's thread from one turn to the next. Everybody else waits that long at most, and a message passes
through a few turns.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from typing import Final

import numpy as np

from benchmarks.hostile import ATTACKS
from postroad.runtime.broker_server import BrokerServer
from postroad.runtime.config import NodeConfig
from postroad.runtime.serve import GC_THRESHOLD
from postroad.transport.loops import run
from postroad.transport.programs import own_environment

SETTLING_S: Final = 1.0
BUSY_S: Final = 0.0002  # shorter turns do not count: most are empty


class TurnMeter:
    """Notes the CPU time of each turn of the running loop."""

    def __init__(self) -> None:
        self.turns: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._before = time.thread_time()
        self._on = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time()
        self.turns.append(now - self._before)
        self._before = now
        if self._on:
            self._loop.call_soon(self._turn)

    def end(self) -> None:
        self._on = False


async def measure(attack: str, seconds: float) -> dict[str, object]:
    """Attack a broker in this process; return how long its turns were."""
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerServer(NodeConfig(id=1, data_dir=directory, listen="127.0.0.1:0", log_level="error"))
        await broker.start()
        gc.freeze()  # as a broker does that runs alone
        command = [sys.executable, "-m", "benchmarks.hostile", "--attack", attack, str(broker.port)]
        with subprocess.Popen(command, env=own_environment(), stdout=subprocess.PIPE) as attacker:  # noqa: ASYNC220
            try:
                assert attacker.stdout is not None
                await asyncio.to_thread(attacker.stdout.readline)
                await asyncio.sleep(SETTLING_S)
                meter = TurnMeter()
                await asyncio.sleep(seconds)
                meter.end()
            finally:
                attacker.kill()
        await broker.stop()
    busy = np.array([each for each in meter.turns if each > BUSY_S] or [0.0]) * 1_000
    p50, p99, most = np.percentile(busy, (50, 99, 100))
    return {"attack": attack, "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "max_ms": round(most, 2), "busy_turns": len(busy)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    gc.set_threshold(GC_THRESHOLD)
    for attack in arguments.attacks:
        print(json.dumps(run(measure(attack, arguments.seconds))), flush=True)


if __name__ == "__main__":
    main()
