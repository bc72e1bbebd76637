"""What the parts of one broker share: identity, configuration, the orders, and each other's state.

`Broker` builds one `Parts` and hands it to `Publishing`, `Subscribing` and `Releasing`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.holding.holds import HoldKeeper, HoldTable
from postroad.core.broker.publishing.losses import Losses
from postroad.core.broker.publishing.pubend import Pubend
from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.edge import Edge, EdgeStream
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId, Order, Refuse, Send, Store
from postroad.core.protocol.packets import HOPS_MAX, Packet, Unicast
from postroad.core.tracking.notes import Notes
from postroad.core.tracking.settings import OFF, TrackingSettings
from postroad.errors import PostroadError

FILTERS_REMEMBERED: Final = 1 << 14
KNOWN_KEY: Final = "known-brokers"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What an operator may set of the machine; times in seconds."""

    cache_bytes: int = 64 << 20  # per pubend
    silence_s: float = 1.0  # how often silence and holds are told, and every fifth time positions
    subscriber_grace_s: float = 30.0  # how long the logs are held for a client that may come back
    keep_s: float = 0.0  # how long messages are kept though nobody needs them
    publish_window_bytes: int = 4 << 20
    subscriptions_max: int = 200_000
    newcomer_wait_s: float = 0.0  # how long a broker with empty files waits to be told of a former life before it begins
    replaces: bool = False  # it is known that the files of a former life are lost
    has_neighbours: bool = False  # it is to link to other brokers: it is not alone, though it may know nobody yet
    home_query_s: float = 3.0  # how long to wait for the former home of a durable subscription
    retired: tuple[int, ...] = ()  # brokers that are gone for good: nobody asks them, and their holds do not count
    tracking: TrackingSettings = OFF


@dataclass(slots=True)
class Parts:
    """The state of one broker."""

    broker: int
    incarnation: int
    config: BrokerConfig
    orders: list[Order]
    router: LinkStateRouter
    pubends: dict[int, Pubend]
    edge: Edge
    table: HoldTable
    keeper: HoldKeeper
    durables: Durables
    notes: Notes | None = None  # None: nothing is tracked
    tracked: dict[int, int] = field(default_factory=dict)  # hosted pubend -> up to where its publisher history is durable
    streams: dict[int, Stream] = field(default_factory=dict)
    brokers: dict[LinkId, int] = field(default_factory=dict)  # links to neighbours
    clients: dict[LinkId, str] = field(default_factory=dict)  # links to clients, with their names
    known: dict[int, list[int]] = field(default_factory=dict)  # every other broker ever heard of, with its pubends; stored
    wall_ms: int = 0
    on_stored: dict[int, list[Callable[[float], None]]] = field(default_factory=dict)
    token: int = 0
    epoch: int = 0
    request: int = 0
    filters: dict[str, Filter] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    keep_all_until: float = 0.0  # nothing is released before: those who hold our logs have to say so again
    disbelieved: int = 0  # packets of other brokers that were left out; see `trust`

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.incarnation << 32 | self.epoch

    def next_request(self) -> int:
        """Return a number for a question to a broker. The answer may come after a restart: no other life of ours uses it."""
        self.request = self.request + 1 & 0xFFFF_FFFF
        return self.incarnation << 32 | self.request

    def filter(self, text: str) -> Filter:
        """Parse a filter, or find it parsed."""
        known = self.filters.get(text)
        if known is None:
            if len(self.filters) >= FILTERS_REMEMBERED:
                del self.filters[next(iter(self.filters))]
            known = self.filters[text] = Filter(text)
        return known

    def store(self, changes: tuple[tuple[str, bytes | None], ...], then: Callable[[float], None] | None = None) -> None:
        """Write metadata; go on with `then` when it is durable."""
        token = self.next_token()
        self.on_stored[token] = [lambda _now: self.durables.stored(changes)]
        if then is not None:
            self.on_stored[token].append(then)
        self.orders.append(Store(token, changes))

    def get_to_know(self, broker: int, pubends: list[int]) -> None:
        """Remember a broker for good: what is out of reach now may hold what we were never told."""
        if self.known.get(broker) != pubends and broker not in self.config.retired:
            self.known[broker] = pubends
            self.store(((KNOWN_KEY, msgspec.msgpack.encode(self.known)),))

    def send(self, link: LinkId, packet: Packet, request: int = 0) -> None:
        self.orders.append(Send(link, packet, packet=request))

    def refuse(self, link: LinkId, request: int, error: PostroadError) -> None:
        self.orders.append(Refuse(link, request, error))

    def unicast(self, packet: Unicast, *, came_by: LinkId | None = None, data: bool = False) -> bool:
        """Send a packet one link nearer to its target; tell whether there is a way."""
        link = self.router.route(packet.target)
        if link is None or link == came_by or packet.hops <= 0:
            return False
        self.orders.append(Send(link, packet, data=data))
        return True

    def flood(self, packet: Packet, *, except_link: LinkId | None = None) -> None:
        for neighbour in self.router.neighbours:
            if neighbour.link != except_link:
                self.orders.append(Send(neighbour.link, packet))

    def edge_stream(self, pubend: int) -> EdgeStream:
        return self.edge.streams[pubend]

    def ensure_stream(self, pubend: int) -> Stream:
        """Return the stream of a pubend, begun when it is heard of first."""
        stream = self.streams.get(pubend)
        if stream is None:
            stream = Stream(
                pubend,
                hosted_here=pubend in self.pubends,
                cache_bytes=self.config.cache_bytes,
                next_epoch=self.next_epoch,
                orders=self.orders,
            )
            self.streams[pubend] = stream
            self.edge.streams[pubend] = EdgeStream(stream)
        return stream


FULL_HOPS: Final = HOPS_MAX
