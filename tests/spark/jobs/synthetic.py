"""An overlay without brokers: logs and tracks as brokers write them, and the truth about every message.

Messages walk along shortest paths in virtual time. Each broker has a real tracker, a real track store and a real log; what they
are told is also noted here, plainly, so that jobs can be compared with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from postroad.core.batch.batch import Batch, Ids
from postroad.core.protocol.packets import pubend_id
from postroad.storage.directory import BrokerStorage, open_broker_storage
from postroad.storage.segment.log import LogOptions
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import ID_DTYPE, Horizon, Links, Span
from postroad.tracking.histories.events import Delivered, Forwarded, Published, Routed, TrackEvent
from postroad.tracking.histories.settings import TrackingSettings
from postroad.tracking.histories.tracker import Tracker

EPOCH_MS = 1_700_000_000_000
KINDS = ("quote", "trade", "news", "order")
DEFAULTS = TrackingSettings()
DIAMOND = {1: (2, 3), 2: (1, 4), 3: (1, 4), 4: (2, 3, 5), 5: (4,)}

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Entry = tuple[bytes, int, int | str]  # id, broker, upstream or subscriber


@dataclass(frozen=True)
class Subscriber:
    name: str
    broker: int
    kinds: tuple[int, ...]
    threshold: int = 0

    @property
    def filter(self) -> str:
        kinds = ", ".join(f"'{KINDS[kind]}'" for kind in self.kinds)
        return f"kind IN ({kinds}) AND value >= {self.threshold}"

    def wants(self, kinds: Numbers, values: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.isin(kinds, self.kinds) & (values >= self.threshold)


@dataclass
class Truth:
    """Everything that happened, and what of it no track tells since a crash took it."""

    published: list[bytes] = field(default_factory=list)
    attributes: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # kind, value
    ticks: dict[bytes, int] = field(default_factory=dict)
    routed: set[Entry] = field(default_factory=set)
    delivered: set[Entry] = field(default_factory=set)
    unrecorded: set[Entry] = field(default_factory=set)


@dataclass
class Broker:
    number: int
    path: Path
    settings: TrackingSettings
    storage: BrokerStorage
    incarnation: int = 1
    tracker: Tracker | None = None
    tracks: TrackStore | None = None
    waiting: list[tuple[int, Any]] = field(default_factory=list)  # while it is down
    unwritten: list[Entry] = field(default_factory=list)
    spans: dict[tuple[str, int], Span] = field(default_factory=dict)
    attachments: int = 0


@dataclass(frozen=True)
class Rows:
    """Messages of one pubend on their way."""

    pubend: int
    ids: Ids
    kinds: Numbers
    values: Numbers
    ticks: Numbers

    def of(self, chosen: np.ndarray[Any, Any]) -> Rows:
        return Rows(self.pubend, self.ids[chosen], self.kinds[chosen], self.values[chosen], self.ticks[chosen])


class World:
    """Brokers 1, 2, ... with links as given; each has a pubend, and all subscribers are there from the beginning."""

    def __init__(
        self,
        directory: Path,
        subscribers: Sequence[Subscriber],
        *,
        links: Mapping[int, Sequence[int]] = DIAMOND,
        settings: TrackingSettings | Mapping[int, TrackingSettings] = DEFAULTS,
        origins: Sequence[int] | None = None,
        seed: int = 1,
        segment_bytes: int = 64 << 20,
        start_ms: int = EPOCH_MS,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.now_ms = start_ms
        self.links = links
        self.origins = origins or sorted(links)
        self.subscribers = subscribers
        self.truth = Truth()
        self.parents = {origin: _tree(links, origin) for origin in links}
        self._counter = 0
        self._segment_bytes = segment_bytes
        self.brokers: dict[int, Broker] = {}
        for number in sorted(links):
            own = settings if isinstance(settings, TrackingSettings) else settings[number]
            path = directory / f"broker{number}"
            storage = open_broker_storage(path, number, [pubend_id(number)], LogOptions(segment_bytes=segment_bytes))
            self.brokers[number] = Broker(number, path, own, storage)
            self._start(self.brokers[number])

    @property
    def data(self) -> list[str]:
        return [str(broker.path) for broker in self.brokers.values()]

    # --- what happens -----------------------------------------------------------------------------------------------------

    def run(self, duration_ms: int, *, rate: int, step_ms: int = 100) -> None:
        """Let time pass; every origin publishes `rate` messages a second."""
        for _ in range(0, duration_ms, step_ms):
            self.now_ms += step_ms
            for origin in self.origins:
                count = int(self.random.poisson(rate * step_ms / 1000))
                if count and self.brokers[origin].tracker is not None:
                    self._publish(origin, count)
            for broker in self.brokers.values():
                self.flush(broker)

    def crash(self, number: int) -> None:
        """Kill a broker: what its tracker had not written is gone, and the subscribers have what they were sent."""
        broker = self.brokers[number]
        self.truth.unrecorded.update(broker.unwritten)
        broker.unwritten.clear()
        broker.tracker = broker.tracks = None

    def restart(self, number: int) -> None:
        broker = self.brokers[number]
        broker.incarnation += 1
        self._start(broker)
        waiting, broker.waiting = broker.waiting, []
        for upstream, rows in waiting:
            self._arrive(number, upstream, rows)

    def finish(self, *, farewell: bool = True) -> None:
        """End all brokers in good order, or just write what there is."""
        for broker in self.brokers.values():
            if broker.tracker is not None:
                self.flush(broker, farewell=farewell, force=True)
            broker.storage.close()

    def flush(self, broker: Broker, *, farewell: bool = False, force: bool = False) -> None:
        tracker, tracks = broker.tracker, broker.tracks
        if tracker is not None and tracks is not None and (force or tracker.wants_flush(self.now_ms)):
            tracks.write(tracker.flush(self.now_ms, farewell=farewell), now_ms=self.now_ms)
            broker.unwritten.clear()

    # --- inside -----------------------------------------------------------------------------------------------------------

    def _start(self, broker: Broker) -> None:
        broker.tracker = Tracker(broker.number, broker.incarnation, broker.settings, wall_ms=self.now_ms)
        broker.tracks = TrackStore.open(broker.path / "tracks", broker.number, broker.incarnation, now_ms=self.now_ms)
        broker.tracker.take([Links(self.now_ms, tuple(self.links[broker.number]))], self.now_ms)
        self._republish(broker, broker.tracks.recovered.horizons)
        former, broker.spans = broker.spans, {}
        for subscriber in self.subscribers:
            if subscriber.broker == broker.number:
                broker.attachments += 1
                for origin in self.links:
                    pubend = pubend_id(origin)
                    before = former.get((subscriber.name, pubend))
                    start = before.to_tick if before is not None else EPOCH_MS << 16
                    broker.spans[subscriber.name, pubend] = Span(
                        subscriber.name, broker.attachments, pubend, subscriber.filter, start, start, self.now_ms
                    )

    def _republish(self, broker: Broker, horizons: Mapping[int, int]) -> None:
        """Enter what the log holds beyond the horizon of the publisher history."""
        pubend = pubend_id(broker.number)
        found = broker.storage.logs[pubend].read(horizons.get(pubend, 0), 1 << 62, 1 << 40)
        assert broker.tracker is not None
        for batch in found.batches:
            events: list[TrackEvent] = [Published(pubend, batch.ids()), Horizon(pubend, int(batch.ticks()[-1]))]
            broker.tracker.take(events, self.now_ms)

    def _publish(self, origin: int, count: int) -> None:
        ids = np.empty(count, ID_DTYPE)
        ids["publisher"] = origin * 1000 + self.random.integers(1, 4, count)
        ids["broker"] = origin
        delay = np.sort(self.random.integers(0, 50, count))[::-1]
        self._counter += count
        counters = (np.arange(self._counter - count, self._counter) & 0xFFFF).astype(np.uint64)
        ids["tick"] = ((self.now_ms - delay).astype(np.uint64) << np.uint64(16)) | counters
        ticks = (self.now_ms << 16) + np.arange(count)
        kinds, values = self.random.integers(0, len(KINDS), count), self.random.integers(0, 10, count)
        rows = Rows(pubend_id(origin), ids.view(np.dtype((np.void, 16))), kinds, values, ticks)
        self._append(origin, rows)
        self._note(rows)
        self._arrive(origin, 0, rows)

    def _append(self, origin: int, rows: Rows) -> None:
        attributes = {"kind": [KINDS[kind] for kind in rows.kinds.tolist()], "value": rows.values}
        batch = Batch.from_columns(rows.ids.tobytes(), [b"x" * 20] * len(rows.ids), attributes, rows.ticks)
        self.brokers[origin].storage.logs[rows.pubend].append([batch])

    def _note(self, rows: Rows) -> None:
        items = _items(rows.ids)
        self.truth.published += items
        self.truth.attributes |= dict(zip(items, zip(rows.kinds.tolist(), rows.values.tolist(), strict=True), strict=True))
        self.truth.ticks |= dict(zip(items, rows.ticks.tolist(), strict=True))

    def _arrive(self, number: int, upstream: int, rows: Rows) -> None:
        broker = self.brokers[number]
        if broker.tracker is None:
            broker.waiting.append((upstream, rows))
            return
        origin = rows.pubend >> 8
        events: list[TrackEvent] = []
        if upstream:
            events.append(Routed(rows.pubend, upstream, rows.ids))
            self._happened(broker, self.truth.routed, [(item, number, upstream) for item in _items(rows.ids)])
        else:
            events += [Published(rows.pubend, rows.ids), Horizon(rows.pubend, int(rows.ticks[-1]))]
        events += self._deliver(broker, rows)
        for child in self.links[number]:
            if self.parents[origin].get(child) == number:
                chosen = rows.of(self._wanted_at(origin, child, rows))
                if len(chosen.ids):
                    self._arrive(child, number, chosen)
                    if broker.settings.per_neighbour:
                        events.append(Forwarded(rows.pubend, child, chosen.ids))
        broker.tracker.take(events, self.now_ms)

    def _deliver(self, broker: Broker, rows: Rows) -> list[TrackEvent]:
        events: list[TrackEvent] = []
        for subscriber in self.subscribers:
            if subscriber.broker != broker.number:
                continue
            ids = rows.ids[subscriber.wants(rows.kinds, rows.values)]
            if len(ids):
                events.append(Delivered(subscriber.name, rows.pubend, ids))
                self._happened(broker, self.truth.delivered, [(item, broker.number, subscriber.name) for item in _items(ids)])
            span = broker.spans[subscriber.name, rows.pubend]
            broker.spans[subscriber.name, rows.pubend] = msgspec.structs.replace(span, to_tick=int(rows.ticks[-1]))
            events.append(broker.spans[subscriber.name, rows.pubend])
        return events

    def _happened(self, broker: Broker, where: set[Entry], entries: list[Entry]) -> None:
        where.update(entries)
        broker.unwritten += entries

    def _wanted_at(self, origin: int, number: int, rows: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Say which messages somebody at a broker or behind it wants."""
        wanted = np.zeros(len(rows.ids), np.bool_)
        for subscriber in self.subscribers:
            if number in _way(self.parents[origin], subscriber.broker):
                wanted |= subscriber.wants(rows.kinds, rows.values)
        return wanted


def _items(ids: Ids) -> list[bytes]:
    return [bytes(item) for item in ids.tolist()]


def _tree(links: Mapping[int, Sequence[int]], origin: int) -> dict[int, int]:
    """Return the neighbour towards the origin for every other broker, by shortest paths."""
    parents: dict[int, int] = {}
    reached = [origin]
    for number in reached:
        for neighbour in sorted(links[number]):
            if neighbour != origin and neighbour not in parents:
                parents[neighbour] = number
                reached.append(neighbour)
    return parents


def _way(parents: Mapping[int, int], number: int) -> list[int]:
    way = [number]
    while way[-1] in parents:
        way.append(parents[way[-1]])
    return way


def some_subscribers(count: int, brokers: Sequence[int] = (1, 2, 3, 4, 5)) -> list[Subscriber]:
    """Return subscribers with overlapping filters, spread over the brokers."""
    return [Subscriber(f"sub{number}", brokers[number % len(brokers)], _kinds_of(number), number % 7) for number in range(count)]


def _kinds_of(number: int) -> tuple[int, ...]:
    first = number % len(KINDS)
    return (first, (first + 1) % len(KINDS)) if number % 3 else (first,)


def by_subscriber(entries: set[Entry]) -> dict[str, set[bytes]]:
    found: dict[str, set[bytes]] = defaultdict(set)
    for item, _, name in entries:
        found[str(name)].add(item)
    return found
