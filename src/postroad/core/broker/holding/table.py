"""The holds of all brokers on the logs of this broker's pubends.

The newest hold of each broker counts, by (incarnation, version). One that is new or lower is stored before it is confirmed. One
that rose is stored later, because an older value only keeps more. A hold that is older than the known one of its broker is
refused, and the refusal contains the newer number. So a broker whose numbers fell, for example because its disk was lost, can
continue above it. The numbers of a broker that holds nothing any more are kept in memory for the same reason: an older hold of
it may still be on its way, by another route.

Invariant: nothing above a stored or accepted hold is released, except by the bound on retention, which is reported as a gap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX, leaves_room
from postroad.core.protocol.packets import Hold

HOLD_KEY: Final = "hold/"
HOLDERS_MAX: Final = 4096


class HoldRecord(msgspec.Struct, frozen=True, array_like=True):
    """The newest hold of one broker, as it is stored."""

    incarnation: int
    version: int
    ticks: dict[int, int]  # not `Positions`: its bounds apply to packets only


@dataclass(slots=True)
class Taken:
    """The result of `HoldTable.take`."""

    accepted: bool
    store: bool  # it must be on disk before it is confirmed
    newer: HoldRecord | None = None  # the known hold because of which it was refused


class HoldTable:
    """The holds on the pubends of this broker."""

    def __init__(self) -> None:
        self._records: dict[int, HoldRecord] = {}
        self._dirty: dict[int, None] = {}
        self._unknown: dict[int, None] = {}  # brokers whose record is damaged: nothing is released until they send a hold

    def load(self, key: str, value: bytes) -> None:
        record = msgspec.msgpack.decode(value, type=HoldRecord)
        if record.incarnation >= INCARNATION_MAX or record.version >= COUNT_MAX:
            record = HoldRecord(0, 0, record.ticks)  # impossible numbers: it counts until its broker sends any hold
        self._records[int(key.removeprefix(HOLD_KEY))] = record

    def load_damaged(self, broker: int) -> None:
        """Record that a broker holds something unknown."""
        self._unknown[broker] = None

    def retire(self, broker: int) -> None:
        """Drop the hold of a broker that will never return."""
        if self._records.pop(broker, None) is not None or broker in self._unknown:
            self._dirty[broker] = None
        self._unknown.pop(broker, None)

    def take(self, hold: Hold) -> Taken:
        known = self._records.get(hold.source)
        if known is not None and (known.incarnation, known.version) > (hold.incarnation, hold.version):
            return Taken(accepted=False, store=False, newer=known)
        incarnation, version = (known.incarnation, known.version) if known is not None else (0, 0)
        if not leaves_room(hold.incarnation, incarnation, INCARNATION_MAX) or not leaves_room(hold.version, version, COUNT_MAX):
            return Taken(accepted=False, store=False)
        if known is None and not self._has_room():
            return Taken(accepted=False, store=False)
        before = known.ticks if known is not None else {}
        lowered = any(tick < before.get(pubend, tick + 1) for pubend, tick in hold.ticks.items())
        self._records[hold.source] = HoldRecord(hold.incarnation, hold.version, hold.ticks)
        lowered = lowered or hold.source in self._unknown
        self._unknown.pop(hold.source, None)
        self._dirty[hold.source] = None
        return Taken(accepted=True, store=lowered)

    def _has_room(self) -> bool:
        """Make room for one more broker, if necessary by forgetting one that holds nothing."""
        if len(self._records) < HOLDERS_MAX:
            return True
        idle = next((broker for broker, record in self._records.items() if not record.ticks), None)
        if idle is not None:
            del self._records[idle]
        return idle is not None

    def changes(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return what is not stored yet; the caller stores it."""
        changes: list[tuple[str, bytes | None]] = []
        for broker in self._dirty:
            record = self._records.get(broker)
            keep = record is not None and bool(record.ticks)
            changes.append((f"{HOLD_KEY}{broker}", msgspec.msgpack.encode(record) if keep else None))
        self._dirty = {}
        return tuple(changes)

    def lowest(self, pubend: int) -> int | None:
        """Return the tick after which a pubend is held, or None when nobody holds it."""
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
