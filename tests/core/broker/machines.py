"""Broker machines driven by hand: packets between them travel at once, writes finish when the test says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.protocol.orders import (
    Append,
    Appended,
    BrokerState,
    ClientUp,
    LinkLost,
    LinkUp,
    LogRead,
    Order,
    PubendState,
    ReadLog,
    Refuse,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import Packet, pubend_id
from postroad.errors import PostroadError

START_MS = 1_000_000


@dataclass
class Machine:
    """One broker, its stored metadata, and what it said to clients."""

    broker: Broker
    number: int
    metadata: dict[str, bytes] = field(default_factory=dict)
    links: dict[int, tuple[int, int]] = field(default_factory=dict)  # link -> (other broker, its link)
    sent: list[tuple[int, Packet]] = field(default_factory=list)  # to clients, in order
    refused: list[tuple[int, PostroadError]] = field(default_factory=list)
    unfinished: list[Store] = field(default_factory=list)
    horizon: int = 0

    def told(self, kind: type[Packet]) -> list[Packet]:
        return [packet for _, packet in self.sent if isinstance(packet, kind)]


class Machines:
    """Some brokers in one virtual second after another."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.now = 0.0
        self.nodes: dict[int, Machine] = {}
        self.writes_finish = True
        self.loses: tuple[type[Packet], ...] = ()  # packets between brokers that do not arrive
        self._config = config or BrokerConfig()
        self._links = 100

    def start(self, number: int, metadata: dict[str, bytes] | None = None, *, incarnation: int = 1, released: int = 0) -> Machine:
        kept = dict(metadata or {})
        state = BrokerState(number, incarnation, (PubendState(pubend_id(number), released=released),), tuple(kept.items()))
        node = self.nodes[number] = Machine(Broker(state, self._config, now=self.now), number, kept)
        node.broker.clock(START_MS + int(self.now * 1000))
        return node

    def stop(self, number: int) -> dict[str, bytes]:
        """Crash a broker; return what was on its disk."""
        node = self.nodes.pop(number)
        for other, far in node.links.values():
            if other in self.nodes and far in self.nodes[other].links:
                del self.nodes[other].links[far]
                self.nodes[other].broker.fact(LinkLost(far), now=self.now)
        self.settle()
        return node.metadata

    def link(self, first: int, second: int) -> None:
        self._links += 2
        one, two = self._links, self._links + 1
        self.nodes[first].links[one] = (second, two)
        self.nodes[second].links[two] = (first, one)
        self.nodes[first].broker.fact(LinkUp(one, second, 1), now=self.now)
        self.nodes[second].broker.fact(LinkUp(two, first, 1), now=self.now)
        self.settle()

    def unlink(self, first: int, second: int) -> None:
        for one, two in ((first, second), (second, first)):
            for link, (other, _) in list(self.nodes[one].links.items()):
                if other == two:
                    del self.nodes[one].links[link]
                    self.nodes[one].broker.fact(LinkLost(link), now=self.now)
        self.settle()

    def client(self, number: int, link: int) -> None:
        self.nodes[number].broker.fact(ClientUp(link), now=self.now)

    def leave(self, number: int, link: int) -> None:
        self.nodes[number].broker.fact(LinkLost(link), now=self.now)
        self.settle()

    def give(self, number: int, packet: Packet, *, link: int, request: int = 0) -> None:
        self.nodes[number].broker.receive(packet, link=link, now=self.now, packet=request)
        self.settle()

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.05
            for node in self.nodes.values():
                node.broker.clock(START_MS + int(self.now * 1000))
                node.broker.wake(now=self.now)
            self.settle()

    def settle(self) -> None:
        """Carry out orders until there are none."""
        busy = True
        while busy:
            busy = False
            for node in list(self.nodes.values()):
                busy = self._carry_out(node) or busy

    def finish_writes(self) -> None:
        for node in self.nodes.values():
            waiting, node.unfinished = node.unfinished, []
            for order in waiting:
                self._finish(node, order)
        self.settle()

    def _carry_out(self, node: Machine) -> bool:
        orders = node.broker.outputs()
        for order in orders:
            self._do(node, order)
        return bool(orders)

    def _do(self, node: Machine, order: Order) -> None:
        match order:
            case Send(link, message, batch, packet=packet):
                if link in node.links:
                    other, far = node.links[link]
                    if other in self.nodes and not isinstance(message, self.loses):
                        self.nodes[other].broker.receive(message, link=far, now=self.now, batch=batch, packet=packet)
                else:
                    node.sent.append((link, message))
            case Refuse(_, packet, error):
                node.refused.append((packet, error))
            case Store():
                if self.writes_finish:
                    self._finish(node, order)
                else:
                    node.unfinished.append(order)
            case Append(pubend, token):
                node.broker.fact(Appended(pubend, token), now=self.now)
            case ReadLog(pubend, token, _, hi):
                released = node.broker._pubends[pubend].released
                node.broker.fact(LogRead(pubend, token, hi, (), released), now=self.now)
            case _:
                pass

    def _finish(self, node: Machine, order: Store) -> None:
        for key, value in order.changes:
            if value is None:
                node.metadata.pop(key, None)
            else:
                node.metadata[key] = value
        node.broker.fact(Stored(order.token), now=self.now)
