"""Few rows leave as values: what comes out is what went in, and no hostile values get past the decoder."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import Row, build_batches
from postroad.core.batch.row_codec import FEW_ROWS, FEW_ROWS_MAX
from postroad.core.batch.schema import DEFAULT_LIMITS
from postroad.core.batch.selection import select
from postroad.core.protocol.packets import Advance, Deliver, DeliverRows
from postroad.errors import BatchError, PostroadError, WireError
from postroad.wire.codec import decode, encode
from postroad.wire.deliveries import RowsDecoder, encode_with_rows
from postroad.wire.framing import FrameDecoder

DELIVER = Deliver(7, 0x101, 99, 200)
FIRST_TICK = 100

attributes = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.booleans(),
        "number": st.integers(-(1 << 63), (1 << 63) - 1),
        "price": st.floats(allow_nan=False),
        "symbol": st.text(st.characters(codec="utf-8"), max_size=5),
        "blob": st.binary(max_size=5),
    },
)
some_rows = st.lists(
    st.builds(Row, st.binary(min_size=16, max_size=16), attributes, st.binary(max_size=8)), min_size=1, max_size=FEW_ROWS
)


def batch_of(rows: list[Row], *, remember: bool = False) -> Batch:
    ticks = np.arange(FIRST_TICK, FIRST_TICK + len(rows), dtype=np.uint64)
    [batch] = build_batches(rows, ticks, remember=remember)
    return batch


def numbered(count: int, **values: Any) -> list[Row]:
    return [Row(n.to_bytes(16, "big"), values, b"payload %d" % n) for n in range(count)]


def over_the_wire(batch: Batch | None, *, few: bool = True) -> tuple[msgspec.Struct, Batch | None]:
    data = b"".join(encode_with_rows(DELIVER, 3, batch, few=few))
    [frame] = FrameDecoder().feed(data)
    packet, packet_id, body = decode(frame)
    assert packet_id == 3
    return packet, RowsDecoder().rows_of(packet, body, len(frame[2]))


def arrived(batch: Batch) -> Batch:
    packet, found = over_the_wire(batch)
    assert isinstance(packet, DeliverRows)
    assert (packet.handle, packet.pubend, packet.lo, packet.hi) == (DELIVER.handle, DELIVER.pubend, DELIVER.lo, DELIVER.hi)
    assert found is not None
    return found


# --- what goes in comes out ---------------------------------------------------------------------------------------------


@given(some_rows, st.booleans(), st.data())
def test_messages_come_out_as_they_went_in(rows: list[Row], remember: bool, data: st.DataObject) -> None:
    """As values, as columns, and whichever way they were selected."""
    whole = batch_of(rows, remember=remember)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    sent = data.draw(st.sampled_from([whole.slice(start, stop), *select(whole, [np.arange(start, stop)])]))
    found = arrived(sent)
    assert list(found) == list(whole.slice(start, stop))
    assert found.last_tick == FIRST_TICK + stop - 1
    built = Batch(found.columns)
    built.columns.validate(full=True)
    assert list(built) == list(found)
    assert found.layout is built.layout
    assert found.ticks().tolist() == [message.tick for message in found]
    assert found.ids().tobytes() == b"".join(bytes(message.id) for message in found)
    assert list(found.within(FIRST_TICK + start, FIRST_TICK + stop)) == list(found)[1:]


def test_a_not_a_number_keeps_its_bits() -> None:
    """A payload of NaN is a value like others."""
    [strange] = np.array([0x7FF8_0000_0000_BEEF], np.uint64).view(np.float64).tolist()
    batch = batch_of(numbered(2, price=strange))
    assert arrived(batch).equals(batch)


def test_an_attribute_that_no_row_has_does_not_travel() -> None:
    """Its type would not be known; nobody can ask for it anyway."""
    batch = batch_of([*numbered(1, a=1), *numbered(1, b=2)])
    assert batch.layout.names == ("a", "b")
    assert arrived(batch.slice(0, 1)).layout.names == ("a",)


def test_many_rows_and_peers_that_do_not_know_values_get_columns() -> None:
    """And what has no rows stays what it is."""
    for batch, few in ((batch_of(numbered(FEW_ROWS + 1, a=1)), True), (batch_of(numbered(2, a=1)), False)):
        packet, found = over_the_wire(batch, few=few)
        assert type(packet) is Deliver
        assert found is not None
        assert found.equals(batch)
    assert over_the_wire(None) == (DELIVER, None)
    assert encode_with_rows(Advance(1, {}), 0, None, few=True) == encode(Advance(1, {}), 0)


def test_more_attributes_than_a_message_may_have_travel_as_columns() -> None:
    """The rows of a batch may have different ones, together up to a bound that values do not reach."""
    half = DEFAULT_LIMITS.attributes // 2 + 1
    rows = [Row(bytes(16), {f"{side}{n}": 1 for n in range(half)}, b"") for side in "ab"]
    batch = batch_of(rows)
    packet, found = over_the_wire(batch)
    assert type(packet) is Deliver
    assert found is not None
    assert found.equals(batch)


def test_subscribers_of_the_same_rows_share_the_encoding() -> None:
    """And batches that stay in the cache keep nothing of it."""
    batch = batch_of(numbered(4, symbol="IBM"))
    rows = np.array([1, 2])
    first, second = select(batch, [rows, rows])
    arrived(first)
    assert first.encoded_values is not None
    assert second.encoded_values is first.encoded_values
    arrived(batch)
    assert batch.encoded_values is None
    assert batch._rows is None


def test_a_small_message_is_a_small_frame() -> None:
    """A hundred bytes of payload do not travel in eight hundred."""
    [batch] = build_batches([Row(bytes(16), {"topic": "T17", "n": 4}, bytes(100))])
    few, columns = (sum(map(len, encode_with_rows(DELIVER, 0, batch, few=few))) for few in (True, False))
    assert few < 200
    assert columns > 800


# --- hostile values -----------------------------------------------------------------------------------------------------


def values(**changes: Any) -> list[Any]:
    sound: dict[str, Any] = {
        "ticks": [1, 2],
        "ids": [bytes(16), bytes(16)],
        "payloads": [b"", b"x"],
        "attributes": {"a": [1, None], "b": ["x", "y"]},
        "binary": {"c": [None, b"z"]},
    }
    return list({**sound, **changes}.values())


def take(rows: list[Any]) -> Batch | None:
    frame = b"".join(encode(DeliverRows(1, 2, 3, 4, msgspec.Raw(msgspec.msgpack.encode(rows))), 0))  # type: ignore[arg-type]
    [whole] = FrameDecoder().feed(frame)
    packet, _, body = decode(whole)
    return RowsDecoder().rows_of(packet, body, len(whole[2]))


def test_sound_values_are_taken() -> None:
    found = take(values())
    assert found is not None
    assert [dict(message.attributes) for message in found] == [{"a": 1, "b": "x"}, {"b": "y", "c": b"z"}]


WIDE = {f"n{n}": [1, 2] for n in range(DEFAULT_LIMITS.attributes)}

FAULTS: dict[str, list[Any]] = {
    "a tick too few": values(ticks=[1]),
    "an id too many": values(ids=[bytes(16)] * 3),
    "a payload too few": values(payloads=[b""]),
    "ticks that stand still": values(ticks=[1, 1]),
    "ticks that fall": values(ticks=[2, 1]),
    "a negative tick": values(ticks=[-1, 1]),
    "no rows": values(ticks=[], ids=[], payloads=[], attributes={}, binary={}),
    "too many rows": values(
        ticks=list(range(FEW_ROWS_MAX + 1)),
        ids=[bytes(16)] * (FEW_ROWS_MAX + 1),
        payloads=[b""] * (FEW_ROWS_MAX + 1),
        attributes={},
        binary={},
    ),
    "a short id": values(ids=[bytes(16), bytes(15)]),
    "a payload of text": values(payloads=["", "x"]),
    "a value too few": values(attributes={"a": [1]}),
    "a binary value too many": values(binary={"c": [b"", b"", b""]}),
    "two types": values(attributes={"a": [1, 1.5]}),
    "a boolean among integers": values(attributes={"a": [1, True]}),
    "no value at all": values(attributes={"a": [None, None]}),
    "no binary value at all": values(binary={"c": [None, None]}),
    "a list as a value": values(attributes={"a": [[], []]}),
    "an integer beyond 64 bits with sign": values(attributes={"a": [1 << 63, 1]}),
    "a name twice": values(binary={"a": [b"", b""]}),
    "an empty name": values(attributes={"": [1, 2]}),
    "a name with a NUL": values(attributes={"a\0": [1, 2]}),
    "a name of too many bytes": values(attributes={"\u20ac" * 100: [1, 2]}),
    "a payload that is too large": values(payloads=[b"", bytes(DEFAULT_LIMITS.payload_bytes + 1)]),
    "a text of too many bytes": values(attributes={"a": ["\u20ac" * DEFAULT_LIMITS.value_bytes, ""]}),
    "a binary value that is too large": values(binary={"c": [bytes(DEFAULT_LIMITS.value_bytes + 1), b""]}),
    "too many attributes": values(attributes=WIDE, binary={"c": [b"", None]}),
}


@pytest.mark.parametrize("rows", FAULTS.values(), ids=FAULTS)
def test_values_that_are_no_rows_are_refused(rows: list[Any]) -> None:
    """By a typed error, before anybody sees them."""
    with pytest.raises((BatchError, WireError)):
        take(rows)


def test_as_many_attributes_as_allowed_are_taken_even_if_rows_differ() -> None:
    """The bound is for a message, not for the names of all of them."""
    found = take(values(attributes=WIDE | {"n0": [1, None]}, binary={"c": [None, b""]}))
    assert found is not None
    assert [len(message.attributes) for message in found] == [DEFAULT_LIMITS.attributes] * 2


def test_no_change_of_bytes_gets_past_the_decoder() -> None:
    """What is taken is a batch with all its invariants; all else is a typed error."""
    rng = random.Random(4)
    sound = [
        b"".join(encode_with_rows(DELIVER, 0, batch, few=True))
        for batch in (batch_of(numbered(1, a="x", b=b"y")), batch_of(numbered(3, a=1)))
    ]
    taken = refused = 0
    for _ in range(4000):
        data = bytearray(rng.choice(sound))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(4, len(data))] = rng.choice(
                [0, 1, 0x7F, 0x80, 0x90, 0x92, 0xA1, 0xC0, 0xC4, 0xCF, 0xFF, rng.randrange(256)]
            )
        try:
            [frame] = FrameDecoder().feed(bytes(data))
            packet, _, body = decode(frame)
            found = RowsDecoder().rows_of(packet, body, len(frame[2]))
        except PostroadError:
            refused += 1
            continue
        if found is not None:
            taken += 1
            found.columns.validate(full=True)
            assert list(Batch(found.columns)) == list(found) or _has_nan(found)
    assert taken > 200
    assert refused > 200


def _has_nan(batch: Batch) -> bool:
    return any(value != value for message in batch for value in message.attributes.values())  # noqa: PLR0124
