"""Packets: every one survives its frame, and no bytes get past the decoder unchecked."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect as types

from postroad.core.batch.row_codec import Binary, Rows, join_rows, split_rows
from postroad.errors import (
    BatchError,
    FilterSyntaxError,
    InvalidValueError,
    MalformedPacketError,
    UnknownMethodError,
    WireError,
)
from postroad.wire import codec
from postroad.wire.codec import decode, encode, validate
from postroad.wire.framing import FrameDecoder
from postroad.wire.packets.session import Error, Hello, Role
from postroad.wire.packets.telesto import CreateQueue, GetQueueName, PutMessage, QueueMessage, ReadMessageResponse
from postroad.wire.registry import REGISTRY, Direction, Exchange, Packet, PacketSpec

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


class Carrier(Packet, frozen=True):
    """Stands for the packets with a body that other ranges register."""

    number: int
    rows: Rows = msgspec.field(default_factory=list)
    binary: Binary = msgspec.field(default_factory=dict)


CARRIER = PacketSpec(
    0x06FF, Carrier, Exchange.ONE_WAY, Direction.ANY, True, True, msgspec.msgpack.Decoder(Carrier)
)  # fmt: skip


@pytest.fixture
def carrier(monkeypatch: pytest.MonkeyPatch) -> PacketSpec:
    """Register `Carrier` for one test."""
    monkeypatch.setitem(REGISTRY.by_method, CARRIER.method, CARRIER)
    monkeypatch.setitem(REGISTRY.by_type, CARRIER.type, CARRIER)
    return CARRIER


def values(kind: types.Type) -> st.SearchStrategy[Any]:
    """Give the values a field may hold, within its bounds."""
    match kind:
        case types.IntType():
            most = kind.le if kind.lt is None else kind.lt - 1
            return st.integers(int(kind.ge or 0), int((1 << 64) - 1 if most is None else most))
        case types.StrType():
            return st.text(st.characters(codec="utf-8"), min_size=kind.min_length or 0, max_size=min(kind.max_length or 0, 20))
        case types.BytesType():
            return st.binary(min_size=kind.min_length or 0, max_size=min(kind.max_length or 0, 20))
        case types.EnumType():
            return st.sampled_from(list(kind.cls))
        case types.VarTupleType():
            size = min(kind.max_length or 0, 3)
            return st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=size).map(tuple)
        case types.ListType():
            size = min(kind.max_length or 0, 3)
            return st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=size)
        case types.TupleType():
            return st.tuples(*[values(each) for each in kind.item_types])
        case types.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case types.AnyType():
            return st.booleans() | st.integers(0, 9) | st.text(max_size=3)
        case types.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case types.UnionType():
            return st.one_of([values(each) for each in kind.types])
        case types.StructType():
            return st.builds(kind.cls, *[values(field.type) for field in kind.fields])
        case types.BoolType():
            return st.booleans()
        case types.NoneType():
            return st.none()
        case _:
            raise NotImplementedError(kind)


def body_for(packet: Packet) -> list[bytes] | None:
    """Give a packet that carries a body some bytes; what they say is not the codec's business."""
    return [b"the rows"] if REGISTRY.by_type[type(packet)].carries_body else None


packets: st.SearchStrategy[Any] = st.one_of([values(types.type_info(spec.type)) for spec in REGISTRY])


@given(packets, st.integers(0, 0xFFFF_FFFF))
def test_every_packet_survives_its_frame(packet: Packet, packet_id: int) -> None:
    """Encode, cut, decode; and it is what a peer would accept."""
    validate(packet)
    body = body_for(packet)
    [frame] = FrameDecoder().feed(b"".join(encode(packet, packet_id, body)))
    decoded, decoded_id, decoded_body = decode(frame)
    assert (decoded, decoded_id) == (packet, packet_id)
    assert (None if decoded_body is None else [bytes(decoded_body)]) == body
    assert frame[0] == REGISTRY.by_type[type(packet)].method


@given(st.sampled_from(list(REGISTRY)), st.binary(max_size=60))
def test_random_payloads_give_a_packet_or_a_wire_error(spec: PacketSpec, payload: bytes) -> None:
    """Never another exception."""
    try:
        packet, packet_id, body = decode((spec.method, 9, payload))
    except MalformedPacketError:
        return
    assert (type(packet), packet_id) == (spec.type, 9)
    assert spec.carries_body or body is None


@given(packets, st.data())
def test_mutated_payloads_give_a_packet_or_a_wire_error(packet: Packet, data: st.DataObject) -> None:
    """Flip, cut or insert bytes in a sound payload; what still decodes is within all bounds."""
    [(method, packet_id, payload)] = FrameDecoder().feed(b"".join(encode(packet, 1, body_for(packet))))
    mutated = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated)))
        match data.draw(st.sampled_from(["flip", "insert", "cut"])):
            case "flip" if place < len(mutated):
                mutated[place] ^= 1 << data.draw(st.integers(0, 7))
            case "insert":
                mutated[place:place] = data.draw(st.binary(min_size=1, max_size=5))
            case _:
                del mutated[place : place + 3]
    try:
        found, _, _ = decode((method, packet_id, bytes(mutated)))
    except WireError:
        return
    validate(found)


@given(st.integers(0, 0xFFFF).filter(lambda method: method not in REGISTRY.by_method), st.binary(max_size=20))
def test_an_unknown_method_is_a_typed_error(method: int, payload: bytes) -> None:
    """Whatever it carries."""
    with pytest.raises(UnknownMethodError):
        decode((method, 0, payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x90",
        b"\x91\x00\x00",  # trailing byte
        b"\x81\x00\x00",  # a map
        b"\x91\xa1\xff",  # text that is not UTF-8
        b"\x91\xa3\xed\xa0\x80",  # a lone surrogate
        b"\x91\xa0",  # an empty name
        b"\x91\xd9\xff",  # cut short
        b"\x91\xdb\xff\xff\xff\xff",  # 4 GiB announced
        b"\x91" * 100_000,  # nested without end
        msgspec.msgpack.encode(["x" * 256]),
        msgspec.msgpack.encode([b"bytes"]),
        msgspec.msgpack.encode([None]),
    ],
)
def test_payloads_that_are_no_packet_are_refused_by_name(payload: bytes) -> None:
    """The error says which packet was promised."""
    with pytest.raises(MalformedPacketError, match="malformed CreateQueue"):
        decode((0x21, 1, payload))


@pytest.mark.parametrize(
    "packet",
    [
        PutMessage((1,), None, None, 0, b""),
        PutMessage((1,), None, None, 11, b""),
        PutMessage((), None, None, 5, b""),
        PutMessage((-1,), None, None, 5, b""),
        PutMessage(tuple(range(1025)), None, None, 5, b""),
        CreateQueue(""),
        CreateQueue("x" * 256),
        CreateQueue("\ud800"),
        CreateQueue(7),  # type: ignore[arg-type]
        GetQueueName(1 << 63),
        GetQueueName(1 << 70),
        ReadMessageResponse((QueueMessage(1, 1, 1, None, None, 1, 1, b""),) * 2),
        Hello(1, 1, Role.CLIENT, 1 << 32, "x"),
        Hello(1, 1, 3, 0, "x"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_bounds_are_refused_before_they_are_sent(packet: Packet) -> None:
    """`validate` is for values a user gave; a peer would refuse them as malformed."""
    with pytest.raises(InvalidValueError):
        validate(packet)


def test_fields_may_be_missing_at_the_end_or_more_than_we_know() -> None:
    """So an older and a newer peer of one version understand each other."""
    fields = [1, 1, 1, 0, "someone"]
    decoded, _, _ = decode((0x0101, 0, msgspec.msgpack.encode(fields)))
    assert decoded == Hello(1, 1, Role.CLIENT, 0, "someone")
    newer = [*fields, "software", ["a", "b"], 1 << 20, 7, 2, "token", "a field of tomorrow"]
    decoded, _, _ = decode((0x0101, 0, msgspec.msgpack.encode(newer)))
    assert decoded == Hello(1, 1, Role.CLIENT, 0, "someone", "software", ("a", "b"), 1 << 20, 7, 2, "token")


def test_an_error_packet_describes_an_exception() -> None:
    """Code, text and whether to retry, cut to what a packet may carry."""
    packet = Error.of(FilterSyntaxError("no \ud800 filter", "x" * 5000, 3))
    assert (packet.code, packet.retryable) == (201, False)
    assert "no ? filter" in packet.text
    validate(packet)
    validate(Error.of(BatchError("y" * 5000)))


def test_a_large_body_is_passed_through_uncopied(carrier: PacketSpec) -> None:
    """The buffers behind the packet are the very objects given."""
    assert carrier.carries_body
    body: list[bytes | memoryview] = [bytes(10_000), memoryview(bytes(20_000))]
    buffers = encode(Carrier(1), 5, body)
    assert all(sent is given_part for sent, given_part in zip(buffers[1:], body, strict=True))


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.lists(st.binary(max_size=50), max_size=3))
def test_a_body_follows_its_packet_aligned(number: int, body: list[bytes]) -> None:
    """At a multiple of 8 from the start of the payload."""
    REGISTRY.by_method[CARRIER.method], REGISTRY.by_type[CARRIER.type] = CARRIER, CARRIER
    try:
        buffers = encode(Carrier(number), 5, body)
        [frame] = FrameDecoder().feed(b"".join(buffers))
        packet, packet_id, found = decode(frame)
    finally:
        del REGISTRY.by_method[CARRIER.method], REGISTRY.by_type[CARRIER.type]
    assert (packet, packet_id) == (Carrier(number), 5)
    assert found is not None
    assert bytes(found) == b"".join(body)
    assert (len(frame[2]) - len(found)) % 8 == 0


@pytest.mark.parametrize(
    "payload", [b"", b"\0\0\0", b"\0\0\0\1", b"\xff\xff\xff\xff\x91\0\0\0", b"\0\0\0\2\x91\0", b"\0\0\0\0" + bytes(8)]
)
def test_a_body_whose_header_does_not_fit_is_refused(carrier: PacketSpec, payload: bytes) -> None:
    """A header length beyond the payload, or no header at all."""
    with pytest.raises(MalformedPacketError, match="Carrier"):
        decode((carrier.method, 0, payload))


def test_a_body_where_none_belongs_is_a_bug(carrier: PacketSpec) -> None:
    """And so is one that is missing."""
    with pytest.raises(AssertionError):
        encode(CreateQueue("q"), 0, [b""])
    with pytest.raises(AssertionError):
        encode(Carrier(1), 0)
    assert codec.packets is not None


scalars = (
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5).filter(str.isprintable)
)
attribute_values = scalars | st.binary(max_size=5)
rows = st.lists(
    st.tuples(
        st.binary(min_size=16, max_size=16),
        st.dictionaries(st.sampled_from("abcd"), attribute_values, max_size=4),
        st.binary(max_size=5),
    ),
    max_size=6,
)


@given(rows)
def test_rows_survive_the_wire_with_their_exact_types(sent: list[tuple[bytes, dict[str, Any], bytes]]) -> None:
    """Binary attributes travel apart and come back in place."""
    plain, binary = split_rows(sent)
    packet = CARRIER.decoder.decode(msgspec.msgpack.encode(Carrier(1, plain, binary)))
    assert isinstance(packet, Carrier)
    came = join_rows(packet.rows, packet.binary)
    assert came == sent
    assert [[type(v) for _, v in sorted(a.items())] for _, a, _ in came] == [
        [type(v) for _, v in sorted(a.items())] for _, a, _ in sent
    ]


@pytest.mark.parametrize(
    ("plain", "binary"),
    [
        ([[bytes(15), {}, b""]], {}),
        ([[bytes(16), {"a": None}, b""]], {}),
        ([[bytes(16), {"a": b"x"}, b""]], {}),
        ([[bytes(16), {"a": []}, b""]], {}),
        ([[bytes(16), {"": 1}, b""]], {}),
        ([[bytes(16), {"a": 1 << 63}, b""]], {}),
        ([[bytes(16), {f"n{n}": 1 for n in range(65)}, b""]], {}),
        ([[bytes(16), {}, "text"]], {}),
        ([], {-1: {}}),
        ([], {0: {"a": "text"}}),
    ],
)
def test_rows_that_are_none_are_refused(carrier: PacketSpec, plain: list[Any], binary: dict[int, Any]) -> None:
    """Before any of them becomes an object that could be large."""
    with pytest.raises(MalformedPacketError):
        decode((carrier.method, 0, b"".join(_with_header(msgspec.msgpack.encode([1, plain, binary])))))


def _with_header(fields: bytes) -> list[bytes]:
    return [len(fields).to_bytes(4, "big"), fields, bytes(-(4 + len(fields)) % 8)]


def test_binary_attributes_of_no_row_or_of_a_taken_name_are_refused() -> None:
    """A row has each attribute once."""
    with pytest.raises(BatchError):
        join_rows([], {0: {"a": b"x"}})
    with pytest.raises(BatchError):
        join_rows([(bytes(16), {"a": 1}, b"")], {0: {"a": b"x"}})


def test_enumerations_travel_as_their_numbers() -> None:
    """So other languages need no names."""
    assert isinstance(Role.CLIENT, enum.IntEnum)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Hello(1, 1, Role.BROKER, 0, "x")))[2] == 2
