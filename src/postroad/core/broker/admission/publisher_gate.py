"""The gate of publishers: what is outside of their advertisements is refused, and what exceeds their rates waits (section 3.1).

Every advertisement has a token bucket at its rate. A message takes a token of the first
advertisement of its client that matches and has one. If all that match are empty, the message
waits, and everything of that client behind it, so that ids stay in order. A client that has not
advertised may publish anything; with a criterion, each of its publishers is then held to a default
rate.

What waits is not acknowledged, so a client whose window is full stops by itself. It is dropped with
its link; the client sends it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import Row
from postroad.core.broker.context import Context
from postroad.core.broker.views import RefusalWatch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import PublishRefused
from postroad.errors import OutsideAdvertisementError, PostroadError, TooManyError

ROW_BYTES: Final = 200
PEAK_WINDOW_S: Final = 1.0
PEAK_PERIOD_S: Final = 300.0  # a peak is remembered for one to two of these


@dataclass(slots=True)
class TokenBucket:
    """How many messages may be published now."""

    rate: float  # per second
    burst: float
    tokens: float
    filled_at: float

    @classmethod
    def full(cls, millirate: int, burst_s: float, now: float) -> TokenBucket:
        rate = millirate / 1000
        burst = max(rate * burst_s, 1.0)
        return cls(rate, burst, burst, now)

    def fill(self, now: float) -> None:
        self.tokens = min(self.tokens + self.rate * (now - self.filled_at), self.burst)
        self.filled_at = now


@dataclass(slots=True)
class _Allowance:
    filter: Filter
    bucket: TokenBucket


@dataclass(slots=True)
class _HeldRows:
    """Messages of one publisher: rows, or columns."""

    publisher: int
    rows: list[Row]
    columns: Batch | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.columns is None else len(self.columns)

    @property
    def size(self) -> int:
        if self.columns is not None:
            return self.columns.size
        return sum(len(row[2]) + ROW_BYTES for row in self.rows)

    @property
    def ends(self) -> tuple[bytes, bytes]:
        """The ids of the first and the last message."""
        if self.columns is None:
            return self.rows[0][0], self.rows[-1][0]
        ids = self.columns.ids()
        return bytes(ids[0]), bytes(ids[-1])

    def take(self, count: int) -> _HeldRows:
        """Remove and return the first messages."""
        if self.columns is None:
            first, self.rows = self.rows[:count], self.rows[count:]
            return _HeldRows(self.publisher, first)
        part, self.columns = self.columns.slice(0, count), self.columns.slice(count, len(self.columns))
        return _HeldRows(self.publisher, [], part)


@dataclass(slots=True)
class _Client:
    """What one link may publish. `declared` are its advertisements by number, `defaults` the rates of its publishers."""

    declared: dict[int, _Allowance] = field(default_factory=dict)
    defaults: dict[int, _Allowance] = field(default_factory=dict)
    waiting: deque[_HeldRows] = field(default_factory=deque)
    size: int = 0

    def allowances(self, publisher: int) -> list[_Allowance]:
        if self.declared:
            return list(self.declared.values())
        found = self.defaults.get(publisher)
        return [] if found is None else [found]


@dataclass(slots=True)
class RateHistory:
    """The highest rate of recent seconds: the most messages that came within one."""

    count: int = 0  # since `since`, within a second
    since: float = 0.0
    most: int = 0  # in a second of this period
    most_before: int = 0  # in a second of the period before
    period_from: float = 0.0
    began: float = 0.0

    def add(self, count: int, now: float) -> None:
        if now - self.since >= PEAK_WINDOW_S:
            self.most = max(self.most, self.count)
            self.count, self.since = 0, now
        if now - self.period_from >= PEAK_PERIOD_S:
            self.most_before = self.most if now - self.period_from < 2 * PEAK_PERIOD_S else 0
            self.most, self.period_from = 0, now
        self.count += count

    @property
    def seconds(self) -> float:
        """Over how long it was seen."""
        return self.since - self.began

    @property
    def peak(self) -> float:
        return max(self.count, self.most, self.most_before) / PEAK_WINDOW_S


class PublisherGate:
    """Holds the clients of one broker to what they advertised."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clients: dict[LinkId, _Client] = {}
        self.publishers: RefusalWatch | None = None
        self.held = 0  # messages that wait now
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    # --- what is allowed ---

    def declare(self, link: LinkId, number: int, filter_: Filter, millirate: int, now: float) -> None:
        """Allow what a client has advertised."""
        burst_s = self._context.config.admission.burst_s
        client = self._clients.setdefault(link, _Client())
        client.declared[number] = _Allowance(filter_, TokenBucket.full(millirate, burst_s, now))

    def withdraw(self, link: LinkId, number: int) -> None:
        client = self._clients.get(link)
        if client is not None:
            client.declared.pop(number, None)

    def hold_to_default(self, link: LinkId, publisher: int, millirate: int, now: float) -> None:
        """Hold a publisher to a rate as long as its client advertises nothing."""
        burst_s = self._context.config.admission.burst_s
        client = self._clients.setdefault(link, _Client())
        client.defaults[publisher] = _Allowance(Filter(""), TokenBucket.full(millirate, burst_s, now))

    def link_lost(self, link: LinkId) -> None:
        client = self._clients.pop(link, None)
        if client is not None:
            self.held -= sum(map(len, client.waiting))
            self.held_bytes -= client.size

    def publisher_opened(self, publisher: int) -> None:
        """Drop what waits of a publisher that was opened, on this link or another one: its client sends it again."""
        for client in self._clients.values():
            if any(each.publisher == publisher for each in client.waiting):
                kept = deque(each for each in client.waiting if each.publisher != publisher)
                self.held -= sum(map(len, client.waiting)) - sum(map(len, kept))
                size = sum(each.size for each in kept)
                self.held_bytes -= client.size - size
                client.waiting, client.size = kept, size

    # --- what is published ---

    def rows(self, link: LinkId, publisher: int, rows: Sequence[Row], now: float) -> list[Row]:
        """Return the rows that may be published now; refuse what was not advertised, and keep the others for later."""
        client = self._clients.get(link)
        allowances = client.allowances(publisher) if client is not None else []
        if client is None or not (allowances or client.waiting):
            return list(rows)
        good, ignores = [], False
        for row in rows:
            if not allowances or any(each.filter.matches(row[1]) for each in allowances):
                if not ignores:
                    good.append(row)
            else:
                ignores = self._refuse(link, publisher, row[0], row[0], OutsideAdvertisementError(row[1]))
        taken = self._pass(link, client, _HeldRows(publisher, good), now)
        return taken.rows if taken is not None else []

    def columns(self, link: LinkId, publisher: int, batch: Batch, now: float) -> Batch | None:
        """Do the same for a batch; a batch with a message that was not advertised is refused."""
        client = self._clients.get(link)
        allowances = client.allowances(publisher) if client is not None else []
        if client is None or not (allowances or client.waiting):
            return batch
        inside = np.ones(len(batch), bool) if not allowances else allowances[0].filter.evaluate(batch)
        for each in allowances[1:]:
            inside = inside | each.filter.evaluate(batch)
        if not bool(inside.all()):
            attributes = batch.message(int((~inside).argmax())).attributes
            self._refuse(link, publisher, *_HeldRows(publisher, [], batch).ends, OutsideAdvertisementError(attributes))
            return None
        taken = self._pass(link, client, _HeldRows(publisher, [], batch), now)
        return None if taken is None else taken.columns

    def due(self, now: float) -> Iterator[tuple[LinkId, int, list[Row], Batch | None]]:
        """Yield what has waited and may be published now, in order."""
        if not self.held:
            return
        for link, client in self._clients.items():
            while client.waiting:
                first = client.waiting[0]
                count = self._take_tokens(client, first, now)
                if not count:
                    break
                whole = count == len(first)
                part = client.waiting.popleft() if whole else first.take(count)
                self.held -= count
                client.size -= part.size
                self.held_bytes -= part.size
                yield link, part.publisher, part.rows, part.columns

    # --- inside ---

    def _pass(self, link: LinkId, client: _Client, new: _HeldRows, now: float) -> _HeldRows | None:
        """Return the messages that may be published at once; the others wait."""
        if not len(new):
            return None
        count = 0 if client.waiting else self._take_tokens(client, new, now)
        if count == len(new):
            return new
        first = new.take(count) if count else None
        size = new.size
        if client.size + size > 2 * self._context.config.publish_window_bytes:
            error = TooManyError("more was published than the window allows, above the advertised rate")
            self._refuse(link, new.publisher, *new.ends, error)
            return first
        client.waiting.append(new)
        client.size += size
        self.held += len(new)
        self.held_bytes += size
        return first

    def _take_tokens(self, client: _Client, messages: _HeldRows, now: float) -> int:
        """Take tokens for as many of the first messages as there are."""
        allowances = client.allowances(messages.publisher)
        if not allowances:
            return len(messages)
        for each in allowances:
            each.bucket.fill(now)
        if len(allowances) == 1:
            bucket = allowances[0].bucket
            count = min(len(messages), int(bucket.tokens))
            bucket.tokens -= count
            return count
        count = 0
        for matching in self._matching(allowances, messages):
            filled = next((each for each in matching if each.tokens >= 1), None)
            if filled is None:
                break
            filled.tokens -= 1
            count += 1
        return count

    @staticmethod
    def _matching(allowances: Sequence[_Allowance], messages: _HeldRows) -> Iterator[list[TokenBucket]]:
        """Yield for each message the buckets of the advertisements that it matches; of all, if none does any more."""
        all_buckets = [each.bucket for each in allowances]
        if messages.columns is not None:
            masks = [each.filter.evaluate(messages.columns) for each in allowances]
            for row in range(len(messages)):
                yield [each.bucket for each, mask in zip(allowances, masks, strict=True) if mask[row]] or all_buckets
            return
        for _, attributes, _ in messages.rows:
            yield [each.bucket for each in allowances if each.filter.matches(attributes)] or all_buckets

    def _refuse(self, link: LinkId, publisher: int, first: bytes, last: bytes, error: PostroadError) -> bool:
        """Refuse messages; tell whether what their publisher sent after them is to be ignored."""
        self._context.send(link, PublishRefused(publisher, first, last, error.code, str(error)[:4096]))
        return self.publishers is not None and self.publishers.refused(publisher)
