"""Activation: from a subscription's beginning to its start in each pubend.

A subscription is answered when every reachable pubend has activated it, each of their brokers has confirmed our hold, and what we
must remember of it is stored. Until then its progress in each pubend is `WAITING` or already under way; afterwards a pubend that
appears joins it with `Started`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.core.broker.context import Context
from postroad.core.broker.subscribing.acknowledgements import Acknowledgements
from postroad.core.broker.subscribing.catching_up import CatchingUp
from postroad.core.broker.subscribing.durable import Durable, Durables
from postroad.core.broker.subscribing.edge import Edge, Phase, Progress, Subscription
from postroad.core.broker.subscribing.local_filters import LocalFilters
from postroad.core.broker.subscribing.position_proofs import PositionProofs
from postroad.core.broker.subscribing.waiting import Waiting
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, LogHolds, RelayedStreams
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Positions, PubendsReply, Subscribe, Subscribed, pubend_broker


@dataclass(frozen=True, slots=True)
class StartsStored:
    """Work after a write: a subscription may be told where it starts in these pubends."""

    subscription: int
    pubends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HomeStored:
    """Work after a write: announce that a durable subscription has its home here."""

    name: str
    version: int


class Activation:
    """Subscriptions on their way to their starts."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        edge: Edge,
        durables: Durables,
        keeper: ConfirmedHolds,
        holds: LogHolds,
        catching_up: CatchingUp,
        acknowledgements: Acknowledgements,
    ) -> None:
        self._context = context
        self._streams = streams
        self._edge = edge
        self._durables = durables
        self._keeper = keeper
        self._holds = holds
        self._catching_up = catching_up
        self._acknowledgements = acknowledgements
        self._filters = LocalFilters(streams)
        self._proofs = PositionProofs(context, pubends, streams)
        self._unanswered: dict[int, int] = {}  # number of subscription -> request
        self._unsettled: dict[int, Subscription] = {}  # those that have pubends their client does not know of
        self._ready: dict[int, Subscription] = {}  # those of which something has become certain
        self._held: dict[int, Waiting[Subscription]] = {}  # broker -> those that wait for a version of our hold there
        self._joined: tuple[int, ...] = ()  # the pubends every subscription takes part in
        self._announced: list[int] = []  # the pubends every durable subscription takes part in

    def check_positions(self, packet: Subscribe) -> tuple[Positions, Positions]:
        """Return what a client brings, within bounds: its positions, and what it acknowledged of them."""
        return self._proofs.take(packet)

    def likely_positions(self, positions: Positions, done: Positions) -> Positions:
        """Return cursors for a subscription whose home cannot be asked."""
        return self._proofs.likely(positions, done)

    def ask_for_proofs(self, now: float) -> None:
        """Ask the brokers of positions that may lie beyond their pubends."""
        self._proofs.ask(now)

    def begin(
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
        self._filters.add(filter_, now)
        reachable = self._joined = self._reachable()
        self._unanswered[subscription.number] = request
        self._wait_for([(subscription, pubend) for pubend in reachable])
        for pubend in reachable:
            self._activate_waiting(pubend, None)
        self.answer_ready(now)

    def routes_changed(self, pubends: Iterable[int], now: float) -> None:
        """Let every subscription take part in pubends that have come into reach. `pubends` are those with other ways, or new."""
        before, reachable = dict.fromkeys(self._joined), self._reachable()
        self._join_new_pubends()
        self._filters.tell_new_streams(now)
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
            self._durables.join_all(durable, news)

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

    def _wait_for(self, fresh: Sequence[tuple[Subscription, int]]) -> None:
        """Let subscriptions take part in pubends, and hold their logs from now on."""
        for subscription, pubend in fresh:
            self._begin_waiting(subscription, pubend)
        self._hold_for(fresh)

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
            if durable is not None and subscription.progress[pubend].start in durable.begins(pubend):
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
            self._durables.join_all(durable, self._context.routes.pubends())
            for pubend, progress in list(subscription.progress.items()):
                if progress.phase is Phase.WAITING:  # it went out of reach: there the subscription begins with its creation
                    self._wait_for([(subscription, pubend)])

    def _announce(self, subscription: Subscription, pubend: int, now: float) -> None:
        """Let the client have rows from now on; begin to catch up what it has not got."""
        self._edge.announce(subscription, pubend)
        if self._edge.wants_more(subscription, pubend):
            self._catching_up.next_piece(subscription, pubend, subscription.progress[pubend], now)

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

    def drop(self, subscriptions: Sequence[Subscription], now: float) -> None:
        """Forget subscriptions that end, and ask for their filters no longer."""
        for subscription in subscriptions:
            self._unanswered.pop(subscription.number, None)
            self._unsettled.pop(subscription.number, None)
            self._acknowledgements.forget(subscription.number)
            self._proofs.end(subscription)
            for waiting in self._held.values():
                waiting.discard(subscription.number)
        self._filters.remove((subscription.filter for subscription in subscriptions), now)
