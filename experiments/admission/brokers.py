"""Fifty machines of the product, joined by links that only delay.

Everything that decides about admission is the broker's own code: advertisements travel from machine to machine, each keeps its
covering graph and its ledger, and requests, verdicts and decisions are the packets that real brokers send. Only the messages
themselves are not sent through the machines, because Postroad never drops one: `load` moves them, as the paper's brokers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, cast

from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.protocol.orders import BrokerState, ClientUp, LinkUp, PubendState, Refuse, Send, Store, Stored
from postroad.core.protocol.packets import HOPS_MAX, Hold, HoldConfirmed, Packet, pubend_id
from postroad.sim.world import World
from postroad.types import AttributeValue

LATENCY_S: Final = 0.002
WAKE_S: Final = 0.5
QUIET_S: Final = 1e6  # a broker tells silence and holds so seldom: no message goes through it
WALL_MS: Final = 1_800_000_000_000
CLIENT: Final = 1_000_000  # links of clients begin here
Told: TypeAlias = Callable[[Packet], None]


class Machines:
    """The machines of the brokers, their links and their clients."""

    def __init__(self, world: World, configs: dict[int, BrokerConfig], hosts: set[int]) -> None:
        self.world = world
        self.packets = 0  # between brokers
        self.brokers: Final[dict[int, Broker]] = {}
        self._links: Final[dict[tuple[int, int], tuple[int, int]]] = {}  # (broker, link) -> (other broker, its link)
        self._clients: Final[dict[tuple[int, int], Told]] = {}
        self._link_numbers = 0
        for number, config in configs.items():
            pubends = (PubendState(pubend_id(number), 0, 0, ()),) if number in hosts else ()
            self.brokers[number] = Broker(BrokerState(number, 1, pubends, ()), config, now=world.now)
            self._wake(number)

    def link(self, one: int, two: int) -> None:
        self._link_numbers += 2
        first, second = self._link_numbers, self._link_numbers + 1
        self._links[one, first] = (two, second)
        self._links[two, second] = (one, first)
        for broker, link, other in ((one, first, two), (two, second, one)):
            self.brokers[broker].fact(LinkUp(link, other, 1), now=self.world.now)
        self._act(one)
        self._act(two)

    def client(self, broker: int, told: Told) -> int:
        """Connect a client; return its link."""
        self._link_numbers += 1
        link = CLIENT + self._link_numbers
        self._clients[broker, link] = told
        self.brokers[broker].fact(ClientUp(link), now=self.world.now)
        self._act(broker)
        return link

    def give(self, broker: int, link: int, packet: Packet, request: int = 1) -> None:
        """Let a broker receive a packet."""
        self._clock(broker)
        self.brokers[broker].receive(packet, link=link, now=self.world.now, packet=request)
        self._act(broker)

    def passes(self, broker: int, link: int, attributes: dict[str, AttributeValue]) -> bool:
        """Let a message go through the broker's gate of publishers; tell whether it may be published now."""
        gate = self.brokers[broker].admission
        taken = gate.rows(link, 0, [(b"", attributes, b"")], self.world.now)
        self._act(broker)
        return bool(taken)

    def towards(self, broker: int, pubend: int) -> int:
        """Return the neighbour from which the messages of a pubend come."""
        routes = cast("LinkStateRouter", self.brokers[broker].context.routes)
        link = routes.parent(pubend)
        assert link is not None
        return self._links[broker, link][0]

    def _act(self, number: int) -> None:
        broker = self.brokers[number]
        while orders := broker.outputs():
            for order in orders:
                match order:
                    case Send(link=link, message=message, packet=request):
                        self._send(number, link, message, request)
                    case Store(token=token):
                        broker.fact(Stored(token), now=self.world.now)
                    case Refuse(error=error):
                        raise error
                    case _:
                        pass

    def _send(self, number: int, link: int, message: Packet, request: int) -> None:
        told = self._clients.get((number, link))
        if told is not None:
            self.world.after(0.0, told, message)
            return
        self.packets += 1
        if isinstance(message, Hold):  # on logs, where nothing is: it has no part in admission, and is confirmed at once
            confirmed = HoldConfirmed(number, message.target, HOPS_MAX, message.incarnation, message.version, {})
            self.world.after(LATENCY_S, self.give, number, link, confirmed)
            return
        other, far = self._links[number, link]
        self.world.after(LATENCY_S, self.give, other, far, message, request)

    def _wake(self, number: int) -> None:
        self._clock(number)
        self.brokers[number].wake(now=self.world.now)
        self._act(number)
        self.world.after(WAKE_S, self._wake, number)

    def _clock(self, number: int) -> None:
        self.brokers[number].clock(WALL_MS + int(self.world.now * 1000))
