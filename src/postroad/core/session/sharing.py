"""The client's side of shared subscriptions: what a member holds, and which of its acknowledgements are stored.

A member is one connection. What it holds goes to others when that is lost, so nothing is carried over to the next connection: the
application is told (`MemberLost`), and an acknowledgement that was under way is in doubt. `RowsGiven` gives rows, `acknowledge`
finishes them, and `RowsFinished` tells what the broker has on disk, or does not take.

The home of a shared subscription serves its members. Another broker answers with the number of the home, which becomes the event
`HomeNamed`: the driver connects there, and then the member asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroad.core.batch.batch import Batch
from postroad.core.protocol.admission import MILLI, SubscriptionRejected
from postroad.core.protocol.packets import (
    AcknowledgeRows,
    Deliver,
    Flow,
    Gap,
    Joined,
    Packet,
    RowsAcknowledged,
    SharedHome,
    Started,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from postroad.core.session.events import (
    Event,
    HomeNamed,
    MemberLost,
    Missed,
    PubendJoined,
    RowsFinished,
    RowsGiven,
    SubscriptionActive,
    SubscriptionEnded,
    SubscriptionFailed,
)
from postroad.errors import (
    AdmissionError,
    DurableBusyError,
    DurableKindError,
    PostroadError,
    SharedElsewhereError,
    UnfinishedError,
)

_Ticks = dict[int, list[int]]


@dataclass(slots=True)
class Membership:
    """One membership of the application. `handle` is its number on the wire, and changes with each connection."""

    key: Final[int]
    filter: Final[str]
    name: Final[str]
    ordered_by: Final[str]
    credit: Final[int]
    earliest: Final[bool]
    criterion: Final[str]
    handle: int = 0
    active: bool = False
    began: bool = False  # it was active once: then it asks again for as long as it takes
    open: bool = True  # the application takes rows
    refusals: int = 0  # in a row
    retry_at: float | None = None
    refused: PostroadError | None = None  # the last answer
    ending: bool = False
    forget: bool = False
    request: int = 0  # the packet that asked its broker to begin or to end
    done: _Ticks = field(default_factory=dict)  # acknowledged and not sent


class SessionMembers:
    """The memberships of one session. All of it happens on the main link."""

    def __init__(
        self,
        ask: Callable[[Packet], int],
        send: Callable[[Packet], None],
        tell: Callable[[Event], None],
        retry_delay: Callable[[int], float],
        next_handle: Callable[[], int],
    ) -> None:
        self._ask = ask  # sends a request and returns the packet's id, 0 without a link
        self._send = send
        self._tell = tell
        self._retry_delay = retry_delay
        self._next_handle = next_handle
        self._handles: dict[int, Membership] = {}
        self.memberships: Final[dict[int, Membership]] = {}  # by key

    # --- the application ---

    def join(self, membership: Membership) -> None:
        """Become a member; `SubscriptionActive` tells when."""
        self.memberships[membership.key] = membership
        self._subscribe(membership)

    def acknowledge(self, key: int, ticks: Mapping[int, Sequence[int]]) -> None:
        """Finish rows that this member holds; `RowsFinished` follows, or `MemberLost`."""
        membership = self.memberships[key]
        for pubend, rows in ticks.items():
            membership.done.setdefault(pubend, []).extend(rows)

    def flow(self, key: int, *, is_open: bool) -> None:
        """Ask for no more rows, or to go on."""
        membership = self.memberships[key]
        membership.open = is_open
        if membership.active:
            self._send(Flow(membership.handle, is_open))

    def leave(self, key: int, *, forget: bool = False) -> None:
        """Leave; `SubscriptionEnded` follows. With `forget` the subscription is deleted, if nobody else is a member."""
        membership = self.memberships[key]
        membership.ending, membership.forget = True, forget
        self.send_acknowledgements()
        membership.request = 0
        if membership.retry_at is None and membership.handle in self._handles:
            membership.request = self._ask(Unsubscribe(membership.handle, forget))
        if not membership.request:
            self._end(membership, _not_deleted(membership))

    # --- the link ---

    def connected(self) -> None:
        for membership in list(self.memberships.values()):
            self._subscribe(membership)

    def disconnected(self) -> None:
        for membership in list(self.memberships.values()):
            if membership.ending:
                self._end(membership, _not_deleted(membership))
            else:
                self._lose(membership)
        self._handles.clear()

    def wake(self, now: float) -> None:
        for membership in list(self.memberships.values()):
            if membership.retry_at is not None and membership.retry_at <= now:
                membership.retry_at = None
                self._subscribe(membership)

    def deadlines(self) -> list[float | None]:
        return [membership.retry_at for membership in self.memberships.values()]

    def send_acknowledgements(self) -> None:
        """Send what was acknowledged since the last call, in one packet for each membership."""
        for membership in self.memberships.values():
            if membership.done and membership.active:
                done, membership.done = membership.done, {}
                self._send(AcknowledgeRows(membership.handle, done))

    # --- packets ---

    def concerns(self, message: Packet) -> bool:
        """Tell whether a packet is for a membership."""
        return getattr(message, "handle", None) in self._handles

    def receive(self, message: Packet, batch: Batch | None, packet: int, now: float) -> None:
        membership = self._handles[message.handle]  # type: ignore[attr-defined]  # `concerns` has looked
        match message:
            case Joined(starts=starts):
                self._take_joined(membership, starts)
            case Started(pubend=pubend, tick=tick):
                self._tell(PubendJoined(membership.key, pubend, tick))
            case Deliver(pubend=pubend):
                assert batch is not None, "a Deliver carries rows"
                if not membership.ending:
                    self._tell(RowsGiven(membership.key, pubend, batch))
            case RowsAcknowledged(ticks=ticks, refused=refused):
                self._tell(RowsFinished(membership.key, ticks, refused))
            case Gap(pubend=pubend, lo=lo, hi=hi):
                self._tell(Missed(membership.key, pubend, lo, hi))
            case SharedHome(home=home):
                self._take_home(membership, home, now)
            case SubscriptionRejected():
                largest = None if message.largest is None else message.largest / MILLI
                self._refuse(membership, AdmissionError(message.refusals, message.brokers, largest, message.fitting), now)
            case Unsubscribed():
                self._take_unsubscribed(membership, packet, now)
            case _:  # a broker of an older release has begun an ordinary subscription
                self._send(Unsubscribe(membership.handle))
                self._refuse(membership, DurableKindError("the broker's release has no shared subscriptions"), now)

    def refused(self, packet: int, error: PostroadError, now: float) -> None:
        """Handle that the broker answered a request with an error."""
        membership = next((each for each in self.memberships.values() if packet and each.request == packet), None)
        if membership is not None and membership.ending:
            self._end(membership, error)
        elif membership is not None:
            self._refuse(membership, error, now)

    def not_found(self, key: int, home: int, now: float) -> None:
        """Note that the driver has no connection to the home of a shared subscription."""
        membership = self.memberships.get(key)
        if membership is not None and not membership.ending:
            self._refuse(membership, SharedElsewhereError(membership.name, home), now)

    # --- inside ---

    def _subscribe(self, membership: Membership) -> None:
        if membership.retry_at is not None or membership.ending:
            return
        self._handles.pop(membership.handle, None)
        membership.handle, membership.active = self._next_handle(), False
        wanted = Subscribe(
            membership.handle,
            membership.filter,
            membership.name,
            earliest=membership.earliest,
            criterion=membership.criterion,
            shared=True,
            key=membership.ordered_by,
            credit=membership.credit,
        )
        membership.request = self._ask(wanted)
        if membership.request:
            self._handles[membership.handle] = membership

    def _take_joined(self, membership: Membership, starts: dict[int, int]) -> None:
        membership.active = membership.began = True
        membership.refusals, membership.refused = 0, None
        if not membership.open:
            self._send(Flow(membership.handle, open=False))
        self._tell(SubscriptionActive(membership.key, dict(starts)))

    def _take_home(self, membership: Membership, home: int, now: float) -> None:
        if membership.ending:
            return  # the broker refuses to end what it does not have
        self._handles.pop(membership.handle, None)
        membership.refused = SharedElsewhereError(membership.name, home)
        membership.retry_at = now + self._retry_delay(membership.refusals)
        membership.refusals += 1
        self._tell(HomeNamed(membership.key, home))

    def _take_unsubscribed(self, membership: Membership, packet: int, now: float) -> None:
        """Handle the end; one that nobody asked for means that the group has ended: ask again."""
        if membership.ending:
            error = None if packet == membership.request else _not_deleted(membership)
            self._end(membership, error)
            return
        self._handles.pop(membership.handle, None)
        self._lose(membership)
        membership.retry_at = now + self._retry_delay(membership.refusals)
        membership.refusals += 1

    def _refuse(self, membership: Membership, error: PostroadError, now: float) -> None:
        """Ask again later, where that may help: a name that is being created is busy for a moment."""
        self._handles.pop(membership.handle, None)
        membership.refused = error
        if isinstance(error, DurableBusyError) or (membership.began and error.retryable):
            self._lose(membership)
            membership.retry_at = now + self._retry_delay(membership.refusals)
            membership.refusals += 1
        else:
            self.memberships.pop(membership.key, None)
            self._tell(SubscriptionFailed(membership.key, error))

    def _lose(self, membership: Membership) -> None:
        """Tell that what the member holds is not its own any more."""
        membership.done.clear()
        if membership.active:
            membership.active = False
            self._tell(MemberLost(membership.key))

    def _end(self, membership: Membership, error: PostroadError | None) -> None:
        self.memberships.pop(membership.key, None)
        self._handles.pop(membership.handle, None)
        self._tell(SubscriptionEnded(membership.key, error if membership.forget else None))


def _not_deleted(membership: Membership) -> UnfinishedError:
    return UnfinishedError(
        f"no broker confirmed that the shared subscription {membership.name!r} is deleted, since it was not active or the "
        "connection was lost; delete it again later"
    )
