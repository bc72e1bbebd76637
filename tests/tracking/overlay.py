"""Broker machines over a fake wire: orders are carried out at once, time passes when the test says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from postroad.core.batch.batch import Batch, Ids
from postroad.core.protocol.orders import (
    Append,
    Appended,
    BrokerState,
    ClientUp,
    LinkLost,
    LinkUp,
    LogRead,
    LogReleased,
    PubendState,
    ReadLog,
    ReleaseLog,
    Send,
    Store,
    Stored,
)
from postroad.core.protocol.packets import (
    OpenPublisher,
    Packet,
    Publish,
    PublisherOpened,
    Subscribe,
    Subscribed,
    Unsubscribe,
    pubend_id,
)
from postroad.tracking.histories.events import Delivered, Deliveries, TrackEvent, apart
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.tap.orders import Track, TrackedOrder
from postroad.tracking.tap.tracked_broker import TrackedBroker, TrackedConfig
from postroad.types import MessageId

WALL_MS = 1_700_000_000_000
T_P_S = 2.0
TRACKING = TrackingSettings(persistence_ms=int(T_P_S * 1000))


class FakeOverlay:
    """Brokers in a line, each joined to the next. A client of a broker has the link 100 + its number."""

    def __init__(self, *brokers: int, tracking: TrackingSettings = TRACKING, config: TrackedConfig | None = None) -> None:
        base = config or TrackedConfig(silence_s=0.5)
        settings = TrackedConfig(cache_bytes=base.cache_bytes, silence_s=base.silence_s, keep_s=base.keep_s, tracking=tracking)
        self.now = 0.0
        self.logs: dict[int, list[Batch]] = {pubend_id(broker): [] for broker in brokers}
        self.released: dict[int, int] = dict.fromkeys(self.logs, 0)
        self.machines = {b: TrackedBroker(BrokerState(b, 1, (PubendState(pubend_id(b)),)), settings) for b in brokers}
        self.orders: dict[int, list[TrackedOrder]] = {broker: [] for broker in brokers}
        self.wires: dict[tuple[int, int], tuple[int, int]] = {}  # (broker, link) -> (broker, link)
        self.cut_off: set[tuple[int, int]] = set()
        self._publishers: dict[int, int] = {}
        self._ids = 0
        for a, b in pairwise(brokers):
            self.wires[a, b], self.wires[b, a] = (b, a), (a, b)
        for broker, machine in self.machines.items():
            machine.clock(self.wall_ms)
            machine.fact(ClientUp(100 + broker, f"app{broker}"), now=0.0)
        for broker, link in self.wires:
            self.machines[broker].fact(LinkUp(link, link, 1), now=0.0)
        self.run(1.5)

    @property
    def wall_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def run(self, seconds: float) -> None:
        """Let time pass, with everything that happens in it."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 0.05, until)
            for machine in self.machines.values():
                machine.clock(self.wall_ms)
                machine.wake(now=self.now)
            self.settle()

    def settle(self) -> None:
        """Carry out orders until there are none."""
        busy = True
        while busy:
            busy = False
            for broker, machine in self.machines.items():
                for order in machine.outputs():
                    busy = True
                    self.orders[broker].append(order)
                    self._carry_out(broker, machine, order)

    def _carry_out(self, broker: int, machine: TrackedBroker, order: TrackedOrder) -> None:
        match order:
            case Send(link=link, message=message, batch=batch, packet=packet) if (broker, link) in self.wires:
                if (broker, link) not in self.cut_off:
                    other, back = self.wires[broker, link]
                    self.machines[other].receive(message, link=back, now=self.now, batch=batch, packet=packet)
            case Append(pubend=pubend, token=token, batches=batches):
                self.logs[pubend].extend(batches)
                machine.fact(Appended(pubend, token), now=self.now)
            case Store(token=token):
                machine.fact(Stored(token), now=self.now)
            case ReadLog(pubend=pubend, token=token, lo=lo, hi=hi):
                rows = tuple(part for batch in self.logs[pubend] if len(part := batch.within(lo, hi)))
                machine.fact(LogRead(pubend, token, hi, rows, self.released[pubend]), now=self.now)
            case ReleaseLog(pubend=pubend, tick=tick):
                self.released[pubend] = tick
                machine.fact(LogReleased(pubend, tick), now=self.now)
            case _:
                pass

    # --- what clients do

    def send(self, broker: int, message: Packet, packet: int = 1) -> None:
        machine = self.machines[broker]
        machine.clock(self.wall_ms)
        machine.receive(message, link=100 + broker, now=self.now, packet=packet)
        self.settle()

    def publish(self, broker: int, count: int = 1, symbol: str = "A") -> list[bytes]:
        """Publish messages in one frame and return their ids."""
        if broker not in self._publishers:
            self.send(broker, OpenPublisher())
            self._publishers[broker] = self.answers(broker, PublisherOpened)[-1].publisher
        ids = []
        for _ in range(count):
            self._ids += 1
            ids.append(bytes(MessageId.make(self._publishers[broker], broker, self.wall_ms, self._ids)))
        self.send(broker, Publish(self._publishers[broker], [(each, {"symbol": symbol}, b"") for each in ids]))
        return ids

    def subscribe(self, broker: int, handle: int, text: str = "", **more: object) -> dict[int, int]:
        """Subscribe and return where it starts."""
        self.send(broker, Subscribe(handle, text, **more))  # type: ignore[arg-type]  # fields by name
        self.run(1.5)
        return next(a.starts for a in self.answers(broker, Subscribed) if a.handle == handle)

    def unsubscribe(self, broker: int, handle: int) -> None:
        self.send(broker, Unsubscribe(handle))

    def lose_client(self, broker: int) -> None:
        self.machines[broker].fact(LinkLost(100 + broker), now=self.now)
        self.settle()

    # --- what was seen

    def answers(self, broker: int, kind: type) -> list:  # type: ignore[type-arg]  # of that kind
        sends = (order for order in self.orders[broker] if isinstance(order, Send) and order.link == 100 + broker)
        return [order.message for order in sends if isinstance(order.message, kind)]

    def tracks(self, broker: int) -> list[Track]:
        """Return what was ordered to be tracked, with all that was noted so far."""
        self.machines[broker].order_records()
        self.settle()
        return [order for order in self.orders[broker] if isinstance(order, Track)]

    def events(self, broker: int, kind: type) -> list:  # type: ignore[type-arg]  # of that kind
        return [event for order in self.tracks(broker) for event in each_of(order) if isinstance(event, kind)]


def each_of(order: Track) -> Iterator[TrackEvent]:
    """Yield the events of an order, deliveries by subscriber."""
    for event in order.events:
        if isinstance(event, Deliveries):
            yield from (Delivered(name, event.pubend, event.ids[rows]) for name, rows in apart([event], [0]))
        else:
            yield event


def id_list(ids: Ids) -> list[bytes]:
    data = ids.tobytes()
    return [data[start : start + 16] for start in range(0, len(data), 16)]


def ids_of(events: list) -> list[bytes]:  # type: ignore[type-arg]  # of events with ids
    return [each for event in events for each in id_list(event.ids)]
