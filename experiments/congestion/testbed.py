"""An overlay under load whose links are limited, cut and healed, sampled each second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np

from experiments.congestion.layouts import FACTOR, KB, PAPER_QUEUE_BYTES, PUBENDS, Layout
from experiments.congestion.load import GROUPS, NoHistory, Reader, Writer, client
from postroad.core.batch.batch import Batch
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import CatchUpReply, CongestionAlert, Knowledge, Packet
from postroad.sim.brokers import BrokerNode
from postroad.sim.disk import DiskProfile
from postroad.sim.network import Cable, CableProfile, End
from postroad.sim.overlay import Overlay
from postroad.tracking.tap.tracked_broker import TrackedConfig
from postroad.types import tick_milliseconds

WARM_S: Final = 5.0  # until the overlay stands and subscriptions are active
SETTLE_S_MAX: Final = 900.0
UNLIMITED: Final = 20e6  # bytes per second
CACHE_BYTES: Final = 600_000  # of an intermediate broker, per pubend: about the last ten seconds
LOOK_S: Final = 0.1
DISK: Final = DiskProfile()
CAUGHT_UP_MS: Final = 2_500  # silence is told each second


@dataclass
class Crossings:
    """The rows that came over one link in one direction."""

    at: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    ticks: list[np.ndarray] = field(default_factory=list)  # with the pubend's index in the lowest bits, which are not used


class WatchedBroker(BrokerNode):
    """A broker that notes what comes over its links, and no event per message."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.came: dict[int, Crossings] = defaultdict(Crossings)  # by the broker from which it came
        self.alerts: list[tuple[float, int, CongestionAlert]] = []  # (time, pubend's index, alert)
        self.logged: dict[int, list[Batch]] = defaultdict(list)
        self.logged_rows: dict[int, int] = dict.fromkeys(self.pubends, 0)
        self._bytes: dict[LinkId, int] = defaultdict(int)

    def received(self, end: End, data: bytes) -> None:
        self._bytes[end.link] += len(data)
        super().received(end, data)

    def _watch(self, link: LinkId, packet: Packet, batch: Batch | None) -> None:
        size = self._bytes.pop(link)
        other = self._ends[link].far.peer
        if not isinstance(other, BrokerNode):
            super()._watch(link, packet, None)
        elif batch is not None and isinstance(packet, Knowledge | CatchUpReply):
            came = self.came[other.broker]
            came.at.append(self.world.now)
            came.bytes.append(size)
            came.ticks.append((batch.ticks() << np.uint64(2)) | np.uint64(index_of(packet.pubend)))
        elif isinstance(packet, CongestionAlert) and packet.pubend in self.logged_rows:
            self.alerts.append((self.world.now, index_of(packet.pubend), packet))

    def _watch_sent(self, link: LinkId, message: Packet, batch: Batch | None) -> None:
        pass

    def _note_logged(self, pubend: int, batch: Batch) -> None:
        self.logged[pubend].append(batch)
        self.logged_rows[pubend] += len(batch)


def index_of(pubend: int) -> int:
    return pubend & 3


class WatchedOverlay(Overlay):
    """An overlay of watched brokers."""

    def broker(self, number: int, *, config: TrackedConfig | None = None, pubends: int = 1, **_: Any) -> WatchedBroker:
        node = WatchedBroker(self.world, self.network, self.history, number, config or self.config, DISK, pubends)
        self.nodes[number] = node
        node.start()
        return node

    def _measure(self) -> None:
        pass


class Testbed:
    """One run of one rule over one layout.

    Times of the public methods are those of the experiment: 0 is when the load has run for `WARM_S`.
    """

    __test__ = False  # not a test, whatever its name begins with

    def __init__(self, layout: Layout, settings: CongestionSettings, seed: int, *, subscriptions: int = 1) -> None:
        self.layout = layout
        self.rule = settings.rule
        self.subscriptions = subscriptions  # at each broker that has any
        self.overlay = overlay = WatchedOverlay(seed, history=NoHistory())
        self.number = {name: n for n, name in enumerate(layout.brokers, 1)}
        config = TrackedConfig(congestion=settings)
        for name, number in self.number.items():
            role = replace(config, cache_bytes=CACHE_BYTES) if name.startswith("IB") else config
            overlay.broker(number, config=role, pubends=PUBENDS if name == layout.publisher else 0)
        profile = CableProfile(
            latency_s=0.002,
            jitter_s=0.001,
            bytes_per_s=UNLIMITED,
            backlog_bytes_max=int(PAPER_QUEUE_BYTES * FACTOR),
        )
        self.cables: dict[tuple[str, str], Cable] = {}
        for a, b in layout.links:
            self.cables[a, b] = overlay.link(self.number[b], self.number[a], profile)
        overlay.run(1.0)
        self.readers = {name: self._reader(name, text) for name, text in layout.wanted.items()}
        overlay.run(3.0)
        home = self.number[layout.publisher]
        self.writers = [cast("Writer", client(overlay, Writer, f"writer{n}", home)) for n in range(PUBENDS)]
        self.source = cast("WatchedBroker", overlay.nodes[home])
        overlay.at(3.5, self._begin)
        overlay.run(WARM_S)
        self.rows: list[dict[str, float]] = []
        self._totals: dict[str, float] = {}
        self._backlogs = dict.fromkeys(self.cables, 0)
        self._look()
        self.sample()

    def _reader(self, name: str, text: str) -> Reader:
        reader = cast("Reader", client(self.overlay, Reader, name, self.number[name]))
        for index, each in enumerate(parts_of(text, self.subscriptions)):
            reader.follow(each, subscription=f"{name}/{index}")
        return reader

    def _begin(self) -> None:
        for writer in self.writers:
            writer.begin()

    # --- time

    @property
    def now(self) -> float:
        return self.overlay.world.now - WARM_S

    def at(self, when: float, action: Callable[[], object]) -> None:
        self.overlay.at(when + WARM_S, action)

    def run(self, until: float) -> None:
        """Let time pass, with a sample each second."""
        while self.now < until - 1e-6:
            self.overlay.run(min(self.overlay.world.now + 1.0, until + WARM_S))
            if self.overlay.failure is not None:
                raise AssertionError(self.overlay.failure)
            self.sample()

    def limit(self, a: str, b: str, paper_kb_per_s: float | None) -> None:
        """Restrict a link to what the paper gives, scaled; None: no more."""
        bytes_per_s = UNLIMITED if paper_kb_per_s is None else scaled(paper_kb_per_s)
        self.cables[a, b].squeeze(bytes_per_s / UNLIMITED)

    def settle(self) -> bool:
        """Stop the load, lift every limit, and let everything arrive; tell whether it did."""
        for writer in self.writers:
            writer.stopped = True
        for a, b in self.cables:
            self.limit(a, b, None)
        until = self.overlay.world.now + SETTLE_S_MAX
        while self.overlay.world.now < until:
            self.overlay.run(self.overlay.world.now + 1.0)
            if all(writer.idle for writer in self.writers) and all(
                reader.delivered >= len(self.wanted(name)) for name, reader in self.readers.items()
            ):
                return True
        return False

    def wanted(self, name: str) -> np.ndarray:
        """Return the ids of the logged messages that the reader at a broker wants."""
        filter_ = Filter(self.layout.wanted[name])
        parts = [batch.ids()[filter_.evaluate(batch)] for batches in self.source.logged.values() for batch in batches]
        return np.concatenate(parts)

    # --- what is seen

    def node(self, name: str) -> WatchedBroker:
        return cast("WatchedBroker", self.overlay.nodes[self.number[name]])

    def streams(self, name: str) -> dict[int, dict[str, int]]:
        """Return what a broker says of the streams of the four pubends."""
        machine = self.node(name).machine
        assert machine is not None
        streams = machine.streams()
        return {index_of(pubend): streams[pubend] for pubend in self.source.pubends if pubend in streams}

    def behind_ms(self, name: str) -> int:
        """Return how far the readers of a broker are behind the pubends, in the stream that is worst."""
        if self.rule is Rule.NONE:  # readers catch up by themselves, so that the doubt horizon says nothing of them
            ticks = self.readers[name].positions(self.source.pubends)
        else:
            ticks = [stream["delivered"] for stream in self.streams(name).values()]
        return self.source.wall_ms() - tick_milliseconds(min(ticks, default=0))

    def backlog(self, a: str, b: str) -> int:
        """Return the bytes that wait at `a` for the link to `b`."""
        connection = self.cables[a, b].connection
        if connection is None:
            return 0
        end = connection.a if connection.a.peer is self.node(a) else connection.b
        return end.queued

    def sample(self) -> None:
        row: dict[str, float] = {"t": round(self.now, 3)}
        row["published"] = self._since("published", sum(self.source.logged_rows.values()))
        for pubend, rows in self.source.logged_rows.items():
            row[f"published {index_of(pubend)}"] = self._since(f"published {pubend}", rows)
        for name, reader in self.readers.items():
            row[name] = self._since(name, reader.delivered)
            streams = self.streams(name)
            row[f"behind {name}"] = self.behind_ms(name) / 1000
            row[f"recovering {name}"] = sum(stream["recovering"] for stream in streams.values())
            row[f"nack window {name}"] = max((stream["nack_window_ms"] for stream in streams.values()), default=0)
            moved = [self._since(f"{name} {n}", tick_milliseconds(s["delivered"]) / 1000) for n, s in streams.items()]
            row[f"doubt rate {name}"] = min(moved, default=0)
        for link, size in self._backlogs.items():
            row[f"backlog {'-'.join(link)}"] = size
            self._backlogs[link] = 0
        self.rows.append(row)

    def _look(self) -> None:
        """Note the longest backlogs between two samples."""
        for link, size in self._backlogs.items():
            self._backlogs[link] = max(size, self.backlog(*link))
        self.overlay.world.after(LOOK_S, self._look)

    def _since(self, name: str, total: float) -> float:
        before = self._totals.get(name, total)
        self._totals[name] = total
        return total - before

    def series(self, name: str, begin: float = 0.0, end: float = float("inf")) -> np.ndarray:
        """Return the samples in (begin, end]."""
        return np.array([row[name] for row in self.rows if begin < row["t"] <= end + 1e-6])


def scaled(paper_kb_per_s: float) -> float:
    return paper_kb_per_s * KB * FACTOR


def parts_of(filter_text: str, count: int) -> list[str]:
    """Divide what a filter matches among so many subscriptions."""
    if count == 1:
        return [filter_text]
    step = GROUPS // count
    return [f"group >= {low} AND group < {low + step}" for low in range(0, GROUPS, step)]
