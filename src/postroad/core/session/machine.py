"""The client's side of the overlay as a pure machine: what to send, what to believe, what to tell the application.

The driver reports connections (`connected`, `disconnected`), packets (`receive`, `refused`) and the time (`clock`); the
application's calls are `publish`, `subscribe`, `acknowledge` and so on. Then the driver takes `outputs()` (packets to send,
in order) and `events()` (for the application, in order).

The session has one *main* link at a time: subscriptions and new messages go there. It keeps what was published elsewhere and
not acknowledged: that is in doubt, belongs to the broker it was given to (a message id names it), and leaves again only when
a link to that very broker is up, main or not. `homes()` names the brokers the session would like a second link to.

Invariants: ids of one registration ascend strictly; the application sees each matching message of a pubend once, in order; a
message is dropped from the window only when its own broker called it durable or refused it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.admission import MILLI, AdvertiseAccepted, SubscriptionRejected, Unadvertised
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgementStored,
    Advance,
    Deliver,
    EpochOpened,
    EpochSealed,
    Flow,
    Gap,
    Joined,
    ListPubends,
    OpenPublisher,
    Packet,
    Pubends,
    PublishAcknowledged,
    PublisherOpened,
    PublishRefused,
    RangeRead,
    RowsAcknowledged,
    SharedHome,
    Started,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from postroad.core.session import events as told
from postroad.core.session.advertising import SessionAdvertisements
from postroad.core.session.events import (
    Event,
    MessagesRefused,
    Missed,
    PubendJoined,
    PublisherFailed,
    QuestionAnswered,
    QuestionFailed,
    RowsDelivered,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
    Writable,
)
from postroad.core.session.named_writers import SessionWriters
from postroad.core.session.publishing import Doubt, PublishingConfig, Registration, Throttled, id_tick
from postroad.core.session.range_reads import SessionReads
from postroad.core.session.sharing import Membership, SessionMembers
from postroad.core.session.subscribing import SubscriptionState
from postroad.errors import (
    AdmissionError,
    DurableBusyError,
    NotConnectedError,
    PostroadError,
    ProtocolViolationError,
    SkewError,
    UnfinishedError,
    error_of_code,
)
from postroad.types import COUNTER_BITS, AttributeValue, MessageId

REGISTRATIONS_MAX: Final = 64
SKEWS_MAX: Final = 8  # refusals for skew in a row; then the messages are given up
HANDLE_MAX: Final = 0xFFFF_FFFF
QUESTIONS_MAX: Final = 64  # under way; a broker takes no more of one client


@dataclass(frozen=True, slots=True)
class SessionConfig:
    publishing: PublishingConfig = field(default_factory=PublishingConfig)
    retry_s: float = 0.1  # between tries of a subscription or a publisher, doubled each time
    retry_s_max: float = 5.0
    holes_max: int = 8  # in a row; then the broker is not to be trusted


@dataclass(slots=True)
class _PublisherLife:
    key: int
    registrations: dict[int, Registration] = field(default_factory=dict)  # by broker
    current: Registration | None = None
    made: set[tuple[int, int]] = field(default_factory=set)  # (broker, publisher id) of every registration it ever had
    refusals: int = 0
    skews: int = 0  # refusals for skew since the last acknowledgement
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """A publisher that asked for an id, or to go on with one, and waits for the answer."""

    publisher: int
    link: LinkId
    broker: int
    resume: int | None


class Session:
    """One client. `now` is monotonic seconds; keys of publishers and subscriptions are the session's own numbers."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config: Final = config or SessionConfig()
        self.main: LinkId | None = None
        self.publishers: Final[dict[int, _PublisherLife]] = {}
        self.subscriptions: Final[dict[int, SubscriptionState]] = {}
        self._links: dict[LinkId, int] = {}  # -> broker
        self._clock_ms = 0
        self._keys = 0
        self._packets = 0
        self._openings: dict[int, _Opening] = {}  # by packet id
        self._subscribing: dict[int, int] = {}  # packet id -> key
        self._unsubscribing: dict[int, int] = {}  # packet id -> key
        self._questions: dict[int, None] = {}  # packet ids
        self._handles: dict[int, SubscriptionState] = {}  # by handle on the wire
        self._handle = 0
        self._outputs: list[Send] = []
        self._events: list[Event] = []
        self._reading = SessionReads(self._question, self._tell, self._retry_delay)
        self.advertising: Final = SessionAdvertisements(self._ask_over, self._tell, self._retry_delay)
        self.writing: Final = SessionWriters(self._question, self._send_main, self._tell, self._retry_delay)
        self.sharing: Final = SessionMembers(self._question, self._send_on_main, self._tell, self._retry_delay, self._next_handle)

    # --- the driver ------------------------------------------------------------------------------------------------------

    def clock(self, milliseconds: int) -> None:
        """Tell the client's clock; call it before handing anything in, and before `outputs`.

        It may show any time, since brokers tell theirs; best is one that is never stepped.
        """
        self._clock_ms = milliseconds

    def connected(self, link: LinkId, broker: int, *, now: float, main: bool = True) -> None:
        """Take in that a broker answered the hello of this link."""
        self._links[link] = broker
        self.advertising.connected(link, main=main)  # before a publisher opens, so that it gets no default
        if main:
            assert self.main is None, "the former main link must be reported lost first"
            self.main = link
            for subscription in self.subscriptions.values():
                self._subscribe(subscription)
            self.sharing.connected()
            self._reading.connected()
            self.writing.connected()
        for publisher in self.publishers.values():
            self._open(publisher)
        self.wake(now=now)

    def disconnected(self, link: LinkId, *, now: float) -> None:
        """Take in that the link is gone."""
        self._links.pop(link, None)
        self.advertising.disconnected(link)
        was_main = link == self.main
        if was_main:
            self.main = None
        self._openings = {packet: opening for packet, opening in self._openings.items() if opening.link != link}
        for publisher in self.publishers.values():
            for registration in publisher.registrations.values():
                if registration.link == link:
                    registration.closed()
            self._open(publisher)
        if was_main:
            self._fail_questions(NotConnectedError("the connection was lost before an answer arrived"))
            self._subscribing.clear()
            self._unsubscribing.clear()
            self.sharing.disconnected()
            self._reading.disconnected()
            self.writing.disconnected()
            for subscription in self.subscriptions.values():
                subscription.active = False
            self._end_abandoned()
        self.wake(now=now)

    def receive(
        self, message: Packet, *, link: LinkId, now: float, batch: Batch | None = None, packet: int = 0
    ) -> None:  # the machines' contract
        """Take a packet of the broker."""
        match message:
            case _ if link == self.main and self.sharing.concerns(message):
                self.sharing.receive(message, batch, packet, now)
            case Deliver():
                self._deliver(message, batch)
            case PublishAcknowledged():
                if link != self.main or not self.writing.acknowledged(message):
                    self._take_acknowledgement(message, link)
            case Advance():
                self._advance(message)
            case AcknowledgementStored():
                self._acknowledgement_stored(message)
            case PublishRefused():
                if link != self.main or not self.writing.publish_refused(message):
                    self._publish_refused(message, link, now)
            case PublisherOpened():
                self._take_opened(message, link, packet, now)
            case Subscribed():
                self._take_subscribed(message, packet)
            case Started():
                self._take_start(message)
            case Gap():
                self._gap(message)
            case Unsubscribed():
                self._take_unsubscribed(message, packet, now)
            case RangeRead():
                self._reading.answered(message, batch, packet, now)
            case Pubends():
                self._reading.listed(message, packet)
            case AdvertiseAccepted():
                self.advertising.accepted(message, packet)
            case Unadvertised():
                self.advertising.withdrawn(packet)
            case SubscriptionRejected():
                self._take_rejection(message, packet, now)
            case EpochOpened():
                self.writing.opened(message, packet, self._clock_ms)
            case EpochSealed():
                self.writing.sealed(message, packet)
            case Joined() | RowsAcknowledged() | SharedHome():
                pass  # the member has left
            case _ if message.is_answer:
                if packet in self._questions:
                    del self._questions[packet]
                    self._events.append(QuestionAnswered(packet, message))
            case _:
                raise ProtocolViolationError(f"a broker must not send {type(message).__name__} to a client")

    def refused(self, packet: int, error: PostroadError, *, link: LinkId, now: float) -> None:
        """Take in that the broker answered the request with an error."""
        opening = self._openings.pop(packet, None)
        if opening is not None and opening.link == link:
            self._open_refused(opening, error, now)
        key = self._subscribing.pop(packet, None)
        if key is not None and key in self.subscriptions:
            self._subscribe_refused(self.subscriptions[key], error, now)
        key = self._unsubscribing.pop(packet, None)
        if key is not None and key in self.subscriptions:
            self._end(self.subscriptions[key], error)
        if link == self.main:
            self.advertising.refused(packet, error, now)
            self.sharing.refused(packet, error, now)
            self._reading.refused(packet, error, now)
            self.writing.refused(packet, error, now)
        if packet in self._questions and link == self.main:
            del self._questions[packet]
            self._events.append(QuestionFailed(packet, error))

    def wake(self, *, now: float) -> None:
        """Try again what a broker refused for the time being."""
        for subscription in list(self.subscriptions.values()):
            if subscription.retry_at is not None and subscription.retry_at <= now:
                subscription.retry_at = None
                self._subscribe(subscription)
        for publisher in self.publishers.values():
            if publisher.retry_at is not None and publisher.retry_at <= now:
                publisher.retry_at = None
                self._open(publisher)
        self.advertising.wake(now)
        self.sharing.wake(now)
        self._reading.wake(now)
        self.writing.wake(now)

    def deadline(self) -> float | None:
        """When `wake` should be called."""
        waiting = [each.retry_at for each in self.subscriptions.values()] + [each.retry_at for each in self.publishers.values()]
        waiting += self.sharing.deadlines() + self._reading.deadlines() + self.writing.deadlines() + self.advertising.deadlines()
        return min((time for time in waiting if time is not None), default=None)

    def outputs(self) -> list[Send]:
        """Return what to send, in order."""
        for publisher in self.publishers.values():
            for registration in publisher.registrations.values():
                if registration.link is not None:
                    link = registration.link
                    self._outputs += [
                        Send(link, message, batch, data=True) for message, batch in registration.take(self._clock_ms)
                    ]
        self.writing.send_frames(self._clock_ms)
        self.sharing.send_acknowledgements()
        for subscription in self.subscriptions.values():
            if subscription.active and subscription.has_news():
                self._send_acknowledgement(subscription)
        outputs, self._outputs = self._outputs, []
        return outputs

    def events(self) -> list[Event]:
        """Return what the application should know, in order."""
        events, self._events = self._events, []
        return events

    def homes(self) -> list[int]:
        """Return the brokers that hold messages in doubt and have no link, while the main link is to another one."""
        if self.main is None:
            return []
        linked = self._links.values()
        return sorted({doubt.broker for key in self.publishers for doubt in self._doubts(key) if doubt.broker not in linked})

    # --- publishing ------------------------------------------------------------------------------------------------------

    def open_publisher(self) -> int:
        """Begin a publisher; `Writable` tells when it may publish."""
        key = self._next_key()
        self.publishers[key] = publisher = _PublisherLife(key)
        self._open(publisher)
        return key

    def close_publisher(self, key: int) -> None:
        """Forget a publisher with all it has in doubt."""
        self.publishers.pop(key, None)

    def publish(self, key: int, attributes: Mapping[str, AttributeValue], payload: bytes) -> MessageId | None:
        """Take a message into the window and return its id; None when there is no room or no broker now."""
        registration = self.publishers[key].current
        if registration is None or not registration.has_room():
            return None
        return registration.add(attributes, payload, self._clock_ms)

    def registration(self, key: int) -> Registration | None:
        """Return where the publisher may publish now: for batches, whose ids are made before they are built."""
        registration = self.publishers[key].current
        return registration if registration is not None and registration.has_room() else None

    def throttled(self, key: int) -> Throttled | None:
        """Say why the publisher may not publish faster, if the overlay cannot take more."""
        publisher = self.publishers.get(key)
        return None if publisher is None or publisher.current is None else publisher.current.throttled

    def outstanding(self, key: int) -> int:
        """Count the messages that are not known to be durable, wherever they were sent."""
        return sum(registration.messages for registration in self.publishers[key].registrations.values())

    def is_publishers(self, key: int, broker: int, publisher_id: int) -> bool:
        """Tell whether a publisher ever made ids with this publisher id at this broker."""
        return key in self.publishers and (broker, publisher_id) in self.publishers[key].made

    def first_outstanding(self, key: int, broker: int, publisher_id: int) -> int | None:
        """Return the tick of the first id of a registration that is neither durable nor refused; None when there is none."""
        registration = self.publishers[key].registrations.get(broker) if key in self.publishers else None
        if registration is None or registration.publisher != publisher_id:
            return None
        return registration.first_outstanding()

    def doubtful(self, key: int) -> list[Doubt]:
        """Say what was given to brokers other than the present one, or is unacknowledged while none is there."""
        return self._doubts(key)

    def _doubts(self, key: int) -> list[Doubt]:
        publisher = self.publishers[key]
        others = [each for each in publisher.registrations.values() if each is not publisher.current or each.link is None]
        return [doubt for each in others if (doubt := each.doubt()) is not None]

    def _open(self, publisher: _PublisherLife) -> None:
        """Ask for what the publisher lacks: a registration at the main broker, and one wherever messages are in doubt."""
        main = None if self.main is None else self._links[self.main]
        if publisher.current is not None and (publisher.current.broker != main or publisher.current.link is None):
            publisher.current = None
        if publisher.retry_at is not None:
            return
        asked = {opening.broker for opening in self._openings.values() if opening.publisher == publisher.key}
        for link, broker in self._links.items():
            registration = publisher.registrations.get(broker)
            open_already = broker in asked or (registration is not None and registration.link is not None)
            needed = link == self.main or (registration is not None and registration.messages > 0)
            if needed and not open_already:
                asked.add(broker)
                self._ask_to_open(publisher, link, broker, registration)
        if main is not None and publisher.current is None:
            registration = publisher.registrations.get(main)
            if registration is not None and registration.link is not None and not registration.retiring:
                self._use(publisher, registration)

    def _ask_to_open(self, publisher: _PublisherLife, link: LinkId, broker: int, registration: Registration | None) -> None:
        resume = None if registration is None else registration.publisher
        packet = self.next_packet()
        self._openings[packet] = _Opening(publisher.key, link, broker, resume)
        self._outputs.append(Send(link, OpenPublisher(resume, reopens=True), packet=packet))

    def _take_opened(self, message: PublisherOpened, link: LinkId, packet: int, now: float) -> None:
        opening = self._openings.pop(packet, None)
        publisher = None if opening is None else self.publishers.get(opening.publisher)
        if opening is None or publisher is None or link not in self._links:
            return
        registration = publisher.registrations.get(message.broker)
        if registration is None or registration.publisher != message.publisher:
            registration = Registration(self.config.publishing, message.publisher, message.broker, message.pubend)
            self._keep(publisher, registration)
        skew_ms = message.wall_ms - self._clock_ms
        registration.opened(link, message.window_bytes, skew_ms, message.last, message.skew_tolerance_ms)
        registration.credit = message.credit
        if opening.resume is None and registration.is_ahead(self._clock_ms):  # what it must not repeat lies in the future
            publisher.retry_at = now + self._retry_delay(publisher.refusals)
            publisher.refusals += 1
        else:
            publisher.refusals = 0
        if self._retires(publisher, registration):
            return
        if self.main is not None and self._links[self.main] == message.broker and not registration.retiring:
            self._use(publisher, registration)
        self._events.append(Writable(publisher.key))

    def _keep(self, publisher: _PublisherLife, registration: Registration) -> None:
        """Remember a registration; forget the oldest ones that hold nothing when there are many."""
        idle = [broker for broker, each in publisher.registrations.items() if not each.messages]
        while len(publisher.registrations) >= REGISTRATIONS_MAX and idle:
            del publisher.registrations[idle.pop(0)]
        publisher.registrations[registration.broker] = registration
        publisher.made.add((registration.broker, registration.publisher))

    def _use(self, publisher: _PublisherLife, registration: Registration) -> None:
        publisher.current = registration
        self._events.append(Writable(publisher.key))

    def _open_refused(self, opening: _Opening, error: PostroadError, now: float) -> None:
        publisher = self.publishers.get(opening.publisher)
        if publisher is None:
            return
        if opening.resume is not None and not error.retryable:
            self._resume_refused(publisher, opening, error)
        elif error.retryable:
            publisher.retry_at = now + self._retry_delay(publisher.refusals)
            publisher.refusals += 1
        else:
            self._events.append(PublisherFailed(publisher.key, error))

    def _resume_refused(self, publisher: _PublisherLife, opening: _Opening, error: PostroadError) -> None:
        """Give up what was in doubt at a broker that does not know the publisher any more; the application is told."""
        registration = publisher.registrations.pop(opening.broker)
        if registration.messages:
            doubt = registration.doubt()
            assert doubt is not None
            self._events.append(MessagesRefused(publisher.key, bytes(doubt.first), bytes(doubt.last), error))
        self._open(publisher)

    def _take_acknowledgement(self, message: PublishAcknowledged, link: LinkId) -> None:
        found = self._registration(message.publisher, link)
        if found is not None:
            publisher, registration = found
            publisher.skews = 0
            registration.credit = message.credit
            sent_ms = registration.acknowledged(message.last)
            if sent_ms is not None and message.wall_ms:
                registration.adjust(message.wall_ms, self._clock_ms, sent_ms)
            self._retires(publisher, registration)
            self._events.append(Writable(publisher.key))

    def _publish_refused(self, message: PublishRefused, link: LinkId, now: float) -> None:
        found = self._registration(message.publisher, link)
        if found is None:
            return
        publisher, registration = found
        if message.code == SkewError.code and message.wall_ms:
            self._take_skew(publisher, registration, message, now)
            return
        if not message.first:  # no message is refused: another connection has opened the publisher
            self._open_again(publisher, registration, now)
            return
        registration.refused(id_tick(message.first), id_tick(message.last))
        self._take_refusal(publisher, registration, message.first, message.last, message)
        if not self._is_opening(publisher, link) and publisher.registrations.get(registration.broker) is registration:
            # The broker ignores the rest until then. Nothing new may leave before that either: it would overtake the rest.
            registration.closed()
            self._ask_to_open(publisher, link, registration.broker, registration)

    def _is_opening(self, publisher: _PublisherLife, link: LinkId) -> bool:
        return any((each.publisher, each.link) == (publisher.key, link) for each in self._openings.values())

    def _open_again(self, publisher: _PublisherLife, registration: Registration, now: float) -> None:
        """Resume a registration that is not open on its link any more, after a while."""
        registration.closed()
        if publisher.current is registration:
            publisher.current = None
        publisher.retry_at = now + self._retry_delay(publisher.refusals)
        publisher.refusals += 1

    def _take_refusal(
        self, publisher: _PublisherLife, registration: Registration, first: bytes, last: bytes, message: PublishRefused
    ) -> None:
        error = error_of_code(message.code, message.reason)
        self._events += [MessagesRefused(publisher.key, first, last, error), Writable(publisher.key)]
        self._retires(publisher, registration)

    def _take_skew(self, publisher: _PublisherLife, registration: Registration, message: PublishRefused, now: float) -> None:
        """Take the broker's clock, give up what lies in its future, and open again: the rest leaves once more, with its age.

        What lies before the first refused message was taken, and may be on its way to the broker's disk: it is not given up.
        """
        registration.skew_ms = message.wall_ms - self._clock_ms
        registration.closed()
        if publisher.current is registration:
            publisher.current = None
        latest_ms = message.wall_ms + registration.tolerance_ms
        publisher.skews += 1
        if publisher.skews > SKEWS_MAX:
            latest_ms = 0
        publisher.retry_at = now + self._retry_delay(publisher.skews)
        latest = (latest_ms + 1 << COUNTER_BITS) - 1 if latest_ms else 0
        dropped = registration.drop_after(max(latest, id_tick(message.first) - 1))
        if dropped is not None:
            first, last = (message.first[:8] + tick.to_bytes(8, "big") for tick in dropped)
            self._take_refusal(publisher, registration, first, last, message)
        else:
            self._retires(publisher, registration)

    def _retires(self, publisher: _PublisherLife, registration: Registration) -> bool:
        """Let a registration with ids ahead of its broker's clock take no more; when it is empty, forget it for a new one."""
        registration.retiring = registration.retiring or registration.is_ahead(self._clock_ms)
        if not registration.retiring:
            return False
        if publisher.current is registration:
            publisher.current = None
        if registration.messages:
            return False
        del publisher.registrations[registration.broker]
        self._open(publisher)
        return True

    def _registration(self, publisher_id: int, link: LinkId) -> tuple[_PublisherLife, Registration] | None:
        broker = self._links.get(link)
        for publisher in self.publishers.values():
            registration = publisher.registrations.get(broker) if broker is not None else None
            if registration is None or registration.publisher != publisher_id:
                continue
            if registration.link == link or (registration.link is None and self._is_opening(publisher, link)):
                return publisher, registration
        return None

    # --- subscribing -----------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        filter_text: str,
        *,
        name: str | None = None,
        positions: Mapping[int, int] | None = None,
        earliest: bool = False,
        saved: bool = False,
        criterion: str = "",
    ) -> int:
        """Begin a subscription; `SubscriptionActive` tells when and where it has started.

        With `saved`, the application keeps the positions in a file, and the broker hears only of those it `approve`s.
        """
        key = self._next_key()
        self.subscriptions[key] = subscription = SubscriptionState(
            key, filter_text, name, earliest, saved=saved, criterion=criterion
        )
        subscription.begin(positions or {})
        self._subscribe(subscription)
        return key

    def join(
        self,
        filter_text: str,
        *,
        name: str,
        ordered_by: str = "",
        credit: int,
        earliest: bool = False,
        criterion: str = "",
    ) -> int:
        """Become a member of a shared subscription; see `sharing`. `ordered_by` is the attribute that orders, if any."""
        key = self._next_key()
        self.sharing.join(Membership(key, filter_text, name, ordered_by, credit, earliest, criterion))
        return key

    def acknowledge(self, key: int, pubend: int, tick: int, *, confirm: bool = False) -> None:
        """Note that the application has done with everything of the pubend up to this tick.

        With `confirm`, `AcknowledgementStored` follows when the broker has stored it; only for a subscription with a name.
        """
        subscription = self.subscriptions[key]
        subscription.acknowledge(pubend, tick)
        if confirm and subscription.name is not None and not subscription.saved:
            subscription.wants_confirmation(pubend)

    def is_stored(self, key: int, positions: Mapping[int, int]) -> bool:
        """Tell whether the broker has confirmed that acknowledgements up to these ticks are on its disk."""
        return key in self.subscriptions and self.subscriptions[key].is_stored(positions)

    def positions(self, key: int) -> dict[int, int]:
        """Return, per pubend, the tick up to which the application has done with everything: what to save."""
        return self.subscriptions[key].acknowledged()

    def flow(self, key: int, *, is_open: bool) -> None:
        """Ask the broker for no more rows of this subscription, or to go on; some may still be on their way."""
        subscription = self.subscriptions[key]
        subscription.open = is_open
        if subscription.active and self.main is not None:
            self._outputs.append(Send(self.main, Flow(subscription.handle, is_open)))

    def approve(self, key: int, positions: Mapping[int, int]) -> None:
        """Note that these positions are safe in the application's file."""
        if key in self.subscriptions:
            self.subscriptions[key].approve(positions)

    def unsubscribe(self, key: int, *, forget: bool = False) -> None:
        """End a subscription. `SubscriptionEnded` follows; a durable one waits for its client unless `forget`.

        Only its broker can delete a durable subscription. Where that is not confirmed, the event says so.
        """
        subscription = self.subscriptions[key]
        subscription.ending, subscription.forget = True, forget and subscription.name is not None
        if self.main is not None and subscription.handle and subscription.retry_at is None:
            if subscription.active and subscription.has_news():
                self._send_acknowledgement(subscription)
            packet = subscription.unsubscribing = self.next_packet()
            self._unsubscribing[packet] = key
            self._outputs.append(Send(self.main, Unsubscribe(subscription.handle, forget), packet=packet))
        else:
            self._end(subscription, _not_deleted(subscription))

    def _send_acknowledgement(self, subscription: SubscriptionState) -> None:
        if self.main is None:
            return
        positions = subscription.take_acknowledged()
        confirm = not subscription.awaited.keys().isdisjoint(positions)
        self._outputs.append(Send(self.main, Acknowledge(subscription.handle, positions, confirm)))

    def _acknowledgement_stored(self, message: AcknowledgementStored) -> None:
        subscription = self._handles.get(message.handle)
        if subscription is not None:
            subscription.confirmed(message.positions)
            self._events.append(told.PositionsStored(subscription.key, dict(message.positions)))

    def _subscribe(self, subscription: SubscriptionState) -> None:
        if self.main is None or subscription.retry_at is not None or subscription.ending:
            return
        self._handles.pop(subscription.handle, None)
        subscription.handle = self._next_handle()
        subscription.active = False
        self._handles[subscription.handle] = subscription
        packet = self.next_packet()
        self._subscribing[packet] = subscription.key
        self._outputs.append(Send(self.main, subscription.request(), packet=packet))

    def _take_subscribed(self, message: Subscribed, packet: int) -> None:
        self._subscribing.pop(packet, None)
        subscription = self._handles.get(message.handle)
        if subscription is None:
            return
        subscription.active = True
        subscription.rejected = False
        subscription.refusals = 0
        for pubend, tick in sorted(message.starts.items()):
            self._take_gap(subscription, pubend, subscription.join(pubend, tick))
        if not subscription.open and self.main is not None:
            self._outputs.append(Send(self.main, Flow(subscription.handle, open=False)))
        subscription.changed.update(subscription.pubends)  # a broker we came back to may remember less
        self._events.append(SubscriptionActive(subscription.key, dict(message.starts)))

    def _take_start(self, message: Started) -> None:
        subscription = self._handles.get(message.handle)
        if subscription is not None:
            self._take_gap(subscription, message.pubend, subscription.join(message.pubend, message.tick))
            subscription.changed.add(message.pubend)  # the broker may know an older acknowledgement
            self._events.append(PubendJoined(subscription.key, message.pubend, message.tick))

    def _deliver(self, message: Deliver, batch: Batch | None) -> None:
        subscription = self._handles.get(message.handle)
        if subscription is None or subscription.ending:
            return
        assert batch is not None, "a Deliver carries rows"
        fresh = subscription.clip(message.pubend, message.lo, message.hi, batch)
        if fresh is None:
            self._hole(subscription, message)
        elif len(fresh):
            self._events.append(RowsDelivered(subscription.key, message.pubend, fresh))

    def _hole(self, subscription: SubscriptionState, message: Deliver) -> None:
        """Begin again from our position. A broker that does this over and over is given up."""
        subscription.holes += 1
        if subscription.holes > self.config.holes_max:
            raise ProtocolViolationError(
                f"pubend {message.pubend:x} was delivered with holes {subscription.holes} times in a row"
            )
        assert self.main is not None
        self._outputs.append(Send(self.main, Unsubscribe(subscription.handle), packet=self.next_packet()))
        self._subscribe(subscription)

    def _advance(self, message: Advance) -> None:
        subscription = self._handles.get(message.handle)
        if subscription is not None:
            for pubend, tick in message.positions.items():
                subscription.advance(pubend, tick)

    def _gap(self, message: Gap) -> None:
        subscription = self._handles.get(message.handle)
        if subscription is not None:
            self._take_gap(subscription, message.pubend, subscription.skip(message.pubend, message.lo, message.hi))

    def _take_gap(self, subscription: SubscriptionState, pubend: int, missing: tuple[int, int] | None) -> None:
        if missing is not None:
            self._events.append(Missed(subscription.key, pubend, *missing))

    def _take_unsubscribed(self, message: Unsubscribed, packet: int, now: float) -> None:
        """Take note of the end; one we did not ask for means that a durable subscription has another home: ask again."""
        subscription = self._handles.get(message.handle)
        if subscription is None:
            return
        if subscription.ending:  # a broker that just stopped being its home says the same, without being asked
            self._end(subscription, None if packet == subscription.unsubscribing else _not_deleted(subscription))
            return
        self._handles.pop(message.handle)
        subscription.active = False
        subscription.retry_at = now + self._retry_delay(subscription.refusals)
        subscription.refusals += 1

    def _subscribe_refused(self, subscription: SubscriptionState, error: PostroadError, now: float) -> None:
        """Tell the application of a first refusal; a subscription that was active tries again while it may help."""
        if subscription.ending:
            self._end(subscription, error)
        elif subscription.starts and (error.retryable or isinstance(error, DurableBusyError)):  # it may be our own old link
            subscription.retry_at = now + self._retry_delay(subscription.refusals)
            subscription.refusals += 1
        else:
            self._forget(subscription)
            self._events.append(SubscriptionFailed(subscription.key, error))

    def _take_rejection(self, message: SubscriptionRejected, packet: int, now: float) -> None:
        """Take in that a subscription was not admitted."""
        self._subscribing.pop(packet, None)
        subscription = self._handles.get(message.handle)
        if subscription is not None:
            largest = None if message.largest is None else message.largest / MILLI
            subscription.rejected = True
            error = AdmissionError(message.refusals, message.brokers, largest, message.fitting)
            self._subscribe_refused(subscription, error, now)

    def _end_abandoned(self) -> None:
        for subscription in [each for each in self.subscriptions.values() if each.ending]:
            self._end(subscription, _not_deleted(subscription))

    def _end(self, subscription: SubscriptionState, error: PostroadError | None = None) -> None:
        self._forget(subscription)
        self._events.append(SubscriptionEnded(subscription.key, error if subscription.forget else None))

    def _forget(self, subscription: SubscriptionState) -> None:
        self.subscriptions.pop(subscription.key, None)
        self._handles.pop(subscription.handle, None)
        self._unsubscribing.pop(subscription.unsubscribing, None)

    # --- reading ---------------------------------------------------------------------------------------------------------

    def read(self, pubend: int, lo: int, hi: int, filter_text: str = "", *, bare: bool = False) -> int:
        """Begin to read (lo, hi] of a pubend: `RangePiece`s follow up to `hi`, or `RangeFailed`. Call `taken` for each piece."""
        key = self._next_key()
        self._reading.read(key, pubend, filter_text, lo, hi, bare=bare)
        return key

    def list_pubends(self, listing: ListPubends = ListPubends()) -> int:  # noqa: B008  # frozen
        """Ask which pubends there are; `PubendsListed` follows."""
        key = self._next_key()
        self._reading.list_pubends(key, listing)
        return key

    def taken(self, key: int) -> None:
        """Note that the application has taken a piece of a range."""
        self._reading.taken(key)

    def end_read(self, key: int) -> None:
        """Give up a range or a list."""
        self._reading.end(key)

    # --- writing ---------------------------------------------------------------------------------------------------------

    def open_writer(self, name: str, epoch: int) -> int:
        """Begin batch `epoch` of a named writer, for the first time or again; see `named_writers`."""
        key = self._next_key()
        self.writing.begin(key, name, epoch)
        return key

    def _send_main(self, message: Packet, batch: Batch) -> None:
        assert self.main is not None
        self._outputs.append(Send(self.main, message, batch, data=True))

    def _tell(self, event: Event) -> None:
        self._events.append(event)

    def _send_on_main(self, message: Packet) -> None:
        if self.main is not None:
            self._outputs.append(Send(self.main, message))

    def _question(self, message: Packet) -> int:
        if self.main is None:
            return 0
        packet = self.next_packet()
        self._outputs.append(Send(self.main, message, packet=packet))
        return packet

    # --- advertising -----------------------------------------------------------------------------------------------------

    def advertise(self, filter_text: str, millirate: int, name: str | None = None) -> int:
        """Announce what this client publishes; see `advertising`."""
        key = self._next_key()
        self.advertising.begin(key, filter_text, millirate, name)
        return key

    def unadvertise(self, key: int | None = None, *, name: str | None = None) -> int:
        """Withdraw an advertisement, or a durable one by its name; return the key under which its end is told."""
        key = self._next_key() if key is None else key
        self.advertising.end(key, name)
        return key

    def _ask_over(self, link: LinkId, message: Packet) -> int:
        packet = self.next_packet()
        self._outputs.append(Send(link, message, packet=packet))
        return packet

    # --- asking ----------------------------------------------------------------------------------------------------------

    def ask(self, question: Packet) -> int | None:
        """Ask the broker of the main link something; `QuestionAnswered` or `QuestionFailed` name this number.

        None when there is no main link, or too many questions are under way.
        """
        if self.main is None or len(self._questions) >= QUESTIONS_MAX:
            return None
        packet = self.next_packet()
        self._questions[packet] = None
        self._outputs.append(Send(self.main, question, packet=packet))
        return packet

    def _fail_questions(self, error: PostroadError) -> None:
        self._events += [QuestionFailed(packet, error) for packet in self._questions]
        self._questions.clear()

    # --- numbers ---------------------------------------------------------------------------------------------------------

    def _retry_delay(self, refusals: int) -> float:
        return min(self.config.retry_s * 2.0 ** min(refusals, 16), self.config.retry_s_max)

    def _next_handle(self) -> int:
        self._handle = self._handle % HANDLE_MAX + 1
        return self._handle

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys

    def next_packet(self) -> int:
        """Return a new packet id; a driver that sends packets of its own over a link takes theirs from here."""
        self._packets = self._packets % 0xFFFF_FFFF + 1
        return self._packets


def _not_deleted(subscription: SubscriptionState) -> UnfinishedError:
    return UnfinishedError(
        f"no broker confirmed that the durable subscription {subscription.name!r} is deleted, since it was not active or the "
        "connection was lost; delete it again later"
    )
