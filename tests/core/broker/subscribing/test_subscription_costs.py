"""What a subscription costs hardly depends on how many there are. Operations are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from tests.core.broker.machines import Machines

from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import Interest, Packet, Subscribe, Subscribed, Unsubscribe

CLIENT = 1
FAMILIES: dict[str, Callable[[int], str]] = {
    "equality": lambda i: f"symbol = 'X{i}'",
    "rising range": lambda i: f"price > {i}",
    "falling range": lambda i: f"price > {9999 - i}",
    "conjunction": lambda i: f"symbol = 'X{i % 40}' AND price > {i * 7919 % 10007}",
    "two ranges": lambda i: f"a > {i} AND b > {9999 - i}",
    "prefix": lambda i: f"name LIKE 'p{i}%'",
    "infix": lambda i: f"name LIKE '%p{i}%'",
    "an attribute each": lambda i: f"a{i} > 5",
    "either of two": lambda i: f"a = {i} OR b = {i}",
    "mixture": lambda i: (f"symbol = 'X{i}'", f"price > {i}", f"a{i} = 1", f"name LIKE 'p{i}%' AND price < {i}")[i % 4],
}


class Line:
    """Four brokers in a line with a client at the last one."""

    def __init__(self) -> None:
        self.machines = Machines()
        for number in (1, 2, 3, 4):
            self.machines.start(number)
        for number in (1, 2, 3):
            self.machines.link(number, number + 1)
        self.machines.run(0.5)
        self.machines.client(4, CLIENT)

    def subscribe(self, family: Callable[[int], str], handles: range) -> None:
        for handle in handles:
            self.machines.give(4, Subscribe(handle, family(handle)), link=CLIENT, request=handle + 1)

    def unsubscribe(self, handles: range) -> None:
        for handle in handles:
            self.machines.give(4, Unsubscribe(handle), link=CLIENT, request=handle + 1)

    @property
    def active(self) -> int:
        return len(self.machines.nodes[4].told(Subscribed))


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Count the calls of Python functions in the machines, and those of `covers` among them."""
    counts = [0, 0]
    covers = Filter.covers.__code__

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            counts[0] += 1
            counts[1] += frame.f_code is covers

    sys.setprofile(profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("name", "total"), [(name, 2000 if name in {"equality", "rising range", "mixture"} else 500) for name in FAMILIES]
)
def test_a_subscription_costs_the_same_among_many_as_among_100(name: str, total: int) -> None:
    """Each of the next filters costs at most twice what it cost at 100, in calls of functions and of `covers`."""
    line, family = Line(), FAMILIES[name]
    line.subscribe(family, range(60))
    with counted_calls() as few:
        line.subscribe(family, range(60, 100))
    line.subscribe(family, range(100, total - 40))
    with counted_calls() as many:
        line.subscribe(family, range(total - 40, total))
    assert line.active == total
    assert many[0] <= 2 * few[0]
    assert many[1] <= 2 * few[1] + 40 * 16


@pytest.mark.parametrize("name", ["equality", "rising range", "mixture"])
def test_the_end_of_a_subscription_costs_the_same_among_many(name: str) -> None:
    """Unsubscribing one after the other, from the first to the last, is no more than that for each."""
    line, family = Line(), FAMILIES[name]
    line.subscribe(family, range(1200))
    with counted_calls() as many:
        line.unsubscribe(range(100))
    line.unsubscribe(range(100, 1100))
    with counted_calls() as few:
        line.unsubscribe(range(1100, 1200))
    assert many[0] <= 2 * few[0]
    assert many[1] <= 2 * few[1] + 100 * 16
    assert line.machines.nodes[4].broker.stats()["subscriptions"] == 0


def test_a_link_that_returns_costs_each_filter_once() -> None:
    """The full interest goes over the link in a few packets; everything is active again without another word for each filter."""
    line = Line()
    costs = []
    for first, last in ((0, 200), (200, 1000)):
        line.subscribe(FAMILIES["equality"], range(first, last))
        line.machines.unlink(2, 3)
        with interests_taken(line, 2) as taken, counted_calls() as counts:
            line.machines.link(2, 3)
            line.machines.run(0.2)
        assert sum(len(message.add) for message in taken) == 2 * last  # for the pubends of brokers 1 and 2
        assert len(taken) < 10
        costs.append(counts[0] / last)
    assert costs[1] <= 1.5 * costs[0]
    line.subscribe(FAMILIES["equality"], range(1000, 1010))
    assert line.active == 1010


@contextmanager
def interests_taken(line: Line, number: int) -> Iterator[list[Interest]]:
    """Collect the interests that a broker receives."""
    broker = line.machines.nodes[number].broker
    receive, taken = broker.receive, list[Interest]()

    def noted(message: Packet, *, link: int, now: float, batch: Batch | None = None, packet: int = 0) -> None:
        if isinstance(message, Interest) and message.add:
            taken.append(message)
        receive(message, link=link, now=now, batch=batch, packet=packet)

    broker.receive = noted  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        broker.receive = receive  # type: ignore[method-assign]
