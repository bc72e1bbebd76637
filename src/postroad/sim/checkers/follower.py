"""What one application knows at each moment: its subscription replayed from the history.

The rows an application *has* are those whose effects survive. When its client crashes it goes back to what it had saved: to the
positions of its file, or without one to what it had acknowledged, and then further to where the broker resumes it, but never
behind what the broker has confirmed to have stored. Messages after that point are not duplicates when they come again; they are
lost when they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from postroad.core.broker.subscribing.durable import DURABLE_KEY
from postroad.sim.history import (
    Asked,
    Began,
    Committed,
    Confirmed,
    Delivered,
    Discarded,
    Disconnected,
    DiskLost,
    Ended,
    Event,
    Forgot,
    Freed,
    Gapped,
    History,
    Parted,
    Passed,
    RecordCreated,
    RecordSpoiled,
    Restarted,
    WrittenOff,
)

ALWAYS: Final = float("inf")


@dataclass(slots=True)
class Stream:
    """One pubend as one subscription sees it."""

    start: int
    began_at: float
    position: int
    committed: int
    confirmed: int = 0  # the broker has stored the acknowledgement up to here: nothing up to it may come again
    rows: list[tuple[int, bytes]] = field(default_factory=list)  # (tick, id) in order of delivery
    gaps: list[tuple[int, int]] = field(default_factory=list)
    floor: int = 0  # for one that wants all there is: what was gone already when it began
    links: dict[tuple[int, int], float] = field(default_factory=dict)  # (broker, its link) -> until when the log is held there
    astray: bool = False  # its home lost the record, and it has not begun here since
    unheld: bool = False  # its home lost the record, and with it the hold on the log, until it begins again
    resuming: bool = False  # its client forgot, and the broker has not yet said where it goes on

    def go_back(self, tick: int) -> None:
        """Forget everything after a tick, but not what was told to be gone: it was told, and is not told again."""
        self.rows = [row for row in self.rows if row[0] <= tick]
        self.position = min(self.position, tick)
        self.committed = min(self.committed, tick)


@dataclass(slots=True)
class Follower:
    """One subscription."""

    name: str
    filter: str
    durable: bool
    earliest: bool = False
    durable_name: str = ""
    broker: int = 0  # where it was active last
    homes: set[int] = field(default_factory=set)  # where it may be at home: active, or on the disk, since one confirmed anything
    streams: dict[int, Stream] = field(default_factory=dict)
    astray: bool = False  # its home lost the record, and none has confirmed anything since
    ended: bool = False
    discarded: bool = False  # the broker knows that it ended
    discarded_by: int = 0  # which one

    def is_protected(self, pubend: int, at: float) -> bool:
        """Tell whether a log must be held for it: always for a durable one, else while it is connected or may return."""
        stream = self.streams.get(pubend)
        if stream is None or self.ended:
            return False
        return (self.durable and not stream.unheld) or any(until > at for until in stream.links.values())

    def apply(self, event: Event, freed: Mapping[int, int]) -> None:
        match event:
            case Began():
                self._began(event, freed.get(event.pubend, 0) if self.earliest else 0)
            case Delivered(pubend=pubend, tick=tick, id=message_id):
                stream = self.streams.get(pubend)
                if stream is not None:
                    stream.rows.append((tick, message_id))
                    stream.position = max(stream.position, tick)
            case Passed(pubend=pubend, tick=tick):
                stream = self.streams.get(pubend)
                if stream is not None:
                    stream.position = max(stream.position, tick)
            case Gapped(pubend=pubend, lo=lo, hi=hi):
                stream = self.streams.get(pubend)
                if stream is not None:
                    stream.gaps.append((lo, hi))
                    stream.position = max(stream.position, hi)
            case Committed(pubend=pubend, tick=tick):
                stream = self.streams.get(pubend)
                if stream is not None:
                    stream.committed = max(stream.committed, tick)
            case Confirmed(pubend=pubend, tick=tick):
                stream = self.streams.get(pubend)
                if stream is not None:
                    stream.confirmed = max(stream.confirmed, tick)
                self._check_settled()
            case Forgot():
                self._forgot(event)
            case Disconnected():
                for stream in self.streams.values():
                    stream.links.pop((0, 0), None)
            case Ended():
                self.ended = True
            case Discarded(broker=broker):
                self.discarded, self.discarded_by = True, broker
            case _:
                pass

    def _began(self, event: Began, floor: int) -> None:
        if event.broker:
            self.broker = event.broker
            self.homes.add(event.broker)
        stream = self.streams.get(event.pubend)
        if stream is not None:
            stream.unheld = stream.astray = False
        if stream is None:
            self.streams[event.pubend] = Stream(event.tick, event.at, event.tick, event.tick, floor=floor)
        elif stream.resuming:
            stream.go_back(max(event.tick, stream.confirmed))
            # The broker took up after what the application had: whatever lies between must have been empty.
            stream.position = max(stream.position, event.tick)
            stream.resuming = False

    def _check_settled(self) -> None:
        """Only a home whose record is on disk confirms anything."""
        if self.broker:
            self.homes = {self.broker}
        self.astray = False

    def _forgot(self, event: Forgot) -> None:
        for pubend, stream in self.streams.items():
            saved = None if event.positions is None else event.positions.get(pubend)
            stream.go_back(stream.committed if saved is None else saved)
            stream.resuming = saved is None

    def has_told(self, pubend: int, tick: int) -> bool:
        """Tell whether the application was told explicitly that the tick is gone."""
        stream = self.streams[pubend]
        return any(lo < tick <= hi for lo, hi in stream.gaps)


class Followers:
    """Every subscription, as it is after the events taken so far."""

    def __init__(self) -> None:
        self.by_name: dict[str, Follower] = {}
        self._freed: dict[int, int] = {}  # pubend -> tick
        self._held: dict[tuple[int, int], float] = {}  # (broker, its link) -> until when, once it is gone

    def take(self, event: Event) -> Follower | None:
        """Apply an event; return the subscription it belongs to, if it belongs to one."""
        if isinstance(event, Freed):
            self._freed[event.pubend] = max(event.tick, self._freed.get(event.pubend, 0))
            return None
        if isinstance(event, Asked):
            new = Follower(event.subscription, event.filter, event.durable, event.earliest, event.name)
            return self.by_name.setdefault(event.subscription, new)
        if isinstance(event, Parted | Restarted):
            self._hold(event)
            return None
        if isinstance(event, RecordSpoiled):
            self._doubt(event.key)
            return None
        if isinstance(event, RecordCreated):
            self._at_home(event)
            return None
        if isinstance(event, DiskLost):
            self._forget(event)
            return None
        if isinstance(event, WrittenOff):  # `GapsAreEarned` tells whether it may
            self._freed[event.pubend] = max(event.hi, self._freed.get(event.pubend, 0))
            return None
        name = getattr(event, "subscription", None)
        found = self.by_name.get(name) if name is not None else None
        if found is not None:
            found.apply(event, self._freed)
            if isinstance(event, Began):  # it may have been on its way when the broker had noticed the loss already
                place = event.broker, event.link
                found.streams[event.pubend].links[place] = self._held.get(place, ALWAYS)
        return found

    def _at_home(self, event: RecordCreated) -> None:
        """Note where the record of a durable subscription is, though its client was not told yet that it is active."""
        for follower in self.by_name.values():
            if follower.durable and not follower.ended and event.key == DURABLE_KEY + follower.durable_name:
                follower.homes.add(event.broker)

    def _doubt(self, key: str) -> None:
        """With the record of a durable subscription goes what was confirmed: it goes on from before, and nothing is skipped."""
        for follower in self.by_name.values():
            if follower.durable and key == DURABLE_KEY + follower.durable_name:
                for stream in follower.streams.values():
                    stream.confirmed = 0

    def _forget(self, event: DiskLost) -> None:
        """With a broker's files go the holds and the records of those who were there, and deletions others may not have heard."""
        for place in [place for place in self._held if place[0] == event.broker]:
            self._held[place] = event.at
        for follower in self.by_name.values():
            for stream in follower.streams.values():
                for place in [place for place in stream.links if place[0] == event.broker]:
                    stream.links[place] = event.at
                if follower.durable and event.broker in follower.homes:
                    stream.astray = stream.unheld = True
                    stream.confirmed = 0
            if follower.durable and event.broker in follower.homes:
                follower.astray = True
            if follower.discarded_by == event.broker:
                follower.discarded = False

    def _hold(self, event: Parted | Restarted) -> None:
        """Note until when a broker holds logs for those who are not connected to it any more."""
        if isinstance(event, Parted):
            places = [(event.broker, event.link)]
        else:
            places = [place for place, until in self._held.items() if place[0] == event.broker and until > event.at]
        for place in places:
            self._held[place] = event.held_until
            for follower in self.by_name.values():
                for stream in follower.streams.values():
                    if place in stream.links:
                        stream.links[place] = event.held_until

    def __iter__(self) -> Iterator[Follower]:
        return iter(self.by_name.values())

    def stream(self, subscription: str, pubend: int) -> Stream | None:
        follower = self.by_name.get(subscription)
        return None if follower is None else follower.streams.get(pubend)


def replay(history: History) -> Followers:
    """Return every subscription as it is at the end."""
    followers = Followers()
    for event in history:
        followers.take(event)
    return followers
