"""Reads of this broker's logs that are under way, and what each is for.

A role asks for a stretch of a log with a record that says what the answer is for. `machine.py` hands the answer and that record
to the role that knows its type. What a former life lost is taken out of a read and reported as gone (`lost_ranges`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from postroad.core.broker.context import Context
from postroad.core.broker.lost_ranges import Losses
from postroad.core.protocol.orders import LogRead, ReadLog

READS_MAX: Final = 1024


@dataclass(slots=True)
class LogReads:
    """The reads under way."""

    context: Context
    losses: Losses
    waiting: dict[int, tuple[ReadLog, object]] = field(default_factory=dict)

    def ask(self, order: ReadLog, purpose: object) -> bool:
        """Read a stretch of a log; False when too many reads are under way: ask again later."""
        if len(self.waiting) >= READS_MAX:
            return False
        token = self.context.next_token()
        self.waiting[token] = order, purpose
        part = self.losses.limit(order)
        self.context.orders.append(ReadLog(order.pubend, token, part.lo, part.hi, order.bytes_max))
        return True

    def purpose(self, token: int) -> object | None:
        """Return what a read under way is for."""
        waiting = self.waiting.get(token)
        return None if waiting is None else waiting[1]

    def answered(self, result: LogRead) -> tuple[object, LogRead] | None:
        """Return what a read was for, with the answer; None for one that nobody waits for."""
        order, purpose = self.waiting.pop(result.token, (None, None))
        return None if order is None else (purpose, self.losses.told(order, result))

    def failed(self, token: int) -> None:
        """Forget a read that failed; whoever wants it asks again."""
        self.waiting.pop(token, None)

    def __len__(self) -> int:
        return len(self.waiting)
