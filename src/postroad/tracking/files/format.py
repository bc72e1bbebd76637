"""The bytes of a track file: Parquet, with a head and a check in a place where no reader of Parquet looks.

    data      the column chunks, as Parquet has them
    head      MessagePack: who wrote the file, when, and how far it reaches
    check     48 bytes: magic, version, length of the head, xxh3_64 of the data, of the head, of all that follows
    footer    Parquet's, its length, `PAR1`

A reader of Parquet finds the footer from the end and the chunks by their offsets from the start, so what stands between the two
does not concern it. With the check, a bit that flipped anywhere, also in the footer, is damage and never another answer. With
the head before it, the end of a file says whether a search needs the rest.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from postroad.tracking.files.schema import INDEX_COLUMNS, SCHEMA, WRITE_OPTIONS, Stamp, one_batch
from postroad.tracking.files.summary import Summary, summarise

VERSION: Final = 2  # blooms of version 1 were hashed in another way
END_BYTES: Final = 8 << 10  # more than the footer and the head of nearly every file
_MAGIC: Final = b"PRtracks"
_PARQUET_MAGIC: Final = b"PAR1"
_CHECK: Final = struct.Struct("<8sIIQQQ8s")
_RESERVED: Final = bytes(8)
_TAIL: Final = struct.Struct("<I4s")
_SMALLEST: Final = len(_PARQUET_MAGIC) + _CHECK.size + _TAIL.size


class FormatError(Exception):
    """Bytes are no sound track file. Never leaves this package: the store says which file it is."""


class Head(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    broker: int
    incarnation: int
    sequence: int
    written_ms: int
    kept_from_ms: int
    complete: bool  # the last file of a flush: all that happened before `written_ms` is in the files up to this one
    previous: str = ""  # the name of the file before it, copies not counted; "" for the first of all
    replaces: tuple[str, ...] = ()  # files that may still lie beside it, and all of whose rows are in this one
    previous_digest: str = ""  # of the file before it; "" if that is not known
    stands_for: tuple[str, ...] = ()  # digests by which followers may name it, beside its own
    broken: tuple[str, ...] = ()  # where the chain up to here was found broken
    persistence_ms: int = 0  # T_p of the broker that wrote it; 0 if not known

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.broker, self.incarnation, self.sequence)


class _Described(msgspec.Struct, frozen=True, array_like=True):
    head: Head
    summary: Summary


class FileEnd(NamedTuple):
    """What the end of a file says. `body_bytes` is where the data ends, `digest` tells the file from another of its name."""

    head: Head
    summary: Summary
    digest: int
    body_bytes: int
    body_check: int


class TrackTable:
    """The verified bytes of a file, from which columns are read as they are needed."""

    def __init__(self, end: FileEnd, data: pa.Buffer) -> None:
        self.head: Final = end.head
        self.summary: Final = end.summary
        self.digest: Final = end.digest
        self._data: Final = data

    def index(self) -> pa.RecordBatch:
        """Return all rows without the heavy columns."""
        return self._read(list(INDEX_COLUMNS))

    def whole(self) -> pa.RecordBatch:
        return self._read(None)

    def _read(self, columns: list[str] | None) -> pa.RecordBatch:
        try:
            file = _parquet(self._data)
            if file.schema_arrow.names != SCHEMA.names or file.schema_arrow.types != SCHEMA.types:
                raise FormatError("it does not have the columns of a track file")
            table = file.read(columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"Parquet cannot be read ({error})") from error
        return one_batch(table)


class Packed(NamedTuple):
    """The bytes of a file, in pieces; its digest and summary."""

    pieces: list[bytes | memoryview]
    digest: int
    summary: Summary


def pack(head: Head, table: pa.Table) -> tuple[list[bytes | memoryview], int]:
    """Return the bytes of a file, in pieces, and its digest."""
    made = pack_all(head, table)
    return made.pieces, made.digest


def pack_all(head: Head, table: pa.Table) -> Packed:
    """Make the bytes of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **WRITE_OPTIONS)
    data = memoryview(sink.getvalue())
    footer = len(data) - _TAIL.size - _TAIL.unpack_from(data, len(data) - _TAIL.size)[0]
    summary = summarise(one_batch(table.select(list(INDEX_COLUMNS))))
    described = msgspec.msgpack.encode(_Described(head, summary))
    checks = [xxh3_64_intdigest(part) for part in (data[:footer], described, data[footer:])]
    check = _CHECK.pack(_MAGIC, VERSION, len(described), *checks, _RESERVED)
    return Packed([data[:footer], described, check, data[footer:]], _digest(check), summary)


def unpack(data: pa.Buffer) -> TrackTable:
    """Verify the bytes of a file, or raise `FormatError`."""
    end = unpack_end(data, data.size)
    if not isinstance(end, FileEnd) or xxh3_64_intdigest(memoryview(data)[: end.body_bytes]) != end.body_check:
        raise FormatError("it is damaged: its checksum is wrong")
    return TrackTable(end, data)


def unpack_end(data: pa.Buffer, size: int) -> FileEnd | int:
    """Verify the end of a file of this size and read its head; a number says how many bytes of the end it takes to do so."""
    view = memoryview(data)
    if size < _SMALLEST:
        raise FormatError(f"it has {size} bytes and is incomplete")
    length, magic = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    footer = len(view) - _TAIL.size - length  # in this part of the file; before it when negative
    if magic != _PARQUET_MAGIC or footer + size - len(view) < _CHECK.size:
        raise FormatError("it does not end like a Parquet file; perhaps it is incomplete")
    if footer < _CHECK.size:
        return _missing(view, size, _CHECK.size - footer)
    check = view[footer - _CHECK.size : footer]
    marked, version, described_bytes, of_data, of_head, of_footer, reserved = _CHECK.unpack(check)
    if marked != _MAGIC:
        raise FormatError("it is damaged, or not written by a broker")
    if version != VERSION:
        raise FormatError(f"it has version {version}; this release reads version {VERSION}")
    if reserved != _RESERVED:
        raise FormatError("it is damaged: it has data where a track file has none")
    start = footer - _CHECK.size - described_bytes
    if start < 0:
        return _missing(view, size, -start)
    described = view[start : footer - _CHECK.size]
    if xxh3_64_intdigest(described) != of_head or xxh3_64_intdigest(view[footer:]) != of_footer:
        raise FormatError("it is damaged: its checksum is wrong")
    try:
        found = msgspec.msgpack.decode(described, type=_Described)
    except msgspec.MsgspecError as error:
        raise FormatError(f"its header is invalid ({error})") from error
    return FileEnd(found.head, found.summary, _digest(check), start + size - len(view), of_data)


def _missing(view: memoryview, size: int, more: int) -> int:
    if len(view) + more > size:
        raise FormatError("it is damaged: its footer points beyond the file")
    return len(view) + more


def _digest(check: bytes | memoryview) -> int:
    return xxh3_64_intdigest(check)


def _parquet(data: pa.Buffer) -> Any:
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
