"""The tap: a broker machine with what is beside it for tracking, behind the machine's own interface.

A driver owns a `TrackedBroker` around a `Broker`. What the machine observes (published, routed, delivered, attached) goes to the
recorder and never reaches the driver; from time to time the driver gets a `Track` order with what was recorded. Packets and facts
about tracks are answered here. The machine knows nothing of tracking: a setting makes it observe, and a fact, `Observed`, lets
it release the logs of what is recorded.

Recording is cheap and in its own turns: a broker that is late with messages does not track at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import BrokerConfig
from postroad.core.broker.machine import FAST_S, Broker
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import (
    Attached,
    Delivered,
    Detached,
    GapTold,
    Published,
    RangeLost,
    Routed,
)
from postroad.core.protocol.orders import (
    BrokerState,
    Fact,
    LinkId,
    LinkLost,
    LinkUp,
    LogRead,
    LogReleased,
    Observed,
    Order,
    Send,
)
from postroad.core.protocol.packets import CatchUpReply, Knowledge, LinkState, Packet
from postroad.errors import FilterError, PostroadError
from postroad.tracking.histories.settings import OFF, Strategy, TrackingSettings
from postroad.tracking.queries.packets import AskTracks, TrackQuery, TrackReply
from postroad.tracking.tap.orders import StatusReported, Track, Tracked, TrackedFact, TrackedOrder, TracksSearched
from postroad.tracking.tap.recorder import Recorder, name_subscriber
from postroad.tracking.tap.tracing import MessageFromLog, Tracing

RECORD_S: Final = 0.5  # after which what was recorded is ordered to be tracked,
RECORD_BYTES: Final = 16 << 10  # or when it is so much, at the next look: some hundred messages, a fraction of a millisecond;
RECORD_BYTES_MAX: Final = 1 << 20  # or so much, at once
MEMBERSHIP_S: Final = 1.0  # after which a new attachment is on disk


@dataclass(frozen=True, slots=True)
class TrackedConfig(BrokerConfig):
    """What an operator may set of the machine and of what tracks it."""

    tracking: TrackingSettings = OFF


def tracking_of(config: BrokerConfig) -> TrackingSettings:
    """Return the tracking settings of a configuration, `OFF` where it has none."""
    return config.tracking if isinstance(config, TrackedConfig) else OFF


class TrackedBroker:
    """One broker, tracked: the interface of `Broker`, with `TrackedOrder` and `TrackedFact`."""

    def __init__(self, state: BrokerState, config: BrokerConfig, *, now: float = 0.0) -> None:
        settings = tracking_of(config)
        tracks = settings.strategy is not Strategy.NULL
        tolerance_ms = settings.skew_tolerance_ms if isinstance(config, TrackedConfig) else config.skew_tolerance_ms
        self.machine: Final = Broker(state, replace(config, observed=tracks, skew_tolerance_ms=tolerance_ms), now=now)
        self.recorder: Recorder | None = None
        if tracks:
            self.recorder = Recorder(per_neighbour=settings.per_neighbour, routing_sets=settings.routing_sets)
        self._persistence_s = settings.persistence_ms / 1000
        self._tracing = Tracing(self.machine, self.recorder, settings.late_ms)
        self._names: dict[int, str] = {}  # number of subscription -> what tracks call the subscriber
        self._attachments: dict[tuple[int, int], int] = {}  # (number of subscription, pubend) -> attachment
        self._tracked: dict[int, int] = {}  # hosted pubend -> up to where its publisher history is durable
        self._track_at = now + self._persistence_s
        self._recorded_at = now  # when records were ordered last
        self._order_at = float("inf")  # when they are to be ordered next
        self._order_now = False
        self._links_changed = True  # since the tracker was told
        self._flush = False
        self._farewell = False
        self._record_one: Final[dict[type, Callable[[Recorder, Any], None]]] = {
            Published: self._note_published,
            Routed: self._note_routed,
            Delivered: self._note_delivered,
            Attached: self._note_attached,
            Detached: self._note_detached,
            GapTold: self._gap_told,
            RangeLost: self._range_lost,
        }

    # --- the machine's contract ---

    def clock(self, wall_ms: int) -> None:
        """Set the wall clock; it may step back."""
        self.machine.clock(wall_ms)
        if self.recorder is not None:
            self.recorder.wall_ms = wall_ms

    def fact(self, fact: TrackedFact, *, now: float) -> None:
        match fact:
            case Tracked():
                self._take_tracked(fact, now)
            case TracksSearched(token, found):
                self._tracing.searched(token, found)
            case StatusReported(token, report):
                self._tracing.reported(token, report)
            case LogRead() if isinstance(purpose := self.machine.log_reads.purpose(fact.token), MessageFromLog):
                answered = self.machine.log_reads.answered(fact)
                assert answered is not None
                self._tracing.take_log(purpose, answered[1])
            case _:
                self._pass_on(fact, now)

    def _pass_on(self, fact: Fact, now: float) -> None:
        was_client = isinstance(fact, LinkLost) and fact.link in self.machine.clients
        self.machine.fact(fact, now=now)
        match fact:
            case LinkLost(link):
                if was_client:
                    self._tracing.link_lost(link)
                else:
                    self._change_links()
            case LinkUp():
                self._change_links()
            case LogReleased(pubend, tick) if tick > self._tracked.get(pubend, 0):
                self._flush = True  # retention was over its bound: what is gone cannot be read after a crash
            case _:
                pass

    def _change_links(self) -> None:
        self._links_changed = True
        self._tracing.routes_changed()

    def receive(self, message: Packet, *, link: LinkId, now: float, batch: Batch | None = None, packet: int = 0) -> None:
        """Take a packet; a fault of the peer becomes an error packet, never an exception."""
        machine = self.machine
        match message:
            case AskTracks() if link in machine.clients:
                try:
                    self._tracing.ask(link, message, packet, now)
                except PostroadError as error:
                    machine.context.refuse(link, packet, error)
            case TrackQuery() if link in machine.neighbours and message.target == machine.context.broker:
                self._tracing.asked(message)
            case TrackReply() if link in machine.neighbours and message.target == machine.context.broker:
                self._tracing.replied(message)
            case _:
                machine.receive(message, link=link, now=now, batch=batch, packet=packet)
                if isinstance(message, LinkState):
                    self._tracing.routes_changed()

    def knows_filter(self, text: str) -> bool:
        return self.machine.knows_filter(text)

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        self.machine.remember_filter(text, known)

    def wake(self, *, now: float) -> None:
        busy = now >= self.machine.next_round_at
        self.machine.wake(now=now)
        if busy:
            self._tracing.expire(now)
        if self.recorder is not None:
            self._plan_order(self.recorder, now, busy=busy)
        if now >= self._track_at:
            self._track_at = now + self._persistence_s
            self._flush = True

    def deadline(self) -> float | None:
        deadline = self.machine.deadline()
        return self._order_at if deadline is None else min(deadline, self._order_at)

    def outputs(self) -> list[TrackedOrder]:
        """Take the orders of the machine, and what is to be tracked and searched."""
        orders: list[TrackedOrder] = []
        recorder = self.recorder
        for output in self.machine.outputs():
            record = self._record_one.get(type(output))
            if record is None:
                orders.append(cast("Order", output))
            elif recorder is not None:
                record(recorder, output)
        if recorder is not None:
            if recorder.per_neighbour:
                self._record_forwarded(recorder, orders)
            if self._flush or self._order_now or recorder.size > RECORD_BYTES_MAX or self._tracing.searching:
                self._track(recorder, orders)
        orders.extend(self._tracing.take_orders())
        return orders

    @property
    def orders_waiting(self) -> int:
        """Orders that the next `outputs` returns, about."""
        return self.machine.orders_waiting

    def stats(self) -> dict[str, int]:
        return {**self.machine.stats(), "traces": self._tracing.waiting}

    def streams(self) -> dict[int, dict[str, int]]:
        return self.machine.streams()

    @property
    def backlog_rows(self) -> int:
        return self.machine.backlog_rows

    @property
    def backlog_bytes(self) -> int:
        return self.machine.backlog_bytes

    def held_back_bytes(self) -> dict[LinkId, int]:
        return self.machine.held_back_bytes()

    # --- when to track ---

    def order_records(self) -> None:
        """Let the next outputs order all that was recorded; by itself that happens within about `RECORD_S`."""
        self._order_now = True

    def flush_tracks(self) -> None:
        """Let the next outputs order everything to be made durable."""
        self._flush = True

    def farewell(self) -> None:
        """Let the next outputs end the tracks of this incarnation; nothing may happen after them."""
        self._flush = self._farewell = True

    def _plan_order(self, recorder: Recorder, now: float, *, busy: bool) -> None:
        """Let records be ordered in a turn of their own: the slowest messages are those of the busy turns as it is."""
        if now >= self._order_at + (FAST_S / 4 if busy else 0.0):  # a broker that is so late has no better time for it
            self._recorded_at = now
            self._order_now = True
        elif busy and self._order_at > now:
            due = recorder.size >= RECORD_BYTES or (recorder.any and now >= self._recorded_at + RECORD_S)
            self._order_at = now + FAST_S / 2 if due else float("inf")
        if recorder.membership_changed:  # who is attached is known after a crash, too (section 3.2)
            recorder.membership_changed = False
            self._track_at = min(self._track_at, now + MEMBERSHIP_S)

    def _track(self, recorder: Recorder, orders: list[TrackedOrder]) -> None:
        """Order what was recorded to be tracked; at a flush, after it, how far everything is."""
        if self._links_changed:
            self._links_changed = False
            recorder.links(self.machine.neighbours.values())
        flush, farewell = self._flush, self._farewell
        self._flush = self._farewell = False
        if flush:
            horizons = self.machine.horizons()
            recorder.farewell(horizons) if farewell else recorder.flush(horizons)
        self._order_now, self._order_at = False, float("inf")
        events, entries, size = recorder.take()
        if events or flush:
            orders.append(Track(recorder.wall_ms, events, entries, size, flush, farewell))

    def _take_tracked(self, fact: Tracked, now: float) -> None:
        ticks = tuple((each.pubend, each.tick) for each in fact.horizons)
        self._tracked.update(ticks)
        self.machine.fact(Observed(ticks), now=now)
        if fact.forgotten and self.recorder is not None:
            self._links_changed = True
            self.recorder.forgotten = True

    # --- what is recorded ---

    def _note_published(self, recorder: Recorder, seen: Published) -> None:
        recorder.published(seen.pubend, seen.rows)

    def _note_routed(self, recorder: Recorder, seen: Routed) -> None:
        brokers = self.machine.neighbours
        sent = {brokers[link]: rows for link, rows in seen.sent.items() if link in brokers}
        recorder.routed(seen.pubend, seen.upstream, seen.rows, sent)

    def _note_delivered(self, recorder: Recorder, seen: Delivered) -> None:
        names = [self._names[number] for number in seen.subscriptions]
        recorder.delivered(names, seen.pubend, seen.rows, seen.selections)

    def _note_attached(self, recorder: Recorder, seen: Attached) -> None:
        number, context = seen.subscription, self.machine.context
        if number not in self._names:
            client = self.machine.clients.get(seen.link, "")
            self._names[number] = name_subscriber(seen.name, context.broker, context.incarnation, number, client)
        reached = partial(self.machine.reached, number, seen.pubend)
        attachment = recorder.attached(self._names[number], seen.pubend, seen.filter, seen.start, reached)
        self._attachments[number, seen.pubend] = attachment

    def _note_detached(self, recorder: Recorder, seen: Detached) -> None:
        recorder.detached(self._attachments.pop((seen.subscription, seen.pubend), 0), seen.reached)
        self._names.pop(seen.subscription, None)  # the others of the subscription need it no more

    def _gap_told(self, recorder: Recorder, seen: GapTold) -> None:
        recorder.lost(self._names[seen.subscription], seen.pubend, seen.lo, seen.hi)

    def _range_lost(self, recorder: Recorder, seen: RangeLost) -> None:
        recorder.lost("", seen.pubend, seen.lo, seen.hi)

    def _record_forwarded(self, recorder: Recorder, orders: list[TrackedOrder]) -> None:
        for order in orders:
            if isinstance(order, Send) and order.batch is not None and order.link in self.machine.neighbours:
                assert isinstance(order.message, Knowledge | CatchUpReply)
                recorder.forwarded(order.message.pubend, self.machine.neighbours[order.link], order.batch)
