"""Ranges of hosted pubends that a former life of this broker decided and whose rows are lost with its files.

Each range is stored, and every read of the log goes around it: what lies in it is told as a gap, never as silence.

Invariant: the ranges of a pubend are disjoint and ascend; joining two makes a range that contains both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from postroad.core.protocol.orders import LogRead, ReadLog

LOST_KEY: Final = "lost/"
RANGES_MAX: Final = 64  # of a pubend; more are joined


class Loss(msgspec.Struct, frozen=True, array_like=True):
    """The ticks in (lo, hi] were announced by a former life, and their rows are gone; found in an incarnation, at a time."""

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
        """Note a lost range; return what must be stored."""
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
        """Return where the lost range that begins at or before a tick ends, 0 when the tick is in none."""
        return next((each.hi for each in self.ranges.get(pubend, ()) if each.lo <= tick < each.hi), 0)

    def limit(self, order: ReadLog) -> ReadLog:
        """Return the part of a read that ends before the next lost range, or begins after the one it begins in."""
        lo = self.end_after(order.pubend, order.lo) or order.lo
        begins = [each.lo for each in self.ranges.get(order.pubend, ()) if lo < each.lo < order.hi]
        return replace(order, lo=lo, hi=max(min(begins, default=order.hi), lo))

    def told(self, order: ReadLog, result: LogRead) -> LogRead:
        """Return the answer to a read with what is lost at its beginning as gone."""
        end = self.end_after(order.pubend, order.lo)
        return replace(result, hi=max(result.hi, end), released=max(result.released, end)) if end else result

    def __iter__(self) -> Iterator[tuple[int, Loss]]:
        return ((pubend, loss) for pubend, ranges in sorted(self.ranges.items()) for loss in ranges)


def lost_ranges(metadata: Mapping[str, bytes]) -> Losses:
    """Return what a broker's metadata says of lost ranges."""
    losses = Losses()
    for key, value in metadata.items():
        if key.startswith(LOST_KEY):
            losses.load(key, value)
    return losses
