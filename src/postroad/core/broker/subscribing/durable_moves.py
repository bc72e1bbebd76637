"""Durable subscriptions whose clients connect: at their home, at another broker, or for the first time.

A durable subscription runs at its *home* broker, which stores its record. Where a client connects, there are three cases:

- This broker is the home: the subscription continues from the stored cursors.
- Another broker is the home: this broker asks it for the record (`HomeQuery`) and becomes the home (`_begin_move`). If the former
  home does not answer, the client's own positions are enough when they name every pubend.
- The name is not known here: it may still exist, so it is created only after a vote of the brokers (`naming`).

Invariant: the former home keeps its record, and so its holds on the logs, until this broker holds every log that the subscription
needs and has stored the record as *settled*. A crash in between leaves the subscription with the former home.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.subscribing.acknowledgements import Acknowledgements
from postroad.core.broker.subscribing.activation import Activation, HomeStored
from postroad.core.broker.subscribing.durable import DURABLES_MAX, Durable, Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.subscribing.naming import Creation, NameExists, NameWon, Naming, ReservationStored
from postroad.core.broker.subscribing.subscription import Subscription
from postroad.core.broker.views import HostedPubends, RelayedStreams
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import (
    DurableHome,
    HomeQuery,
    HomeReply,
    NameAnswer,
    NameReserve,
    Positions,
    Subscribe,
    pubend_broker,
)
from postroad.core.protocol.rights import owner_of
from postroad.errors import (
    DurableBusyError,
    DurableElsewhereError,
    DurableFilterError,
    DurableKindError,
    SharedElsewhereError,
    TooManyError,
)

WAITING_MAX: Final = 1024  # clients that wait for a vote on a name, or for its former home
DOUBTS_S: Final = 1.0  # how often the former home of a damaged record is asked


@dataclass(slots=True)
class Move:
    """A client that waits until the former home of its durable subscription answers."""

    link: LinkId
    packet: int
    handle: int
    filter: str
    name: str
    positions: Positions
    acknowledged: Positions
    version: int
    deadline: float
    earliest: bool
    shared: bool
    key: str


class DurableMoves:
    """Begins durable subscriptions here, and answers other brokers about their homes."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        edge: Edge,
        durables: Durables,
        activation: Activation,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._edge = edge
        self._durables = durables
        self._activation = activation
        self._acknowledgements = acknowledgements
        self.naming = Naming(context, durables)
        self._doubts_at = 0.0  # when former homes are asked about damaged records
        self._moves: dict[str, Move] = {}  # clients that wait for the answer of a former home

    # --- requests of clients ---

    def subscribe(self, link: LinkId, request: int, packet: Subscribe, name: str, now: float) -> None:
        durables = self._durables
        durable = durables.here.get(name)
        if name in self._moves or self.naming.is_creating(name) or (durable is not None and durable.subscription is not None):
            self._context.refuse(link, request, DurableBusyError(f"another client uses the name {name!r}"))
            return
        if durable is not None and not durable.moved and not durables.is_doubtful(name):
            if durable.damaged:
                durables.mend(durable, packet)
            elif (durable.shared, durable.key) != (packet.shared, packet.key):
                self._context.refuse(link, request, _other_kind(durable))
                return
            elif self._context.filter(durable.filter) != self._context.filter(packet.filter):
                self._context.refuse(link, request, _other_filter(name, durable.filter))
                return
            self._durables.join_all(durable, self._context.routes.pubends())
            durables.believe(durable, packet.positions, packet.acknowledged)
            positions = durables.positions(durable.cursors, packet.positions)
            self._activation.begin(
                link, request, packet, positions, durables.positions(durable.cursors, packet.acknowledged), now
            )
            return
        if len(self._moves) + len(self.naming) >= WAITING_MAX:
            text = f"this broker creates or moves at most {WAITING_MAX} durable subscriptions at a time"
            self._context.refuse(link, request, TooManyError(text))
            return
        if not durables.has_room(name) or len(durables.here) >= DURABLES_MAX:
            text = f"an overlay has at most {DURABLES_MAX} durable subscriptions; delete those that are not needed"
            self._context.refuse(link, request, TooManyError(text))
            return
        most = self._context.config.names_per_identity_max
        if not self._context.rights_of(link).admin and not durables.exists(name) and durables.count_owned(owner_of(name)) >= most:
            text = f"an identity has at most {most} durable subscriptions; delete those that are not needed"
            self._context.refuse(link, request, TooManyError(text))
            return
        home = durables.elsewhere(name)
        if home is None:
            self.naming.begin(link, request, packet, name, now)
            self._continue_creations(now)
            return
        self._move(link, request, packet, name, home, now)

    def is_waiting(self, link: LinkId, handle: int) -> bool:
        """Tell whether a client waits for a vote or for a former home."""
        return self.naming.is_waiting(link, handle) or any((m.link, m.handle) == (link, handle) for m in self._moves.values())

    def give_up(self, link: LinkId, handle: int) -> bool:
        """Let a client wait no longer; False if it did not wait."""
        moving = next((move.name for move in self._moves.values() if (move.link, move.handle) == (link, handle)), None)
        if moving is not None:
            del self._moves[moving]
        return self.naming.give_up(link, handle) or moving is not None

    def link_lost(self, link: LinkId) -> None:
        self._moves = {name: move for name, move in self._moves.items() if move.link != link}
        self.naming.give_up(link)

    def leave(self, subscription: Subscription) -> None:
        """Disconnect a durable subscription from its client; its record stays and holds the logs."""
        assert subscription.name is not None
        durable = self._durables.here.get(subscription.name)
        if durable is None or durable.subscription != subscription.number:
            return
        durable.subscription, durable.beginning = None, False
        former = self._durables.former_home(subscription.name) is not None
        if (former and not (durable.settled or durable.settling)) or not (subscription.answered or durable.stored):
            self.naming.let_go(subscription.name)
            self._durables.give_up(subscription.name)  # the former home holds the logs, or nobody was told that it exists
            return
        self._durables.moved_on(subscription.name, self._edge.cursors(subscription))
        self._durables.join_all(durable, self._context.routes.pubends())

    def wake(self, now: float) -> None:
        """Repeat questions to other brokers, and end those that take too long."""
        self.naming.wake(now)
        self._continue_creations(now)
        self._expire_moves(now)

    # --- creating a name ---

    def take_reserve(self, packet: NameReserve, now: float) -> None:
        self.naming.reserve(packet, now)
        self._continue_creations(now)

    def name_answered(self, packet: NameAnswer, now: float) -> None:
        self.naming.answered(packet, now)
        self._continue_creations(now)

    def reservation_stored(self, stored: ReservationStored, now: float) -> None:
        self.naming.reservation_stored(stored, now)
        self._continue_creations(now)

    def _continue_creations(self, now: float) -> None:
        """Continue with the creations that a vote has decided."""
        for decided in self.naming.take_decided():
            match decided:
                case NameWon(creation):
                    self._name_won(creation, now)
                case NameExists(creation, home):
                    self._name_exists(creation, home, now)

    def _name_won(self, creation: Creation, now: float) -> None:
        """Create a durable subscription whose name a majority of the brokers has reserved for us."""
        packet = creation.packet
        lost = self._list_known_pubends() if creation.existed or self._durables.is_lost(creation.name) else []
        self._create(creation.name, packet, lost)
        positions, done = dict(packet.positions), dict(packet.acknowledged)
        self._activation.begin(creation.link, creation.request, packet, positions, done, now, lost)

    def _create(self, name: str, packet: Subscribe, lost: Sequence[int]) -> None:
        """Create a durable subscription. It begins now, also in pubends that are known but unreachable.

        If its place in a pubend is lost, it begins there when that is reached: what it had before must not come again.
        """
        context = self._context
        durable = self._durables.take_home(name, packet.filter, {}, created_ms=context.wall_ms)
        durable.beginning = True
        durable.lost = {pubend: None for pubend in lost if pubend not in packet.positions}
        durable.shared, durable.key = packet.shared, packet.key
        known = [*context.routes.pubends(), *(pubend for pubends in context.known.values() for pubend in pubends)]
        durable.known_pubends = {pubend: self._begin_out_of_reach(durable, pubend) for pubend in known}
        placed = {**packet.positions, **durable.lost}
        for pubend in known:
            if pubend not in placed and not context.routes.reachable(pubend_broker(pubend)):
                self._durables.join(durable, pubend, 0 if packet.earliest else durable.known_pubends[pubend])

    def _begin_out_of_reach(self, durable: Durable, pubend: int) -> int:
        """Return a tick of an unreachable pubend that is before everything published there after the creation.

        Our own time is not such a tick, because the pubend's clock may be behind ours. Its last known frontier is, and so is our
        time less the largest difference between clocks.
        """
        heard = self._streams[pubend].cache.frontier if pubend in self._streams else 0
        return min(durable.created_tick, max(heard, durable.first_tick))

    def _name_exists(self, creation: Creation, home: DurableHome, now: float) -> None:
        """Continue with a name that already has a home, as a voter answered."""
        news, _ = self._durables.learn(home)
        if news is not None and news is not home:
            self._context.flood(news)  # it was deleted, and the voter did not know that yet
        self._context.store(self._durables.changes())
        where = self._durables.elsewhere(creation.name)
        if where is not None:
            self._move(creation.link, creation.request, creation.packet, creation.name, where, now)
        else:
            self._context.refuse(creation.link, creation.request, _elsewhere(creation.name, home.broker))

    # --- moving it here ---

    def _move(self, link: LinkId, request: int, packet: Subscribe, name: str, home: int, now: float) -> None:
        version = self._durables.homes[name].version
        move = self._make_move(link, request, packet, name, version, now)
        query = HomeQuery(home, self._context.broker, FULL_HOPS, name, version)
        if home in self._context.config.retired:
            self._begin_again(move, now)  # its record is gone with it
        elif packet.shared:  # only its home knows what the members acknowledged
            self._context.refuse(link, request, SharedElsewhereError(name, home))
        elif self._context.unicast(query):
            self._moves[name] = move
        else:
            self._move_without_home(move, now)

    def _make_move(self, link: LinkId, request: int, packet: Subscribe, name: str, version: int, now: float) -> Move:
        deadline = now + self._context.config.home_query_s
        brought, done = packet.positions, packet.acknowledged
        return Move(
            link,
            request,
            packet.handle,
            packet.filter,
            name,
            brought,
            done,
            version,
            deadline,
            packet.earliest,
            packet.shared,
            packet.key,
        )

    def home_answered(self, reply: HomeReply, now: float) -> None:
        """Continue with a move, or with a creation that met another creator, when the broker it asked has answered."""
        self._resolve_doubt(reply)
        if reply.shared:
            self._found_shared(reply)
            return
        move = self._moves.pop(reply.name, None) or self._move_of_creation(reply, now)
        if move is None:
            return
        if move.version != reply.version:
            self._moves[reply.name] = move  # the answer to an earlier query: keep waiting
            return
        if reply.busy:
            self._context.refuse(move.link, move.packet, DurableBusyError(f"another client uses the name {reply.name!r}"))
        elif reply.lost:
            self._begin_again(move, now)
        elif not reply.known:
            self._move_without_home(move, now)
        elif not reply.damaged and self._context.filter(reply.filter) != self._context.filter(move.filter):
            self._context.refuse(move.link, move.packet, _other_filter(reply.name, reply.filter))
        else:
            self._begin_move(move, reply, now)

    def _move_of_creation(self, reply: HomeReply, now: float) -> Move | None:
        """Handle the answer of another creator of the same name; return a move if the name exists there."""
        if reply.busy:
            self.naming.busy(reply.name, reply.version)
        creation = self.naming.found(reply.name, reply.version) if reply.known and not reply.busy else None
        if creation is None:
            return None
        self._durables.outbid(reply.name, reply.home_version)
        return self._make_move(creation.link, creation.request, creation.packet, creation.name, reply.version, now)

    def _found_shared(self, reply: HomeReply) -> None:
        """Send a client to the home of a shared subscription, which does not move."""
        error = SharedElsewhereError(reply.name, reply.source)
        move = self._moves.get(reply.name)
        creation = self.naming.found(reply.name, reply.version)
        if move is not None and move.version == reply.version:
            del self._moves[reply.name]
            self._context.refuse(move.link, move.packet, error)
        elif creation is not None:
            self._context.refuse(creation.link, creation.request, error)

    def _begin_move(self, move: Move, reply: HomeReply | None, now: float) -> None:
        """Become the home of a durable subscription, with the record of its former home if that answered."""
        durables = self._durables
        cursors = (
            dict(reply.cursors) if reply is not None else self._activation.likely_positions(move.positions, move.acknowledged)
        )
        starts = dict(reply.starts) if reply is not None else {}
        home = durables.homes.get(move.name)
        deleted = home is None or not home.broker  # meanwhile: then this is a new creation
        known_ms = self._context.wall_ms if home is None or deleted else home.created_ms
        created_ms = (reply.created_ms if reply is not None else 0) or known_ms
        durable = durables.take_home(move.name, move.filter, cursors, created_ms=created_ms, starts=starts)
        if reply is not None:
            durable.begun, durable.lost = dict.fromkeys(reply.begun), dict.fromkeys(reply.lost_cursors)
        self._durables.join_all(durable, self._context.routes.pubends())
        positions = durables.positions(durable.cursors, move.positions)
        done = durables.positions(durable.cursors, move.acknowledged)
        packet = Subscribe(move.handle, move.filter, move.name, move.positions, move.earliest)
        self._activation.begin(move.link, move.packet, packet, positions, done, now)

    def _move_without_home(self, move: Move, now: float) -> None:
        if not self._names_every_pubend(move.positions):
            home = self._durables.elsewhere(move.name) or 0
            self._context.refuse(move.link, move.packet, _elsewhere(move.name, home))
            return
        self._begin_move(move, None, now)

    def _expire_moves(self, now: float) -> None:
        for name, move in list(self._moves.items()):
            if now >= move.deadline:
                del self._moves[name]
                self._move_without_home(move, now)

    def _begin_again(self, move: Move, now: float) -> None:
        """Create a durable subscription again whose former home lost the record."""
        lost = self._list_known_pubends()
        packet = Subscribe(move.handle, move.filter, move.name, move.positions, move.earliest, shared=move.shared, key=move.key)
        self._create(move.name, packet, lost)
        self._activation.begin(move.link, move.packet, packet, dict(move.positions), dict(move.acknowledged), now, lost)

    def home_stored(self, stored: HomeStored) -> None:
        """Announce this broker as the home when the settled record is on disk; then the former home ends its holds."""
        durable = self._durables.here.get(stored.name)
        if durable is None or durable.version != stored.version:
            return
        self._context.flood(self._durables.settle(durable.name))
        self.naming.home_known(durable.name)
        if durable.subscription is not None:
            self._acknowledgements.settled(durable.subscription)

    # --- what other brokers say of homes ---

    def home_asked(self, query: HomeQuery) -> None:
        """Answer a broker where a client wants to continue a subscription whose home is, or was, here."""
        durable = self._durables.here.get(query.name)
        contradicts = query.doubtful and durable is not None and query.version >= durable.version and not durable.damaged
        if contradicts and self._durables.believes(query.name, query.version):
            self._claim(DurableHome(query.name, query.version, query.source, settled=False))
        known = durable is not None
        if durable is not None:
            busy = durable.subscription is not None or durable.shared  # a shared one stays here
        else:
            busy = not query.doubtful and self.naming.asked(query)
        text = durable.filter if durable is not None else ""
        cursors: Positions = durable.cursors if durable is not None else {}
        starts: Positions = durable.starts if durable is not None else {}
        created_ms = durable.created_ms if durable is not None else 0
        damaged = durable is not None and durable.damaged
        begun = list(durable.begun) if durable is not None else []
        lost_cursors = list(durable.lost) if durable is not None else []
        me, name, version, lost = self._context.broker, query.name, query.version, self._durables.is_lost(query.name)
        here = durable.version if durable is not None else 0
        reply = HomeReply(
            query.source,
            me,
            FULL_HOPS,
            name,
            version,
            known,
            busy,
            text,
            cursors,
            damaged,
            created_ms,
            starts,
            lost,
            here,
            begun,
            lost_cursors,
            durable is not None and durable.shared,
        )
        self._context.unicast(reply)

    def home_learned(self, home: DurableHome, link: LinkId, now: float) -> None:
        """Handle a flooded `DurableHome`: a subscription has moved, or was deleted."""
        if self._is_rival(home) and self._durables.believes(home.name, home.version):
            self._claim(home)
            return
        news, gone = self._durables.learn(home)
        if news is None:
            return
        self.naming.home_known(home.name)
        self._context.flood(news, except_link=link if news is home else None)
        if gone is None:
            return
        if gone.subscription is not None:  # its client is still connected here, but is served elsewhere now
            subscription = self._edge.subscriptions[gone.subscription]
            gone.cursors = {**gone.cursors, **self._edge.cursors(subscription)}
            gone.subscription = None
            self._activation.drop((subscription,), now)
            self._edge.end(subscription)
        if self._durables.dirty:
            self._context.store(self._durables.changes())

    def _is_rival(self, home: DurableHome) -> bool:
        """Tell whether a flooded home contradicts a subscription whose client is served here.

        Either another broker claims the same version as ours, or the record deletes an earlier creation of the name. A record
        that deletes the creation ours goes back to is no contradiction: the client that deleted it was told so.
        """
        ours = self._durables.here.get(home.name)
        if ours is None or home.broker == self._context.broker or home.version < ours.version:
            return False
        served = ours.subscription is not None and self._edge.subscriptions[ours.subscription].answered
        if home.broker == 0 and home.created_ms and ours.created_ms:
            return home.created_ms != ours.created_ms and (served or ours.settled)
        return served and (home.version == ours.version or home.broker == 0)

    def _claim(self, rival: DurableHome) -> None:
        """Remain the home with a version above that of another claim, and tell all brokers once that is stored."""
        ours = self._durables.reclaim(rival)
        self._context.store(self._durables.changes(), HomeStored(ours.name, ours.version))

    def _resolve_doubt(self, reply: HomeReply) -> None:
        """Become the home with a damaged record: its former home does not have it any more, so it had settled here."""
        durable = self._durables.here.get(reply.name)
        if durable is None or reply.known or reply.version != durable.version or not self._durables.is_doubtful(reply.name):
            return
        if reply.source == self._durables.former_home(reply.name):
            self._context.flood(self._durables.settle(reply.name))

    def ask_former_homes(self, now: float) -> None:
        """Ask whether damaged records had settled here, again and again, since the former home may be down.

        The question carries our version. A former home that still has the subscription claims a higher one (`home_asked`), so
        that a late word of ours cannot take it away there; with that, our record ends.
        """
        if now < self._doubts_at:
            return
        self._doubts_at = now + DOUBTS_S
        for durable in self._durables.doubtful():
            home = self._durables.homes[durable.name].broker
            self._context.unicast(HomeQuery(home, self._context.broker, FULL_HOPS, durable.name, durable.version, doubtful=True))

    # --- inside ---

    def _list_known_pubends(self) -> list[int]:
        return [*self._pubends, *(pubend for pubends in self._context.known.values() for pubend in pubends)]

    def _names_every_pubend(self, positions: Positions) -> bool:
        return all(pubend in positions for pubend in self._list_known_pubends())


def _elsewhere(name: str, home: int) -> DurableElsewhereError:
    return DurableElsewhereError(f"broker {home}, the home of {name!r}, does not answer; try again later")


def _other_kind(durable: Durable) -> DurableKindError:
    kind = "is not shared"
    if durable.shared:
        kind = f"is shared with the key {durable.key!r}" if durable.key else "is shared without a key"
    return DurableKindError(f"the durable subscription {durable.name!r} {kind}; subscribe in the same way, or delete it")


def _other_filter(name: str, filter_: str) -> DurableFilterError:
    return DurableFilterError(f"the durable subscription {name!r} has the filter {filter_!r}; delete it to change the filter")
