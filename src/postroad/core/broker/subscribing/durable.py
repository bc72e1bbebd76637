"""Durable subscriptions: their names, their cursors, and the home broker of each.

At its home a durable subscription has a stored record: filter, cursors, version. All other brokers know the home from a flooded
`DurableHome`; the highest version counts. A move raises the version. The new home floods it when its record is stored and its
holds are confirmed. Until then the former home keeps its record, and with it the hold on the logs.

Every broker stores the homes it knows, so that after a restart it does not take a known name for a new one. A name that a broker
does not know may exist all the same, because the flooded record may not have arrived. It is created only with the votes of a
majority of the brokers; see `naming`.

Invariant: at every moment at least one broker holds the logs for a durable subscription that was ever reported active.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.trust import COUNT_MAX, leaves_room
from postroad.core.protocol.packets import DurableHome, Positions, Subscribe
from postroad.core.protocol.rights import owner_of
from postroad.types import COUNTER_BITS

DURABLE_KEY: Final = "durable/"
HOME_KEY: Final = "home/"
DURABLES_MAX: Final = 1 << 16
"""Names that a broker knows, of all brokers together. Deleted ones are forgotten first, the oldest of them before others."""
CLOCKS_APART_MS: Final = 60_000  # if two brokers' clocks differ by more, the first messages of a new pubend may be missed


class DurableRecord(msgspec.Struct, frozen=True, array_like=True):
    """A durable subscription as its home stores it. Stored records are read without the bounds that packets have.

    It was created at `created_ms` (by the clock of the broker where it was created; 0 if not known). Every matching message after
    `starts` of each pubend belongs to it. Its client may have been told where it starts in the `begun` ones. In the `lost` ones a
    former home lost its cursor, and the client has not shown yet that it knows of that gap.

    A shared one has members. In `unfinished` stands, for each pubend in which they acknowledged rows above the cursor, the
    highest of those and then the rows below it that are not acknowledged.
    """

    filter: str
    version: int
    cursors: dict[int, int]  # not `Positions`: its bounds apply to packets only
    settled: bool = True
    created_ms: int = 0
    starts: dict[int, int] = {}
    begun: list[int] = []
    lost: list[int] = []
    shared: bool = False
    key: str = ""
    unfinished: dict[int, list[int]] = {}


@dataclass(slots=True)
class Durable:
    """A durable subscription that is, or was, at home here."""

    name: str
    filter: str
    version: int
    cursors: Positions = field(default_factory=dict)
    kept: Positions = field(default_factory=dict)  # the cursors on disk, from which it continues after a crash
    subscription: int | None = None  # the live subscription, while a client is connected
    moved: bool = False  # another broker takes over as its home and has not settled yet
    stored: bool = False  # a record of it is on disk, or on its way there
    settling: bool = False  # this broker holds the logs of all its pubends; that is being stored,
    settled: bool = False  # and was stored: the former home may end its holds
    damaged: bool = False  # its record cannot be read: the filter is not known, and the cursors are lower bounds
    created_ms: int = 0
    starts: Positions = field(default_factory=dict)  # where it began in each pubend
    begun: dict[int, None] = field(default_factory=dict)  # pubends where its client may have been told the start
    lost: dict[int, None] = field(default_factory=dict)  # pubends in which its client gets a gap: its cursor was lost
    known_pubends: Positions = field(default_factory=dict)  # pubends known at its creation here -> its start if unreachable
    beginning: bool = False  # it is being created: in reachable pubends it starts where its interest becomes active
    shared: bool = False  # it has members, see `sharing`
    key: str = ""  # the attribute that orders what its members get
    unfinished: dict[int, list[int]] = field(default_factory=dict)  # as in the record

    @property
    def created_tick(self) -> int:
        return self.created_ms << COUNTER_BITS

    @property
    def first_tick(self) -> int:
        """Its start in a pubend that was not known when it was created."""
        return max(0, self.created_ms - CLOCKS_APART_MS) << COUNTER_BITS

    def begins(self, pubend: int) -> tuple[int, int]:
        """Return its starts in a pubend that was not known, or not reachable, when it was created."""
        return self.first_tick, self.known_pubends.get(pubend, self.first_tick)

    def record(self) -> DurableRecord:
        return DurableRecord(
            self.filter,
            self.version,
            self.cursors,
            self.settled or self.settling,
            self.created_ms,
            self.starts,
            list(self.begun),
            list(self.lost),
            self.shared,
            self.key,
            self.unfinished,
        )


class Durables:
    """The durable subscriptions of one broker, and the homes of all others."""

    def __init__(self, broker: int, retired: Collection[int] = ()) -> None:
        self._broker = broker
        self._retired = retired
        self.homes: dict[str, DurableHome] = {}
        self.here: dict[str, Durable] = {}
        self._dirty: dict[str, None] = {}
        self._dirty_homes: dict[str, None] = {}
        self._deleted: dict[str, None] = {}  # the names in `homes` that have no home, the oldest first
        self._owned: Counter[str] = Counter()  # names in `homes` that have one, by the identity in them

    def load(self, key: str, value: bytes) -> None:
        """Read a stored entry: a record of this broker, or the home of another subscription."""
        if key.startswith(HOME_KEY):
            home = msgspec.msgpack.decode(value, type=DurableHome)
            if home.version < COUNT_MAX:
                self._know(home)
            return
        name = key.removeprefix(DURABLE_KEY)
        record = msgspec.msgpack.decode(value, type=DurableRecord)
        version = (
            record.version if record.version < COUNT_MAX else 1
        )  # a higher one is damaged: nobody could choose a version above it
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
            begun=dict.fromkeys(record.begun),
            lost=dict.fromkeys(record.lost),
            shared=record.shared,
            key=record.key,
            unfinished=dict(record.unfinished),
        )
        self.here[name] = durable
        if durable.settled:
            self._know(self._home(durable))

    def load_damaged(self, name: str, cursors: Positions) -> None:
        """Add a subscription whose record is damaged: its cursors are at least `cursors`, its client brings the filter.

        If the last home known here is another broker, this one took over from it. Whether it has settled is not known.
        """
        version = self.homes[name].version if name in self.homes else 0
        version += self.elsewhere(name) is not None
        created_ms = self.homes[name].created_ms if name in self.homes else 0
        durable = Durable(name, "", version, dict(cursors), dict(cursors), stored=True, damaged=True, created_ms=created_ms)
        self.here[name] = durable

    def mend(self, durable: Durable, stated: Subscribe) -> None:
        """Set what is not known any more of a damaged record, as its client states it."""
        durable.filter, durable.damaged = stated.filter, False
        durable.shared, durable.key = stated.shared, stated.key
        self._dirty[durable.name] = None

    def _know(self, home: DurableHome) -> None:
        known = self.homes.get(home.name)
        if known is None or _rank(home) > _rank(known):
            self._put(home)

    def _put(self, home: DurableHome) -> None:
        before = self.homes.get(home.name)
        self._owned[owner_of(home.name)] += bool(home.broker) - (before is not None and bool(before.broker))
        self.homes[home.name] = home
        self._deleted.pop(home.name, None)
        if not home.broker:
            self._deleted[home.name] = None

    def exists(self, name: str) -> bool:
        """Tell whether a name is known to have a home."""
        home = self.homes.get(name)
        return name in self.here or (home is not None and home.broker != 0)

    def count_owned(self, owner: str) -> int:
        """Return how many durable subscriptions of an identity have a home."""
        return self._owned[owner]

    def has_room(self, name: str) -> bool:
        """Tell whether one more name can be known; if necessary, forget the one whose deletion was heard of first."""
        if name in self.homes or len(self.homes) < DURABLES_MAX:
            return True
        oldest = next((deleted for deleted in self._deleted if deleted not in self.here), None)
        if oldest is None:
            return False
        del self.homes[oldest], self._deleted[oldest]
        self._dirty_homes[oldest] = None
        return True

    def drop_unsettled(self) -> None:
        """After a restart, drop records that never settled here: nobody was told of them, and the former home has its own.

        A damaged record may have settled. It is kept until its former home has answered; see `doubtful`.
        """
        unsettled = [name for name, durable in self.here.items() if not durable.settled and self.former_home(name) is not None]
        for name in unsettled:
            if not self.here[name].damaged:
                self.give_up(name)

    def is_doubtful(self, name: str) -> bool:
        """Tell whether the record of a name is damaged, and the former home may still have its own."""
        durable = self.here.get(name)
        return durable is not None and durable.damaged and not durable.settled and self.former_home(name) is not None

    def doubtful(self) -> list[Durable]:
        """Return the damaged records that may not have settled here."""
        return [durable for name, durable in self.here.items() if self.is_doubtful(name)]

    def elsewhere(self, name: str) -> int | None:
        """Return the home of a durable subscription if it is another broker, else None."""
        home = self.homes.get(name)
        return home.broker if home is not None and home.broker not in (0, self._broker) else None

    def is_lost(self, name: str) -> bool:
        """Tell whether others name this broker as the home of a name, but its record was lost with the files."""
        home = self.homes.get(name)
        return home is not None and home.broker == self._broker and name not in self.here

    def take_home(
        self, name: str, filter_: str, cursors: Positions, *, created_ms: int = 0, starts: Positions | None = None
    ) -> Durable:
        """Create a record that makes this broker the home; others learn it after `settle`."""
        versions = [known[name].version for known in (self.homes, self.here) if name in known]
        version = 1 + max(versions, default=0)
        durable = Durable(name, filter_, version, cursors, created_ms=created_ms, starts=dict(starts or {}))
        self.here[name] = durable
        return durable

    def home_brokers(self) -> frozenset[int]:
        """Return every broker that is the home of some durable subscription."""
        return frozenset(home.broker for home in self.homes.values() if home.broker)

    def believes(self, name: str, version: int) -> bool:
        """Tell whether a reported version of a name leaves room for higher ones."""
        known = max((records[name].version for records in (self.here, self.homes) if name in records), default=0)
        return leaves_room(version, known, COUNT_MAX)

    def outbid(self, name: str, version: int) -> None:
        """Record that a version of a name is in use, so that our next version is higher.

        The entry is not flooded: others would take it for a deletion and end their holds.
        """
        known = self.homes.get(name)
        if version and (known is None or known.version < version) and self.believes(name, version) and self.has_room(name):
            self._put(DurableHome(name, version, 0, settled=False))
            self._dirty_homes[name] = None

    def told_to_others(self) -> list[DurableHome]:
        """Return the homes that every broker must know."""
        return [home for home in self.homes.values() if home.settled]

    def former_home(self, name: str) -> int | None:
        """Return the broker that holds the logs for a name until this one has settled; None if it is retired."""
        home = self.elsewhere(name)
        return None if home in self._retired else home

    def _home(self, durable: Durable) -> DurableHome:
        return DurableHome(durable.name, durable.version, self._broker, settled=True, created_ms=durable.created_ms)

    def begin_settling(self, name: str) -> None:
        """Mark a record to be stored as settled. After a crash before that is on disk, the former home still has it."""
        self.here[name].settling = True
        self._dirty[name] = None

    def settle(self, name: str) -> DurableHome:
        """Become the home of a record that is on disk as settled; the caller floods the result."""
        self.here[name].settled = True
        self._put(self._home(self.here[name]))
        return self.homes[name]

    def give_up(self, name: str) -> None:
        """Drop a record that no client was told of."""
        if self.here.pop(name).stored:
            self._dirty[name] = None

    def reclaim(self, rival: DurableHome) -> Durable:
        """Remain the home when another broker claims the same version, with a higher version."""
        ours = self.here[rival.name]
        ours.version = rival.version + 1
        self.begin_settling(rival.name)
        return ours

    def forget(self, name: str) -> DurableHome:
        """Delete a durable subscription; return the record to flood."""
        records = [known[name] for known in (self.here, self.homes) if name in known]
        version = 1 + max((record.version for record in records), default=0)
        created_ms = next((record.created_ms for record in records), 0)
        self.here.pop(name, None)
        self._dirty[name] = None
        self._dirty_homes[name] = None  # others may name us as its home after a crash
        self._put(DurableHome(name, version, 0, settled=True, created_ms=created_ms))
        return self.homes[name]

    def learn(self, home: DurableHome) -> tuple[DurableHome | None, Durable | None]:
        """Handle a flooded record; return the record to pass on, if any, and the subscription that it takes from here."""
        known = self.homes.get(home.name)
        if not self.believes(home.name, home.version):
            return None, None
        if known is not None:
            home = _after_deletion(known, home)
        if known is not None and _rank(known) >= _rank(home):
            return None, None
        if not self.has_room(home.name):
            return None, None
        self._put(home)
        if home.broker != self._broker:
            self._dirty_homes[home.name] = None
        gone = self.here.get(home.name)
        if gone is not None and home.broker == self._broker:
            gone.settled = True  # we announced it before a crash
            if gone.version < home.version:  # our record was damaged, and forgot its version
                gone.version, gone.created_ms = home.version, gone.created_ms or home.created_ms
                self._dirty[home.name] = None
        if gone is None or home.broker == self._broker:
            return home, None
        gone.moved = True
        if home.settled:
            del self.here[home.name]
            self._dirty[home.name] = None
        return home, gone

    def positions(self, cursors: Positions, brought: Positions) -> Positions:
        """Combine the cursors of the home with the positions of a client: the higher one counts."""
        return {p: max(cursors.get(p, 0), brought.get(p, 0)) for p in {**cursors, **brought}}

    def believe(self, durable: Durable, brought: Positions, acknowledged: Positions) -> None:
        """Move the cursors of a record that never settled back to the client's positions.

        Nobody was told of the record. The client may have used the settled home since, and continued there from older cursors
        after it lost its own. The settled home holds the logs for those.
        """
        if durable.settled:
            return
        for pubend, tick in brought.items():
            if tick < durable.cursors.get(pubend, 0):
                durable.cursors[pubend] = min(tick, acknowledged.get(pubend, tick))
                durable.kept[pubend] = min(durable.cursors[pubend], durable.kept.get(pubend, tick))
                self._dirty[durable.name] = None

    def moved_on(self, name: str, cursors: Positions) -> None:
        """Raise the cursors to acknowledged positions."""
        durable = self.here.get(name)
        if durable is None:
            return
        for pubend, tick in cursors.items():
            if pubend in durable.lost and pubend not in durable.cursors:
                continue  # it is about to begin there: its client was not told of the loss yet
            if tick > durable.cursors.get(pubend, -1):
                durable.cursors[pubend] = tick
                durable.lost.pop(pubend, None)
                self._dirty[name] = None

    def join(self, durable: Durable, pubend: int, tick: int) -> None:
        """Add a cursor in a pubend, from which its log is held from now on."""
        if pubend not in durable.cursors:
            durable.cursors[pubend] = tick
            durable.starts.setdefault(pubend, tick)
            self._dirty[durable.name] = None

    def join_all(self, durable: Durable, pubends: Iterable[int]) -> None:
        """Add cursors in announced pubends: at the creation if they were known then, at the first tick in others.

        Where its place is lost, it begins once such a pubend is reached, and its client gets a gap over all before.
        """
        if not durable.beginning:
            for pubend in pubends:
                if pubend in durable.lost:
                    continue
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
        """Return the lowest position per pubend from which a durable subscription may continue, also after a crash."""
        ticks: Positions = {}
        for durable in self.here.values():
            away = durable.subscription is None or durable.moved
            needed = {**durable.cursors, **durable.kept} if away else durable.kept
            for pubend, tick in needed.items():
                ticks[pubend] = min(tick, ticks.get(pubend, tick))
        return ticks

    def stored(self, changes: tuple[tuple[str, bytes | None], ...]) -> None:
        """Record which cursors are on disk now; holds may rise only up to these."""
        for key, value in changes:
            durable = self.here.get(key.removeprefix(DURABLE_KEY)) if key.startswith(DURABLE_KEY) else None
            if durable is None or value is None:
                continue
            record = msgspec.msgpack.decode(value, type=DurableRecord)
            if record.version == durable.version:
                durable.kept = dict(record.cursors)

    def changes(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return what is not stored yet; the caller stores it.

        A damaged record stays as it is until its client states the filter. If it were stored without one, the next start would
        take it for a whole record, and refuse the client because of its filter.
        """
        changes: list[tuple[str, bytes | None]] = []
        for name in self._dirty:
            durable = self.here.get(name)
            if durable is not None and durable.damaged:
                continue
            value = None
            if durable is not None:
                value = msgspec.msgpack.encode(durable.record())
                durable.stored = True
            changes.append((DURABLE_KEY + name, value))
        self._dirty = {}
        for name in self._dirty_homes:
            home = self.homes.get(name)
            changes.append((HOME_KEY + name, None if home is None else msgspec.msgpack.encode(home)))
        self._dirty_homes = {}
        return tuple(changes)

    def mark(self, name: str) -> None:
        self._dirty[name] = None

    @property
    def dirty(self) -> bool:
        return bool(self._dirty or self._dirty_homes)


def _rank(home: DurableHome) -> tuple[int, bool, bool, int, int]:
    """Order records of one name: the highest version counts; of two equal ones the older creation, so that all brokers agree.

    A broker that did not know any other yet may have created a name that exists. Its record must not replace the older one.
    """
    return home.version, home.settled, home.broker != 0, -home.created_ms, home.broker


def _after_deletion(known: DurableHome, home: DurableHome) -> DurableHome:
    """Return which of two records counts. A deletion ends its creation permanently, even if that has moved meanwhile.

    The home that deleted it may not know of the move, so the version of the move may be as high or higher.
    """
    one_is_deletion = (known.broker == 0) != (home.broker == 0)
    if not one_is_deletion or not home.created_ms or home.created_ms != known.created_ms:
        return home
    deletion, other = (known, home) if known.broker == 0 else (home, known)
    if deletion.version > other.version:
        return home
    return DurableHome(home.name, other.version + 1, 0, settled=True, created_ms=home.created_ms)
