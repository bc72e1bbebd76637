"""Broker machines driven by hand: packets between them travel at once, writes finish when the test says so.

`Overlay` in `overlay.py` adds publishers, subscribers, crashes and a wire that loses packets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import Broker
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import (
    Append,
    Appended,
    AppendFailed,
    BrokerState,
    ClientUp,
    LinkLost,
    LinkUp,
    LogRead,
    LogReleased,
    PubendState,
    ReadLog,
    Refuse,
    ReleaseLog,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import Packet, pubend_id
from postroad.core.protocol.rights import OPEN
from postroad.errors import PostroadError

START_MS = 1_000_000


@dataclass
class Log:
    """The log of one pubend on the disk of its broker."""

    batches: list[Batch] = field(default_factory=list)
    released: int = 0
    last: int = 0  # the tick of the last message that was ever in it
    publishers: dict[int, int] = field(default_factory=dict)  # publisher -> highest tick of its ids

    def append(self, batches: tuple[Batch, ...]) -> None:
        for batch in batches:
            self.batches.append(batch)
            self.last = batch.last_tick
            for message in batch:
                self.publishers[message.id.publisher] = message.id.tick

    def read(self, lo: int, hi: int) -> tuple[Batch, ...]:
        return tuple(part for batch in self.batches if len(part := batch.within(lo, hi)))

    def release(self, tick: int) -> None:
        self.released = max(self.released, tick)
        self.batches = list(self.read(self.released, (1 << 64) - 1))

    def state(self, pubend: int) -> PubendState:
        """Return what a broker finds when it starts with this log."""
        return PubendState(pubend, max(self.last, self.released), self.released, tuple(self.publishers.items()))


@dataclass
class Machine:
    """One broker, what is on its disk, and what it said to clients."""

    broker: Broker
    number: int
    metadata: dict[str, bytes] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=dict)  # by pubend
    links: dict[int, tuple[int, int]] = field(default_factory=dict)  # link -> (other broker, its link)
    sent: list[tuple[int, Packet]] = field(default_factory=list)  # to clients, in order
    refused: list[tuple[int, PostroadError]] = field(default_factory=list)
    unfinished: list[Store] = field(default_factory=list)
    unfinished_appends: list[Append] = field(default_factory=list)
    writes_finish: bool = True

    def told(self, kind: type[Packet]) -> list[Packet]:
        return [packet for _, packet in self.sent if isinstance(packet, kind)]


class RisingEpochs:
    """Epochs for a part of a broker that is tested alone."""

    def __init__(self) -> None:
        self._last = 0

    def next_epoch(self) -> int:
        self._last += 1
        return self._last


class Machines:
    """Some brokers in one virtual second after another."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.now = 0.0
        self.nodes: dict[int, Machine] = {}
        self.writes_finish = True
        self.loses: tuple[type[Packet], ...] = ()  # packets between brokers that do not arrive
        self._config = config or BrokerConfig()
        self.rights = OPEN  # of clients that connect from now on
        self.configs: dict[int, BrokerConfig] = {}  # of single brokers, in its place
        self._links = 100
        self._clocks_back_ms: dict[int, int] = {}  # broker -> by how much its clock is behind
        self._append_errors: dict[int, PostroadError] = {}

    def start(
        self,
        number: int,
        metadata: dict[str, bytes] | None = None,
        *,
        incarnation: int = 1,
        released: int = 0,
        logs: dict[int, Log] | None = None,
    ) -> Machine:
        kept, found = dict(metadata or {}), logs or {pubend_id(number): Log(released=released)}
        pubends = tuple(log.state(pubend) for pubend, log in found.items())
        state = BrokerState(number, incarnation, pubends, tuple(kept.items()))
        node = self.nodes[number] = Machine(
            Broker(state, self.configs.get(number, self._config), now=self.now), number, kept, found
        )
        self._set_clock(node)
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
        self.nodes[number].broker.fact(ClientUp(link, rights=self.rights), now=self.now)

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
                self._set_clock(node)
                node.broker.wake(now=self.now)
            self.settle()

    def set_clock_back(self, number: int, *, seconds: float) -> None:
        """Let the clock of a broker be behind from now on, also after a restart."""
        self._clocks_back_ms[number] = int(seconds * 1000)

    def fail_appends(self, number: int, error: PostroadError | None) -> None:
        """Let the disk of a broker take no messages; None lets it take them again."""
        if error is None:
            del self._append_errors[number]
        else:
            self._append_errors[number] = error

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
            appends, node.unfinished_appends = node.unfinished_appends, []
            for append in appends:
                self._finish_append(node, append)
        self.settle()

    def _carry_out(self, node: Machine) -> bool:
        orders = node.broker.outputs()
        for order in orders:
            self._do(node, order)
        return bool(orders)

    def _do(self, node: Machine, order: Output) -> None:
        match order:
            case Send(link) if link in node.links:
                self.carry(node, order)
            case Send():
                self.tell_client(node, order)
            case Refuse():
                self.refuse_client(node, order)
            case Store():
                if self.writes_finish and node.writes_finish:
                    self._finish(node, order)
                else:
                    node.unfinished.append(order)
            case Append():
                if self.writes_finish and node.writes_finish:
                    self._finish_append(node, order)
                else:
                    node.unfinished_appends.append(order)
            case ReadLog(pubend, token, lo, hi):
                log = node.logs[pubend]
                node.broker.fact(LogRead(pubend, token, hi, log.read(lo, hi), log.released), now=self.now)
            case ReleaseLog(pubend, tick):
                node.logs[pubend].release(tick)
                node.broker.fact(LogReleased(pubend, tick), now=self.now)
            case _:
                pass

    def carry(self, node: Machine, order: Send) -> None:
        """Carry a packet to a neighbour."""
        if not isinstance(order.message, self.loses):
            self.hand_over(*node.links[order.link], order)

    def hand_over(self, number: int, link: int, order: Send) -> None:
        """Let a broker receive a packet on a link, if both are still there."""
        if number in self.nodes and link in self.nodes[number].links:
            receive = self.nodes[number].broker.receive
            receive(order.message, link=link, now=self.now, batch=order.batch, packet=order.packet)

    def tell_client(self, node: Machine, order: Send) -> None:
        node.sent.append((order.link, order.message))

    def refuse_client(self, node: Machine, order: Refuse) -> None:
        node.refused.append((order.packet, order.error))

    def _set_clock(self, node: Machine) -> None:
        node.broker.clock(START_MS + int(self.now * 1000) - self._clocks_back_ms.get(node.number, 0))

    def _finish_append(self, node: Machine, order: Append) -> None:
        if node.number in self._append_errors:
            node.broker.fact(AppendFailed(order.pubend, order.token, self._append_errors[node.number]), now=self.now)
        else:
            node.logs[order.pubend].append(order.batches)
            node.broker.fact(Appended(order.pubend, order.token), now=self.now)

    def _finish(self, node: Machine, order: Store) -> None:
        for key, value in order.changes:
            if value is None:
                node.metadata.pop(key, None)
            else:
                node.metadata[key] = value
        node.broker.fact(Stored(order.token), now=self.now)
