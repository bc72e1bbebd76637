"""An overlay of broker machines over a fake wire, with publishers and subscribers, in the words of the papers.

Time passes only in `run` and `until`. Packets arrive at once, unless the test loses them (`losing`) or keeps them back
(`keeping_back`). Writes are done at once, unless `writes_finish` is off. Messages are told apart by their names, which are
their payloads, so a test compares lists of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias, TypeVar

from tests.core.broker.machines import START_MS, Machine, Machines

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import BrokerConfig
from postroad.core.protocol.admission import Advertise, AdvertiseAccepted, SubscriptionRejected, Unadvertise, Unadvertised
from postroad.core.protocol.orders import Congested, Drained, LogReleased, Refuse, Send
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgementStored,
    Advance,
    Credit,
    Deliver,
    Flow,
    Gap,
    OpenPublisher,
    Packet,
    Publish,
    PublishAcknowledged,
    PublisherOpened,
    PublishRefused,
    Started,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    pubend_id,
)
from postroad.errors import PostroadError
from postroad.types import MessageId

PlainValue: TypeAlias = bool | int | float | str
PlainRow: TypeAlias = tuple[bytes, dict[str, PlainValue], bytes]
P = TypeVar("P", bound=Packet)
FIRST_CLIENT_LINK: Final = 10_000
WAIT_S: Final = 60.0  # of virtual time


def names_in(rows: Batch | None) -> list[str]:
    return [] if rows is None else [message.payload.decode() for message in rows]


@dataclass
class Travel:
    """A packet on the wire between two brokers."""

    source: int
    target: int
    link: int  # of the target
    order: Send
    lost: bool = False

    @property
    def packet(self) -> Packet:
        return self.order.message

    @property
    def names(self) -> list[str]:
        return names_in(self.order.batch)


@dataclass
class Rule:
    """What the wire does with packets of some kinds to a broker: lose them or keep them back."""

    kinds: tuple[type[Packet], ...]
    to: int | None
    loses: bool
    kept: list[Travel] = field(default_factory=list)

    def concerns(self, travel: Travel) -> bool:
        return isinstance(travel.packet, self.kinds) and self.to in {None, travel.target}


class Overlay(Machines):
    """Brokers with one pubend each and the applications at them."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        super().__init__(config)
        self.travels: list[Travel] = []
        self._rules: list[Rule] = []
        self._applications: dict[int, Application] = {}
        self._crashed: dict[int, tuple[Machine, list[int]]] = {}
        self._lives: dict[int, int] = {}
        self._client_links = FIRST_CLIENT_LINK

    @classmethod
    def line(cls, *brokers: int, config: BrokerConfig | None = None, configs: dict[int, BrokerConfig] | None = None) -> Overlay:
        """Start brokers and link each to the next; `configs` are those of single brokers."""
        overlay = cls(config)
        overlay.configs = configs or {}
        for number in brokers:
            overlay.start(number)
        for one, two in pairwise(brokers):
            overlay.link(one, two)
        overlay.run(0.2)
        return overlay

    # --- applications ---

    def publisher(self, at: int) -> Publisher:
        return Publisher(self, at)

    def subscriber(
        self,
        at: int,
        filter_: str = "",
        *,
        name: str | None = None,
        earliest: bool = False,
        wait: bool = True,
        criterion: str = "",
    ) -> Subscriber:
        """Connect an application that subscribes; return when it was told its starts or why not, unless it shall not wait."""
        subscriber = Subscriber(self, at, filter_, name, earliest=earliest, criterion=criterion)
        if wait:
            self.until(lambda: subscriber.is_subscribed or subscriber.rejected is not None)
        return subscriber

    # --- time ---

    def until(self, condition: Callable[[], bool]) -> None:
        """Let time pass until something is so."""
        end = self.now + WAIT_S
        while not condition():
            assert self.now < end, f"it did not happen in {WAIT_S} virtual seconds"
            self.run(0.05)

    @property
    def wall_ms(self) -> int:
        return START_MS + int(self.now * 1000)

    # --- faults ---

    @contextmanager
    def losing(self, *kinds: type[Packet], to: int | None = None) -> Iterator[None]:
        """Lose packets of these kinds on their way to a broker, or to all."""
        rule = Rule(kinds, to, loses=True)
        self._rules.append(rule)
        yield
        self._rules.remove(rule)

    @contextmanager
    def keeping_back(self, *kinds: type[Packet], to: int | None = None) -> Iterator[list[Travel]]:
        """Keep packets back; they are for `deliver`, in any order and as often as wanted."""
        rule = Rule(kinds, to, loses=False)
        self._rules.append(rule)
        yield rule.kept
        self._rules.remove(rule)

    def deliver(self, *travels: Travel) -> None:
        """Let packets arrive that were kept back, in this order."""
        for travel in travels:
            self.hand_over(travel.target, travel.link, travel.order)
            self.settle()

    def crash(self, number: int) -> None:
        """Stop a broker as `kill -9` does: its disk stays, and writes that were under way are lost."""
        node = self.nodes[number]
        self._crashed[number] = node, [other for other, _ in node.links.values()]
        for link, application in list(self._applications.items()):
            if application.broker == number:
                del self._applications[link]
                application.connected = False
        self.stop(number)

    def restart(self, number: int) -> None:
        """Start a broker again with what is on its disk, and link it to its neighbours."""
        node, neighbours = self._crashed.pop(number)
        self._lives[number] = self._lives.get(number, 1) + 1
        self.start(number, node.metadata, incarnation=self._lives[number], logs=node.logs)
        for other in neighbours:
            self.link(number, other)
        self.run(0.2)

    def run_out_of_space(self, number: int, *, up_to: int) -> None:
        """Let retention pass its bound: the log of a broker drops everything up to a tick, whoever needs it."""
        pubend = pubend_id(number)
        if number in self._crashed:
            self._crashed[number][0].logs[pubend].release(up_to)
            return
        self.nodes[number].logs[pubend].release(up_to)
        self.nodes[number].broker.fact(LogReleased(pubend, up_to), now=self.now)
        self.settle()

    # --- what was seen ---

    def sent(self, kind: type[P], *, source: int | None = None, target: int | None = None) -> list[P]:
        """Return the packets of one kind that brokers sent each other, also those that were lost."""
        return [packet for each in self.travelled(source, target) if isinstance(packet := each.packet, kind)]

    def travelled(self, source: int | None = None, target: int | None = None) -> list[Travel]:
        return [each for each in self.travels if source in {None, each.source} and target in {None, each.target}]

    def names_sent(self, source: int, target: int) -> list[str]:
        """Return the names of the messages that travelled from one broker to another, as often as they did."""
        return [name for each in self.travelled(source, target) for name in each.names]

    def logged(self, number: int) -> list[str]:
        """Return what is in the log of a broker's pubend."""
        node = self.nodes[number] if number in self.nodes else self._crashed[number][0]
        return [name for batch in node.logs[pubend_id(number)].batches for name in names_in(batch)]

    def released(self, number: int) -> int:
        return self.nodes[number].logs[pubend_id(number)].released

    def log_with_ticks(self, number: int) -> list[tuple[str, int]]:
        batches = self.nodes[number].logs[pubend_id(number)].batches
        return [(message.payload.decode(), message.tick) for batch in batches for message in batch]

    def horizon(self, number: int, *, at: int) -> int:
        """Return the doubt horizon of one broker's pubend at another: all up to there was delivered."""
        return self.nodes[at].broker.streams()[pubend_id(number)]["delivered"]

    def frontier(self, number: int, *, at: int) -> int:
        """Return how far anything is known of one broker's pubend at another."""
        return self.nodes[at].broker.streams()[pubend_id(number)]["frontier"]

    # --- inside ---

    def connect(self, application: Application, number: int) -> int:
        self._client_links += 1
        self._applications[self._client_links] = application
        self.client(number, self._client_links)
        return self._client_links

    def disconnect(self, number: int, link: int) -> None:
        self._applications.pop(link, None)
        self.leave(number, link)

    def carry(self, node: Machine, order: Send) -> None:
        target, link = node.links[order.link]
        travel = Travel(node.number, target, link, order)
        self.travels.append(travel)
        rule = next((rule for rule in self._rules if rule.concerns(travel)), None)
        if rule is None:
            self.hand_over(target, link, order)
        elif rule.loses:
            travel.lost = True
        else:
            rule.kept.append(travel)

    def tell_client(self, node: Machine, order: Send) -> None:
        super().tell_client(node, order)
        if order.link in self._applications:
            self._applications[order.link].take(order.message, order.batch)

    def refuse_client(self, node: Machine, order: Refuse) -> None:
        super().refuse_client(node, order)
        if order.link in self._applications:
            self._applications[order.link].refusals.append(order.error)


class Application:
    """A client of one broker."""

    def __init__(self, overlay: Overlay, broker: int) -> None:
        self.overlay = overlay
        self.broker = broker
        self.connected = False
        self.refusals: list[PostroadError] = []
        self.link = 0
        self.connect(broker)

    def connect(self, broker: int) -> None:
        self.broker, self.connected = broker, True
        self.link = self.overlay.connect(self, broker)

    def disconnect(self) -> None:
        """Lose the connection; the broker notices at once."""
        self.connected = False
        self.overlay.disconnect(self.broker, self.link)

    def send(self, packet: Packet) -> None:
        self.overlay.give(self.broker, packet, link=self.link, request=1)

    def take(self, packet: Packet, rows: Batch | None) -> None:
        raise NotImplementedError


class Publisher(Application):
    """Publishes messages by name, and hears which are acknowledged."""

    def __init__(self, overlay: Overlay, broker: int, *, wait: bool = True) -> None:
        self.number: int | None = None
        self.pubend = 0
        self.durable = 0  # the tick up to which its ids are acknowledged
        self.refused: list[PublishRefused] = []
        self.advertised: dict[int, int] = {}  # handle -> the rate that was accepted, in thousandths
        self.withdrawn: list[int] = []
        self._handle = 0
        self.credits: list[Credit | None] = []  # as it was told them
        self._sent: dict[str, tuple[PlainRow, float]] = {}  # name -> (row, when it was made)
        super().__init__(overlay, broker)
        self.open(wait=wait)

    def open(self, *, wait: bool = True) -> None:
        self.send(OpenPublisher(self.number))
        if wait:
            self.overlay.until(lambda: self.number is not None)

    def reconnect(self) -> None:
        """Come back to the same broker as the same publisher."""
        self.connect(self.broker)
        self.open()

    def advertise(self, filter_: str, rate: float = 0.0, *, name: str | None = None, wait: bool = True) -> int:
        """Advertise; return the handle when it was accepted."""
        self._handle += 1
        handle = self._handle
        self.send(Advertise(handle, filter_, int(rate * 1000), name))
        if wait:
            self.overlay.until(lambda: handle in self.advertised)
        return handle

    def unadvertise(self, handle: int, *, name: str | None = None) -> None:
        self.send(Unadvertise(handle, name))
        self.overlay.until(lambda: handle in self.withdrawn)

    def publish(self, *names: str, at_ms: int | None = None, **attributes: PlainValue) -> None:
        """Publish messages in one frame, all with these attributes; `at_ms` is the publisher's clock if it is another."""
        assert self.number is not None
        for name in names:
            assert name not in self._sent, "each message has a name of its own"
            wall_ms = self.overlay.wall_ms if at_ms is None else at_ms
            message_id = MessageId.make(self.number, self.broker, wall_ms, len(self._sent))
            self._sent[name] = (bytes(message_id), attributes, name.encode()), self.overlay.now
        self.send_again(*names)

    def send_again(self, *names: str) -> None:
        """Send messages as they were sent before, in one frame."""
        assert self.number is not None
        rows = [self._sent[name][0] for name in names]
        age_ms = round((self.overlay.now - self._sent[names[-1]][1]) * 1000)
        self.send(Publish(self.number, rows, age_ms=age_ms))

    @property
    def acknowledged(self) -> list[str]:
        return [name for name, (row, _) in self._sent.items() if MessageId.from_bytes(row[0]).tick <= self.durable]

    def take(self, packet: Packet, rows: Batch | None) -> None:
        del rows
        match packet:
            case PublisherOpened():
                self.number, self.pubend = packet.publisher, packet.pubend
                self.durable = max(self.durable, packet.last)
                self.credits.append(packet.credit)
            case PublishAcknowledged():
                self.durable = max(self.durable, packet.last)
                self.credits.append(packet.credit)
            case PublishRefused():
                self.refused.append(packet)
            case AdvertiseAccepted():
                self.advertised[packet.handle] = packet.millirate
            case Unadvertised():
                self.withdrawn.append(packet.handle)
            case _:
                raise AssertionError(f"a publisher was sent {packet}")


class Subscriber(Application):
    """Subscribes, and notes the names of the messages it gets, with their ticks, in order.

    It checks what every client may count on: in each pubend, what it is told joins what it was told before.
    """

    def __init__(
        self, overlay: Overlay, broker: int, filter_: str, name: str | None, *, earliest: bool = False, criterion: str = ""
    ) -> None:
        self.filter = filter_
        self.criterion = criterion
        self.rejected: SubscriptionRejected | None = None
        self.name = name
        self.received: list[str] = []
        self.ticks: list[tuple[int, int]] = []  # (pubend, tick) of what was received
        self.packets: list[Packet] = []
        self.gaps: list[tuple[int, int, int]] = []  # (pubend, lo, hi)
        self.starts: dict[int, int] = {}
        self.positions: dict[int, int] = {}  # pubend -> it has everything up to there
        self.done: dict[int, int] = {}  # and has said so
        self.is_subscribed = False
        self.ended = False
        super().__init__(overlay, broker)
        self._subscribe({}, {}, earliest=earliest)

    def _subscribe(self, positions: dict[int, int], done: dict[int, int], *, earliest: bool = False) -> None:
        self.is_subscribed = False
        self.rejected = None
        self.send(Subscribe(1, self.filter, self.name, positions, earliest, done, self.criterion))

    def come_back(self, at: int | None = None, *, knows: bool = True, wait: bool = True) -> None:
        """Connect again, at another broker if one is named; one that crashed itself `knows` nothing any more."""
        self.connect(self.broker if at is None else at)
        if not knows:
            self.positions, self.done = {}, {}
        self._subscribe(dict(self.positions), dict(self.done))
        if wait:
            self.overlay.until(lambda: self.is_subscribed or self.rejected is not None)

    def acknowledge(self, *, confirm: bool = False) -> None:
        """Say that everything received so far was dealt with; with `confirm`, return when that is on disk."""
        self.done = dict(self.positions)
        confirmed = sum(isinstance(packet, AcknowledgementStored) for packet in self.packets)
        self.send(Acknowledge(1, dict(self.done), confirm))
        if confirm:
            packets = self.packets
            self.overlay.until(lambda: sum(isinstance(each, AcknowledgementStored) for each in packets) > confirmed)

    def unsubscribe(self, *, forget: bool = False) -> None:
        self.send(Unsubscribe(1, forget))

    def read_slowly(self) -> None:
        """Let the broker find the connection full."""
        self.overlay.nodes[self.broker].broker.fact(Congested(self.link), now=self.overlay.now)
        self.overlay.settle()

    def read_on(self) -> None:
        self.overlay.nodes[self.broker].broker.fact(Drained(self.link), now=self.overlay.now)
        self.overlay.settle()

    def pause(self) -> None:
        self.send(Flow(1, open=False))

    def go_on(self) -> None:
        self.send(Flow(1, open=True))

    def take(self, packet: Packet, rows: Batch | None) -> None:
        self.packets.append(packet)
        match packet:
            case Subscribed():
                self.is_subscribed = True
                self._start(packet.starts)
            case Started():
                self._start({packet.pubend: packet.tick})
            case Deliver():
                assert rows is not None
                self._join(packet.pubend, packet.lo, packet.hi)
                self.received += names_in(rows)
                self.ticks += [(packet.pubend, int(tick)) for tick in rows.ticks()]
            case Gap():
                self._join(packet.pubend, packet.lo, packet.hi)
                self.gaps.append((packet.pubend, packet.lo, packet.hi))
            case Advance():
                for pubend, tick in packet.positions.items():
                    assert tick >= self.positions[pubend]
                    self.positions[pubend] = tick
            case Unsubscribed():
                self.ended = True
            case SubscriptionRejected():
                self.rejected = packet
            case _:
                pass

    def _start(self, starts: dict[int, int]) -> None:
        self.starts.update(starts)
        self.positions.update(starts)

    def _join(self, pubend: int, lo: int, hi: int) -> None:
        assert lo <= self.positions[pubend], "something between what was told before and this was never told"
        assert hi >= self.positions[pubend]
        self.positions[pubend] = hi
