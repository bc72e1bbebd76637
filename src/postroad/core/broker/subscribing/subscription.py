"""A subscription, and its life in each pubend it takes part in.

In one pubend a subscription first *begins*. Its broker asks for the interest and waits until the whole path applies it, then
until the pubend's broker has confirmed our hold on the log, and then until the start is stored. Only then the client is told
where it starts. From there on the subscription takes rows: it is *catching up*, or *live*.

`TRANSITIONS` lists every step. An event that the state does not allow is a bug of ours. The picture in
`docs/internals/subscription-life.md` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId, is_inner


class State(Enum):
    """Where a subscription is in one pubend. The values are what the docs say of them."""

    WAITING = "its interest is not active on the whole path, or its position is not proven"
    ACTIVE = "the whole path applies its interest; the hold on the log is not confirmed, or other pubends are not ready"
    STORING = "the log is held for it; what must be remembered of its start is being stored"
    STORED = "its start is stored, and its client does not know it yet"
    CATCHING_UP = "its client knows the start; it gets its past piece by piece, from the cache or the log"
    LIVE = "it has everything up to the doubt horizon, and gets new rows as soon as they are known"
    ENDED = "it takes no part any more"


class Event(Enum):
    """What happens to it there."""

    ASKED = "it asks for the pubend, or for another position in it"
    ACTIVATED = "the whole path applies its interest"
    HELD = "the pubend's broker has confirmed the hold, and its start is given to the disk"
    STORED = "its start is on the disk, or nothing had to be stored"
    ANNOUNCED = "its client is told the start (`Subscribed` or `Started`)"
    CAUGHT_UP = "it has reached the doubt horizon, and its connection takes rows"
    FELL_BEHIND = "its connection or its application takes no rows, or a gap in the stream does not close"
    ENDED = "its client ends it or is gone, or a durable one moves to another home"


_END: Final = {Event.ENDED: State.ENDED}
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.WAITING: {Event.ASKED: State.WAITING, Event.ACTIVATED: State.ACTIVE, **_END},
    State.ACTIVE: {Event.HELD: State.STORING, **_END},
    State.STORING: {Event.STORED: State.STORED, **_END},
    State.STORED: {Event.ANNOUNCED: State.CATCHING_UP, **_END},
    State.CATCHING_UP: {Event.CAUGHT_UP: State.LIVE, **_END},
    State.LIVE: {Event.FELL_BEHIND: State.CATCHING_UP, **_END},
    State.ENDED: {},
}


class InvalidTransitionError(AssertionError):
    """A bug of ours: an event came to a subscription in a state where it cannot happen."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.name} cannot happen to a subscription that is {state.name}")
        self.state = state
        self.event = event


@dataclass(slots=True)
class PieceAsked:
    """The piece of the past that a subscription waits for."""

    tries: int  # how often it was asked for
    retry_at: float


@dataclass(slots=True)
class Progress:
    """One subscription in one pubend's stream. `position` only rises once it is active."""

    state: State = State.WAITING
    start: int = 0
    position: int = 0  # every matching row up to here was sent to the client
    told: int = 0  # the end of the last range sent to the client; at most `position`
    acknowledged: int = 0  # the application has processed everything up to here; decides our hold on the log
    # used while it begins
    included_in: int = 0  # the lowest label under which silence is complete for its filter; 0: not known
    question: int = 0  # the query whose answer proves or voids the position; 0: not sent yet
    hold: int = 0  # the version of our hold on the log that must be confirmed before the start is stored
    missed_from: int | None = None  # messages from here to `position` were released before the announcement: a gap to report
    # from the activation on
    live_from: int = 0  # from here on, everything that this broker receives is complete for the filter
    piece: PieceAsked | None = None  # only while it catches up

    def apply(self, event: Event) -> None:
        """Go to the state that an event leads to."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise InvalidTransitionError(self.state, event)
        self.state = after

    @property
    def is_held(self) -> bool:
        """Tell whether its start counts: the log was held for it, whether that is stored yet or not."""
        return self.state is not State.WAITING and self.state is not State.ACTIVE

    @property
    def is_stored(self) -> bool:
        return self.state is State.STORED or self.is_announced

    @property
    def is_announced(self) -> bool:
        """Tell whether its client knows the start: from then on it takes rows."""
        return self.state is State.LIVE or self.state is State.CATCHING_UP


@dataclass(slots=True)
class Subscription:
    number: int
    link: LinkId
    handle: int
    filter: Filter
    name: str | None
    positions: dict[int, int]  # where it goes on, from the client or the home broker
    done: dict[int, int]  # how far the client has acknowledged; at most `positions`
    earliest: bool  # it begins with the oldest message that is kept, not with the present
    progress: dict[int, Progress] = field(default_factory=dict)  # by pubend
    unproven: dict[int, None] = field(default_factory=dict)  # pubends whose position may be too high; see `position_proofs`
    lost_cursors: dict[int, None] = field(default_factory=dict)  # pubends in which its cursor was lost: the client gets a gap
    answered: bool = False  # the client received `Subscribed`
    open: bool = True  # the client takes rows; see `Flow`

    @property
    def is_shared(self) -> bool:
        """Tell whether members of a group get its rows: then the group observes what they are given."""
        return is_inner(self.link)
