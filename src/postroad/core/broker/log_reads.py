"""The pending reads of this broker's logs, and the purpose of each.

A role requests a range of a log together with a record that states the purpose. `machine.py` passes the answer and that record to
the role that knows its type. Ranges that a former life lost are excluded from the read and reported as released (`lost_ranges`).
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
    """The pending reads."""

    context: Context
    losses: Losses
    waiting: dict[int, tuple[ReadLog, object]] = field(default_factory=dict)

    def ask(self, order: ReadLog, purpose: object) -> bool:
        """Read a range of a log; False when too many reads are pending: the caller tries again later."""
        if len(self.waiting) >= READS_MAX:
            return False
        token = self.context.next_token()
        self.waiting[token] = order, purpose
        part = self.losses.limit(order)
        self.context.orders.append(ReadLog(order.pubend, token, part.lo, part.hi, order.bytes_max))
        return True

    def purpose(self, token: int) -> object | None:
        """Return the purpose of a pending read."""
        waiting = self.waiting.get(token)
        return None if waiting is None else waiting[1]

    def answered(self, result: LogRead) -> tuple[object, LogRead] | None:
        """Return the purpose of a finished read, with the answer; None for a read that nobody waits for."""
        order, purpose = self.waiting.pop(result.token, (None, None))
        return None if order is None else (purpose, self.losses.told(order, result))

    def failed(self, token: int) -> None:
        """Forget a read that failed; the role that needs it repeats it later."""
        self.waiting.pop(token, None)

    def __len__(self) -> int:
        return len(self.waiting)
