"""Link-state routing: which brokers exist, and the routes to them.

Every broker floods a `LinkState` with its neighbours, their costs, and the pubends it hosts. The newest (incarnation, sequence)
of an origin counts. If an origin receives a newer record of itself (from a former life whose disk is lost, or from a broker with
a bug), it sends a record with a higher number, so that the others accept its records again. From the records each broker computes
shortest paths from itself. A link counts when both ends name it, so a broker that is down disappears when its neighbours notice.

The parent of a stream is the neighbour on a shortest path to the pubend's broker. Among several neighbours at equal distance, a
mixing function of pubend and neighbour chooses one, so that the pubends of one broker spread over the paths. Every parent is
strictly nearer to the root, so brokers with the same view never form a loop.

Invariants: records only grow newer; `route` and `parent` never name a link that is down.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX, leaves_room
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import LinkState, pubend_broker

BROKERS_MAX: Final = 4096
PUBENDS_MAX: Final = 1 << 14
"""Pubends of all brokers together. Each costs a stream at this broker, and some memory per subscription."""
_MIX: Final = 0x9E37_79B9_7F4A_7C15
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


class Neighbour(NamedTuple):
    """A live link and the broker at its other end."""

    link: LinkId
    broker: int
    cost: int


def preference(pubend: int, neighbour: int) -> int:
    """Order equally near parents differently for each pubend, in the same way at every broker."""
    mixed = (pubend * _MIX ^ (neighbour + 1) * 0xC2B2_AE3D_27D4_EB4F) & _MASK
    return (mixed ^ mixed >> 29) * _MIX & _MASK


class LinkStateRouter:
    """The routing table of one broker. It appends its packets to the broker's orders."""

    def __init__(self, broker: int, incarnation: int, pubends: tuple[int, ...], orders: list[Output]) -> None:
        self.broker = broker
        self.started_ms = 0  # by the broker's clock, once that is set
        self._incarnation = incarnation
        self._sequence = 0
        self._pubends = pubends
        self._advertises = False
        self._orders = orders
        self._neighbours: dict[int, Neighbour] = {}  # by broker
        self._records: dict[int, LinkState] = {}
        self._first_hops: dict[int, tuple[int, ...]] | None = None  # computed on demand
        self._told_hops: dict[int, tuple[int, ...]] = {}  # as they were at the last `take_changes`
        self._changed: dict[int, None] = {}  # brokers whose pubends changed since then
        self._announced: list[int] | None = None  # computed on demand
        self._pubend_count = 0
        self._own_record()

    # --- facts ---

    def link_up(self, link: LinkId, broker: int, cost: int) -> None:
        self._neighbours[broker] = Neighbour(link, broker, cost)
        self._told_hops = {}  # the same route may use another link now
        self._announce()
        for record in self._records.values():
            if record.origin != self.broker:
                self._orders.append(Send(link, record))

    def link_lost(self, link: LinkId) -> None:
        lost = [n.broker for n in self._neighbours.values() if n.link == link]
        for broker in lost:
            del self._neighbours[broker]
        if lost:
            self._told_hops = {}
            self._announce()

    def receive(self, record: LinkState, link: LinkId) -> bool:
        """Handle a flooded record; pass it on if it is new; tell whether it is."""
        known = self._records.get(record.origin)
        if known is not None and (known.incarnation, known.sequence) >= (record.incarnation, record.sequence):
            return False
        if record.origin == self.broker or (known is None and len(self._records) >= BROKERS_MAX):
            return False
        incarnation, sequence = (known.incarnation, known.sequence) if known is not None else (0, 0)
        if not _leaves_room(record, incarnation, sequence):
            return False
        before = known.pubends if known is not None else []
        if self._pubend_count + len(record.pubends) - len(before) > PUBENDS_MAX:
            return False
        self._put(record)
        self._orders.extend(Send(n.link, record) for n in self._neighbours.values() if n.link != link)
        return True

    def outbid(self, record: LinkState) -> int | None:
        """Handle a record of ourselves that we may not have written.

        Return the incarnation that we need to be newer; None if the record is not newer, or a higher sequence was enough.
        """
        if record.incarnation < self._incarnation or not _leaves_room(record, self._incarnation, self._sequence):
            return None
        if record.incarnation == self._incarnation and record.started_ms in (0, self.started_ms):
            if record.sequence <= self._sequence:
                return None
            self._sequence = record.sequence
            self._announce()
            return None
        return record.incarnation + 1

    def adopt(self, incarnation: int) -> None:
        """Continue with a higher incarnation."""
        self._incarnation = incarnation
        self._announce()

    def advertise(self) -> None:
        """Tell all brokers that there are advertisements here."""
        if not self._advertises:
            self._advertises = True
            self._announce()

    def life(self, broker: int) -> tuple[int, int]:
        """Return the latest known life of a broker: its incarnation and start time."""
        record = self._records.get(broker)
        return (0, 0) if record is None else (record.incarnation, record.started_ms)

    # --- what it knows ---

    @property
    def neighbours(self) -> list[Neighbour]:
        return list(self._neighbours.values())

    def pubends(self) -> list[int]:
        """Return every pubend that any broker has announced, including our own."""
        if self._announced is None:
            self._announced = sorted({pubend for record in self._records.values() for pubend in record.pubends})
        return self._announced

    def pubends_of(self, broker: int) -> list[int]:
        record = self._records.get(broker)
        return record.pubends if record is not None else []

    def take_changes(self) -> list[int]:
        """Return the brokers whose pubends or routes changed since the last call."""
        hops, told = self._hops(), self._told_hops
        changed, self._changed, self._told_hops = self._changed, {}, hops
        if hops is not told:
            changed.update((broker, None) for broker, ways in hops.items() if told.get(broker) != ways)
            changed.update((broker, None) for broker in told if broker not in hops)
        return list(changed)

    def reachable(self, broker: int) -> bool:
        return broker == self.broker or broker in self._hops()

    def route(self, broker: int) -> LinkId | None:
        """Return the link towards a broker, or None when there is no route."""
        hops = self._hops().get(broker)
        return self._neighbours[min(hops)].link if hops else None

    def parent(self, pubend: int) -> LinkId | None:
        """Return the parent's link for a pubend, spread over equal routes; None when it is hosted here or unreachable."""
        hops = self._hops().get(pubend_broker(pubend))
        if not hops:
            return None
        return self._neighbours[max(hops, key=lambda broker: preference(pubend, broker))].link

    def records(self) -> list[LinkState]:
        return list(self._records.values())

    # --- inside ---

    def _announce(self) -> None:
        record = self._own_record()
        self._orders.extend(Send(n.link, record) for n in self._neighbours.values())

    def _own_record(self) -> LinkState:
        self._sequence += 1
        links = [(n.broker, n.cost) for n in self._neighbours.values()]
        record = LinkState(
            self.broker, self._incarnation, self._sequence, links, list(self._pubends), self.started_ms, self._advertises
        )
        self._put(record)
        return record

    def _put(self, record: LinkState) -> None:
        """Replace the record of a broker."""
        known = self._records.get(record.origin)
        self._records[record.origin] = record
        if known is None or known.neighbours != record.neighbours:
            self._first_hops = None
        before = known.pubends if known is not None else []
        news = known is None or known.incarnation != record.incarnation or known.advertises != record.advertises
        if news or before != record.pubends:
            self._changed[record.origin] = None
        if before != record.pubends:
            self._pubend_count += len(record.pubends) - len(before)
            self._announced = None

    def _hops(self) -> dict[int, tuple[int, ...]]:
        if self._first_hops is None:
            self._first_hops = self._shortest_paths()
        return self._first_hops

    def _links_of(self, broker: int) -> list[tuple[int, int]]:
        record = self._records.get(broker)
        return record.neighbours if record is not None else []

    def _shortest_paths(self) -> dict[int, tuple[int, ...]]:
        """Run Dijkstra's algorithm from this broker; keep for each broker all neighbours that begin a shortest path to it."""
        names = {origin: {n for n, _ in record.neighbours} for origin, record in self._records.items()}
        distance: dict[int, int] = {self.broker: 0}
        first: dict[int, dict[int, None]] = {}
        heap = [(0, self.broker)]
        done: dict[int, None] = {}
        while heap:
            cost, broker = heapq.heappop(heap)
            if broker in done:
                continue
            done[broker] = None
            for other, step in self._links_of(broker):
                if broker not in names.get(other, ()) or other == self.broker:
                    continue
                if broker == self.broker and other not in self._neighbours:
                    continue
                total = cost + max(step, 1)
                begins = {other: None} if broker == self.broker else first[broker]
                if total < distance.get(other, total + 1):
                    distance[other], first[other] = total, dict(begins)
                    heapq.heappush(heap, (total, other))
                elif total == distance[other]:
                    first[other].update(begins)
        return {broker: tuple(hops) for broker, hops in first.items()}


def _leaves_room(record: LinkState, incarnation: int, sequence: int) -> bool:
    """Tell whether the origin of a record can write newer ones; the numbers are those that were known before."""
    return leaves_room(record.incarnation, incarnation, INCARNATION_MAX) and leaves_room(record.sequence, sequence, COUNT_MAX)
