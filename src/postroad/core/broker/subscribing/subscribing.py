"""The broker's side of subscribing: from `Subscribe` to `Subscribed`, durable subscriptions and their moves, catching up.

A subscription is answered when every reachable pubend has activated it, each of their brokers has confirmed our hold, and what we
must remember of it is stored. Until then its progress in each pubend is `WAITING` or already under way; afterwards a pubend
that appears joins it with `Started`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import FULL_HOPS, Context, SendWhenStored
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.pieces import CATCH_UP_BYTES
from postroad.core.broker.subscribing.durable import Durable, Durables, Move
from postroad.core.broker.subscribing.edge import CATCH_UP_RETRY_S, Edge, Phase, Progress, Subscription
from postroad.core.broker.subscribing.naming import Creation, NameExists, NameWon, Naming, ReservationStored
from postroad.core.broker.subscribing.position_proofs import PositionProofs
from postroad.core.broker.subscribing.waiting import Waiting
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, LogHolds, RelayedStreams
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgementStored,
    CatchUp,
    CatchUpReply,
    DurableHome,
    Flow,
    HomeQuery,
    HomeReply,
    NameAnswer,
    NameReserve,
    Positions,
    PubendsReply,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    pubend_broker,
)
from postroad.errors import (
    DuplicateHandleError,
    DurableBusyError,
    DurableElsewhereError,
    DurableFilterError,
    FilterError,
    TooManyError,
    UnknownHandleError,
)

CATCH_UP_AT_ONCE: Final = 256
CATCH_UP_BACKOFF_MAX: Final = 2  # doublings
CATCH_UP_SPREAD_S: Final = 0.15
PIECES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class StartsStored:
    """Work after a write: a subscription may be told where it starts in these pubends."""

    subscription: int
    pubends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AcknowledgementsStored:
    """Work after a write: confirm to clients what they acknowledged, by number of subscription."""

    positions: dict[int, Positions]


@dataclass(frozen=True, slots=True)
class HomeStored:
    """Work after a write: announce that a durable subscription has its home here."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class PastFromLog:
    """A read of the log here for a subscription that is behind."""

    subscription: int
    pubend: int
    lo: int
    request: int


class Subscribing:
    """Subscriptions of this broker's clients, from request to answer."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        edge: Edge,
        durables: Durables,
        keeper: ConfirmedHolds,
        holds: LogHolds,
        log_reads: LogReads,
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._edge = edge
        self._durables = durables
        self._keeper = keeper
        self._holds = holds
        self._log_reads = log_reads
        self._unanswered: dict[int, int] = {}  # number of subscription -> request
        self._unsettled: dict[int, Subscription] = {}  # those that have pubends their client does not know of
        self._moves: dict[str, Move] = {}
        self.naming = Naming(context, durables)
        self._proofs = PositionProofs(context, pubends, streams)
        self._announced: list[int] = []  # the pubends every durable subscription takes part in
        self._unconfirmed: dict[int, Positions] = {}  # number of subscription -> cursors its client wants to know stored
        self._storing_acknowledged = False
        self._asked_early: dict[int, Positions] = {}  # the same for those whose home has not settled here
        self._ready: dict[int, Subscription] = {}  # those of which something has become certain
        self._held: dict[int, Waiting[Subscription]] = {}  # broker -> those that wait for a version of our hold there
        self._local: dict[Filter, int] = {}  # how many subscriptions have a filter
        self._wanting: dict[int, None] = {}  # the streams that know the local filters
        self._requests: dict[int, tuple[int, int]] = {}  # request -> (subscription, pubend)
        self._joined: tuple[int, ...] = ()  # the pubends every subscription takes part in

    # --- subscribe ---

    def subscribe(self, link: LinkId, packet: Subscribe, request: int, now: float) -> None:
        context = self._context
        if self._edge.find(link, packet.handle) is not None:
            context.refuse(link, request, DuplicateHandleError(f"handle {packet.handle} is in use on this connection"))
            return
        if len(self._edge.subscriptions) >= context.config.subscriptions_max:
            context.refuse(
                link, request, TooManyError(f"this broker allows at most {context.config.subscriptions_max} subscriptions")
            )
            return
        try:
            too_many = self._edge.filter_load.check(link, context.filter(packet.filter))
        except FilterError as error:
            context.refuse(link, request, error)
            return
        if too_many is not None:
            context.refuse(link, request, too_many)
            return
        positions, done = self._proofs.take(packet)
        packet = msgspec.structs.replace(packet, positions=positions, acknowledged=done)
        if packet.name is None:
            self._begin(link, request, packet, positions, done, now)
        else:
            self._subscribe_durable(link, request, packet, packet.name, now)

    def unsubscribe(self, link: LinkId, packet: Unsubscribe, request: int, now: float) -> None:
        subscription = self._edge.find(link, packet.handle)
        moving = next((m.name for m in self._moves.values() if (m.link, m.handle) == (link, packet.handle)), None)
        if moving is not None:
            del self._moves[moving]
        if self.naming.give_up(link, packet.handle) or moving is not None:
            if packet.forget:  # only the home can: it may serve a client, or go by a newer version than is known here
                self._context.refuse(link, request, _not_deleted())
            else:
                self._context.send(link, Unsubscribed(packet.handle), request)
            return
        if subscription is None:
            self._context.refuse(link, request, UnknownHandleError(f"this connection has no subscription {packet.handle}"))
            return
        if subscription.name is not None and packet.forget:
            self._forget(subscription.name, link, packet, request)
            self._drop(subscription, now)
            self._edge.remove(subscription)
            return
        if subscription.name is not None:
            self._leave_durable(subscription)
        self._drop(subscription, now)
        self._edge.end(subscription, request)

    def _forget(self, name: str, link: LinkId, packet: Unsubscribe, request: int) -> None:
        """Delete a durable subscription everywhere; its client hears of it when that is on disk."""
        context = self._context
        context.flood(self._durables.forget(name))
        context.store(self._durables.changes(), SendWhenStored(link, Unsubscribed(packet.handle), request))

    def acknowledge(self, link: LinkId, packet: Acknowledge) -> None:
        subscription = self._edge.find(link, packet.handle)
        if subscription is None:
            return  # it ended while the acknowledgement was on its way
        self._edge.acknowledge(subscription, packet.positions)
        if subscription.name is None:
            return
        cursors = self._edge.cursors(subscription)
        self._durables.moved_on(subscription.name, cursors)
        if packet.confirm:
            asked = self._unconfirmed.setdefault(subscription.number, {})
            asked.update({pubend: cursors[pubend] for pubend in packet.positions if pubend in cursors})
            self._store_acknowledged()

    def _store_acknowledged(self) -> None:
        """Store what clients wait for, all that came while the last write was under way with one write, then confirm it."""
        if self._storing_acknowledged or not self._unconfirmed:
            return
        asked, self._unconfirmed = self._unconfirmed, {}
        subscriptions, durables = self._edge.subscriptions, self._durables
        for number, positions in asked.items():
            name = subscriptions[number].name if number in subscriptions else None
            if name in durables.here and not durables.is_kept(name, positions):
                durables.mark(name)
        if durables.dirty:
            self._storing_acknowledged = True
            self._context.store(durables.changes(), AcknowledgementsStored(asked))
        else:
            self.acknowledgements_stored(asked)

    def acknowledgements_stored(self, asked: dict[int, Positions]) -> None:
        """Confirm what is durable now, and go on with what was acknowledged meanwhile."""
        self._storing_acknowledged = False
        for number, positions in asked.items():
            self._confirm(number, positions)
        self._store_acknowledged()

    def _confirm(self, number: int, positions: Positions) -> None:
        subscription = self._edge.subscriptions.get(number)
        if subscription is None or subscription.name is None:
            return  # its client asks again where it is now
        durable = self._durables.here.get(subscription.name)
        if durable is not None and not durable.settled:  # its client may still go back to the former home, which knows less
            self._asked_early.setdefault(number, {}).update(positions)
            return
        if self._durables.is_kept(subscription.name, positions):
            self._context.send(subscription.link, AcknowledgementStored(subscription.handle, positions))

    def flow(self, link: LinkId, packet: Flow, now: float) -> None:
        subscription = self._edge.find(link, packet.handle)
        if subscription is None:
            return
        self._edge.flow(subscription, is_open=packet.open)
        if packet.open:
            for pubend in subscription.progress:
                self.catch_up(pubend, now)

    def link_lost(self, link: LinkId, now: float) -> None:
        """Keep what the clients of a lost link may come back for."""
        self._moves = {name: move for name, move in self._moves.items() if move.link != link}
        self.naming.give_up(link)
        gone = self._edge.of_link(link)
        kept: Positions = {}
        for subscription in gone:
            if subscription.name is not None:
                self._leave_durable(subscription)
            else:
                for pubend, tick in self._edge.cursors(subscription).items():
                    kept[pubend] = min(tick, kept.get(pubend, tick))
        self._keeper.keep_until(now + self._context.config.subscriber_grace_s, kept)
        self._drop_all(gone, now)
        self._edge.link_lost(link)

    # --- activation ---

    def routes_changed(self, pubends: Iterable[int], now: float) -> None:
        """Let every subscription take part in pubends that have come into reach. `pubends` are those with other ways, or new."""
        before, reachable = dict.fromkeys(self._joined), self._reachable()
        self._join_new_pubends()
        self._tell_new_streams(now)
        concerned = dict.fromkeys(pubend for pubend in reachable if pubend not in before)
        self._joined = reachable
        reached = dict.fromkeys(reachable)
        concerned.update((pubend, None) for pubend in pubends if pubend in reached)
        fresh = [
            (subscription, pubend)
            for subscription in self._edge.subscriptions.values()
            for pubend in concerned
            if pubend not in subscription.progress
        ]
        self._wait_for(fresh)
        for pubend in concerned:
            self._activate_waiting(pubend, None)
        self._ready.update(self._unsettled)
        self.answer_ready(now)

    def _join_new_pubends(self) -> None:
        """Let every durable subscription take part in pubends announced since, whether its client is here or away."""
        announced = self._context.routes.pubends()
        if announced is self._announced:
            return
        before, self._announced = dict.fromkeys(self._announced), announced
        news = [pubend for pubend in announced if pubend not in before]
        for durable in self._durables.here.values() if news else ():
            self._join_all(durable, news)

    def _join_all(self, durable: Durable, pubends: Sequence[int] | None = None) -> None:
        """Take part in announced pubends, all of them unless given.

        It takes part from its creation on in one that was known then, and from the first tick in others.
        """
        if not durable.beginning:
            for pubend in self._context.routes.pubends() if pubends is None else pubends:
                known = pubend in durable.known_pubends
                self._durables.join(durable, pubend, durable.created_tick if known else durable.first_tick)

    def check_waiting(self, pubend: int, now: float, tick: int | None = None) -> None:
        """Activate the subscriptions whose interest has become active, at `tick` or where the stream is now."""
        self._activate_waiting(pubend, tick)
        self.answer_ready(now)

    def _activate_waiting(self, pubend: int, tick: int | None) -> None:
        stream = self._streams[pubend]
        if tick is None:
            tick = max(stream.cache.frontier, stream.active_tick)
        for subscription in self._edge.waiting(pubend, stream.epoch_active):
            self._edge.activate(subscription, pubend, tick)
            self._unsettled[subscription.number] = self._ready[subscription.number] = subscription

    def answer_ready(self, now: float) -> None:
        """Tell the clients of the starts that have become certain."""
        for broker, version in self._keeper.take_news():
            if broker in self._held:
                for subscription in self._held[broker].take(version):
                    self._ready[subscription.number] = subscription
        while self._ready:
            ready, self._ready = self._ready, {}
            for number, subscription in ready.items():
                if number in self._unsettled:
                    self._settle(subscription, now)

    # --- durable ---

    def name_reserve(self, packet: NameReserve, now: float) -> None:
        self.naming.reserve(packet, now)
        self._take_names(now)

    def name_answered(self, packet: NameAnswer, now: float) -> None:
        self.naming.answered(packet, now)
        self._take_names(now)

    def reservation_stored(self, stored: ReservationStored, now: float) -> None:
        self.naming.reservation_stored(stored, now)
        self._take_names(now)

    def _take_names(self, now: float) -> None:
        """Go on with the creations that a vote has decided."""
        for decided in self.naming.take_decided():
            match decided:
                case NameWon(creation):
                    self._name_won(creation, now)
                case NameExists(creation, home):
                    self._name_exists(creation, home, now)

    def home_learned(self, home: DurableHome, link: LinkId, now: float) -> None:
        if self._is_rival(home):
            ours = self._durables.reclaim(home)
            self._context.store(self._durables.changes(), HomeStored(ours.name, ours.version))
            return
        news, gone = self._durables.learn(home)
        if news is None:
            return
        self.naming.home_known(home.name)
        self._context.flood(news, except_link=link if news is home else None)
        if gone is None:
            return
        if gone.subscription is not None:
            subscription = self._edge.subscriptions[gone.subscription]
            gone.cursors = {**gone.cursors, **self._edge.cursors(subscription)}
            gone.subscription = None
            self._drop(subscription, now)
            self._edge.end(subscription)
        if self._durables.dirty:
            self._context.store(self._durables.changes())

    def home_asked(self, query: HomeQuery) -> None:
        durable = self._durables.here.get(query.name)
        known = durable is not None
        busy = durable.subscription is not None if durable is not None else self.naming.asked(query)
        text = durable.filter if durable is not None else ""
        cursors: Positions = durable.cursors if durable is not None else {}
        starts: Positions = durable.starts if durable is not None else {}
        created_ms = durable.created_ms if durable is not None else 0
        damaged = durable is not None and durable.damaged
        me, name, version, lost = self._context.broker, query.name, query.version, self._durables.is_lost(query.name)
        here = durable.version if durable is not None else 0
        reply = HomeReply(
            query.source, me, FULL_HOPS, name, version, known, busy, text, cursors, damaged, created_ms, starts, lost, here
        )
        self._context.unicast(reply)

    def home_answered(self, reply: HomeReply, now: float) -> None:
        move = self._moves.pop(reply.name, None) or self._move_of_creation(reply, now)
        if move is None:
            return
        if move.version != reply.version:
            self._moves[reply.name] = move
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

    def wake(self, now: float) -> None:
        """Ask again, and give up what takes too long."""
        self._proofs.ask(now)
        self.naming.wake(now)
        self._take_names(now)
        self._expire_moves(now)

    def _expire_moves(self, now: float) -> None:
        for name, move in list(self._moves.items()):
            if now >= move.deadline:
                del self._moves[name]
                self._move_without_home(move, now)

    def _move_of_creation(self, reply: HomeReply, now: float) -> Move | None:
        """Take word of another creator of a name that is being created here; return the move when it is at home there."""
        if reply.busy:
            self.naming.busy(reply.name, reply.version)
        creation = self.naming.found(reply.name, reply.version) if reply.known and not reply.busy else None
        if creation is None:
            return None
        self._durables.outbid(reply.name, reply.home_version)
        return self._make_move(creation.link, creation.request, creation.packet, creation.name, reply.version, now)

    # --- catching up ---

    def catch_up(self, pubend: int, now: float) -> None:
        """Get the next piece for everyone who is behind: from the cache, the log here, or the pubend's broker."""
        if not self._edge.anyone_is_behind(pubend):
            return
        for count, (subscription, progress) in enumerate(self._edge.catching_up(pubend)):
            if count >= CATCH_UP_AT_ONCE:
                break
            self._next_piece(subscription, pubend, progress, now)

    def caught_up(self, reply: CatchUpReply, batch: Batch | None, now: float) -> None:
        """Take a piece of the past from another broker."""
        number, pubend = self._requests.get(reply.request, (0, 0))
        subscription = self._edge.subscriptions.get(number)
        if not reply.more:
            self._requests.pop(reply.request, None)
        if subscription is None or pubend != reply.pubend:
            return
        rows = [batch] if batch is not None else []
        awaited = reply.request if reply.more else 0
        self._piece(subscription, pubend, reply.lo, reply.hi, rows, reply.released, now, awaited)

    # --- inside ---

    def _subscribe_durable(self, link: LinkId, request: int, packet: Subscribe, name: str, now: float) -> None:
        durables = self._durables
        durable = durables.here.get(name)
        if name in self._moves or self.naming.is_creating(name) or (durable is not None and durable.subscription is not None):
            self._context.refuse(link, request, DurableBusyError(f"another client uses the name {name!r}"))
            return
        if durable is not None and not durable.moved:
            if durable.damaged:
                durables.mend(durable, packet.filter)
            elif self._context.filter(durable.filter) != self._context.filter(packet.filter):
                self._context.refuse(link, request, _other_filter(name, durable.filter))
                return
            self._join_all(durable)
            durables.believe(durable, packet.positions, packet.acknowledged)
            positions = durables.positions(durable.cursors, packet.positions)
            self._begin(link, request, packet, positions, durables.positions(durable.cursors, packet.acknowledged), now)
            return
        home = durables.elsewhere(name)
        if home is None:
            self.naming.begin(link, request, packet, name, now)
            self._take_names(now)
            return
        self._move(link, request, packet, name, home, now)

    def _create(self, name: str, packet: Subscribe) -> None:
        """Make a new durable subscription. It begins now, also in pubends that are known and out of reach."""
        context = self._context
        durable = self._durables.take_home(name, packet.filter, {}, created_ms=context.wall_ms)
        durable.beginning = True
        known = [*context.routes.pubends(), *(pubend for pubends in context.known.values() for pubend in pubends)]
        durable.known_pubends = dict.fromkeys(known)
        for pubend in known:
            if pubend not in packet.positions and not context.routes.reachable(pubend_broker(pubend)):
                self._durables.join(durable, pubend, 0 if packet.earliest else durable.created_tick)

    def _name_won(self, creation: Creation, now: float) -> None:
        """Create a durable subscription: a majority of the brokers keeps its name for us."""
        packet = creation.packet
        lost = self._known_pubends() if self._durables.is_lost(creation.name) else []
        self._create(creation.name, packet)
        positions, done = dict(packet.positions), dict(packet.acknowledged)
        self._begin(creation.link, creation.request, packet, positions, done, now, lost)

    def _name_exists(self, creation: Creation, home: DurableHome, now: float) -> None:
        """Go on at the home of a name that another broker knew of."""
        news, _ = self._durables.learn(home)
        if news is not None and news is not home:
            self._context.flood(news)  # it was deleted, and the voter had not heard
        self._context.store(self._durables.changes())
        where = self._durables.elsewhere(creation.name)
        if where is not None:
            self._move(creation.link, creation.request, creation.packet, creation.name, where, now)
        else:
            self._context.refuse(creation.link, creation.request, _elsewhere(creation.name, home.broker))

    def _known_pubends(self) -> list[int]:
        return [*self._pubends, *(pubend for pubends in self._context.known.values() for pubend in pubends)]

    def _names_every_pubend(self, positions: Positions) -> bool:
        return all(pubend in positions for pubend in self._known_pubends())

    def _is_rival(self, home: DurableHome) -> bool:
        """Tell whether word of a durable's home contradicts that its client is here.

        Either another broker names itself with the same version as ours, or the name was forgotten in a former life. Word that
        the creation that ours goes back to was deleted does not contradict: its client was told so.
        """
        ours = self._durables.here.get(home.name)
        if ours is None or home.broker == self._context.broker or home.version < ours.version:
            return False
        served = ours.subscription is not None and self._edge.subscriptions[ours.subscription].answered
        if home.broker == 0 and home.created_ms and ours.created_ms:
            return home.created_ms != ours.created_ms and (served or ours.settled)
        return served and (home.version == ours.version or home.broker == 0)

    def _move(self, link: LinkId, request: int, packet: Subscribe, name: str, home: int, now: float) -> None:
        version = self._durables.homes[name].version
        move = self._make_move(link, request, packet, name, version, now)
        query = HomeQuery(home, self._context.broker, FULL_HOPS, name, version)
        if home in self._context.config.retired:
            self._begin_again(move, now)  # its record went with it
        elif self._context.unicast(query):
            self._moves[name] = move
        else:
            self._move_without_home(move, now)

    def _make_move(self, link: LinkId, request: int, packet: Subscribe, name: str, version: int, now: float) -> Move:
        deadline = now + self._context.config.home_query_s
        brought, done = packet.positions, packet.acknowledged
        return Move(link, request, packet.handle, packet.filter, name, brought, done, version, deadline, packet.earliest)

    def _move_without_home(self, move: Move, now: float) -> None:
        if not self._names_every_pubend(move.positions):
            home = self._durables.homes[move.name].broker
            self._context.refuse(move.link, move.packet, _elsewhere(move.name, home))
            return
        self._begin_move(move, None, now)

    def _begin_move(self, move: Move, reply: HomeReply | None, now: float) -> None:
        """Become the home of a durable subscription, with what its former home said, if that could be asked."""
        durables = self._durables
        cursors = dict(reply.cursors) if reply is not None else self._proofs.likely(move.positions, move.acknowledged)
        starts = dict(reply.starts) if reply is not None else {}
        home = durables.homes[move.name]
        known_ms = home.created_ms if home.broker else self._context.wall_ms  # it was deleted meanwhile: this is another one
        created_ms = (reply.created_ms if reply is not None else 0) or known_ms
        durable = durables.take_home(move.name, move.filter, cursors, created_ms=created_ms, starts=starts)
        self._join_all(durable)
        positions = durables.positions(durable.cursors, move.positions)
        done = durables.positions(durable.cursors, move.acknowledged)
        packet = Subscribe(move.handle, move.filter, move.name, move.positions, move.earliest)
        self._begin(move.link, move.packet, packet, positions, done, now)

    def _begin_again(self, move: Move, now: float) -> None:
        """Become the home of a durable subscription whose former home lost the record."""
        lost = self._known_pubends()
        packet = Subscribe(move.handle, move.filter, move.name, move.positions, move.earliest)
        self._create(move.name, packet)
        self._begin(move.link, move.packet, packet, dict(move.positions), dict(move.acknowledged), now, lost)

    def _begin(
        self,
        link: LinkId,
        request: int,
        packet: Subscribe,
        positions: Positions,
        done: Positions,
        now: float,
        lost: Sequence[int] = (),
    ) -> None:
        """Begin a subscription. It is told a gap in the pubends whose cursors are `lost`, but for those it brought itself."""
        context = self._context
        filter_ = context.filter(packet.filter)
        subscription = self._edge.add(link, packet.handle, filter_, packet.name, positions, done=done, earliest=packet.earliest)
        subscription.lost_cursors = {pubend: None for pubend in lost if pubend not in packet.positions}
        self._proofs.begin(subscription)
        if packet.name is not None:
            self._durables.here[packet.name].subscription = subscription.number
        self._want(filter_, now)
        reachable = self._joined = self._reachable()
        self._unanswered[subscription.number] = request
        self._wait_for([(subscription, pubend) for pubend in reachable])
        for pubend in reachable:
            self._activate_waiting(pubend, None)
        self.answer_ready(now)

    def _wait_for(self, fresh: Sequence[tuple[Subscription, int]]) -> None:
        """Let subscriptions take part in pubends, and hold their logs from now on."""
        for subscription, pubend in fresh:
            self._begin_waiting(subscription, pubend)
        self._hold_for(fresh)

    def _begin_waiting(self, subscription: Subscription, pubend: int) -> None:
        durable = self._durable_of(subscription)
        if durable is not None and pubend in durable.cursors and pubend not in subscription.positions:
            subscription.positions[pubend] = subscription.done[pubend] = durable.cursors[pubend]
        self._edge.wait_for(subscription, pubend)
        if pubend in subscription.positions:
            horizon = self._proofs.check(subscription, pubend)
            if horizon is not None:
                self._void(subscription, pubend, horizon)
            elif pubend in subscription.unproven:
                known = durable.cursors.get(pubend, 0) if durable is not None else self._proofs.limit(pubend)
                progress = subscription.progress[pubend]
                progress.acknowledged = min(progress.acknowledged, known)

    def _durable_of(self, subscription: Subscription) -> Durable | None:
        return self._durables.here.get(subscription.name) if subscription.name is not None else None

    def _void(self, subscription: Subscription, pubend: int, horizon: int) -> None:
        """Give up a position beyond its pubend's horizon, for one from which nothing is skipped."""
        durable, tick = self._durable_of(subscription), 0
        if durable is not None:
            tick = durable.cursors.get(pubend, durable.first_tick)
            if tick > horizon:
                tick = min(horizon, durable.created_tick)
                self._durables.put_back(durable, pubend, tick)
        self._proofs.void(subscription, pubend, tick)
        self._edge.reposition(subscription, pubend)

    def horizons_told(self, reply: PubendsReply, now: float) -> None:
        """Decide on the positions that an answer proves or makes void."""
        for subscription, pubend, horizon in self._proofs.told(reply):
            if self._proofs.check(subscription, pubend) is None and pubend not in subscription.unproven:
                self._edge.reposition(subscription, pubend)
            else:
                self._void(subscription, pubend, horizon)
            self._hold_for([(subscription, pubend)])
            self.check_waiting(pubend, now)

    def _hold_for(self, fresh: Sequence[tuple[Subscription, int]]) -> None:
        """Hold the logs of pubends for subscriptions: what changed is told once for all of them."""
        lowest: Positions = {}
        for subscription, pubend in fresh:
            self._edge.hold(subscription, pubend)
            tick = subscription.progress[pubend].acknowledged
            lowest[pubend] = min(tick, lowest.get(pubend, tick))
        self._holds.tell_for(lowest)
        for subscription, pubend in fresh:
            progress, broker = subscription.progress[pubend], pubend_broker(pubend)
            progress.hold = self._keeper.sent_version(broker)
            if not self._keeper.is_confirmed(broker, progress.hold):
                self._held.setdefault(broker, Waiting()).add(subscription.number, subscription, progress.hold)

    def _settle(self, subscription: Subscription, now: float) -> None:
        """Take each start that is active and held on: store it, then tell the client; the first time, all reachable at once."""
        unanswered = subscription.number in self._unanswered
        if unanswered and not self._is_ready_everywhere(subscription):
            return
        fresh = [p for p, s in subscription.progress.items() if not s.storing and self._is_ready(p, s)]
        if fresh:
            self._store_starts(subscription, fresh)
        if unanswered and self._is_stored_everywhere(subscription):
            self._answer(subscription, now)
        elif not unanswered:
            for pubend, progress in subscription.progress.items():
                if progress.stored and not progress.announced:
                    self._announce(subscription, pubend, now)
        if subscription.name is not None and subscription.answered:
            self._settle_home(subscription, self._durables.here[subscription.name])
        if all(s.announced or s.phase is Phase.WAITING for s in subscription.progress.values()):
            self._unsettled.pop(subscription.number, None)

    def _settle_home(self, subscription: Subscription, durable: Durable) -> None:
        """Become the home once every pubend it has a cursor in is held; that is on disk before the former home lets go.

        Pubends of retired brokers are not waited for, nor is a retired home.
        """
        if durable.settled or durable.settling:
            return
        retired = self._context.config.retired
        held = {pubend: None for pubend, progress in subscription.progress.items() if progress.announced}
        needed = [pubend for pubend in durable.cursors if pubend_broker(pubend) not in retired]
        if self._durables.former_home(durable.name) is None or all(pubend in held for pubend in needed):
            self._durables.begin_settling(durable.name)
            self._context.store(self._durables.changes(), HomeStored(durable.name, durable.version))

    def home_stored(self, stored: HomeStored) -> None:
        """Tell all that this is the home of a record that is stored as settled: then the former home lets go."""
        durable = self._durables.here.get(stored.name)
        if durable is None or durable.version != stored.version:
            return
        self._context.flood(self._durables.settle(durable.name))
        self.naming.home_known(durable.name)
        early = self._asked_early.pop(durable.subscription or 0, None)
        if durable.subscription is not None and early is not None:
            self._unconfirmed.setdefault(durable.subscription, {}).update(early)
            self._store_acknowledged()

    def _is_ready(self, pubend: int, progress: Progress) -> bool:
        """Tell whether a start is active on the whole path and its broker holds the log for us."""
        if progress.phase is Phase.WAITING:
            return False
        return self._keeper.is_confirmed(pubend_broker(pubend), progress.hold)

    def _is_ready_everywhere(self, subscription: Subscription) -> bool:
        return all(
            progress.storing or self._is_ready(pubend, progress) or not self._context.routes.reachable(pubend_broker(pubend))
            for pubend, progress in subscription.progress.items()
        )

    def _is_stored_everywhere(self, subscription: Subscription) -> bool:
        return all(
            progress.stored or not self._context.routes.reachable(pubend_broker(pubend))
            for pubend, progress in subscription.progress.items()
        )

    def _store_starts(self, subscription: Subscription, pubends: list[int]) -> None:
        durable = self._durable_of(subscription)
        for pubend in pubends:
            released = self._keeper.released(pubend)
            if durable is not None and subscription.progress[pubend].start == durable.first_tick:
                released = min(released, durable.created_tick)  # what was gone before it existed is no gap
                subscription.positions.pop(pubend, None)
            self._edge.begin_after(subscription, pubend, released)
        starts = [subscription.progress[pubend] for pubend in pubends]
        changes = self._holds.floor_changes({p: subscription.progress[p].acknowledged for p in pubends})
        if durable is not None:
            durable.cursors = self._durables.positions(durable.cursors, self._edge.cursors(subscription))
            for pubend in pubends:
                durable.starts.setdefault(pubend, subscription.progress[pubend].start)
            self._durables.mark(durable.name)
            changes += self._durables.changes()
        for progress in starts:
            progress.storing = True
            progress.stored = not changes
        if changes:
            self._context.store(changes, StartsStored(subscription.number, tuple(pubends)))

    def starts_stored(self, stored: StartsStored, now: float) -> None:
        """Go on with a subscription whose starts are durable."""
        subscription = self._edge.subscriptions.get(stored.subscription)
        if subscription is None:
            return
        for pubend in stored.pubends:
            subscription.progress[pubend].stored = True
        if subscription.number in self._unsettled:
            self._settle(subscription, now)

    def _answer(self, subscription: Subscription, now: float) -> None:
        request = self._unanswered.pop(subscription.number)
        starts = {p: s.start for p, s in subscription.progress.items() if s.stored}
        self._context.send(subscription.link, Subscribed(subscription.handle, starts), request)
        for pubend in starts:
            self._announce(subscription, pubend, now)
        subscription.answered = True
        durable = self._durable_of(subscription)
        if durable is not None:
            durable.beginning = False
            self._join_all(durable)
            for pubend, progress in list(subscription.progress.items()):
                if progress.phase is Phase.WAITING:  # it went out of reach: there the subscription begins with its creation
                    self._wait_for([(subscription, pubend)])

    def _announce(self, subscription: Subscription, pubend: int, now: float) -> None:
        """Let the client have rows from now on; begin to catch up what it has not got."""
        self._edge.announce(subscription, pubend)
        if self._edge.wants_more(subscription, pubend):
            self._next_piece(subscription, pubend, subscription.progress[pubend], now)

    def _reachable(self) -> tuple[int, ...]:
        brokers: dict[int, bool] = {}
        found: list[int] = []
        for pubend in self._streams:
            broker = pubend_broker(pubend)
            reached = brokers.get(broker)
            if reached is None:
                reached = brokers[broker] = self._context.routes.reachable(broker)
            if reached:
                found.append(pubend)
        return tuple(found)

    def _leave_durable(self, subscription: Subscription) -> None:
        """The client of a durable subscription goes away; its record stays and holds the logs."""
        assert subscription.name is not None
        durable = self._durables.here.get(subscription.name)
        if durable is None or durable.subscription != subscription.number:
            return
        durable.subscription, durable.beginning = None, False
        former = self._durables.former_home(subscription.name) is not None
        if (former and not (durable.settled or durable.settling)) or not (subscription.answered or durable.stored):
            self.naming.let_go(subscription.name)
            self._durables.give_up(subscription.name)  # the former home holds the logs, or it was never reported active
            return
        self._durables.moved_on(subscription.name, self._edge.cursors(subscription))
        self._join_all(durable)

    def _drop(self, subscription: Subscription, now: float) -> None:
        self._drop_all((subscription,), now)

    def _drop_all(self, subscriptions: Sequence[Subscription], now: float) -> None:
        """Forget subscriptions that end, and ask for their filters no longer."""
        went: list[Filter] = []
        for subscription in subscriptions:
            self._unanswered.pop(subscription.number, None)
            self._unsettled.pop(subscription.number, None)
            self._asked_early.pop(subscription.number, None)
            self._proofs.end(subscription)
            for waiting in self._held.values():
                waiting.discard(subscription.number)
            count = self._local.pop(subscription.filter)
            if count > 1:
                self._local[subscription.filter] = count - 1
            else:
                went.append(subscription.filter)
        if went:
            for pubend in self._wanting:
                self._streams[pubend].want((), went, now)

    def _want(self, filter_: Filter, now: float) -> None:
        """Ask for what a new subscription wants."""
        self._tell_new_streams(now)
        count = self._local.get(filter_, 0)
        self._local[filter_] = count + 1
        if count == 0:
            for pubend in self._wanting:
                self._streams[pubend].want((filter_,), (), now)

    def _tell_new_streams(self, now: float) -> None:
        """Tell streams that we have heard of since what our subscribers want."""
        if len(self._wanting) == len(self._streams):
            return
        for pubend, stream in self._streams.items():
            if pubend not in self._wanting:
                self._wanting[pubend] = None
                stream.want(tuple(self._local), (), now)

    def _next_piece(self, subscription: Subscription, pubend: int, progress: Progress, now: float) -> None:
        if progress.request and now < progress.retry_at:
            return
        stream = self._streams[pubend]
        for _ in range(PIECES_AT_ONCE):
            target = self._edge.target(progress, pubend)
            reached, rows = stream.from_cache(subscription.filter, progress.position, target, CATCH_UP_BYTES)
            if reached <= progress.position:
                self._ask_for_past(subscription, pubend, progress, target, now)
                return
            self._edge.caught_up(subscription, pubend, reached, rows)
            if not self._edge.wants_more(subscription, pubend):
                return

    def _ask_for_past(self, subscription: Subscription, pubend: int, progress: Progress, target: int, now: float) -> None:
        request = progress.request = self._context.next_request()
        # Spread, so that those who lost to an overflow together do not come again together.
        wait = CATCH_UP_RETRY_S * 2 ** min(progress.tries, CATCH_UP_BACKOFF_MAX)
        progress.retry_at = now + wait + CATCH_UP_SPREAD_S * (request % 8)
        progress.tries += 1
        lo = progress.position
        if pubend in self._pubends:
            order = ReadLog(pubend, 0, lo, min(target, self._pubends[pubend].horizon), CATCH_UP_BYTES)
            self._log_reads.ask(order, PastFromLog(subscription.number, pubend, lo, request))
            return
        self._requests[request] = (subscription.number, pubend)
        while len(self._requests) > 4 * CATCH_UP_AT_ONCE:
            del self._requests[next(iter(self._requests))]
        broker = pubend_broker(pubend)
        packet = CatchUp(broker, self._context.broker, FULL_HOPS, request, pubend, str(subscription.filter), lo, target)
        self._context.unicast(packet)

    def take_log(self, wanted: PastFromLog, result: LogRead, now: float) -> None:
        """Give a subscription what was read of its past in the log here."""
        for begin, hi, batches, released in result.stretches(wanted.lo):
            subscription = self._edge.subscriptions.get(wanted.subscription)
            if subscription is None:
                return
            matching = [found for b in batches if len(found := b.filter(subscription.filter.evaluate(b)))]
            awaited = wanted.request if hi < result.hi else 0
            self._piece(subscription, wanted.pubend, begin, hi, matching, released, now, awaited)

    def _piece(
        self,
        subscription: Subscription,
        pubend: int,
        lo: int,
        hi: int,
        rows: list[Batch],
        released: int,
        now: float,
        awaited: int = 0,
    ) -> None:
        """Take what is told of (lo, hi]; late answers are as good as quick ones, and slow links have only late ones.

        `awaited` is the request whose answer goes on after this piece, 0 when it is the last.
        """
        progress = subscription.progress.get(pubend)
        if progress is None or progress.phase is not Phase.CATCHING_UP or lo > progress.position or hi <= progress.position:
            return
        if released > progress.position:
            self._edge.gap(subscription, pubend, released)
        self._edge.caught_up(subscription, pubend, hi, rows)
        if not self._edge.wants_more(subscription, pubend):
            return
        if awaited:
            progress.request, progress.retry_at = awaited, now + CATCH_UP_RETRY_S
        else:
            self._next_piece(subscription, pubend, progress, now)


def _elsewhere(name: str, home: int) -> DurableElsewhereError:
    return DurableElsewhereError(f"broker {home}, the home of {name!r}, does not answer; try again later")


def _not_deleted() -> DurableElsewhereError:
    return DurableElsewhereError(
        "not deleted: this broker is not the home of the subscription, and does not know the home or has no answer from it; "
        "try again later"
    )


def _other_filter(name: str, filter_: str) -> DurableFilterError:
    return DurableFilterError(f"the durable subscription {name!r} has the filter {filter_!r}; delete it to change the filter")
