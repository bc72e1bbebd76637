"""Where a subscription is, per pubend, and what the application has done with.

Three ticks per pubend. `position`: everything up to it was received (or is known not to match). `last_row`: the tick of the
last message handed to the application. `acknowledged`: the application has done with everything up to it; once it reaches
`last_row` nothing is left to do up to `position`, so it jumps there. A delivery that lies at or below the position was seen
before and is dropped, one that overlaps it is clipped: no duplicate. One that starts beyond it is a hole, which a correct
broker never leaves; the subscription then begins again from its position: no loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.packets import Subscribe


@dataclass(slots=True)
class PubendPosition:
    position: int
    acknowledged: int
    last_row: int = 0

    def settle(self) -> bool:
        """Advance `acknowledged` to the position when no delivered message is left to acknowledge."""
        if self.acknowledged < self.last_row or self.acknowledged >= self.position:
            return False
        self.acknowledged = self.position
        return True


@dataclass(slots=True)
class SubscriptionState:
    """One subscription of the application. `handle` is its number on the wire and changes with each (re)subscription."""

    key: Final[int]
    filter: Final[str]
    name: Final[str | None]
    earliest: Final[bool]
    pubends: dict[int, PubendPosition] = field(default_factory=dict)
    criterion: str = ""  # of its admission, in place of the broker's
    starts: dict[int, int] = field(default_factory=dict)  # where each pubend began, the first time
    handle: int = 0
    active: bool = False
    refusals: int = 0  # in a row, of a resubscription
    rejected: bool = False  # the last answer was that it is not admitted now
    holes: int = 0  # without a delivery in between
    retry_at: float | None = None
    ending: bool = False
    forget: bool = False  # it ends for good: its broker is to delete the durable subscription
    unsubscribing: int = 0  # the packet that asked its broker to end it
    open: bool = True  # the application takes rows
    saved: bool = False  # positions are kept in a file: the broker hears of them only when they are there
    changed: set[int] = field(default_factory=set)  # pubends whose acknowledgement the broker does not know
    approved: dict[int, int] = field(default_factory=dict)  # with `saved`: what the file holds
    awaited: dict[int, int] = field(default_factory=dict)  # acknowledgements the broker is to confirm once they are on its disk
    stored: dict[int, int] = field(default_factory=dict)  # acknowledgements it has confirmed

    def request(self) -> Subscribe:
        positions = {pubend: state.position for pubend, state in self.pubends.items()}
        done = self.acknowledged()
        if self.saved:  # what is not in the file yet begins where the pubend began
            done = {pubend: self.approved.get(pubend, self.starts.get(pubend, tick)) for pubend, tick in positions.items()}
        return Subscribe(self.handle, self.filter, self.name, positions, self.earliest, done, self.criterion)

    def begin(self, positions: Mapping[int, int]) -> None:
        """Take the positions a former life of the client saved."""
        self.pubends = {pubend: PubendPosition(tick, tick) for pubend, tick in positions.items()}
        if self.saved:
            self.approved.update(positions)

    def join(self, pubend: int, tick: int) -> tuple[int, int] | None:
        """Start a pubend at this tick. Return the range that is missing when we were not yet there.

        A durable subscription may start ahead of the position its client had saved: at its cursor, which only its own
        acknowledgements moved. What was released meanwhile is told by `Gap`. A start before our position says that the
        pubend never was that far, so the position was not one of its own: it is given up.
        """
        self.starts.setdefault(pubend, tick)
        state = self.pubends.get(pubend)
        if state is None:
            self.pubends[pubend] = PubendPosition(tick, tick)
            return None
        if tick < state.position:
            self.pubends[pubend] = PubendPosition(tick, min(tick, state.acknowledged))
            for ticks in (self.approved, self.awaited, self.stored):
                if pubend in ticks:
                    ticks[pubend] = min(tick, ticks[pubend])
            return None
        missing = self.skip(pubend, state.position, tick)
        return missing if self.name is None else None

    def skip(self, pubend: int, lo: int, hi: int) -> tuple[int, int] | None:
        """Messages in (lo, hi] will never come. Return the part of it that we did not have, if any."""
        state = self.pubends.setdefault(pubend, PubendPosition(lo, lo))
        if hi <= state.position:
            return None
        missed = (max(lo, state.position), hi)
        self.advance(pubend, hi)
        return missed

    def clip(self, pubend: int, lo: int, hi: int, batch: Batch) -> Batch | None:
        """Take a delivery: return the messages not seen before, or None when it leaves a hole."""
        state = self.pubends.get(pubend)
        if state is None or lo > state.position:
            return None
        fresh = batch if lo == state.position else batch.within(state.position, hi)
        if len(fresh):
            state.last_row = fresh.last_tick
            self.holes = 0
        self.advance(pubend, hi)
        return fresh

    def advance(self, pubend: int, tick: int) -> None:
        state = self.pubends.get(pubend)
        if state is not None and tick > state.position:
            state.position = tick
            if state.settle():
                self.changed.add(pubend)

    def acknowledge(self, pubend: int, tick: int) -> None:
        """Note that the application has done with everything of the pubend up to this tick."""
        state = self.pubends.get(pubend)
        if state is None or tick <= state.acknowledged:
            return
        state.acknowledged = min(tick, state.position)
        state.settle()
        self.changed.add(pubend)

    def wants_confirmation(self, pubend: int) -> None:
        """Ask the broker to confirm what is acknowledged of a pubend now, unless it did."""
        acknowledged = self.pubends[pubend].acknowledged if pubend in self.pubends else 0
        if acknowledged > self.stored.get(pubend, 0):
            self.awaited[pubend] = acknowledged
            self.changed.add(pubend)

    def confirmed(self, positions: Mapping[int, int]) -> None:
        """Take in what the broker has stored."""
        for pubend, tick in positions.items():
            self.stored[pubend] = max(tick, self.stored.get(pubend, 0))
            if self.awaited.get(pubend, tick + 1) <= tick:
                del self.awaited[pubend]

    def is_stored(self, positions: Mapping[int, int]) -> bool:
        """Tell whether the broker has confirmed that it stored acknowledgements up to these ticks."""
        return all(self.stored.get(pubend, 0) >= tick for pubend, tick in positions.items())

    def take_acknowledged(self) -> dict[int, int]:
        """Return the acknowledgements the broker has not heard."""
        known = self.approved if self.saved else self.acknowledged()
        news = {pubend: known[pubend] for pubend in sorted(self.changed) if pubend in known}
        self.changed.clear()
        return news

    def approve(self, positions: Mapping[int, int]) -> None:
        """Note that these positions are safe in the application's file, so that the broker may hear of them."""
        self.changed.update(positions)
        self.approved.update(positions)

    def has_news(self) -> bool:
        return not self.changed.isdisjoint(self.approved) if self.saved else bool(self.changed)

    def acknowledged(self) -> dict[int, int]:
        """Return where a new life of the client should go on."""
        return {pubend: state.acknowledged for pubend, state in self.pubends.items()}
