"""The bytes of a track file: Parquet, with a check of everything in a place where no reader of Parquet looks.

    data      the column chunks, as Parquet has them
    check     32 bytes: magic, version, xxh3_64 of the data, xxh3_64 of all that follows
    footer    Parquet's, its length, `PAR1`

A reader of Parquet finds the footer from the end and the chunks by their offsets from the start, so what stands between the two
does not concern it. With the check, a bit that flipped anywhere, also in the footer, is damage and never another answer.

The footer's key `postroad` holds the file's head: who wrote it, when, and from when on tracks are kept.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64_intdigest

from postroad.storage.tracks.schema import INDEX_COLUMNS, SCHEMA, WRITE_OPTIONS, Stamp, one_batch

VERSION: Final = 1
_MAGIC: Final = b"PRtracks"
_PARQUET_MAGIC: Final = b"PAR1"
_CHECK: Final = struct.Struct("<8sQQQ")
_TAIL: Final = struct.Struct("<I4s")
_HEAD_KEY: Final = "postroad"
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

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.broker, self.incarnation, self.sequence)


class TrackTable:
    """The verified bytes of a file, from which columns are read as they are needed."""

    def __init__(self, head: Head, digest: int, data: pa.Buffer) -> None:
        self.head: Final = head
        self.digest: Final = digest  # tells a file from another of the same name
        self._data: Final = data

    def index(self) -> pa.RecordBatch:
        """Return all rows without the heavy columns."""
        return self._read(list(INDEX_COLUMNS))

    def whole(self) -> pa.RecordBatch:
        return self._read(None)

    def _read(self, columns: list[str] | None) -> pa.RecordBatch:
        try:
            table = _parquet(self._data).read(columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"Parquet cannot be read ({error})") from error
        return one_batch(table)


def pack(head: Head, table: pa.Table) -> tuple[list[bytes | memoryview], int]:
    """Return the bytes of a file, in pieces, and its digest."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **WRITE_OPTIONS) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_HEAD_KEY: msgspec.json.encode(head).decode()})
    data = memoryview(sink.getvalue())
    footer = len(data) - _TAIL.size - _TAIL.unpack_from(data, len(data) - _TAIL.size)[0]
    digest = xxh3_64_intdigest(data[footer:])
    check = _CHECK.pack(_MAGIC, VERSION, xxh3_64_intdigest(data[:footer]), digest)
    return [data[:footer], check, data[footer:]], digest


def unpack(data: pa.Buffer) -> TrackTable:
    """Verify the bytes of a file, or raise `FormatError`."""
    view = memoryview(data)
    if len(view) < _SMALLEST:
        raise FormatError(f"it has {len(view)} bytes and is cut short")
    length, magic = _TAIL.unpack_from(view, len(view) - _TAIL.size)
    footer = len(view) - _TAIL.size - length
    if magic != _PARQUET_MAGIC or footer < _CHECK.size:
        raise FormatError("it does not end as Parquet does; perhaps it is cut short")
    check, version, of_data, of_footer = _CHECK.unpack_from(view, footer - _CHECK.size)
    if check != _MAGIC:
        raise FormatError("it is damaged, or not written by a broker")
    if version != VERSION:
        raise FormatError(f"it is of version {version}, where this release reads version {VERSION}")
    if xxh3_64_intdigest(view[: footer - _CHECK.size]) != of_data or xxh3_64_intdigest(view[footer:]) != of_footer:
        raise FormatError("it is damaged: its check does not fit")
    return TrackTable(_head(data), of_footer, data)


def _head(data: pa.Buffer) -> Head:
    try:
        file = _parquet(data)
        metadata: dict[bytes, bytes] = file.metadata.metadata or {}
        if file.schema_arrow.names != SCHEMA.names or file.schema_arrow.types != SCHEMA.types:
            raise FormatError("its columns are not those of tracks")
        return msgspec.json.decode(metadata.get(_HEAD_KEY.encode(), b""), type=Head)
    except (pa.ArrowException, OSError, msgspec.MsgspecError) as error:
        raise FormatError(f"its footer makes no sense ({error})") from error


def _parquet(data: pa.Buffer) -> Any:
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
