"""How long brokers are away after SIGKILL: a line of three real brokers, a publisher at one end, a subscriber at the other.

Each round kills brokers, starts them again at once, and publishes a message with the client that was there before. Times count
from the start of the processes: until the last port is open, until the message is acknowledged, until the subscriber has it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import postroad
from postroad.runtime.config import Neighbour, NodeConfig
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports

STEPS: Final = ("port open", "acknowledged", "delivered")
ROUND_S_MAX: Final = 60.0


def brokers_in_line(directory: Path) -> list[BrokerProcess]:
    """Return three brokers with the default configuration."""
    ports = free_ports(3)
    configs = [
        NodeConfig(
            id=number,
            name=f"b{number}",
            listen=f"127.0.0.1:{port}",
            data_dir=str(directory / f"b{number}"),
            neighbours=tuple(Neighbour(address=f"127.0.0.1:{each}") for each in ports[number - 2 : number - 1]),
        )
        for number, port in enumerate(ports, 1)
    ]
    return [BrokerProcess(each, directory) for each in configs]


class Round:
    """One restart after the other, with the same two clients."""

    def __init__(self, brokers: list[BrokerProcess], publisher: postroad.Publisher, subscription: postroad.Subscription) -> None:
        self._brokers = brokers
        self._publisher = publisher
        self._subscription = subscription
        self._number = 0

    async def send(self) -> tuple[float, float]:
        """Publish one message; return when it was acknowledged and when it was delivered."""
        self._number += 1
        number = self._number
        await self._publisher.publish({"n": number})
        delivered = asyncio.create_task(self._wait_for(number))
        await self._publisher.flush(ROUND_S_MAX)
        acknowledged = time.monotonic()
        return acknowledged, await delivered

    async def _wait_for(self, number: int) -> float:
        async with asyncio.timeout(ROUND_S_MAX):
            while (await anext(self._subscription))["n"] != number:
                pass
        return time.monotonic()

    async def restart(self, which: Sequence[int]) -> list[float]:
        """Kill some brokers and start them; return the seconds until each step."""
        killed = [self._brokers[each] for each in which]
        for broker in killed:
            await asyncio.to_thread(broker.kill)
        began = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in killed))
        opened = time.monotonic()
        acknowledged, delivered = await self.send()
        return [opened - began, acknowledged - began, delivered - began]


async def measure(rounds: int, which: Sequence[int], pause_s: float) -> list[list[float]]:
    found: list[list[float]] = []
    with tempfile.TemporaryDirectory() as name:
        brokers = brokers_in_line(Path(name))
        try:
            for broker in brokers:
                await asyncio.to_thread(broker.start)
            async with postroad.connect(brokers[0].url) as one, postroad.connect(brokers[2].url) as other:
                subscription = await other.subscribe("n > 0")
                while len(subscription.starts) < len(brokers):  # noqa: ASYNC110  # a condition of another task
                    await asyncio.sleep(0.05)
                scene = Round(brokers, one.publisher(), subscription)
                await scene.send()
                for _ in range(rounds):
                    await asyncio.sleep(pause_s)
                    found.append(await scene.restart(which))
                    print(
                        "  " + ", ".join(f"{step} {value:.2f} s" for step, value in zip(STEPS, found[-1], strict=True)),
                        flush=True,
                    )
        finally:
            for broker in brokers:
                if broker.running:
                    broker.kill()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two restarts (default: 1)")
    arguments = parser.parse_args()
    for title, which in (("the publisher's broker", (0,)), ("all three brokers", (0, 1, 2))):
        print(f"{title} killed and started again, {arguments.rounds} times", flush=True)
        found = asyncio.run(measure(arguments.rounds, which, arguments.pause))
        for step, values in zip(STEPS, zip(*found, strict=True), strict=True):
            print(f"  {step:<14} p50 {statistics.median(values):.2f} s, max {max(values):.2f} s", flush=True)


if __name__ == "__main__":
    main()
