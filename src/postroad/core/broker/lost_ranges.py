"""Ranges of hosted pubends that were announced before this broker lost its files, so that their rows are lost.

Each range is stored. Every read of the log leaves it out and reports it as a gap, never as silence.

Invariant: the ranges of a pubend are disjoint and ascend. When there are too many, two are merged into one that contains both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from postroad.core.protocol.orders import LogRead, ReadLog

LOST_KEY: Final = "lost/"
RANGES_MAX: Final = 64  # per pubend; more are merged


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """The ticks in (lo, hi] were announced and their rows are lost; when and in which incarnation that was found."""

    lo: int
    hi: int
    incarnation: int
    wall_ms: int


@dataclass(slots=True)
class Losses:
    """The lost ranges by pubend."""

    ranges: dict[int, list[Loss]] = field(default_factory=dict)

    def load(self, key: str, value: bytes) -> None:
        self.ranges[int(key.removeprefix(LOST_KEY))] = msgspec.msgpack.decode(value, type=list[Loss])

    def add(self, pubend: int, loss: Loss) -> tuple[str, bytes]:
        """Add a lost range; return the record to store."""
        ranges: list[Loss] = []
        for each in sorted([*self.ranges.get(pubend, ()), loss], key=lambda one: one.lo):
            if ranges and (each.lo <= ranges[-1].hi or len(ranges) >= RANGES_MAX):
                last = ranges[-1]
                ranges[-1] = Loss(last.lo, max(last.hi, each.hi), each.incarnation, each.wall_ms)
            else:
                ranges.append(each)
        self.ranges[pubend] = ranges
        return f"{LOST_KEY}{pubend}", msgspec.msgpack.encode(ranges)

    def contains(self, pubend: int, loss: Loss) -> bool:
        return any(each.lo <= loss.lo and loss.hi <= each.hi for each in self.ranges.get(pubend, ()))

    def end_after(self, pubend: int, tick: int) -> int:
        """Return the end of the lost range that contains the tick after this one, 0 if there is none."""
        return next((each.hi for each in self.ranges.get(pubend, ()) if each.lo <= tick < each.hi), 0)

    def limit(self, order: ReadLog) -> ReadLog:
        """Return the part of a read up to the next lost range; if it begins inside one, the part after that."""
        lo = self.end_after(order.pubend, order.lo) or order.lo
        begins = [each.lo for each in self.ranges.get(order.pubend, ()) if lo < each.lo < order.hi]
        return replace(order, lo=lo, hi=max(min(begins, default=order.hi), lo))

    def told(self, order: ReadLog, result: LogRead) -> LogRead:
        """Return the answer to a read, with the lost range at its beginning as released."""
        end = self.end_after(order.pubend, order.lo)
        return replace(result, hi=max(result.hi, end), released=max(result.released, end)) if end else result

    def __iter__(self) -> Iterator[tuple[int, Loss]]:
        return ((pubend, loss) for pubend, ranges in sorted(self.ranges.items()) for loss in ranges)


def lost_ranges(metadata: Mapping[str, bytes]) -> Losses:
    """Read the lost ranges from a broker's metadata."""
    losses = Losses()
    for key, value in metadata.items():
        if key.startswith(LOST_KEY):
            losses.load(key, value)
    return losses
