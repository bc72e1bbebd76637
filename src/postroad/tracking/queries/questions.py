"""What a broker can be asked about its tracks and logs, and what it answers: the contents of the packets of tracing.

A question goes to one broker, in one packet. An answer is bounded and says how far it got, so that the rest can be asked for.
Questions leave nothing behind at the broker.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from postroad.core.batch.row_codec import Binary, IdBytes, WireRow
from postroad.core.protocol.status import PAGE_MAX, BrokerReport
from postroad.types import MESSAGE_ID_BYTES

IDS_MAX: Final = 1024  # of one question
HITS_MAX: Final = 8192  # of one answer
TEXT_MAX: Final = 256 << 10  # bytes of names in one answer
NAME_MAX: Final = 1024
HOLES_MAX: Final = 256
SPANS_MAX: Final = 16
BROKERS_MAX: Final = 4096

U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Meta(ge=0)]
I64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
SubscriberName = Annotated[str, Meta(max_length=NAME_MAX)]
KindName = Annotated[str, Meta(max_length=32)]
Reason = Annotated[str, Meta(max_length=2000)]
FilterText = Annotated[str, Meta(max_length=65536)]
Brokers = Annotated[list[U32], Meta(max_length=BROKERS_MAX)]


class Status(IntEnum):
    """What became of a question."""

    ANSWERED = 0
    UNREACHABLE = 1  # there is no way to the broker now
    UNKNOWN = 2  # nobody ever heard of it
    SILENT = 3  # it did not answer in time
    BUSY = 4  # it has too many questions already
    OFF = 5  # it keeps no tracks
    FAILED = 6  # it could not find out


class _Part(msgspec.Struct, frozen=True, array_like=True):
    pass


class TracksQuestion(_Part, frozen=True, array_like=True, tag="tracks"):
    """Ask which of these ids (16 bytes each, joined) the broker published, routed or delivered.

    `after` goes on with the subscribers of the first id, behind this name, and leaves the rest of that id's answer out.
    """

    ids: Annotated[bytes, Meta(min_length=MESSAGE_ID_BYTES, max_length=MESSAGE_ID_BYTES * IDS_MAX)]
    after: SubscriberName = ""


class CoverageQuestion(_Part, frozen=True, array_like=True, tag="coverage"):
    """Ask what a subscriber was promised at this tick of a pubend."""

    subscriber: SubscriberName
    pubend: U64
    tick: U64


class MessageQuestion(_Part, frozen=True, array_like=True, tag="message"):
    """Ask what the log says about the message of this id."""

    id: IdBytes


class MapQuestion(_Part, frozen=True, array_like=True, tag="map"):
    """Ask which brokers there are, and who is linked to whom."""


class StatusQuestion(_Part, frozen=True, array_like=True, tag="status"):
    """Ask how the broker is, with up to `page` of its subscriptions whose numbers are above `after`.

    With `wanted`, only those whose name, client or filter contains this text.
    """

    after: U64 = 0
    page: Annotated[int, Meta(ge=0, le=PAGE_MAX)] = 0
    wanted: SubscriberName = ""


Question = TracksQuestion | CoverageQuestion | MessageQuestion | MapQuestion | StatusQuestion


class HoleFound(_Part, frozen=True, array_like=True):
    """Messages with timestamps in [from_ms, to_ms] may be missing from the tracks."""

    kind: KindName
    from_ms: I64
    to_ms: I64
    reason: Reason


class KeyFound(_Part, frozen=True, array_like=True):
    """A history in which something was found; `peer` and `subscriber` where its kind has them."""

    kind: KindName
    peer: U32
    subscriber: SubscriberName


class HitFound(_Part, frozen=True, array_like=True):
    """The id at `row` of the question is in the history at `key`, unless it is a false positive, with this probability.

    `forwarded` are the neighbours it went to, where the history tells.
    """

    row: U32
    key: U32
    probability: Annotated[float, Meta(ge=0.0, le=1.0)]
    forwarded: Brokers | None = None


class SpanFound(_Part, frozen=True, array_like=True):
    """In (from_tick, to_tick] everything that matches the filter was sent to the subscriber."""

    filter: FilterText
    from_tick: U64
    to_tick: U64
    attached_ms: U64
    detached_ms: U64


class LossFound(_Part, frozen=True, array_like=True):
    """The subscriber was told that (from_tick, to_tick] is lost to it."""

    from_tick: U64
    to_tick: U64
    told_ms: U64


Holes = Annotated[list[HoleFound], Meta(max_length=HOLES_MAX)]


class TracksAnswer(_Part, frozen=True, array_like=True, tag="tracks"):
    """What the tracks hold of the first `answered` ids; if `after` is set, also of the next one, up to this subscriber.

    `neighbours` are all brokers that were linked to this one at any time within its tracks, with the clock when they were last
    (the highest number: they still are). With `per_neighbour`, forwarding is tracked, and found by hits of that kind.
    """

    answered: U32
    after: SubscriberName
    wall_ms: U64
    kept_from_ms: U64
    neighbours: Annotated[list[tuple[U32, U64]], Meta(max_length=BROKERS_MAX)]
    holes: Holes
    keys: Annotated[list[KeyFound], Meta(max_length=HITS_MAX)]
    hits: Annotated[list[HitFound], Meta(max_length=HITS_MAX)]
    per_neighbour: bool = False


class CoverageAnswer(_Part, frozen=True, array_like=True, tag="coverage"):
    """Spans and losses that contain the tick, and the nearest spans before and after it."""

    spans: Annotated[list[SpanFound], Meta(max_length=SPANS_MAX)]
    lost: Annotated[list[LossFound], Meta(max_length=SPANS_MAX)]
    before: SpanFound | None
    after: SpanFound | None
    holes: Holes


class MessageAnswer(_Part, frozen=True, array_like=True, tag="message"):
    """The message and its tick, if the log has it. The log was searched in (lo, hi]; what is up to `released` is gone."""

    lo: U64
    hi: U64
    released: U64
    pubend: U64
    tick: U64 = 0
    row: WireRow | None = None
    binary: Binary = msgspec.field(default_factory=dict)


class MapAnswer(_Part, frozen=True, array_like=True, tag="map"):
    """Every broker ever heard of, with the links it last told; None: it told none since this broker started."""

    brokers: Annotated[dict[U32, Brokers | None], Meta(max_length=BROKERS_MAX)]
    wall_ms: U64


class StatusAnswer(_Part, frozen=True, array_like=True, tag="status"):
    """How the broker is at this moment."""

    report: BrokerReport


Answer = TracksAnswer | CoverageAnswer | MessageAnswer | MapAnswer | StatusAnswer
