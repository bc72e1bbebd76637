"""Batches as bytes: they survive, they are not copied, and no hostile bytes get past the decoder."""

from __future__ import annotations

import secrets
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.core.batch.batch import Batch
from postroad.core.batch.build import Row, build_batches
from postroad.core.batch.schema import BatchLimits, Kind, layout_of
from postroad.errors import BatchError, BatchLimitError
from postroad.wire import arrow_ipc
from postroad.wire.batches import LAYOUTS_MAX, BatchDecoder, encode_batch

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

KINDS: list[Kind] = ["bool", "int", "float", "string", "binary"]
SYSTEM = layout_of((), ()).schema

attributes = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.booleans(),
        "number": st.integers(-(1 << 63), (1 << 63) - 1),
        "price": st.floats(),
        "symbol": st.text(st.characters(codec="utf-8"), max_size=5),
        "blob": st.binary(max_size=5),
    },
)
rows = st.lists(st.builds(Row, st.binary(min_size=16, max_size=16), attributes, st.binary(max_size=8)), min_size=1, max_size=70)


def sample(count: int = 3, **values: Any) -> Batch:
    made = [Row(n.to_bytes(16, "big"), values, b"payload %d" % n) for n in range(count)]
    [batch] = build_batches(made, np.arange(1, count + 1, dtype=np.uint64))
    return batch


def encoded(batch: Batch) -> bytes:
    return b"".join(encode_batch(batch))


def stream(columns: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None, *, count: int = 1, end: bool = False) -> bytes:
    """Write columns as any Arrow program would, by default without the end mark."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        for _ in range(count):
            writer.write_batch(columns)
    data = sink.getvalue().to_pybytes()
    return data if end else data[:-8]


def with_columns(*extra: tuple[pa.Field[Any], list[Any]]) -> pa.RecordBatch:
    """Return a sound batch of two rows with further columns, which may be anything."""
    batch = sample(2).columns
    arrays = [*batch.columns, *(pa.array(values, field.type) for field, values in extra)]
    schema = batch.schema
    for field, _ in extra:
        schema = schema.append(field)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def refuse(data: bytes | memoryview, match: str | None = None) -> None:
    with pytest.raises(BatchError, match=match):
        BatchDecoder().decode(data)


# --- sound batches ------------------------------------------------------------------------------------------------------


@given(rows, st.data())
def test_a_batch_survives_its_bytes(made: list[Row], data: st.DataObject) -> None:
    """Whole or cut, whatever its columns."""
    for batch in build_batches(made, np.arange(len(made), dtype=np.uint64)):
        decoder = BatchDecoder()
        start, stop = data.draw(st.integers(0, len(batch))), data.draw(st.integers(0, len(batch)))
        for part in (batch, batch.slice(start, stop)):
            found = decoder.decode(encoded(part), ascending=True)
            assert found.equals(part)
            assert found.layout is part.layout


def test_any_arrow_program_reads_what_we_write_and_writes_what_we_read() -> None:
    """The bytes are an Arrow stream; the end mark may not follow in a frame."""
    batch = sample(3, symbol="IBM", price=1.5)
    read = pa.ipc.open_stream(encoded(batch)).read_all()
    assert read.to_pylist()[0] == {"tick": 1, "id": bytes(16), "payload": b"payload 0", "@price": 1.5, "@symbol": "IBM"}
    assert BatchDecoder().decode(stream(batch.columns)).equals(batch)


def test_decoding_copies_nothing_and_forwards_the_received_bytes() -> None:
    """The columns lie in the received bytes, and encoding again returns those."""
    received = encoded(sample(100, symbol="IBM"))
    view = memoryview(received)
    batch = BatchDecoder().decode(view)
    start = np.frombuffer(received, np.uint8).ctypes.data
    for column in batch.columns.columns:
        for buffer in column.buffers():
            assert buffer is None or start <= buffer.address < start + len(received)
    [forwarded] = encode_batch(batch)
    assert forwarded is view or (isinstance(forwarded, memoryview) and forwarded.obj is received)
    assert encode_batch(batch.slice(0, 100))[0] is forwarded


def test_a_batch_is_encoded_once() -> None:
    """For the log and for every link."""
    batch = sample(3, a=1)
    assert all(one is other for one, other in zip(encode_batch(batch), encode_batch(batch), strict=True))


def test_a_known_layout_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is by bytes, and bounded: the oldest layout goes first."""
    decoder = BatchDecoder()
    batches = [encoded(sample(1, **{f"n{n}": 1})) for n in range(LAYOUTS_MAX + 10)]
    for data in batches:
        decoder.decode(data)
    assert len(decoder._layouts) == LAYOUTS_MAX
    monkeypatch.setattr("postroad.wire.batches.read_layout", lambda *_: pytest.fail("read again"))
    decoder.decode(batches[-1])


def test_ticks_must_ascend_when_asked() -> None:
    """Equal and falling ticks are refused, also across the sign of 64 bits; otherwise any order is fine."""
    for ticks, ascending in (
        ([1, 2, 3], True), ([1, 1, 2], False), ([3, 2, 1], False), ([1, 1 << 63, (1 << 64) - 1], True), ([1 << 63, 1, 2], False)
    ):  # fmt: skip
        data = encoded(sample(3).with_ticks(np.array(ticks, np.uint64)))
        BatchDecoder().decode(data)
        if ascending:
            BatchDecoder().decode(data, ascending=True)
        else:
            with pytest.raises(BatchError, match="ascend"):
                BatchDecoder().decode(data, ascending=True)


# --- limits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (BatchLimits(rows=9), "rows"),
        (BatchLimits(bytes=100, schema_bytes=1000), "bytes"),
        (BatchLimits(schema_bytes=100), "schema_bytes"),
        (BatchLimits(columns=1), "columns"),
        (BatchLimits(name_bytes=3), "name_bytes"),
        (BatchLimits(attributes=1), "attributes"),
        (BatchLimits(payload_bytes=8), "payload_bytes"),
        (BatchLimits(value_bytes=4), "value_bytes"),
    ],
)
def test_a_batch_beyond_a_limit_is_refused(limits: BatchLimits, limit: str) -> None:
    """By the receiver's limits, whatever the sender's were."""
    data = encoded(sample(10, name="12345", other=b"1"))
    with pytest.raises(BatchLimitError) as caught:
        BatchDecoder(limits).decode(data)
    assert caught.value.limit == limit
    BatchDecoder(BatchLimits(rows=10, columns=2, name_bytes=5, attributes=2, payload_bytes=9, value_bytes=5)).decode(data)


def test_many_columns_are_fine_while_no_message_has_too_many_attributes() -> None:
    """The limit is of a message; a batch may mix messages of different kinds."""
    [batch] = build_batches([Row(bytes(16), {f"n{n}": 1}, b"") for n in range(5)])
    assert BatchDecoder(BatchLimits(attributes=1)).decode(encoded(batch)).equals(batch)


# --- what Arrow would accept and we do not ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_unpack(codec: Literal["lz4", "zstd"]) -> None:
    """A few kilobytes must not become gigabytes."""
    [batch] = build_batches([Row(bytes(16), {}, bytes(1 << 20)) for _ in range(8)])
    data = stream(batch.columns, pa.ipc.IpcWriteOptions(compression=codec))
    assert len(data) < 100_000
    before = pa.total_allocated_bytes()
    refuse(data)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (pa.field("@a", pa.dictionary(pa.int8(), pa.string())), ["x", "y"]),
        (pa.field("@a", pa.list_(pa.int64())), [[1], [2]]),
        (pa.field("@a", pa.struct([("x", pa.int64())])), [{"x": 1}, {"x": 2}]),
        (pa.field("@a", pa.null()), [None, None]),
        (pa.field("@a", pa.int32()), [1, 2]),
        (pa.field("@a", pa.uint64()), [1, 2]),
        (pa.field("@a", pa.float32()), [1, 2]),
        (pa.field("@a", pa.large_string()), ["x", "y"]),
        (pa.field("@a", pa.string_view()), ["x", "y"]),
        (pa.field("@a", pa.binary(16)), [bytes(16), bytes(16)]),
        (pa.field("@a", pa.binary(4)), [bytes(4), bytes(4)]),
        (pa.field("@a", pa.timestamp("us")), [1, 2]),
        (pa.field("@a", pa.decimal128(5)), [1, 2]),
        (pa.field("@a", pa.uuid()), [bytes(16), bytes(16)]),
        (pa.field("@a", pa.json_()), ["{}", "{}"]),
        (pa.field("a", pa.int64()), [1, 2]),
        (pa.field("@", pa.int64()), [1, 2]),
        (pa.field("@a\0", pa.int64()), [1, 2]),
        (pa.field("@a", pa.int64(), metadata={"k": "v"}), [1, 2]),
    ],
)  # fmt: skip
def test_columns_of_other_types_or_names_are_refused(field: pa.Field[Any], values: list[Any]) -> None:
    """Five kinds, a prefix and a name; nothing rides along."""
    refuse(stream(with_columns((field, values))))


def test_a_dictionary_is_refused_at_its_schema() -> None:
    """Before its dictionary, which is another message, is looked at."""
    columns = with_columns((pa.field("@a", pa.dictionary(pa.int8(), pa.string())), ["x", "y"]))
    data = stream(columns)
    start = arrow_ipc.message_length(memoryview(data), 0)
    plain = sample(2, a="x").columns.serialize().to_pybytes()
    refuse(data[:start] + plain, "plain type")


def test_columns_out_of_order_or_named_twice_are_refused() -> None:
    """One layout has one form."""
    a, b = pa.field("@a", pa.int64()), pa.field("@b", pa.int64())
    refuse(stream(with_columns((b, [1, 2]), (a, [1, 2]))), "sorted")
    refuse(stream(with_columns((a, [1, 2]), (a, [1, 2]))), "sorted")


@pytest.mark.parametrize("column", [0, 1, 2])
def test_the_system_columns_must_be_there_complete_and_in_order(column: int) -> None:
    """No nulls, no other types, none missing."""
    columns = sample(2).columns
    nulls = pa.array([columns.column(column)[0].as_py(), None], columns.schema.field(column).type)
    refuse(stream(columns.set_column(column, columns.schema.field(column), nulls)), "null")
    refuse(stream(columns.remove_column(column)))
    refuse(stream(columns.rename_columns([f"{name}{'s' * (n == column)}" for n, name in enumerate(columns.schema.names)])))
    refuse(stream(columns.set_column(column, columns.schema.names[column], pa.array([1.0, 2.0]))))


def test_metadata_and_other_versions_are_refused() -> None:
    """What a relay forwards must hold nothing that nobody sees."""
    columns = sample(2).columns
    refuse(stream(columns.replace_schema_metadata({b"k": b"v"})))
    refuse(stream(columns, pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)), "version")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns, custom_metadata={b"k": b"v"})
    refuse(sink.getvalue().to_pybytes()[:-8])


def test_more_or_less_than_one_schema_and_one_record_batch_is_refused() -> None:
    """Nothing before, between or behind."""
    batch = sample(2)
    schema, columns = batch.layout.encoded, batch.columns.serialize().to_pybytes()
    BatchDecoder().decode(schema + columns)
    for data in (
        b"", schema, columns, schema + schema, columns + schema, schema + columns + columns, schema + columns + bytes(8),
        schema + schema + columns, schema + columns[:-8], stream(batch.columns, end=True), stream(batch.columns, count=2),
        b"\xff\xff\xff\xff\0\0\0\0", bytes(4096), b"\xff" * 4096,
    ):  # fmt: skip
        refuse(data)


def test_every_cut_of_a_batch_is_refused() -> None:
    """A batch is whole or it is none."""
    data = encoded(sample(2, a="x"))
    for length in range(len(data)):
        refuse(data[:length])


def test_another_byte_order_is_refused() -> None:
    """The schema's first field, when present and not 0, says big-endian."""
    batch = sample(2)
    data = bytearray(encoded(batch))
    meta = bytes(data[8 : len(batch.layout.encoded)])
    header, _ = arrow_ipc._read_message(meta, 1)
    vtable = 8 + header - struct.unpack_from("<i", meta, header)[0]
    assert struct.unpack_from("<H", data, vtable + 4) == (0,)
    data[vtable + 4 : vtable + 6] = data[vtable + 6 : vtable + 8]  # let it share the bytes of the next field, which are not 0
    refuse(bytes(data), "little-endian")


# --- lies about buffers -------------------------------------------------------------------------------------------------


def spoilt(batch: Batch, spoil: Callable[[bytearray, arrow_ipc.Places, int], None]) -> bytes:
    """Encode a batch and let `spoil` change it, given the places in its metadata and the start of its body."""
    data = bytearray(encoded(batch))
    start = len(batch.layout.encoded)
    body = start + arrow_ipc.message_length(memoryview(data), start)
    places = arrow_ipc.locate(bytes(data[start + 8 : body]), arrow_ipc.shape_of(batch.layout))
    spoil(data, arrow_ipc.Places(*(place + start + 8 for place in places)), body)
    return bytes(data)


def test_buffers_that_share_memory_are_refused() -> None:
    """Else a message would grow each time it is written anew: many columns, one stretch of bytes."""

    def share(data: bytearray, places: arrow_ipc.Places, _: int) -> None:
        payload, name = places.buffers + 16 * 6, places.buffers + 16 * 9
        data[name : name + 16] = data[payload : payload + 16]

    refuse(spoilt(sample(3, a="payload 0"), share), "one after the other")


@pytest.mark.parametrize("number", [1 << 20, 1 << 62])
def test_a_last_buffer_that_passes_the_body_is_refused(number: int) -> None:
    """By us, not only by Arrow."""

    def lie(data: bytearray, places: arrow_ipc.Places, _: int) -> None:
        struct.pack_into("<q", data, places.buffers + 16 * 9 + 8, number)

    refuse(spoilt(sample(3, a="x"), lie), "the body at")


@pytest.mark.parametrize("number", [-1, -8, 4, 1 << 20, 1 << 62, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("place", ["rows", "body", "nodes", "nulls", "offset", "length"])
def test_numbers_in_the_metadata_that_do_not_fit_are_refused(place: str, number: int) -> None:
    """Rows, body length, node lengths, null counts, buffer offsets and lengths; small lies and large ones."""

    def lie(data: bytearray, places: arrow_ipc.Places, _: int) -> None:
        positions = {
            "rows": places.rows, "body": places.body, "nodes": places.nodes, "nulls": places.nodes + 16 * 3 + 8,
            "offset": places.buffers + 16 * 5, "length": places.buffers + 16 * 5 + 8,
        }  # fmt: skip
        struct.pack_into("<q", data, positions[place], number)

    refuse(spoilt(sample(3, a="x"), lie))


def body_of(column: int, buffer: int, batch: Batch) -> int:
    """Return where a column's buffer starts in the encoded bytes."""
    data = encoded(batch)
    found = BatchDecoder().decode(data).columns.column(column).buffers()[buffer]
    assert found is not None
    return found.address - np.frombuffer(data, np.uint8).ctypes.data


@pytest.mark.parametrize("offset", [-1, 100, -(1 << 31), (1 << 31) - 1])
@pytest.mark.parametrize("column", [2, 3])
@pytest.mark.parametrize("row", [0, 1, 3])
def test_offsets_that_leave_their_data_are_refused(column: int, row: int, offset: int) -> None:
    """Of payloads and strings; first, middle and last."""
    batch = sample(3, a="xyz")
    place = body_of(column, 1, batch) + 4 * row
    data = bytearray(encoded(batch))
    struct.pack_into("<i", data, place, offset)
    refuse(bytes(data))


def test_strings_that_are_not_utf8_are_refused() -> None:
    """Also a lone surrogate, and a character cut in two by an offset."""
    batch = sample(1, a="éé")
    place = body_of(3, 2, batch)
    for text in (b"\xff\xc3\xa9\xc3", b"\xed\xa0\x80a"):
        data = bytearray(encoded(batch))
        data[place : place + 4] = text
        refuse(bytes(data))
    [two] = build_batches([Row(bytes(16), {"a": "é"}, b""), Row(bytes(16), {"a": "é"}, b"")])
    data = bytearray(encoded(two))
    struct.pack_into("<i", data, body_of(3, 1, two) + 4, 1)
    refuse(bytes(data))


def test_a_null_count_that_lies_is_refused() -> None:
    """The bitmap says how many nulls there are."""

    def lie(data: bytearray, places: arrow_ipc.Places, _: int) -> None:
        struct.pack_into("<q", data, places.nodes + 16 * 3 + 8, 2)

    [batch] = build_batches([Row(bytes(16), {"a": 1}, b""), Row(bytes(16), {}, b""), Row(bytes(16), {"a": 2}, b"")])
    refuse(spoilt(batch, lie), "null")


# --- fuzzing ------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000) | st.binary(max_size=600).map(lambda tail: SYSTEM.serialize().to_pybytes() + tail))
def test_any_bytes_give_a_batch_or_a_batch_error(data: bytes) -> None:
    """Never another exception."""
    try:
        BatchDecoder().decode(data)
    except BatchError:
        return
    pytest.fail("random bytes made a batch")


def fuzz(count: int) -> None:
    seed = secrets.randbits(32)
    command = [sys.executable, str(Path(__file__).parent / "fuzz_batches.py"), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"repeat with: PYTHONPATH=src python tests/wire/fuzz_batches.py {seed} {count}\n{done.stderr}"
    accepted, refused, peak_mib = (int(word) for word in done.stdout.split() if word.isdigit())
    assert accepted + refused == count
    assert accepted > count // 100, "spoil less: nothing gets as far as Arrow"
    assert peak_mib < 600


def test_spoilt_batches_neither_crash_nor_leak() -> None:
    """Twenty thousand spoilt batches, in a process of their own."""
    fuzz(20_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_spoilt_batches_neither_crash_nor_leak() -> None:
    """Two million."""
    fuzz(2_000_000)
