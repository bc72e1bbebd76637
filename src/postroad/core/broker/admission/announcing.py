"""What the clients of this broker advertise, and for how long (section 3.1).

An advertisement lives as long as the connection of its client; a client that comes back advertises
again by itself. A *durable* one has a name and lives until it is withdrawn, with or without its
client, and over restarts: it is stored before it is accepted. If the same name is advertised at
another broker later, the advertisement here ends, as soon as this broker hears of that.

An advertisement is counted for the pubends that its client's publishers belong to, or for the first
pubend of the broker while it has no publisher. With several, each may carry all of the rate, so
each counts in full.

A publisher whose client advertises nothing gets a default rate, if this broker has a criterion:
that of the rate profile, else twice the peak of what the client of this name published lately, else
the configured one. It counts like an advertisement of everything. The profile knows publishers by
number. A client keeps its numbers while it runs, also when the broker restarts; later it is
recognised by its identity, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.admission.estimating import Sampler
from postroad.core.broker.admission.publisher_gate import PublisherGate, RateHistory
from postroad.core.broker.admission.spreading import AdvertisementSpread
from postroad.core.broker.admission_settings import Policy
from postroad.core.broker.context import Context, SendWhenStored
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import Advertise, AdvertiseAccepted, AdvertisementEntry, Unadvertise, Unadvertised
from postroad.core.protocol.orders import LinkId
from postroad.errors import DuplicateHandleError, TooManyError, UnknownHandleError
from postroad.types import AttributeValue

ADVERTISED_KEY: Final = "advertised/"
OF_CLIENT_MAX: Final = 1_024
OF_ALL_CLIENTS_MAX: Final = 1 << 15
HISTORIES_MAX: Final = 4_096
HISTORY_FACTOR: Final = 2.0
HISTORY_S: Final = 10.0  # a shorter one says little
EVERYTHING: Final = Filter("")


class DurableAdvertisement(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of a durable advertisement."""

    filter: str
    millirate: int
    made_ms: int


@dataclass(slots=True)
class OwnAdvertisement:
    """One advertisement of a client, or the default of a publisher."""

    filter: Filter
    millirate: int
    name: str | None
    made_ms: int
    numbers: dict[int, int] = field(default_factory=dict)  # pubend -> number of its entry
    sampler: Sampler | None = None  # of the values in its messages, with `estimate`


class OwnAdvertisements:
    """The advertisements of this broker's clients."""

    def __init__(
        self,
        context: Context,
        spread: AdvertisementSpread,
        gate: PublisherGate,
        pubends: Sequence[int],
        identities: Mapping[int, str],
    ) -> None:
        self._context = context
        self._spread = spread
        self._gate = gate
        self._pubends = tuple(pubends)
        self._names: dict[LinkId, str] = {}  # of clients
        self._session: dict[LinkId, dict[int, OwnAdvertisement]] = {}  # by link and handle; durable ones, too
        self._durable: dict[str, OwnAdvertisement] = {}
        self._defaults: dict[int, OwnAdvertisement] = {}  # by publisher
        self._publishers: dict[int, tuple[LinkId, int]] = {}  # open publisher -> (link, pubend)
        self._history: dict[str, RateHistory] = {}
        self._samplers: dict[tuple[str, Filter], Sampler] = {}  # by client and filter: it may advertise again
        self._rates = dict(context.config.admission.publisher_rates)  # of the profile, by publisher
        self._rates_of_identity: dict[str, float] = {}
        for publisher, rate in self._rates.items():
            identity = identities.get(publisher)
            if identity is not None:
                self._rates_of_identity[identity] = max(rate, self._rates_of_identity.get(identity, 0.0))
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._durable) + sum(map(len, self._session.values()))

    # --- clients ---

    def client_up(self, link: LinkId, name: str) -> None:
        settings = self._context.config.admission
        if settings.criterion.policy is not Policy.OFF or settings.estimate:
            self._names[link] = name

    def advertise(self, link: LinkId, packet: Advertise, request: int, now: float) -> None:
        filter_ = self._context.filter(packet.filter)  # may raise
        of_link = self._session.setdefault(link, {})
        if packet.handle in of_link:
            raise DuplicateHandleError(f"handle {packet.handle} is in use on this connection")
        if len(of_link) >= OF_CLIENT_MAX or len(self) >= OF_ALL_CLIENTS_MAX:
            raise TooManyError(f"a client may have at most {OF_CLIENT_MAX} advertisements, and a broker {OF_ALL_CLIENTS_MAX}")
        millirate = packet.millirate or self._default_rate(link)
        made_ms = self._context.wall_ms
        known = self._durable.get(packet.name) if packet.name is not None else None
        if known is not None and (known.filter, known.millirate) == (filter_, millirate):
            of_link[packet.handle] = known
            self._place(known, link)
        else:
            if known is not None:
                self._forget_attached(known, now)
                self._end(known)
            of_link[packet.handle] = made = OwnAdvertisement(filter_, millirate, packet.name, made_ms)
            self._place(made, link)
        self._gate.declare(link, packet.handle, filter_, millirate, now)
        self._drop_defaults(link)
        accepted = AdvertiseAccepted(packet.handle, millirate)
        if packet.name is None:
            self._context.send(link, accepted, request)
            return
        self._durable[packet.name] = of_link[packet.handle]
        record = msgspec.msgpack.encode(DurableAdvertisement(packet.filter, millirate, made_ms))
        self._context.store(((ADVERTISED_KEY + packet.name, record),), SendWhenStored(link, accepted, request))

    def unadvertise(self, link: LinkId, packet: Unadvertise, request: int, now: float) -> None:
        made = self._session.get(link, {}).pop(packet.handle, None)
        self._gate.withdraw(link, packet.handle)
        name = packet.name if packet.name is not None else made.name if made is not None else None
        if name is None and made is None:
            raise UnknownHandleError(f"this connection has no advertisement {packet.handle}")
        if name is not None:
            made = self._durable.pop(name, made)
            if made is None:
                raise UnknownHandleError(f"this broker has no durable advertisement {name!r}")
            self._forget_attached(made, now)
            self._context.store(((ADVERTISED_KEY + name, None),), SendWhenStored(link, Unadvertised(packet.handle), request))
        else:
            self._context.send(link, Unadvertised(packet.handle), request)
        assert made is not None
        self._end(made)
        self._hold_to_defaults(link, now)

    def link_lost(self, link: LinkId) -> None:
        for made in self._session.pop(link, {}).values():
            if made.name is None or self._durable.get(made.name) is not made:
                self._end(made)
        self._drop_defaults(link)
        for publisher in self._publishers_of(link):
            del self._publishers[publisher]
        self._gate.link_lost(link)
        self._names.pop(link, None)

    # --- publishers ---

    def publisher_opened(self, link: LinkId, publisher: int, pubend: int, now: float) -> None:
        """Hold a new publisher to what its client advertised, or to a default."""
        if self._context.config.admission.criterion.policy is Policy.OFF and not self._session:
            return
        self._gate.publisher_opened(publisher)
        before = self._publishers.pop(publisher, None)
        if before is not None and publisher in self._defaults and before != (link, pubend):
            self._end(self._defaults.pop(publisher))
        self._publishers[publisher] = link, pubend
        for made in self._session.get(link, {}).values():
            self._place(made, link)
        self._default_for(publisher, link, pubend, now)

    def published(self, link: LinkId, count: int, now: float) -> None:
        """Remember how much a client publishes, for its next default."""
        name = self._names.get(link)
        if name is None:
            return
        history = self._history.get(name)
        if history is None:
            while len(self._history) >= HISTORIES_MAX:
                del self._history[next(iter(self._history))]
            history = self._history[name] = RateHistory(since=now, period_from=now, began=now)
        history.add(count, now)

    def sample(self, link: LinkId, publisher: int, rows: Iterable[Mapping[str, AttributeValue]], now: float) -> None:
        """Take the values of published messages into the histograms of the advertisements that they match."""
        default = self._defaults.get(publisher)
        advertised = list(self._session.get(link, {}).values()) or ([] if default is None else [default])
        if not advertised:
            return
        for attributes in rows:
            for made in advertised:
                if made.filter.matches(attributes):
                    self._sampler(made, link).add(attributes, now)
        for made in advertised:
            if made.sampler is not None and made.sampler.renew(now):
                self._count_again(made)

    def _sampler(self, made: OwnAdvertisement, link: LinkId) -> Sampler:
        if made.sampler is None:
            key = self._names.get(link, ""), made.filter
            while key not in self._samplers and len(self._samplers) >= HISTORIES_MAX:
                del self._samplers[next(iter(self._samplers))]
            made.sampler = self._samplers.setdefault(key, Sampler())
        return made.sampler

    def _default_for(self, publisher: int, link: LinkId, pubend: int, now: float) -> None:
        settings = self._context.config.admission
        if settings.criterion.policy is Policy.OFF or self._session.get(link) or publisher in self._defaults:
            return
        millirate = self._default_rate(link, publisher)
        made = self._defaults[publisher] = OwnAdvertisement(EVERYTHING, millirate, None, self._context.wall_ms)
        self._count_for(made, (pubend,))
        self._gate.hold_to_default(link, publisher, millirate, now)

    def _hold_to_defaults(self, link: LinkId, now: float) -> None:
        """Give the open publishers of a client that advertises nothing any more a default rate."""
        for publisher in self._publishers_of(link):
            self._default_for(publisher, link, self._publishers[publisher][1], now)

    def _drop_defaults(self, link: LinkId) -> None:
        for publisher in self._publishers_of(link):
            default = self._defaults.pop(publisher, None)
            if default is not None:
                self._end(default)

    def _publishers_of(self, link: LinkId) -> list[int]:
        return [publisher for publisher, (held, _) in self._publishers.items() if held == link]

    def _default_rate(self, link: LinkId, *publishers: int) -> int:
        """Return the rate of some publishers, or of all those of a link, that declare none."""
        known = [self._rates[each] for each in publishers or self._publishers_of(link) if each in self._rates]
        of_identity = self._rates_of_identity.get(self._context.rights_of(link).owner)
        if not known and of_identity is not None:
            known = [of_identity]
        if known:
            return max(int(max(known) * 1000), 1)
        history = self._history.get(self._names.get(link, ""))
        if history is not None and history.seconds >= HISTORY_S:
            return max(int(history.peak * HISTORY_FACTOR * 1000), 1000)
        return int(self._context.config.admission.default_rate * 1000)

    # --- durable ones ---

    def load(self, records: Mapping[str, bytes]) -> list[str]:
        """Take the stored advertisements; return the keys of records that cannot be read."""
        damaged = []
        for key, value in records.items():
            name = key.removeprefix(ADVERTISED_KEY)
            try:
                record = msgspec.msgpack.decode(value, type=DurableAdvertisement)
                made = OwnAdvertisement(self._context.filter(record.filter), record.millirate, name, record.made_ms)
            except (msgspec.MsgspecError, ValueError):
                damaged.append(key)
                continue
            self._durable[name] = made
            self._count_for(made, self._pubends[:1])
        return damaged

    def give_way(self, now: float) -> None:
        """End durable advertisements that were made again at another broker."""
        rivals, self._spread.rivals = self._spread.rivals, []
        for entry in rivals:
            ours = self._durable.get(entry.name) if entry.name is not None else None
            if ours is None or entry.made_ms <= ours.made_ms:
                continue
            assert entry.name is not None
            del self._durable[entry.name]
            self._forget_attached(ours, now)
            self._end(ours)
            self._context.store(((ADVERTISED_KEY + entry.name, None),))

    # --- inside ---

    def _place(self, made: OwnAdvertisement, link: LinkId) -> None:
        if self._context.config.admission.estimate:
            self._sampler(made, link)
        pubends = tuple(dict.fromkeys(pubend for held, pubend in self._publishers.values() if held == link))
        self._count_for(made, pubends or self._pubends[:1])

    def _count_for(self, made: OwnAdvertisement, pubends: Sequence[int]) -> None:
        for pubend in [each for each in made.numbers if each not in pubends]:
            self._spread.take(made.numbers.pop(pubend))
        for pubend in pubends:
            if pubend not in made.numbers:
                self._numbers += 1
                number = made.numbers[pubend] = self._context.incarnation << 32 | self._numbers
                profile = [] if made.sampler is None else [(name, list(values)) for name, values in made.sampler.profile]
                entry = AdvertisementEntry(number, pubend, str(made.filter), made.millirate, made.name, made.made_ms, profile)
                self._spread.put(entry)

    def _count_again(self, made: OwnAdvertisement) -> None:
        """Replace the entries of an advertisement: its histograms have changed."""
        former, made.numbers = made.numbers, {}
        self._count_for(made, tuple(former))
        for number in former.values():
            self._spread.take(number)

    def _end(self, made: OwnAdvertisement) -> None:
        for number in made.numbers.values():
            self._spread.take(number)
        made.numbers.clear()

    def _forget_attached(self, made: OwnAdvertisement, now: float) -> None:
        """Let no client be held to an advertisement that ended."""
        for link, of_link in self._session.items():
            for handle in [handle for handle, each in of_link.items() if each is made]:
                del of_link[handle]
                self._gate.withdraw(link, handle)
            self._hold_to_defaults(link, now)
