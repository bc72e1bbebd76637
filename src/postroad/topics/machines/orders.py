"""What goes into the machines of the topics service, and the orders that come out.

Orders are carried out in their sequence; a `Persist` is durable before any later `Reply` or `Ask` leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from postroad.topics.machines.rows import Row

# Where an answer goes back to: the ZeroMQ envelope, opaque to the machines.
Route = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request came in; `link` is its route."""

    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to our own request came in."""

    request: int
    payload: bytes = field(repr=False)


Input = Asked | Answered


@dataclass(frozen=True, slots=True)
class BodyRef:
    """A message content that lies in the store."""

    topic: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class MessageRef:
    """A message of a transfer part; its content lies in the store."""

    id: bytes
    stamp: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """The body of a TRANSFER: lines as they are, messages to be read from the store."""

    topic: bytes
    lines: bytes = field(repr=False)
    messages: tuple[MessageRef, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Persist:
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; when `body` names a message that is gone meanwhile, the asker has it already and nothing is sent."""

    route: Route
    payload: bytes = field(repr=False)
    body: BodyRef | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to an address; the answer must name `request`."""

    address: bytes
    request: int
    payload: bytes = field(repr=False)
    parcel: Parcel | None = None

    @property
    def size(self) -> int:
        return len(self.payload) + (self.parcel.size if self.parcel else 0)


Order = Persist | Reply | Ask
