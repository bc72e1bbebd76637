"""A broker's disk: pubend logs and metadata that survive the broker, but only as far as they were synced.

Writes are carried out in the order they were asked for, each after a latency; the fact that reports a write is handed over when
it is durable. A crash loses what was not synced, with the cruelty real disks have: of the writes under way a prefix may have
become durable without anyone having been told, and of the append at the edge perhaps only its first batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from postroad.core.batch.batch import Batch
from postroad.core.broker.incarnations import assumed_base, started_incarnation
from postroad.core.protocol.orders import (
    Append,
    Appended,
    AppendFailed,
    BrokerState,
    LogRead,
    Lost,
    PubendState,
    ReadLog,
    ReleaseLog,
    Store,
    Stored,
)
from postroad.errors import StorageFullError
from postroad.sim.world import World

PENDING_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class DiskProfile:
    """How quick it is, and how finely the log can be released."""

    write_s: float = 0.001
    read_s: float = 0.0005
    jitter_s: float = 0.001
    segment_batches: int = 4  # a log gives back whole segments
    retention_rows_max: int = 1 << 30  # beyond this the oldest segments go, needed or not


@dataclass(slots=True)
class Log:
    """The durable part of one pubend's log."""

    pubend: int
    batches: list[Batch] = field(default_factory=list)
    last_ticks: list[int] = field(default_factory=list)  # of each batch
    last_tick: int = 0
    released: int = 0
    publishers: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    spoiled: dict[int, None] = field(default_factory=dict)  # last ticks of batches that cannot be read

    def append(self, batch: Batch) -> None:
        ticks = batch.ticks()
        self.batches.append(batch)
        self.rows += len(batch)
        self.last_tick = int(ticks[-1])
        self.last_ticks.append(self.last_tick)
        for message_id in batch.ids().tolist():
            publisher, tick = int.from_bytes(message_id[:4]), int.from_bytes(message_id[8:])
            if tick > self.publishers.get(publisher, -1):
                self.publishers[publisher] = tick

    def release(self, tick: int, segment_batches: int) -> None:
        """Give back whole segments that end at or before the tick."""
        whole = bisect_right(self.last_ticks, tick)
        self._drop(whole - whole % segment_batches)

    def retain(self, rows_max: int, segment_batches: int) -> bool:
        """Give back the oldest segments while there are more rows than that; return whether any went."""
        before = self.released
        while self.rows > rows_max and len(self.batches) > segment_batches:
            self._drop(segment_batches)
        return self.released != before

    def _drop(self, batches: int) -> None:
        if batches:
            self.released = self.last_ticks[batches - 1]
            self.rows -= sum(len(batch) for batch in self.batches[:batches])
            del self.batches[:batches], self.last_ticks[:batches]

    def spoil(self, index: int) -> tuple[int, int]:
        """Let a batch be unreadable from now on; return (lo, hi] that is lost with it."""
        self.spoiled[self.last_ticks[index]] = None
        return self._before(index), self.last_ticks[index]

    def _before(self, index: int) -> int:
        return self.last_ticks[index - 1] if index else self.released

    def read(self, lo: int, hi: int, bytes_max: int) -> tuple[int, tuple[Batch, ...], tuple[Lost, ...]]:
        """Return up to where the answer is complete, the batches, and what is damaged between them."""
        found: list[Batch] = []
        lost: list[Lost] = []
        size = 0
        index = bisect_right(self.last_ticks, lo)
        while index < len(self.batches):
            batch = self.batches[index]
            if int(batch.ticks()[0]) > hi:
                break
            if found and size >= bytes_max:
                return self.last_ticks[index - 1], tuple(found), tuple(lost)
            if self.last_ticks[index] in self.spoiled:
                lost.append(Lost(max(lo, self._before(index)), min(hi, self.last_ticks[index]), "the check of a batch fails"))
            elif len(part := batch.within(lo, hi)):
                found.append(part)
                size += part.size
            index += 1
        return hi, tuple(found), tuple(lost)

    def beyond(self, tick: int) -> Iterator[Batch]:
        """Yield all rows after a tick that can be read."""
        for index in range(bisect_right(self.last_ticks, tick), len(self.batches)):
            if self.last_ticks[index] not in self.spoiled:
                yield self.batches[index].within(tick, self.last_tick)

    def state(self) -> PubendState:
        return PubendState(self.pubend, self.last_tick, self.released, tuple(sorted(self.publishers.items())))


Report: TypeAlias = Callable[[Appended | AppendFailed | Stored], None]


class _Writes:
    """The writes under way on one file, one after the other, each with the time it takes; different files are independent."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: deque[tuple[Append | Store, Report, float]] = deque()


class Disk:
    """What one broker finds again when it starts.

    `logged` is called with (pubend, batch) when rows become durable, `freed` with (pubend, tick, released, retention) when a
    log was told to give back up to a tick, or had to, and has given back up to `released`; `stored` with (key, value) when
    a record becomes durable, and `created` with (key) before that when it was not there.
    """

    def __init__(self, world: World, name: str, profile: DiskProfile, pubends: tuple[int, ...]) -> None:
        self.world = world
        self.profile = profile
        self.logs = {pubend: Log(pubend) for pubend in pubends}
        self.metadata: dict[str, bytes] = {}
        self.damaged: dict[str, None] = {}  # keys of metadata that cannot be trusted
        self.incarnation = 0
        self.logged: Callable[[int, Batch], None] = lambda _pubend, _batch: None
        self.freed: Callable[[int, int, int, bool], None] = lambda _pubend, _tick, _released, _retention: None
        self.stored: Callable[[str, bytes], None] = lambda _key, _value: None
        self.created: Callable[[str], None] = lambda _key: None
        self._chance = world.chance(f"disk/{name}")
        self._metadata_writes = _Writes()
        self._log_writes = {pubend: _Writes() for pubend in pubends}
        self._life = 0  # of the broker; what an earlier life asked for is not reported
        self.stalled_until = 0.0
        self.full_until = 0.0
        self.reading = 0  # reads under way
        self.slowness = 1.0  # everything takes so many times as long

    # --- a broker's start and end

    def start(self, broker: int, wall_ms: int = 0) -> BrokerState:
        """Hand out what a starting broker finds; its incarnation is stored first, and what stands in for a damaged base."""
        self.incarnation += 1
        pubends = tuple(log.state() for log in self.logs.values())
        damaged = tuple(self.damaged)
        for key, value in assumed_base(damaged, wall_ms // 1000):
            self._put(key, value)
        incarnation = started_incarnation(self.incarnation, self.metadata)
        return BrokerState(broker, incarnation, pubends, tuple(sorted(self.metadata.items())), damaged)

    def spoil_log(self, pubend: int) -> tuple[int, int] | None:
        """Damage a batch in a closed segment of a log; return (lo, hi] that is lost, None if there is none to damage."""
        log = self.logs[pubend]
        closed = len(log.batches) - 1 - (len(log.batches) - 1) % self.profile.segment_batches
        whole = [index for index in range(closed) if log.last_ticks[index] not in log.spoiled]
        return log.spoil(self._chance.choice(whole)) if whole else None

    def spoil_record(self, key: str | None = None, *, spared: str = "") -> str | None:
        """Damage a stored record, this one or any but the spared one; return its key, None if there is none.

        It stays so until it is stored anew.
        """
        candidates = sorted(each for each in self.metadata if each != spared)
        if not candidates:
            return None
        key = key or self._chance.choice(candidates)
        del self.metadata[key]
        self.damaged[key] = None
        return key

    def crash(self) -> None:
        """Lose what was not synced, but for a prefix that was, untold."""
        self._life += 1
        self.reading = 0
        for writes in (self._metadata_writes, *self._log_writes.values()):
            survivors = self._chance.randint(0, len(writes.pending))
            for _ in range(survivors):
                self._commit(writes.pending.popleft()[0])
            torn = writes.pending.popleft()[0] if writes.pending else None
            if isinstance(torn, Append):
                kept = self._chance.randint(0, len(torn.batches) - 1)
                self._commit(Append(torn.pubend, torn.token, torn.batches[:kept]))
            writes.pending.clear()

    def lose(self) -> None:
        """Be replaced by an empty one, while the broker is down."""
        self.logs = {pubend: Log(pubend) for pubend in self.logs}
        self.metadata = {}
        self.damaged = {}
        self.incarnation = 0

    def settle(self) -> None:
        """Finish every write at once and report it: what a broker that stops in good order waits for."""
        while True:
            waiting = [writes for writes in (self._metadata_writes, *self._log_writes.values()) if writes.pending]
            if not waiting:
                break
            for writes in waiting:
                self._finish(writes)
        self._life += 1
        self.reading = 0

    def stall(self, seconds: float) -> None:
        """Finish nothing for a while."""
        self.stalled_until = max(self.stalled_until, self.world.now + seconds)

    def fill(self, seconds: float) -> None:
        """Have no room for a while: appends fail, metadata waits."""
        self.full_until = max(self.full_until, self.world.now + seconds)

    def slow_down(self, slowness: float) -> None:
        """Let everything take so many times as long from now on."""
        self.slowness = slowness

    def heal(self) -> None:
        """End every fault."""
        self.full_until = self.stalled_until = self.world.now
        self.slowness = 1.0

    # --- orders

    def write(self, order: Append | Store, report: Report) -> None:
        writes = self._log_writes[order.pubend] if isinstance(order, Append) else self._metadata_writes
        assert len(writes.pending) < PENDING_MAX, "a broker asks for writes without end"
        writes.pending.append((order, report, self._latency(self.profile.write_s)))
        if len(writes.pending) == 1:
            self._begin(writes)

    def read(self, order: ReadLog, report: Callable[[LogRead], None]) -> None:
        self.reading += 1
        done = max(self.world.now, self.stalled_until) + self.slowness * self._latency(self.profile.read_s)
        self.world.at(done, self._read, order, self._life, report)

    def release(self, order: ReleaseLog) -> None:
        log = self.logs[order.pubend]
        log.release(order.tick, self.profile.segment_batches)
        self.freed(order.pubend, order.tick, log.released, False)

    def oldest_segments(self) -> Iterator[tuple[int, int]]:
        """Yield each log that holds a whole segment, with the last tick of its oldest one."""
        for pubend, log in self.logs.items():
            if len(log.last_ticks) >= self.profile.segment_batches:
                yield pubend, log.last_ticks[self.profile.segment_batches - 1]

    # --- inside

    def _latency(self, typical: float) -> float:
        return typical + self._chance.random() * self.profile.jitter_s

    def _begin(self, writes: _Writes) -> None:
        """Begin the first write of a file; how slow the disk is now counts, not how slow it was when that was asked for."""
        done = max(self.world.now, self.stalled_until) + self.slowness * writes.pending[0][2]
        self.world.at(done, self._finish_write, writes, self._life)

    def _finish_write(self, writes: _Writes, life: int) -> None:
        if life != self._life:
            return
        if self.world.now < self.stalled_until:
            self.world.at(self.stalled_until, self._finish_write, writes, life)
            return
        if self.world.now < self.full_until and isinstance(writes.pending[0][0], Store):
            self.world.at(self.full_until, self._finish_write, writes, life)
            return
        self._finish(writes)

    def _finish(self, writes: _Writes) -> None:
        order, report, _ = writes.pending.popleft()
        if writes.pending:
            self._begin(writes)
        if isinstance(order, Append) and self.world.now < self.full_until:
            report(
                AppendFailed(order.pubend, order.token, StorageFullError(f"the log of pubend {order.pubend}", "no space left"))
            )
            return
        self._commit(order)
        report(Appended(order.pubend, order.token) if isinstance(order, Append) else Stored(order.token))

    def _read(self, order: ReadLog, life: int, report: Callable[[LogRead], None]) -> None:
        if life != self._life:
            return
        self.reading -= 1
        log = self.logs[order.pubend]
        hi, batches, lost = log.read(order.lo, order.hi, order.bytes_max)
        report(LogRead(order.pubend, order.token, hi, batches, log.released, lost))

    def _commit(self, order: Append | Store) -> None:
        if isinstance(order, Store):
            for key, value in order.changes:
                self._put(key, value)
            return
        log = self.logs[order.pubend]
        for batch in order.batches:
            log.append(batch)
            self.logged(order.pubend, batch)
        if log.retain(self.profile.retention_rows_max, self.profile.segment_batches):
            self.freed(order.pubend, log.released, log.released, True)

    def _put(self, key: str, value: bytes | None) -> None:
        self.damaged.pop(key, None)
        if value is None:
            self.metadata.pop(key, None)
        else:
            if key not in self.metadata:
                self.created(key)
            self.metadata[key] = value
            self.stored(key, value)
