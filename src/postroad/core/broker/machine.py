"""One broker as a pure machine: dispatch, and the contract with its driver.

A driver (`runtime` with real sockets and disks, `sim` with virtual ones) owns one `Broker` and calls it from one thread:

- `clock(wall_ms)` sets the wall clock, and `now` is an argument of every call: seconds on a clock that never steps back.
- `receive(packet, link=...)` passes in a packet of a client or a neighbour. The driver decodes the bytes first. A packet that
  breaks a rule becomes a `Refuse` order, never an exception.
- `fact(...)` passes in an event: a link came up or was lost, an order was carried out.
- `wake(now=...)` must be called at the time that `deadline()` returns, at the latest.
- `outputs()` returns the orders of this turn. The driver carries them out in this order. `Append`, `Store` and `ReadLog` may run
  in the background. Each is answered once, by the fact with its token; what it wrote is on disk by then. A `Send` that follows
  one of them may leave before it is done; a packet that must wait for the disk is ordered only after that fact.
- The same inputs give the same orders, byte for byte: no clock, no random numbers, no `hash()`, no iteration over a set.

The machine has one object per role: `publishing` (pubends, publishers, named writers), `relaying` (streams, interest, routes,
older messages for other brokers), `subscribing` (subscriptions, durable names, range reads), `holding` (which broker needs
which log from which tick on) and `admission` (advertisements, reservations). Each owns its state and does not import the
others. This module builds them, dispatches each input to its role, and passes on what one role learned and another needs.
`docs/internals/overlay.md` explains the whole system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.broker.admission.admission import Admission
from postroad.core.broker.congestion.feedback import Feedback
from postroad.core.broker.congestion.rate_rule import Throttle
from postroad.core.broker.context import BrokerConfig, Context, NewestStored, SendWhenStored
from postroad.core.broker.holding.keeper import HoldKeeper
from postroad.core.broker.holding.release import HoldStored, Releasing
from postroad.core.broker.incarnations import FirstTicksStored, Incarnations, IncarnationStored
from postroad.core.broker.knowledge import KnowledgeRange
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.own_records import UNREADABLE, OwnRecords, load_records
from postroad.core.broker.permissions import permit
from postroad.core.broker.publishing.named_writers import WRITER_KEY, EpochStored, NamedWriters
from postroad.core.broker.publishing.pubend import RESERVE_MS, Pubend
from postroad.core.broker.publishing.publishers import HorizonsStored, PublisherIdsStored, Publishing
from postroad.core.broker.relaying.link_state import LinkStateRouter
from postroad.core.broker.relaying.nack_answers import CatchUpFromLog, GapFromLog, NackAnswers
from postroad.core.broker.relaying.stream import Stream
from postroad.core.broker.relaying.streams import Streams
from postroad.core.broker.sharing.groups import InnerRequest, RowsStored, Sharing
from postroad.core.broker.status_report import report_streams, report_subscriptions
from postroad.core.broker.subscribing.acknowledgements import AcknowledgementsStored
from postroad.core.broker.subscribing.activation import HomeStored, StartsStored
from postroad.core.broker.subscribing.catching_up import PastFromLog
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.subscribing.naming import ReservationStored
from postroad.core.broker.subscribing.range_reads import OF_A_READ, RangeFromLog, RangeReads
from postroad.core.broker.subscribing.subscribing import Subscribing
from postroad.core.broker.trust import COST_MAX, believable, check, latest_tick
from postroad.core.filters.filter import Filter
from postroad.core.protocol import admission as a
from postroad.core.protocol import packets as p
from postroad.core.protocol.observations import Output, Published, Routed
from postroad.core.protocol.orders import (
    Appended,
    AppendFailed,
    BrokerState,
    ClientUp,
    Congested,
    CpuUsed,
    Drained,
    Fact,
    LimitBandwidth,
    LinkId,
    LinkLost,
    LinkUp,
    LogRead,
    LogReadFailed,
    LogReleased,
    MemoryAvailable,
    Observed,
    Refuse,
    Send,
    Stored,
    is_inner,
)
from postroad.core.protocol.status import StreamReport, SubscriptionReport
from postroad.errors import (
    DuplicateHandleError,
    DurableElsewhereError,
    FilterError,
    ImplausibleError,
    PostroadError,
    TooManyError,
    UnknownDurableError,
    UnknownHandleError,
    WrongRoleError,
)
from postroad.types import COUNTER_BITS

FAST_S: Final = 0.05  # how often gaps and catch-ups are checked
TELLING_PERIODS: Final = 5  # every client is sent its positions once in so many periods of `silence_s`
UNANNOUNCED_MAX: Final = 1024  # streams that neighbours ask for and no broker has announced
PARKED_MAX: Final = 4096
PARKED_BYTES_MAX: Final = 16 << 20
_OfSubscription: TypeAlias = p.Subscribe | p.Unsubscribe | p.Flow | p.Acknowledge


class Broker:
    """The machine of one broker. Call `clock` before events and `outputs` after them."""

    def __init__(self, state: BrokerState, config: BrokerConfig, *, now: float = 0.0) -> None:
        records = load_records(state, config.retired)
        self._config = config
        self._orders: list[Output] = []
        self._neighbours: dict[LinkId, int] = {}  # links to brokers
        self._clients: dict[LinkId, str] = {}  # links to clients, with their names
        self._disbelieved = 0  # packets of other brokers that were ignored; see `trust`
        self._parked: list[tuple[LinkId, _OfSubscription, int]] = []  # client packets that wait for the first ticks
        self._parked_bytes = 0  # the memory of those packets, about
        self._now = now  # of the last input
        self._slow_at = now
        self._fast_at = now
        self._tell_holds = False  # routes changed: send our holds again, also those that were not confirmed
        self._forget_unreadable = UNREADABLE in state.damaged
        ids = tuple(sorted(s.pubend for s in state.pubends))
        self._router = LinkStateRouter(state.broker, state.incarnation, ids, self._orders)
        known = {broker: pubends for broker, pubends in records.known.items() if broker not in config.retired}
        self._context = Context(state.broker, state.incarnation, config, self._orders, self._router, known)
        self._log_reads = LogReads(self._context, records.losses)
        self._pubends = {s.pubend: Pubend(s, records.horizons.get(s.pubend, 0), self._orders) for s in state.pubends}
        self._streams = Streams(self._context, tuple(self._pubends))
        self._table = records.table
        for broker in config.retired:
            self._table.retire(broker)
        self._keeper = HoldKeeper(state.incarnation, records.floor_for_grace, now + config.subscriber_grace_s)
        self._durables: Durables = records.durables
        self._durables.drop_unsettled()
        # Built before `Publishing`, because it closes the pubends that must not begin yet.
        self._lives = Incarnations(self._context, self._pubends, self._streams, records.losses, self._keeper, records.lives, now)
        self._publishing = Publishing(self._context, self._pubends, records.publisher_next, records.publisher_owners)
        self._publishing.clients = self._clients
        if not self._lives.waits and not records.publisher_next:  # after a lost disk, the ids may not have been stored
            self._publishing.begin(anew_ms=self._lives.anew_ms)
        self._writing = NamedWriters(self._context, self._publishing)
        self._load_writers(records)
        self._past = NackAnswers(self._context, self._pubends, self._streams, self._log_reads)
        self._edge = Edge(self._streams, self._orders, observed=config.observed, settings=config.congestion)
        self._edge.filter_load.rights = self._context.rights
        self._feedback = Feedback(state.broker, state.incarnation, config.congestion, self._pubends, self._orders)
        self._releasing = Releasing(
            self._context, self._table, self._keeper, self._pubends, self._streams, self._edge, self._durables, records.floor
        )
        self._subscribing = Subscribing(
            self._context,
            self._pubends,
            self._streams,
            self._edge,
            self._durables,
            self._keeper,
            self._releasing,
            self._log_reads,
        )
        self._subscribing.moves.naming.load(records.reservations)
        self._sharing = Sharing(self._context, self._durables)
        self._range_reads = RangeReads(
            self._context, self._pubends, self._streams, self._edge, self._durables, self._log_reads, self._sharing
        )
        self._admission = Admission(self._context, self._router, self._pubends, self._durables.here, records.publisher_owners)
        self._publishing.gate = self._admission
        self._admission.gate.publishers = self._publishing
        self._subscribing.activation.reservations = self._admission
        stored = {name: durable.filter for name, durable in self._durables.here.items() if not durable.damaged}
        records.damaged += self._admission.load(stored, records.reserved, records.advertised)
        self._unknown_horizons = [pubend for pubend in records.unknown_horizons if pubend in self._pubends]
        self._orders.extend(records.notices())
        self._damaged = len(records.damaged)

    def _load_writers(self, records: OwnRecords) -> None:
        for key, value in records.writers.items():
            try:
                self._writing.load(key, value)
            except msgspec.MsgspecError:
                records.damaged.append(key)
        for key in records.damaged:
            if key.startswith(WRITER_KEY):
                self._writing.load_damaged(key.removeprefix(WRITER_KEY))

    def uses_by_identity(self, identities: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return what identities use of their limits."""
        subscriptions: Counter[str] = Counter()
        for link, rights in self._context.rights.items():
            subscriptions[rights.owner] += self._edge.count_of_link(link)
        return {
            each: {
                "subscriptions": subscriptions[each],
                "durable_subscriptions": self._durables.count_owned(each),
                "filter_bytes": self._edge.filter_load.size_of(each),
            }
            for each in identities
        }

    # --- the contract ---

    def clock(self, wall_ms: int) -> None:
        """Set the wall clock; it may step back."""
        self._context.wall_ms = wall_ms
        if not self._router.started_ms:
            self._router.started_ms = wall_ms
            if not self._config.newcomer_wait_s:
                self._lives.wake(self._slow_at)
        for pubend in self._pubends.values():
            pubend.wall_ms = wall_ms
        if self._unknown_horizons:
            self._restart_above(wall_ms)

    def _restart_above(self, wall_ms: int) -> None:
        """Let pubends whose stored horizon is damaged continue above everything they can have announced."""
        for pubend_id in self._unknown_horizons:
            pubend = self._pubends[pubend_id]
            pubend.restart_above(wall_ms + RESERVE_MS << COUNTER_BITS)
            self._streams.ensure(pubend_id).active_tick = pubend.horizon
            self._lives.restarted_above(pubend_id, pubend.horizon)
        self._unknown_horizons = []

    def fact(self, fact: Fact, *, now: float) -> None:
        self._now = now
        match fact:
            case Appended(pubend, token):
                for known in self._publishing.appended(pubend, token):
                    if self._config.observed and known.rows is not None:
                        self._orders.append(Published(pubend, known.rows))
                    self._spread_knowledge(pubend, known, now)
                    if known.rows is not None:
                        known.rows.forget()
            case AppendFailed(pubend, token, error):
                self._publishing.append_failed(pubend, token, error)
            case Stored(token):
                self._continue_after_write(token, now)
            case LogRead():
                self._log_read(fact, now)
            case LogReadFailed(token=token):
                self._log_reads.failed(token)
            case LogReleased(pubend, tick):
                self._log_released(pubend, tick)
            case LinkUp(link, broker, _, cost):
                self._link_up(link, broker, cost, now)
            case ClientUp(link, name, rights):
                self._clients[link] = name
                self._context.rights[link] = rights
                self._admission.own.client_up(link, name)
            case LinkLost(link):
                self._link_lost(link, now)
            case Congested(link):
                self._edge.congested(link)
                self._sharing.congested(link)
            case Drained(link):
                self._edge.drained(link)
                self._sharing.drained(link)
                for pubend in self._streams:
                    self._subscribing.catching_up.serve(pubend, now)
            case Observed(ticks):
                self._releasing.observed(ticks)
            case CpuUsed(share):
                self._admission.cpu_used(share, now)
            case MemoryAvailable(size):
                self._admission.memory_available(size)

    def _continue_after_write(self, token: int, now: float) -> None:
        """Continue with the work that waited for a write."""
        write = self._context.writes.pop(token, None)
        if write is None:
            return
        self._durables.stored(write.changes)
        match write.then:
            case NewestStored():
                self._context.newest_stored(write.then)
            case SendWhenStored(link, packet, request):
                self._context.send(link, packet, request)
            case StartsStored():
                self._subscribing.activation.starts_stored(write.then, now)
            case HoldStored(hold):
                self._releasing.hold_stored(hold)
            case AcknowledgementsStored(positions):
                self._subscribing.acknowledgements.stored(positions)
            case RowsStored():
                self._sharing.stored(write.then)
            case HomeStored():
                self._subscribing.moves.home_stored(write.then)
                self._sharing.settled(write.then.name)
            case ReservationStored():
                self._subscribing.moves.reservation_stored(write.then, now)
            case HorizonsStored(horizons):
                self._publishing.horizons_stored(horizons)
                self._lives.tell_reserved()
            case PublisherIdsStored(bound):
                self._publishing.publisher_ids_stored(bound)
            case EpochStored():
                self._writing.epoch_stored(write.then)
            case FirstTicksStored(ticks):
                self._lives.first_ticks_stored(ticks, now)
                self._tell_lost()
            case IncarnationStored(incarnation):
                self._lives.incarnation_stored(incarnation)
                self._admission.spread.adopt()
            case _:
                assert write.then is None, write.then
        self._subscribing.activation.answer_ready(now)
        self._take_begun(now)

    def _log_read(self, fact: LogRead, now: float) -> None:
        """Pass the answer of a log read to the role that requested it."""
        answered = self._log_reads.answered(fact)
        if answered is None:
            return
        purpose, result = answered
        match purpose:
            case GapFromLog():
                self._past.take_gap(purpose, result)
            case CatchUpFromLog():
                self._past.take_catch_up(purpose, result)
            case PastFromLog():
                self._subscribing.catching_up.take_log(purpose, self._without_former_life(purpose, result), now)
            case RangeFromLog():
                self._range_reads.take_log(purpose, result)
            case _:
                raise AssertionError(purpose)

    def _without_former_life(self, purpose: PastFromLog, result: LogRead) -> LogRead:
        """Report everything before our first tick as released, if no other broker was ever known.

        Then a client's position before the first tick can only come from a former life of this broker. A durable subscription
        that is older than the pubend, which was added to this broker, begins there without a gap.
        """
        first = self._lives.first_tick(purpose.pubend) if not self._context.known else 0
        if not 0 < purpose.lo < first or self._subscribing.activation.begins_at(purpose.subscription, purpose.pubend, purpose.lo):
            return result
        return replace(result, hi=max(result.hi, first), released=max(result.released, first))

    def _tell_lost(self) -> None:
        """Report a gap to subscribers for what a former life of this broker lost."""
        for pubend, tick in self._lives.take_lost():
            self._edge.released(pubend, tick)

    def knows_filter(self, text: str) -> bool:
        """Tell whether a filter is already parsed and cached."""
        return text in self._context.filters

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        """Cache a filter that the driver has parsed (which can be slow), or the error of an invalid text."""
        self._context.remember_filter(text, known)

    def receive(self, message: p.Packet, *, link: LinkId, now: float, batch: Batch | None = None, packet: int = 0) -> None:
        """Handle a packet. A fault of the peer becomes an error packet, never an exception."""
        self._now = self._publishing.now = now
        try:
            if link in self._clients:
                permitted = permit(message, self._context.rights[link], self._context)
                self._from_client(permitted, link, batch, packet, now)
            elif link in self._neighbours:
                self._from_broker(message, link, batch, now)
        except PostroadError as error:
            self._context.refuse(link, packet, error)

    def wake(self, *, now: float) -> None:
        self._now = now
        fast = now >= self._fast_at
        if fast:
            self._fast_at = now + FAST_S
            for pubend in self._streams:
                self._edge.curious(pubend, now)
                self._feedback.sample(pubend, self._edge.streams[pubend], now)
                self._subscribing.catching_up.serve(pubend, now)
            self._subscribing.wake(now)
            self._range_reads.wake(now)
            self._writing.wake()
            self._edge.tell_positions()
            self._publishing.now = now
            self._publishing.publish_held()
            self._admission.wake(now)
            self._begin_admitted(now)
        self._lives.wake(now)
        if now >= self._slow_at:
            self._slow_at = now + self._config.silence_s
            self._housekeeping(now)
        if self._feedback.is_due(now):
            self._announce_silence(now)
            self._feedback.query(self._streams, now, self._context.wall_ms)

    def deadline(self) -> float | None:
        return min(self._slow_at, self._fast_at)

    def outputs(self) -> list[Output]:
        """Return the orders of this turn. Everything published in it goes into one append, all route changes into one round."""
        if self._tell_holds:
            self._tell_holds = False
            self._releasing.tell(again=True)
        self._serve_shared()
        if self._admission.has_approved:
            for order in self._orders:
                if isinstance(order, Refuse):
                    self._admission.refused(order.link, order.packet)
        self._admission.flush(self._now)
        self._context.store_known()
        self._lives.store_lives()
        self._publishing.commit(self._now)
        taken = list(self._orders)
        self._orders.clear()
        return taken

    def _serve_shared(self) -> None:
        """Let groups of members take what was sent to their inner links and carry out what they ask, until nothing is left."""
        while True:
            if any(isinstance(order, Send | Refuse) and is_inner(order.link) for order in self._orders):
                orders = list(self._orders)
                self._orders.clear()
                for order in orders:
                    if isinstance(order, Send | Refuse) and is_inner(order.link):
                        self._take_inner(order)
                    else:
                        self._orders.append(order)
            self._sharing.serve()
            requests = self._sharing.take_requests()
            if not requests:
                return
            for request in requests:
                self._carry_out_inner(request)

    def _take_inner(self, order: Send | Refuse) -> None:
        if isinstance(order, Refuse):
            self._admission.refused(order.link, order.packet)
        self._sharing.take(order)

    def _carry_out_inner(self, request: InnerRequest) -> None:
        """Handle a packet of a group as if a client had sent it, or the end of its inner link."""
        if request.packet is None:
            self._forget_parked(request.link)
            self._subscribing.link_lost(request.link, self._now)
            self._admission.client_lost(request.link)
            self._sharing.inner_gone(request.link)
            return
        try:
            self._from_client(request.packet, request.link, None, request.request, self._now)
        except PostroadError as error:
            self._context.refuse(request.link, request.request, error)

    @property
    def orders_waiting(self) -> int:
        """The approximate number of orders that the next `outputs` returns."""
        return len(self._orders)

    def stats(self) -> dict[str, int]:
        return {
            "subscriptions": len(self._edge.subscriptions),
            "links": len(self._neighbours),
            "clients": len(self._clients),
            "holders": len(self._table),
            "damaged_records": self._damaged,
            "backlog_rows": self._publishing.backlog_rows,
            "publish_backlog_bytes": self._publishing.backlog_bytes,
            "cache_bytes": sum(stream.cache.size for stream in self._streams.values()),
            "reads": len(self._log_reads),
            "clients_reads": len(self._range_reads),
            "writers": len(self._writing),
            "disbelieved": self._disbelieved,
            **self._sharing.stats(),
            **self._admission.stats(),
            "throttled_pubends": len(self._feedback.throttles()),
            "congestion_alerts": self._feedback.alerts_taken,
        }

    @property
    def backlog_rows(self) -> int:
        return self._publishing.backlog_rows

    @property
    def backlog_bytes(self) -> int:
        return self._publishing.backlog_bytes

    def held_back_bytes(self) -> dict[LinkId, int]:
        """Return for each client how many bytes of its messages wait because a pubend is held to a rate."""
        return self._publishing.held_back_bytes()

    def throttles(self) -> dict[int, Throttle]:
        """Return the pubends of this broker that are held to a rate."""
        return self._feedback.throttles()

    def streams(self) -> dict[int, dict[str, int]]:
        """Return for each pubend how far its stream is known and delivered at this broker, and who is throttled by whom."""
        figures = {}
        throttles = self._feedback.throttles()
        for pubend, stream in self._streams.items():
            throttle = throttles.get(pubend)
            figures[pubend] = {
                **stream.stats(),
                "frontier": stream.cache.frontier,
                **self._edge.streams[pubend].stats(),
                "rate_limit": 0 if throttle is None else max(round(throttle.rate), 1),
                "throttled_by": 0 if throttle is None else throttle.broker,
            }
        return figures

    def report_streams(self) -> list[StreamReport]:
        sizes = {pubend: stream.cache.size for pubend, stream in self._streams.items()}
        return report_streams(self._pubends, self._streams, self._edge, sizes)

    def report_subscriptions(self, after: int, page: int, wanted: str) -> list[SubscriptionReport]:
        return report_subscriptions(self._edge, self._clients, after, page, wanted, self._sharing)

    @property
    def sharing(self) -> Sharing:
        return self._sharing

    # --- what an observer needs ---

    @property
    def context(self) -> Context:
        return self._context

    @property
    def admission(self) -> Admission:
        return self._admission

    @property
    def log_reads(self) -> LogReads:
        return self._log_reads

    @property
    def clients(self) -> Mapping[LinkId, str]:
        """The links to clients, with their names."""
        return self._clients

    @property
    def neighbours(self) -> Mapping[LinkId, int]:
        """The links to brokers."""
        return self._neighbours

    @property
    def next_round_at(self) -> float:
        """When the next `wake` checks gaps and catch-ups."""
        return self._fast_at

    def horizons(self) -> dict[int, int]:
        """Return how far each hosted pubend is announced."""
        return {pubend_id: pubend.horizon for pubend_id, pubend in self._pubends.items()}

    def reached(self, subscription: int, pubend: int) -> int:
        """Return the tick up to which a subscription was sent everything that matches."""
        return self._edge.reached_by(subscription, pubend)

    # --- packets ---

    def _from_client(self, message: p.Packet, link: LinkId, batch: Batch | None, packet: int, now: float) -> None:
        match message:
            case p.Publish():
                self._publishing.publish(link, message)
            case p.Subscribe(shared=True) if not is_inner(link):
                self._join(message, link, packet)
            case p.AcknowledgeRows():
                self._sharing.acknowledge(link, message)
            case p.Unsubscribe() if self._sharing.has_member(link, message.handle):
                self._sharing.leave(link, message, packet)
            case p.Flow() if self._sharing.has_member(link, message.handle):
                self._sharing.flow(link, message)
            case p.Subscribe() if self._sharing.has_member(link, message.handle):
                raise DuplicateHandleError(f"handle {message.handle} is in use on this connection")
            case p.PublishColumns():
                self._publishing.publish_columns(link, message, batch)
            case p.OpenPublisher():
                self._publishing.open(link, message, packet)
            case p.Subscribe() | p.Unsubscribe() | p.Flow() | p.Acknowledge() if self._lives.waits:
                self._park(link, message, packet)
            case p.Subscribe() if self._admission.concerns(message) and self._edge.find(link, message.handle) is None:
                self._admission.subscribe(link, message, packet, now)
                self._begin_admitted(now)
            case p.Subscribe():
                self._subscribing.subscribe(link, message, packet, now)
            case p.Acknowledge():
                self._subscribing.acknowledgements.take(link, message)
            case p.Flow():
                self._subscribing.flow(link, message, now)
            case p.Unsubscribe() if (waiting := self._admission.unsubscribe(link, message.handle)) is not None:
                self._leave_unadmitted(link, message, waiting, packet)
            case p.Unsubscribe():
                self._subscribing.unsubscribe(link, message, packet, now)
            case p.ReadRange():
                self._range_reads.read(link, message, packet, now)
            case p.LimitLink():
                self._limit_link(message, link, packet)
            case p.ListPubends():
                self._range_reads.list_pubends(link, message, packet, now)
            case p.OpenEpoch():
                self._writing.open(link, message, packet)
            case p.SealEpoch():
                self._writing.seal(link, message, packet)
            case a.Advertise():
                self._admission.own.advertise(link, message, packet, now)
            case a.Unadvertise():
                self._admission.own.unadvertise(link, message, packet, now)
            case a.ExplainAdmission():
                self._admission.explain(link, message, packet, now)
                self._begin_admitted(now)
            case a.AskAdmission():
                self._admission.tell_state(link, message, packet)
            case _:
                raise WrongRoleError(f"a client must not send {type(message).__name__}")

    def _join(self, message: p.Subscribe, link: LinkId, packet: int) -> None:
        """Add a member to a shared subscription."""
        if message.name is None:
            raise UnknownDurableError("a shared subscription needs a name, by which its members find each other")
        if self._subscribing.is_in_use(link, message.handle) or self._admission.is_waiting(link, message.handle):
            raise DuplicateHandleError(f"handle {message.handle} is in use on this connection")
        self._sharing.join(link, message, packet)

    def _begin_admitted(self, now: float) -> None:
        """Decide the requests whose verdicts are there, and begin the subscriptions that were admitted."""
        self._admission.decide()
        for admitted in self._admission.take_admitted():
            try:
                self._subscribing.subscribe(admitted.link, admitted.packet, admitted.request, now)
            except PostroadError as error:
                self._context.refuse(admitted.link, admitted.request, error)

    def _limit_link(self, wanted: p.LimitLink, link: LinkId, request: int) -> None:
        """Let an operator limit what goes to a neighbour; see the how-to about congestion."""
        if wanted.broker not in self._neighbours.values():
            linked = ", ".join(str(broker) for broker in sorted(self._neighbours.values())) or "none"
            raise UnknownHandleError(f"this broker has no link to broker {wanted.broker}; it has links to: {linked}")
        self._orders.append(LimitBandwidth(wanted.broker, wanted.bytes_per_s))
        self._context.send(link, p.LinkLimited(wanted.broker, wanted.bytes_per_s), request)

    def _park(self, link: LinkId, message: _OfSubscription, packet: int) -> None:
        """Queue a packet about subscriptions until the first ticks of our pubends are chosen.

        Until then this broker may have had a former life, whose subscriptions others still have to report.
        """
        self._parked_bytes += _memory_of(message)
        if len(self._parked) >= PARKED_MAX or self._parked_bytes > PARKED_BYTES_MAX:
            self._parked_bytes -= _memory_of(message)
            raise TooManyError(f"this broker has just started and lets at most {PARKED_MAX} subscriptions wait")
        self._parked.append((link, message, packet))

    def _forget_parked(self, link: LinkId) -> None:
        self._parked = [entry for entry in self._parked if entry[0] != link]
        self._parked_bytes = sum(_memory_of(message) for _, message, _ in self._parked)

    def _take_begun(self, now: float) -> None:
        """Continue with what waited for the first ticks of our pubends."""
        begun = self._lives.take_begun()
        if not begun:
            return
        for pubend in begun:
            self._subscribing.activation.check_waiting(pubend, now)
        if self._lives.waits:
            return
        self._publishing.begin(anew_ms=self._lives.anew_ms)
        if self._parked:
            parked, self._parked, self._parked_bytes = self._parked, [], 0
            for link, message, packet in parked:
                try:
                    self._from_client(message, link, None, packet, now)
                except PostroadError as error:
                    self._context.refuse(link, packet, error)

    def _leave_unadmitted(self, link: LinkId, message: p.Unsubscribe, waiting: p.Subscribe, packet: int) -> None:
        """End a subscription that waited for verdicts. Under its name there may be one from before, here or elsewhere."""
        if message.forget and waiting.name is not None:
            error = f"not deleted: the durable subscription {waiting.name!r} was not active yet here; try again later"
            self._context.refuse(link, packet, DurableElsewhereError(error))
        else:
            self._context.send(link, p.Unsubscribed(message.handle), packet)

    def _from_broker(self, message: p.Packet, link: LinkId, batch: Batch | None, now: float) -> None:
        if not self._believe(message, link, batch):
            self._disbelieved += 1
            return
        match message:
            case p.Knowledge():
                known = KnowledgeRange(message.lo, message.hi, message.epoch, batch)
                self._spread_knowledge(message.pubend, known, now, upstream=self._neighbours[link])
            case p.Nack():
                self._past.answer_nack(link, message, now)
            case p.Interest():
                self._child_stream(message.pubend).child_interest(link, message, self._context.filter, now)
                self._subscribing.activation.check_waiting(message.pubend, now)
            case p.InterestActive():
                stream = self._streams[message.pubend]
                if stream.interest_active(link, message.epoch, message.tick, now):
                    self._subscribing.activation.check_waiting(message.pubend, now, message.tick)
                    self._edge.advance(message.pubend, now)
            case p.Released():
                self._take_released(message, link)
            case p.LogDamaged():
                self._streams[message.pubend].damaged(message)
                self._edge.damaged(message.pubend, message.lo, message.hi, now)
            case p.HorizonsReserved():
                self._lives.horizons_told(self._neighbours[link], message)
            case p.CongestionQuery():
                self._feedback.queried(message, self._streams[message.pubend], self._edge.streams[message.pubend])
            case p.CongestionAlert():
                if message.pubend in self._streams:
                    self._feedback.alerted(message, self._streams[message.pubend], now, self._context.wall_ms)
            case p.LinkState():
                self._link_state(message, link, now)
            case p.DurableHome():
                self._subscribing.moves.home_learned(message, link, now)
                self._admission.home_changed(message.name)
            case a.AdvertisementsWanted():
                self._admission.spread.wanted(link, message)
            case a.Advertisements():
                self._admission.spread.received(link, message)
            case a.ReservationScope():
                self._admission.reservations.take_scope(link, message)
            case a.Reserve():
                self._admission.reservations.take_request(link, message, now)
            case a.Verdict():
                self._admission.reservations.take_verdict(link, message)
                self._begin_admitted(now)
            case a.Decision():
                self._admission.reservations.take_decision(link, message)
            case p.Unicast():
                self._unicast(message, link, batch, now)
            case _:
                raise WrongRoleError(f"a broker must not send {type(message).__name__}")

    def _believe(self, message: p.Packet, link: LinkId, batch: Batch | None) -> bool:
        """Tell whether to act on a packet of a neighbour; raise `ImplausibleError` if it is impossible.

        Knowledge is accepted from the stream's parent only. Late packets of a former parent are ignored and requested again.
        """
        try:
            check(message, batch)
        except ImplausibleError:
            if isinstance(message, p.Unicast) and message.source != self._neighbours[link]:
                return False  # the neighbour only passed it on
            raise
        latest = latest_tick(self._context.wall_ms)
        match message:
            case p.Unicast() if message.source == message.target == self._context.broker:
                return False  # nobody else speaks in our name
            case p.Knowledge():
                return self._is_parent(message.pubend, link) and message.hi <= latest
            case p.InterestActive() | p.Released():
                return self._is_parent(message.pubend, link) and message.tick <= latest
            case p.LogDamaged():
                return self._is_parent(message.pubend, link) and message.hi <= latest
            case p.CongestionQuery():
                return self._is_parent(message.pubend, link) and message.position <= latest
            case p.CatchUpReply():
                return message.hi <= latest and message.released <= latest
            case _:
                return True

    def _is_parent(self, pubend: int, link: LinkId) -> bool:
        stream = self._streams.get(pubend)
        return stream is not None and not stream.hosted_here and stream.parent == link

    def _child_stream(self, pubend: int) -> Stream:
        """Return the stream that a neighbour is interested in. We may not have received its broker's link state yet."""
        if pubend not in self._streams and len(self._streams) >= len(self._router.pubends()) + UNANNOUNCED_MAX:
            raise TooManyError(
                f"pubend {pubend:x} is not announced, and neither are {UNANNOUNCED_MAX} others that were mentioned"
            )
        return self._streams.ensure(pubend)

    def _link_state(self, record: p.LinkState, link: LinkId, now: float) -> None:
        if record.origin == self._context.broker:
            self._lives.heard_of_self(record)
            return
        life = self._router.life(record.origin)
        if self._router.receive(record, link):
            self._context.remember_broker(record.origin, record.pubends)
            if self._router.life(record.origin) != life:
                self._lives.remember_life(record.origin, self._router.life(record.origin))
                self._keeper.tell_again(record.origin)
            self._routes_changed(now)

    def _unicast(self, message: p.Unicast, link: LinkId, batch: Batch | None, now: float) -> None:
        if isinstance(message, p.CatchUp) and self._past.answer_catch_up(message):
            return
        if message.target != self._context.broker:
            onward = self._router.route(message.target)
            if onward is not None and onward != link and message.hops > 0:
                passed = msgspec.structs.replace(message, hops=message.hops - 1)
                self._orders.append(Send(onward, passed, batch, data=batch is not None or message.is_data))
                self._observe_past(message, link, batch, onward)
            return
        self._observe_past(message, link, batch, None)
        match message:
            case p.Hold():
                self._releasing.take(message)
            case p.Remembered():
                self._lives.told(message, now, is_neighbour=message.source in self._neighbours.values())
                self._tell_lost()
            case p.HoldConfirmed() if message.refused:
                self._lives.hold_refused(message)
            case p.HoldConfirmed():
                self._releasing.confirmed(message)
                self._subscribing.activation.answer_ready(now)
            case p.CatchUpReply() if message.request >= OF_A_READ:
                self._range_reads.caught_up(message, batch, now)
            case p.CatchUpReply():
                self._subscribing.catching_up.take_reply(message, batch, now)
            case p.PubendsQuery():
                self._range_reads.asked(message)
            case p.PubendsReply():
                self._range_reads.told(message)
                self._subscribing.activation.horizons_told(message, now)
            case p.HomeQuery():
                self._subscribing.moves.home_asked(message)
            case p.NameReserve():
                self._subscribing.moves.take_reserve(message, now)
            case p.NameAnswer():
                self._subscribing.moves.name_answered(message, now)
            case p.NameRelease():
                self._subscribing.moves.naming.released(message)
            case p.HomeReply():
                cursors = believable(message.cursors, self._context.wall_ms)
                self._subscribing.moves.home_answered(msgspec.structs.replace(message, cursors=cursors), now)
            case _:
                pass  # a catch-up for a pubend that is no longer here: its sender repeats it elsewhere

    # --- streams ---

    def _spread_knowledge(self, pubend: int, known: KnowledgeRange, now: float, *, upstream: int = 0) -> None:
        stream = self._streams.ensure(pubend)
        if known.rows is not None:
            self._admission.handled(len(known.rows))
        frontier = stream.cache.frontier
        news = stream.learn(known, upstream if self._config.observed else 0)
        if news or stream.cache.frontier > frontier:
            self._edge.advance(pubend, now)

    def _take_released(self, message: p.Released, link: LinkId) -> None:
        stream = self._streams.get(message.pubend)
        if stream is None or stream.parent != link:
            return
        self._edge.released(message.pubend, message.tick)
        stream.pass_on(message)

    def _log_released(self, pubend: int, tick: int) -> None:
        self._pubends[pubend].released = max(self._pubends[pubend].released, tick)

    def _observe_past(self, message: p.Unicast, link: LinkId, batch: Batch | None, onward: LinkId | None) -> None:
        """Observe the rows of a catch-up that is addressed to us or passes through."""
        if self._config.observed and batch is not None and isinstance(message, p.CatchUpReply):
            sent = {} if onward is None else {onward: np.arange(len(batch))}
            self._orders.append(Routed(message.pubend, self._neighbours[link], batch, sent))

    # --- links and time ---

    def _link_up(self, link: LinkId, broker: int, cost: int, now: float) -> None:
        cost = min(max(cost, 1), COST_MAX)  # else other brokers would refuse our link state
        self._neighbours[link] = broker
        self._router.link_up(link, broker, cost)
        for home in self._durables.told_to_others():
            self._context.send(link, home)
        self._lives.tell_neighbour(link, broker)
        self._admission.link_up(link, broker)
        self._routes_changed(now)

    def _link_lost(self, link: LinkId, now: float) -> None:
        if link in self._clients:
            del self._clients[link]
            self._publishing.link_lost(link)
            self._forget_parked(link)
            self._sharing.link_lost(link)
            self._subscribing.link_lost(link, now)
            self._range_reads.link_lost(link)
            self._writing.link_lost(link)
            self._admission.client_lost(link)
            del self._context.rights[link]
        elif link in self._neighbours:
            del self._neighbours[link]
            for stream in self._streams.values():
                stream.link_lost(link, now)
            self._router.link_lost(link)
            self._admission.link_lost(link)
            self._routes_changed(now)
            self._admission.routes_changed()  # also where nothing is in reach any more, which is no change of a route
            self._begin_admitted(now)

    def _routes_changed(self, now: float) -> None:
        """Apply changed routes and pubends; only the streams of the brokers concerned are visited."""
        router = self._router
        self._lives.tell_others()
        changed = router.take_changes()
        if not changed:
            return
        pubends = [pubend for broker in changed for pubend in router.pubends_of(broker)]
        for pubend in pubends:
            stream = self._streams.ensure(pubend)
            if not stream.hosted_here:
                stream.set_parent(router.parent(pubend), now)
        self._subscribing.activation.routes_changed(pubends, now)
        self._admission.routes_changed()
        self._tell_holds = True

    def _announce_silence(self, now: float) -> None:
        for pubend, known in self._publishing.silence():
            self._spread_knowledge(pubend, known, now)

    def _housekeeping(self, now: float) -> None:
        self._lives.store_heard(now)
        self._publishing.reserve_horizons()
        if self._forget_unreadable:  # the assumptions in its place are stored by now; store the publisher ids with its removal
            self._forget_unreadable = False
            self._publishing.store_next((UNREADABLE, None))
        self._announce_silence(now)
        for stream in self._streams.values():
            stream.flush(now)
        self._edge.begin_telling(max(1, round(TELLING_PERIODS * self._config.silence_s / FAST_S)))
        self._keeper.expire(now)
        self._releasing.tell(again=True)
        self._releasing.release(now)
        if self._durables.dirty:
            self._context.store(self._durables.changes())


def _memory_of(message: _OfSubscription) -> int:
    """Estimate the bytes of memory that a decoded packet takes."""
    match message:
        case p.Subscribe():
            return 256 + 2 * len(message.filter) + 100 * (len(message.positions) + len(message.acknowledged))
        case p.Acknowledge():
            return 256 + 100 * len(message.positions)
        case _:
            return 256
