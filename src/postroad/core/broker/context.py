"""What every role of a broker is given: identity, configuration, the list of orders, numbers, and routes to other brokers.

Each role owns its state. It uses another role only through an object with one of the protocols in `views.py`, or through a value
that `machine.py` passes on.

Work that waits for the disk is kept as a record, never as a function, so that the state can be printed and compared. `store`
takes a record that says what to do when the change is on disk, and `machine.py` passes it to the role that knows its type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.admission_settings import AdmissionSettings
from postroad.core.broker.congestion.settings import CongestionSettings
from postroad.core.broker.views import Routes
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import LinkId, Refuse, Send, Store
from postroad.core.protocol.packets import HOPS_MAX, Packet, Unicast
from postroad.core.protocol.rights import EVERYTHING, OPEN, Rights
from postroad.errors import FilterError, PostroadError

FILTERS_REMEMBERED: Final = 1 << 14
FILTER_CHARACTERS_REMEMBERED: Final = 1 << 21  # a filter takes up to a hundred times its characters
FULL_HOPS: Final = HOPS_MAX
KNOWN_KEY: Final = "known-brokers"
Changes = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of the machine; times in seconds."""

    cache_bytes: int = 64 << 20  # per pubend
    silence_s: float = 1.0  # how often silence and holds are sent, and every fifth time positions
    subscriber_grace_s: float = 30.0  # how long the logs are held for a client that lost its connection
    keep_s: float = 0.0  # how long messages are kept at least, even if nobody needs them
    publish_window_bytes: int = 4 << 20
    pubends: int = 0  # new publishers are spread over the first so many of the hosted pubends; 0: over all
    subscriptions_max: int = 200_000
    subscriptions_per_identity_max: int = 50_000
    names_per_identity_max: int = 4_096  # of durable subscriptions in the overlay, and of named writers at this broker
    newcomer_wait_s: float = 0.0  # how long a broker with empty files waits for reports of a former life before it begins
    replaces: bool = False  # the operator knows that the files of a former life are lost
    has_neighbours: bool = False  # neighbours are configured: other brokers exist, even if none is known yet
    home_query_s: float = 3.0  # how long to wait for the former home of a durable subscription
    retired: tuple[int, ...] = ()  # brokers that will never return: they are not asked, and their holds do not count
    skew_tolerance_ms: int = 4_000  # how much a message's timestamp may differ from the broker's clock
    congestion: CongestionSettings = field(default_factory=CongestionSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    observed: bool = False  # emit observations, and keep in each log what the observer has not recorded


@dataclass(frozen=True, slots=True)
class SendWhenStored:
    """Work after a write: send a packet."""

    link: LinkId
    packet: Packet
    request: int


@dataclass(frozen=True, slots=True)
class NewestStored:
    """Work after a write of `store_newest`: write the newer value, if there is one."""

    key: str


@dataclass(frozen=True, slots=True)
class Write:
    """A change of metadata that is being written, and the work that waits for it."""

    changes: Changes
    then: object | None


@dataclass(slots=True)
class Context:
    """One broker, as all its roles see it."""

    broker: int
    incarnation: int
    config: BrokerConfig
    orders: list[Output]
    routes: Routes
    known: dict[int, list[int]] = field(default_factory=dict)  # every other broker ever seen, with its pubends; stored
    known_changed: bool = False  # since it was stored
    wall_ms: int = 0
    files_lost: bool = False  # of a former life: this broker may have forgotten what others were told then
    keep_all_until: float = 0.0  # nothing is released before: other brokers must repeat their holds on our logs first
    writes: dict[int, Write] = field(default_factory=dict)
    newest: dict[str, bytes | None] = field(default_factory=dict)  # keys `store_newest` writes -> the value that follows
    token: int = 0
    epoch: int = 0
    request: int = 0
    rights: dict[LinkId, Rights] = field(default_factory=dict)  # what each client may do
    filters: dict[str, Filter | FilterError] = field(default_factory=dict)  # by text; an error where the text is no filter
    filter_characters: int = 0  # of those texts

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.incarnation << 32 | self.epoch

    def next_request(self) -> int:
        """Return a request number that no other start of this broker uses: an answer may arrive after a restart."""
        self.request = self.request + 1 & 0xFFFF_FFFF
        return self.incarnation << 32 | self.request

    def filter(self, text: str) -> Filter:
        """Return the parsed filter, from the cache of parsed filters if possible."""
        known = self.filters.get(text)
        if known is None:
            known = Filter(text)
            self.remember_filter(text, known)
        if isinstance(known, FilterError):
            raise known.with_traceback(None)
        return known

    def permitted_filter(self, rights: Rights, text: str) -> Filter:
        """Return the part of a filter that a client may see; from the cache, as with `filter`."""
        if rights.subscribe is None:
            return rights.subscribable(EVERYTHING)
        if rights.subscribe is EVERYTHING:
            return self.filter(text)
        key = rights.filter_key(text)
        known = self.filters.get(key)
        if known is None:
            known = rights.subscribable(self.filter(text))
            self.remember_filter(key, known)
            self.remember_filter(str(known), known)
        if isinstance(known, FilterError):
            raise known.with_traceback(None)
        return known

    def rights_of(self, link: LinkId) -> Rights:
        return self.rights.get(link, OPEN)

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        """Cache a parsed filter, or the error of an invalid text."""
        if text in self.filters:
            return
        self.filters[text] = known
        self.filter_characters += len(text)
        while len(self.filters) > FILTERS_REMEMBERED or self.filter_characters > FILTER_CHARACTERS_REMEMBERED:
            oldest = next(iter(self.filters))
            if oldest == text:
                break
            del self.filters[oldest]
            self.filter_characters -= len(oldest)

    def store(self, changes: Changes, then: object | None = None) -> None:
        """Write metadata. When it is on disk, the machine continues with `then`."""
        token = self.next_token()
        self.writes[token] = Write(changes, then)
        self.orders.append(Store(token, changes))

    def store_newest(self, key: str, value: bytes) -> None:
        """Write a value that replaces the former one. While one is being written, only the newest waits: disks may be slow."""
        if key in self.newest:
            self.newest[key] = value
            return
        self.newest[key] = None
        self.store(((key, value),), NewestStored(key))

    def newest_stored(self, stored: NewestStored) -> None:
        value = self.newest.pop(stored.key)
        if value is not None:
            self.store_newest(stored.key, value)

    def remember_broker(self, broker: int, pubends: list[int]) -> None:
        """Remember that a broker exists, and store it with the next orders.

        A known broker counts even when it is unreachable: it may have names and messages that we do not know.
        """
        if self.known.get(broker) != pubends and broker not in self.config.retired:
            self.known[broker] = pubends
            self.known_changed = True

    def store_known(self) -> None:
        """Store which brokers exist, if that changed; one write for all changes of a turn."""
        if self.known_changed:
            self.known_changed = False
            self.store_newest(KNOWN_KEY, msgspec.msgpack.encode(self.known))

    def send(self, link: LinkId, packet: Packet, request: int = 0) -> None:
        self.orders.append(Send(link, packet, packet=request))

    def refuse(self, link: LinkId, request: int, error: PostroadError) -> None:
        self.orders.append(Refuse(link, request, error))

    def unicast(self, packet: Unicast, *, came_by: LinkId | None = None, data: bool = False) -> bool:
        """Send a packet over the next link towards its target; tell whether there is a route."""
        link = self.routes.route(packet.target)
        if link is None or link == came_by or packet.hops <= 0:
            return False
        self.orders.append(Send(link, packet, data=data))
        return True

    def flood(self, packet: Packet, *, except_link: LinkId | None = None) -> None:
        for neighbour in self.routes.neighbours:
            if neighbour.link != except_link:
                self.orders.append(Send(neighbour.link, packet))
