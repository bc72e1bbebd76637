"""What a broker machine did with messages, for whoever observes it: outputs beside the orders.

A machine with `BrokerConfig.observed` puts them among its orders, in the order in which things happened. The observer takes them
out before a driver sees the orders. Subscriptions are named by their number at this broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from postroad.core.batch.batch import Batch
from postroad.core.batch.selection import Rows
from postroad.core.protocol.orders import LinkId, Order


@dataclass(frozen=True, slots=True)
class Published:
    """Messages of a pubend hosted here are durable."""

    pubend: int
    rows: Batch


@dataclass(frozen=True, slots=True)
class Routed:
    """Messages that were new here came from a neighbour; `sent` says which rows went on over which links."""

    pubend: int
    upstream: int
    rows: Batch
    sent: Mapping[LinkId, Rows]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Each of these subscriptions was sent its selection of the rows."""

    pubend: int
    rows: Batch
    subscriptions: Sequence[int]
    selections: Sequence[Rows]


@dataclass(frozen=True, slots=True)
class Attached:
    """A client was told where its subscription starts in a pubend."""

    subscription: int
    link: LinkId
    name: str | None
    filter: str
    pubend: int
    start: int


@dataclass(frozen=True, slots=True)
class Detached:
    """A subscription ended; it was sent everything that matches up to `reached`."""

    subscription: int
    pubend: int
    reached: int


@dataclass(frozen=True, slots=True)
class GapTold:
    """A subscription was told that the messages in (lo, hi] are gone."""

    subscription: int
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class RangeLost:
    """A range of a pubend hosted here is lost with the files of a former life."""

    pubend: int
    lo: int
    hi: int


Observation: TypeAlias = Published | Routed | Delivered | Attached | Detached | GapTold | RangeLost
Output: TypeAlias = Order | Observation
