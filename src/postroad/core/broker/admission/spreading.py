"""How every broker gets to know all advertisements (sections 3.2, 3.3): down the tree of the publisher's broker.

A broker that has advertisements says so in its link state. Every other broker asks the neighbour on
its way to it (`AdvertisementsWanted`) for the list, and that neighbour passes on every change from
then on. So the lists travel along the shortest-path tree of their broker, and a broker whose route
changes asks its new neighbour, with the version that it has.

A list has a version, which rises with each change and over restarts. A change names the version it
changes; whoever has another one asks for the whole list. So a lost link or a broker that was away
needs no special care.

Lists are kept while their broker is out of reach: it may only be the link. A broker that comes back
without advertisements says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from postroad.core.broker.context import Context
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import AdvertisementEntry, Advertisements, AdvertisementsWanted
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import LinkState, pubend_broker
from postroad.errors import FilterError, ImplausibleError, TooManyError

ORIGINS_MAX: Final = 4096
OF_BROKER_MAX: Final = 1 << 16
OF_ALL_MAX: Final = 1 << 18
PACKET_BYTES: Final = 32_000
ENTRY_BYTES: Final = 40


class AdvertisementRoutes(Protocol):
    """The link states of all brokers, and the routes to them."""

    def advertise(self) -> None: ...

    def route(self, broker: int) -> LinkId | None: ...

    def records(self) -> list[LinkState]: ...


class AdvertisementFollower(Protocol):
    """Whoever counts advertisements."""

    def advertised(self, filter_: Filter, entry: AdvertisementEntry) -> None: ...

    def withdrawn(self, filter_: Filter, entry: AdvertisementEntry) -> None: ...


@dataclass(slots=True)
class _Origin:
    """What is known of one broker's advertisements."""

    version: int = 0
    entries: dict[int, AdvertisementEntry] = field(default_factory=dict)
    asked: LinkId | None = None  # the neighbour that sends us its changes
    children: dict[LinkId, int] = field(default_factory=dict)  # neighbours that get them from us -> the version they have
    staged: Advertisements | None = None  # the beginning of a list that comes in several packets


class AdvertisementSpread:
    """The advertisements of all brokers, and who sends them to whom."""

    def __init__(self, context: Context, routes: AdvertisementRoutes, follower: AdvertisementFollower) -> None:
        self._context = context
        self._routes = routes
        self._follower = follower
        self._origins: dict[int, _Origin] = {}
        self._count = 0
        self._came: dict[int, AdvertisementEntry] = {}  # changes of our own that nobody was told of yet
        self._went: dict[int, None] = {}
        self.rivals: list[AdvertisementEntry] = []  # durable advertisements of others whose name is ours, too

    def __len__(self) -> int:
        return self._count

    def entries(self) -> Iterator[tuple[int, AdvertisementEntry]]:
        """Yield every advertisement with its broker."""
        for broker, origin in self._origins.items():
            for entry in origin.entries.values():
                yield broker, entry

    def of_broker(self, broker: int) -> dict[int, AdvertisementEntry]:
        """Return what is known of the advertisements of a broker, by number."""
        origin = self._origins.get(broker)
        return {} if origin is None else origin.entries

    # --- our own ---

    def put(self, entry: AdvertisementEntry) -> None:
        """Add an advertisement of this broker."""
        own = self._own()
        self._apply(own, (entry,), ())
        self._came[entry.number] = entry
        self._routes.advertise()

    def take(self, number: int) -> None:
        """Remove an advertisement of this broker."""
        own = self._own()
        self._apply(own, (), (number,))
        if self._came.pop(number, None) is None:
            self._went[number] = None

    def tell(self) -> None:
        """Send the changes of this turn."""
        if not self._came and not self._went:
            return
        own = self._own()
        base, own.version = own.version, max(own.version + 1, self._context.incarnation << 32)
        came, went = list(self._came.values()), list(self._went)
        self._came, self._went = {}, {}
        self._push(self._context.broker, own, base, came, went)

    def adopt(self) -> None:
        """Continue under a higher incarnation: what others remember of a former life is older from now on."""
        own = self._origins.get(self._context.broker)
        if own is not None and own.version:
            base, own.version = own.version, max(own.version + 1, self._context.incarnation << 32)
            self._push(self._context.broker, own, base, [], [])

    # --- packets of neighbours ---

    def wanted(self, link: LinkId, packet: AdvertisementsWanted) -> None:
        if packet.origin not in self._origins and len(self._origins) >= ORIGINS_MAX:
            raise TooManyError(f"this broker knows the advertisements of at most {ORIGINS_MAX} brokers")
        origin = self._origins.setdefault(packet.origin, _Origin())
        if packet.stop:
            origin.children.pop(link, None)
            return
        origin.children[link] = packet.version
        if origin.version > packet.version:
            self._send_list(packet.origin, origin, link)

    def received(self, link: LinkId, packet: Advertisements) -> None:
        """Take a list or a change from the neighbour on the way to its broker."""
        origin = self._origins.get(packet.origin)
        if origin is None or origin.asked != link or packet.version <= origin.version:
            return  # from a former route, or known already
        for entry in packet.add:
            if pubend_broker(entry.pubend) != packet.origin:
                raise ImplausibleError(f"broker {packet.origin} advertises for pubend {entry.pubend:x} of another broker")
        staged = origin.staged
        if staged is not None and (staged.version, staged.base) == (packet.version, packet.base):
            packet = Advertisements(
                packet.origin, packet.version, packet.base, staged.add + packet.add, staged.remove + packet.remove, packet.more
            )
        if len(packet.add) > OF_BROKER_MAX:
            raise TooManyError(f"a broker may have at most {OF_BROKER_MAX} advertisements")
        origin.staged = packet if packet.more else None
        if not packet.more:
            self._learn(origin, packet, link)

    def _learn(self, origin: _Origin, packet: Advertisements, link: LinkId) -> None:
        if packet.base == 0:
            whole = {entry.number: entry for entry in packet.add}
            went = [number for number, entry in origin.entries.items() if whole.get(number) != entry]
            came = [entry for number, entry in whole.items() if origin.entries.get(number) != entry]
        elif packet.base == origin.version:
            came, went = packet.add, [number for number in packet.remove if number in origin.entries]
        else:
            self._context.send(link, AdvertisementsWanted(packet.origin, origin.version))
            return
        self._apply(origin, came, went)
        base, origin.version = origin.version, packet.version
        self._push(packet.origin, origin, base, came, went)

    # --- links and routes ---

    def link_lost(self, link: LinkId) -> None:
        for origin in self._origins.values():
            origin.children.pop(link, None)
            if origin.asked == link:
                origin.asked, origin.staged = None, None

    def routes_changed(self) -> None:
        """Ask the neighbours that are on the way now to the brokers with advertisements."""
        me = self._context.broker
        for record in self._routes.records():
            if record.origin == me:
                continue
            if record.advertises and record.origin not in self._origins and len(self._origins) < ORIGINS_MAX:
                self._origins[record.origin] = _Origin()
            origin = self._origins.get(record.origin)
            if origin is None:
                continue
            if not record.advertises and origin.version:
                self._apply(origin, (), list(origin.entries))
                origin.version = 0
            self._follow(record.origin, origin, self._routes.route(record.origin) if record.advertises else None)

    def _follow(self, broker: int, origin: _Origin, link: LinkId | None) -> None:
        if link == origin.asked:
            return
        if origin.asked is not None:
            self._context.send(origin.asked, AdvertisementsWanted(broker, stop=True))
        origin.asked, origin.staged = link, None
        if link is not None:
            self._context.send(link, AdvertisementsWanted(broker, origin.version))

    # --- inside ---

    def _own(self) -> _Origin:
        return self._origins.setdefault(self._context.broker, _Origin())

    def _apply(self, origin: _Origin, came: Iterable[AdvertisementEntry], went: Sequence[int]) -> None:
        parsed = [(entry, self._parse(entry.filter)) for entry in came]  # may raise: nothing is changed then
        for number in went:
            entry = origin.entries.pop(number, None)
            if entry is not None:
                self._count -= 1
                self._follower.withdrawn(self._parse(entry.filter), entry)
        for entry, filter_ in parsed:
            if entry.number in origin.entries or self._count >= OF_ALL_MAX:
                continue
            origin.entries[entry.number] = entry
            self._count += 1
            self._follower.advertised(filter_, entry)
            if entry.name is not None and pubend_broker(entry.pubend) != self._context.broker:
                self.rivals.append(entry)

    def _parse(self, text: str) -> Filter:
        try:
            return self._context.filter(text)
        except FilterError as error:
            raise ImplausibleError(f"an advertised filter cannot be parsed: {error}") from None

    def _push(self, broker: int, origin: _Origin, base: int, came: Sequence[AdvertisementEntry], went: Sequence[int]) -> None:
        for link, version in origin.children.items():
            if version >= origin.version:
                continue
            if version == base and base:
                self._send(link, broker, origin.version, base, came, went)
            else:
                self._send_list(broker, origin, link)
            origin.children[link] = origin.version

    def _send_list(self, broker: int, origin: _Origin, link: LinkId) -> None:
        self._send(link, broker, origin.version, 0, list(origin.entries.values()), ())
        origin.children[link] = origin.version

    def _send(
        self, link: LinkId, broker: int, version: int, base: int, came: Sequence[AdvertisementEntry], went: Sequence[int]
    ) -> None:
        """Send a list in packets that are not too large for a link."""
        part: list[AdvertisementEntry] = []
        size = 0
        for entry in came:
            if part and size > PACKET_BYTES:
                self._context.send(link, Advertisements(broker, version, base, part, [], more=True))
                part, size = [], 0
            part.append(entry)
            size += ENTRY_BYTES + len(entry.filter) + 8 * sum(len(values) for _, values in entry.profile)
        self._context.send(link, Advertisements(broker, version, base, part, list(went)))


def newer(ours: Mapping[str, int], entry: AdvertisementEntry) -> bool:
    """Tell whether an advertisement of another broker was made after ours of the same name."""
    return entry.name is not None and entry.name in ours and entry.made_ms > ours[entry.name]
