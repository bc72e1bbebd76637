"""What members of a shared subscription must see together: each message finished by one of them, in order where there is a key.

The rules speak of what brokers hand out (`Handed`) and of what members are told (`Finished`). A member that was cut off may still
have messages that others work on by now, and nobody can prevent that; so when a frame *arrives* proves nothing.

Damage to the record of a subscription, and the loss of its home's files, void what was promised before: `_Group.void`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from postroad.core.broker.subscribing.durable import DURABLE_KEY
from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import (
    DiskLost,
    Event,
    Finished,
    Freed,
    Handed,
    History,
    Logged,
    MemberGone,
    Published,
    RecordSpoiled,
    Retired,
    SharedAsked,
    SharedBegan,
    SharedEnded,
    SharedGapped,
    Spoiled,
    Taken,
    WrittenOff,
)
from postroad.types import AttributeValue

_Place = tuple[int, int]  # (pubend, tick)
_Holder = tuple[int, int, int]  # (broker, link, handle)


@dataclass(slots=True)
class _Group:
    """One shared subscription, as it is after the events taken so far."""

    name: str
    filter: str
    key: str
    homes: set[int] = field(default_factory=set)  # brokers that handed out anything
    starts: dict[int, int] = field(default_factory=dict)  # by pubend, where it began first
    finished: dict[_Place, str] = field(default_factory=dict)  # which member was told
    taken: set[_Place] = field(default_factory=set)  # an acknowledgement reached the broker
    holders: dict[_Place, _Holder] = field(default_factory=dict)
    lanes: dict[tuple[int, object], int] = field(default_factory=dict)  # (pubend, key) -> the last tick handed out
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    gone: dict[int, int] = field(default_factory=dict)  # by pubend, up to where its log may be gone
    voided: bool = False
    ended: bool = False  # nobody wants the rest

    def void(self) -> None:
        """Forget what was promised: the record that said so is gone."""
        self.finished.clear()
        self.taken.clear()
        self.lanes.clear()
        self.voided = True

    def release(self, holder: _Holder, *, whole_link: bool) -> None:
        """Note that a member, or all of a connection, hold nothing any more."""
        size = 2 if whole_link else 3
        self.holders = {place: each for place, each in self.holders.items() if each[:size] != holder[:size]}

    def apply(self, event: Event) -> None:
        match event:
            case SharedBegan(pubend=pubend, tick=tick):
                self.starts[pubend] = min(tick, self.starts.get(pubend, tick))
            case Handed():
                self.homes.add(event.broker)
                self.holders[event.pubend, event.tick] = event.broker, event.link, event.handle
            case Taken(pubend=pubend, ticks=ticks):
                self.taken.update((pubend, tick) for tick in ticks)
                for tick in ticks:
                    self.holders.pop((pubend, tick), None)
            case Finished():
                self.finished[event.pubend, event.tick] = event.member
            case SharedEnded():
                self.ended = True
            case SharedGapped(pubend=pubend, lo=lo, hi=hi):
                self.gaps.append((pubend, lo, hi))
            case RecordSpoiled(key=key) if key == DURABLE_KEY + self.name:
                self.void()
            case Freed(pubend=pubend, tick=hi, retention=True) | WrittenOff(pubend=pubend, hi=hi) | Spoiled(pubend=pubend, hi=hi):
                self.gone[pubend] = max(hi, self.gone.get(pubend, 0))
            case DiskLost(broker=broker) if broker in self.homes:
                self.void()
            case MemberGone(broker=broker, link=link, handle=handle):
                self.release((broker, link, handle), whole_link=handle == 0)
            case _:
                pass

    def is_gone(self, pubend: int, tick: int) -> bool:
        """Tell whether a message may be gone: members were told, or it went while none of them was connected."""
        told = any(each == pubend and lo < tick <= hi for each, lo, hi in self.gaps)
        return told or tick <= self.gone.get(pubend, -1)


class _Groups(dict[str, _Group]):
    """All shared subscriptions of a history."""

    def take(self, event: Event) -> _Group | None:
        """Apply an event; return the group that it belongs to, if it belongs to one."""
        if isinstance(event, SharedAsked):
            return self.setdefault(event.group, _Group(event.group, event.filter, event.key))
        if isinstance(event, RecordSpoiled | DiskLost | MemberGone | Freed | WrittenOff | Spoiled):
            for each in self.values():
                each.apply(event)
            return None
        group = self.get(getattr(event, "group", ""))
        if group is not None:
            group.apply(event)
        return group


class SharedExactlyOnce:
    """An acknowledged message is never handed out again, nobody else acknowledges it, and one member holds it at a time."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        groups = _Groups()
        for event in history:
            group = groups.get(getattr(event, "group", ""))
            if group is not None and isinstance(event, Handed | Finished):
                place = event.pubend, event.tick
                what = f"{group.name}: tick {event.tick} of pubend {event.pubend}"
                if place in group.finished:
                    how = "was handed out" if isinstance(event, Handed) else f"was acknowledged by {event.member}"
                    yield Violation("duplicated", event.at, f"{what} {how} after {group.finished[place]} had acknowledged it")
                elif isinstance(event, Handed) and place in group.holders:
                    yield Violation("duplicated", event.at, f"{what} was handed out while another member held it")
            groups.take(event)


class SharedOrder:
    """Messages of one pubend with the same key are handed out one after the other, each when the one before is acknowledged."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        groups = _Groups()
        published: dict[bytes, Published] = {}
        for event in history:
            if isinstance(event, Published):
                published[event.id] = event
            group = groups.get(getattr(event, "group", ""))
            if isinstance(event, Handed) and group is not None and group.key:
                value = published[event.id].attributes.get(group.key) if event.id in published else None
                if value is not None:
                    yield from self._check(group, event, value)
            groups.take(event)

    @staticmethod
    def _check(group: _Group, event: Handed, value: AttributeValue) -> Iterator[Violation]:
        lane = event.pubend, (type(value) is bool, value)
        last = group.lanes.get(lane)
        group.lanes[lane] = event.tick
        what = f"{group.name}: tick {event.tick} of pubend {event.pubend} with {group.key} {value!r} was handed out"
        if last is not None and event.tick < last:
            yield Violation("misordered", event.at, f"{what} after tick {last}")
        elif last not in (None, event.tick) and (event.pubend, last) not in group.taken and not group.is_gone(event.pubend, last):
            yield Violation("misordered", event.at, f"{what} before tick {last} was acknowledged")


class SharedCompleteness:
    """At the end members have finished all that matches after the start; what they were told to be gone does not count.

    What is handed out matches, and is durable where it is said to be. A gap is told only where something may be gone.
    """

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        groups = _Groups()
        published: dict[bytes, Published] = {}
        logged: dict[int, list[Logged]] = {}
        places: set[tuple[int, int, bytes]] = set()
        damaged: set[int] = set()  # pubends of which something may be gone
        freed: dict[int, int] = {}
        earned: dict[tuple[str, int], int] = {}  # what was gone when the group began in a pubend was never held for it
        lost_at: dict[int, float] = {}
        retired: set[int] = set()
        for event in history:
            concerned = groups.take(event)
            match event:
                case Published():
                    published[event.id] = event
                case Logged(pubend=pubend, tick=tick, id=message_id):
                    logged.setdefault(pubend, []).append(event)
                    places.add((pubend, tick, message_id))
                case Freed(pubend=pubend, tick=tick, retention=False):
                    freed[pubend] = max(tick, freed.get(pubend, 0))
                case SharedBegan(group=name, pubend=pubend):
                    earned.setdefault((name, pubend), freed.get(pubend, 0))
                case Freed(pubend=pubend) | WrittenOff(pubend=pubend) | Spoiled(pubend=pubend):
                    damaged.add(pubend)
                case DiskLost(pubends=pubends):
                    damaged.update(pubends)
                    lost_at |= dict.fromkeys(pubends, event.at)
                case Retired(pubends=pubends):
                    retired.update(pubends)
                case SharedGapped(pubend=pubend, hi=hi) if concerned is not None and not concerned.voided:
                    if pubend not in damaged and hi > earned.get((concerned.name, pubend), 0):
                        text = f"{concerned.name} was told a gap up to {hi} of {pubend}, where nothing is gone"
                        yield Violation("released", event.at, text)
                case Handed() if concerned is not None:
                    origin = published.get(event.id)
                    durable = (event.pubend, event.tick, event.id) in places
                    if not durable or origin is None or not matches(concerned.filter, origin.attributes):
                        yield Violation("phantom", event.at, f"{concerned.name} handed out {event.id.hex()}, which is not due")
                case _:
                    pass
        end = history.events[-1].at if history.events else 0.0
        for group in groups.values():
            for pubend, rows in logged.items():
                due = [row for row in rows if row.at > lost_at.get(pubend, -1.0)]
                if pubend not in retired and not group.ended:
                    yield from self._missing(group, pubend, due, published, matches, end)

    @staticmethod
    def _missing(
        group: _Group, pubend: int, rows: list[Logged], published: dict[bytes, Published], matches: Matches, end: float
    ) -> Iterator[Violation]:
        start = group.starts.get(pubend)
        if start is None:
            yield Violation("stuck", end, f"{group.name} never began on pubend {pubend}")
            return
        for row in rows:
            place = pubend, row.tick
            if row.tick <= start or place in group.finished or place in group.taken or group.is_gone(*place):
                continue
            if row.id in published and matches(group.filter, published[row.id].attributes) and not group.voided:
                yield Violation("lost", row.at, f"{group.name}: nobody finished {row.id.hex()} at tick {row.tick} of {pubend}")
