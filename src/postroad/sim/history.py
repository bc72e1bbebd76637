"""What happened, as the users of the overlay and its disks saw it: the only thing the checkers look at.

A *subscription* here is what one application follows: it outlives connections, brokers and, if it is durable, crashes of its
own client. The application's memory is made explicit: `Committed` says up to where it has acknowledged, `Forgot` that its
client crashed and which positions it still had (those of its position file, saved together with the work done; or none, and
then it relies on the broker's cursor).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from postroad.tracking.histories.elements import Element, Record, Span
from postroad.tracking.histories.settings import TrackingSettings
from postroad.types import AttributeValue

Attributes: TypeAlias = Mapping[str, AttributeValue]
Positions: TypeAlias = Mapping[int, int]  # pubend -> tick


@dataclass(frozen=True, slots=True)
class Published:
    """A publisher was given this id for its message."""

    at: float
    id: bytes
    attributes: Attributes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The publisher was told that its message is durable."""

    at: float
    id: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The publisher was told that its message was not taken and will not be."""

    at: float
    id: bytes


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The publisher's client crashed before it knew what became of this message."""

    at: float
    id: bytes


@dataclass(frozen=True, slots=True)
class Logged:
    """A message became durable in a pubend's log."""

    at: float
    pubend: int
    tick: int
    id: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Freed:
    """A pubend let go of everything up to a tick; `retention` when its bound forced it to."""

    at: float
    pubend: int
    tick: int
    retention: bool = False


@dataclass(frozen=True, slots=True)
class Spoiled:
    """What a log held in (lo, hi] cannot be read any more: a record there is damaged."""

    at: float
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class DiskLost:
    """All files of a broker are gone, with the logs of its pubends; it will start with empty ones."""

    at: float
    broker: int
    pubends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retired:
    """A broker is gone for good, with its pubends and its files."""

    at: float
    broker: int
    pubends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WrittenOff:
    """A broker has stored that what a former life held in (lo, hi] of a pubend is lost with its files."""

    at: float
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class RecordCreated:
    """A stored record of a broker that was not there before is on its disk."""

    at: float
    broker: int
    key: str


@dataclass(frozen=True, slots=True)
class RecordSpoiled:
    """A stored record of a broker is damaged, and the broker has not started since."""

    at: float
    broker: int
    key: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An application wants everything that matches. `name` is that of a durable one."""

    at: float
    subscription: str
    filter: str
    durable: bool
    earliest: bool = False  # it wants all there is, from the oldest message still held
    name: str = ""


@dataclass(frozen=True, slots=True)
class Began:
    """The subscription is active for a pubend from after a tick on; said again whenever it is resumed.

    `link` is the broker's end of the connection, 0 when nobody tells how long the broker holds the logs for it.
    """

    at: float
    subscription: str
    pubend: int
    tick: int
    broker: int = 0
    link: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """The application got a message."""

    at: float
    subscription: str
    pubend: int
    tick: int
    id: bytes
    attributes: Attributes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Passed:
    """The application was told that nothing more comes up to this tick."""

    at: float
    subscription: str
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Gapped:
    """The application was told that the messages in (lo, hi] are gone."""

    at: float
    subscription: str
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The application is done with everything up to this tick."""

    at: float
    subscription: str
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The application was told that its broker has stored the acknowledgement of everything up to this tick."""

    at: float
    subscription: str
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The subscription's connection was lost: until it is resumed, a live one holds no log."""

    at: float
    subscription: str


@dataclass(frozen=True, slots=True)
class Parted:
    """A broker noticed that a client's connection is gone; it holds the logs for its live subscriptions until a time."""

    at: float
    broker: int
    link: int
    held_until: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """A broker started; it holds the logs for the live subscriptions of its former life until a time."""

    at: float
    broker: int
    held_until: float


@dataclass(frozen=True, slots=True)
class Forgot:
    """The client crashed; of its memory only these positions are left, or nothing at all (`positions` None)."""

    at: float
    subscription: str
    positions: Positions | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The application wants nothing more."""

    at: float
    subscription: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """The broker said that it has let go of an ended subscription; a durable one is forgotten."""

    at: float
    subscription: str
    broker: int = 0  # that confirmed it


@dataclass(frozen=True, slots=True)
class SharedAsked:
    """Applications share everything that matches. `group` is the durable name, `key` the attribute that orders, if any."""

    at: float
    group: str
    filter: str
    key: str


@dataclass(frozen=True, slots=True)
class SharedBegan:
    """A member was told that the shared subscription began in a pubend after a tick."""

    at: float
    group: str
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Handed:
    """A broker put a message into a frame for a member."""

    at: float
    broker: int
    link: int
    handle: int
    group: str
    pubend: int
    tick: int
    id: bytes


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A broker heard that a member leaves, or that its connection is lost, or the broker has crashed."""

    at: float
    broker: int
    link: int
    handle: int = 0  # 0: all of the connection


@dataclass(frozen=True, slots=True)
class Taken:
    """A broker received a member's acknowledgement of these messages."""

    at: float
    group: str
    link: int
    handle: int
    pubend: int
    ticks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A member was told that its acknowledgement of a message is stored: `ack()` returned."""

    at: float
    group: str
    member: str
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class SharedEnded:
    """A member wants nothing more, since there is no room for the subscription: nobody need finish the rest."""

    at: float
    group: str


@dataclass(frozen=True, slots=True)
class SharedGapped:
    """A member was told that the messages in (lo, hi] are gone."""

    at: float
    group: str
    pubend: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The liveness phase is over; `reasons` say what had not converged by then."""

    at: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReservationsCompared:
    """When nobody asked for anything any more, these reservations had no reason, or these were missing."""

    at: float
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StillThrottled:
    """When nobody had published for a while, a pubend was still held to a rate."""

    at: float
    pubend: int
    rate: float
    broker: int  # that is said to be the reason


@dataclass(frozen=True, slots=True)
class Remains:
    """After everything had converged and time had passed, the oldest whole segment of a log ends at this tick."""

    at: float
    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A broker's own figures, with the bound each must keep (None: no bound)."""

    at: float
    broker: int
    figures: Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A client got these messages from an incarnation of a broker. `subscriber` is a durable name, or `@` and the client's."""

    at: float
    broker: int
    incarnation: int
    subscriber: str
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A broker put these messages into a frame for a client."""

    at: float
    broker: int
    incarnation: int
    subscriber: str
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Relayed:
    """These messages came to a broker from a neighbour; some of them it may have known, or had no use for."""

    at: float
    broker: int
    incarnation: int
    upstream: int
    ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """What an incarnation of a broker had tracked by `cut_at` is on its disk."""

    at: float
    broker: int
    incarnation: int
    cut_at: float


@dataclass(frozen=True, slots=True)
class Crashed:
    """A broker that tracks ended without a farewell."""

    at: float
    broker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Tracks:
    """What a broker's tracks hold at the end of a run, on disk and in memory; each span on disk with its incarnation."""

    at: float
    broker: int
    settings: TrackingSettings
    elements: tuple[Element, ...]
    spans: tuple[tuple[int, Span], ...]
    records: tuple[Record, ...]
    open_elements: tuple[Element, ...]


Event: TypeAlias = (
    Published
    | Acknowledged
    | Refused
    | Abandoned
    | Logged
    | Freed
    | Spoiled
    | RecordCreated
    | RecordSpoiled
    | DiskLost
    | Retired
    | WrittenOff
    | Asked
    | Began
    | Delivered
    | Passed
    | Gapped
    | Committed
    | Confirmed
    | Disconnected
    | Parted
    | Restarted
    | Forgot
    | Ended
    | Discarded
    | SharedAsked
    | SharedBegan
    | Handed
    | MemberGone
    | Taken
    | Finished
    | SharedEnded
    | SharedGapped
    | Settled
    | ReservationsCompared
    | StillThrottled
    | Remains
    | Measured
    | Arrived
    | Sent
    | Relayed
    | Kept
    | Crashed
    | Tracks
)


@dataclass(slots=True)
class History:
    """Events in the order they happened."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
