"""What histories are made of, and the records beside them: the rows of a track file.

A *history* is a sequence of elements of one `HistoryKey` at one broker. An *element* holds ids, as bits or as they are, with the
range of their timestamps and the singletons (late ones, listed by their own timestamp). `(incarnation, number)` names an
element for ever; a later copy of an element replaces an earlier one and holds at least what that held.

A *record* is a fact that explains histories: what a subscription was promised and how far it got (`Span`), what it was told is
lost (`Lost`), what a crash may have cost (`Crash`), who the neighbours were (`Links`), how far the publisher history
is complete (`Horizon`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.histories.settings import Strategy

Milliseconds: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Masks: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]  # sets of neighbours, one bit each
RowNumbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]  # which of some ids are meant

ID_DTYPE: Final = np.dtype([("publisher", ">u4"), ("broker", ">u4"), ("tick", ">u8")])
NO_SINGLETONS: Final[Milliseconds] = np.empty(0, np.int64)


class Kind(StrEnum):
    PUBLISHER = "publisher"  # H_p: messages that local publishers sent
    ROUTING = "routing"  # H_b: messages of an origin broker that came through here, `peer` being the neighbour they came from
    NEIGHBOUR = "neighbour"  # H_{b,d}: those of them that were forwarded to the neighbour `peer`
    SUBSCRIBER = "subscriber"  # H_{b,s}: those that were sent to a local subscriber


@dataclass(frozen=True, slots=True, order=True)
class HistoryKey:
    kind: Kind
    origin: int  # the broker that the messages were published at
    peer: int = 0
    subscriber: str = ""


@dataclass(frozen=True, slots=True)
class Element:
    """`bits` for blooms (bit i of the bloom is bit i & 7 of byte i >> 3), `ids` for the others, sorted by time for `exact`.

    The range is empty when `from_ms > to_ms`. `neighbours` gives the meaning of the bits of routing sets, if they are in use.
    """

    key: HistoryKey
    incarnation: int
    number: int
    strategy: Strategy
    opened_ms: int  # the broker's clock when the first id came
    closed_ms: int  # and when this was written
    from_ms: int  # timestamps of the ids
    to_ms: int
    singletons: Milliseconds
    count: int  # ids added, repeated ones included
    m: int
    k: int
    n: int
    bits: bytes | memoryview | np.ndarray[Any, np.dtype[np.uint8]] | None = None
    ids: Ids | None = None
    neighbours: tuple[int, ...] = ()
    broker: int = 0  # whose history it is: its number salts the hashes of `bits`


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Tagged, so that records can be encoded among other things."""


class Span(_Record, frozen=True):
    """Everything of a pubend in (from_tick, to_tick] that matches the filter was sent to the subscriber, but for what is `Lost`.

    `number` names the span within an incarnation; a later record of it has a higher `to_tick`. Detached at 0: attached still.
    """

    subscriber: str
    number: int
    pubend: int
    filter: str
    from_tick: int
    to_tick: int
    attached_ms: int
    detached_ms: int = 0


class Lost(_Record, frozen=True):
    """The subscriber was told that (from_tick, to_tick] of a pubend is lost to it.

    Without a name: these messages of a hosted pubend are lost to everybody who had not got them, with the broker's files.
    """

    subscriber: str
    pubend: int
    from_tick: int
    to_tick: int
    told_ms: int


class Crash(_Record, frozen=True):
    """The incarnation ended without a farewell: what happened here in this window may be missing from the histories."""

    incarnation: int
    from_ms: int
    to_ms: int


class Links(_Record, frozen=True):
    """The neighbours from this moment on."""

    since_ms: int
    neighbours: tuple[int, ...]


class Horizon(_Record, frozen=True):
    """The publisher history holds every message of this hosted pubend up to the tick."""

    pubend: int
    tick: int


class Farewell(_Record, frozen=True):
    """The incarnation ended in good order; nothing is missing."""

    at_ms: int


Record: TypeAlias = Span | Lost | Crash | Links | Horizon | Farewell


@dataclass(frozen=True, slots=True)
class Flush:
    """What has to be durable now: finished elements, copies of elements that live on, and records. Written as one."""

    closed: tuple[Element, ...]
    copies: tuple[Element, ...]
    records: tuple[Record, ...]
