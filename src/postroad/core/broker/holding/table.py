"""The holds of other brokers on the logs of this broker's pubends.

The newest hold of each broker counts, by (incarnation, version). One that is new or lower is stored before it is confirmed; one
that rose is stored when convenient, since an older value only keeps more. A hold that is older than what is known of its broker
is refused with the newer one's number, so that a broker whose numbers fell, as with a lost disk, can outbid it.

Invariant: nothing above any stored or accepted hold is released, except by the bound on retention, which is told as a gap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX
from postroad.core.protocol.packets import Hold

HOLD_KEY: Final = "hold/"
HOLDERS_MAX: Final = 4096


class HoldRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the newest hold of one broker says, as it is stored."""

    incarnation: int
    version: int
    ticks: dict[int, int]  # no packet's bounds: what was once stored can be read


@dataclass(slots=True)
class Taken:
    """How the table answered a hold."""

    accepted: bool
    store: bool  # it must be durable before it is confirmed
    newer: HoldRecord | None = None  # what it was refused for


class HoldTable:
    """The holds on the pubends of this broker."""

    def __init__(self) -> None:
        self._records: dict[int, HoldRecord] = {}
        self._dirty: dict[int, None] = {}
        self._unknown: dict[int, None] = {}  # brokers whose hold is damaged: nothing is released until they tell a new one

    def load(self, key: str, value: bytes) -> None:
        record = msgspec.msgpack.decode(value, type=HoldRecord)
        if record.incarnation >= INCARNATION_MAX or record.version >= COUNT_MAX:  # it keeps the log, but holds up no other
            record = HoldRecord(0, 0, record.ticks)
        self._records[int(key.removeprefix(HOLD_KEY))] = record

    def load_damaged(self, broker: int) -> None:
        """Take note that a broker holds something, and nobody knows what."""
        self._unknown[broker] = None

    def retire(self, broker: int) -> None:
        """Let go of what a broker holds that will never come back."""
        if self._records.pop(broker, None) is not None or broker in self._unknown:
            self._dirty[broker] = None
        self._unknown.pop(broker, None)

    def take(self, hold: Hold) -> Taken:
        known = self._records.get(hold.source)
        if known is not None and (known.incarnation, known.version) > (hold.incarnation, hold.version):
            return Taken(accepted=False, store=False, newer=known)
        if known is None and len(self._records) >= HOLDERS_MAX:
            return Taken(accepted=False, store=False)
        before = known.ticks if known is not None else {}
        lowered = any(tick < before.get(pubend, tick + 1) for pubend, tick in hold.ticks.items())
        self._records[hold.source] = HoldRecord(hold.incarnation, hold.version, hold.ticks)
        lowered = lowered or hold.source in self._unknown
        self._unknown.pop(hold.source, None)
        self._dirty[hold.source] = None
        return Taken(accepted=True, store=lowered)

    def changes(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return what is not stored yet, and take it for stored."""
        changes: list[tuple[str, bytes | None]] = []
        for broker in self._dirty:
            record = self._records.get(broker)
            if record is not None and not record.ticks:
                del self._records[broker]
            keep = record is not None and bool(record.ticks)
            changes.append((f"{HOLD_KEY}{broker}", msgspec.msgpack.encode(record) if keep else None))
        self._dirty = {}
        return tuple(changes)

    def lowest(self, pubend: int) -> int | None:
        """Return the tick everything of a pubend is held after, or None when nobody holds it."""
        if self._unknown:
            return 0
        ticks = [r.ticks[pubend] for r in self._records.values() if pubend in r.ticks]
        return min(ticks, default=None)

    def holders(self) -> tuple[int, ...]:
        return tuple(self._records)

    def is_held_by(self, brokers: Collection[int], pubend: int) -> bool:
        """Tell whether each of these brokers holds a pubend."""
        return all(broker in self._records and pubend in self._records[broker].ticks for broker in brokers)

    def __len__(self) -> int:
        return len(self._records)
