"""One broker as a pure machine: where the mechanisms meet.

Facts and packets come in, orders go out; see `orders.py` for both. Nothing is decided here: each input goes to the part it
concerns, and what one part learned is carried to the others. `docs/internals/overlay.md` tells how the parts make one system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import FULL_HOPS, BrokerConfig, Parts
from postroad.core.broker.former_lives import Recovery
from postroad.core.broker.holding.holds import HoldKeeper
from postroad.core.broker.holding.release import Releasing
from postroad.core.broker.own_records import UNREADABLE, OwnRecords, load_records
from postroad.core.broker.publishing.named_writers import WRITER_KEY, Writing
from postroad.core.broker.publishing.pubend import RESERVE_MS, Pubend
from postroad.core.broker.publishing.publishers import Publishing
from postroad.core.broker.relaying.cache import COMPLETE, Segment
from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.subscribing.edge import CATCH_UP_BYTES, Edge
from postroad.core.broker.subscribing.range_reads import OF_A_READ, Reading, bare
from postroad.core.broker.subscribing.subscribing import Subscribing, pieces
from postroad.core.broker.trust import believable, check, latest_tick
from postroad.core.protocol import packets as p
from postroad.core.protocol.orders import (
    Appended,
    AppendFailed,
    BrokerState,
    ClientUp,
    Congested,
    Drained,
    Fact,
    LinkId,
    LinkLost,
    LinkUp,
    LogRead,
    LogReadFailed,
    LogReleased,
    Order,
    ReadLog,
    Send,
    Stored,
    Track,
    Tracked,
    TracksSearched,
)
from postroad.core.tracing import Tracing
from postroad.core.tracking.notes import Notes, link_brokers
from postroad.core.tracking.settings import Strategy, TrackingSettings
from postroad.errors import ImplausibleError, PostroadError, TooManyError, WrongRoleError
from postroad.types import COUNTER_BITS

FAST_S: Final = 0.05  # how often gaps and catch-ups are looked at while there are any
TELLING_PERIODS: Final = 5  # of silence, in which every client is told its positions once
NOTES_S: Final = 0.5  # after which notes are ordered to be tracked,
NOTES_BYTES: Final = 16 << 10  # or when they are so many, at the next look: some hundred messages, a fraction of a millisecond;
NOTES_BYTES_MAX: Final = 1 << 20  # or so many, at once
MEMBERSHIP_S: Final = 1.0  # after which a new attachment is on disk
READS_MAX: Final = 1024
STREAMS_MAX: Final = 1 << 16
PARKED_MAX: Final = 4096
ReadDone = Callable[[LogRead, float], None]


class Broker:
    """The machine of one broker. `clock` before events, `outputs` after them."""

    def __init__(self, state: BrokerState, config: BrokerConfig, *, now: float = 0.0) -> None:
        self._orders: list[Order] = []
        self._config = config
        self._reads: dict[int, ReadDone] = {}
        self._slow_at = now
        self._fast_at = now
        self._track_at = now + config.tracking.persistence_ms / 1000
        self._links_changed = True  # since the tracker was told
        self._notes_since = now  # when notes were ordered last
        self._notes_at = float("inf")  # when they are to be ordered next
        self._notes_due = False
        self._flush_tracks = False
        self._farewell = False
        records = load_records(state)
        self._parts = self._build_parts(state, records, now)
        self._recovery = Recovery(self._parts, records.lives, now)
        self._publishing = Publishing(self._parts, records.publisher_next)
        self._releasing = Releasing(self._parts, records.floor)
        self._subscribing = Subscribing(self._parts, self._releasing, self._read_past)
        self._subscribing.naming.load(records.reservations)
        self._reading = Reading(self._parts, self._read)
        self._writing = Writing(self._parts, self._publishing)
        self._load_writers(records)
        self._unknown_horizons = [pubend for pubend in records.unknown_horizons if pubend in self._parts.pubends]
        self._forget_unreadable = UNREADABLE in state.damaged
        self._orders.extend(records.notices())
        self._damaged = len(records.damaged)
        self._tracing = Tracing(self._parts, self._read)
        self._parked: list[tuple[LinkId, p.Subscribe, int]] = []  # while a former life may be heard of

    def _build_parts(self, state: BrokerState, records: OwnRecords, now: float) -> Parts:
        orders = self._orders
        table, horizons = records.table, records.horizons
        records.durables.drop_unsettled()
        for broker in self._config.retired:
            table.retire(broker)
        ids = tuple(sorted(s.pubend for s in state.pubends))
        notes = _notes(self._config.tracking)
        keeper = HoldKeeper(state.incarnation, records.floor_for_grace, now + self._config.subscriber_grace_s)
        return Parts(
            broker=state.broker,
            incarnation=state.incarnation,
            config=self._config,
            orders=orders,
            router=LinkStateRouter(state.broker, state.incarnation, ids, orders),
            pubends={s.pubend: Pubend(s, horizons.get(s.pubend, 0), orders) for s in state.pubends},
            edge=Edge(orders, notes),
            table=table,
            keeper=keeper,
            durables=records.durables,
            notes=notes,
            losses=records.losses,
            known={broker: pubends for broker, pubends in records.known.items() if broker not in self._config.retired},
        )

    def _load_writers(self, records: OwnRecords) -> None:
        for key, value in records.writers.items():
            try:
                self._writing.load(key, value)
            except msgspec.MsgspecError:
                records.damaged.append(key)
        for key in records.damaged:
            if key.startswith(WRITER_KEY):
                self._writing.load_damaged(key.removeprefix(WRITER_KEY))

    # --- the contract ---

    def clock(self, wall_ms: int) -> None:
        """Set the wall clock; it may step back."""
        self._parts.wall_ms = wall_ms
        if not self._parts.router.started_ms:
            self._parts.router.started_ms = wall_ms
            if not self._config.newcomer_wait_s:
                self._recovery.wake(self._slow_at)
        for pubend in self._parts.pubends.values():
            pubend.wall_ms = wall_ms
        if self._unknown_horizons:
            self._restart_above(wall_ms)
        if self._parts.notes is not None:
            self._parts.notes.wall_ms = wall_ms

    def _restart_above(self, wall_ms: int) -> None:
        """Go on above everything a pubend whose horizon is damaged can have announced."""
        for pubend_id in self._unknown_horizons:
            pubend = self._parts.pubends[pubend_id]
            pubend.restart_above(wall_ms + RESERVE_MS << COUNTER_BITS)
            self._parts.ensure_stream(pubend_id).active_tick = pubend.horizon
        self._unknown_horizons = []

    def fact(self, fact: Fact, *, now: float) -> None:
        match fact:
            case Appended(pubend, token):
                for segment in self._publishing.appended(pubend, token):
                    if self._parts.notes is not None and segment.rows is not None:
                        self._parts.notes.published(pubend, segment.rows)
                    self._learned(pubend, segment, now)
                    if segment.rows is not None:
                        segment.rows.forget()
            case AppendFailed(pubend, token, error):
                self._publishing.append_failed(pubend, token, error)
            case Stored(token):
                for then in self._parts.on_stored.pop(token, ()):
                    then(now)
                self._subscribing.answer_ready(now)
                self._take_begun(now)
            case LogRead():
                done = self._reads.pop(fact.token, None)
                if done is not None:
                    done(fact, now)
            case LogReadFailed(token=token):
                self._reads.pop(token, None)  # whoever wants it asks again
            case LogReleased(pubend, tick):
                self._log_released(pubend, tick)
            case LinkUp(link, broker, _, cost):
                self._link_up(link, broker, cost, now)
            case ClientUp(link, name):
                self._parts.clients[link] = name
            case LinkLost(link):
                self._link_lost(link, now)
            case Congested(link):
                self._parts.edge.congested(link)
            case Drained(link):
                self._parts.edge.drained(link)
                for pubend in self._parts.streams:
                    self._subscribing.catch_up(pubend, now)
            case Tracked():
                self._tracked(fact)
            case TracksSearched(token, found):
                self._tracing.searched(token, found)

    def receive(self, message: p.Packet, *, link: LinkId, now: float, batch: Batch | None = None, packet: int = 0) -> None:
        """Take a packet; a fault of the peer becomes an error packet, never an exception."""
        try:
            if link in self._parts.clients:
                self._from_client(message, link, batch, packet, now)
            elif link in self._parts.brokers:
                self._from_broker(message, link, batch, now)
        except PostroadError as error:
            self._parts.refuse(link, packet, error)

    def wake(self, *, now: float) -> None:
        fast = now >= self._fast_at
        if fast:
            self._fast_at = now + FAST_S
            for pubend in self._parts.streams:
                self._parts.edge.curious(pubend, now)
                self._subscribing.catch_up(pubend, now)
            self._subscribing.wake(now)
            self._reading.wake(now)
            self._writing.wake()
            self._tracing.expire(now)
            self._parts.edge.tell_positions()
        self._recovery.wake(now)
        if now >= self._slow_at:
            self._slow_at = now + self._config.silence_s
            self._housekeeping(now)
        if self._parts.notes is not None:
            self._look_at_notes(self._parts.notes, now, fast=fast)
        if now >= self._track_at:
            self._track_at = now + self._config.tracking.persistence_ms / 1000
            self._flush_tracks = True

    def _look_at_notes(self, notes: Notes, now: float, *, fast: bool) -> None:
        """Let notes be ordered in a turn of their own: the slowest messages are those of the fast turns as it is."""
        if now >= self._notes_at + (FAST_S / 4 if fast else 0.0):  # a broker that is so late has no better time for it
            self._notes_since = now
            self._notes_due = True
        elif fast and self._notes_at > now:
            due = notes.size >= NOTES_BYTES or (notes.any and now >= self._notes_since + NOTES_S)
            self._notes_at = now + FAST_S / 2 if due else float("inf")
        if notes.membership_changed:  # who is attached is known after a crash, too (section 3.2)
            notes.membership_changed = False
            self._track_at = min(self._track_at, now + MEMBERSHIP_S)

    def deadline(self) -> float | None:
        return min(self._slow_at, self._fast_at, self._notes_at)  # the fast one is never much later than the tracker's

    def order_notes(self) -> None:
        """Let the next outputs order all that was noted to be tracked; by itself that happens within `NOTES_S`, about."""
        self._notes_due = True

    def farewell(self) -> None:
        """Let the next outputs end the tracks of this incarnation; nothing may happen after them."""
        self._flush_tracks = self._farewell = True

    def outputs(self) -> list[Order]:
        """Take the orders; what was published since the last time goes into one append."""
        self._publishing.commit()
        notes = self._parts.notes
        if notes is not None:
            if notes.per_neighbour:
                self._note_forwarded(notes)
            if self._flush_tracks or self._notes_due or notes.size > NOTES_BYTES_MAX or self._tracing.searching:
                self._track(notes)
        self._orders.extend(self._tracing.take_orders())
        taken = list(self._orders)
        self._orders.clear()
        return taken

    @property
    def orders_waiting(self) -> int:
        """Orders that the next `outputs` returns, about."""
        return len(self._orders)

    def stats(self) -> dict[str, int]:
        parts = self._parts
        return {
            "subscriptions": len(parts.edge.subscriptions),
            "links": len(parts.brokers),
            "clients": len(parts.clients),
            "holders": len(parts.table),
            "damaged_records": self._damaged,
            "backlog_rows": self._publishing.backlog_rows,
            "publish_backlog_bytes": self._publishing.backlog_bytes,
            "cache_bytes": sum(stream.cache.size for stream in parts.streams.values()),
            "reads": len(self._reads),
            "clients_reads": len(self._reading),
            "writers": len(self._writing),
            "traces": self._tracing.waiting,
            "disbelieved": parts.disbelieved,
        }

    @property
    def backlog_rows(self) -> int:
        return self._publishing.backlog_rows

    @property
    def backlog_bytes(self) -> int:
        return self._publishing.backlog_bytes

    def streams(self) -> dict[int, dict[str, int]]:
        """Return for each pubend how far its stream is known and delivered here."""
        return {
            pubend: {**stream.stats(), "frontier": stream.cache.frontier, "delivered": self._parts.edge_stream(pubend).delivered}
            for pubend, stream in self._parts.streams.items()
        }

    # --- packets ---

    def _from_client(self, message: p.Packet, link: LinkId, batch: Batch | None, packet: int, now: float) -> None:
        match message:
            case p.Publish():
                self._publishing.publish(link, message)
            case p.PublishColumns():
                self._publishing.publish_columns(link, message, batch)
            case p.OpenPublisher():
                self._publishing.open(link, message, packet)
            case p.Subscribe():
                self._subscribe(link, message, packet, now)
            case p.Acknowledge():
                self._subscribing.acknowledge(link, message)
            case p.Flow():
                self._subscribing.flow(link, message, now)
            case p.Unsubscribe():
                self._subscribing.unsubscribe(link, message, packet, now)
            case p.ReadRange():
                self._reading.read(link, message, packet, now)
            case p.ListPubends():
                self._reading.list_pubends(link, message, packet, now)
            case p.OpenEpoch():
                self._writing.open(link, message, packet)
            case p.SealEpoch():
                self._writing.seal(link, message, packet)
            case p.AskTracks():
                self._tracing.ask(link, message, packet, now)
            case _:
                raise WrongRoleError(f"a client may not send {type(message).__name__}")

    def _subscribe(self, link: LinkId, message: p.Subscribe, packet: int, now: float) -> None:
        """Take a subscription; it waits while nobody has told us yet what we once were, and what it had from us then."""
        if not self._recovery.waits:
            self._subscribing.subscribe(link, message, packet, now)
        elif len(self._parked) < PARKED_MAX:
            self._parked.append((link, message, packet))
        else:
            raise TooManyError(f"this broker has just started and lets at most {PARKED_MAX} subscriptions wait")

    def _take_begun(self, now: float) -> None:
        """Go on with what waited for the first ticks of our pubends."""
        begun = self._recovery.take_begun()
        if not begun:
            return
        for pubend in begun:
            self._subscribing.check_waiting(pubend, now)
        if self._recovery.waits:
            return
        self._publishing.begin(anew_ms=self._recovery.anew_ms)
        if self._parked:
            parked, self._parked = self._parked, []
            for link, message, packet in parked:
                self.receive(message, link=link, now=now, packet=packet)

    def _from_broker(self, message: p.Packet, link: LinkId, batch: Batch | None, now: float) -> None:
        if not self._believe(message, link, batch):
            self._parts.disbelieved += 1
            return
        match message:
            case p.Knowledge():
                segment = Segment(message.lo, message.hi, message.epoch, batch)
                self._learned(message.pubend, segment, now, upstream=self._parts.brokers[link])
            case p.Nack():
                self._nacked(link, message, now)
            case p.Interest():
                self._child_stream(message.pubend).child_interest(link, message, self._parts.filter, now)
                self._subscribing.check_waiting(message.pubend, now)
            case p.InterestActive():
                stream = self._parts.streams[message.pubend]
                if stream.interest_active(link, message.epoch, message.tick, now):
                    self._subscribing.check_waiting(message.pubend, now, message.tick)
                    self._parts.edge.advance(message.pubend, now)
            case p.Released():
                self._released(message, link)
            case p.LinkState():
                self._link_state(message, link, now)
            case p.DurableHome():
                self._subscribing.home_learned(message, link, now)
            case p.Unicast():
                self._unicast(message, link, batch, now)
            case _:
                raise WrongRoleError(f"a broker may not send {type(message).__name__}")

    def _believe(self, message: p.Packet, link: LinkId, batch: Batch | None) -> bool:
        """Tell whether a packet of a neighbour may be acted on; raise when it cannot be so.

        Knowledge counts from the stream's parent only: late word of a former parent is asked for again.
        """
        try:
            check(message, batch)
        except ImplausibleError:
            if isinstance(message, p.Unicast) and message.source != self._parts.brokers[link]:
                return False  # it is not the neighbour's fault, who passed it on
            raise
        latest = latest_tick(self._parts.wall_ms)
        match message:
            case p.Knowledge():
                return self._is_parent(message.pubend, link) and message.hi <= latest
            case p.InterestActive() | p.Released():
                return self._is_parent(message.pubend, link) and message.tick <= latest
            case p.CatchUpReply():
                return message.hi <= latest and message.released <= latest
            case _:
                return True

    def _is_parent(self, pubend: int, link: LinkId) -> bool:
        stream = self._parts.streams.get(pubend)
        return stream is not None and not stream.hosted_here and stream.parent == link

    def _child_stream(self, pubend: int) -> Stream:
        """Return the stream a neighbour asks for. Word of its broker may still be on its way to us."""
        if pubend not in self._parts.streams and len(self._parts.streams) >= STREAMS_MAX:
            raise TooManyError(f"this broker follows at most {STREAMS_MAX} pubends")
        return self._parts.ensure_stream(pubend)

    def _link_state(self, record: p.LinkState, link: LinkId, now: float) -> None:
        if record.origin == self._parts.broker:
            self._recovery.heard_of_self(record)
            return
        life = self._parts.router.life(record.origin)
        if self._parts.router.receive(record, link):
            self._parts.get_to_know(record.origin, record.pubends)
            if self._parts.router.life(record.origin) != life:
                self._recovery.remember_life(record.origin, self._parts.router.life(record.origin))
                self._parts.keeper.tell_again(record.origin)
            self._routes_changed(now)

    def _unicast(self, message: p.Unicast, link: LinkId, batch: Batch | None, now: float) -> None:
        if isinstance(message, p.CatchUp) and self._answer_catch_up(message, link):
            return
        if message.target != self._parts.broker:
            onward = self._parts.router.route(message.target)
            if onward is not None and onward != link and message.hops > 0:
                passed = msgspec.structs.replace(message, hops=message.hops - 1)
                self._orders.append(Send(onward, passed, batch, data=batch is not None or isinstance(message, p.TrackReply)))
                self._note_past(message, link, batch, onward)
            return
        self._note_past(message, link, batch, None)
        match message:
            case p.Hold():
                self._releasing.take(message)
            case p.Remembered():
                self._recovery.told(message, now)
            case p.HoldConfirmed() if message.refused:
                self._recovery.hold_refused(message)
            case p.HoldConfirmed():
                self._releasing.confirmed(message)
                self._subscribing.answer_ready(now)
            case p.CatchUpReply() if message.request >= OF_A_READ:
                self._reading.caught_up(message, batch, now)
            case p.CatchUpReply():
                self._subscribing.caught_up(message, batch, now)
            case p.PubendsQuery():
                self._reading.asked(message)
            case p.PubendsReply():
                self._reading.told(message)
                self._subscribing.horizons_told(message, now)
            case p.HomeQuery():
                self._subscribing.home_asked(message)
            case p.NameReserve():
                self._subscribing.naming.reserve(message, now)
            case p.NameAnswer():
                self._subscribing.naming.answered(message, now)
            case p.NameRelease():
                self._subscribing.naming.released(message)
            case p.HomeReply():
                cursors = believable(message.cursors, self._parts.wall_ms)
                self._subscribing.home_answered(msgspec.structs.replace(message, cursors=cursors), now)
            case p.TrackQuery():
                self._tracing.asked(message)
            case p.TrackReply():
                self._tracing.replied(message)
            case _:
                pass  # a catch-up for a pubend that is not here any more: it is asked again

    # --- streams ---

    def _learned(self, pubend: int, segment: Segment, now: float, *, upstream: int = 0) -> None:
        stream = self._parts.ensure_stream(pubend)
        frontier = stream.cache.frontier
        notes = self._parts.notes
        if notes is None or segment.rows is None or stream.hosted_here:
            news = stream.learn(segment)
        else:
            brokers = self._parts.brokers
            news = stream.learn(segment, lambda rows, sent: notes.routed(pubend, upstream, rows, link_brokers(sent, brokers)))
        if news or stream.cache.frontier > frontier:
            self._parts.edge.advance(pubend, now)

    def _nacked(self, link: LinkId, nack: p.Nack, now: float) -> None:
        stream = self._parts.streams.get(nack.pubend)
        if stream is None:
            return
        for lo, hi in stream.nack(link, nack, now):
            self._nack_from_log(link, nack.pubend, lo, hi)

    def _nack_from_log(self, link: LinkId, pubend: int, lo: int, hi: int) -> None:
        hi = min(hi, self._parts.pubends[pubend].horizon)
        if lo >= hi:
            return

        def read(result: LogRead, now: float) -> None:
            del now
            position = lo
            if result.released > lo:
                self._parts.send(link, p.Released(pubend, result.released))
                position = result.released
            stream = self._parts.streams[pubend]
            for begin, hi, batches, gone in result.stretches(position):
                if gone > begin:
                    continue  # lost: a subscriber that keeps missing it asks for its own past, and is told of the gap there
                position = begin
                for batch in batches:
                    end = int(batch.ticks()[-1])
                    stream.reply(link, Segment(position, end, COMPLETE, batch))
                    position = end
                if position < hi:
                    stream.reply(link, Segment(position, hi, COMPLETE, None))

        self._read(ReadLog(pubend, 0, lo, hi, CATCH_UP_BYTES), read)

    def _answer_catch_up(self, ask: p.CatchUp, link: LinkId) -> bool:
        """Answer from the cache or the log; False to pass it on."""
        stream = self._parts.streams.get(ask.pubend)
        if stream is None:
            return False
        wanted = self._parts.filter(ask.filter)
        reached, rows = stream.from_cache(wanted, ask.lo, ask.hi, CATCH_UP_BYTES)
        if reached > ask.lo:
            self._reply_catch_up(ask, ask.lo, reached, rows, 0)
            return True
        if not stream.hosted_here:
            return False
        del link
        horizon = self._parts.pubends[ask.pubend].horizon
        if ask.lo >= horizon:
            return True  # nothing is decided there; it asks again

        def read(result: LogRead, now: float) -> None:
            del now
            for position, hi, batches, released in result.stretches(ask.lo):
                matching = [found for b in batches if len(found := b.filter(wanted.evaluate(b)))]
                self._reply_catch_up(ask, position, hi, matching, released, more=hi < result.hi)

        self._read(ReadLog(ask.pubend, 0, ask.lo, min(ask.hi, horizon), CATCH_UP_BYTES), read)
        return True

    def _reply_catch_up(
        self, ask: p.CatchUp, position: int, reached: int, rows: list[Batch], released: int, *, more: bool = False
    ) -> None:
        link = self._parts.router.route(ask.source)
        if link is None:
            return
        me = self._parts.broker
        for batch, hi, follows in pieces([bare(each) for each in rows] if ask.bare else rows, reached):
            reply = p.CatchUpReply(ask.source, me, FULL_HOPS, ask.request, ask.pubend, position, hi, released, follows or more)
            self._orders.append(Send(link, reply, batch, data=True))
            position = hi

    def _released(self, message: p.Released, link: LinkId) -> None:
        stream = self._parts.streams.get(message.pubend)
        if stream is None or stream.parent != link:
            return
        self._parts.edge.released(message.pubend, message.tick)
        stream.pass_on(message)

    def _log_released(self, pubend: int, tick: int) -> None:
        self._parts.pubends[pubend].released = max(self._parts.pubends[pubend].released, tick)
        if tick > self._parts.tracked.get(pubend, 0):  # retention was over its bound: what is gone cannot be read after a crash
            self._flush_tracks = True

    # --- tracking ---

    def _track(self, notes: Notes) -> None:
        """Order what was noted to be tracked, now and then and before a search; at a flush, after it, how far everything is."""
        if self._links_changed:
            self._links_changed = False
            notes.links(self._parts.brokers.values())
        flush, farewell = self._flush_tracks, self._farewell
        self._flush_tracks = self._farewell = False
        if flush:
            horizons = {pubend_id: pubend.horizon for pubend_id, pubend in self._parts.pubends.items()}
            notes.farewell(horizons) if farewell else notes.flush(horizons)
        self._notes_due, self._notes_at = False, float("inf")
        events, entries, size = notes.take()
        if events or flush:
            self._orders.append(Track(self._parts.wall_ms, events, entries, size, flush, farewell))

    def _tracked(self, fact: Tracked) -> None:
        self._parts.tracked.update({each.pubend: each.tick for each in fact.horizons})
        if fact.forgotten and self._parts.notes is not None:
            self._links_changed = True
            self._parts.notes.forgotten = True

    def _note_forwarded(self, notes: Notes) -> None:
        for order in self._orders:
            if isinstance(order, Send) and order.batch is not None and order.link in self._parts.brokers:
                assert isinstance(order.message, p.Knowledge | p.CatchUpReply)
                notes.forwarded(order.message.pubend, self._parts.brokers[order.link], order.batch)

    def _note_past(self, message: p.Unicast, link: LinkId, batch: Batch | None, onward: LinkId | None) -> None:
        """Note the rows of a catch-up that is for us or on its way."""
        notes = self._parts.notes
        if notes is None or batch is None or not isinstance(message, p.CatchUpReply):
            return
        sent = {} if onward is None else {self._parts.brokers[onward]: np.arange(len(batch))}
        notes.routed(message.pubend, self._parts.brokers[link], batch, sent)

    def _read(self, order: ReadLog, done: ReadDone) -> bool:
        """Read a log; False when too much is read already, and whoever wants it may ask again."""
        if len(self._reads) >= READS_MAX:
            return False
        token = self._parts.next_token()
        losses, wanted = self._parts.losses, order
        self._reads[token] = lambda result, now: done(losses.told(wanted, result), now)
        part = losses.limit(order)
        self._orders.append(ReadLog(order.pubend, token, part.lo, part.hi, order.bytes_max))
        return True

    def _read_past(self, order: ReadLog, done: ReadDone) -> bool:
        """Read a log for a subscription of ours, from a position that a client brought.

        Where no other broker was ever heard of, one before our first tick can only come from a former life.
        """
        first = self._recovery.first_tick(order.pubend) if not self._parts.known else 0
        if not 0 < order.lo < first:
            return self._read(order, done)

        def read(result: LogRead, now: float) -> None:
            done(replace(result, hi=max(result.hi, first), released=max(result.released, first)), now)

        return self._read(order, read)

    # --- links and time ---

    def _link_up(self, link: LinkId, broker: int, cost: int, now: float) -> None:
        self._parts.brokers[link] = broker
        self._links_changed = True
        self._parts.router.link_up(link, broker, cost)
        for home in self._parts.durables.homes.values():
            self._parts.send(link, home)
        self._recovery.tell_neighbour(link, broker)
        self._routes_changed(now)

    def _link_lost(self, link: LinkId, now: float) -> None:
        if link in self._parts.clients:
            del self._parts.clients[link]
            self._publishing.link_lost(link)
            self._parked = [entry for entry in self._parked if entry[0] != link]
            self._subscribing.link_lost(link, now)
            self._reading.link_lost(link)
            self._writing.link_lost(link)
            self._tracing.link_lost(link)
        elif link in self._parts.brokers:
            del self._parts.brokers[link]
            self._links_changed = True
            for stream in self._parts.streams.values():
                stream.link_lost(link, now)
            self._parts.router.link_lost(link)
            self._routes_changed(now)

    def _routes_changed(self, now: float) -> None:
        router = self._parts.router
        self._recovery.tell_others()
        for pubend in router.pubends():
            stream = self._parts.ensure_stream(pubend)
            if not stream.hosted_here:
                stream.set_parent(router.parent(pubend), now)
        self._subscribing.routes_changed(now)
        self._tracing.routes_changed()
        self._releasing.tell(again=True)

    def _housekeeping(self, now: float) -> None:
        self._recovery.store_heard(now)
        self._publishing.reserve_horizons()
        if self._forget_unreadable:  # what stands in its place is stored now, and a writer's block of ids with it
            self._forget_unreadable = False
            self._publishing.store_next((UNREADABLE, None))
        for pubend, segment in self._publishing.silence():
            self._learned(pubend, segment, now)
        for stream in self._parts.streams.values():
            stream.flush(now)
        self._parts.edge.begin_telling(max(1, round(TELLING_PERIODS * self._config.silence_s / FAST_S)))
        self._parts.keeper.expire(now)
        self._releasing.tell(again=True)
        self._releasing.release(now)
        if self._parts.durables.dirty:
            self._parts.store(self._parts.durables.changes())


def _notes(settings: TrackingSettings) -> Notes | None:
    if settings.strategy is Strategy.NULL:
        return None
    return Notes(per_neighbour=settings.per_neighbour, routing_sets=settings.routing_sets)
