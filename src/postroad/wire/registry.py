"""The registry: every packet of the protocol, declared once.

A packet is a frozen msgspec struct, written as a MessagePack array of its fields, under a 16-bit method id. To add one, write
the struct in the module of its range (`postroad.wire.packets`) and decorate it:

    @request(0x0201, Direction.CLIENT_TO_BROKER)
    class Subscribe(Packet, frozen=True):
        '''Ask for the messages a filter matches.'''

        filter: Annotated[str, Meta(max_length=4096)]

The rules, which the Telesto report gives (section 3.2) and breaks: a request has an odd id and its response the next one; a
request without a response of its own is answered by Success, any request may be answered by Error; answers repeat the
request's packet id. One-way packets get no answer: odd from a client, even from a broker, either where both may send them.
The first line of the docstring goes to the protocol page of the docs, which is generated from here.

Within a version fields may only be appended, with a default: a decoder ignores fields it does not know. Between brokers a packet
of an unknown method is left out, so a new one may be sent within a version if the overlay works without it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from postroad.errors import NotIdentifiedError, UnknownMethodError, WrongDirectionError

# Types for fields. All that varies in length is bounded: a field may cost a peer no more memory than its bytes explain.
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=255)]
Text: TypeAlias = Annotated[str, Meta(max_length=2000)]
U16: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF)]
U32: TypeAlias = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
I64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
U64: TypeAlias = Annotated[int, Meta(ge=0)]  # MessagePack itself ends at 64 bits
U63: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Direction(enum.Flag):
    """Who sends to whom."""

    CLIENT_TO_BROKER = enum.auto()
    BROKER_TO_CLIENT = enum.auto()
    BROKER_TO_BROKER = enum.auto()
    CLIENT_AND_BROKER = CLIENT_TO_BROKER | BROKER_TO_CLIENT
    ANY = CLIENT_TO_BROKER | BROKER_TO_CLIENT | BROKER_TO_BROKER

    def describe(self) -> str:
        ways = [(each.name or "").lower().replace("_", " ") for each in Direction if each & self]
        return "any direction" if len(ways) == len(Direction) else ", ".join(ways)


class Exchange(enum.Enum):
    """The part a packet plays in an exchange."""

    REQUEST = "request"
    RESPONSE = "response"
    ONE_WAY = "one-way"


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all packets."""


@dataclass(frozen=True, slots=True)
class MethodRange:
    """A block of method ids with one purpose."""

    lo: int
    hi: int
    purpose: str


RANGES: Final = (
    MethodRange(0x0001, 0x00FF, "queues (Telesto, Table 3.6)"),
    MethodRange(0x0100, 0x01FF, "session"),
    MethodRange(0x0200, 0x02FF, "publish and subscribe: clients"),
    MethodRange(0x0300, 0x03FF, "broker to broker"),
    MethodRange(0x0400, 0x04FF, "tracking"),
    MethodRange(0x0500, 0x05FF, "admission and congestion"),
    MethodRange(0x0600, 0x06FF, "console and statistics"),
)

# Success and Error go from broker to client under the odd ids the Telesto report gives them; they answer any request, so
# the rule "response = request + 1" could not place them anyway.
ODD_FROM_BROKER: Final = frozenset({0x03, 0x05})


@dataclass(frozen=True, slots=True)
class PacketSpec:
    """All that is known of a packet."""

    method: int
    type: type[msgspec.Struct]
    exchange: Exchange
    direction: Direction
    needs_identification: bool
    carries_body: bool
    decoder: msgspec.msgpack.Decoder[msgspec.Struct]

    @property
    def name(self) -> str:
        return self.type.__name__

    @property
    def description(self) -> str:
        return (self.type.__doc__ or "").strip().splitlines()[0]


# Packets of the overlay are declared in `postroad.core.protocol.packets`, below this layer, so any struct will do.
PacketT = TypeVar("PacketT", bound=type[msgspec.Struct])


class Registry:
    """Packets by method id and by type."""

    def __init__(self) -> None:
        self.by_method: dict[int, PacketSpec] = {}
        self.by_type: dict[type[msgspec.Struct], PacketSpec] = {}

    def add(self, spec: PacketSpec) -> None:
        """Register a packet; a breach of the rules is our bug."""
        assert spec.method not in self.by_method, f"method 0x{spec.method:04x} is taken by {self.by_method[spec.method].name}"
        assert any(block.lo <= spec.method <= block.hi for block in RANGES), f"0x{spec.method:04x} is in no range"
        assert spec.type.__doc__, f"{spec.name} needs a docstring"
        odd = bool(spec.method & 1)
        match spec.exchange:
            case Exchange.REQUEST:
                assert odd, f"{spec.name}: a request has an odd id"
            case Exchange.RESPONSE:
                asked = self.by_method.get(spec.method - 1)
                answers = asked is not None and asked.exchange is Exchange.REQUEST
                assert answers or spec.method in ODD_FROM_BROKER, f"{spec.name}: a response has its request's id + 1"
            case Exchange.ONE_WAY:
                assert odd or spec.direction != Direction.CLIENT_TO_BROKER, f"{spec.name}: clients send odd ids"
                assert not odd or spec.direction != Direction.BROKER_TO_CLIENT, f"{spec.name}: brokers send clients even ids"
        self.by_method[spec.method] = spec
        self.by_type[spec.type] = spec

    def __iter__(self) -> Iterator[PacketSpec]:
        return iter(sorted(self.by_method.values(), key=lambda spec: spec.method))

    def __len__(self) -> int:
        return len(self.by_method)

    def of_method(self, method: int) -> PacketSpec:
        spec = self.by_method.get(method)
        if spec is None:
            raise UnknownMethodError(method)
        return spec

    def answer_to(self, spec: PacketSpec) -> PacketSpec | None:
        """Return the packet that answers a request when all goes well; None for what gets no answer."""
        if spec.exchange is not Exchange.REQUEST:
            return None
        following = self.by_method.get(spec.method + 1)
        return following if following and following.exchange is Exchange.RESPONSE else self.by_method[0x03]


REGISTRY: Final = Registry()


def request(
    method: int, direction: Direction, *, needs_identification: bool = True, carries_body: bool = False
) -> Callable[[PacketT], PacketT]:
    """Register a packet that asks for an answer."""
    return _register(method, Exchange.REQUEST, direction, needs_identification, carries_body)


def response(
    method: int, direction: Direction, *, needs_identification: bool = True, carries_body: bool = False
) -> Callable[[PacketT], PacketT]:
    """Register the answer to the request one below, which must be registered first."""
    return _register(method, Exchange.RESPONSE, direction, needs_identification, carries_body)


def one_way(
    method: int, direction: Direction, *, needs_identification: bool = True, carries_body: bool = False
) -> Callable[[PacketT], PacketT]:
    """Register a packet that gets no answer."""
    return _register(method, Exchange.ONE_WAY, direction, needs_identification, carries_body)


def _register(
    method: int, exchange: Exchange, direction: Direction, needs_identification: bool, carries_body: bool
) -> Callable[[PacketT], PacketT]:
    def add(packet: PacketT) -> PacketT:
        decoder = msgspec.msgpack.Decoder(packet)
        REGISTRY.add(PacketSpec(method, packet, exchange, direction, needs_identification, carries_body, decoder))
        return packet

    return add


def check_direction(packet: msgspec.Struct, came: Direction, *, identified: bool) -> None:
    """Refuse a packet that may not travel the way it came, or not before identification."""
    spec = REGISTRY.by_type[type(packet)]
    if came not in spec.direction:
        raise WrongDirectionError(spec.name, came.describe())
    if spec.needs_identification and not identified:
        raise NotIdentifiedError(spec.name)
