"""The interfaces between the roles of a broker: protocols, so that roles need not import each other.

`machine.py` builds the roles and gives each one the objects of other roles that it uses. A protocol here lists what is used of
such an object; everything else is private to the role that owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import Row
from postroad.core.broker.knowledge import KnowledgeRange
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import LinkState, Positions, Released


class LinkView(Protocol):
    """A live link to another broker."""

    @property
    def link(self) -> LinkId: ...


class Epochs(Protocol):
    """Numbers that rise for as long as a broker exists, also over its restarts."""

    def next_epoch(self) -> int: ...


class Routes(Protocol):
    """The routes to other brokers, from link-state routing."""

    started_ms: int

    @property
    def neighbours(self) -> Iterable[LinkView]: ...

    def pubends(self) -> list[int]: ...

    def reachable(self, broker: int) -> bool: ...

    def route(self, broker: int) -> LinkId | None: ...

    def records(self) -> list[LinkState]: ...

    def outbid(self, record: LinkState) -> int | None: ...

    def adopt(self, incarnation: int) -> None: ...


class RefusalWatch(Protocol):
    """Who has to know that a message of a publisher was refused."""

    def refused(self, publisher: int) -> bool:
        """Note it; tell whether what the publisher sent after it is to be ignored."""


class HostedPubend(Protocol):
    """A pubend of this broker: how far its stream is announced, and how far its log is released."""

    pubend: int
    horizon: int
    reserved: int
    released: int
    last: int
    is_open: bool

    def begin(self, tick: int) -> None: ...


class Cache(Protocol):
    """The cached part of one pubend's stream."""

    frontier: int
    evicted: int
    keep_from: int | None

    def read(self, lo: int, hi: int) -> Iterator[KnowledgeRange]: ...

    def trim_beyond(self, tick: int, bytes_max: int) -> None: ...

    def take_dropped(self) -> int | None: ...

    def drop_through(self, tick: int) -> None: ...


class RelayedStream(Protocol):
    """One pubend's stream as this broker relays it."""

    hosted_here: bool
    parent: LinkId | None
    epoch_active: int
    active_tick: int
    last_row: int

    @property
    def cache(self) -> Cache: ...

    @property
    def epoch_sent(self) -> int: ...

    def close(self) -> None: ...

    def begin(self, tick: int, now: float) -> None: ...

    def want(self, came: Iterable[Filter], went: Iterable[Filter], now: float) -> None: ...

    def included_in(self, filter_: Filter) -> int | None: ...

    def ask(self, ranges: Iterable[tuple[int, int]], label: int, now: float) -> None: ...

    def from_cache(self, wanted: Filter, lo: int, hi: int, bytes_max: int) -> tuple[int, list[Batch]]: ...

    def pass_on(self, released: Released) -> None: ...


class LogHolds(Protocol):
    """The holds of this broker on the logs of others."""

    def tell_for(self, positions: Positions) -> None: ...

    def floor_changes(self, positions: Positions) -> tuple[tuple[str, bytes | None], ...]: ...


class ConfirmedHolds(Protocol):
    """Which holds of this broker were sent and confirmed."""

    version: int

    def keep_until(self, expiry: float, positions: Positions) -> None: ...

    def take_news(self) -> list[tuple[int, int]]: ...

    def sent_version(self, broker: int) -> int: ...

    def is_confirmed(self, broker: int, version: int) -> bool: ...

    def released(self, pubend: int) -> int: ...

    def adopt(self, incarnation: int, version: int) -> None: ...


class ReservedSubscriptions(Protocol):
    """What admitted subscriptions reserved: it ends with them."""

    def begun(self, number: int, link: LinkId, handle: int, name: str | None) -> None: ...

    def dropped(self, number: int, name: str | None) -> None: ...


class PublishedMessages(Protocol):
    """The gate that holds publishers to what they advertised."""

    def publisher_opened(self, link: LinkId, publisher: int, pubend: int, now: float) -> None: ...

    def rows(self, link: LinkId, publisher: int, rows: Sequence[Row], now: float) -> list[Row]: ...

    def columns(self, link: LinkId, publisher: int, batch: Batch, now: float) -> Batch | None: ...

    def due(self, now: float) -> Iterator[tuple[LinkId, int, list[Row], Batch | None]]: ...


class SharedRecord(Protocol):
    """The record of a durable subscription at its home, as far as its members change it."""

    settled: bool
    subscription: int | None
    cursors: Positions
    unfinished: dict[int, list[int]]


class MemberCounts(Protocol):
    """How many members shared subscriptions have."""

    def members_of(self, name: str) -> int: ...


class SharedRecords(Protocol):
    """The records of the durable subscriptions at home here."""

    @property
    def here(self) -> Mapping[str, SharedRecord]: ...

    def former_home(self, name: str) -> int | None: ...

    def mark(self, name: str) -> None: ...

    def changes(self) -> tuple[tuple[str, bytes | None], ...]: ...


class Positioned(Protocol):
    """Something that needs logs from certain positions onwards."""

    def holds(self) -> Positions: ...


class DurableHomes(Positioned, Protocol):
    """The homes of durable subscriptions, and the positions they need."""

    def home_brokers(self) -> frozenset[int]: ...


HostedPubends = Mapping[int, HostedPubend]
RelayedStreams = Mapping[int, RelayedStream]
TellReleased = Callable[[int, int], None]
