"""The bytes of a segment.

    header    64 bytes: magic, version, publishers, pubend, base, salt, forgotten, check of the snapshot, check of the header
    snapshot  publishers' last ids when the segment was begun: (u32 publisher, u64 tick) each, sorted by publisher
    record    64 bytes: magic, length, rows, first tick, last tick, group, offset, check of the batch, check of the header;
    ...       then the encoded batch
    index     sparse: (u64 tick, u64 offset): the record at `offset` holds only ticks above `tick`
    trailer   64 bytes: magic, entries, end of the records, last tick, rows, file size, check of the index, check of the trailer

Everything is little-endian and padded with zeros to 64 bytes, so that a batch lies aligned in memory as it lies in the file.
A segment holds ticks above its `base`, which is the last tick of the segment before it; so the base of the oldest segment is
the log's `released` mark. Index and trailer are written when a segment is closed.

Checks are xxh3_64, seeded with the segment's random `salt`: what a client publishes can never pass for a record, nor can blocks
of another file. A record's `group` is the offset at which its append began. Everything before that offset was durable when the
record was written, which is how recovery tells damage from the torn end of an unfinished append.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_intdigest

from postroad.storage.publishers import ENTRY, Entries

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
Index: TypeAlias = np.ndarray[Any, np.dtype[np.void]]  # of INDEX_ENTRY

VERSION: Final = 1
ALIGNMENT: Final = 64
SEGMENT_MAGIC: Final = b"PRsegmnt"
RECORD_MAGIC: Final = b"PRrecord"
TRAILER_MAGIC: Final = b"PRclosed"

_HEADER: Final = struct.Struct("<8sIIQQQQQ")
_RECORD: Final = struct.Struct("<8sIIQQQQQ")
_TRAILER: Final = struct.Struct("<8sIIQQQQQ")
_CHECK: Final = struct.Struct("<Q")
_CHECKED: Final = ALIGNMENT - _CHECK.size

INDEX_ENTRY: Final = np.dtype([("tick", "<u8"), ("offset", "<u8")])


class FormatError(Exception):
    """Bytes are not what should stand at their place. Never leaves this package: a log says which file and offset."""


class VersionError(FormatError):
    """The segment is of a version this code does not read."""


@dataclass(frozen=True, slots=True)
class Header:
    pubend: int
    base: int
    salt: int
    publishers: int
    forgotten: int
    snapshot_check: int

    @property
    def size(self) -> int:
        """The offset of the first record."""
        return ALIGNMENT + padded(self.publishers * ENTRY.itemsize)


@dataclass(frozen=True, slots=True)
class Record:
    """Where a batch lies, and what its header promises of it."""

    offset: int
    length: int
    rows: int
    first: int
    last: int
    group: int
    check: int

    @property
    def size(self) -> int:
        return ALIGNMENT + padded(self.length)

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Trailer:
    entries: int
    end: int  # of the records
    last: int
    rows: int
    size: int  # of the whole file
    index_check: int


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def padding(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)


def pack_header(pubend: int, base: int, salt: int, snapshot: Entries, forgotten: int) -> bytes:
    """Return the head of a new segment, up to its first record."""
    body = snapshot.tobytes()
    check = xxh3_64_intdigest(body, salt)
    head = _HEADER.pack(SEGMENT_MAGIC, VERSION, len(snapshot), pubend, base, salt, forgotten, check)
    return sealed(head, salt) + body + padding(len(body))


def parse_header(data: Bytes) -> Header:
    if len(data) < ALIGNMENT:
        raise FormatError(f"{len(data)} bytes are too few for a header")
    magic, version, publishers, pubend, base, salt, forgotten, check = _HEADER.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise FormatError("this is not a segment of a pubend's log")
    if version != VERSION:
        raise VersionError(f"the segment has version {version}; this release reads version {VERSION}")
    verify(data, salt, "header")
    return Header(pubend, base, salt, publishers, forgotten, check)


def parse_snapshot(header: Header, data: Bytes) -> Entries:
    """Read the publishers' last ids that stand behind the header."""
    wanted = header.publishers * ENTRY.itemsize
    if len(data) < wanted:
        raise FormatError("the snapshot of publishers is incomplete")
    body = memoryview(data)[:wanted]
    if xxh3_64_intdigest(body, header.salt) != header.snapshot_check:
        raise FormatError("the checksum of the snapshot of publishers is wrong")
    return np.frombuffer(body, ENTRY)


def pack_record(data: Sequence[Bytes], *, rows: int, first: int, last: int, group: int, offset: int, salt: int) -> bytes:
    """Return the header of a record that holds the bytes of `data`, one after the other."""
    check = xxh3_64(seed=salt)
    for part in data:
        check.update(part)
    length = sum(map(len, data))
    return sealed(_RECORD.pack(RECORD_MAGIC, length, rows, first, last, group, offset, check.intdigest()), salt)


def parse_record(data: Bytes, offset: int, salt: int) -> Record:
    """Read the header of the record that stands at `offset` of its file."""
    if len(data) < ALIGNMENT:
        raise FormatError("the header of a record is incomplete")
    magic, length, rows, first, last, group, stated, check = _RECORD.unpack_from(data)
    if magic != RECORD_MAGIC:
        raise FormatError("no record starts here")
    verify(data, salt, "header of a record")
    if stated != offset or first > last or rows == 0 or group > offset:
        raise FormatError("the header of a record contradicts itself")
    return Record(offset, length, rows, first, last, group, check)


def verify_body(record: Record, data: Bytes, salt: int) -> None:
    if xxh3_64_intdigest(data, salt) != record.check:
        raise FormatError("the checksum of a batch is wrong")


def pack_footer(index: Index, *, end: int, last: int, rows: int, salt: int) -> tuple[Trailer, bytes]:
    """Return the trailer that closes a segment whose records end at `end`, and the bytes of index and trailer."""
    body = index.tobytes()
    size = end + padded(len(body)) + ALIGNMENT
    trailer = Trailer(len(index), end, last, rows, size, xxh3_64_intdigest(body, salt))
    head = _TRAILER.pack(TRAILER_MAGIC, trailer.entries, 0, end, last, rows, size, trailer.index_check)
    return trailer, body + padding(len(body)) + sealed(head, salt)


def parse_trailer(data: Bytes, size: int, salt: int) -> Trailer:
    """Read the last 64 bytes of a closed segment of `size` bytes."""
    if len(data) < ALIGNMENT:
        raise FormatError("the trailer is incomplete")
    magic, entries, _, end, last, rows, stated, check = _TRAILER.unpack_from(data)
    if magic != TRAILER_MAGIC:
        raise FormatError("the trailer of a closed segment is missing")
    verify(data, salt, "trailer")
    if stated != size or end + padded(entries * INDEX_ENTRY.itemsize) + ALIGNMENT != size or entries == 0:
        raise FormatError("the trailer contradicts itself")
    return Trailer(entries, end, last, rows, stated, check)


def parse_index(trailer: Trailer, data: Bytes, salt: int) -> Index:
    body = memoryview(data)[: trailer.entries * INDEX_ENTRY.itemsize]
    if len(body) < trailer.entries * INDEX_ENTRY.itemsize or xxh3_64_intdigest(body, salt) != trailer.index_check:
        raise FormatError("the checksum of the index is wrong")
    return np.frombuffer(body, INDEX_ENTRY)


def sealed(head: bytes, salt: int) -> bytes:
    assert len(head) == _CHECKED
    return head + _CHECK.pack(xxh3_64_intdigest(head, salt))


def verify(data: Bytes, salt: int, what: str) -> None:
    view = memoryview(data)
    if xxh3_64_intdigest(view[:_CHECKED], salt) != _CHECK.unpack_from(view, _CHECKED)[0]:
        raise FormatError(f"the checksum of the {what} is wrong")
