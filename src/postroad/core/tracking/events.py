"""What a broker machine tells its tracker. Cheap to make: 16 bytes per id are copied, nothing is hashed.

A driver carries a `Track` order's events to the tracker in order; in a process that is another thread, in the simulator a call.

The arrays of ids are copies, so that an event that waits keeps no frame in memory. Several events of a turn may share one: nobody
writes to them. Made for every delivery, hence structs without cyclic garbage collection.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.batch import Ids
from postroad.core.tracking.elements import Horizon, Links, Lost, Masks, Span


class Published(msgspec.Struct, frozen=True, gc=False):
    """Messages of a hosted pubend became durable."""

    pubend: int
    ids: Ids


class Routed(msgspec.Struct, frozen=True, gc=False):
    """Messages came from a neighbour, for the first time; `masks` (routing sets only) say whom they were forwarded to."""

    pubend: int
    upstream: int
    ids: Ids
    masks: Masks | None = None
    neighbours: tuple[int, ...] = ()


class Forwarded(msgspec.Struct, frozen=True, gc=False):
    """Messages were forwarded to a neighbour (only with `per_neighbour`)."""

    pubend: int
    neighbour: int
    ids: Ids


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """Messages were sent to a local subscriber."""

    subscriber: str
    pubend: int
    ids: Ids


TrackEvent: TypeAlias = Published | Routed | Forwarded | Delivered | Span | Lost | Links | Horizon
