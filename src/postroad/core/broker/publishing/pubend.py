"""The pubend: one persistent ordered stream in which each tick is decided once.

Rows that arrive during a write wait; `commit` turns all waiting rows into one append (group commit). The ticks of an append are
announced only when it is on disk. Between appends, silence is announced up to the clock, but never above `reserved`, a horizon
that was stored before. So after a crash, or when the clock went back, new ticks lie above everything that was ever announced.

Under congestion control a pubend may be held to a rate. Then `commit` takes only what the rate allows, from each publisher in
turn, so that nobody waits behind what another one sent. Each publisher is told its *credit*: how many messages it may have
unacknowledged. All credits together are about `CREDIT_S` of the rate, so little waits here.

The ids of a publisher ascend, so it is enough to remember its highest accepted id: a repeated message has that id or a lower one.
The table of publishers is bounded. A publisher that was dropped from it may continue only above all ids that were dropped.

Invariants: `horizon` never falls; every row at or below it is on disk; assigned ticks strictly ascend.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch, concat
from postroad.core.batch.build import build_batches
from postroad.core.batch.row_codec import Row
from postroad.core.batch.schema import BatchLimits
from postroad.core.broker.congestion.pacer import Pacer
from postroad.core.broker.congestion.published import PublishedCount
from postroad.core.broker.congestion.rate_rule import Throttle
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import Append, LinkId, PubendState, Send
from postroad.core.protocol.packets import Credit, PublishAcknowledged, PublishRefused
from postroad.errors import InvalidValueError, PostroadError

PUBLISHERS_MAX: Final = 1 << 17
COMMIT_ROWS_MAX: Final = 1 << 16
ROW_BYTES: Final = 200  # approximate memory of a waiting row without its payload
JOIN_LIMITS: Final = BatchLimits(rows=8192, bytes=2 << 20)  # for batches that arrived separately and are concatenated
RESERVE_MS: Final = 15_000
RESERVE_AGAIN_MS: Final = 5_000
CREDIT_S: Final = 1.0  # of a rate, for all publishers together
CREDIT_MIN: Final = 2  # messages: the next one is ready when one is acknowledged
CREDIT_CHANGE: Final = 0.1  # of a rate, from which on publishers are told without delay


@dataclass(slots=True)
class _PublisherTicks:
    link: LinkId | None
    accepted: int  # the highest tick of an accepted id, on disk or waiting
    durable: int


@dataclass(slots=True)
class _Waiting:
    """Rows or columns of one publisher that wait for an append."""

    number: int  # ascends in the order of arrival
    publisher: int
    last: int
    size: int  # approximate bytes
    rows: list[Row] = field(default_factory=list)
    columns: Batch | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.columns is None else len(self.columns)

    def split(self, count: int) -> tuple[_Waiting, _Waiting]:
        """Return the first so many messages, and the others."""
        size = self.size * count // len(self)
        if self.columns is None:
            first = replace(self, last=id_tick(self.rows[count - 1]), size=size, rows=self.rows[:count])
            return first, replace(self, size=self.size - size, rows=self.rows[count:])
        columns = self.columns
        part = columns.slice(0, count)
        first = replace(self, last=int(id_ticks(part)[-1]), size=size, columns=part)
        return first, replace(self, size=self.size - size, columns=columns.slice(count, len(columns)))


class Pubend:
    """One stream. `publish` adds rows; `appended` returns the ones that are on disk."""

    def __init__(self, state: PubendState, reserved: int, orders: list[Output]) -> None:
        self.pubend = state.pubend
        self.released = state.released
        self.reserved = reserved
        floor = max(state.last_tick, state.released, reserved)
        self.horizon = floor  # everything up to here is decided and announced
        self.last = state.last_tick  # the tick of the last announced message
        self.backlog_rows = 0
        self.backlog_bytes = 0
        self.wall_ms = 0  # the broker's clock
        self.is_open = True  # False: its first tick is not chosen yet (see `incarnations`)
        self.pacer = Pacer()
        self.published = PublishedCount()
        self.throttle: Throttle | None = None
        self._orders = orders
        self._publishers: dict[int, _PublisherTicks] = {}
        self._forgotten = state.forgotten
        self._waiting: OrderedDict[int, deque[_Waiting]] = OrderedDict()  # by publisher, none of them empty
        self._arrivals = 0
        self._told_rate = 0.0  # in the credits that were sent last
        self._in_flight: tuple[int, tuple[Batch, ...], list[_Waiting]] | None = None
        self._token = 0
        for publisher, last in state.publishers:
            self._publishers[publisher] = _PublisherTicks(None, last, last)

    def restart_above(self, tick: int) -> None:
        """Assign no tick at or below this one, because it is not known what was announced before a crash."""
        self.horizon = max(self.horizon, tick)

    # --- publishers ---

    def open(self, publisher: int, link: LinkId) -> int:
        """Attach a publisher to a link; return the tick of its last id on disk."""
        entry = self._publishers.pop(publisher, None)
        if entry is None:
            entry = _PublisherTicks(link, self._forgotten, self._forgotten)
        entry.link = link
        self._publishers[publisher] = entry  # moved to the end: `_forget` drops the least recently opened
        self._forget()
        return entry.durable

    def accepted(self, publisher: int) -> int:
        """Return the highest tick of an accepted id, on disk or not."""
        return self._publishers[publisher].accepted

    def remembered(self, publisher: int) -> int | None:
        """Return the same as `accepted`, also for a publisher that is not open; None if it is not in the table."""
        entry = self._publishers.get(publisher)
        return None if entry is None else entry.accepted

    def durable(self, publisher: int) -> int:
        """Return the highest tick of a publisher's ids on disk; for an unknown publisher the highest dropped one."""
        entry = self._publishers.get(publisher)
        return self._forgotten if entry is None else entry.durable

    @property
    def forgotten(self) -> int:
        """The highest tick among the ids of publishers that were dropped from the table."""
        return self._forgotten

    def link_lost(self, link: LinkId) -> None:
        for entry in self._publishers.values():
            if entry.link == link:
                entry.link = None

    def publish(self, publisher: int, rows: Sequence[Row]) -> None:
        """Accept at least one row with ascending ids of an open publisher; repeated rows are left out."""
        entry = self._publishers[publisher]
        ticks = [int.from_bytes(row[0][8:], "big") for row in rows]
        if len(ticks) > 1 and any(left >= right for left, right in pairwise(ticks)):
            raise InvalidValueError("the message ids of one publisher must ascend")
        if ticks[-1] <= entry.accepted:
            self._acknowledge_again(publisher, entry)
            return
        fresh = list(rows[bisect_right(ticks, entry.accepted) :])
        size = sum([len(row[2]) for row in fresh]) + ROW_BYTES * len(fresh)
        self._wait(_Waiting(self._arrivals, publisher, ticks[-1], size, rows=fresh), entry, len(fresh))

    def publish_columns(self, publisher: int, batch: Batch) -> None:
        """Accept a batch with ascending ids of an open publisher; repeated rows are left out."""
        entry = self._publishers[publisher]
        ticks = id_ticks(batch)
        if len(ticks) > 1 and not bool(np.all(ticks[1:] > ticks[:-1])):
            raise InvalidValueError("the message ids of one publisher must ascend")
        first = int(np.searchsorted(ticks, np.uint64(entry.accepted), side="right"))
        if first == len(batch):
            self._acknowledge_again(publisher, entry)
            return
        fresh = batch if first == 0 else batch.slice(first, len(batch))
        self._wait(_Waiting(self._arrivals, publisher, int(ticks[-1]), fresh.size, columns=fresh), entry, len(fresh))

    # --- congestion control ---

    @property
    def credit(self) -> Credit | None:
        """What each publisher may have unacknowledged, and why; None while there is no congestion."""
        throttle = self.throttle
        if throttle is None:
            return None
        messages = max(math.ceil(throttle.rate * CREDIT_S / max(self.published.senders, 1)), CREDIT_MIN)
        return Credit(messages, throttle.rate, throttle.since_ms, throttle.broker)

    def hold_to(self, throttle: Throttle | None, now: float) -> None:
        """Keep a rate from now on, and tell the publishers whom that concerns; the others hear of it when they publish."""
        before, self.throttle = self.throttle, throttle
        rate = None if throttle is None else throttle.rate
        if rate != self.pacer.rate:
            self.pacer.set_rate(rate, now)
        if before is None or throttle is None:
            if before is not throttle:
                self._tell_credit(self._publishers)
        elif throttle.broker != before.broker or abs(throttle.rate - self._told_rate) > CREDIT_CHANGE * self._told_rate:
            self._tell_credit(self.published.recent_senders())

    def _tell_credit(self, publishers: Iterable[int]) -> None:
        """Repeat the last acknowledgement, now with the credit."""
        self._told_rate = 0.0 if self.throttle is None else self.throttle.rate
        for publisher in publishers:
            entry = self._publishers.get(publisher)
            if entry is not None and entry.link is not None:
                self._acknowledge(publisher, entry, entry.link)

    def held_back_bytes(self) -> dict[LinkId, int]:
        """Return for each link how many bytes of its publishers wait for the rate."""
        found: dict[LinkId, int] = {}
        for publisher, queue in self._waiting.items() if self.throttle is not None else ():
            link = self._publishers[publisher].link
            if link is not None:
                found[link] = found.get(link, 0) + sum(entry.size for entry in queue)
        return found

    # --- the stream ---

    def commit(self, wall_ms: int, now: float) -> None:
        """Begin one append with the waiting rows, as far as the rate allows, unless an append is in progress."""
        if self._in_flight is not None or not self._waiting or not self.is_open:
            return
        allowed = self.pacer.allowed(now)
        taken = self._take_all() if allowed is None else self._take(allowed)
        if not taken:
            return
        count = sum(map(len, taken))
        self.pacer.took(count)
        self.published.add(count)
        batches = _build(taken, max(wall_ms << 16, self.horizon + 1))
        self._token += 1
        self._in_flight = (self._token, batches, taken)
        self._orders.append(Append(self.pubend, self._token, batches))

    def _take_all(self) -> list[_Waiting]:
        """Take what waits, in the order of arrival."""
        waiting = self._waiting
        heads = [(queue[0].number, publisher) for publisher, queue in waiting.items()]
        heapq.heapify(heads)
        taken: list[_Waiting] = []
        count = 0
        while heads and (not taken or count < COMMIT_ROWS_MAX):
            _, publisher = heads[0]
            queue = waiting[publisher]
            taken.append(queue.popleft())
            count += len(taken[-1])
            if queue:
                heapq.heapreplace(heads, (queue[0].number, publisher))
            else:
                heapq.heappop(heads)
                del waiting[publisher]
        return taken

    def _take(self, count: int) -> list[_Waiting]:
        """Take so many of the waiting messages, the same number from each publisher; the others are held back."""
        taken: list[_Waiting] = []
        left = min(count, COMMIT_ROWS_MAX)
        while self._waiting and left > 0:
            publisher, queue = self._waiting.popitem(last=False)
            share = max(left // (len(self._waiting) + 1), 1)
            while queue and share > 0:
                if len(queue[0]) > share:
                    first, queue[0] = queue[0].split(share)
                else:
                    first = queue.popleft()
                taken.append(first)
                share -= len(first)
                left -= len(first)
            if queue:
                self._waiting[publisher] = queue  # last from now on
        self.published.held_back |= bool(self._waiting)
        return taken

    def appended(self, token: int) -> tuple[int, int, tuple[Batch, ...]]:
        """Announce a durable append: return (lo, hi, batches) and acknowledge its publishers."""
        assert self._in_flight is not None
        expected, batches, taken = self._in_flight
        assert token == expected
        self._in_flight = None
        lo, self.horizon = self.horizon, int(batches[-1].ticks()[-1])
        self.last = self.horizon
        last: dict[int, int] = {}
        for entry in taken:
            last[entry.publisher] = max(entry.last, last.get(entry.publisher, 0))
            self.backlog_rows -= len(entry)
            self.backlog_bytes -= entry.size
        for publisher, tick in last.items():
            self._durable(publisher, tick)
        return lo, self.horizon, batches

    def append_failed(self, token: int, error: PostroadError) -> set[int]:
        """Refuse the rows that could not be written and all rows waiting behind them; return their publishers.

        The waiting rows are refused too, because rows of one publisher must be accepted in the order of their ids.
        """
        assert self._in_flight is not None
        assert token == self._in_flight[0]
        refused = self._in_flight[2] + [entry for queue in self._waiting.values() for entry in queue]
        self._waiting.clear()
        self._in_flight, self.backlog_rows, self.backlog_bytes = None, 0, 0
        for entry in refused:
            known = self._publishers.get(entry.publisher)
            if known is None:
                continue
            known.accepted = known.durable
            if known.link is not None:
                first, last = _first_and_last_id(entry)
                message = PublishRefused(entry.publisher, first, last, error.code, str(error)[:4096])
                self._orders.append(Send(known.link, message))
        return {entry.publisher for entry in refused}

    def silence(self, wall_ms: int) -> tuple[int, int] | None:
        """Decide silence up to the clock, as far as reserved; return (lo, hi] to announce, or None."""
        hi = min(wall_ms << 16, self.reserved)
        if self._in_flight is not None or hi <= self.horizon or not self.is_open:
            return None
        lo, self.horizon = self.horizon, hi
        return lo, hi

    def reserve(self, wall_ms: int) -> int | None:
        """Return a new horizon to store when the stored one is near; the caller sets `reserved` when it is on disk.

        The new horizon follows the clock. When the stream is ahead of the clock, as after a crash, there is no silence to
        announce, and only the horizon itself is stored, unless it is that of a stored message. With a reserve on top of it, each
        crash would move the stream further ahead.
        """
        told = self.horizon if self.horizon > self.last else 0
        if max(wall_ms + RESERVE_AGAIN_MS << 16, told) <= self.reserved:
            return None
        return max(wall_ms + RESERVE_MS << 16, told)

    def begin(self, tick: int) -> None:
        """Open the pubend with its first tick, which is on disk; ticks up to it are never used."""
        self.horizon = max(self.horizon, tick)
        self.is_open = True

    @property
    def writing(self) -> bool:
        return self._in_flight is not None

    # --- inside ---

    def _wait(self, waiting: _Waiting, entry: _PublisherTicks, count: int) -> None:
        entry.accepted = waiting.last
        self.backlog_rows += count
        self.backlog_bytes += waiting.size
        self._arrivals += 1
        self.published.note_sender(waiting.publisher)
        queue = self._waiting.get(waiting.publisher)
        if queue is None:
            queue = self._waiting[waiting.publisher] = deque()
        queue.append(waiting)

    def _durable(self, publisher: int, tick: int) -> None:
        entry = self._publishers.get(publisher)
        if entry is None:
            return
        entry.durable = max(entry.durable, tick)
        if entry.link is not None:
            self._acknowledge(publisher, entry, entry.link)

    def _acknowledge_again(self, publisher: int, entry: _PublisherTicks) -> None:
        if entry.link is not None and entry.durable:
            self._acknowledge(publisher, entry, entry.link)

    def _acknowledge(self, publisher: int, entry: _PublisherTicks, link: LinkId) -> None:
        self._orders.append(Send(link, PublishAcknowledged(publisher, entry.durable, self.wall_ms, self.credit)))

    def _forget(self) -> None:
        while len(self._publishers) > PUBLISHERS_MAX:
            oldest = next((p for p, e in self._publishers.items() if e.link is None and e.accepted == e.durable), None)
            if oldest is None:
                return
            self._forgotten = max(self._forgotten, self._publishers.pop(oldest).durable)


def _build(taken: list[_Waiting], first_tick: int) -> tuple[Batch, ...]:
    """Build batches of columns from the waiting entries, and assign a tick to every row."""
    if all(entry.columns is None for entry in taken):  # the common case, in which ticks are assigned while building
        rows = [row for entry in taken for row in entry.rows]
        ticks = np.arange(first_tick, first_tick + len(rows), dtype=np.uint64)
        return tuple(build_batches(rows, ticks, remember=True))  # keep the rows for local delivery, which follows
    pieces: list[Batch] = []
    rows = []
    for entry in taken:
        if entry.columns is None:
            rows.extend(entry.rows)
            continue
        pieces.extend(build_batches(rows) if rows else ())
        rows = []
        pieces.append(entry.columns)
    pieces.extend(build_batches(rows) if rows else ())
    batches = []
    for piece in _join(pieces):
        ticks = np.arange(first_tick, first_tick + len(piece), dtype=np.uint64)
        batches.append(piece.with_ticks(ticks))
        first_tick += len(piece)
    return tuple(batches)


def _join(pieces: list[Batch]) -> Iterator[Batch]:
    """Concatenate neighbouring pieces of the same layout: the cost of every later step is per batch, not per row."""
    for _, run in groupby(pieces, key=lambda piece: piece.layout):
        yield from concat(run, JOIN_LIMITS)


def _first_and_last_id(entry: _Waiting) -> tuple[bytes, bytes]:
    if entry.columns is None:
        return entry.rows[0][0], entry.rows[-1][0]
    ids = entry.columns.ids()
    return bytes(ids[0]), bytes(ids[-1])


def id_tick(row: Row) -> int:
    """Return the tick part of the id of a row."""
    return int.from_bytes(row[0][8:], "big")


def id_ticks(batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the tick part of every id of a batch."""
    return batch.ids().view(">u8").reshape(-1, 2)[:, 1].astype(np.uint64)
