"""What the logs may let go of, what they must let go of, and when a gap is earned.

A durable subscription is *protected* always: what it has not acknowledged stays. A live one is protected while it is connected,
and after that for as long as its broker promises to wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from postroad.core.protocol.packets import pubend_broker
from postroad.sim.checkers.follower import Follower, Followers, Stream
from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import (
    Attributes,
    Began,
    DiskLost,
    Freed,
    Gapped,
    History,
    Logged,
    Published,
    Remains,
    Spoiled,
    WrittenOff,
)

Holes: TypeAlias = dict[int, list[tuple[int, int]]]  # pubend -> ranges (lo, hi] that cannot be read any more


@dataclass(slots=True)
class _Rows:
    """What was logged so far."""

    attributes: dict[bytes, Attributes] = field(default_factory=dict)
    ticks: dict[int, list[int]] = field(default_factory=dict)  # by pubend
    ids: dict[int, list[bytes]] = field(default_factory=dict)
    holes: Holes = field(default_factory=dict)

    def take(self, event: object) -> None:
        if isinstance(event, Published):
            self.attributes[event.id] = event.attributes
        elif isinstance(event, Logged):
            self.ticks.setdefault(event.pubend, []).append(event.tick)
            self.ids.setdefault(event.pubend, []).append(event.id)
        elif isinstance(event, Spoiled):
            self.holes.setdefault(event.pubend, []).append((event.lo, event.hi))
        elif isinstance(event, DiskLost):
            for pubend in event.pubends:
                self.holes.setdefault(pubend, []).append((0, max(self.ticks.get(pubend, [0]))))

    def first_wanted(self, follower: Follower, pubend: int, lo: int, hi: int, matches: Matches) -> int | None:
        """Return the tick of the first message in (lo, hi] that a subscription wants and was not told to be gone."""
        ticks = self.ticks.get(pubend, [])
        for index in range(bisect_right(ticks, lo), bisect_right(ticks, hi)):
            known = self.attributes.get(self.ids[pubend][index])
            if any(begin < ticks[index] <= end for begin, end in self.holes.get(pubend, ())):
                continue  # it cannot be read any more
            if known is not None and matches(follower.filter, known) and not follower.has_told(pubend, ticks[index]):
                return ticks[index]
        return None


class ReleaseSafety:
    """A pubend lets go of nothing that a protected subscription has not acknowledged, unless retention is over its bound."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        followers, rows = Followers(), _Rows()
        for event in history:
            rows.take(event)
            if isinstance(event, Freed) and not event.retention:
                for follower in followers:
                    tick = self._find_needed(follower, event, rows, matches)
                    if tick is not None:
                        text = f"pubend {event.pubend} let go of everything up to {event.tick}; {follower.name} needs {tick}"
                        yield Violation("released", event.at, text)
            followers.take(event)

    @staticmethod
    def _find_needed(follower: Follower, event: Freed, rows: _Rows, matches: Matches) -> int | None:
        """Return the tick of the first message the subscription still needs of what was let go."""
        stream = follower.streams.get(event.pubend)
        if stream is None or event.tick <= stream.committed or not follower.is_protected(event.pubend, event.at):
            return None
        return rows.first_wanted(follower, event.pubend, max(stream.committed, stream.floor), event.tick, matches)


class GapsAreEarned:
    """A gap is told only over what is gone: by retention, with damaged or lost files, or while a subscription was not protected.

    One that wants all there is may get early messages from a cache before it meets what the log let go before it began. No gap
    covers what the application got, and none what is published later. One whose home lost its files, and whose client has no
    position either, is told a gap over all that was before; with a position, over what was released after it. A broker that
    stopped before it had begun a pubend may write off what came before: it cannot know that there was nothing, and there was
    nothing. Nor does a broker that lost its files know whether a name that it began to create in its former life existed.
    """

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        followers = Followers()
        freed: dict[int, int] = {}
        earned: dict[tuple[str, int], int] = {}  # (subscription, pubend) -> up to where a gap may reach
        forced: dict[int, int] = {}
        holes: Holes = {}
        empty: set[int] = set()  # pubends of which files were lost: only they may write off what was in them
        used: dict[int, int] = {}  # pubend -> its first message, or 0 when somebody began before there was one
        told: dict[int, int] = {}  # pubend -> up to where somebody was told a gap
        wrote_off: set[int] = set()  # brokers that lost their files, or took them for lost
        unsure: set[str] = set()  # subscriptions that began first at one of those, or whose home was lost
        astray: set[tuple[str, int]] = set()  # (subscription, pubend) where nobody knows the position
        written_off = [event for event in history if isinstance(event, WrittenOff)]
        for event in history:
            if isinstance(event, Logged) and event.tick <= told.get(event.pubend, 0):
                text = f"{event.id.hex()} got tick {event.tick} of {event.pubend} after that was told to be gone"
                yield Violation("released", event.at, text)
            if isinstance(event, Logged):
                used.setdefault(event.pubend, event.tick)
            if isinstance(event, Began):
                used.setdefault(event.pubend, 0)
                follower, before = (
                    followers.by_name.get(event.subscription),
                    followers.stream(event.subscription, event.pubend),
                )
                strays = follower is not None and follower.astray
                if follower is not None and not follower.streams and event.broker in wrote_off:
                    unsure.add(follower.name)
                lost = strays or event.subscription in unsure if before is None else before.resuming and (strays or before.astray)
                (astray.add if lost else astray.discard)((event.subscription, event.pubend))
            if isinstance(event, DiskLost):
                empty.update(event.pubends)
                for off in written_off:  # one is told when it is found, and stored a little later
                    if off.pubend in event.pubends and off.at > event.at:
                        holes.setdefault(off.pubend, []).append((off.lo, off.hi))
                for follower in followers:
                    if follower.durable and event.broker in follower.homes:  # nobody else knew that nothing matched there
                        unsure.add(follower.name)  # also where it had not begun: the next home cannot know that
                        earned |= {(follower.name, pubend): freed.get(pubend, 0) for pubend in follower.streams}
            if isinstance(event, WrittenOff) and not event.lo:
                wrote_off.add(pubend_broker(event.pubend))
            if isinstance(event, WrittenOff) and used.get(event.pubend, event.hi + 1) > event.hi:
                empty.add(event.pubend)
            if isinstance(event, Spoiled) or (isinstance(event, WrittenOff) and event.pubend in empty):
                holes.setdefault(event.pubend, []).append((event.lo, event.hi))
            if isinstance(event, Freed):
                freed[event.pubend] = max(event.tick, freed.get(event.pubend, 0))
                if event.retention:
                    forced[event.pubend] = max(event.tick, forced.get(event.pubend, 0))
                for follower in followers:
                    if not follower.is_protected(event.pubend, event.at):
                        earned[follower.name, event.pubend] = freed[event.pubend]
            if isinstance(event, Began) and followers.stream(event.subscription, event.pubend) is None:
                earned[event.subscription, event.pubend] = freed.get(
                    event.pubend, 0
                )  # what was gone when it began was never held
            if isinstance(event, Gapped):
                held = followers.stream(event.subscription, event.pubend)
                allowed = max(earned.get((event.subscription, event.pubend), 0), forced.get(event.pubend, 0))
                if (event.subscription, event.pubend) in astray and not event.lo:
                    allowed = event.hi
                told[event.pubend] = max(event.hi, told.get(event.pubend, 0))
                yield from self._check_told(event, held, allowed, holes.get(event.pubend, []))
            followers.take(event)

    @staticmethod
    def _check_told(event: Gapped, stream: Stream | None, allowed: int, holes: list[tuple[int, int]]) -> Iterator[Violation]:
        explained = max(event.lo, allowed, stream.floor if stream is not None else 0)
        for lo, hi in sorted(holes):
            explained = max(explained, hi) if lo <= explained else explained
        if event.hi > explained:
            text = f"{event.subscription} was told that {event.lo}..{event.hi} of {event.pubend} is gone without need"
            yield Violation("released", event.at, f"{text}: only what lies up to {explained} is")
        covered = next((tick for tick, _ in stream.rows if event.lo < tick <= event.hi), None) if stream is not None else None
        if covered is not None:
            text = f"{event.subscription} was told that {event.lo}..{event.hi} of {event.pubend} is gone, but it got {covered}"
            yield Violation("released", event.at, text)


class LogsAreReleased:
    """Once everyone has acknowledged everything and some time has passed, logs have let go of whole segments nobody needs."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        followers, rows = Followers(), _Rows()
        for event in history:
            rows.take(event)
            if isinstance(event, Remains) and not any(self._needs(each, event, rows, matches) for each in followers):
                text = f"pubend {event.pubend} still holds what lies up to {event.tick}, and nobody needs it"
                yield Violation("kept", event.at, text)
            followers.take(event)

    @staticmethod
    def _needs(follower: Follower, event: Remains, rows: _Rows, matches: Matches) -> bool:
        if follower.ended:
            return follower.durable and not follower.discarded  # its home may not have heard that it was forgotten
        stream = follower.streams.get(event.pubend)
        if stream is None or stream.position < event.tick:
            return True
        return rows.first_wanted(follower, event.pubend, max(stream.committed, stream.floor), event.tick, matches) is not None
