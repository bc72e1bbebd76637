"""The chain of a broker's track files: a file that was removed or rewritten behind the broker's back is noticed.

Each file carries the name and the digest of the one before it; copies of unfinished elements are not part of the chain. A record
beside the directory names the newest file, so that the end of the chain cannot be cut off, and the last one that was dropped by
age or size, so that its beginning cannot. A file that replaces others keeps the digests that its followers may name, and says
where the chain was broken already. A broker that starts and finds the end of the chain missing says so in its first file.

The record is written after the file, so after a crash it may name the one before the newest. Files of releases that knew no
chain carry no digests; they are read, and an audit says that they are not chained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, Protocol

import msgspec

CHAIN_SUFFIX: Final = ".chain"
VERSION: Final = 1
STANDS_MAX: Final = 64  # digests that a file stands for: one more each time it is replaced
BROKEN_MAX: Final = 64  # breaks that a file tells of


class ChainEnds(msgspec.Struct, frozen=True):
    """The record beside a directory of tracks: names and a digest, empty where there is none."""

    version: int
    broker: int
    newest: str
    digest: str
    dropped: str = ""


class Link(Protocol):
    """What the head of a file says of the chain."""

    @property
    def previous(self) -> str: ...

    @property
    def previous_digest(self) -> str: ...

    @property
    def stands_for(self) -> Sequence[str]: ...

    @property
    def broken(self) -> Sequence[str]: ...


def digest_text(digest: int) -> str:
    """Return a digest as files and records name it."""
    return f"{digest:016x}"


def encode_ends(ends: ChainEnds) -> bytes:
    return msgspec.json.encode(ends) + b"\n"


def decode_ends(data: bytes | None) -> ChainEnds | None:
    """Read the record; None if there is none that makes sense."""
    if not data:
        return None
    try:
        ends = msgspec.json.decode(data, type=ChainEnds)
    except msgspec.MsgspecError:
        return None
    return ends if ends.version == VERSION else None


def is_named(wanted: str, digest: str, head: Link) -> bool:
    """Say whether a file is the one that a digest names, or stands for it."""
    return wanted == digest or wanted in head.stands_for


def stands_for(digest: str, head: Link) -> tuple[str, ...]:
    """Return what a file stands for that takes the place of this one: the oldest names are those that followers use."""
    return (digest, *head.stands_for)[-STANDS_MAX:]


def breaks(files: Sequence[tuple[str, str, Link]]) -> Iterator[str]:
    """Yield what is wrong with the chain of neighbouring files: (name, digest, head) each, oldest first."""
    for _, _, head in files:
        yield from head.broken
    for (former, digest, before), (name, _, head) in pairwise(files):
        if head.previous_digest and not is_named(head.previous_digest, digest, before):
            yield f"{name} names another {head.previous} as its predecessor than {former}"
