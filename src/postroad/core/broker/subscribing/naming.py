"""Creating a durable name by vote: a majority of the known brokers must have reserved it for the creator.

A name that this broker does not know may exist all the same, because the flooded record may be late. Its creation is therefore a
small vote. The creator asks every broker it knows, itself included, to *reserve* the name (`NameReserve`). A broker that knows
neither a home of the name nor another creator's reservation stores the reservation and grants it (`NameAnswer`). The creator may
use the name when a majority has granted it. Any two majorities have a broker in common, so of two creators at most one wins:

- If a voter knows the home of the name, the subscription moves here from there, as for any client that changes its broker.
- If a voter holds another creator's reservation, this broker asks that creator (`HomeQuery`). If the name exists there, it moves
  here. If it is being created there, the broker with the lower number continues and the other gives up. If the creator knows
  nothing of it, the reservation was left behind by a crash or a refusal, and the creator ends it everywhere (`NameRelease`).

A reservation ends when the name's home is announced, or when its creator ends it or is retired. The name of a retired creator may
have existed, so who creates it next is told, and its client gets a gap. While a creator that may have won
is down, nobody else can create the name: it may exist there, and a client may have been told so.

A broker that lost its files may have forgotten a name that a majority with it had granted. So its vote counts only towards a
majority when every member that lost none has granted the name, too. A creator that lost its files has perhaps created the name in
its former life, if a voter still holds its reservation of then: then its client gets a gap.

The members of a vote are the brokers that this one knows and those that the answers name, without retired ones. They are counted
with each answer, so a broker that appears during the vote takes part. Of two brokers, both are needed. A broker that is
configured with neighbours but has never met one has no majority: it waits until it knows one, which names the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import (
    DurableHome,
    HomeQuery,
    NameAnswer,
    NameRelease,
    NameReserve,
    Subscribe,
)
from postroad.errors import DurableBusyError, DurableElsewhereError, PostroadError

LIFE_BITS: Final = 32  # the number of an attempt begins with the incarnation of its creator
NAME_KEY: Final = "name/"
RESERVATIONS_MAX: Final = 1 << 16
MEMBERS_MAX: Final = 4096
ASK_AGAIN_S: Final = 0.3


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """Who creates a name, and the number of the attempt; a creator's numbers ascend."""

    creator: int
    number: int
    retired: int = 0  # who had reserved the name before, a broker that is retired or lost its files: it may have existed there


@dataclass(slots=True)
class Creation:
    """A client that waits for the result of a vote."""

    link: LinkId
    request: int
    packet: Subscribe
    name: str
    number: int
    deadline: float
    again_at: float
    members: dict[int, None]
    granted: dict[int, None] = field(default_factory=dict)
    answered: dict[int, None] = field(default_factory=dict)
    forgetful: dict[int, None] = field(default_factory=dict)  # voters that lost their files
    existed: bool = False  # perhaps, at a broker that is retired now, or here before the files were lost


@dataclass(frozen=True, slots=True)
class NameWon:
    """A majority of the brokers has reserved the name for this creation."""

    creation: Creation


@dataclass(frozen=True, slots=True)
class NameExists:
    """The name has a home already."""

    creation: Creation
    home: DurableHome


@dataclass(frozen=True, slots=True)
class ReservationStored:
    """Work after a write: grant a name."""

    packet: NameReserve
    version: int


class Naming:
    """The votes on durable names: those of this broker's clients, and this broker's own."""

    def __init__(self, context: Context, durables: Durables) -> None:
        self._context = context
        self._durables = durables
        self._decided: list[NameWon | NameExists] = []
        self._reservations: dict[str, Reservation] = {}
        self._creations: dict[str, Creation] = {}

    def load(self, reservations: Mapping[str, Reservation]) -> None:
        """Read stored reservations, without our own: they are from before the restart, and nobody waits for them."""
        self._reservations = {name: each for name, each in reservations.items() if each.creator != self._context.broker}

    def __len__(self) -> int:
        """Return how many clients wait for a vote."""
        return len(self._creations)

    def is_creating(self, name: str) -> bool:
        return name in self._creations

    def take_decided(self) -> list[NameWon | NameExists]:
        """Return the creations that were decided since the last call."""
        decided, self._decided = self._decided, []
        return decided

    # --- the creator ---

    def begin(self, link: LinkId, request: int, packet: Subscribe, name: str, now: float) -> None:
        """Ask all known brokers to reserve a name."""
        members = dict.fromkeys((self._context.broker, *self._context.known))
        number = self._context.next_epoch()  # never used before
        deadline = now + self._context.config.home_query_s
        creation = Creation(link, request, packet, name, number, deadline, now + ASK_AGAIN_S, members)
        self._creations[name] = creation
        self._ask(creation, members, now)

    def answered(self, answer: NameAnswer, now: float) -> None:
        """Count a vote."""
        creation = self._creations.get(answer.name)
        if creation is None or answer.number != creation.number:
            return
        creation.answered[answer.source] = None
        if answer.forgot:
            creation.forgetful[answer.source] = None
        fresh = self._new_members(creation, answer.members)
        if answer.home:
            home = DurableHome(answer.name, answer.version, answer.home, settled=True, created_ms=answer.created_ms)
            self._end(creation)
            self._decided.append(NameExists(creation, home))
            return
        if answer.granted:
            self._durables.outbid(answer.name, answer.version)
            creation.granted[answer.source] = None
            creation.existed |= answer.creator not in (0, self._context.broker) or (
                answer.creator == self._context.broker and self._context.files_lost
            )
        elif answer.creator:
            self._meet(creation, answer.creator)
        self._ask(creation, fresh, now)
        if self._is_taken(creation):
            del self._creations[creation.name]
            self._decided.append(NameWon(creation))

    def asked(self, query: HomeQuery) -> bool:
        """Answer another broker that wants a name which we may be creating: True if we are and we continue.

        If not, our reservations of the name are ended everywhere.
        """
        creation = self._creations.get(query.name)
        if creation is not None and query.source > self._context.broker:
            return True
        if creation is not None:
            self._refuse(creation, _busy(query.name))
        self.let_go(query.name)
        return False

    def is_waiting(self, link: LinkId, handle: int) -> bool:
        """Tell whether the client of a link waits for a creation with this handle."""
        return any((each.link, each.packet.handle) == (link, handle) for each in self._creations.values())

    def give_up(self, link: LinkId, handle: int | None = None) -> bool:
        """End the creations that the client of a link waits for, or only that of one handle; tell whether there were any."""
        mine = [each for each in self._creations.values() if each.link == link and handle in (None, each.packet.handle)]
        for creation in mine:
            self._end(creation)
        return bool(mine)

    def busy(self, name: str, number: int) -> None:
        """Give up a name that another client uses or is creating."""
        creation = self._creations.get(name)
        if creation is not None and creation.number == number:
            self._refuse(creation, _busy(name))

    def found(self, name: str, number: int) -> Creation | None:
        """End and return the creation with this number, because the name exists at another broker."""
        creation = self._creations.get(name)
        if creation is None or creation.number != number:
            return None
        self._end(creation)
        return creation

    def wake(self, now: float) -> None:
        """Repeat the request to brokers that have not granted it, and refuse the client after the deadline."""
        for creation in list(self._creations.values()):
            fresh = self._new_members(creation, list(self._context.known))
            if now >= creation.deadline:
                self._refuse(creation, self._too_few(creation))
            elif fresh:
                self._ask(creation, fresh, now)
            elif now >= creation.again_at:
                creation.again_at = now + ASK_AGAIN_S
                self._ask(creation, {each: None for each in creation.members if each not in creation.granted}, now)

    # --- the voter ---

    def reserve(self, packet: NameReserve, now: float) -> None:
        """Vote on a name: a reservation is stored before it is granted."""
        home = self._durables.homes.get(packet.name)
        if home is not None and home.broker not in (0, packet.source) and home.version > packet.version:
            self._answer(packet, now, home=home)
            return
        known = self._reservations.get(packet.name)
        held = known is not None and known.creator != packet.source and known.creator not in self._context.config.retired
        own = packet.name in self._durables.here and packet.source != self._context.broker
        if known is not None and held:
            self._answer(packet, now, creator=known.creator)
        elif own:
            self._answer(packet, now, creator=self._context.broker)  # not settled yet, but here
        elif known is not None and known.creator == packet.source and known.number > packet.number:
            return  # a later attempt overtook it
        elif known is None and len(self._reservations) >= RESERVATIONS_MAX:
            self._answer(packet, now)
        else:
            self._reserve(packet, home.version if home is not None else 0, known)

    def released(self, packet: NameRelease) -> None:
        known = self._reservations.get(packet.name)
        if known is not None and known.creator == packet.source and known.number <= packet.number:
            self._drop(packet.name)

    def home_known(self, name: str) -> None:
        """End a reservation: the name's home was announced, or the name was deleted."""
        if name in self._reservations:
            self._drop(name)

    # --- inside ---

    def _reserve(self, packet: NameReserve, version: int, before: Reservation | None) -> None:
        retired = 0
        if before is not None:
            again = before.creator == packet.source and before.number >> LIFE_BITS == packet.number >> LIFE_BITS
            retired = before.retired if before.retired or again else before.creator
        reservation = Reservation(packet.source, packet.number, retired)
        self._reservations[packet.name] = reservation
        change = NAME_KEY + packet.name, msgspec.msgpack.encode(reservation)
        self._context.store((change,), ReservationStored(packet, version))

    def reservation_stored(self, stored: ReservationStored, now: float) -> None:
        """Grant a name whose reservation is on disk, unless the reservation has ended meanwhile."""
        packet = stored.packet
        known = self._reservations.get(packet.name)
        if known is not None and (known.creator, known.number) == (packet.source, packet.number):
            self._answer(packet, now, granted=True, version=stored.version, creator=known.retired)

    def _answer(
        self,
        packet: NameReserve,
        now: float,
        *,
        granted: bool = False,
        version: int = 0,
        home: DurableHome | None = None,
        creator: int = 0,
    ) -> None:
        me, members = self._context.broker, [self._context.broker, *self._context.known]
        where, created_ms = (home.broker, home.created_ms) if home is not None else (0, 0)
        answer = NameAnswer(
            packet.source,
            me,
            FULL_HOPS,
            packet.name,
            packet.number,
            granted,
            where,
            home.version if home is not None else version,
            created_ms,
            creator,
            members[:MEMBERS_MAX],
            self._context.files_lost,
        )
        if packet.source == me:
            self.answered(answer, now)
        else:
            self._context.unicast(answer)

    def _meet(self, creation: Creation, creator: int) -> None:
        """Ask another creator, who holds a reservation that we need, what became of the name."""
        if creator != self._context.broker:
            self._context.unicast(HomeQuery(creator, self._context.broker, FULL_HOPS, creation.name, creation.number))

    def _is_taken(self, creation: Creation) -> bool:
        """Tell whether a majority has granted a name, and one that remembers the names there were."""
        members, granted, forgetful = creation.members, creation.granted, creation.forgetful
        if self._is_stranger() or 2 * len(granted) <= len(members):
            return False
        remember = [each for each in members if each not in forgetful]
        sure = sum(each in granted for each in remember)
        return 2 * sure > len(members) or sure == len(remember)

    def _is_stranger(self) -> bool:
        """Tell whether this broker is configured with neighbours and has never met one."""
        context = self._context
        return context.config.has_neighbours and not context.known and not context.config.retired

    def _new_members(self, creation: Creation, members: list[int]) -> dict[int, None]:
        retired = self._context.config.retired
        fresh = {each: None for each in members if each not in creation.members and each not in retired}
        creation.members.update(fresh)
        return fresh

    def _ask(self, creation: Creation, members: dict[int, None], now: float) -> None:
        known = self._durables.homes.get(creation.name)
        version = known.version if known is not None and known.broker in (0, self._context.broker) else 0
        for broker in members:
            packet = NameReserve(broker, self._context.broker, FULL_HOPS, creation.name, creation.number, version)
            if broker == self._context.broker:
                self.reserve(packet, now)
            else:
                self._context.unicast(packet)

    def _refuse(self, creation: Creation, error: PostroadError) -> None:
        self._end(creation)
        self._context.refuse(creation.link, creation.request, error)

    def _end(self, creation: Creation) -> None:
        del self._creations[creation.name]
        self.let_go(creation.name)

    def let_go(self, name: str) -> None:
        """End our reservations of a name at all brokers."""
        me, number = self._context.broker, self._context.next_epoch()
        for broker in self._context.known:
            self._context.unicast(NameRelease(broker, me, FULL_HOPS, name, number))
        known = self._reservations.get(name)
        if known is not None and known.creator == me:
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._reservations[name]
        self._context.store(((NAME_KEY + name, None),))

    def _too_few(self, creation: Creation) -> DurableElsewhereError:
        if self._is_stranger():
            return DurableElsewhereError(
                f"cannot create the durable subscription {creation.name!r}: this broker has not reached any of its neighbours "
                "since it was set up, and one of them may already have it; start one of them, or remove the neighbours from its "
                "configuration"
            )
        needed = len(creation.members) // 2 + 1
        silent = [each for each in creation.members if each not in creation.answered]
        lost = [each for each in creation.forgetful if each in creation.granted]
        but = f" ({lost} lost their files: then all others are needed)" if lost else ""
        return DurableElsewhereError(
            f"cannot create the durable subscription {creation.name!r}: {needed} of the {len(creation.members)} known brokers "
            f"must store the name, and {len(creation.granted)} did{but}; no answer from {silent}; start them, or list brokers "
            "that will never return under `retired`"
        )


def _busy(name: str) -> DurableBusyError:
    return DurableBusyError(f"another client uses the name {name!r}, or is about to use it, at another broker")
