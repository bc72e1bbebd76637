"""The role of admission control at one broker: what the machine hands it, and what it hands back.

A subscription that is to be admitted is kept here until the verdicts are there. Then
`take_admitted` gives it back to the machine, which begins it as if it had just come; or its client
gets `SubscriptionRejected`. Its reservation ends with the subscription. The reservation of a
durable one belongs to its name: it stays while the client is away, and over restarts of the broker.

Between the admission and the begin something else may refuse a subscription, or its client may go.
Such a reservation is released with the refusal (`refused`), the end, or the link.

With the criterion `off` a subscription that brings none passes by this module: `concerns` is False.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import Row
from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.announcing import OwnAdvertisements
from postroad.core.broker.admission.estimating import ROWS_PER_S
from postroad.core.broker.admission.estimating_ledger import EstimatingLedger
from postroad.core.broker.admission.fitting import decisive_refusals, fitting_filter
from postroad.core.broker.admission.ledger import CPU, Capacities, Ledger
from postroad.core.broker.admission.measured_capacity import CpuCapacity, memory_capacity
from postroad.core.broker.admission.publisher_gate import PublisherGate
from postroad.core.broker.admission.reporting import admission_state
from postroad.core.broker.admission.reservations import PubendRoutes, ReservationEntry, Reservations
from postroad.core.broker.admission.spreading import AdvertisementRoutes, AdvertisementSpread
from postroad.core.broker.admission_settings import Criterion, Policy
from postroad.core.broker.context import Context
from postroad.core.protocol import admission as a
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Subscribe
from postroad.errors import DuplicateHandleError, InvalidValueError

RESERVED_KEY: Final = "reserved/"


class AdmissionRoutes(AdvertisementRoutes, PubendRoutes, Protocol):
    """The routes that admission needs."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """A subscription that waits for verdicts, or with no packet a question whether it would be admitted."""

    link: LinkId
    request: int
    criterion: Criterion
    packet: Subscribe | a.ExplainAdmission


@dataclass(frozen=True, slots=True)
class Admitted:
    """A subscription that may begin."""

    link: LinkId
    request: int
    packet: Subscribe


class Admission:
    """Advertisements, reservations and the publishers' gate of one broker."""

    def __init__(
        self,
        context: Context,
        routes: AdmissionRoutes,
        pubends: Iterable[int],
        durable_names: Mapping[str, object],
        identities: Mapping[int, str],
    ) -> None:
        settings = context.config.admission
        self._context = context
        self._settings = settings
        self._durable_names = durable_names  # the durable subscriptions that are at home here
        self.graph: Final = AdvertisementGraph()
        self.ledger: Final = (EstimatingLedger if settings.estimate else Ledger)(
            self.graph,
            Capacities(
                cpu_millirate=_milli(settings.cpu_rate),
                link_millirate=_milli(settings.link_rate),
                memory_bytes=settings.memory_bytes,
                links={},
            ),
        )
        self.cpu: Final = CpuCapacity()
        self.reservations: Final = Reservations(context, self.graph, self.ledger, routes)
        self.spread: Final = AdvertisementSpread(context, routes, self.reservations)
        self.gate: Final = PublisherGate(context)
        self.own: Final = OwnAdvertisements(context, self.spread, self.gate, tuple(pubends), identities)
        self._asking: dict[tuple[LinkId, int], _Asking] = {}  # by key of the entry
        self._admitted: list[Admitted] = []
        self._approved: dict[
            tuple[LinkId, int], tuple[ReservationEntry, int]
        ] = {}  # (link, handle) -> entry and request, not begun yet
        self._held: dict[int, ReservationEntry] = {}  # by number of the subscription, of those without a name
        self._unreserved: dict[int, None] = {}  # subscriptions that began without, as before the criterion was set
        self._names: dict[str, ReservationEntry] = {}  # of durable subscriptions at home here
        self._link_rates = dict(settings.link_rates)
        self._handled = 0  # messages since the last sample of the CPU
        self._sampled_at = 0.0
        self.rejected = 0  # subscriptions, since the start
        self.admitted = 0

    @property
    def is_on(self) -> bool:
        return self._settings.criterion.policy is not Policy.OFF

    # --- subscriptions ---

    def concerns(self, packet: Subscribe) -> bool:
        """Tell whether a subscription must be admitted before it begins."""
        if not self.is_on and not packet.criterion:
            return False
        return packet.name is None or packet.name not in self._names  # a durable one that comes back is reserved

    def subscribe(self, link: LinkId, packet: Subscribe, request: int, now: float) -> None:
        """Ask the brokers of its path to admit a subscription."""
        criterion = self._criterion(packet.criterion)
        place = link, packet.handle
        if place in self._approved or any(
            isinstance(each.packet, Subscribe) and (each.link, each.packet.handle) == place for each in self._asking.values()
        ):
            raise DuplicateHandleError(f"handle {packet.handle} is in use on this connection")
        filter_ = self._context.filter(packet.filter)
        if criterion.policy is Policy.OFF:
            entry = self.reservations.reserve(filter_) if self.is_on else None
            self._admit(_Asking(link, request, criterion, packet), entry)
            return
        asking = _Asking(link, request, criterion, packet)
        entry = self.reservations.request(filter_, full=criterion.policy is Policy.FULL, now=now)
        if entry.decided:
            self._admit(asking, entry)
        else:
            self._asking[entry.key] = asking

    def explain(self, link: LinkId, packet: a.ExplainAdmission, request: int, now: float) -> None:
        """Find out whether a subscription would be admitted; reserve nothing."""
        criterion = self._criterion(packet.criterion)
        if criterion.policy is Policy.OFF:
            criterion = Criterion(Policy.FULL)
        entry = self.reservations.request(self._context.filter(packet.filter), full=False, now=now, dry=True)
        self._asking[entry.key] = _Asking(link, request, criterion, packet)

    def is_waiting(self, link: LinkId, handle: int) -> bool:
        """Tell whether a subscription waits for verdicts."""
        places = ((each.link, each.packet.handle) for each in self._asking.values() if isinstance(each.packet, Subscribe))
        return (link, handle) in places

    def unsubscribe(self, link: LinkId, handle: int) -> Subscribe | None:
        """End a subscription that waits for verdicts, and return its request; None if there is none."""
        for key, asking in list(self._asking.items()):
            if isinstance(asking.packet, Subscribe) and (asking.link, asking.packet.handle) == (link, handle):
                del self._asking[key]
                self._give_up(key)
                return asking.packet
        self._drop_approved((link, handle))
        return None

    def decide(self) -> None:
        """Decide the requests whose verdicts are there."""
        answered, self.reservations.answered = self.reservations.answered, []
        for entry in answered:
            asking = self._asking.pop(entry.key, None)
            if asking is None:
                self.reservations.decide(entry, admitted=False)
                continue
            refusing = {refusal.broker for refusal in entry.refusals}
            admits = asking.criterion.admits(len(entry.brokers), len(refusing))
            if isinstance(asking.packet, a.ExplainAdmission):
                self._explain(asking, entry, admits=admits)
            self.reservations.decide(entry, admitted=admits and isinstance(asking.packet, Subscribe))
            if isinstance(asking.packet, Subscribe):
                if admits:
                    self._admit(asking, entry)
                else:
                    self._reject(asking, asking.packet, entry)

    def take_admitted(self) -> list[Admitted]:
        """Return the subscriptions that may begin now."""
        admitted, self._admitted = self._admitted, []
        return admitted

    # --- the life of a subscription ---

    def begun(self, number: int, link: LinkId, handle: int, name: str | None) -> None:
        """Tie a reservation to the subscription it was made for."""
        found = self._approved.pop((link, handle), None)
        if found is not None:
            entry, _ = found
            if name is None:
                self._held[number] = entry
                return
            before = self._names.get(name)
            self._names[name] = entry
            if before is not None:
                self.reservations.release(before)
            self._context.store(((RESERVED_KEY + name, b""),))
        elif self.is_on and (name is None or name not in self._names):
            self._unreserved[number] = None

    def dropped(self, number: int, name: str | None) -> None:
        """Release what a subscription reserved, unless it is durable and still at home here."""
        self._unreserved.pop(number, None)
        entry = self._held.pop(number, None)
        if name is not None:
            self.home_changed(name)
        elif entry is not None:
            self.reservations.release(entry)

    def home_changed(self, name: str) -> None:
        """Release the reservation of a durable subscription that is not at home here any more."""
        if name in self._names and name not in self._durable_names:
            self.reservations.release(self._names.pop(name))
            self._context.store(((RESERVED_KEY + name, None),))

    def refused(self, link: LinkId, request: int) -> None:
        """Release the reservation of a subscription that was admitted and then refused for another reason."""
        for place, (_, asked) in list(self._approved.items()):
            if place[0] == link and asked == request:
                self._drop_approved(place)

    @property
    def has_approved(self) -> bool:
        return bool(self._approved)

    def load(self, filters: Mapping[str, str], reserved: Collection[str], advertised: Mapping[str, bytes]) -> list[str]:
        """Reserve again what the durable subscriptions of this broker had reserved; return keys that cannot be read."""
        for name, text in filters.items():
            if self.is_on or name in reserved:
                self._names[name] = self.reservations.reserve(self._context.filter(text))
        gone = tuple((RESERVED_KEY + name, None) for name in reserved if name not in filters)
        if gone:
            self._context.store(gone)
        return self.own.load(advertised)

    def users(self, entry: ReservationEntry) -> int:
        """Count the subscriptions, with those that are away, whose reservation this is."""
        return sum(each is entry for each in (*self._names.values(), *self._held.values()))

    # --- publishers (see `views.PublishedMessages`) ---

    def publisher_opened(self, link: LinkId, publisher: int, pubend: int, now: float) -> None:
        self.own.publisher_opened(link, publisher, pubend, now)

    def rows(self, link: LinkId, publisher: int, rows: Sequence[Row], now: float) -> list[Row]:
        if self.is_on:
            self.own.published(link, len(rows), now)
        if self._settings.estimate:
            self.own.sample(link, publisher, (row[1] for row in rows), now)
        return self.gate.rows(link, publisher, rows, now) if len(self.gate) else list(rows)

    def columns(self, link: LinkId, publisher: int, batch: Batch, now: float) -> Batch | None:
        if self.is_on:
            self.own.published(link, len(batch), now)
        if self._settings.estimate:
            rows = range(0, len(batch), max(1, len(batch) // ROWS_PER_S))
            self.own.sample(link, publisher, (batch.message(row).attributes for row in rows), now)
        return self.gate.columns(link, publisher, batch, now) if len(self.gate) else batch

    def due(self, now: float) -> Iterator[tuple[LinkId, int, list[Row], Batch | None]]:
        return self.gate.due(now)

    # --- links, routes and time ---

    def link_up(self, link: LinkId, broker: int) -> None:
        self.reservations.link_up(link, broker)
        if broker in self._link_rates:
            assert self.ledger.capacities.links is not None
            self.ledger.capacities.links[link] = int(self._link_rates[broker] * 1000)

    def link_lost(self, link: LinkId) -> None:
        """Forget a link to a broker."""
        self.reservations.link_lost(link)
        self.spread.link_lost(link)
        if self.ledger.capacities.links:
            self.ledger.capacities.links.pop(link, None)

    def client_lost(self, link: LinkId) -> None:
        for key, asking in list(self._asking.items()):
            if asking.link == link:
                del self._asking[key]
                self._give_up(key)
        for place in [each for each in self._approved if each[0] == link]:
            self._drop_approved(place)
        self._admitted = [each for each in self._admitted if each.link != link]
        self.own.link_lost(link)

    def routes_changed(self) -> None:
        self.spread.routes_changed()
        self.reservations.routes_changed()

    def wake(self, now: float) -> None:
        if self.reservations.is_waiting:
            self.reservations.wake(now)

    def handled(self, messages: int) -> None:
        """Count messages that came to this broker."""
        self._handled += messages

    def cpu_used(self, utilisation: float, now: float) -> None:
        """Take what share of the CPU it wanted the broker used since the last call; see `CpuCapacity`."""
        elapsed = now - self._sampled_at
        if elapsed > 0 and self._settings.cpu_rate is None:
            self.cpu.sample(utilisation, int(self._handled / elapsed * 1000))
            self.ledger.capacities.cpu_millirate = self.cpu.millirate
        self._handled, self._sampled_at = 0, now

    def memory_available(self, size: int) -> None:
        """Take how much memory the machine has left, where no limit is configured."""
        if self._settings.memory_bytes is None:
            self.ledger.capacities.memory_bytes = memory_capacity(self.ledger.memory_used, size)

    def flush(self, now: float) -> None:
        """Send what changed in this turn."""
        if self.spread.rivals:
            self.own.give_way(now)
        self.spread.tell()

    # --- what can be seen ---

    def stats(self) -> dict[str, int]:
        return {
            "advertisements": len(self.spread),
            "reservations": len(self.reservations),
            "subscriptions_rejected": self.rejected,
            "publish_held_rows": self.gate.held,
            "reserved_cpu_rate": self.ledger.brought(CPU) // 1000,
            "reserved_bytes": self.ledger.memory_used,
            "subscriptions_unreserved": len(self._unreserved),
        }

    def tell_state(self, link: LinkId, packet: a.AskAdmission, request: int) -> None:
        state = admission_state(self._context.broker, self._settings, packet, self.graph, self.reservations, self.spread)
        self._context.send(link, state, request)

    # --- inside ---

    def _criterion(self, text: str) -> Criterion:
        if not text:
            return self._settings.criterion
        if self.is_on and not self._settings.overridable:
            raise InvalidValueError("this broker does not let subscriptions bring an admission criterion of their own")
        return Criterion.parse(text)

    def _admit(self, asking: _Asking, entry: ReservationEntry | None) -> None:
        packet = asking.packet
        assert isinstance(packet, Subscribe)
        self.admitted += 1
        if entry is not None:
            self._approved[asking.link, packet.handle] = entry, asking.request
        self._admitted.append(Admitted(asking.link, asking.request, packet))

    def _reject(self, asking: _Asking, packet: Subscribe, entry: ReservationEntry) -> None:
        self.rejected += 1
        largest, fitting = _fits(entry, asking.criterion)
        rejected = a.SubscriptionRejected(packet.handle, list(entry.brokers), entry.refusals, largest, fitting)
        self._context.send(asking.link, rejected, asking.request)

    def _explain(self, asking: _Asking, entry: ReservationEntry, *, admits: bool) -> None:
        largest, fitting = _fits(entry, asking.criterion)
        demand = self.graph.demand(entry.filter)
        highest, most = demand.millirate.high, demand.count.high
        assert highest is not None
        assert most is not None
        if self._settings.estimate:
            highest = max(demand.millirate.low, self.graph.expected(entry.filter))
        explained = a.AdmissionExplained(
            admits, list(entry.brokers), entry.refusals, largest, fitting, demand.millirate.low, highest, (demand.count.low, most)
        )
        self._context.send(asking.link, explained, asking.request)

    def _give_up(self, key: tuple[LinkId, int]) -> None:
        entry = self.reservations.find(key)
        if entry is not None:
            self.reservations.decide(entry, admitted=False)

    def _drop_approved(self, place: tuple[LinkId, int]) -> None:
        found = self._approved.pop(place, None)
        if found is not None:
            self.reservations.release(found[0])


def _fits(entry: ReservationEntry, criterion: Criterion) -> tuple[int | None, str | None]:
    """Return the largest rate that fits, and a narrower filter that does, as far as they are known."""
    decisive = decisive_refusals(entry.refusals, criterion.refusals_allowed(len(entry.brokers)))
    if not decisive:
        return None, None
    narrower = fitting_filter(entry.filter, decisive)
    return min(each.available for each in decisive), None if narrower is None else str(narrower)


def _milli(rate: float | None) -> int | None:
    return None if rate is None else int(rate * 1000)
