"""Link-state routing: machines that talk over a wire of lists."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Send
from postroad.core.protocol.packets import LinkState, pubend_id


class Net:
    """Routers joined by links; `settle` carries every packet to its end."""

    def __init__(self, brokers: Iterable[int], pubends: int = 1) -> None:
        self.orders: dict[int, list[Output]] = {b: [] for b in brokers}
        self.pubends = {b: tuple(pubend_id(b, i) for i in range(pubends)) for b in self.orders}
        self.routers = {b: LinkStateRouter(b, 1, self.pubends[b], self.orders[b]) for b in self.orders}
        self.ends: dict[int, tuple[int, int]] = {}  # link -> (broker, its link)
        self.number = 0

    def link(self, left: int, right: int, cost: int = 1) -> tuple[int, int]:
        self.number += 2
        here, there = self.number, self.number + 1
        self.ends[here], self.ends[there] = (right, there), (left, here)
        self.routers[left].link_up(here, right, cost)
        self.routers[right].link_up(there, left, cost)
        return here, there

    def cut(self, link: tuple[int, int]) -> None:
        for end in link:
            broker, _ = self.ends[end ^ 1]
            self.routers[broker].link_lost(end)
            del self.ends[end ^ 1]

    def settle(self) -> int:
        sent = 0
        while any(self.orders.values()):
            for orders in self.orders.values():
                taken, orders[:] = list(orders), []
                for order in taken:
                    assert isinstance(order, Send)
                    assert isinstance(order.message, LinkState)
                    if order.link in self.ends:
                        broker, link = self.ends[order.link]
                        self.routers[broker].receive(order.message, link)
                        sent += 1
        return sent

    def path(self, start: int, pubend: int) -> list[int]:
        """Follow the parents from a broker to the pubend's."""
        walked = [start]
        while (link := self.routers[walked[-1]].parent(pubend)) is not None:
            walked.append(self.ends[link][0])
            assert len(walked) <= len(self.routers), f"a loop: {walked}"
        return walked


def diamond(pubends: int = 1) -> tuple[Net, dict[str, tuple[int, int]]]:
    net = Net([1, 2, 3, 4], pubends)
    links = {f"{a}{b}": net.link(a, b) for a, b in [(1, 2), (1, 3), (2, 4), (3, 4)]}
    net.settle()
    return net, links


def test_a_lost_link_moves_the_tree() -> None:
    """The way from 4 to 1 leads over 2 or 3; when one is cut, over the other; when both are, nowhere."""
    net, links = diamond()
    over = net.path(4, pubend_id(1))[1]
    net.cut(links[f"1{over}"])
    net.settle()
    assert net.path(4, pubend_id(1)) == [4, 5 - over, 1]
    net.cut(links[f"1{5 - over}"])
    net.settle()
    assert not net.routers[4].reachable(1)
    assert net.routers[4].parent(pubend_id(1)) is None


def test_equal_ways_are_spread_over_the_pubends() -> None:
    """Of sixteen pubends of broker 1, some reach 4 over 2 and some over 3."""
    net, _ = diamond(pubends=16)
    over = [net.path(4, pubend)[1] for pubend in net.pubends[1]]
    assert set(over) == {2, 3}
    assert 4 <= over.count(2) <= 12


def test_a_link_counts_only_when_both_ends_name_it() -> None:
    """A broker that died without a word disappears with its neighbours' new records."""
    net, _ = diamond()
    silent = net.routers[2]
    for broker in (1, 4):
        for neighbour in net.routers[broker].neighbours:
            if neighbour.broker == 2:
                net.routers[broker].link_lost(neighbour.link)
    net.settle()
    assert silent.neighbours  # it has not noticed
    assert not net.routers[3].reachable(2)


def test_an_older_record_never_replaces_a_newer_one() -> None:
    """The incarnation counts before the sequence."""
    orders: list[Output] = []
    router = LinkStateRouter(1, 1, (), orders)
    new = LinkState(9, 2, 1, [], [pubend_id(9)])
    assert router.receive(new, 0)
    assert not router.receive(LinkState(9, 1, 50, [], []), 0)
    assert not router.receive(new, 0)
    assert router.receive(LinkState(9, 2, 2, [], []), 0)


@pytest.mark.parametrize("seed", range(20))
def test_random_overlays_have_shortest_paths_without_loops(seed: int) -> None:
    """After cuts and joins every broker reaches every other along parents, in as few hops as a plain search finds."""
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    net = Net(range(1, count + 1))
    links = {(a, b): net.link(a, b) for b in range(2, count + 1) for a in [rng.randint(1, b - 1)]}
    for _ in range(rng.randint(0, 8)):
        a, b = sorted(rng.sample(range(1, count + 1), 2))
        if (a, b) not in links:
            links[a, b] = net.link(a, b)
        elif len(links) > count:
            net.cut(links.pop((a, b)))
        if rng.random() < 0.5:
            net.settle()
    net.settle()
    for start in net.routers:
        for root in net.routers:
            expected = hops(links, start, root)
            assert net.routers[start].reachable(root) == (expected is not None), f"seed {seed}"
            if expected is not None:
                assert len(net.path(start, pubend_id(root))) - 1 == expected, f"seed {seed}"


def hops(links: Iterable[tuple[int, int]], start: int, goal: int) -> int | None:
    near, seen, distance = {start}, {start}, 0
    pairs = list(links)
    while near:
        if goal in near:
            return distance
        near = {b for a, b in pairs + [(b, a) for a, b in pairs] if a in near} - seen
        seen |= near
        distance += 1
    return None
