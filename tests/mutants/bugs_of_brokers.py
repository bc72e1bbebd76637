"""Planted bugs in the broker's roles: publishing, relaying, subscribing, holding, durable names, routing."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.mutants.planting import Planter, mutant

from postroad.core.broker import machine as broker_module
from postroad.core.broker.holding.keeper import HoldKeeper
from postroad.core.broker.holding.release import Releasing
from postroad.core.broker.holding.table import HoldTable
from postroad.core.broker.knowledge import COMPLETE, KnowledgeRange
from postroad.core.broker.publishing.pubend import Pubend
from postroad.core.broker.publishing.publishers import Publishing
from postroad.core.broker.relaying import stream as stream_module
from postroad.core.broker.relaying.cache import StreamCache
from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.durable_moves import DurableMoves
from postroad.core.broker.subscribing.edge import FOREVER, Edge
from postroad.core.protocol.orders import ReleaseLog
from postroad.types import COUNTER_BITS

SECOND = 1000 << COUNTER_BITS

# --- publishing


@mutant("publishing")
def acknowledge_before_the_disk(plant: Planter) -> None:
    """A message is acknowledged when it is taken, not when it is durable."""

    def make(wait: Any) -> Any:
        def early(self: Pubend, waiting: Any, entry: Any, count: int) -> None:
            wait(self, waiting, entry, count)
            if entry.link is not None:
                durable, entry.durable = entry.durable, entry.accepted
                self._acknowledge(waiting.publisher, entry, entry.link)
                entry.durable = durable

        return early

    plant.wrap(Pubend, "_wait", make)


@mutant("publishing")
def take_what_was_taken(plant: Planter) -> None:
    """A publisher that opens again is not recognised: what it sends again is taken again."""

    def make(open_: Any) -> Any:
        def forgetful(self: Pubend, publisher: int, link: int) -> Any:
            self._publishers.pop(publisher, None)
            return open_(self, publisher, link)

        return forgetful

    plant.wrap(Pubend, "open", make)


@mutant("publishing", "admission control", "client slow", "broker crash")
def take_what_follows_a_refusal(plant: Planter) -> None:
    """What follows a refused message is taken before its publisher has read the refusal."""
    plant.set(Publishing, "refused", lambda _self, _publisher: False)


@mutant("publishing")
def announce_all_but_the_last_batch(plant: Planter) -> None:
    """The last batch of a group commit becomes durable but is announced as silence."""

    def make(appended: Any) -> Any:
        def short(self: Publishing, pubend: int, token: int) -> list[KnowledgeRange]:
            *segments, last = appended(self, pubend, token)
            rows = last.rows.slice(0, len(last.rows) - 1) if len(last.rows) > 1 else None
            return [*segments, KnowledgeRange(last.lo, last.hi, last.label, rows)]

        return short

    plant.wrap(Publishing, "appended", make)


@mutant("publishing")
def silence_overtakes_a_write(plant: Planter) -> None:
    """Silence up to the clock is announced though rows below it are being written."""

    def make(silence: Any) -> Any:
        def hasty(self: Pubend, wall_ms: int) -> Any:
            writing, self._in_flight = self._in_flight, None
            before = self.horizon
            try:
                return silence(self, wall_ms)
            finally:
                self._in_flight = writing
                self.horizon = before if writing is not None else self.horizon

        return hasty

    plant.wrap(Pubend, "silence", make)


@mutant("publishing")
def refuse_without_a_word(plant: Planter) -> None:
    """A frame outside the skew tolerance is dropped and its publisher hears nothing."""

    def make(is_timely: Any) -> Any:
        def silent(self: Publishing, link: int, *rest: Any) -> bool:
            before = len(self._context.orders)
            timely = bool(is_timely(self, link, *rest))
            del self._context.orders[before:]
            return timely

        return silent

    plant.wrap(Publishing, "_is_timely", make)


@mutant("publishing")
def reuse_publisher_ids(plant: Planter) -> None:
    """After a restart a broker gives out publisher ids that it gave out before."""

    def make(init: Any) -> Any:
        def forgetful(self: Publishing, parts: Any, publisher_next: int) -> None:
            init(self, parts, publisher_next)
            self._next = min(publisher_next, 1)

        return forgetful

    plant.wrap(Publishing, "__init__", make)


# --- relaying


@mutant("relaying")
def forward_all_but_the_last_row(plant: Planter) -> None:
    """Of several rows that match, a child is sent all but the last."""

    def make(selected: Any) -> Any:
        def short(rows: Any, indices: Any) -> Any:
            found = selected(rows, indices)
            return found.slice(0, len(found) - 1) if found is not None and len(found) > 1 else found

        return short

    plant.wrap(stream_module, "_select", make)


@mutant("relaying")
def match_one_filter_per_child(plant: Planter) -> None:
    """Rows for a child are matched with one of its filters only."""

    def make(match: Any) -> Any:
        def one(self: Stream, rows: Any) -> Any:
            first: dict[int, Any] = {}
            if rows is None or not self._children:
                return match(self, rows)
            for (link, _), indices in self._index.match(rows).items():
                first.setdefault(link, indices)
            return first

        return one

    plant.wrap(Stream, "_match", make)


@mutant("relaying")
def answer_an_interest_at_once(plant: Planter) -> None:
    """A relay tells a child that its interest is active before its own parent has said so, and lets older silence do for it."""

    def make(is_active: Any) -> Any:
        def hasty(self: Stream, child: Any, change: Any) -> bool:
            if not is_active(self, child, change):
                change.label = child.included_in
            return True

        return hasty

    plant.wrap(Stream, "_is_active", make)


@mutant("relaying")
def take_any_silence_for_a_child(plant: Planter) -> None:
    """A relay passes on silence to a child whatever interest it was asked under."""
    plant.set(Stream, "_suffices", lambda _self, _label, _child: True)


@mutant("relaying")
def take_any_silence_for_a_catch_up(plant: Planter) -> None:
    """A cache answers a catch-up from stretches that were asked for with another filter."""
    plant.set(Stream, "_complete_from", lambda _self, _wanted: 0)


@mutant("relaying")
def take_a_hole_for_silence(plant: Planter) -> None:
    """Reading a cache joins what lies before a hole with what lies behind it."""

    def make(read: Any) -> Any:
        def joined(self: StreamCache, lo: int, hi: int) -> Any:
            position = None
            for part in read(self, lo, hi):
                yield part if position is None else KnowledgeRange(position, part.hi, part.label, part.rows)
                position = part.hi

        return joined

    plant.wrap(StreamCache, "read", make)


@mutant("relaying")
def keep_the_old_interest_at_a_new_parent(plant: Planter) -> None:
    """A stream whose parent changes does not ask the new one for anything."""

    def make(set_parent: Any) -> Any:
        def quiet(self: Stream, link: Any, now: float) -> None:
            if link is not None and self.parent is not None and link != self.parent:
                self.parent = link
                return
            set_parent(self, link, now)

        return quiet

    plant.wrap(Stream, "set_parent", make)


@mutant("relaying")
def keep_silence_to_oneself(plant: Planter) -> None:
    """A relay tells its children what matches, and never that nothing came since."""
    plant.set(Stream, "flush", lambda _self, _now: None)


# --- subscribing


@mutant("subscribing")
def start_a_second_late(plant: Planter) -> None:
    """A subscription begins a second after the tick at which its interest was active."""

    def make(activate: Any) -> Any:
        def late(self: Edge, subscription: Any, pubend: int, tick: int) -> None:
            activate(self, subscription, pubend, tick + (0 if subscription.earliest else SECOND))

        return late

    plant.wrap(Edge, "activate", make)


@mutant("subscribing")
def join_before_having_caught_up(plant: Planter) -> None:
    """A subscription that catches up joins the live ones after its first piece."""
    plant.set(Edge, "target", lambda _self, progress, _pubend: progress.position)


@mutant("subscribing")
def give_up_a_gap_without_catching_up(plant: Planter) -> None:
    """A gap that does not close is skipped: nobody catches up."""

    def go_on(self: Edge, pubend: int) -> None:
        edge = self.streams[pubend]
        edge.delivered = edge.stream.cache.frontier
        edge.nack_at, edge.nack_tries = float("inf"), 0

    plant.set(Edge, "_go_on_at_frontier", go_on)


@mutant("subscribing")
def ignore_congestion(plant: Planter) -> None:
    """Rows are sent to a client whose connection is full."""
    plant.set(Edge, "congested", lambda _self, _link: None)


@mutant("subscribing", "reader slow")
def ignore_flow(plant: Planter) -> None:
    """Rows are sent to a subscription whose application asked for none."""
    plant.set(Edge, "flow", lambda _self, _subscription, **_how: None)


@mutant("subscribing")
def tell_no_gap(plant: Planter) -> None:
    """What was released before a subscription got it is skipped without a word."""

    def make(tell: Any) -> Any:
        def silent(self: Edge, subscription: Any, pubend: int, lo: int, hi: int) -> None:
            before = len(self._orders)
            tell(self, subscription, pubend, lo, hi)
            del self._orders[before:]

        return silent

    plant.wrap(Edge, "_tell_gap", make)


@mutant("subscribing")
def tell_gaps_too_wide(plant: Planter) -> None:
    """A gap is told a second beyond what was released."""

    def make(gap: Any) -> Any:
        def wide(self: Edge, subscription: Any, pubend: int, tick: int) -> None:
            if tick > subscription.progress[pubend].position:
                gap(self, subscription, pubend, tick + SECOND)

        return wide

    plant.wrap(Edge, "gap", make)


@mutant("subscribing")
def tell_a_gap_for_every_catch_up(plant: Planter) -> None:
    """The stretch that a subscription catches up with is told to be gone."""

    def make(caught_up: Any) -> Any:
        def gone(self: Edge, subscription: Any, pubend: int, hi: int, rows: Any) -> None:
            if hi > subscription.progress[pubend].position and not rows:
                self.gap(subscription, pubend, hi)
            caught_up(self, subscription, pubend, hi, rows)

        return gone

    plant.wrap(Edge, "caught_up", make)


@mutant("subscribing")
def tell_clients_the_frontier(plant: Planter) -> None:
    """Clients without data are told how far the stream is known, not how far it was delivered."""

    def make(reached: Any) -> Any:
        def far(self: Edge, progress: Any, pubend: int) -> int:
            known = int(reached(self, progress, pubend))
            return max(known, self.streams[pubend].stream.cache.frontier) if known > progress.position else known

        return far

    plant.wrap(Edge, "reached", make)


@mutant("subscribing")
def tell_clients_no_positions(plant: Planter) -> None:
    """Clients are not told how far a stream is where nothing in it matches."""
    plant.set(Edge, "tell_positions", lambda self: self._telling.clear())


@mutant("subscribing")
def answer_without_a_hold(plant: Planter) -> None:
    """A subscription is reported active before the pubends' brokers confirmed that they hold the logs."""
    plant.set(HoldKeeper, "is_confirmed", lambda _self, _broker, _version: True)
    plant.set(HoldKeeper, "released", lambda _self, _pubend: 0)


# --- holding


@mutant("holding")
def hold_what_was_delivered(plant: Planter) -> None:
    """Live subscriptions hold the log from what was delivered, not from what was acknowledged."""

    def delivered(self: Edge) -> dict[int, int]:
        holds: dict[int, int] = {}
        for subscription in self.subscriptions.values():
            for pubend, progress in subscription.progress.items():
                holds[pubend] = min(holds.get(pubend, FOREVER), max(progress.position, progress.acknowledged))
        return holds

    plant.set(Edge, "holds", delivered)


@mutant("holding")
def hold_nothing_for_live_subscriptions(plant: Planter) -> None:
    """Only durable subscriptions hold logs."""
    plant.set(Edge, "holds", lambda _self: {})
    plant.set(HoldKeeper, "keep_until", lambda _self, _expiry, _positions: None)


@mutant("holding", "client cut", "client crash")
def hold_nothing_for_those_who_may_return(plant: Planter) -> None:
    """The grace of a client that lost its connection is not observed."""
    plant.set(HoldKeeper, "keep_until", lambda _self, _expiry, _positions: None)


@mutant("holding", "broker crash")
def forget_the_floor(plant: Planter) -> None:
    """After a restart a broker does not hold what its former life held."""

    def make(init: Any) -> Any:
        def bare(self: HoldKeeper, incarnation: int, floor: Any, grace_until: float) -> None:
            del floor
            init(self, incarnation, {}, grace_until)

        return bare

    plant.wrap(HoldKeeper, "__init__", make)


@mutant("holding")
def release_to_the_highest_hold(plant: Planter) -> None:
    """A log is released up to the highest of the holds on it."""

    def highest(self: HoldTable, pubend: int) -> int | None:
        return max((r.ticks[pubend] for r in self._records.values() if pubend in r.ticks), default=None)

    plant.set(HoldTable, "lowest", highest)


@mutant("holding", "broker crash", "link outage")
def forget_holds_at_a_restart(plant: Planter) -> None:
    """Holds are not read back when a broker starts."""
    plant.set(HoldTable, "load", lambda _self, _key, _value: None)


@mutant("holding")
def never_raise_a_hold(plant: Planter) -> None:
    """A broker tells the first hold on a pubend and never that it needs less."""

    def make(to_send: Any) -> Any:
        def stubborn(self: HoldKeeper, broker: int, ticks: Any, **how: Any) -> Any:
            sent = self._sent.get(broker)
            if sent and all(ticks.get(pubend, tick) >= tick for pubend, tick in sent.items()) and sent.keys() >= ticks.keys():
                return None
            return to_send(self, broker, ticks, **how)

        return stubborn

    plant.wrap(HoldKeeper, "to_send", make)


@mutant("holding")
def release_more_than_is_free(plant: Planter) -> None:
    """A release reaches two seconds beyond the lowest hold."""

    def make(release: Any) -> Any:
        def greedy(self: Releasing, now: float) -> None:
            release(self, now)
            orders = self._context.orders
            for index, order in enumerate(orders):
                if isinstance(order, ReleaseLog):
                    orders[index] = ReleaseLog(order.pubend, order.tick + 2 * SECOND)

        return greedy

    plant.wrap(Releasing, "release", make)


@mutant("holding")
def say_nothing_after_a_restart(plant: Planter) -> None:
    """A broker that needs nothing any more after a restart does not tell those who hold logs for its former life."""

    def make(to_send: Any) -> Any:
        def quiet(self: HoldKeeper, broker: int, ticks: Any, **how: Any) -> Any:
            return None if not ticks and broker not in self._sent else to_send(self, broker, ticks, **how)

        return quiet

    plant.wrap(HoldKeeper, "to_send", make)


# --- durable names


@mutant("durable names")
def forget_acknowledgements(plant: Planter) -> None:
    """What a durable subscription acknowledges is not remembered."""
    plant.set(Durables, "moved_on", lambda _self, _name, _cursors: None)


@mutant("durable names")
def keep_cursors_in_memory_only(plant: Planter) -> None:
    """Acknowledged positions are taken for stored and never written."""

    def make(changes: Any) -> Any:
        def unstored(self: Durables) -> Any:
            for name in [each for each in self._dirty if each in self.here and self.here[each].stored]:
                del self._dirty[name]
            return changes(self)

        return unstored

    plant.wrap(Durables, "changes", make)


@mutant("durable names")
def let_go_before_the_new_home_holds(plant: Planter) -> None:
    """The former home drops a durable subscription as soon as it answers where it is."""

    def make(home_asked: Any) -> Any:
        def hasty(self: DurableMoves, query: Any) -> None:
            home_asked(self, query)
            durable = self._durables.here.get(query.name)
            if durable is not None and durable.subscription is None:
                self._durables.give_up(query.name)

        return hasty

    plant.wrap(DurableMoves, "home_asked", make)


@mutant("durable names")
def never_let_go(plant: Planter) -> None:
    """The former home of a durable subscription keeps it, and holds the logs for it."""

    def make(learn: Any) -> Any:
        def clinging(self: Durables, home: Any) -> Any:
            kept = self.here.get(home.name)
            news, gone = learn(self, home)
            if kept is not None and home.name not in self.here:
                self.here[home.name] = kept
                self._dirty.pop(home.name, None)
            return news, gone

        return clinging

    plant.wrap(Durables, "learn", make)


@mutant("durable names")
def resume_at_the_frontier(plant: Planter) -> None:
    """A durable subscription that comes back begins where the streams are now."""

    def make(positions: Any) -> Any:
        def ahead(self: Durables, cursors: Any, brought: Any) -> Any:
            return {pubend: tick + SECOND // 4 for pubend, tick in positions(self, cursors, brought).items()}

        return ahead

    plant.wrap(Durables, "positions", make)


@mutant("durable names")
def forget_only_here(plant: Planter) -> None:
    """A broker that deletes a durable subscription tells nobody and remembers nothing of it: others go on to know it."""

    def make(forget: Any) -> Any:
        def local(self: Durables, name: str) -> Any:
            home = forget(self, name)
            del self.homes[name], self._dirty_homes[name]
            return msgspec.structs.replace(home, version=0)

        return local

    plant.wrap(Durables, "forget", make)


@mutant("durable names", "client crash", "client move")
def move_without_the_cursors(plant: Planter) -> None:
    """A move forgets what the former home said when the client brought no positions."""

    def make(begin_move: Any) -> Any:
        def fresh(self: DurableMoves, move: Any, reply: Any, now: float) -> None:
            begin_move(self, move, reply if move.positions else None, now)

        return fresh

    plant.wrap(DurableMoves, "_begin_move", make)


# --- routing


@mutant("routing")
def flood_one_hop_only(plant: Planter) -> None:
    """A link-state record is not passed on."""

    def make(receive: Any) -> Any:
        def silent(self: LinkStateRouter, record: Any, link: int) -> bool:
            before = len(self._orders)
            news = bool(receive(self, record, link))
            del self._orders[before:]
            return news

        return silent

    plant.wrap(LinkStateRouter, "receive", make)


@mutant("routing")
def tell_a_new_neighbour_nothing(plant: Planter) -> None:
    """A new neighbour is not sent the records of others."""

    def make(link_up: Any) -> Any:
        def silent(self: LinkStateRouter, link: int, broker: int, cost: int) -> None:
            before = len(self._orders)
            link_up(self, link, broker, cost)
            del self._orders[before + len(self._neighbours) :]

        return silent

    plant.wrap(LinkStateRouter, "link_up", make)


@mutant("routing")
def choose_any_neighbour_as_parent(plant: Planter) -> None:
    """The parent of a stream is any neighbour, not one that is nearer to its broker."""

    def make(parent: Any) -> Any:
        def any_way(self: LinkStateRouter, pubend: int) -> Any:
            chosen = parent(self, pubend)
            return None if chosen is None else self._neighbours[min(self._neighbours)].link

        return any_way

    plant.wrap(LinkStateRouter, "parent", make)


@mutant("routing")
def compare_sequences_only(plant: Planter) -> None:
    """A record of a restarted broker counts as old until its sequence number has caught up."""

    def make(receive: Any) -> Any:
        def stale(self: LinkStateRouter, record: Any, link: int) -> bool:
            known = self._records.get(record.origin)
            if known is not None and record.sequence <= known.sequence:
                return False
            return bool(receive(self, record, link))

        return stale

    plant.wrap(LinkStateRouter, "receive", make)


@mutant("routing", "link removal")
def keep_a_lost_neighbour(plant: Planter) -> None:
    """A neighbour whose link is lost stays in the routing table."""
    plant.set(LinkStateRouter, "link_lost", lambda _self, _link: None)


@mutant("routing")
def send_questions_into_the_void(plant: Planter) -> None:
    """A broker passes on what is meant for others only one hop."""

    def make(unicast: Any) -> Any:
        def dropping(self: Any, message: Any, link: int, batch: Any, now: float) -> None:
            if message.target == self._context.broker:
                unicast(self, message, link, batch, now)

        return dropping

    plant.wrap(broker_module.Broker, "_unicast", make)


@mutant("relaying")
def claim_silence_for_a_nack(plant: Planter) -> None:
    """A NACK is answered with silence where the cache does not know better."""

    def make(nack: Any) -> Any:
        def careless(self: Stream, link: int, asked: Any, now: float) -> Any:
            child = self._children.get(link)
            if child is not None and child.epoch and not self.hosted_here:
                for lo, hi in asked.ranges:
                    held = [(part.lo, part.hi) for part in self.cache.read(lo, hi)]
                    if not held:
                        self._send_part(child, KnowledgeRange(lo, hi, COMPLETE, None))
            return nack(self, link, asked, now)

        return careless

    plant.wrap(Stream, "nack", make)
