"""Reading ranges of pubends, seen from the client: one question at a time per range, each from where the last answer ended.

The broker remembers nothing between two questions, so a lost connection is no more than a question asked again. The next
question leaves when the answer to the last has come and the application has taken all but a little of what it brought; so a
range of any length needs a bounded amount of memory.

Invariant: the pieces told of a range follow on each other and hold every matching row of (lo, position] once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import ListPubends, Packet, Pubends, RangeRead, ReadRange
from postroad.core.session.events import Event, PubendsListed, RangeFailed, RangePiece
from postroad.errors import GapError, PostroadError, ProtocolViolationError

AHEAD_MAX: Final = 8  # pieces told and not yet taken, beyond which no question leaves
UNDECIDED_S: Final = 0.1  # until it is asked again for ticks that are not decided yet


@dataclass(slots=True)
class _Range:
    """A range that is being read; a list has a `listing` and no `pubend`."""

    key: int
    pubend: int | None
    filter: str
    position: int
    hi: int
    bare: bool
    listing: ListPubends | None = None
    untaken: int = 0
    packet: int = 0  # of the question under way
    tries: int = 0
    retry_at: float | None = None


class SessionReads:
    """All ranges of a session. `send` returns the packet id of a question, 0 when there is no broker now."""

    def __init__(self, send: Callable[[Packet], int], tell: Callable[[Event], None], delay: Callable[[int], float]) -> None:
        self._send = send
        self._tell = tell
        self._delay = delay
        self._ranges: dict[int, _Range] = {}
        self._packets: dict[int, _Range] = {}

    def read(self, key: int, pubend: int, filter_text: str, lo: int, hi: int, *, bare: bool) -> None:
        self._begin(_Range(key, pubend, filter_text, lo, hi, bare))

    def list_pubends(self, key: int, listing: ListPubends) -> None:
        self._begin(_Range(key, None, "", 0, 0, bare=False, listing=listing))

    def taken(self, key: int) -> None:
        """Note that the application has taken a piece."""
        found = self._ranges.get(key)
        if found is not None:
            found.untaken -= 1
            self._ask(found)

    def end(self, key: int) -> None:
        ended = self._ranges.pop(key, None)
        if ended is not None:
            self._packets.pop(ended.packet, None)

    def connected(self) -> None:
        for each in self._ranges.values():
            self._ask(each)

    def disconnected(self) -> None:
        """Take in that no question will be answered any more; they are asked again at the next broker."""
        self._packets.clear()
        for each in self._ranges.values():
            each.packet, each.retry_at = 0, None

    def answered(self, message: RangeRead, batch: Batch | None, packet: int, now: float) -> None:
        found = self._packets.get(packet)
        if found is None or found.pubend != message.pubend:
            return
        if message.lo != found.position or message.hi > max(found.hi, found.position) or message.hi < message.lo:
            raise ProtocolViolationError(f"a read of pubend {message.pubend:x} was answered for another position")
        if not message.more:
            self._packets.pop(packet)
            found.packet = 0
        if message.released > found.position:
            self._fail(found, GapError(message.pubend, found.position, min(message.released, found.hi)))
            return
        if message.hi == found.position:
            found.retry_at = now + UNDECIDED_S
            return
        found.position, found.tries, found.untaken = message.hi, 0, found.untaken + 1
        self._tell(RangePiece(found.key, message.hi, batch))
        if found.position >= found.hi:
            self.end(found.key)
        else:
            self._ask(found)

    def listed(self, message: Pubends, packet: int) -> None:
        found = self._packets.get(packet)
        if found is not None and found.pubend is None:
            self.end(found.key)
            spans, unreachable, durables = tuple(message.spans), tuple(message.unreachable), tuple(message.durables)
            self._tell(PubendsListed(found.key, spans, unreachable, durables, message.more))

    def refused(self, packet: int, error: PostroadError, now: float) -> None:
        found = self._packets.pop(packet, None)
        if found is None:
            return
        found.packet = 0
        if not error.retryable:
            self._fail(found, error)
            return
        found.retry_at = now + self._delay(found.tries)
        found.tries += 1
        self._tell(RangeFailed(found.key, error))

    def wake(self, now: float) -> None:
        for each in list(self._ranges.values()):
            if each.retry_at is not None and each.retry_at <= now:
                each.retry_at = None
                self._ask(each)

    def deadlines(self) -> list[float | None]:
        return [each.retry_at for each in self._ranges.values()]

    # --- inside ---

    def _begin(self, begun: _Range) -> None:
        self._ranges[begun.key] = begun
        self._ask(begun)

    def _ask(self, wanted: _Range) -> None:
        if wanted.packet or wanted.retry_at is not None or wanted.untaken > AHEAD_MAX:
            return
        if wanted.pubend is None:
            assert wanted.listing is not None
            wanted.packet = self._send(wanted.listing)
        else:
            question = ReadRange(wanted.pubend, wanted.filter, wanted.position, wanted.hi, wanted.bare)
            wanted.packet = self._send(question)
        if wanted.packet:
            self._packets[wanted.packet] = wanted

    def _fail(self, found: _Range, error: PostroadError) -> None:
        self.end(found.key)
        self._tell(RangeFailed(found.key, error))
