"""What a client session tells the application's side, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import DurableEntry, Packet, PubendSpan
from postroad.errors import PostroadError


@dataclass(frozen=True, slots=True)
class Writable:
    """The publisher may take messages (again), or some of its messages became durable."""

    publisher: int


@dataclass(frozen=True, slots=True)
class PublisherFailed:
    """The broker will not have this publisher."""

    publisher: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class MessagesRefused:
    """The broker did not take the messages with ids from `first` to `last`, and never will."""

    publisher: int
    first: bytes
    last: bytes
    error: PostroadError


@dataclass(frozen=True, slots=True)
class SubscriptionActive:
    """Every matching message after these ticks will come. Said again after each reconnect."""

    subscription: int
    starts: dict[int, int]


@dataclass(frozen=True, slots=True)
class PubendJoined:
    """A pubend that was out of reach has joined the subscription: every matching message after `tick` will come."""

    subscription: int
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class RowsDelivered:
    """The next matching messages of a pubend, in order, none of them seen before."""

    subscription: int
    pubend: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class RowsGiven:
    """Messages of a pubend for this member of a shared subscription: it holds them until it acknowledges them."""

    subscription: int
    pubend: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class RowsFinished:
    """Acknowledgements of a member are on the disk of the broker. The `refused` ones are not: it does not hold those messages."""

    subscription: int
    ticks: dict[int, list[int]]  # by pubend
    refused: dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A member lost its connection to its broker: what it held is given to others. It joins again by itself."""

    subscription: int


@dataclass(frozen=True, slots=True)
class HomeNamed:
    """A shared subscription is served by broker `home` only: connect there, or call `not_found`."""

    subscription: int
    home: int


@dataclass(frozen=True, slots=True)
class PositionsStored:
    """The broker has stored the acknowledgements of a durable subscription up to these ticks.

    After any crash of the client or the broker, nothing up to them is delivered again to a subscription of this name.
    """

    subscription: int
    positions: dict[int, int]


@dataclass(frozen=True, slots=True)
class Missed:
    """The messages of a pubend in (lo, hi] were released before this subscription got them."""

    subscription: int
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class SubscriptionFailed:
    """The broker will not have this subscription."""

    subscription: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class SubscriptionEnded:
    """The subscription is over, as asked. `error` says why a durable one may not be deleted, where that was asked."""

    subscription: int
    error: PostroadError | None = None


@dataclass(frozen=True, slots=True)
class PubendsListed:
    """The answer to `list_pubends`."""

    request: int
    spans: tuple[PubendSpan, ...]
    unreachable: tuple[int, ...]
    durables: tuple[DurableEntry, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class RangePiece:
    """All that matches up to `hi` of a range that is being read, after what came before; None for nothing."""

    request: int
    hi: int
    batch: Batch | None


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """A range or a list will not come, or what is left of it: a gap, an unknown pubend, or a broker that is away.

    A `retryable` error is told once per try; the request goes on.
    """

    request: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class WriterChanged:
    """A writer was opened, or some of its rows became durable."""

    writer: int


@dataclass(frozen=True, slots=True)
class WriterSealed:
    """The batch is complete."""

    writer: int


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """The batch cannot be written. A `retryable` error is told once per try; the writer goes on."""

    writer: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class AdvertisementAccepted:
    """The broker counts an advertisement, at this rate in thousandths of a message per second. Said again after a reconnect."""

    advertisement: int
    millirate: int


@dataclass(frozen=True, slots=True)
class AdvertisementFailed:
    """The broker will not have this advertisement."""

    advertisement: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class AdvertisementEnded:
    """An advertisement was withdrawn, as asked; `error` says why it may not be."""

    advertisement: int
    error: PostroadError | None = None


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """A question was answered."""

    question: int
    answer: Packet


@dataclass(frozen=True, slots=True)
class QuestionFailed:
    """A question will not be answered: the connection is gone, or the broker refused it."""

    question: int
    error: PostroadError


Event: TypeAlias = (
    Writable
    | PublisherFailed
    | MessagesRefused
    | SubscriptionActive
    | PubendJoined
    | RowsDelivered
    | RowsGiven
    | RowsFinished
    | MemberLost
    | HomeNamed
    | PositionsStored
    | Missed
    | SubscriptionFailed
    | SubscriptionEnded
    | PubendsListed
    | RangePiece
    | RangeFailed
    | WriterChanged
    | WriterSealed
    | WriterFailed
    | AdvertisementAccepted
    | AdvertisementFailed
    | AdvertisementEnded
    | QuestionAnswered
    | QuestionFailed
)
