"""The registry keeps its own rules, and the protocol page shows all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from docs.protocol import describe, protocol_page
from msgspec import inspect as types

from postroad.core.protocol.packets import Publish
from postroad.errors import NotIdentifiedError, ProtocolVersionError, UnknownMethodError, WrongDirectionError
from postroad.wire.packets.session import PROTOCOL_VERSION, Error, Goodbye, Hello, Ping, Pong, Role, agree_version
from postroad.wire.packets.telesto import (
    CreateQueue,
    CreateQueueResponse,
    PutMessage,
    PutMessageResponse,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    Success,
)
from postroad.wire.registry import (
    ODD_FROM_BROKER,
    RANGES,
    REGISTRY,
    Direction,
    Exchange,
    Packet,
    PacketSpec,
    Registry,
    check_direction,
    one_way,
    request,
    response,
)

SPECS = list(REGISTRY)
ids = [spec.name for spec in SPECS]


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_requests_are_odd_and_responses_follow_them(spec: PacketSpec) -> None:
    """The rule of the report's section 3.2, for every packet; Success and Error are the two exceptions."""
    if spec.method in ODD_FROM_BROKER:
        assert spec.type in {Success, Error}
        return
    match spec.exchange:
        case Exchange.REQUEST:
            assert spec.method % 2 == 1
        case Exchange.RESPONSE:
            assert REGISTRY.by_method[spec.method - 1].exchange is Exchange.REQUEST
        case Exchange.ONE_WAY:
            assert (spec.method % 2 == 0) == (spec.direction == Direction.BROKER_TO_CLIENT)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.method <= 0xFF], ids=lambda spec: spec.name)
def test_queue_packets_travel_as_their_parity_says(spec: PacketSpec) -> None:
    """Odd from clients, even from brokers (Table 3.6), but for Success and Error; either side may ping."""
    if spec.type in {Ping, Pong}:
        return
    sent_by_client = Direction.CLIENT_TO_BROKER in spec.direction
    assert sent_by_client == (spec.method % 2 == 1 and spec.method not in ODD_FROM_BROKER)


def test_the_ids_of_the_report_hold_where_it_keeps_its_own_rule() -> None:
    """Table 3.6, with 0x32 to 0x34 put right."""
    table = {
        "Ping": 0x01, "Pong": 0x02, "Success": 0x03, "Error": 0x05,
        "RegisterClient": 0x11, "RegisterClientResponse": 0x12, "IdentifyClient": 0x13, "IdentifyClientResponse": 0x14,
        "DeleteClient": 0x15, "CreateQueue": 0x21, "CreateQueueResponse": 0x22, "DeleteQueue": 0x23, "GetQueueId": 0x25,
        "GetQueueIdResponse": 0x26, "GetQueueName": 0x27, "GetQueueNameResponse": 0x28, "GetQueues": 0x29,
        "GetQueuesResponse": 0x2A, "GetActiveQueues": 0x2B, "GetActiveQueuesResponse": 0x2C, "GetMessages": 0x2D,
        "GetMessagesResponse": 0x2E, "PutMessage": 0x31, "PutMessageResponse": 0x32, "ReadMessage": 0x33,
        "ReadMessageResponse": 0x34, "ReadResponse": 0x35,
    }  # fmt: skip
    assert {name: method for name, method in ((s.name, s.method) for s in SPECS) if name in table} == table


def test_before_identification_only_registering_identifying_and_pinging_are_allowed() -> None:
    """Section 3.3 of the report; the session's own packets are the same case."""
    requests = {s.name for s in SPECS if s.exchange is Exchange.REQUEST and not s.needs_identification}
    assert requests == {"Ping", "RegisterClient", "IdentifyClient", "Hello"}


def lengths(kind: types.Type) -> Iterator[int | None]:
    """Yield the greatest length of each part of a type that has one."""
    match kind:
        case types.StrType() | types.BytesType():
            yield kind.max_length
        case types.VarTupleType() | types.ListType():
            yield kind.max_length
            yield from lengths(kind.item_type)
        case types.DictType():
            yield kind.max_length
            yield from lengths(kind.key_type)
            yield from lengths(kind.value_type)
        case types.TupleType():
            for each in kind.item_types:
                yield from lengths(each)
        case types.UnionType():
            for each in kind.types:
                yield from lengths(each)
        case types.StructType():
            for field in kind.fields:
                yield from lengths(field.type)
        case types.AnyType() | types.RawType():
            yield None
        case _:
            return


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_every_field_that_varies_in_length_is_bounded(spec: PacketSpec) -> None:
    """No field may hold anything, or as much as it likes; but the rows of `Publish` are checked one by one when they are read."""
    if spec.type is Publish:
        return
    assert None not in list(lengths(types.type_info(spec.type)))


@pytest.mark.parametrize("spec", SPECS, ids=ids)
def test_the_page_describes_every_packet_with_all_its_fields(spec: PacketSpec) -> None:
    """Id, name, description and one line per field."""
    page = protocol_page()
    section = page.split(f"### 0x{spec.method:04x} {spec.name}\n")[1].split("\n###")[0]
    assert spec.description in section
    assert spec.direction.describe() in section
    for field in msgspec.structs.fields(spec.type):
        assert f"| `{field.name}` | {describe(types.type_info(field.type))}" in section


def test_the_page_on_disk_is_the_generated_one_and_lists_the_ranges() -> None:
    """What people read is what the code does."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "protocol.md").read_text(encoding="utf-8")
    assert page.endswith(protocol_page())
    assert len(re.findall(r"^### 0x", page, re.MULTILINE)) == len(REGISTRY)
    for block in RANGES:
        assert f"| 0x{block.lo:04x}-0x{block.hi:04x} | {block.purpose} |" in page


def test_ranges_do_not_overlap() -> None:
    """Each id has one purpose."""
    assert all(left.hi < right.lo for left, right in pairwise(RANGES))


@pytest.mark.parametrize(
    ("came", "packet", "allowed"),
    [
        (Direction.CLIENT_TO_BROKER, CreateQueue("q"), True),
        (Direction.BROKER_TO_CLIENT, CreateQueue("q"), False),
        (Direction.BROKER_TO_BROKER, CreateQueue("q"), False),
        (Direction.CLIENT_TO_BROKER, CreateQueueResponse(1), False),
        (Direction.BROKER_TO_CLIENT, CreateQueueResponse(1), True),
        (Direction.BROKER_TO_BROKER, Ping(), True),
        (Direction.CLIENT_TO_BROKER, Success(), False),
        (Direction.CLIENT_TO_BROKER, Goodbye(), True),
    ],
)
def test_a_packet_travels_only_in_its_directions(came: Direction, packet: Packet, allowed: bool) -> None:
    """A peer that answers what nobody asked is told so."""
    if allowed:
        check_direction(packet, came, identified=True)
    else:
        with pytest.raises(WrongDirectionError) as caught:
            check_direction(packet, came, identified=True)
        assert caught.value.packet == type(packet).__name__


def test_identification_comes_first() -> None:
    """A stranger may ping and introduce himself, no more."""
    stranger = Direction.CLIENT_TO_BROKER
    check_direction(Ping(), stranger, identified=False)
    with pytest.raises(NotIdentifiedError):
        check_direction(CreateQueue("q"), stranger, identified=False)


def test_a_request_knows_its_answer() -> None:
    """The next id, or Success; nothing else is answered."""
    names = {s.name: answer.name if (answer := REGISTRY.answer_to(s)) else None for s in SPECS}
    assert names["CreateQueue"] == "CreateQueueResponse"
    assert names["DeleteQueue"] == "Success"
    assert names["Goodbye"] is None
    assert names["Pong"] is None
    assert names[PutMessage.__name__] == PutMessageResponse.__name__
    assert names[ReadMessage.__name__] == ReadMessageResponse.__name__
    assert names[ReadResponse.__name__] == "ReadResponseResponse"


def test_an_unknown_method_is_named_in_the_error() -> None:
    """So that the log says what the peer wanted."""
    with pytest.raises(UnknownMethodError, match="0x06fe"):
        REGISTRY.of_method(0x06FE)


def test_registering_against_the_rules_is_a_bug() -> None:
    """An even request, a response without request, a taken id, an id of no range, a packet without a word on it."""

    class Documented(Packet, frozen=True):
        """Do something."""

    class Silent(Packet, frozen=True):
        pass

    both = Direction.CLIENT_AND_BROKER
    with pytest.raises(AssertionError, match="odd id"):
        request(0x06F0, both)(Documented)
    with pytest.raises(AssertionError, match="request's id"):
        response(0x06F2, both)(Documented)
    with pytest.raises(AssertionError, match="taken"):
        request(0x0101, both)(Documented)
    with pytest.raises(AssertionError, match="no range"):
        one_way(0x7001, both)(Documented)
    with pytest.raises(AssertionError, match="docstring"):
        one_way(0x06F1, both)(Silent)
    with pytest.raises(AssertionError, match="odd ids"):
        one_way(0x06F0, Direction.CLIENT_TO_BROKER)(Documented)
    assert 0x06F0 not in REGISTRY.by_method
    assert len(Registry()) == 0


@pytest.mark.parametrize(
    ("oldest", "newest", "agreed"), [(1, 1, 1), (1, 9, 1), (0, 1, 1), (2, 9, None), (0, 0, None), (9, 1, None)]
)
def test_peers_agree_on_the_newest_version_both_speak(oldest: int, newest: int, agreed: int | None) -> None:
    """Or on none, with an error that says what each speaks."""
    hello = Hello(oldest, newest, Role.CLIENT, 0, "someone")
    if agreed is None:
        with pytest.raises(ProtocolVersionError):
            agree_version(hello)
    else:
        assert agree_version(hello) == agreed <= PROTOCOL_VERSION
