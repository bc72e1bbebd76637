"""Two marks beside the segments of a log, for those who read its files beside the broker.

`durable` says up to where the log is durable, `released` up to where its oldest segments were removed on purpose. A log that
begins later than its `released` mark says has lost segments in another way.

After every sync the log writes into the file `durable` where the synced records of its last segment end. The mark itself is not
synced: it may be missing or old after a power cut, which makes it cautious, not wrong. Its check is seeded with the segment's
salt, so a mark half written, or one of another segment, does not pass.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from postroad.storage.segment.format import ALIGNMENT, Bytes, FormatError, sealed, verify

MARK_NAME: Final = "durable"
RELEASED_NAME: Final = "released"
RELEASED_MAGIC: Final = b"PRreleas"
MARK_MAGIC: Final = b"PRdurabl"
_MARK: Final = struct.Struct("<8sQQQQQQ")


@dataclass(frozen=True, slots=True)
class Mark:
    """Of the segment that follows on tick `base`, everything before offset `end` is durable: `rows` up to tick `last`."""

    base: int
    end: int
    last: int
    rows: int


def pack_mark(mark: Mark, salt: int) -> bytes:
    return sealed(_MARK.pack(MARK_MAGIC, mark.base, mark.end, mark.last, mark.rows, 0, 0), salt)


def parse_mark(data: Bytes, salt: int) -> Mark:
    if len(data) != ALIGNMENT:
        raise FormatError("the mark is incomplete")
    magic, base, end, last, rows, _, _ = _MARK.unpack_from(data)
    if magic != MARK_MAGIC:
        raise FormatError("this is not a mark")
    verify(data, salt, "mark")
    return Mark(base, end, last, rows)


def pack_released(pubend: int, tick: int) -> bytes:
    """Say that segments up to this tick were removed on purpose; the check is seeded with the pubend, as it outlives segments."""
    return sealed(_MARK.pack(RELEASED_MAGIC, tick, 0, 0, 0, 0, 0), pubend)


def parse_released(data: Bytes, pubend: int) -> int:
    if len(data) != ALIGNMENT:
        raise FormatError("the mark is incomplete")
    magic, tick, *_ = _MARK.unpack_from(data)
    if magic != RELEASED_MAGIC:
        raise FormatError("this is not a mark of a release")
    verify(data, pubend, "mark")
    return int(tick)
