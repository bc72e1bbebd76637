"""Activation: the steps from a subscribe request to the first row, for each pubend.

1. The filter is added to the interest of every stream, and the subscription waits for the activation tick (`begin`).
2. At the same time the log is held for it, from the lowest tick at which it can start (`_hold_for`).
3. When the whole path applies the interest, `Edge.activate` fixes the start tick (`_activate_waiting`).
4. When the pubend's broker has confirmed the hold too, the start is *ready* (`_is_ready`), and is stored (`_store_starts`).
5. When that is on disk, the client is told the start, and delivery begins (`_answer`, `_announce`).

The client's request is answered with `Subscribed` when step 5 is reached for every reachable pubend. A pubend that appears later
goes through the same steps and is announced with `Started`.

Why this order: a start that the client was told is a promise. After step 3, no relay on the path leaves out a matching row. After
step 2, the log keeps what the client has not received. After step 4, both survive a crash of this broker. If one of them were
missing, a crash could lose messages after the start without a gap.

Invariant: every subscription that has a pubend which its client does not know is in `_unsettled`. Events put subscriptions into
`_ready`; `answer_ready` takes them out, one step further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from postroad.core.broker.context import Context
from postroad.core.broker.subscribing.acknowledgements import Acknowledgements
from postroad.core.broker.subscribing.catching_up import CatchingUp
from postroad.core.broker.subscribing.durable import Durable, Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.subscribing.local_filters import LocalFilters
from postroad.core.broker.subscribing.position_proofs import PositionProofs
from postroad.core.broker.subscribing.subscription import Event, Progress, State, Subscription
from postroad.core.broker.subscribing.waiting import Waiting
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, LogHolds, RelayedStreams, ReservedSubscriptions
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
    """The subscriptions whose start in some pubend is not yet announced."""

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
        self.reservations: ReservedSubscriptions | None = None  # what admitted subscriptions reserved
        self._unanswered: dict[int, int] = {}  # number of subscription -> request
        self._unsettled: dict[int, Subscription] = {}  # those with a pubend that is not announced to the client
        self._ready: dict[int, Subscription] = {}  # those that may be able to take the next step
        self._held: dict[int, Waiting[Subscription]] = {}  # broker -> those that wait until it confirms a version of our hold
        self._joined: tuple[int, ...] = ()  # the reachable pubends: every subscription has a progress in each
        self._announced: list[int] = []  # all announced pubends: every durable subscription has a cursor in each

    def check_positions(self, packet: Subscribe) -> tuple[Positions, Positions]:
        """Return the positions and acknowledgements of a request, within bounds."""
        return self._proofs.take(packet)

    def likely_positions(self, positions: Positions, done: Positions) -> Positions:
        """Return cursors for a subscription whose home broker is unreachable."""
        return self._proofs.likely(positions, done)

    def ask_for_proofs(self, now: float) -> None:
        """Ask the brokers of unproven positions how far their pubends are."""
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
        """Begin a subscription. Its client gets a gap in the `lost` pubends, except where it brought a position itself."""
        context = self._context
        filter_ = context.filter(packet.filter)
        subscription = self._edge.add(link, packet.handle, filter_, packet.name, positions, done=done, earliest=packet.earliest)
        subscription.lost_cursors = {pubend: None for pubend in lost if pubend not in packet.positions}
        self._proofs.begin(subscription)
        if packet.name is not None:
            durable = self._durables.here[packet.name]
            durable.subscription = subscription.number
            kept = {pubend: None for pubend in durable.lost if pubend not in packet.positions}
            durable.lost = subscription.lost_cursors = kept | subscription.lost_cursors
        if self.reservations is not None:
            self.reservations.begun(subscription.number, link, packet.handle, packet.name)
        self._filters.add(filter_, now)
        reachable = self._joined = self._reachable()
        self._unanswered[subscription.number] = request
        self._wait_for([(subscription, pubend) for pubend in reachable])
        for pubend in reachable:
            self._activate_waiting(pubend, None)
        self.answer_ready(now)

    def routes_changed(self, pubends: Iterable[int], now: float) -> None:
        """Start every subscription in pubends that became reachable. `pubends` are new or have a changed route."""
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
            self._catching_up.route_changed(pubend, now)
        self._ready.update(self._unsettled)
        self.answer_ready(now)

    def _join_new_pubends(self) -> None:
        """Give every durable subscription a cursor in newly announced pubends, whether its client is connected or not."""
        announced = self._context.routes.pubends()
        if announced is self._announced:
            return
        before, self._announced = dict.fromkeys(self._announced), announced
        news = [pubend for pubend in announced if pubend not in before]
        for durable in self._durables.here.values() if news else ():
            self._durables.join_all(durable, news)

    def check_waiting(self, pubend: int, now: float, tick: int | None = None) -> None:
        """Activate the subscriptions whose interest has become active, at `tick` or at the present end of the stream."""
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
        """Take the next step for every subscription that may be ready, and answer clients."""
        for broker, version in self._keeper.take_news():
            if broker in self._held:
                for subscription in self._held[broker].take(version):
                    self._ready[subscription.number] = subscription
        while self._ready:  # a step may make others ready: an answer lets a durable subscription join more pubends
            ready, self._ready = self._ready, {}
            for number, subscription in ready.items():
                if number in self._unsettled:
                    self._settle(subscription, now)

    def _wait_for(self, fresh: Sequence[tuple[Subscription, int]]) -> None:
        """Add pubends to subscriptions, and hold their logs from now on."""
        for subscription, pubend in fresh:
            self._begin_waiting(subscription, pubend)
        self._hold_for(fresh)

    def begins_at(self, number: int, pubend: int, tick: int) -> bool:
        """Tell whether a subscription began at a tick of a pubend by our own choice or records, and brought no position there."""
        subscription = self._edge.subscriptions.get(number)
        if subscription is not None and pubend not in subscription.positions:
            return subscription.progress[pubend].start == tick
        durable = None if subscription is None else self._durable_of(subscription)
        return durable is not None and durable.starts.get(pubend) == tick

    def _durable_of(self, subscription: Subscription) -> Durable | None:
        return self._durables.here.get(subscription.name) if subscription.name is not None else None

    def _void(self, subscription: Subscription, pubend: int, horizon: int) -> None:
        """Replace a position beyond its pubend's horizon by one from which no message is skipped."""
        durable, tick = self._durable_of(subscription), 0
        if durable is not None:
            tick = durable.cursors.get(pubend, durable.first_tick)
            if tick > horizon:
                tick = min(horizon, durable.created_tick)
                self._durables.put_back(durable, pubend, tick)
        self._proofs.void(subscription, pubend, tick)
        self._edge.reposition(subscription, pubend)

    def horizons_told(self, reply: PubendsReply, now: float) -> None:
        """Handle an answer that proves positions or voids them."""
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
            elif pubend in subscription.unproven:  # hold the log from a tick that is certain, in case the position is void
                known = durable.cursors.get(pubend, 0) if durable is not None else self._proofs.limit(pubend)
                progress = subscription.progress[pubend]
                progress.acknowledged = min(progress.acknowledged, known)

    def _hold_for(self, fresh: Sequence[tuple[Subscription, int]]) -> None:
        """Hold the logs of pubends for subscriptions. One hold per broker is sent for all of them."""
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
        """Store the starts that are ready, and announce those that are stored.

        The first answer waits for all reachable pubends; later ones are announced one by one.
        """
        unanswered = subscription.number in self._unanswered
        if unanswered and not self._is_ready_everywhere(subscription):
            return
        fresh = [p for p, s in subscription.progress.items() if self._is_ready(p, s)]
        if fresh:
            self._store_starts(subscription, fresh)
        if unanswered and self._is_stored_everywhere(subscription):
            self._answer(subscription, now)
        elif not unanswered:
            for pubend, progress in subscription.progress.items():
                if progress.state is State.STORED:
                    self._announce(subscription, pubend, now)
        if subscription.name is not None and subscription.answered:
            self._settle_home(subscription, self._durables.here[subscription.name])
        if all(s.is_announced or s.state is State.WAITING for s in subscription.progress.values()):
            self._unsettled.pop(subscription.number, None)

    def _settle_home(self, subscription: Subscription, durable: Durable) -> None:
        """Begin to settle once the log of every pubend with a cursor is held for it.

        That it is settled is stored before the former home may release its own holds: one of the two always holds the logs.
        Pubends of retired brokers, and a retired former home, do not count.
        """
        if durable.settled or durable.settling:
            return
        retired = self._context.config.retired
        held = {pubend: None for pubend, progress in subscription.progress.items() if progress.is_announced}
        needed = [pubend for pubend in durable.cursors if pubend_broker(pubend) not in retired]
        if self._durables.former_home(durable.name) is None or all(pubend in held for pubend in needed):
            self._durables.begin_settling(durable.name)
            self._context.store(self._durables.changes(), HomeStored(durable.name, durable.version))

    def _is_ready(self, pubend: int, progress: Progress) -> bool:
        """Tell whether a start has become active on the whole path and its broker holds the log for us."""
        return progress.state is State.ACTIVE and self._keeper.is_confirmed(pubend_broker(pubend), progress.hold)

    def _is_ready_everywhere(self, subscription: Subscription) -> bool:
        """Tell whether all reachable pubends are ready; one that became unreachable does not delay the answer."""
        return all(
            progress.is_held or self._is_ready(pubend, progress) or not self._context.routes.reachable(pubend_broker(pubend))
            for pubend, progress in subscription.progress.items()
        )

    def _is_stored_everywhere(self, subscription: Subscription) -> bool:
        return all(
            progress.is_stored or not self._context.routes.reachable(pubend_broker(pubend))
            for pubend, progress in subscription.progress.items()
        )

    def _store_starts(self, subscription: Subscription, pubends: list[int]) -> None:
        """Write what a restart needs: the floor of our holds and, for a durable subscription, cursors and starts."""
        durable = self._durable_of(subscription)
        for pubend in pubends:
            released = self._keeper.released(pubend)
            start = subscription.progress[pubend].start
            if durable is not None and pubend not in durable.begun and start in durable.begins(pubend):
                # It begins here with its creation. Messages released before it existed are no gap: without a position,
                # `begin_after` may move the start behind them.
                released = min(released, durable.created_tick)
                subscription.positions.pop(pubend, None)
            self._edge.begin_after(subscription, pubend, released)
        changes = self._holds.floor_changes({p: subscription.progress[p].acknowledged for p in pubends})
        if durable is not None:
            durable.cursors = self._durables.positions(durable.cursors, self._edge.cursors(subscription))
            for pubend in pubends:
                durable.starts.setdefault(pubend, subscription.progress[pubend].start)
                durable.begun[pubend] = None
            self._durables.mark(durable.name)
            changes += self._durables.changes()
        for pubend in pubends:
            subscription.progress[pubend].apply(Event.HELD)
            if not changes:  # all of it is on disk already
                subscription.progress[pubend].apply(Event.STORED)
        if changes:
            self._context.store(changes, StartsStored(subscription.number, tuple(pubends)))

    def starts_stored(self, stored: StartsStored, now: float) -> None:
        """Continue with a subscription whose starts are on disk."""
        subscription = self._edge.subscriptions.get(stored.subscription)
        if subscription is None:
            return
        for pubend in stored.pubends:
            subscription.progress[pubend].apply(Event.STORED)
        if subscription.number in self._unsettled:
            self._settle(subscription, now)

    def _answer(self, subscription: Subscription, now: float) -> None:
        request = self._unanswered.pop(subscription.number)
        starts = {p: s.start for p, s in subscription.progress.items() if s.is_stored}
        self._context.send(subscription.link, Subscribed(subscription.handle, starts), request)
        for pubend in starts:
            self._announce(subscription, pubend, now)
        subscription.answered = True
        durable = self._durable_of(subscription)
        if durable is not None:
            durable.beginning = False
            self._durables.join_all(durable, self._context.routes.pubends())
            for pubend, progress in list(subscription.progress.items()):
                if progress.state is State.WAITING:  # unreachable since: there the subscription begins with its creation,
                    self._wait_for([(subscription, pubend)])  # the cursor of which `join_all` has just added

    def _announce(self, subscription: Subscription, pubend: int, now: float) -> None:
        """Let the client receive rows from now on, and begin to catch up if it is behind."""
        self._edge.announce(subscription, pubend)
        if self._edge.wants_more(subscription, pubend):
            self._catching_up.next_piece(subscription, pubend, subscription.progress[pubend], now)

    def _reachable(self) -> tuple[int, ...]:
        """Return the announced pubends that have a route. A stream may be one that only a neighbour has mentioned."""
        brokers: dict[int, bool] = {}
        found: list[int] = []
        for pubend in self._context.routes.pubends():
            broker = pubend_broker(pubend)
            reached = brokers.get(broker)
            if reached is None:
                reached = brokers[broker] = self._context.routes.reachable(broker)
            if reached:
                found.append(pubend)
        return tuple(found)

    def drop(self, subscriptions: Sequence[Subscription], now: float) -> None:
        """Forget subscriptions that end, and remove their filters from the interest."""
        for subscription in subscriptions:
            self._unanswered.pop(subscription.number, None)
            self._unsettled.pop(subscription.number, None)
            self._acknowledgements.forget(subscription.number)
            self._proofs.end(subscription)
            for waiting in self._held.values():
                waiting.discard(subscription.number)
            if self.reservations is not None:
                self.reservations.dropped(subscription.number, subscription.name)
        self._filters.remove((subscription.filter for subscription in subscriptions), now)
