"""What tracks must tell: everything that happened, but for what a crash may lose and is reported; and hardly anything else.

The rules, for what a broker's tracks hold at the end of a run:

- every message that became durable is in the publisher history of its broker, unless a crash followed before it was tracked and
  retention had taken it from the log meanwhile;
- every message that a client got is in a subscriber history of the broker that sent it, and so is every one on the way from its
  origin in a routing history of each broker, with the neighbour it came from. Excepted is what an incarnation did after its last
  flush that became durable, if it crashed: then a record names that incarnation;
- what a span on disk claims, the histories on disk hold, without any exception: the audit in miniature;
- of what never happened, blooms claim as much as equations (1) and (2) allow, and the other strategies nothing.

What is lost to crashes is counted, and so are the claims that are wrong: `Tally`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.core.filters.filter import Filter
from postroad.core.protocol.packets import pubend_broker
from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import (
    Arrived,
    Attributes,
    Crashed,
    DiskLost,
    Freed,
    History,
    Kept,
    Logged,
    Published,
    Relayed,
    Restarted,
    Sent,
    Spoiled,
    Tracks,
)
from postroad.tracking.histories import blooms
from postroad.tracking.histories.elements import Crash, Element, HistoryKey, Kind, Lost, Span
from postroad.tracking.histories.settings import Strategy
from postroad.tracking.queries.search import Hits, search

SIGMAS: Final = 6.0  # of the number of false positives; one in 10**9 runs goes beyond by chance
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
ALWAYS: Final = float("inf")
_ID: Final = np.dtype((np.void, 16))


@dataclass(slots=True)
class Tally:
    """Sums over the histories that were checked."""

    entries: int = 0  # that had to be there
    lost: int = 0  # and are not, within crash windows
    window_s: float = 0.0  # the longest stretch between a last durable flush and the crash
    asked: int = 0  # (id, history) that must not be there and were in a matching set
    false: int = 0  # and are claimed all the same
    expected: float = 0.0  # where equation (1) promises as many
    variance: float = 0.0


@dataclass(slots=True)
class _Lives:
    """Up to when each incarnation of a broker was tracked durably, and which of them crashed."""

    cut_at: dict[int, float] = field(default_factory=dict)
    crashed_at: dict[int, float] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)

    def may_have_lost(self, incarnation: int, at: float) -> bool:
        """Tell whether what was seen of an incarnation at a time may be gone with it, and this is reported."""
        died = self.crashed_at.get(incarnation)
        return died is not None and at > self.cut_at.get(incarnation, -1.0) and incarnation in self.reported


class _Truth:
    """What happened in a run, by message and broker."""

    def __init__(self, history: History) -> None:
        self.logged: dict[bytes, Logged] = {}
        self.attributes: dict[bytes, Attributes] = {}
        self.arrived: list[Arrived] = []
        self.sent: dict[tuple[int, str], set[bytes]] = {}  # (broker, subscriber as the simulator knows it)
        self.relayed: dict[tuple[int, bytes], list[Relayed]] = {}
        self.came: dict[tuple[int, int], set[bytes]] = {}  # (broker, upstream)
        self.lives: dict[int, _Lives] = {}
        self.freed: dict[int, int] = {}  # pubend -> up to which tick retention took it
        self.spoiled: list[Spoiled] = []
        self.erased: dict[int, float] = {}  # broker -> up to when its tracks are lost with its disk
        self.tracks: dict[int, Tracks] = {}
        for event in history:
            self._take(event)
        self.rows: dict[int, list[Logged]] = {}  # by pubend, in order of ticks
        for row in self.logged.values():
            self.rows.setdefault(row.pubend, []).append(row)
        for broker, tracks in self.tracks.items():
            lives = self._lives(broker)
            lives.reported |= {each.incarnation for each in tracks.records if isinstance(each, Crash)}

    def _take(self, event: object) -> None:
        match event:
            case Logged(id=message_id):
                self.logged.setdefault(message_id, event)
            case Published(id=message_id, attributes=attributes):
                self.attributes[message_id] = attributes
            case Arrived():
                self.arrived.append(event)
            case Sent(broker=broker, subscriber=subscriber, ids=ids):
                self.sent.setdefault((broker, subscriber), set()).update(ids)
            case Relayed(broker=broker, upstream=upstream, ids=ids):
                self.came.setdefault((broker, upstream), set()).update(ids)
                for message_id in ids:
                    self.relayed.setdefault((broker, message_id), []).append(event)
            case Kept(broker=broker, incarnation=incarnation, cut_at=cut_at):
                cuts = self._lives(broker).cut_at
                cuts[incarnation] = max(cut_at, cuts.get(incarnation, 0.0))
            case Crashed(broker=broker, incarnation=incarnation, at=at):
                self._lives(broker).crashed_at[incarnation] = at
            case Freed(pubend=pubend, tick=tick, retention=True):
                self.freed[pubend] = max(tick, self.freed.get(pubend, 0))
            case DiskLost(broker=broker):
                self.erased[broker] = ALWAYS
                self.lives.pop(broker, None)
            case Restarted(broker=broker, at=at) if self.erased.get(broker) == ALWAYS:
                self.erased[broker] = at
            case Spoiled():
                self.spoiled.append(event)
            case Tracks(broker=broker):
                self.tracks[broker] = event
            case _:
                pass

    def _lives(self, broker: int) -> _Lives:
        return self.lives.setdefault(broker, _Lives())

    def is_erased(self, broker: int, at: float) -> bool:
        """Tell whether what a broker tracked at a time is lost with its disk."""
        return at <= self.erased.get(broker, -1.0)

    def is_gone(self, row: Logged) -> bool:
        """Tell whether a log could not be read any more where a row was, be it that retention or damage took it."""
        damaged = any(each.pubend == row.pubend and each.lo < row.tick <= each.hi for each in self.spoiled)
        return damaged or row.tick <= self.freed.get(row.pubend, 0)

    def holds(self, broker: int, key: HistoryKey, message_id: bytes) -> bool:
        """Tell whether a history may hold a message."""
        match key.kind:
            case Kind.PUBLISHER:
                row = self.logged.get(message_id)
                return row is not None and pubend_broker(row.pubend) == broker
            case Kind.ROUTING:
                return message_id in self.came.get((broker, key.peer), ())
            case Kind.NEIGHBOUR:
                return True  # frames to neighbours may be dropped before anybody sees them
            case Kind.SUBSCRIBER:
                return message_id in self.sent.get((broker, seen_as(key.subscriber)), ())


def seen_as(subscriber: str) -> str:
    """Return what the simulator calls a subscriber: a live one only by its client."""
    return "@" + subscriber.partition("@")[2] if subscriber.startswith("~") else subscriber


class _Found:
    """What the tracks of one broker say about every message, with and without what is only in memory."""

    def __init__(self, truth: _Truth, tracks: Tracks) -> None:
        self.ids: Final = list(truth.logged)
        array: Ids = np.frombuffer(b"".join(self.ids), _ID)
        self.origins: Final = np.array([int.from_bytes(each[4:8]) for each in self.ids])
        self.milliseconds: Final = np.array([int.from_bytes(each[8:14]) for each in self.ids])
        self.elements: Final = (*tracks.elements, *tracks.open_elements)
        self.hits: Final = search(self.elements, array)
        self.keys: Final = self._by_id(self.hits)
        self.durable: Final = self._by_id(search(tracks.elements, array)) if tracks.open_elements else self.keys

    def _by_id(self, hits: Hits) -> Mapping[bytes, set[HistoryKey]]:
        found: dict[bytes, set[HistoryKey]] = {}
        for row, key, _, _ in hits:
            found.setdefault(self.ids[row], set()).add(key)
        return found

    def upstreams(self, message_id: bytes) -> set[int]:
        return {key.peer for key in self.keys.get(message_id, ()) if key.kind is Kind.ROUTING}

    def subscribers(self, message_id: bytes) -> set[str]:
        return {seen_as(key.subscriber) for key in self.keys.get(message_id, ()) if key.kind is Kind.SUBSCRIBER}


class TracksAreTrue:
    """Tracks tell what happened. `tally` may be shared, to sum over many runs."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.tally: Final = tally or Tally()

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        truth = _Truth(history)
        tracked = {broker for broker, each in truth.tracks.items() if each.settings.strategy is not Strategy.NULL}
        if not tracked or not truth.logged:
            return
        found = {broker: _Found(truth, truth.tracks[broker]) for broker in sorted(tracked)}
        yield from self._crashes(truth, tracked)
        yield from self._check_publications(truth, found)
        yield from self._check_deliveries(truth, found)
        for broker, each in found.items():
            yield from self._spans(truth, truth.tracks[broker], each)
            yield from self._false(truth, broker, each)

    # --- what must be there

    def _crashes(self, truth: _Truth, tracked: set[int]) -> Iterator[Violation]:
        """Every crash is reported by the next incarnation, and T_p bounds what it may cost."""
        for broker in sorted(tracked):
            lives, last = truth.lives.get(broker, _Lives()), truth.tracks[broker].at
            for incarnation, at in lives.crashed_at.items():
                self.tally.window_s = max(self.tally.window_s, at - lives.cut_at.get(incarnation, at))
                if incarnation not in lives.reported and at < last:
                    yield Violation("mistracked", at, f"broker {broker} does not say that incarnation {incarnation} crashed")

    def _check_publications(self, truth: _Truth, found: Mapping[int, _Found]) -> Iterator[Violation]:
        for message_id, row in truth.logged.items():
            broker = pubend_broker(row.pubend)
            if broker not in found or truth.is_erased(broker, row.at):
                continue
            self.tally.entries += 1
            if HistoryKey(Kind.PUBLISHER, broker) in found[broker].keys.get(message_id, ()):
                continue
            if truth.is_gone(row) and truth.lives[broker].crashed_at:
                self.tally.lost += 1  # retention or damage took it, and the broker crashed before its tracks were written
                continue
            yield Violation("mistracked", row.at, f"{message_id.hex()} is not in the publisher history of broker {broker}")

    def _check_deliveries(self, truth: _Truth, found: Mapping[int, _Found]) -> Iterator[Violation]:
        judged: dict[tuple[int, bytes], bool] = {}
        for event in truth.arrived:
            if event.broker not in found:
                continue
            lost = truth.lives.get(event.broker, _Lives()).may_have_lost(event.incarnation, event.at)
            lost = lost or truth.is_erased(event.broker, event.at)
            for message_id in event.ids:
                self.tally.entries += 1
                if event.subscriber not in found[event.broker].subscribers(message_id):
                    if lost:
                        self.tally.lost += 1
                    else:
                        text = f"broker {event.broker} sent {message_id.hex()} to {event.subscriber} and did not track it"
                        yield Violation("mistracked", event.at, text)
                if not self._is_routed(truth, found, event.broker, message_id, judged):
                    text = f"the way of {message_id.hex()} to broker {event.broker} is not in the routing histories"
                    yield Violation("mistracked", event.at, text)

    def _is_routed(
        self,
        truth: _Truth,
        found: Mapping[int, _Found],
        broker: int,
        message_id: bytes,
        judged: dict[tuple[int, bytes], bool],
    ) -> bool:
        """Tell whether the tracks lead from a broker back to a message's origin, or a crash may have taken the next step."""
        if broker == int.from_bytes(message_id[4:8]) or broker not in found:
            return True
        place = (broker, message_id)
        if place in judged:
            return judged[place]
        judged[place] = False  # for ways in a circle
        self.tally.entries += 1
        came = truth.relayed.get(place, ())
        upstreams = found[broker].upstreams(message_id) & {each.upstream for each in came}
        sound = any(self._is_routed(truth, found, upstream, message_id, judged) for upstream in sorted(upstreams))
        if not sound:
            lives = truth.lives.get(broker, _Lives())
            sound = any(lives.may_have_lost(each.incarnation, each.at) or truth.is_erased(broker, each.at) for each in came)
            self.tally.lost += sound
        judged[place] = sound
        return sound

    def _spans(self, truth: _Truth, tracks: Tracks, found: _Found) -> Iterator[Violation]:
        """What a span on disk claims must be in the histories on disk."""
        lost = [each for each in tracks.records if isinstance(each, Lost)]
        for incarnation, span in tracks.spans:
            wanted = Filter(span.filter)
            key = HistoryKey(Kind.SUBSCRIBER, pubend_broker(span.pubend), subscriber=span.subscriber)
            for row in _within(truth.rows.get(span.pubend, []), span):
                if key in found.durable.get(row.id, ()) or _is_told(lost, span, row.tick):
                    continue
                if wanted.matches(truth.attributes.get(row.id, {})):
                    text = f"incarnation {incarnation} of broker {tracks.broker} claims {row.id.hex()} for {span.subscriber}"
                    yield Violation("mistracked", row.at, f"{text}, and its history lacks it")

    # --- what must not be there

    def _false(self, truth: _Truth, broker: int, found: _Found) -> Iterator[Violation]:
        """Compare the claims that are wrong with what equation (1) allows."""
        false = 0
        for message_id, keys in found.keys.items():
            for key in sorted(keys):
                if not truth.holds(broker, key, message_id):
                    false += 1
                    if not any(_may_err(each, key, message_id) for each in found.elements):
                        text = f"broker {broker} claims {message_id.hex()} for {key}, and it never was there"
                        yield Violation("mistracked", 0.0, text)
        asked, expected, variance = self._allowance(truth, broker, found)
        self.tally.asked += asked
        self.tally.false += false
        self.tally.expected += expected
        self.tally.variance += variance
        if false > expected + SIGMAS * sqrt(variance) + SIGMAS:
            text = f"broker {broker} makes {false} false claims where {expected:.2f} are expected"
            yield Violation("mistracked", 0.0, text)

    def _allowance(self, truth: _Truth, broker: int, found: _Found) -> tuple[int, float, float]:
        doubts: dict[tuple[HistoryKey, bytes], float] = {}
        for element in found.elements:
            if element.bits is None or element.key.kind is Kind.NEIGHBOUR:
                continue
            silent = (1.0 - blooms.fpp(element.m, element.k, element.count)) ** (1 << len(element.neighbours))
            for row in np.flatnonzero(_matching(element, found.origins, found.milliseconds)).tolist():
                if not truth.holds(broker, element.key, found.ids[row]):
                    place = (element.key, found.ids[row])
                    doubts[place] = doubts.get(place, 1.0) * silent
        expected = sum(1.0 - silent for silent in doubts.values())
        return len(doubts), expected, sum((1.0 - silent) * silent for silent in doubts.values())


def _is_told(lost: Iterable[Lost], span: Span, tick: int) -> bool:
    return any(
        each.subscriber == span.subscriber and each.pubend == span.pubend and each.from_tick < tick <= each.to_tick
        for each in lost
    )


def _within(rows: list[Logged], span: Span) -> list[Logged]:
    first, stop = (bisect_right(rows, tick, key=lambda row: row.tick) for tick in (span.from_tick, span.to_tick))
    return rows[first:stop]


def _matching(element: Element, origins: Numbers, milliseconds: Numbers) -> Flags:
    """Tell which ids have an element in their matching set."""
    within = (milliseconds >= element.from_ms) & (milliseconds <= element.to_ms)
    flags: Flags = (origins == element.key.origin) & (within | np.isin(milliseconds, element.singletons))
    return flags


def _may_err(element: Element, key: HistoryKey, message_id: bytes) -> bool:
    origin, milliseconds = np.array([int.from_bytes(message_id[4:8])]), np.array([int.from_bytes(message_id[8:14])])
    return element.bits is not None and element.key == key and bool(_matching(element, origin, milliseconds)[0])
