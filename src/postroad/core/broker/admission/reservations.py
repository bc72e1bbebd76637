"""Reservations along the paths of subscriptions (section 4.3), between neighbours.

A subscription's path is the tree that its messages come by: from this broker over the parents of
all pubends with an advertisement that overlaps its filter. A request travels up that tree. Each
broker checks its own resources, reserves at once, asks the next brokers, and answers when they have
answered: a verdict for itself and everybody behind it. The subscriber's broker decides, and the
decision takes the way of the request.

Why nothing leaks and no request is half admitted:

- What a neighbour reserved here hangs on the link it came by. When the link is lost it is released,
  here and further up. The neighbour reserves again over its next link or its new parent (`wait_ms`
  0: it was admitted, and is not checked again).
- A link delivers in order, or is lost. So whoever reserved hears of the decision, or has lost the
  link.
- A request is reserved from the check on, so two that compete for the last capacity cannot both be
  admitted.
- A request without all verdicts after its time counts the missing ones as refusals. Each broker
  waits a shorter time than the one that asked it, so the broker that did not answer is named. A
  verdict that comes later changes nothing.

A broker that refuses under `full` reserves nothing, and asks the others without reserving (`dry`),
so that the subscriber hears of all reasons at once. The paper stops there. Under `percentage` it
reserves all the same, since the subscription may be admitted.

A *flow* is what one subscriber's broker gets over one path. If two paths meet again at a broker,
they stay two flows with separate pubends, so nothing is charged twice. A flow is numbered by the
sender on each link.

The same filter of two clients of a broker is reserved once: the second costs no packet. What a new
advertisement or a new route adds to the path of a reservation is reserved then, without a check:
nobody who was admitted is thrown out.

Invariants: the ledger holds each entry that `holds`; a neighbour holds exactly the entries whose
`sent` names its link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from postroad.core.broker.admission.advertisements import AdvertisementGraph, Node
from postroad.core.broker.admission.estimating import Histograms
from postroad.core.broker.admission.fitting import FITTING_NODES_MAX, fitting_ranges
from postroad.core.broker.admission.ledger import CPU, LOCAL, Holder, Ledger, Shortage
from postroad.core.broker.context import Context
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import (
    MEMORY,
    NO_ANSWER,
    AdvertisementEntry,
    Decision,
    FittingRange,
    Refusal,
    ReservationScope,
    Reserve,
    Verdict,
)
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import ImplausibleError, TooManyError

ENTRIES_OF_LINK_MAX: Final = 1 << 18
FLOWS_OF_LINK_MAX: Final = 1 << 13
HOP_SHARE: Final = 0.8  # of the time a broker was given, it gives so much to the brokers it asks
HOP_LESS_S: Final = 0.1  # and at least so much less
OWN_FLOW: Final = Holder(LOCAL, 0)


class PubendRoutes(Protocol):
    """The routes of pubends."""

    def pubends(self) -> list[int]: ...

    def parent(self, pubend: int) -> LinkId | None: ...


@dataclass(slots=True)
class SubscriberFlow:
    """What one subscriber's broker gets by one link, and by which links it comes here."""

    origin: int
    number: int
    out: dict[LinkId, int] = field(default_factory=dict)  # link -> number of the flow there
    told: dict[LinkId, tuple[int, ...]] = field(default_factory=dict)  # the scope that was sent there
    used: dict[LinkId, int] = field(default_factory=dict)  # entries sent there


@dataclass(slots=True)
class ReservationEntry:
    """One reservation, or a request for one. `key` is (link it came by, its number there)."""

    key: tuple[LinkId, int]
    holder: Holder
    filter: Filter
    full: bool
    holds: bool = False  # it is in the ledger
    decided: bool = False
    count: int = 1  # subscriptions of our own clients that share it
    sent: dict[LinkId, int] = field(default_factory=dict)  # link -> its number there
    waiting: dict[LinkId, None] = field(default_factory=dict)
    deadline: float = 0.0
    brokers: dict[int, None] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def is_local(self) -> bool:
        return self.holder.link == LOCAL


class Reservations:
    """What is reserved at one broker, and the requests under way."""

    def __init__(self, context: Context, graph: AdvertisementGraph, ledger: Ledger, routes: PubendRoutes) -> None:
        self._context = context
        self._graph = graph
        self.ledger = ledger
        self._routes = routes
        self.neighbours: dict[LinkId, int] = {}
        self._parents: dict[int, LinkId] = {}  # pubend -> link
        self._flows: dict[Holder, SubscriberFlow] = {OWN_FLOW: SubscriberFlow(context.broker, 0)}
        self._flow_numbers = 0
        self._numbers = 0
        self._entries: dict[tuple[LinkId, int], ReservationEntry] = {}
        self._of_link: dict[LinkId, dict[int, ReservationEntry]] = {}
        self._places: dict[LinkId, dict[int, ReservationEntry]] = {}  # link we sent to -> number there -> entry
        self._by_filter: dict[tuple[Holder, Filter], dict[tuple[LinkId, int], ReservationEntry]] = {}
        self._asked: dict[tuple[LinkId, int], ReservationEntry] = {}  # entries that wait for verdicts
        self.answered: list[ReservationEntry] = []  # requests of our own that can be decided
        self._stale = True  # routes changed while nothing was advertised or reserved

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_waiting(self) -> bool:
        return bool(self._asked)

    def entries(self) -> Iterable[ReservationEntry]:
        return self._entries.values()

    def find(self, key: tuple[LinkId, int]) -> ReservationEntry | None:
        return self._entries.get(key)

    def sent_as(self, link: LinkId, number: int) -> ReservationEntry | None:
        """Return the entry that was sent over a link under this number."""
        return self._places.get(link, {}).get(number)

    def flow_origin(self, holder: Holder) -> int:
        return self._context.broker if holder == OWN_FLOW else self._flows[holder].origin

    # --- requests of our own ---

    def request(self, filter_: Filter, *, full: bool, now: float, dry: bool = False) -> ReservationEntry:
        """Ask for a reservation. It is decided already, or will be in `answered` when it can be decided."""
        self._refresh()
        if not dry:
            shared = self._find_decided_twin(filter_)
            if shared is not None and not self.ledger.check(shared.filter, OWN_FLOW):
                self.ledger.reserve(shared.filter, OWN_FLOW)
                shared.count += 1
                return shared
        entry = self._new_entry(OWN_FLOW, filter_, full=full)
        self._ask(entry, self._context.config.admission.verdict_s, now, dry=dry)
        return entry

    def reserve(self, filter_: Filter) -> ReservationEntry:
        """Reserve without a check."""
        self._refresh()
        shared = self._find_decided_twin(filter_)
        if shared is not None:
            self.ledger.reserve(shared.filter, OWN_FLOW)
            shared.count += 1
            return shared
        entry = self._new_entry(OWN_FLOW, filter_, full=False)
        self._decide(entry)
        return entry

    def decide(self, entry: ReservationEntry, *, admitted: bool) -> None:
        """Keep a reservation, or release it, on the whole path."""
        if entry.decided:
            return
        if admitted:
            self._decide(entry)
        else:
            self._remove(entry)

    def release(self, entry: ReservationEntry) -> None:
        """End one subscription's use of a reservation."""
        if entry.count > 1:
            entry.count -= 1
            self.ledger.release(entry.filter, entry.holder)
        else:
            self._remove(entry)

    def _find_decided_twin(self, filter_: Filter) -> ReservationEntry | None:
        found = self._by_filter.get((OWN_FLOW, filter_), {})
        return next((each for each in found.values() if each.decided), None)

    # --- packets of neighbours ---

    def take_scope(self, link: LinkId, packet: ReservationScope) -> None:
        holder = Holder(link, packet.flow)
        flow = self._flows.get(holder)
        if flow is None:
            if not packet.pubends:
                return
            if sum(each.link == link for each in self._flows) >= FLOWS_OF_LINK_MAX:
                raise TooManyError(f"this broker takes at most {FLOWS_OF_LINK_MAX} flows of reservations over a link")
            flow = self._flows[holder] = SubscriberFlow(packet.origin, packet.flow)
        self.ledger.set_scope(holder, packet.pubends)
        self._scope_changed(holder, flow)
        self._drop_idle_flow(holder)

    def take_request(self, link: LinkId, packet: Reserve, now: float) -> None:
        holder = Holder(link, packet.flow)
        if holder not in self._flows:
            raise ImplausibleError(f"a reservation of flow {packet.flow}, whose pubends were never told")
        of_link = self._of_link.get(link, {})
        if packet.number in of_link:
            raise ImplausibleError(f"reservation {packet.number} was sent before on this link")
        self._refresh()
        if len(of_link) >= ENTRIES_OF_LINK_MAX:
            raise TooManyError(f"this broker takes at most {ENTRIES_OF_LINK_MAX} reservations over a link")
        entry = self._new_entry(holder, self._context.filter(packet.filter), full=packet.full, number=packet.number)
        if packet.wait_ms:
            self._ask(entry, packet.wait_ms / 1000, now, dry=packet.dry)
        else:
            self._decide(entry)

    def take_verdict(self, link: LinkId, packet: Verdict) -> None:
        entry = self._places.get(link, {}).get(packet.number)
        if entry is None or link not in entry.waiting:
            return  # it comes too late
        self._take_answer(entry, link, packet.brokers, packet.refusals)

    def take_decision(self, link: LinkId, packet: Decision) -> None:
        entry = self._entries.get((link, packet.number))
        if entry is None:
            return
        if not packet.admitted:
            self._remove(entry)
        elif not entry.decided:
            self._decide(entry)

    # --- links, routes and time ---

    def link_up(self, link: LinkId, broker: int) -> None:
        self.neighbours[link] = broker

    def link_lost(self, link: LinkId) -> None:
        """Release what came by a link, and count the verdicts that were to come by it as refusals."""
        broker = self.neighbours.pop(link, None)
        if broker is None:
            return
        for entry in list(self._of_link.get(link, {}).values()):
            self._remove(entry)
        for number, entry in self._places.pop(link, {}).items():
            assert entry.sent.pop(link) == number
            if link in entry.waiting:
                self._take_answer(entry, link, [broker], [Refusal(broker, NO_ANSWER)])
        for holder, flow in list(self._flows.items()):
            for known in (flow.out, flow.told, flow.used):
                known.pop(link, None)
            if holder.link == link:
                self.ledger.set_scope(holder, ())
                del self._flows[holder]

    def routes_changed(self) -> None:
        """Move the reservations to the present routes."""
        if not self._entries and not len(self._graph):
            self._stale = True
            return
        self._follow_routes()

    def _follow_routes(self) -> None:
        self._stale = False
        own = self._context.broker
        parents, hosted = {}, []
        for pubend in self._routes.pubends():
            if pubend_broker(pubend) == own:
                hosted.append(pubend)
                continue
            parent = self._routes.parent(pubend)
            if parent is not None:
                parents[pubend] = parent
        self._parents = parents
        self.ledger.set_scope(OWN_FLOW, [*hosted, *parents])
        for holder, flow in list(self._flows.items()):
            self._scope_changed(holder, flow)

    def wake(self, now: float) -> None:
        """Count verdicts that are late as refusals."""
        for entry in [each for each in self._asked.values() if each.deadline <= now]:
            for link in list(entry.waiting):
                broker = self.neighbours[link]
                self._take_answer(entry, link, [broker], [Refusal(broker, NO_ANSWER)])

    # --- advertisements ---

    def advertised(self, filter_: Filter, entry: AdvertisementEntry) -> None:
        """Count an advertisement; what it brings to reserved filters is reserved along its path."""
        self._refresh()
        pubend = entry.pubend
        node = self._graph.advertise(filter_, pubend, entry.millirate, self._histograms(entry))
        self.ledger.advertised(node, pubend, entry.millirate)
        if node.shares[pubend].count == 1:
            self._extend(node, pubend)

    def withdrawn(self, filter_: Filter, entry: AdvertisementEntry) -> None:
        node = self._graph.withdraw(filter_, entry.pubend, entry.millirate, self._histograms(entry))
        self.ledger.withdrawn(node, entry.pubend, entry.millirate)

    def _histograms(self, entry: AdvertisementEntry) -> Histograms | None:
        if not entry.profile or not self._context.config.admission.estimate:
            return None
        return Histograms(tuple((name, tuple(quantiles)) for name, quantiles in entry.profile if quantiles))

    def _extend(self, node: Node, pubend: int) -> None:
        link = self._parents.get(pubend)
        if link is None:
            return
        for filter_ in list(self.ledger.overlapping(node.filter)):
            for holder, _ in list(self.ledger.holders(filter_)):
                if holder.link != link and pubend in self.ledger.scope(holder):
                    for entry in list(self._by_filter.get((holder, filter_), {}).values()):
                        if entry.decided and link not in entry.sent:
                            self._send(entry, link)

    # --- inside: entries ---

    def _refresh(self) -> None:
        if self._stale:
            self._follow_routes()

    def _new_entry(self, holder: Holder, filter_: Filter, *, full: bool, number: int = 0) -> ReservationEntry:
        if holder.link == LOCAL:
            self._numbers += 1
            number = self._numbers
        entry = ReservationEntry((holder.link, number), holder, filter_, full)
        self._entries[entry.key] = entry
        self._of_link.setdefault(holder.link, {})[number] = entry
        self._by_filter.setdefault((holder, filter_), {})[entry.key] = entry
        return entry

    def _ask(self, entry: ReservationEntry, wait_s: float, now: float, *, dry: bool) -> None:
        me = self._context.broker
        entry.deadline = now + wait_s
        entry.brokers[me] = None
        missing = self.ledger.check(entry.filter, entry.holder)
        if missing:
            ranges = self._ranges(entry, missing)
            entry.refusals = [
                Refusal(me, each.resource, self.neighbours.get(each.link, 0), each.demanded, each.available, ranges)
                for each in missing
            ]
        dry = dry or (bool(missing) and entry.full)
        if not dry:
            self.ledger.reserve(entry.filter, entry.holder)
            entry.holds = True
        wait_ms = int(1000 * min(wait_s * HOP_SHARE, wait_s - HOP_LESS_S))
        for link in self.links_needed(entry):
            if wait_ms <= 0:  # the path is so long that nobody further up can answer in time
                entry.brokers[self.neighbours[link]] = None
                entry.refusals.append(Refusal(self.neighbours[link], NO_ANSWER))
                continue
            entry.waiting[link] = None
            self._send(entry, link, wait_ms=wait_ms, dry=dry)
        if entry.waiting:
            self._asked[entry.key] = entry
        else:
            self._answer(entry)

    def _ranges(self, entry: ReservationEntry, missing: list[Shortage]) -> list[FittingRange]:
        """Return the ranges with which the filter would fit here; none if it is not known, or memory is short."""
        shortages = []
        for each in missing:
            if each.resource == MEMORY:
                return []
            resource = CPU if each.resource == "cpu" else each.link
            added = [
                (node.filter, millirate)
                for node, millirate in islice(self.ledger.added(entry.filter, entry.holder, resource), FITTING_NODES_MAX + 1)
            ]
            if len(added) > FITTING_NODES_MAX:
                return []
            shortages.append((added, each.available))
        return fitting_ranges(entry.filter, shortages)

    def _take_answer(self, entry: ReservationEntry, link: LinkId, brokers: Iterable[int], refusals: Iterable[Refusal]) -> None:
        del entry.waiting[link]
        entry.brokers.update(dict.fromkeys(brokers))
        entry.refusals += refusals
        if not entry.waiting:
            self._answer(entry)

    def _answer(self, entry: ReservationEntry) -> None:
        self._asked.pop(entry.key, None)
        if entry.is_local:
            self.answered.append(entry)
        else:
            self._context.send(entry.holder.link, Verdict(entry.key[1], list(entry.brokers), entry.refusals))

    def _decide(self, entry: ReservationEntry) -> None:
        """Keep an entry that was admitted: reserve it where that is missing, and tell those who reserved it."""
        entry.decided = True
        entry.waiting.clear()
        self._asked.pop(entry.key, None)
        if not entry.holds:
            self.ledger.reserve(entry.filter, entry.holder)
            entry.holds = True
        for link, number in entry.sent.items():
            self._context.send(link, Decision(number, admitted=True))
        self._settle_links(entry)

    def _remove(self, entry: ReservationEntry) -> None:
        """Release an entry here and further up."""
        del self._entries[entry.key]
        link, number = entry.key
        del self._of_link[link][number]
        if not self._of_link[link]:
            del self._of_link[link]
        same = self._by_filter[entry.holder, entry.filter]
        del same[entry.key]
        if not same:
            del self._by_filter[entry.holder, entry.filter]
        self._asked.pop(entry.key, None)
        if entry.holds:
            self.ledger.release(entry.filter, entry.holder)
            entry.holds = False
        for sent in list(entry.sent):
            self._take_back(entry, sent)
        entry.waiting.clear()
        self._drop_idle_flow(entry.holder)

    # --- inside: the way up ---

    def links_needed(self, entry: ReservationEntry) -> dict[LinkId, None]:
        """Return the links by which advertised messages come for an entry."""
        links: dict[LinkId, None] = {}
        scope = dict.fromkeys(self.ledger.scope(entry.holder))
        for node in self._graph.overlapping(entry.filter):
            for pubend in node.shares:
                link = self._parents.get(pubend)
                if link is not None and link != entry.holder.link and pubend in scope:
                    links[link] = None
        return links

    def _settle_links(self, entry: ReservationEntry) -> None:
        """Reserve a decided entry where it is needed now, and nowhere else."""
        needed = self.links_needed(entry)
        for link in [each for each in entry.sent if each not in needed]:
            self._take_back(entry, link)
        for link in needed:
            if link not in entry.sent:
                self._send(entry, link)

    def _send(self, entry: ReservationEntry, link: LinkId, *, wait_ms: int = 0, dry: bool = False) -> None:
        flow = self._flows[entry.holder]
        if link not in flow.out:
            self._flow_numbers += 1
            flow.out[link] = self._flow_numbers
        flow.used[link] = flow.used.get(link, 0) + 1
        if link not in flow.told:
            self._tell_scope(entry.holder, flow, link)
        self._numbers += 1
        entry.sent[link] = self._numbers
        self._places.setdefault(link, {})[self._numbers] = entry
        packet = Reserve(self._numbers, flow.out[link], str(entry.filter), wait_ms, entry.full, dry)
        self._context.send(link, packet)

    def _take_back(self, entry: ReservationEntry, link: LinkId) -> None:
        number = entry.sent.pop(link)
        entry.waiting.pop(link, None)
        places = self._places[link]
        del places[number]
        if not places:
            del self._places[link]
        self._context.send(link, Decision(number, admitted=False))
        flow = self._flows[entry.holder]
        flow.used[link] -= 1
        if not flow.used[link]:
            self._context.send(link, ReservationScope(flow.out[link], flow.origin, []))
            del flow.used[link], flow.out[link], flow.told[link]

    # --- inside: flows ---

    def _scope_changed(self, holder: Holder, flow: SubscriberFlow) -> None:
        for link in flow.out:
            self._tell_scope(holder, flow, link)
        for entry in list(self._of_link.get(holder.link, {}).values()):
            if entry.holder == holder and entry.decided:
                self._settle_links(entry)

    def _tell_scope(self, holder: Holder, flow: SubscriberFlow, link: LinkId) -> None:
        scope = tuple(pubend for pubend in self.ledger.scope(holder) if self._parents.get(pubend) == link)
        if flow.told.get(link) != scope:
            flow.told[link] = scope
            self._context.send(link, ReservationScope(flow.out[link], flow.origin, list(scope)))

    def _drop_idle_flow(self, holder: Holder) -> None:
        """Forget a flow of a neighbour that has neither pubends nor reservations."""
        if holder == OWN_FLOW or holder not in self._flows or any(True for _ in self.ledger.scope(holder)):
            return
        if not any(entry.holder == holder for entry in self._of_link.get(holder.link, {}).values()):
            del self._flows[holder]
