"""The messages of section 5: brokers and links of limited speed, with queues; what has waited five seconds is discarded.

A broker serves one message after the other, at its rate, and then puts it into the queue of each link on its way to a broker
with an admitted subscription that matches. A link carries one after the other, at its rate. The way is the tree that the
brokers' own routes make. A message that nobody wants costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from experiments.admission.brokers import LATENCY_S
from postroad.sim.world import World

DISCARD_S: Final = 5.0
Link: TypeAlias = tuple[int, int]  # from one broker to its neighbour


@dataclass(slots=True)
class Server:
    """A CPU or one direction of a link: it serves in order, at its rate."""

    rate: float
    free_at: float = 0.0
    served: int = 0

    def serve(self, now: float) -> float | None:
        """Return when something is done that comes now; None if its turn would come too late."""
        begin = max(now, self.free_at)
        if begin - now > DISCARD_S:
            return None
        self.free_at = begin + 1 / self.rate
        self.served += 1
        return self.free_at


@dataclass(frozen=True, slots=True)
class Tree:
    """Where a message goes: from each broker to its neighbours."""

    out: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Load:
    """Messages under way, and what became of them."""

    def __init__(
        self, world: World, cpus: dict[int, float], links: dict[Link, float], towards: Callable[[int, int], int]
    ) -> None:
        self.world = world
        self.cpus: Final = {broker: Server(rate) for broker, rate in cpus.items()}
        self.links: Final = {link: Server(rate) for link, rate in links.items()}
        self.discarded = 0
        self.published = 0
        self.delivered = 0
        self._towards = towards
        self._wanted: Final[dict[int, dict[int, int]]] = {}  # message -> broker -> admitted subscriptions that match
        self._version = 0
        self._trees: dict[tuple[int, int, int], Tree] = {}  # (pubend, broker, message) -> its tree, of this version
        self._ways: Final[dict[tuple[int, int, int], list[int]]] = {}

    def subscribe(self, broker: int, messages: list[int]) -> None:
        """Let a broker want these messages once more."""
        for message in messages:
            brokers = self._wanted.setdefault(message, {})
            brokers[broker] = brokers.get(broker, 0) + 1
        self._trees.clear()

    def unsubscribe(self, broker: int, messages: list[int]) -> None:
        for message in messages:
            brokers = self._wanted[message]
            brokers[broker] -= 1
            if not brokers[broker]:
                del brokers[broker]
        self._trees.clear()

    def publish(self, broker: int, pubend: int, message: int) -> None:
        self.published += 1
        key = (pubend, broker, message)
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = self._tree(broker, pubend, message)
        if broker in tree.out:
            self._arrive(broker, tree)

    def _tree(self, broker: int, pubend: int, message: int) -> Tree:
        children: dict[int, dict[int, None]] = {}
        for target in self._wanted.get(message, {}):
            way = self._way(broker, pubend, target)
            children.setdefault(target, {})
            for lower, upper in pairwise(way):
                children.setdefault(upper, {})[lower] = None
        return Tree({upper: tuple(lower) for upper, lower in children.items()})

    def _way(self, broker: int, pubend: int, target: int) -> list[int]:
        """Return the brokers from the target up to the publisher's; routes do not change."""
        way = self._ways.get((broker, pubend, target))
        if way is None:
            way = [target]
            while way[-1] != broker:
                way.append(self._towards(way[-1], pubend))
            self._ways[broker, pubend, target] = way
        return way

    def _arrive(self, broker: int, tree: Tree) -> None:
        done = self.cpus[broker].serve(self.world.now)
        if done is None:
            self.discarded += 1
        else:
            self.world.at(done, self._forward, broker, tree)

    def _forward(self, broker: int, tree: Tree) -> None:
        self.delivered += 1
        for neighbour in tree.out[broker]:
            done = self.links[broker, neighbour].serve(self.world.now)
            if done is None:
                self.discarded += 1
            else:
                self.world.at(done + LATENCY_S, self._arrive, neighbour, tree)
