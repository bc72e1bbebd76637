"""One simulated client: the real client session, and the application behind it.

The application publishes, follows subscriptions and acknowledges what it has done with, at its own pace. What it saw is written
into the history. Its client may crash: then the session is thrown away, and each durable subscription goes on from the
positions its application had saved in a file, or without them. A durable subscription that it wants no more it deletes: where
no broker confirms that, it comes back under the name and asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from postroad.core.batch.build import build_batches
from postroad.core.protocol.admission import MILLI
from postroad.core.protocol.packets import Packet
from postroad.core.session.events import (
    AdvertisementAccepted,
    AdvertisementEnded,
    AdvertisementFailed,
    Event,
    HomeNamed,
    MemberLost,
    MessagesRefused,
    Missed,
    PositionsStored,
    PubendJoined,
    PubendsListed,
    PublisherFailed,
    QuestionAnswered,
    QuestionFailed,
    RangeFailed,
    RangePiece,
    RowsDelivered,
    RowsFinished,
    RowsGiven,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
    Writable,
    WriterChanged,
    WriterFailed,
    WriterSealed,
)
from postroad.core.session.machine import Session, SessionConfig
from postroad.errors import AdmissionError, PostroadError, ProtocolViolationError, error_of_code
from postroad.sim import history as seen
from postroad.sim.brokers import WALL_MS_AT_START, BrokerNode, ids_of
from postroad.sim.frames import Reader, to_bytes
from postroad.sim.history import History
from postroad.sim.network import Cable, CableProfile, End, Network
from postroad.sim.world import World
from postroad.tracking.queries.packets import AskTracks, TracksAnswered
from postroad.tracking.queries.questions import Question
from postroad.types import AttributeValue
from postroad.wire.packets.session import Error

PENDING_MAX: Final = 10_000
WRITTEN_AT_ONCE: Final = 10
IDLE_SAVE_S: Final = 5.0  # as the client does: how often the position file follows a stream without messages
DELETE_AGAIN_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Habits:
    """How an application behaves."""

    keeps_file: bool = True  # saves its positions, together with its work
    acknowledges_after_s: float = 0.0  # how long it works on what it got
    confirms: bool = True  # waits for the broker to have stored an acknowledgement, where it keeps no file
    redial_s: float = 0.1


@dataclass(slots=True)
class Following:
    """One subscription of the application. `subscription` is its name in the history."""

    subscription: str
    filter: str
    name: str | None  # of a durable one
    key: int | None = None  # in the session
    saved: dict[int, int] | None = None  # the position file
    earliest: bool = False
    ended: bool = False
    saver: int | None = None  # the key under which its positions are saved also when nothing comes
    deleting: bool = False  # no broker has confirmed yet that it is deleted
    rejected: bool = False  # the overlay had no room for it when it asked last

    @property
    def durable(self) -> bool:
        return self.name is not None


@dataclass(slots=True)
class Publishing:
    """One publisher of the application."""

    key: int | None = None
    pending: deque[tuple[dict[str, AttributeValue], bytes]] = field(default_factory=deque)
    outstanding: dict[tuple[int, int], deque[bytes]] = field(default_factory=dict)  # (broker, publisher) -> ids


@dataclass(slots=True)
class RangeSeen:
    """A range the application reads: what came of it, and how it ended."""

    pubend: int
    lo: int
    hi: int
    reached: int
    rows: list[tuple[int, bytes]] = field(default_factory=list)  # (tick, payload)
    error: PostroadError | None = None  # why it will not come, or did not yet
    done: bool = False


@dataclass(slots=True)
class BatchSeen:
    """A batch of a named writer that the application writes: rows given so far, and how it ended."""

    rows: list[tuple[dict[str, AttributeValue], bytes]]
    given: int = 0
    sealed: bool = False
    error: PostroadError | None = None


class ClientNode:
    """A client in a simulated world. It dials the brokers of its list in turn."""

    def __init__(
        self,
        world: World,
        network: Network,
        history: History,
        name: str,
        brokers: list[BrokerNode],
        *,
        habits: Habits | None = None,
        profile: CableProfile | None = None,
    ) -> None:
        self.world = world
        self.network = network
        self.history = history
        self.name: Final = name
        self.brokers = brokers  # the first is dialled first
        self.directory: Mapping[int, BrokerNode] = {node.broker: node for node in brokers}  # of all brokers
        self.habits: Final = habits or Habits()
        self.profile: Final = profile or CableProfile(drops_data=False)
        self.following: list[Following] = []
        self.publishing: Publishing | None = None
        self.advertised: list[tuple[str, float, str | None]] = []  # filter, messages per second, name
        self.ranges: dict[int, RangeSeen] = {}  # by key of the session
        self.batches: dict[int, BatchSeen] = {}  # by key of the session
        self.listed: list[PubendsListed] = []
        self.session: Session | None = None
        self.clock_offset_ms = 0
        self.answers: dict[int, TracksAnswered | PostroadError] = {}  # to be taken by whoever asked
        self._deletions: dict[int, Following] = {}  # by the key under which it comes back to be deleted
        self._ends: dict[int, End] = {}
        self._readers: dict[int, Reader] = {}
        self._main: Cable | None = None
        self._second: dict[int, Cable] = {}  # to brokers that hold messages in doubt
        self._wake_at: float | None = None
        self._life = 0
        self._incarnations: dict[int, tuple[int, int]] = {}  # link -> (broker, incarnation)
        self._hearing = (0, 0)

    # --- life

    @property
    def alive(self) -> bool:
        return self.session is not None

    def start(self) -> None:
        assert self.session is None
        self._life += 1
        self.world.note("client", f"{self.name} starts")
        self.session = Session(SessionConfig())
        self.session.clock(self._clock_ms())
        for following in self.following:
            if not following.ended:
                self._subscribe(following)
        for advertised in self.advertised:
            self._advertise(*advertised)
        if self.publishing is not None:
            self.publishing.key = self.session.open_publisher()
        self._dial_main()
        self._act()

    def start_if_down(self) -> None:
        if not self.alive:
            self.start()

    def crash(self, *, lose_file: bool = False) -> None:
        """Lose the session. What was published and not acknowledged is abandoned; subscriptions go on as far as they can."""
        if self.session is None:
            return
        self.world.note("client", f"{self.name} crashes" + (" and loses its file" if lose_file else ""))
        self.record_positions()
        for following in self.following:
            self._crash_following(following, lose_file)
        if self.publishing is not None:
            for ids in self.publishing.outstanding.values():
                for message_id in ids:
                    self.history.add(seen.Abandoned(self.world.now, message_id))
            self.publishing.outstanding.clear()
            self.publishing.pending.clear()
        self.session = None
        self._deletions.clear()
        self._ends.clear()
        self._readers.clear()
        self._wake_at = None
        for cable in (self._main, *self._second.values()):
            if cable is not None:
                self._drop_cable(cable)
        self._main = None
        self._second.clear()

    def _crash_following(self, following: Following, lose_file: bool) -> None:
        following.key = following.saver = None
        following.deleting = False
        if following.ended:
            return
        if not following.durable:
            following.ended = True  # nothing of it is left anywhere
            self.history.add(seen.Ended(self.world.now, following.subscription))
            return
        kept = following.saved if self.habits.keeps_file and not lose_file else None
        following.saved = kept
        self.history.add(seen.Forgot(self.world.now, following.subscription, None if kept is None else dict(kept)))

    def move(self, brokers: list[BrokerNode]) -> None:
        """Dial these brokers from now on, leaving the present one."""
        self.world.note("client", f"{self.name} moves to broker {brokers[0].broker}")
        if self.session is not None and self._main is not None:
            self._leave_main()
            self._act()
        self.brokers = brokers

    def cut_off(self, *, silently: bool = False) -> None:
        """Break the main connection; silently, each end notices in its own time."""
        if self._main is not None:
            if silently:
                self._main.cut()
            else:
                self._main.reset()

    def pause_reading(self, paused: bool) -> None:
        """Stop or go on reading from the main connection."""
        for end in self._ends.values():
            end.far.pause(paused)

    # --- the application

    def ask(self, target: int, question: Question) -> int | None:
        """Ask a broker about its tracks; the answer comes to `answers` under this number. None without a connection."""
        if self.session is None:
            return None
        number = self.session.ask(AskTracks(target, question))
        self._act()
        return number

    def follow(self, filter_text: str, *, subscription: str, name: str | None = None, earliest: bool = False) -> Following:
        """Begin a subscription and keep to it."""
        following = Following(subscription, filter_text, name, earliest=earliest)
        self.following.append(following)
        self.world.note("subscribe", f"{self.name}: {subscription} {'durable ' if name else ''}{filter_text}")
        self.history.add(seen.Asked(self.world.now, subscription, filter_text, following.durable, earliest, name or ""))
        if self.session is not None:
            self._subscribe(following)
            self._act()
        return following

    def read(self, pubend: int, lo: int, hi: int, filter_text: str = "", *, bare: bool = False) -> RangeSeen:
        """Read a range of a pubend."""
        assert self.session is not None
        seen_range = RangeSeen(pubend, lo, hi, lo)
        self.ranges[self.session.read(pubend, lo, hi, filter_text, bare=bare)] = seen_range
        self._act()
        return seen_range

    def write(self, name: str, epoch: int, rows: list[tuple[dict[str, AttributeValue], bytes]]) -> BatchSeen:
        """Write a batch of a named writer."""
        assert self.session is not None
        batch = BatchSeen(rows)
        self.batches[self.session.open_writer(name, epoch)] = batch
        self._act()
        return batch

    def list_pubends(self) -> None:
        assert self.session is not None
        self.session.list_pubends()
        self._act()

    def end(self, following: Following, *, forget: bool = True) -> None:
        """Want nothing more of a subscription."""
        if following.ended:
            return
        self.world.note("unsubscribe", f"{self.name}: {following.subscription}")
        self._record_position(following)
        following.ended = True
        self.history.add(seen.Ended(self.world.now, following.subscription))
        if self.session is None:
            return
        following.deleting = forget and following.durable
        if following.key is not None:
            self.session.unsubscribe(following.key, forget=forget)
            self._act()
        elif following.deleting:
            self._delete_later(following)

    def take_rows(self, following: Following, ready: bool) -> None:
        """Ask the broker to keep the rows of one subscription for now, or to go on."""
        if self.session is None or following.key not in self.session.subscriptions or following.ended:
            return
        self.session.flow(following.key, is_open=ready)
        self._act()

    def leave(self, following: Following, seconds: float) -> None:
        """Let a durable subscription wait at its broker for a while."""
        if self.session is None or following.key is None or following.ended:
            return
        self._record_position(following)
        self.session.unsubscribe(following.key, forget=False)
        self._act()
        following.key = None
        if not self.habits.keeps_file:
            following.saved = None
        self.history.add(seen.Forgot(self.world.now, following.subscription, following.saved and dict(following.saved)))
        self.world.after(seconds, self._again, following, self._life)

    def publish(self, attributes: Mapping[str, AttributeValue], payload: bytes) -> None:
        """Publish, or keep it until the session has room."""
        if self.publishing is None:
            self.publishing = Publishing()
            if self.session is not None:
                self.publishing.key = self.session.open_publisher()
        if len(self.publishing.pending) < PENDING_MAX:
            self.publishing.pending.append((dict(attributes), payload))
        if self.session is not None:
            self._flush()
            self._act()

    def publish_columns(self, rows: list[tuple[dict[str, AttributeValue], bytes]]) -> bool:
        """Publish rows as columns where the session has room for them, else one by one; tell whether they are columns."""
        session, publishing = self.session, self.publishing
        registration = None
        if session is not None and publishing is not None and publishing.key is not None and not publishing.pending:
            registration = session.registration(publishing.key)
        if registration is None:
            for attributes, payload in rows:
                self.publish(attributes, payload)
            return False
        assert session is not None
        assert publishing is not None
        session.clock(self._clock_ms())
        ids = [bytes(each) for each in registration.ids_for(len(rows), self._clock_ms())]
        for piece in build_batches([(each, *row) for each, row in zip(ids, rows, strict=True)]):
            registration.add_batch(piece, piece.size)
        place = registration.broker, registration.publisher
        for message_id, (attributes, payload) in zip(ids, rows, strict=True):
            self.history.add(seen.Published(self.world.now, message_id, attributes, payload))
            publishing.outstanding.setdefault(place, deque()).append(message_id)
        self._act()
        return True

    def advertise(self, filter_text: str, rate: float, name: str | None = None) -> None:
        """Announce what is published, on every connection from now on."""
        self.advertised.append((filter_text, rate, name))
        self.world.note("advertise", f"{self.name}: {rate:g} messages/s of {filter_text}")
        if self.session is not None:
            self._advertise(filter_text, rate, name)
            self._act()

    def _advertise(self, filter_text: str, rate: float, name: str | None) -> None:
        assert self.session is not None
        self.session.advertise(filter_text, int(rate * MILLI), name)

    def give_up_rejected(self) -> None:
        """Want nothing more of subscriptions for which there is no room."""
        for following in self.following:
            if following.ended or self.session is None:
                continue
            if self._is_rejected(following):
                self.end(following)

    def _is_rejected(self, following: Following) -> bool:
        """Tell whether the last answer was that there is no room, also while it asks again."""
        state = None
        if self.session is not None and following.key is not None:
            state = self.session.subscriptions.get(following.key)
        return following.rejected or (state is not None and state.rejected)

    def record_positions(self) -> None:
        """Write into the history up to where each subscription was told what there is."""
        for following in self.following:
            self._record_position(following)

    def _record_position(self, following: Following) -> None:
        if self.session is None or following.key is None or following.ended:
            return
        state = self.session.subscriptions.get(following.key)
        if state is None:
            return
        for pubend, place in sorted(state.pubends.items()):
            if pubend in state.starts:
                self.history.add(seen.Passed(self.world.now, following.subscription, pubend, place.position))

    def open_ends(self, last: Mapping[int, int]) -> Iterator[str]:
        """Say what has not converged, given the last tick of every log."""
        publishing = self.publishing
        if publishing is not None:
            unknown = len(publishing.pending) + sum(map(len, publishing.outstanding.values()))
            if unknown:
                yield f"{self.name} does not know what became of {unknown} messages"
        for following in self.following:
            if following.deleting:
                yield f"{following.subscription} is not deleted"
            if not following.ended:
                yield from self._behind(following, last)

    def _behind(self, following: Following, last: Mapping[int, int]) -> Iterator[str]:
        state = None
        if self.session is not None and following.key is not None:
            state = self.session.subscriptions.get(following.key)
        if self._is_rejected(following):
            return  # it is told why, and asks again
        if state is None or not state.active:
            yield f"{following.subscription} is not active"
            return
        if state.awaited:
            yield f"{following.subscription} waits for its acknowledgements to be stored: {state.awaited}"
        for pubend, tick in last.items():
            place = state.pubends.get(pubend)
            if place is None or place.position < tick:
                where = "has not begun" if place is None else f"is at {place.position}"
                yield f"{following.subscription} {where} on pubend {pubend}, which goes on to {tick}"

    def _subscribe(self, following: Following) -> None:
        assert self.session is not None
        following.key = self.session.subscribe(
            following.filter,
            name=following.name,
            positions=following.saved,
            earliest=following.earliest,
            saved=self.habits.keeps_file,
        )

    def _flush(self) -> None:
        session, publishing = self.session, self.publishing
        assert session is not None
        if publishing is None or publishing.key is None:
            return
        session.clock(self._clock_ms())
        while publishing.pending:
            attributes, payload = publishing.pending[0]
            message_id = session.publish(publishing.key, attributes, payload)
            if message_id is None:
                return
            publishing.pending.popleft()
            self.history.add(seen.Published(self.world.now, bytes(message_id), attributes, payload))
            publishing.outstanding.setdefault((message_id.broker, message_id.publisher), deque()).append(bytes(message_id))

    # --- connections

    def _dial_main(self) -> None:
        if self.session is None or self._main is not None:
            return
        broker = self.brokers[0]
        self._main = self._cable(broker)
        self._main.dial(0.0)
        self.world.after(4 * self.profile.silence_s_max, self._give_up, self._main)

    def _cable(self, broker: BrokerNode) -> Cable:
        return self.network.cable(self, broker, self.profile, f"{self.name}/{broker.broker}/{self.network.next_link()}")

    def _give_up(self, cable: Cable) -> None:
        """Try the next broker when this one did not answer."""
        if self._main is cable and cable.connection is None and self.session is not None:
            self._leave_main()
            self._act()

    def _leave_main(self) -> None:
        cable = self._main
        assert cable is not None
        self._main = None
        self._lose(cable)
        self._drop_cable(cable)
        self.brokers = self.brokers[1:] + self.brokers[:1] if len(self.brokers) > 1 else self.brokers
        self.world.after(self.habits.redial_s, self._dial_main)

    def _drop_cable(self, cable: Cable) -> None:
        cable.hang_up()
        self.network.forget(cable)

    def connected(self, end: End) -> None:
        assert self.session is not None
        broker = end.far.peer
        assert isinstance(broker, BrokerNode)
        main = end.cable is self._main
        if not main and self._second.get(broker.broker) is not end.cable:
            return
        self._ends[end.link] = end
        self._readers[end.link] = Reader()
        self._incarnations[end.link] = broker.broker, broker.life
        self.session.clock(self._clock_ms())
        self.session.connected(end.link, broker.broker, now=self.world.now, main=main)
        self._act()

    def disconnected(self, end: End) -> None:
        if end.link not in self._ends or self.session is None:
            return
        self._lose(end.cable)
        if end.cable is self._main:
            self._leave_main()
        self._act()

    def _lose(self, cable: Cable) -> None:
        """Tell the session that its connection over a cable is gone, if there was one."""
        assert self.session is not None
        for end in [end for end in self._ends.values() if end.cable is cable]:
            del self._ends[end.link], self._readers[end.link]
            if end.link == self.session.main:
                for following in self.following:
                    if not following.ended:
                        self.history.add(seen.Disconnected(self.world.now, following.subscription))
            self.session.clock(self._clock_ms())
            self.session.disconnected(end.link, now=self.world.now)

    def received(self, end: End, data: bytes) -> None:
        reader = self._readers.get(end.link)
        if reader is None or self.session is None:
            return
        for packet, packet_id, batch in reader.feed(data):
            if end.link not in self._ends:
                return
            self.session.clock(self._clock_ms())
            self._hearing = self._incarnations[end.link]
            if isinstance(packet, Error):
                self.session.refused(packet_id, error_of_code(packet.code, packet.text), link=end.link, now=self.world.now)
            else:
                assert isinstance(packet, Packet)
                try:
                    self.session.receive(packet, link=end.link, now=self.world.now, batch=batch, packet=packet_id)
                except ProtocolViolationError as error:
                    self.world.note("violation", f"{self.name}: {error}")
                    end.cable.reset()
                    return
            self._act()

    def held_back(self, end: End, congested: bool) -> None:
        """Nothing to do: the session's window bounds what waits."""

    # --- orders and events

    def _clock_ms(self) -> int:
        return WALL_MS_AT_START + self.clock_offset_ms + int(self.world.now * 1000)

    def _act(self) -> None:
        session = self.session
        assert session is not None
        while True:
            events = session.events()
            for event in events:
                self._take(event)
            self._settle_publishing()
            outputs = session.outputs()
            for order in outputs:
                end = self._ends.get(order.link)
                if end is not None:
                    end.send(to_bytes(order.message, order.packet, order.batch))
            if not events and not outputs:
                break
        self._reach_homes()
        deadline = session.deadline()
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = max(deadline, self.world.now)
            self.world.at(self._wake_at, self._wake, self._wake_at, self._life)

    def _wake(self, when: float, life: int) -> None:
        if self.session is None or self._wake_at != when or life != self._life:
            return
        self._wake_at = None
        self.session.clock(self._clock_ms())
        self.session.wake(now=self.world.now)
        self._act()

    def _reach_homes(self) -> None:
        """Connect to the brokers that hold messages in doubt; leave those that do not any more."""
        assert self.session is not None
        homes = self.session.homes()
        main = self._main.b if self._main is not None else None
        for broker in homes:
            if broker not in self._second and not (isinstance(main, BrokerNode) and main.broker == broker):
                self._second[broker] = self._cable(self.directory[broker])
                self._second[broker].dial()
        for broker, cable in list(self._second.items()):
            if not self._in_doubt(broker):
                del self._second[broker]
                self._drop_cable(cable)

    def depends_on(self, broker: BrokerNode) -> bool:
        """Tell whether it is connected to a broker, as far as it knows, or has messages of which only that one knows more."""
        return (self._main is not None and self._main.b is broker) or self._in_doubt(broker.broker)

    def _in_doubt(self, broker: int) -> bool:
        publishing = self.publishing
        return publishing is not None and any(ids and key[0] == broker for key, ids in publishing.outstanding.items())

    def _take(self, event: Event) -> None:
        match event:
            case Writable():
                self._flush()
            case SubscriptionActive(subscription=key, starts=starts):
                self._active(key, starts)
            case PubendJoined(subscription=key, pubend=pubend, tick=tick):
                self._began(key, pubend, tick)
            case RowsDelivered():
                self._take_rows(event)
            case Missed(subscription=key, pubend=pubend, lo=lo, hi=hi):
                following = self._following(key)
                if following is not None:
                    self.world.note("gap", f"{following.subscription} pubend {pubend} {lo}..{hi}")
                    self.history.add(seen.Gapped(self.world.now, following.subscription, pubend, lo, hi))
            case SubscriptionFailed(subscription=key, error=error):
                rejected = self._following(key)
                if rejected is not None:
                    rejected.rejected = isinstance(error, AdmissionError)
                self._note_failure(key, f"{type(error).__name__}: {error}", error.retryable)
            case MessagesRefused(first=first, last=last):
                self._note_refusal(first, last)
            case PublisherFailed(error=error):
                self.world.note("refused", f"{self.name}: publisher: {error}")
            case PositionsStored(subscription=key, positions=positions):
                self._note_confirmed(key, positions)
            case SubscriptionEnded(subscription=key, error=error):
                self._note_discarded(key, error)
            case PubendsListed():
                self.listed.append(event)
            case WriterChanged(writer=key):
                self._feed(key, self.batches[key])
            case WriterSealed(writer=key):
                self.batches[key].sealed = True
            case WriterFailed(writer=key, error=error):
                self.batches[key].error = error
            case RangePiece(request=key):
                self._piece(self.ranges[key], key, event)
            case RangeFailed(request=key, error=error):
                if key in self.ranges:
                    self.ranges[key].error, self.ranges[key].done = error, not error.retryable
            case AdvertisementAccepted() | AdvertisementFailed() | AdvertisementEnded():
                self.world.note("advertise", f"{self.name}: {event}")
            case QuestionAnswered(number, answer):
                assert isinstance(answer, TracksAnswered)
                self.answers[number] = answer
            case QuestionFailed(number, error):
                self.answers[number] = error
            case RowsGiven() | RowsFinished() | MemberLost() | HomeNamed():
                raise AssertionError(event)  # a `WorkerNode` takes them

    def _feed(self, key: int, batch: BatchSeen) -> None:
        """Give a writer more of its rows, a few at a time."""
        assert self.session is not None
        writer = self.session.writing.writers.get(key)
        while writer is not None and writer.has_room() and batch.given < len(batch.rows):
            part = batch.rows[batch.given : batch.given + WRITTEN_AT_ONCE]
            ids = writer.ids(len(part))
            built = build_batches([(bytes(each), *row) for each, row in zip(ids, part, strict=True)])
            for piece in built:
                self.session.writing.write(key, piece, piece.size)
            batch.given += len(part)
        if writer is not None and not writer.sealing and batch.given == len(batch.rows):
            self.session.writing.seal(key)

    def _piece(self, seen_range: RangeSeen, key: int, piece: RangePiece) -> None:
        assert self.session is not None
        assert piece.hi > seen_range.reached
        seen_range.reached, seen_range.error = piece.hi, None
        seen_range.done = piece.hi >= seen_range.hi
        seen_range.rows += [(message.tick, message.payload) for message in piece.batch or ()]
        self.session.taken(key)

    def _following(self, key: int) -> Following | None:
        return next((each for each in self.following if each.key == key and not each.ended), None)

    def _began(self, key: int, pubend: int, tick: int) -> None:
        following = self._following(key)
        if following is not None:
            self.world.note("began", f"{following.subscription} pubend {pubend} at {tick}")
            assert self.session is not None
            end = self._ends.get(self.session.main or 0)
            broker, link = (
                (end.far.peer.broker, end.far.link) if end is not None and isinstance(end.far.peer, BrokerNode) else (0, 0)
            )
            self.history.add(seen.Began(self.world.now, following.subscription, pubend, tick, broker, link))

    def _note_confirmed(self, key: int, positions: Mapping[int, int]) -> None:
        following = self._following(key)
        if following is not None:
            for pubend, tick in sorted(positions.items()):
                self.history.add(seen.Confirmed(self.world.now, following.subscription, pubend, tick))

    def _active(self, key: int, starts: Mapping[int, int]) -> None:
        assert self.session is not None
        if key in self._deletions and key in self.session.subscriptions:
            self.session.unsubscribe(key, forget=True)
        for pubend, tick in sorted(starts.items()):
            self._began(key, pubend, tick)
        following = self._following(key)
        if following is not None:
            following.rejected = False
        if following is not None and self.habits.keeps_file and following.saver != key:
            following.saver = key
            self._save(following, key)
            self.world.after(IDLE_SAVE_S, self._save_when_idle, following, key, self._life)

    def _note_discarded(self, key: int, error: PostroadError | None) -> None:
        """Note that a broker confirmed the end of a subscription; without a connection the session ends it by itself."""
        assert self.session is not None
        following = self._deletions.pop(key, None) or next(
            (each for each in self.following if each.key == key and each.ended), None
        )
        if following is None:
            return
        if error is not None:
            self._delete_later(following)
            return
        following.deleting = False
        if self.session.main is not None:
            self.history.add(seen.Discarded(self.world.now, following.subscription, self._hearing[0]))

    def _delete_later(self, following: Following) -> None:
        self.world.after(DELETE_AGAIN_S, self._delete_again, following, self._life)

    def _delete_again(self, following: Following, life: int) -> None:
        """Come back under the name of a durable subscription, since only its home can delete it."""
        if life == self._life and self.session is not None:
            # It only goes, so it needs no admission.
            key = self.session.subscribe(following.filter, name=following.name, criterion="off")
            self._deletions[key] = following
            self._act()

    def _take_rows(self, event: RowsDelivered) -> None:
        following = self._following(event.subscription) or self._deletions.get(event.subscription)
        if following is None:
            return
        now, last = self.world.now, 0
        self.history.add(seen.Arrived(now, *self._hearing, following.name or f"@{self.name}", ids_of(event.batch)))
        if following.ended:
            return
        for message in event.batch:
            last = message.tick
            self.history.add(
                seen.Delivered(
                    now, following.subscription, event.pubend, last, bytes(message.id), dict(message.attributes), message.payload
                )
            )
        self.world.note("delivered", f"{following.subscription} pubend {event.pubend} {len(event.batch)} up to {last}")
        if self.habits.acknowledges_after_s:
            work_s, key = self.habits.acknowledges_after_s, event.subscription
            self.world.after(work_s, self._finish_later, following, key, event.pubend, last, self._life)
        else:
            self._finish(following, event.pubend, last)

    def _finish_later(self, following: Following, key: int, pubend: int, tick: int, life: int) -> None:
        if life == self._life and self.session is not None and not following.ended and following.key == key:
            self._finish(following, pubend, tick)
            self._act()

    def _finish(self, following: Following, pubend: int, tick: int) -> None:
        """Finish the work on what was delivered: save and acknowledge."""
        assert self.session is not None
        assert following.key is not None
        self.session.acknowledge(following.key, pubend, tick, confirm=self.habits.confirms)
        self.history.add(seen.Committed(self.world.now, following.subscription, pubend, tick))
        if self.habits.keeps_file:
            self._save(following, following.key)

    def _save(self, following: Following, key: int) -> None:
        assert self.session is not None
        positions = dict(self.session.positions(key))
        if positions != following.saved:
            following.saved = positions
            self.session.approve(key, positions)

    def _save_when_idle(self, following: Following, key: int, life: int) -> None:
        if life == self._life and self.session is not None and following.key == key and not following.ended:
            self._save(following, key)
            self._act()
            self.world.after(IDLE_SAVE_S, self._save_when_idle, following, key, life)

    def _note_failure(self, key: int, text: str, retryable: bool) -> None:
        deleted = self._deletions.pop(key, None)
        if deleted is not None:
            self._delete_later(deleted)
            return
        following = self._following(key)
        if following is None:
            return
        self.world.note("refused", f"{following.subscription}: {text}")
        following.key = None
        if retryable:
            self.world.after(0.3, self._again, following, self._life)

    def _again(self, following: Following, life: int) -> None:
        if life == self._life and self.session is not None and not following.ended and following.key is None:
            self._subscribe(following)
            self._act()

    def _note_refusal(self, first: bytes, last: bytes) -> None:
        assert self.publishing is not None
        for ids in self.publishing.outstanding.values():
            for message_id in [each for each in ids if each[:8] == first[:8] and first <= each <= last]:
                ids.remove(message_id)
                self.history.add(seen.Refused(self.world.now, message_id))

    def _settle_publishing(self) -> None:
        """See which messages became durable: a broker acknowledges each publisher's in order."""
        session, publishing = self.session, self.publishing
        assert session is not None
        if publishing is None or publishing.key is None:
            return
        registrations = session.publishers[publishing.key].registrations
        for (broker, publisher), ids in publishing.outstanding.items():
            registration = registrations.get(broker)
            known = registration is not None and registration.publisher == publisher
            left = registration.messages if registration is not None and known else 0  # it is forgotten when it holds none
            while len(ids) > left:
                self.history.add(seen.Acknowledged(self.world.now, ids.popleft()))
