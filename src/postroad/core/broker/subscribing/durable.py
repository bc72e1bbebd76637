"""Durable subscriptions: names, cursors, and the broker each is at home.

At its home a durable subscription has a stored record: filter, cursors, version. Everywhere else a flooded `DurableHome`
says where it is; the highest version counts. A move raises the version: the new home floods it when its record is stored and
its holds are confirmed. The former home keeps its record, and with it the hold on the logs, until then.

Every broker stores what it was told, so that after a restart it does not take a known name for a new one. A name it was never
told of may still exist, word of it being on its way: it takes that for new only with a majority of the brokers; see `naming`.

Invariant: at every moment at least one broker holds the logs for a durable subscription that was ever reported active.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.trust import COUNT_MAX
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import DurableHome, Positions
from postroad.types import COUNTER_BITS

DURABLE_KEY: Final = "durable/"
HOME_KEY: Final = "home/"
DURABLES_MAX: Final = 1 << 16
CLOCKS_APART_MS: Final = 60_000  # how far the clocks of two brokers may be apart before a new pubend's first messages are missed


class DurableRecord(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription as its home stores it. What was stored is read again without the bounds of packets.

    It exists since `created_ms` (the clock of the broker where it was created, 0 if not known), and has everything that matches
    after `starts` of each pubend.
    """

    filter: str
    version: int
    cursors: dict[int, int]  # no packet's bounds: what was once stored can be read
    settled: bool = True
    created_ms: int = 0
    starts: dict[int, int] = {}


@dataclass(slots=True)
class Durable:
    """A durable subscription that is, or was, at home here."""

    name: str
    filter: str
    version: int
    cursors: Positions = field(default_factory=dict)
    kept: Positions = field(default_factory=dict)  # the cursors as they are on disk: after a crash it goes on from these
    subscription: int | None = None  # the live subscription, while a client is connected
    moved: bool = False  # another home has taken over and is not settled yet
    stored: bool = False
    settling: bool = False  # the logs of all its pubends are held for it here; that is being stored,
    settled: bool = False  # and was stored: the former home may let go
    damaged: bool = False  # its record cannot be read: the filter is not known, and the cursors are lower bounds
    created_ms: int = 0
    starts: Positions = field(default_factory=dict)  # where it began in each pubend
    known_pubends: Positions = field(default_factory=dict)  # when it was created here, with where it begins if out of reach then
    beginning: bool = False  # it is being created: in the pubends within reach it starts where its interest becomes active

    @property
    def created_tick(self) -> int:
        return self.created_ms << COUNTER_BITS

    @property
    def first_tick(self) -> int:
        """Where it begins in a pubend that was not known when it was created: what comes after belongs to it."""
        return max(0, self.created_ms - CLOCKS_APART_MS) << COUNTER_BITS

    def begins(self, pubend: int) -> tuple[int, int]:
        """Return where it begins in a pubend that was not known, or out of reach, when it was created."""
        return self.first_tick, self.known_pubends.get(pubend, self.first_tick)

    def record(self) -> DurableRecord:
        settled = self.settled or self.settling
        return DurableRecord(self.filter, self.version, self.cursors, settled, self.created_ms, self.starts)


class Durables:
    """The durable subscriptions of one broker, and where the others are."""

    def __init__(self, broker: int, retired: Collection[int] = ()) -> None:
        self._broker = broker
        self._retired = retired
        self.homes: dict[str, DurableHome] = {}
        self.here: dict[str, Durable] = {}
        self._dirty: dict[str, None] = {}
        self._dirty_homes: dict[str, None] = {}

    def load(self, key: str, value: bytes) -> None:
        """Take what was stored: a record of ours, or where another one is at home."""
        if key.startswith(HOME_KEY):
            home = msgspec.msgpack.decode(value, type=DurableHome)
            if home.version < COUNT_MAX:
                self._know(home)
            return
        name = key.removeprefix(DURABLE_KEY)
        record = msgspec.msgpack.decode(value, type=DurableRecord)
        version = record.version if record.version < COUNT_MAX else 1  # no other can be outbid by its home
        durable = Durable(
            name,
            record.filter,
            version,
            dict(record.cursors),
            dict(record.cursors),
            stored=True,
            settled=record.settled,
            created_ms=record.created_ms,
            starts=dict(record.starts),
        )
        self.here[name] = durable
        if durable.settled:
            self._know(self._home(durable))

    def load_damaged(self, name: str, cursors: Positions) -> None:
        """Take a subscription whose record is damaged: it exists, at or after `cursors`, with the filter its client brings."""
        version = self.homes[name].version if name in self.homes else 0
        created_ms = self.homes[name].created_ms if name in self.homes else 0
        durable = Durable(name, "", version, dict(cursors), dict(cursors), stored=True, damaged=True, created_ms=created_ms)
        self.here[name] = durable

    def mend(self, durable: Durable, filter_: str) -> None:
        """Let the client of a damaged record say what its filter is."""
        durable.filter, durable.damaged = filter_, False
        self._dirty[durable.name] = None

    def _know(self, home: DurableHome) -> None:
        known = self.homes.get(home.name)
        if known is None or _rank(home) > _rank(known):
            self.homes[home.name] = home

    def drop_unsettled(self) -> None:
        """After a restart, leave to the former home what never settled here: nobody was told of it."""
        for name in [name for name, durable in self.here.items() if not durable.settled and self.former_home(name) is not None]:
            self.give_up(name)

    def elsewhere(self, name: str) -> int | None:
        """Return the broker a durable subscription is at home, when it is not this one."""
        home = self.homes.get(name)
        return home.broker if home is not None and home.broker not in (0, self._broker) else None

    def is_lost(self, name: str) -> bool:
        """Tell whether this broker is said to be the home of a name of which it has no record: that is lost with its files."""
        home = self.homes.get(name)
        return home is not None and home.broker == self._broker and name not in self.here

    def take_home(
        self, name: str, filter_: str, cursors: Positions, *, created_ms: int = 0, starts: Positions | None = None
    ) -> Durable:
        """Begin to make this broker the home; it becomes so, for all others, with `settle`."""
        versions = [known[name].version for known in (self.homes, self.here) if name in known]
        version = 1 + max(versions, default=0)
        durable = Durable(name, filter_, version, cursors, created_ms=created_ms, starts=dict(starts or {}))
        self.here[name] = durable
        return durable

    def home_brokers(self) -> frozenset[int]:
        """Return every broker that is the home of a durable subscription."""
        return frozenset(home.broker for home in self.homes.values() if home.broker)

    def outbid(self, name: str, version: int) -> None:
        """Take note that a version of a name was used by a home that is gone, or is about to be taken over from.

        Nobody else is told: to them it would be a deletion, and who still holds the logs would let go.
        """
        known = self.homes.get(name)
        if version and (known is None or known.version < version):
            self.homes[name] = DurableHome(name, version, 0, settled=False)
            self._dirty_homes[name] = None

    def told_to_others(self) -> list[DurableHome]:
        """Return what every broker is to know."""
        return [home for home in self.homes.values() if home.settled]

    def former_home(self, name: str) -> int | None:
        """Return the broker that holds the logs for a name until this one has settled; a retired one holds nothing."""
        home = self.elsewhere(name)
        return None if home in self._retired else home

    def _home(self, durable: Durable) -> DurableHome:
        return DurableHome(durable.name, durable.version, self._broker, settled=True, created_ms=durable.created_ms)

    def begin_settling(self, name: str) -> None:
        """Store that the logs of a record are held. After a crash before that, it is the former home's again."""
        self.here[name].settling = True
        self._dirty[name] = None

    def settle(self, name: str) -> DurableHome:
        """Become the home of a record that is stored as settled; the caller floods it."""
        self.here[name].settled = True
        self.homes[name] = self._home(self.here[name])
        return self.homes[name]

    def give_up(self, name: str) -> None:
        """Drop a record of which no client ever heard from us."""
        if self.here.pop(name).stored:
            self._dirty[name] = None

    def reclaim(self, rival: DurableHome) -> Durable:
        """Stay the home against another of the same version."""
        ours = self.here[rival.name]
        ours.version = rival.version + 1
        self.begin_settling(rival.name)
        return ours

    def forget(self, name: str) -> DurableHome:
        """Delete a durable subscription for good."""
        records = [known[name] for known in (self.here, self.homes) if name in known]
        version = 1 + max((record.version for record in records), default=0)
        created_ms = next((record.created_ms for record in records), 0)
        self.here.pop(name, None)
        self._dirty[name] = None
        self._dirty_homes[name] = None  # after a crash others may still say that it is at home here
        self.homes[name] = DurableHome(name, version, 0, settled=True, created_ms=created_ms)
        return self.homes[name]

    def learn(self, home: DurableHome) -> tuple[DurableHome | None, Durable | None]:
        """Take a flooded record; return what is news to others, if any, and the durable subscription that moved away by it."""
        known = self.homes.get(home.name)
        if known is not None:
            home = _after_deletion(known, home)
        if known is not None and _rank(known) >= _rank(home):
            return None, None
        if known is None and len(self.homes) >= DURABLES_MAX:
            return None, None
        self.homes[home.name] = home
        if home.broker != self._broker:
            self._dirty_homes[home.name] = None
        gone = self.here.get(home.name)
        if gone is not None and home.broker == self._broker:
            gone.settled = True  # said before a crash
            gone.version = max(gone.version, home.version) if gone.damaged else gone.version
        if gone is None or home.broker == self._broker:
            return home, None
        gone.moved = True
        if home.settled:
            del self.here[home.name]
            self._dirty[home.name] = None
        return home, gone

    def positions(self, cursors: Positions, brought: Positions) -> Positions:
        """Join the cursors of the home with the positions a client brought: the further one counts."""
        return {p: max(cursors.get(p, 0), brought.get(p, 0)) for p in {**cursors, **brought}}

    def believe(self, durable: Durable, brought: Positions, acknowledged: Positions) -> None:
        """Let a record that never settled go back to where its client is.

        Nobody was told of it, so the client may have been at the settled home since, and gone on from older cursors there if it
        had lost its own. That home holds the logs for these.
        """
        if durable.settled:
            return
        for pubend, tick in brought.items():
            if tick < durable.cursors.get(pubend, 0):
                durable.cursors[pubend] = min(tick, acknowledged.get(pubend, tick))
                durable.kept[pubend] = min(durable.cursors[pubend], durable.kept.get(pubend, tick))
                self._dirty[durable.name] = None

    def moved_on(self, name: str, cursors: Positions) -> None:
        """Note acknowledged positions."""
        durable = self.here.get(name)
        if durable is None:
            return
        for pubend, tick in cursors.items():
            if tick > durable.cursors.get(pubend, -1):
                durable.cursors[pubend] = tick
                self._dirty[name] = None

    def join(self, durable: Durable, pubend: int, tick: int) -> None:
        """Let a durable subscription take part in a pubend from a tick on; its log is held for it from now."""
        if pubend not in durable.cursors:
            durable.cursors[pubend] = tick
            durable.starts.setdefault(pubend, tick)
            self._dirty[durable.name] = None

    def join_all(self, durable: Durable, pubends: Iterable[int]) -> None:
        """Take part in announced pubends: from the creation on in one that was known then, from the first tick in others."""
        if not durable.beginning:
            for pubend in pubends:
                self.join(durable, pubend, durable.known_pubends.get(pubend, durable.first_tick))

    def put_back(self, durable: Durable, pubend: int, tick: int) -> None:
        """Replace a cursor that lies beyond what the pubend has announced."""
        if durable.cursors.get(pubend, 0) > tick:
            durable.cursors[pubend] = tick
            durable.kept[pubend] = min(tick, durable.kept.get(pubend, tick))
            self._dirty[durable.name] = None

    def is_kept(self, name: str, positions: Positions) -> bool:
        """Tell whether cursors at least as far as these are on disk."""
        durable = self.here.get(name)
        return durable is not None and all(durable.kept.get(pubend, -1) >= tick for pubend, tick in positions.items())

    def holds(self) -> Positions:
        """Return the lowest position per pubend that a durable subscription may go on from: what is on disk counts."""
        ticks: Positions = {}
        for durable in self.here.values():
            away = durable.subscription is None or durable.moved
            needed = {**durable.cursors, **durable.kept} if away else durable.kept
            for pubend, tick in needed.items():
                ticks[pubend] = min(tick, ticks.get(pubend, tick))
        return ticks

    def stored(self, changes: tuple[tuple[str, bytes | None], ...]) -> None:
        """Take note of what is on disk now: only so far may a hold rise."""
        for key, value in changes:
            durable = self.here.get(key.removeprefix(DURABLE_KEY)) if key.startswith(DURABLE_KEY) else None
            if durable is None or value is None:
                continue
            record = msgspec.msgpack.decode(value, type=DurableRecord)
            if record.version == durable.version:
                durable.kept = dict(record.cursors)

    def changes(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return what is not stored yet, and take it for stored."""
        changes: list[tuple[str, bytes | None]] = []
        for name in self._dirty:
            durable = self.here.get(name)
            value = None
            if durable is not None:
                value = msgspec.msgpack.encode(durable.record())
                durable.stored = True
            changes.append((DURABLE_KEY + name, value))
        self._dirty = {}
        changes.extend((HOME_KEY + name, msgspec.msgpack.encode(self.homes[name])) for name in self._dirty_homes)
        self._dirty_homes = {}
        return tuple(changes)

    def mark(self, name: str) -> None:
        self._dirty[name] = None

    @property
    def dirty(self) -> bool:
        return bool(self._dirty or self._dirty_homes)


def _rank(home: DurableHome) -> tuple[int, bool, bool, int, int]:
    """Order what brokers say of one name: the newest version counts; of two equal ones, the older creation, the same everywhere.

    A broker that knew nobody yet may have created a name that exists: its record must not take the place of the real one.
    """
    return home.version, home.settled, home.broker != 0, -home.created_ms, home.broker


def _after_deletion(known: DurableHome, home: DurableHome) -> DurableHome:
    """Return what counts of two records: a deletion ends its creation for good, also where that has moved on meanwhile.

    The home that deleted it may not have heard of a move, whose version is then as high or higher.
    """
    one_is_deletion = (known.broker == 0) != (home.broker == 0)
    if not one_is_deletion or not home.created_ms or home.created_ms != known.created_ms:
        return home
    deletion, other = (known, home) if known.broker == 0 else (home, known)
    if deletion.version > other.version:
        return home
    return DurableHome(home.name, other.version + 1, 0, settled=True, created_ms=home.created_ms)


@dataclass(slots=True)
class Move:
    """A client waits here for the former home of its durable subscription to answer."""

    link: LinkId
    packet: int
    handle: int
    filter: str
    name: str
    positions: Positions
    acknowledged: Positions
    version: int
    deadline: float
    earliest: bool
