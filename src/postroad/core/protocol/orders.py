"""What a broker machine tells its driver to do, and the facts a driver reports back.

Orders leave through `Broker.outputs()` in order. A driver may carry out `Append`, `Store` and `ReadLog` in the background: it
reports each with the fact named beside it, and the machine sends nothing that depends on a write before that fact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import Packet
from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import PostroadError

LinkId: TypeAlias = int  # a connection, to a client or a neighbour; never used twice by one driver


def is_inner(link: LinkId) -> bool:
    """Tell whether a link exists only inside the machine: it is that of the members of a shared subscription together."""
    return link < 0


# --- orders --------------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):  # one per frame: a frozen dataclass takes six times as long to make
    """Send a packet. `data` frames may be dropped when a neighbour's backlog is full, others never."""

    link: LinkId
    message: Packet
    batch: Batch | None = None
    data: bool = False
    packet: int = 0  # the packet id of the request this answers


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a request with an error packet; the link stays up unless `close`."""

    link: LinkId
    packet: int
    error: PostroadError
    close: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Make batches durable at the end of a pubend's log, then report `Appended(pubend, token)`. One at a time per pubend."""

    pubend: int
    token: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Write metadata durably, all or nothing, then report `Stored(token)`. A value of None deletes the key."""

    token: int
    changes: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read (lo, hi] of a pubend's log, at most about `bytes_max` (but at least one batch), then report `LogRead`."""

    pubend: int
    token: int
    lo: int
    hi: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReleaseLog:
    """Segments that end at or before `tick` may be deleted."""

    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Tell the operator, in the log of the broker."""

    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class LimitBandwidth:
    """Send a neighbour no more bytes per second than this, on this link and on later ones; 0: no limit."""

    broker: int
    bytes_per_s: int


Order: TypeAlias = Send | Refuse | Append | Store | ReadLog | ReleaseLog | Notice | LimitBandwidth


# --- facts ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A neighbour was identified on this link."""

    link: LinkId
    broker: int
    incarnation: int
    cost: int = 1


@dataclass(frozen=True, slots=True)
class ClientUp:
    """A client was identified on this link; `name` is what it calls itself, `rights` what it may do."""

    link: LinkId
    name: str = ""
    rights: Rights = OPEN


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection is gone, whoever was there."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Congested:
    """The backlog of a client's link passed its high mark: send it no more rows until `Drained`."""

    link: LinkId


@dataclass(frozen=True, slots=True)
class Drained:
    link: LinkId


@dataclass(frozen=True, slots=True)
class Appended:
    pubend: int
    token: int


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The log could not be written (a full disk); nothing of the append is durable."""

    pubend: int
    token: int
    error: PostroadError


@dataclass(frozen=True, slots=True)
class Stored:
    token: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Ticks in (lo, hi] of a log were durable and cannot be read any more, and why."""

    lo: int
    hi: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogRead:
    """The answer to `ReadLog`: everything in (lo, hi] of the log is in `batches`; ticks up to `released` are gone.

    So are the ticks in `lost`, which are in order and lie between those of the rows.
    """

    pubend: int
    token: int
    hi: int
    batches: tuple[Batch, ...]
    released: int
    lost: tuple[Lost, ...] = ()

    def stretches(self, lo: int) -> Iterator[tuple[int, int, list[Batch], int]]:
        """Cut what was read from `lo` on where something is lost: yield (lo, hi, rows, up to where what is in it is gone)."""
        position, released = lo, self.released
        for lost in self.lost:
            if lost.lo > position:
                yield position, lost.lo, self._rows(position, lost.lo), released
            yield max(lost.lo, position), lost.hi, [], lost.hi
            position, released = lost.hi, 0
        if position < self.hi or not self.lost:
            yield position, self.hi, self._rows(position, self.hi), released

    def _rows(self, lo: int, hi: int) -> list[Batch]:
        if not self.lost:
            return list(self.batches)
        return [found for batch in self.batches if len(found := batch.within(lo, hi))]


@dataclass(frozen=True, slots=True)
class LogReadFailed:
    """A `ReadLog` could not be carried out; it may be asked for again."""

    pubend: int
    token: int


@dataclass(frozen=True, slots=True)
class LogReleased:
    """Everything up to `tick` is gone from the log: after `ReleaseLog`, or because retention passed its bound."""

    pubend: int
    tick: int


@dataclass(frozen=True, slots=True)
class Observed:
    """Whoever observes the broker has recorded its pubends durably up to these ticks; see `BrokerConfig.observed`."""

    ticks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CpuUsed:
    """The share of the time since the last such fact in which the broker used a CPU or waited for one, from 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class MemoryAvailable:
    """How much memory the machine still has for this broker."""

    size: int


Fact: TypeAlias = (
    LinkUp
    | ClientUp
    | LinkLost
    | Congested
    | Drained
    | Appended
    | AppendFailed
    | Stored
    | LogRead
    | LogReadFailed
    | LogReleased
    | Observed
    | CpuUsed
    | MemoryAvailable
)


@dataclass(frozen=True, slots=True)
class PubendState:
    """What a pubend's log and metadata say at the start of a broker."""

    pubend: int
    last_tick: int = 0  # of the last durable row
    released: int = 0
    publishers: tuple[tuple[int, int], ...] = ()  # (publisher, highest tick of its ids)
    forgotten: int = 0  # the highest tick of an id of a publisher that is no longer listed


@dataclass(frozen=True, slots=True)
class BrokerState:
    """What a broker finds on its disk when it starts."""

    broker: int
    incarnation: int
    pubends: tuple[PubendState, ...]
    metadata: tuple[tuple[str, bytes], ...] = ()
    damaged: tuple[str, ...] = ()  # keys of records that are there and cannot be trusted; "": one whose key is damaged, too
