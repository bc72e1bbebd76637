"""What brokers and clients say to each other about admission: advertisements, reservations and verdicts.

`wire.packets.admission` gives each packet its method id. Rates are whole thousandths of a message
per second. The broker page `docs/internals/admission.md` shows how they work together.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta

from postroad.core.protocol.packets import U32, U64, FilterText, Name, Packet, WallMs

Millirate = Annotated[int, Meta(ge=0, le=10**12)]  # of one advertisement
Millirates = Annotated[int, Meta(ge=0)]  # a sum: 64 bits hold those of all advertisements that a broker can know
Percentage = Annotated[float, Meta(ge=0, le=100)]
Quantiles = Annotated[list[float], Meta(max_length=64)]
BrokerIds = Annotated[list[U32], Meta(max_length=4096)]
MILLI: Final = 1000
LINK: Final = "bandwidth"
CPU: Final = "cpu"
MEMORY: Final = "memory"
NO_ANSWER: Final = "no answer"


# --- a client and its broker ---------------------------------------------------------------------------------------------


class Advertise(Packet, frozen=True, array_like=True):
    """Announce what this client publishes: messages that match, at most so many a second (0: the broker's default).

    `handle` is the client's own number for the advertisement. With a `name` it is durable: it lives
    until it is withdrawn.
    """

    handle: U32
    filter: FilterText
    millirate: Millirate = 0
    name: Name | None = None


class AdvertiseAccepted(Packet, frozen=True, array_like=True):
    """The advertisement counts from now on, at this rate."""

    handle: U32
    millirate: Millirate


class Unadvertise(Packet, frozen=True, array_like=True):
    """Withdraw an advertisement of this client, or a durable one by its name."""

    handle: U32
    name: Name | None = None


class Unadvertised(Packet, frozen=True, array_like=True):
    """The advertisement is withdrawn; of a durable one, that is on disk."""

    handle: U32


class FittingRange(msgspec.Struct, frozen=True, array_like=True):
    """A range of one attribute: from `low` to `high`, without the end itself where it is open."""

    attribute: Annotated[str, Meta(max_length=4096)]
    low: float
    high: float
    low_open: bool = False
    high_open: bool = False


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """Why a broker refuses: a reservation asks more of a resource than the broker has left.

    `resource` is "bandwidth" (of the link to `neighbour`), "cpu", "memory", or "no answer" when the
    broker gave no verdict in time. `demanded` and `available` are thousandths of a message per second,
    bytes for memory.
    """

    broker: U32
    resource: Annotated[str, Meta(max_length=32)]
    neighbour: U32 = 0
    demanded: Millirates = 0
    available: Millirates = 0
    ranges: Annotated[list[FittingRange], Meta(max_length=16)] = []  # of attributes: the widest that this broker could take

    def __str__(self) -> str:
        if self.resource == NO_ANSWER:
            return f"broker {self.broker} did not answer in time"
        if self.resource == MEMORY:
            return f"broker {self.broker} needs {self.demanded:,} bytes of memory and has {self.available:,}"
        where = f"its link to broker {self.neighbour}" if self.resource == LINK else "its CPU"
        return (
            f"broker {self.broker} would have {self.demanded / MILLI:g} messages/s more on {where}, "
            f"which has room for {self.available / MILLI:g}"
        )


Refusals = Annotated[list[Refusal], Meta(max_length=4096)]


class SubscriptionRejected(Packet, frozen=True, array_like=True):
    """The subscription is not admitted, and why. It may fit later."""

    handle: U32
    brokers: BrokerIds  # that gave a verdict, or should have
    refusals: Refusals
    largest: Millirates | None = None  # the most that a subscription could bring and fit; None if no rate is the reason
    fitting: FilterText | None = None  # the same filter with a narrower range of one attribute, which would fit


class ExplainAdmission(Packet, frozen=True, array_like=True):
    """Ask whether a subscription would be admitted. Nothing is reserved."""

    filter: FilterText
    criterion: Annotated[str, Meta(max_length=64)] = ""


class AdmissionExplained(Packet, frozen=True, array_like=True):
    """What would become of the subscription, and the rate it demands by what is advertised."""

    is_answer: ClassVar[bool] = True

    admitted: bool
    brokers: BrokerIds
    refusals: Refusals
    largest: Millirates | None
    fitting: FilterText | None
    lowest: Millirates  # at least so much may arrive
    highest: Millirates  # and at most
    publishers: tuple[U64, U64]  # from so many advertisements at least, and at most


class AskAdmission(Packet, frozen=True, array_like=True):
    """Ask a broker what it knows: advertisements, reservations, free capacity. At most `nodes` advertised filters are listed."""

    nodes: Annotated[int, Meta(ge=0, le=10_000)] = 1_000


class AdvertisedFilter(msgspec.Struct, frozen=True, array_like=True):
    """A node of the covering graph. `successors` are places in the list of nodes of those directly below it."""

    filter: FilterText
    count: U64
    millirate: Millirates
    own_millirate: Millirates
    brokers: BrokerIds
    successors: Annotated[list[U32], Meta(max_length=10_000)] = []


class ResourceUse(msgspec.Struct, frozen=True, array_like=True):
    """A resource of the broker: what the reservations bring it, and its limit, if it has one."""

    resource: Annotated[str, Meta(max_length=32)]
    neighbour: U32
    used: Millirates
    limit: Millirates | None
    measured: bool = False


class ReservedFilter(msgspec.Struct, frozen=True, array_like=True):
    """A reservation for subscriptions of broker `origin`, by the link to `neighbour` (0: clients of this broker)."""

    filter: FilterText
    origin: U32
    neighbour: U32
    subscriptions: U64
    decided: bool


class AdmissionState(Packet, frozen=True, array_like=True):
    """What a broker knows about admission."""

    is_answer: ClassVar[bool] = True

    broker: U32
    criterion: Annotated[str, Meta(max_length=64)]
    nodes: Annotated[list[AdvertisedFilter], Meta(max_length=10_000)]
    node_count: U64
    advertisements: U64
    resources: Annotated[list[ResourceUse], Meta(max_length=4096)]
    reservations: Annotated[list[ReservedFilter], Meta(max_length=10_000)]
    reservation_count: U64


# --- two neighbours ------------------------------------------------------------------------------------------------------


class AdvertisementEntry(msgspec.Struct, frozen=True, array_like=True):
    """One advertisement of a broker's clients. `number` is the broker's own; `made_ms` decides between two of one name."""

    number: U64
    pubend: U64
    filter: FilterText
    millirate: Millirate
    name: Name | None = None
    made_ms: WallMs = 0
    profile: Annotated[list[tuple[Name, Quantiles]], Meta(max_length=16)] = []  # of sampled values, by attribute


class AdvertisementsWanted(Packet, frozen=True, array_like=True):
    """Send what the clients of broker `origin` advertise, and every change. The sender has it up to `version`, 0 for nothing.

    With `stop`, send no more of it.
    """

    origin: U32
    version: U64 = 0
    stop: bool = False


class Advertisements(Packet, frozen=True, array_like=True):
    """What the clients of a broker advertise, as a change to version `base`, or in full if that is 0.

    A long list comes in several packets, `more` in all but the last.
    """

    origin: U32
    version: U64
    base: U64
    add: Annotated[list[AdvertisementEntry], Meta(max_length=65536)]
    remove: Annotated[list[U64], Meta(max_length=65536)]
    more: bool = False


class ReservationScope(Packet, frozen=True, array_like=True):
    """The messages of these pubends come to the sender for the reservations of one flow, from the receiver of this packet.

    A flow is numbered by the sender. It belongs to the subscriptions of one broker, over one path.
    """

    flow: U32
    origin: U32
    pubends: Annotated[list[U64], Meta(max_length=65536)]


class Reserve(Packet, frozen=True, array_like=True):
    """Reserve what a filter brings. With `wait_ms`, check first, and send a verdict before that time has passed.

    Without, the subscription was admitted before. `full`: who refuses reserves nothing. `dry`: nobody
    reserves anything.
    """

    number: U64
    flow: U32
    filter: FilterText
    wait_ms: U32 = 0
    full: bool = True
    dry: bool = False


class Verdict(Packet, frozen=True, array_like=True):
    """The verdicts of the sender and of all brokers behind it on the path."""

    number: U64
    brokers: BrokerIds
    refusals: Refusals


class Decision(Packet, frozen=True, array_like=True):
    """The subscriber's broker has decided: keep the reservation, or release it."""

    number: U64
    admitted: bool
