"""Holds: what keeps a pubend's log from being released.

At a subscriber-hosting broker (`HoldKeeper`): the lowest position per pubend that any subscription, any durable one that is
away, and any client that may still come back needs. It is sent to each pubend's broker with a rising version; a lowered or
new one is awaited.

At the pubend's broker (`HoldTable`): the newest hold of each broker, by (incarnation, version). One that is new or lower is
stored before it is confirmed; one that rose is stored when convenient, since an older value only keeps more.

A hold that is older than what is known of its broker is refused with the newer one's number, so that a broker whose numbers
fell, as with a lost disk, can outbid it.

Invariant: nothing above any stored or accepted hold is released, except by the bound on retention, which is told as a gap.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX
from postroad.core.protocol.packets import Hold, Positions

HOLD_KEY: Final = "hold/"
FLOOR_KEY: Final = "hold-floor"
HOLDERS_MAX: Final = 4096
AWAY_MAX: Final = 4096


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


class HoldKeeper:
    """The holds this broker has on others' pubends."""

    def __init__(self, incarnation: int, floor: Positions, grace_until: float) -> None:
        self.incarnation = incarnation
        self.version = 0
        self._sent: dict[int, Positions] = {}  # broker -> ticks
        self._sent_version: dict[int, int] = {}
        self._confirmed: dict[int, int] = {}  # broker -> version
        self._released: Positions = {}
        self._news: dict[int, None] = {}  # brokers that have confirmed something since `take_news`
        self._away: list[tuple[float, Positions]] = []
        if floor:
            self._away.append((grace_until, dict(floor)))

    def keep_until(self, expiry: float, positions: Positions) -> None:
        """Hold for a client that may come back."""
        if not positions:
            return
        self._away.append((expiry, dict(positions)))
        if len(self._away) > AWAY_MAX:
            self._away = [(max(until for until, _ in self._away), self.lowest())]

    def expire(self, now: float) -> None:
        self._away = [entry for entry in self._away if entry[0] > now]

    def lowest(self, *holders: Positions) -> Positions:
        """Join what live subscriptions and durable ones need with what is kept for those who are away."""
        ticks: Positions = {}
        for positions in (*holders, *(p for _, p in self._away)):
            for pubend, tick in positions.items():
                ticks[pubend] = min(tick, ticks.get(pubend, tick))
        return ticks

    def to_send(self, broker: int, ticks: Positions, *, again: bool = False) -> int | None:
        """Return the version to send a broker its ticks with, or None when it has them."""
        unconfirmed = self._confirmed.get(broker, 0) < self._sent_version.get(broker, 0)
        if self._sent.get(broker) == ticks and not (again and unconfirmed):
            return None
        self.version += 1
        self._sent[broker] = dict(ticks)
        self._sent_version[broker] = self.version
        return self.version

    def holds_already(self, broker: int, positions: Positions) -> bool:
        """Tell whether what a broker was told last keeps these positions."""
        sent = self._sent.get(broker, {})
        return all(pubend in sent and sent[pubend] <= tick for pubend, tick in positions.items())

    def sent_version(self, broker: int) -> int:
        return self._sent_version.get(broker, 0)

    def adopt(self, incarnation: int, version: int) -> None:
        """Go on under a number that is newer than any before: everybody is told again."""
        self.incarnation = incarnation
        self.version = max(self.version, version)
        for broker in list(self._sent):
            self.tell_again(broker)

    def tell_again(self, broker: int) -> None:
        """Let a broker that may have forgotten our hold be told it again, also that we hold nothing any more.

        A hold that rose is confirmed before it is stored: after a crash the lower one counts again.
        """
        self._sent.pop(broker, None)

    def confirmed(self, broker: int, incarnation: int, version: int, released: Positions) -> None:
        if incarnation == self.incarnation and version <= self._sent_version.get(broker, 0):
            self._released.update(released)
            self._confirmed[broker] = max(version, self._confirmed.get(broker, 0))
            self._news[broker] = None

    def take_news(self) -> list[tuple[int, int]]:
        """Return the brokers that have confirmed a hold since the last time, and the version each has confirmed."""
        news, self._news = self._news, {}
        return [(broker, self._confirmed[broker]) for broker in news]

    def released(self, pubend: int) -> int:
        """Return what was gone of a pubend when its broker last confirmed a hold."""
        return self._released.get(pubend, 0)

    def is_confirmed(self, broker: int, version: int) -> bool:
        return self._confirmed.get(broker, 0) >= version
