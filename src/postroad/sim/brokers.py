"""One simulated broker: the real machine of a tracked broker with a simulated disk, network and wall clock around it.

It can crash (the machine is thrown away; the disk keeps what was synced), start again with the next incarnation, have its
wall clock stepped, and be paused, which is what a long garbage collection or a stopped virtual machine looks like.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.broker.congestion.rate_rule import Throttle
from postroad.core.broker.incarnations import BORN_KEY, HEARD_KEY, Heard
from postroad.core.broker.log_reads import READS_MAX
from postroad.core.broker.lost_ranges import LOST_KEY, lost_ranges
from postroad.core.broker.subscribing.durable import DURABLE_KEY
from postroad.core.broker.subscribing.naming import NAME_KEY, Reservation
from postroad.core.protocol.orders import (
    Append,
    ClientUp,
    Congested,
    Drained,
    LimitBandwidth,
    LinkId,
    LinkLost,
    LinkUp,
    LogRead,
    LogReleased,
    Notice,
    ReadLog,
    Refuse,
    ReleaseLog,
    Send,
    Store,
)
from postroad.core.protocol.packets import (
    AcknowledgeRows,
    CatchUpReply,
    Deliver,
    Flow,
    Packet,
    Subscribe,
    Unsubscribe,
    pubend_id,
)
from postroad.core.protocol.status import BrokerReport
from postroad.sim.disk import Disk, DiskProfile
from postroad.sim.frames import Reader, Release, to_bytes
from postroad.sim.history import (
    DiskLost,
    Freed,
    Handed,
    History,
    Logged,
    MemberGone,
    Parted,
    RecordCreated,
    RecordSpoiled,
    Relayed,
    Restarted,
    Sent,
    Spoiled,
    Taken,
    Tracks,
    WrittenOff,
)
from postroad.sim.network import Cable, End, Network, Peer
from postroad.sim.tracks import BrokerTracks
from postroad.sim.world import World
from postroad.tracking.queries.questions import StatusQuestion
from postroad.tracking.tap.orders import (
    ReportStatus,
    SearchTracks,
    StatusReported,
    Track,
    TrackedFact,
    TrackedOrder,
    TracksSearched,
)
from postroad.tracking.tap.tracing import ASKED_MAX, SEARCHES_MAX
from postroad.tracking.tap.tracked_broker import TrackedBroker, TrackedConfig
from postroad.wire.packets.session import Error

WALL_MS_AT_START: Final = 1_800_000_000_000
BROKERS_MAX: Final = 16  # of a simulated overlay
BACKLOG_ROWS_MAX: Final = 65_536  # a publisher's window
REPLACE_WAIT_S: Final = 30.0  # as a broker that is started with `--replace` waits for a neighbour
SEARCH_S: Final = 0.002  # for a look into the tracks
Input: TypeAlias = Callable[[], None]


class Beside(Protocol):
    """What lives in the process of a broker, beside its machine."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class BrokerNode:
    """A broker in a simulated world; `alive` between `start` and `crash`."""

    def __init__(
        self,
        world: World,
        network: Network,
        history: History,
        broker: int,
        config: TrackedConfig,
        disk_profile: DiskProfile,
        pubends: int = 1,
    ) -> None:
        self.world = world
        self.network = network
        self.history = history
        self.broker: Final = broker
        self.config = config  # of its next start
        self.pubends: Final = tuple(pubend_id(broker, index) for index in range(pubends))
        self.disk: Final = Disk(world, str(broker), disk_profile, self.pubends)
        self.disk.logged = self._note_logged
        self.disk.freed = self._note_freed
        self.disk.stored = self._finish_store
        self.disk.created = self._note_created
        self.tracks: Final = BrokerTracks(world, history, self.disk, broker, config.tracking)
        self.clock_offset_ms = 0
        self.clock_rate = 1.0
        self.release = Release.PRESENT
        self.retired = False  # it is gone for good
        self.has_lost = False  # its files, once
        self.life = 0  # the incarnation it started with: later ones that it takes to outbid others are the same life
        self.machine: TrackedBroker | None = None
        self.beside: list[Beside] = []  # what else runs in the process
        self.watch_packet: Callable[[BrokerNode, LinkId, Packet, bool], None] | None = (
            None  # of a fault that lies in wait; the last: whether it came or goes
        )
        self._ends: dict[int, End] = {}
        self._readers: dict[int, Reader] = {}
        self._wake_at: float | None = None
        self._paused_until = 0.0
        self._inbox: deque[Input] = deque()
        self._subscribers: dict[tuple[int, int], str] = {}  # (link, handle) -> who it is, to the history
        self._members: dict[tuple[int, int], str] = {}  # (link, handle) -> the shared subscription that it asked for
        self._rounds = 0  # how often orders were taken from the machine
        self._held_back: dict[tuple[int, int | None], int] = {}  # (link, handle or all) -> the round in which the machine knew
        self._answered = 0  # the round that carried an answer to a question asked before
        self._overruns = 0  # rows sent all the same, in a later round

    # --- life

    @property
    def alive(self) -> bool:
        return self.machine is not None

    def start(self) -> None:
        assert self.machine is None
        state = self.disk.start(self.broker, self.wall_ms())
        self.world.note("start", f"broker {self.broker} incarnation {state.incarnation}")
        self.history.add(Restarted(self.world.now, self.broker, self.world.now + self.config.subscriber_grace_s))
        self.life = state.incarnation
        self.tracks.start(self.life, self.wall_ms(), self.disk.logs)
        self.machine = TrackedBroker(state, self.config, now=self.world.now)
        self.machine.clock(self.wall_ms())
        self.machine.wake(now=self.world.now)
        self._act()
        self.network.peer_returned(self)
        for each in self.beside:
            each.start()

    def start_if_down(self) -> None:
        """Start, unless something else did so already, or it is gone for good."""
        if self.machine is None and not self.retired:
            self.start()

    def crash(self) -> None:
        """Stop at once; the disk loses what was not synced, connections break."""
        if self.machine is None:
            return
        self.world.note("crash", f"broker {self.broker}")
        self.tracks.crash()
        self.disk.crash()
        self._vanish()

    def stop(self) -> None:
        """End in good order: take nothing more in, finish every write, say farewell."""
        if self.machine is None:
            return
        self.world.note("stop", f"broker {self.broker}")
        self._inbox.clear()
        self._paused_until = 0.0
        self.disk.settle()
        for end in list(self._ends.values()):
            self._part(end, float("inf"))
            self._forget(end)
            self._take(LinkLost(end.link))
        self.disk.settle()
        self.machine.farewell()
        self._act()
        self.tracks.stop()
        self._vanish()

    def _vanish(self) -> None:
        self.machine = None
        for each in self.beside:
            each.stop()
        for end in self._ends.values():
            self._part(end, float("inf"))  # what it held stays held until it starts again, and then for a while
            self.history.add(MemberGone(self.world.now, self.broker, end.link))
        self._ends.clear()
        self._readers.clear()
        self._subscribers.clear()
        self._members.clear()
        self._held_back.clear()
        self._inbox.clear()
        self._wake_at = None
        self._paused_until = 0.0
        self.network.peer_died(self)

    @property
    def paused_until(self) -> float:
        return self._paused_until

    def pause(self, seconds: float) -> None:
        """Do nothing for a while; what arrives waits."""
        self._paused_until = max(self._paused_until, self.world.now + seconds)
        self.world.at(self._paused_until, self._resume)

    def step_clock(self, milliseconds: int) -> None:
        self.clock_offset_ms += milliseconds

    def lose(self, *, replaces: bool) -> None:
        """Lose all files, while the broker is down. It starts with empty ones and waits for word of what it was.

        `replaces`: it is started with `--replace`.
        """
        assert self.machine is None
        self.world.note("crash", f"broker {self.broker} loses its files")
        self.has_lost = True
        self.disk.lose()
        self.tracks.lose()
        self.config = replace(self.config, newcomer_wait_s=REPLACE_WAIT_S, replaces=replaces, has_neighbours=True)
        self.history.add(DiskLost(self.world.now, self.broker, self.pubends))

    def remembers(self, pubends: Iterable[int]) -> bool:
        """Tell whether it has on its disk how far these pubends of another broker may be announced."""
        stored = self.disk.metadata.get(HEARD_KEY)
        heard = Heard() if stored is None else msgspec.msgpack.decode(stored, type=Heard)
        return all(pubend in heard.reserved for pubend in pubends)

    def spoil_log(self, pubend: int) -> tuple[int, int] | None:
        """Damage a record in a closed segment of a log; return the lost (lo, hi]."""
        lost = self.disk.spoil_log(pubend)
        if lost is not None:
            self.history.add(Spoiled(self.world.now, pubend, *lost))
        return lost

    @property
    def awaits_word(self) -> bool:
        """Whether its files are gone, and it has not begun again: what others remember of it is all there is."""
        return not any(key.startswith(BORN_KEY) for key in self.disk.metadata)

    def spoil_record(self, key: str | None = None, *, spared: str = "") -> str | None:
        """Damage a stored record while the broker is down, this one or any but the spared one; return its key."""
        assert self.machine is None
        key = self.disk.spoil_record(key, spared=spared)
        if key is not None:
            self.history.add(RecordSpoiled(self.world.now, self.broker, key))
        return key

    def wall_ms(self) -> int:
        return WALL_MS_AT_START + self.clock_offset_ms + int(self.world.now * 1000 * self.clock_rate)

    @property
    def links(self) -> dict[int, tuple[int, int]]:
        """The links to other brokers: which broker, and the number of the link there."""
        return {
            link: (end.far.peer.broker, end.far.link) for link, end in self._ends.items() if isinstance(end.far.peer, BrokerNode)
        }

    def cable_of(self, link: int) -> Cable:
        return self._ends[link].cable

    def throttles(self) -> dict[int, Throttle]:
        """Return the pubends that are held to a rate."""
        return {} if self.machine is None else self.machine.machine.throttles()

    def bounded_figures(self) -> dict[str, tuple[int, int | None]]:
        """Return the machine's own figures, each with the bound its configuration gives it."""
        machine = self.machine
        if machine is None:
            return {}
        figures = machine.stats()
        bounded = {name: (value, self._draw_bound(name, figures)) for name, value in figures.items()}
        for pubend, stream in machine.streams().items():  # a cache keeps its newest segment, whatever its size
            cache_bytes = self.config.cache_bytes if stream["cache_segments"] > 1 else None
            bounded[f"cache_bytes of pubend {pubend}"] = stream["cache_bytes"], cache_bytes
        bounded["rows sent to who cannot take them"] = self._overruns, 0
        return bounded

    def _draw_bound(self, name: str, figures: Mapping[str, int]) -> int | None:
        match name:
            case "subscriptions":
                return len(self._subscribers)
            case "links":
                return sum(isinstance(end.far.peer, BrokerNode) for end in self._ends.values())
            case "clients":
                return sum(not isinstance(end.far.peer, BrokerNode) for end in self._ends.values())
            case "holders":
                return BROKERS_MAX
            case "backlog_rows":
                return BACKLOG_ROWS_MAX * max(figures.get("clients", 0), 1)
            case "reads":
                return min(READS_MAX, self.disk.reading + len(self._inbox))
            case "traces":
                return ASKED_MAX + SEARCHES_MAX
            case _:
                return None

    # --- the network (see `network.Peer`)

    def connected(self, end: End) -> None:
        if isinstance(
            end.far.peer, BrokerNode
        ):  # of two links to one broker the newer stays: the older is dead without knowing it
            for old in [each for each in self._ends.values() if each.far.peer is end.far.peer]:
                old.open = False
                self.disconnected(old)
        self._ends[end.link] = end
        self._readers[end.link] = Reader()
        other = end.far.peer
        if isinstance(other, BrokerNode):
            self._fact(LinkUp(end.link, other.broker, other.disk.incarnation))
        else:
            self._fact(ClientUp(end.link, _name(end.far.peer)))

    def received(self, end: End, data: bytes) -> None:
        reader = self._readers.get(end.link)
        if reader is None:
            return
        for packet, packet_id, batch in reader.feed(data):
            if isinstance(packet, Error):  # a broker ends a link on which it was refused
                self.world.note("refused", f"broker {self.broker} on link {end.link}: {packet.text}")
                end.cable.reset()
                return
            assert isinstance(packet, Packet)
            self._input(lambda p=packet, i=packet_id, b=batch: self._receive(end.link, p, i, b))  # type: ignore[misc]

    def disconnected(self, end: End) -> None:
        self._readers.pop(end.link, None)
        self._part(end, self.world.now + self.config.subscriber_grace_s)
        self._input(lambda: self._forget(end))
        self._fact(LinkLost(end.link))

    def _forget(self, end: End) -> None:
        self.history.add(MemberGone(self.world.now, self.broker, end.link))
        self._ends.pop(end.link, None)
        self._subscribers = {place: who for place, who in self._subscribers.items() if place[0] != end.link}
        self._members = {place: name for place, name in self._members.items() if place[0] != end.link}
        self._held_back = {place: since for place, since in self._held_back.items() if place[0] != end.link}

    def _part(self, end: End, held_until: float) -> None:
        if not isinstance(end.far.peer, BrokerNode):
            self.history.add(Parted(self.world.now, self.broker, end.link, held_until))

    def held_back(self, end: End, congested: bool) -> None:
        self._fact(Congested(end.link) if congested else Drained(end.link))

    # --- inputs

    def _fact(self, fact: TrackedFact) -> None:
        self._input(lambda: self._take(fact))

    def _input(self, action: Input) -> None:
        if self.machine is None:
            return
        if self._inbox or self.world.now < self._paused_until:
            self._inbox.append(action)
        else:
            action()

    def _resume(self) -> None:
        while self._inbox and self.world.now >= self._paused_until:
            self._inbox.popleft()()

    def _take(self, fact: TrackedFact) -> None:
        assert self.machine is not None
        if isinstance(fact, Congested):
            self._held_back[fact.link, None] = self._rounds
        elif isinstance(fact, Drained):
            self._held_back.pop((fact.link, None), None)
        if isinstance(fact, LogRead):
            self._answered = self._rounds + 1
        self.machine.clock(self.wall_ms())
        self.machine.fact(fact, now=self.world.now)
        self._act()

    def _receive(self, link: int, packet: Packet, packet_id: int, batch: Batch | None) -> None:
        assert self.machine is not None
        if link not in self._ends:
            return
        self._watch(link, packet, batch)
        if isinstance(packet, CatchUpReply):
            self._answered = self._rounds + 1
        self.machine.clock(self.wall_ms())
        self.machine.receive(packet, link=link, now=self.world.now, batch=batch, packet=packet_id)
        self._act()

    def _wake(self, when: float) -> None:
        if self.machine is None or self._wake_at != when:
            return
        if self.world.now < self._paused_until:
            self.world.at(self._paused_until, self._wake, when)
            return
        self._wake_at = None
        self.machine.clock(self.wall_ms())
        self.machine.wake(now=self.world.now)
        self._act()

    # --- orders

    def _act(self) -> None:
        machine = self.machine
        assert machine is not None
        while orders := machine.outputs():
            self._rounds += 1
            this_round = self._rounds  # carrying out an order may take others
            for order in orders:
                if isinstance(order, Send) and order.data and self._held_back:
                    self._count_overrun(order, this_round)
                self._carry_out(order)
                if self.machine is not machine:
                    return
        deadline = machine.deadline()
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = max(deadline, self.world.now)
            self.world.at(self._wake_at, self._wake, self._wake_at)

    def _limit_bandwidth(self, broker: int, bytes_per_s: int) -> None:
        for end in self._ends.values():
            if isinstance(end.far.peer, BrokerNode) and end.far.peer.broker == broker:
                end.bytes_per_s_max = bytes_per_s or float("inf")

    def _carry_out(self, order: TrackedOrder) -> None:
        machine = self.machine
        assert machine is not None
        match order:
            case Send(link=link, message=message, batch=batch, data=data, packet=packet):
                self._watch_sent(link, message, batch)
                end = self._ends.get(link)
                if end is not None:
                    end.send(to_bytes(message, packet, batch, release=self.release), data=data)
            case LimitBandwidth(broker, bytes_per_s):
                self._limit_bandwidth(broker, bytes_per_s)
            case Append() | Store():
                self.disk.write(order, self._fact)
            case ReadLog():
                self.disk.read(order, self._fact)
            case ReleaseLog():
                self.disk.release(order)
            case Refuse():
                self._refuse(order)
            case Track():
                self.tracks.take(order, self._fact)
            case Notice(text):
                self.world.note("notice", f"broker {self.broker}: {text}")
            case ReportStatus(token, question):
                self.world.after(SEARCH_S, self._finish_search, machine, StatusReported(token, self._report(machine, question)))
            case SearchTracks(token, question):
                self.world.after(SEARCH_S, self._finish_search, machine, TracksSearched(token, self.tracks.look_up(question)))

    def _report(self, machine: TrackedBroker, question: StatusQuestion) -> BrokerReport:
        figures = {key: float(value) for key, value in machine.stats().items()}
        subscriptions = machine.machine.report_subscriptions(question.after, question.page, question.wanted)
        streams = machine.machine.report_streams()
        count = int(figures["subscriptions"])
        return BrokerReport(self.broker, f"b{self.broker}", "sim", "", 0, 0, 0, figures, [], streams, [], subscriptions, count)

    def _count_overrun(self, order: Send, this_round: int) -> None:
        """Note rows for somebody of whom the machine knew, before it made this order, that he cannot take them.

        A piece of the past that was asked for before is sent all the same: each subscription has at most one under way.
        """
        if isinstance(order.message, Deliver) and this_round != self._answered:
            known = [self._held_back.get((order.link, None)), self._held_back.get((order.link, order.message.handle))]
            self._overruns += any(since is not None and since < this_round for since in known)

    def _finish_search(self, machine: TrackedBroker, fact: TracksSearched | StatusReported) -> None:
        if self.machine is machine:
            self._fact(fact)

    def _refuse(self, order: Refuse) -> None:
        end = self._ends.get(order.link)
        if end is None:
            return
        self.world.note("refuse", f"broker {self.broker} on link {order.link}: {type(order.error).__name__}: {order.error}")
        end.send(to_bytes(Error.of(order.error), order.packet, release=self.release))
        if order.close:
            end.cable.reset()

    # --- what is seen on the way

    def _watch(self, link: int, packet: Packet, batch: Batch | None) -> None:
        if self.watch_packet is not None:
            self.watch_packet(self, link, packet, True)
        other = self._ends[link].far.peer
        if isinstance(packet, Subscribe):
            self._subscribers[link, packet.handle] = packet.name or f"@{_name(other)}"
            if packet.shared and packet.name is not None:
                self._members[link, packet.handle] = packet.name
        elif isinstance(packet, AcknowledgeRows):
            group = self._members.get((link, packet.handle), "")
            for pubend, ticks in packet.ticks.items():
                self.history.add(Taken(self.world.now, group, link, packet.handle, pubend, tuple(ticks)))
        elif isinstance(packet, Unsubscribe):
            self.history.add(MemberGone(self.world.now, self.broker, link, packet.handle))
        elif isinstance(packet, Flow):
            if packet.open:
                self._held_back.pop((link, packet.handle), None)
            else:
                self._held_back[link, packet.handle] = self._rounds
        elif batch is not None and isinstance(other, BrokerNode):
            event = Relayed(self.world.now, self.broker, self.life, other.broker, ids_of(batch))
            self.history.add(event)

    def _watch_sent(self, link: int, message: Packet, batch: Batch | None) -> None:
        if self.watch_packet is not None:
            self.watch_packet(self, link, message, False)
        if batch is not None and isinstance(message, Deliver):
            subscriber = self._subscribers[link, message.handle]
            self.history.add(Sent(self.world.now, self.broker, self.life, subscriber, ids_of(batch)))
            group = self._members.get((link, message.handle))
            for row in batch if group is not None else ():
                place = self.broker, link, message.handle
                self.history.add(Handed(self.world.now, *place, group or "", message.pubend, row.tick, bytes(row.id)))

    def record_tracks(self) -> None:
        """Write into the history what the tracks hold, with what the machine has noted."""
        if self.machine is not None:
            self.machine.order_records()
            self._act()
        tracks = self.tracks
        spans = tuple((incarnation, span) for (incarnation, _, _), span in tracks.files.spans.items())
        held = tuple(tracks.files.elements.values())
        records = tuple(tracks.files.records)
        self.history.add(Tracks(self.world.now, self.broker, tracks.settings, held, spans, records, tracks.open_elements()))

    # --- what the disk did

    def _note_logged(self, pubend: int, batch: Batch) -> None:
        for message in batch:
            self.history.add(Logged(self.world.now, pubend, message.tick, bytes(message.id), message.payload))

    def _finish_store(self, key: str, value: bytes) -> None:
        if key.startswith(LOST_KEY):
            pubend = int(key.removeprefix(LOST_KEY))
            for loss in lost_ranges({key: value}).ranges[pubend]:
                self.history.add(WrittenOff(self.world.now, pubend, loss.lo, loss.hi))

        elif key.startswith(NAME_KEY):  # with a majority of these its creator makes the record, which nobody else may hear of
            creator = msgspec.msgpack.decode(value, type=Reservation).creator
            self.history.add(RecordCreated(self.world.now, creator, DURABLE_KEY + key.removeprefix(NAME_KEY)))

    def _note_created(self, key: str) -> None:
        if key.startswith(DURABLE_KEY):
            self.history.add(RecordCreated(self.world.now, self.broker, key))

    def _note_freed(self, pubend: int, tick: int, released: int, retention: bool) -> None:
        self.history.add(Freed(self.world.now, pubend, tick, retention))
        if self.machine is not None:
            self.world.after(0.0, self._fact, LogReleased(pubend, released))


def ids_of(batch: Batch) -> tuple[bytes, ...]:
    data = batch.ids().tobytes()
    return tuple(data[start : start + 16] for start in range(0, len(data), 16))


def _name(peer: Peer) -> str:
    return str(getattr(peer, "name", ""))
