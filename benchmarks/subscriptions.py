"""What subscriptions cost: CPU seconds of each broker of a line, by the number of subscriptions there are already.

    python -m benchmarks.subscriptions                              # every family, 100 to 10,000 subscriptions, four brokers
    python -m benchmarks.subscriptions --families equality range    # some
    python -m benchmarks.subscriptions --brokers 1 --counts 1000 10000 100000

One client subscribes at the last broker, 200 at a time, and waits until all are active. Then it unsubscribes all. CPU seconds
hardly depend on what else runs on the machine; they include each broker's tracking process. After each step one message for
each of 20 subscriptions is published at the first broker and must arrive.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import postroad
from benchmarks.overlay import broker, cpu_s, memory_mb
from postroad.runtime.process import BrokerProcess
from postroad.transport.loops import run

AT_ONCE: Final = 200
CHECKED: Final = 20
WAIT_S: Final = 600.0
Attributes = dict[str, Any]

FAMILIES: Final[dict[str, tuple[Callable[[int], str], Callable[[int], Attributes]]]] = {
    "equality": (lambda i: f"symbol = 'X{i}'", lambda i: {"symbol": f"X{i}"}),
    "range": (lambda i: f"price > {i}", lambda i: {"price": i + 1}),
    "conjunction": (
        lambda i: f"symbol = 'X{i % 100}' AND price BETWEEN {i} AND {i + 1}",
        lambda i: {"symbol": f"X{i % 100}", "price": i},
    ),
    "prefix": (lambda i: f"name LIKE 'p{i}.%'", lambda i: {"name": f"p{i}.x"}),
    "attributes": (lambda i: f"a{i} > 5", lambda i: {f"a{i}": 6}),
    "either": (lambda i: f"a = {i} OR b = {i}", lambda i: {"b": i}),
}
FAMILIES["mixture"] = (
    lambda i: list(FAMILIES.values())[i % 6][0](i),
    lambda i: list(FAMILIES.values())[i % 6][1](i),
)


@contextmanager
def line(count: int) -> Iterator[list[BrokerProcess]]:
    """Give so many brokers, each linked to the one before."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        brokers: list[BrokerProcess] = []
        for number in range(1, count + 1):
            neighbours = [brokers[-1].config.listen] if brokers else []
            brokers.append(stack.enter_context(broker(Path(name), number, neighbours)))
        yield brokers


async def subscribe(client: postroad.Client, filters: Sequence[str]) -> list[postroad.Subscription]:
    found: list[postroad.Subscription] = []
    for at in range(0, len(filters), AT_ONCE):
        found += await asyncio.gather(*(client.subscribe(f, timeout=WAIT_S) for f in filters[at : at + AT_ONCE]))
    return found


async def check(publisher: postroad.Publisher, some: Sequence[tuple[postroad.Subscription, Attributes]]) -> None:
    """Publish a message for each of some subscriptions and wait for it."""
    for _, attributes in some:
        await publisher.publish(attributes, b"x")
    await publisher.flush()
    for subscription, attributes in some:
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await anext(subscription)
                if all(message.attributes.get(name) == value for name, value in attributes.items()):
                    break


async def measure(brokers: Sequence[BrokerProcess], family: str, counts: Sequence[int]) -> None:
    make, matching = FAMILIES[family]
    async with postroad.connect(brokers[-1].url) as client, postroad.connect(brokers[0].url) as publisher:
        await subscribe(client, ["warm = 1"])
        there: list[postroad.Subscription] = []
        for count in counts:
            before, own, began = [cpu_s(each.pid) for each in brokers], time.process_time(), time.monotonic()
            added = range(len(there), count)
            there += await subscribe(client, [make(i) for i in added])
            used = [cpu_s(each.pid) - was for each, was in zip(brokers, before, strict=True)]
            own, wall = time.process_time() - own, time.monotonic() - began
            step = max(len(added) // CHECKED, 1)
            await check(publisher.publisher(), [(there[i], matching(i)) for i in added[::step]])
            report(family, count, len(added), used, own, wall, memory_mb(brokers[-1]))
        before, own, began = [cpu_s(each.pid) for each in brokers], time.process_time(), time.monotonic()
        for at in range(0, len(there), AT_ONCE):
            await asyncio.gather(*(each.close() for each in there[at : at + AT_ONCE]))
        used = [cpu_s(each.pid) - was for each, was in zip(brokers, before, strict=True)]
        own, wall = time.process_time() - own, time.monotonic() - began
        report(family, 0, len(there), used, own, wall, memory_mb(brokers[-1]))


def report(family: str, count: int, changed: int, used: Sequence[float], own: float, wall_s: float, memory: float) -> None:
    each = "  ".join(f"{seconds:6.2f}" for seconds in used)
    cost = max(used) / changed * 1000
    print(
        f"{family:12} {count:7}  CPU s: {each}  worst broker {cost:5.2f} ms each  client {own / changed * 1000:5.2f} ms each"
        f"  {wall_s:6.1f} s by the clock  last broker {memory:4.0f} MB",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--counts", nargs="*", type=int, default=[100, 1000, 3000, 10_000])
    parser.add_argument("--brokers", type=int, default=4)
    arguments = parser.parse_args()
    for family in arguments.families:
        with line(arguments.brokers) as brokers:
            run(measure(brokers, family, arguments.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
