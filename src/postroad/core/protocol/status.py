"""How a broker is: what it reports of itself to anybody who asks, for `postroad status` and the console.

A report is a picture of one moment. It is bounded: subscriptions come in pages, and the other lists end at a fixed length.
Figures that only grow (rows, bytes) are totals since the broker started, so that whoever asks twice can compute rates.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

LINKS_MAX: Final = 1024
STREAMS_MAX: Final = 1024
CLIENTS_MAX: Final = 256
PAGE_MAX: Final = 500
FILTER_SHOWN_MAX: Final = 1024  # characters of a filter in a report

_U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
_U64 = Annotated[int, Meta(ge=0)]
_Text = Annotated[str, Meta(max_length=2048)]


class _Report(msgspec.Struct, frozen=True, array_like=True):
    pass


class LinkReport(_Report, frozen=True, array_like=True):
    """A link to another broker."""

    broker: _U32
    name: _Text
    cost: _U32
    backlog_bytes: _U64
    sent_bytes: _U64
    received_bytes: _U64
    dropped_frames: _U64
    bandwidth_bytes_per_s: float = 0.0  # the configured limit; 0: none


class StreamReport(_Report, frozen=True, array_like=True):
    """A pubend's stream at this broker.

    `delivered` is the doubt horizon, `known` the last tick heard of. `lag_ms` is what lies between them.
    A hosted pubend also reports what was published there, and its throttle: the rate it may publish at (0: no limit),
    since when, and which broker is the reason.
    """

    pubend: _U64
    is_hosted: bool
    known: _U64
    delivered: _U64
    lag_ms: _U64
    cache_bytes: _U64
    engaged: _U32  # subscriptions that receive it
    is_recovering: bool = False
    published_rows: _U64 = 0
    waiting_rows: _U64 = 0
    rate_limit: float = 0.0
    throttled_since_ms: _U64 = 0
    throttled_by: _U32 = 0


class ClientReport(_Report, frozen=True, array_like=True):
    """A connected client."""

    link: _U64
    name: _Text
    publishes: bool
    backlog_bytes: _U64
    sent_bytes: _U64
    received_bytes: _U64


class SubscriptionReport(_Report, frozen=True, array_like=True):
    """A subscription of a connected client."""

    number: _U64
    link: _U64
    client: _Text  # of a shared subscription: how many members it has
    name: _Text  # empty: not durable
    filter: _Text
    lag_ms: _U64  # how far its slowest stream is behind
    is_answered: bool  # active on the whole path
    is_open: bool  # its client takes messages


class BrokerReport(_Report, frozen=True, array_like=True):
    """One broker, at one moment."""

    broker: _U32
    name: _Text
    software: _Text
    address: _Text
    incarnation: _U64
    started_ms: _U64
    wall_ms: _U64
    figures: Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=512)]
    links: Annotated[list[LinkReport], Meta(max_length=LINKS_MAX)]
    streams: Annotated[list[StreamReport], Meta(max_length=STREAMS_MAX)]
    clients: Annotated[list[ClientReport], Meta(max_length=CLIENTS_MAX)]
    subscriptions: Annotated[list[SubscriptionReport], Meta(max_length=PAGE_MAX)]
    subscription_count: _U64
    notices: Annotated[list[_Text], Meta(max_length=64)] = []  # what an operator must know, for example `insecure`
