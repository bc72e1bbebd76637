"""What a broker machine tells its tracker. Cheap to make: arrays of ids as they lie in the batches, no copies, no hashing.

A driver carries a `Track` order's events to the tracker in order; in a process that is another thread, in the simulator a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from postroad.core.batch import Ids
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, Span


@dataclass(frozen=True, slots=True)
class Published:
    """Messages of a hosted pubend became durable."""

    pubend: int
    ids: Ids


@dataclass(frozen=True, slots=True)
class Routed:
    """Messages came from a neighbour, for the first time; `masks` (routing sets only) say whom they were forwarded to."""

    pubend: int
    upstream: int
    ids: Ids
    masks: Masks | None = None
    neighbours: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Messages were forwarded to a neighbour (only with `per_neighbour`)."""

    pubend: int
    neighbour: int
    ids: Ids


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages were sent to a local subscriber."""

    subscriber: str
    pubend: int
    ids: Ids


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | Span | Lost | Links | Horizon
