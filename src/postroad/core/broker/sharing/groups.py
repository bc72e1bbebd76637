"""Groups: the members of a shared subscription at this broker, which is its home, and the inner client that subscribes for them.

A group subscribes under the name of the subscription, over a link that exists only inside the machine (`is_inner`). The machine
passes what is sent to that link to `take`, and what the group asks (`take_requests`) to itself, as if a client had sent it. So
every rule of a durable subscription holds for a shared one. What comes is given to the members by `members`.

An acknowledgement of a member is written with the record of the subscription, and confirmed when that is on disk. All that come
during one write are stored together by the next one.

Invariants:

- A group exists from its first member to its last. Its rows are in memory only: the record has what is finished.
- `_places` has exactly the members of all groups, by (link, handle).
- Nothing is given before the subscription is settled here, and before what a former group of the name took is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.broker.context import Context
from postroad.core.broker.sharing.members import CREDIT_MAX, MEMBERS_MAX, Members, still_unfinished
from postroad.core.broker.views import SharedRecords
from postroad.core.protocol.admission import SubscriptionRejected
from postroad.core.protocol.observations import Delivered
from postroad.core.protocol.orders import LinkId, Refuse, Send
from postroad.core.protocol.packets import (
    Acknowledge,
    AcknowledgeRows,
    Advance,
    Deliver,
    Flow,
    Gap,
    Joined,
    Packet,
    RowsAcknowledged,
    SharedHome,
    Started,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from postroad.errors import (
    DuplicateHandleError,
    DurableBusyError,
    DurableElsewhereError,
    DurableFilterError,
    DurableKindError,
    PostroadError,
    SharedElsewhereError,
    TooManyError,
)

INNER_HANDLE: Final = 1
_PacketOf: TypeAlias = Callable[[int], Packet]


@dataclass(frozen=True, slots=True)
class RowsStored:
    """Work after a write: the acknowledgements that a group took before it are on disk."""

    name: str
    group: LinkId


@dataclass(frozen=True, slots=True)
class InnerRequest:
    """What a group sends to its own broker over its inner link; with `packet` None, the link is gone."""

    link: LinkId
    packet: Packet | None
    request: int = 0


@dataclass(slots=True)
class _Member:
    number: int
    link: LinkId
    handle: int
    request: int  # to be answered when the group is active


@dataclass(frozen=True, slots=True)
class _Finished:
    """Rows that a member acknowledged and that are not on disk yet."""

    member: int
    ticks: dict[int, list[int]]


@dataclass(slots=True)
class _Group:
    name: str
    link: LinkId
    filter: str
    key: str
    rows: Members
    members: dict[int, _Member] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    active: bool = False  # the inner client is told where it starts
    open: bool = True  # the inner client takes rows
    finished: list[_Finished] = field(default_factory=list)
    storing: list[_Finished] = field(default_factory=list)
    told: dict[int, int] = field(default_factory=dict)  # the floors that its subscription knows
    forgetting: _Member | None = None  # who asked to delete the subscription


class Sharing:
    """The shared subscriptions at home at this broker that have members now."""

    def __init__(self, context: Context, records: SharedRecords) -> None:
        self._context = context
        self._records = records
        self._groups: dict[str, _Group] = {}  # by name
        self._inner: dict[LinkId, _Group] = {}  # by inner link, also while the subscription is being deleted
        self._places: dict[tuple[LinkId, int], tuple[_Group, _Member]] = {}
        self._congested: dict[LinkId, None] = {}
        self._requests: list[InnerRequest] = []
        self._changed: dict[str, None] = {}  # groups that may have something to give or to store
        self._writes: dict[str, int] = {}  # by name: how many writes of acknowledgements are under way
        self._links = 0
        self._numbers = 0

    # --- what the machine asks ---

    def __len__(self) -> int:
        return len(self._groups)

    def has_member(self, link: LinkId, handle: int) -> bool:
        return (link, handle) in self._places

    def count_of_link(self, link: LinkId) -> int:
        """Count the members of a connection."""
        return sum(place[0] == link for place in self._places)

    def members_of(self, name: str) -> int:
        """Return how many members a shared subscription has now."""
        return len(self._groups[name].members) if name in self._groups else 0

    def finished(self, name: str) -> dict[int, int]:
        """Return, by pubend, the tick up to which members have finished everything of a shared subscription."""
        return self._groups[name].rows.floors() if name in self._groups else {}

    def stats(self) -> dict[str, int]:
        groups = self._groups.values()
        return {
            "shared_members": len(self._places),
            "shared_rows": sum(group.rows.rows for group in groups),
            "shared_rows_held": sum(group.rows.held_rows for group in groups),
        }

    def take_requests(self) -> list[InnerRequest]:
        """Return what the groups send to their own broker, in order."""
        requests, self._requests = self._requests, []
        return requests

    # --- members ---

    def join(self, link: LinkId, packet: Subscribe, request: int) -> None:
        """Add a member; begin the group with the first one."""
        assert packet.name is not None, "checked by the machine"
        if self.has_member(link, packet.handle):
            raise DuplicateHandleError(f"handle {packet.handle} is in use on this connection")
        self._check_room(link)
        group, home = self._groups.get(packet.name), self._records.former_home(packet.name)
        if group is None and home is not None:
            self._context.send(link, SharedHome(packet.handle, home), request)
            return
        if group is None:
            group = self._begin(link, packet.name, packet)
        else:
            self._check_same(group, packet)
            if len(group.members) >= MEMBERS_MAX:
                raise TooManyError(f"the shared subscription {packet.name!r} has {MEMBERS_MAX} members, which is the maximum")
        self._numbers += 1
        member = group.members[self._numbers] = _Member(self._numbers, link, packet.handle, request)
        self._places[link, packet.handle] = group, member
        group.rows.join(member.number, min(packet.credit, CREDIT_MAX))
        if group.active:
            self._answer(group, member)
        self._changed[group.name] = None

    def _check_room(self, link: LinkId) -> None:
        config, owner = self._context.config, self._context.rights_of(link).owner
        if len(self._places) >= config.subscriptions_max:
            raise TooManyError(f"this broker allows at most {config.subscriptions_max} subscriptions")
        if owner:
            own = sum(self._context.rights_of(place[0]).owner == owner for place in self._places)
            if own >= config.subscriptions_per_identity_max:
                most = config.subscriptions_per_identity_max
                raise TooManyError(f"one identity has at most {most} subscriptions at this broker")

    def _check_same(self, group: _Group, packet: Subscribe) -> None:
        if group.key != packet.key:
            kind = f"the key {group.key!r}" if group.key else "no key"
            raise DurableKindError(f"the members of {group.name!r} share it with {kind}; subscribe in the same way")
        if self._context.filter(group.filter) != self._context.filter(packet.filter):
            raise DurableFilterError(f"the members of {group.name!r} have the filter {group.filter!r}")

    def _begin(self, link: LinkId, name: str, packet: Subscribe) -> _Group:
        self._links += 1
        inner = -self._links
        group = _Group(name, inner, packet.filter, packet.key, Members(packet.key))
        self._groups[name] = self._inner[inner] = group
        self._context.rights[inner] = self._context.rights_of(link)
        wanted = Subscribe(
            INNER_HANDLE,
            packet.filter,
            name,
            earliest=packet.earliest,
            criterion=packet.criterion,
            shared=True,
            key=packet.key,
        )
        self._requests.append(InnerRequest(inner, wanted, 1))
        return group

    def _answer(self, group: _Group, member: _Member) -> None:
        self._context.send(member.link, Joined(member.handle, dict(group.starts)), member.request)

    def leave(self, link: LinkId, packet: Unsubscribe, request: int) -> None:
        """Handle a member that leaves, or that wants the whole subscription deleted: it leaves also where that is refused."""
        group, member = self._places[link, packet.handle]
        self._remove(group, member)
        member.request = request
        if packet.forget and group.members:
            text = f"not deleted: {group.name!r} has {len(group.members)} other members"
            self._context.refuse(link, request, DurableBusyError(text))
            return
        if packet.forget and not group.active:
            text = f"not deleted: {group.name!r} is not active yet; try again later"
            self._context.refuse(link, request, DurableElsewhereError(text))
            self._end_if_empty(group)
            return
        if packet.forget:
            group.forgetting = member
            del self._groups[group.name]
            self._requests.append(InnerRequest(group.link, Unsubscribe(INNER_HANDLE, forget=True), request))
            return
        self._context.send(link, Unsubscribed(packet.handle), request)
        self._end_if_empty(group)

    def link_lost(self, link: LinkId) -> None:
        """Remove the members of a lost connection; what they hold is given to others."""
        self._congested.pop(link, None)
        for group, member in [found for place, found in self._places.items() if place[0] == link]:
            self._remove(group, member)
            self._end_if_empty(group)

    def _remove(self, group: _Group, member: _Member) -> None:
        del self._places[member.link, member.handle], group.members[member.number]
        group.rows.leave(member.number)
        self._changed[group.name] = None

    def _end_if_empty(self, group: _Group) -> None:
        if not group.members and self._groups.get(group.name) is group:
            self._keep_unfinished(group)
            if group.finished:
                self._write(group)
            del self._groups[group.name]
            self._let_go(group)

    def _let_go(self, group: _Group) -> None:
        self._requests.append(InnerRequest(group.link, None))

    def inner_gone(self, link: LinkId) -> None:
        """Forget an inner link, when the machine has ended what it had."""
        self._inner.pop(link, None)
        self._context.rights.pop(link, None)

    def flow(self, link: LinkId, packet: Flow) -> None:
        group, member = self._places[link, packet.handle]
        group.rows.take_rows(member.number, ready=packet.open)
        self._changed[group.name] = None

    def congested(self, link: LinkId) -> None:
        self._congested[link] = None

    def drained(self, link: LinkId) -> None:
        self._congested.pop(link, None)
        self._changed.update({group.name: None for place, (group, _) in self._places.items() if place[0] == link})

    def acknowledge(self, link: LinkId, packet: AcknowledgeRows) -> None:
        """Finish rows; they are confirmed when that is on disk, and those that the member does not hold are refused at once."""
        found = self._places.get((link, packet.handle))
        if found is None:
            return  # it has left: nobody waits for the answer
        group, member = found
        done: dict[int, list[int]] = {}
        refused: dict[int, list[int]] = {}
        for pubend, ticks in packet.ticks.items():
            accepted, unknown = group.rows.finish(member.number, pubend, ticks)
            if accepted:
                done[pubend] = accepted
            if unknown:
                refused[pubend] = unknown
        if done:
            group.finished.append(_Finished(member.number, done))
        if refused:
            self._context.send(link, RowsAcknowledged(packet.handle, {}, refused))
        self._changed[group.name] = None

    # --- the inner client ---

    def take(self, order: Send | Refuse) -> None:
        """Handle what this broker sends to the inner client of a group."""
        group = self._inner.get(order.link)
        if group is None:
            return
        if isinstance(order, Refuse):
            self._refused(group, order.error)
            return
        match order.message:
            case Subscribed(starts=starts):
                self._activate(group, starts)
            case Started(pubend=pubend, tick=tick):
                self._start(group, pubend, tick)
                self._tell(group, lambda handle: Started(handle, pubend, tick))
            case Deliver(pubend=pubend, hi=hi):
                assert order.batch is not None, "a Deliver carries rows"
                finished = group.rows.add(pubend, order.batch, hi)
                if finished is not None:  # delivered in a former life, which may not have recorded that
                    self._observe(group, pubend, finished)
            case Advance(positions=positions):
                for pubend, tick in positions.items():
                    group.rows.reach(pubend, tick)
            case Gap(pubend=pubend, lo=lo, hi=hi):
                group.rows.reach(pubend, hi)
                self._tell(group, lambda handle: Gap(handle, pubend, lo, hi))
            case Unsubscribed():
                self._ended(group)
            case SubscriptionRejected() as rejected:
                for member in group.members.values():
                    told = msgspec.structs.replace(rejected, handle=member.handle)
                    self._context.send(member.link, told, member.request)
                self._disband(group)
            case _:
                raise AssertionError(order.message)
        self._changed[group.name] = None

    def _activate(self, group: _Group, starts: Mapping[int, int]) -> None:
        group.active = True
        for pubend, tick in starts.items():
            self._start(group, pubend, tick)
        for member in group.members.values():
            self._answer(group, member)

    def _start(self, group: _Group, pubend: int, tick: int) -> None:
        group.starts[pubend] = group.told[pubend] = tick
        record = self._records.here.get(group.name)
        unfinished = record.unfinished.get(pubend, ()) if record is not None else ()
        group.rows.begin(pubend, tick, unfinished)

    def _tell(self, group: _Group, packet_of: _PacketOf) -> None:
        for member in group.members.values():
            self._context.send(member.link, packet_of(member.handle))

    def _refused(self, group: _Group, error: PostroadError) -> None:
        waiting = [*group.members.values()] if group.forgetting is None else [group.forgetting]
        for member in waiting:
            if isinstance(error, SharedElsewhereError):
                self._context.send(member.link, SharedHome(member.handle, error.home), member.request)
            else:
                self._context.refuse(member.link, member.request, error)
        self._disband(group)

    def _ended(self, group: _Group) -> None:
        """Handle the end of the subscription: it was deleted as a member asked, or another broker is its home."""
        if group.forgetting is not None:
            member = group.forgetting
            self._context.send(member.link, Unsubscribed(member.handle), member.request)
        self._tell(group, Unsubscribed)
        self._disband(group)

    def _disband(self, group: _Group) -> None:
        for member in list(group.members.values()):
            self._remove(group, member)
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
        self._let_go(group)

    # --- giving and storing ---

    def settled(self, name: str) -> None:
        """Begin to give out rows: the subscription is at home here, and that is on disk."""
        self._changed[name] = None

    def serve(self) -> None:
        """Give rows to members, pass on how far everything is finished, and store what was acknowledged."""
        changed, self._changed = self._changed, {}
        for name in changed:
            group = self._groups.get(name)
            if group is not None and group.active:
                self._give(group)
                self._pass_on(group)
                if group.finished and not group.storing and not self._writes.get(name):
                    self._write(group)

    def _give(self, group: _Group) -> None:
        record = self._records.here.get(group.name)
        if record is None or not record.settled or (self._writes.get(group.name) and not group.storing):
            return
        stopped = [member.number for member in group.members.values() if member.link in self._congested]
        for given in group.rows.give(stopped):
            member = group.members[given.member]
            ticks = given.rows.ticks()
            message = Deliver(member.handle, given.pubend, int(ticks[0]) - 1, int(ticks[-1]))
            self._context.orders.append(Send(member.link, message, given.rows, data=True))
            self._observe(group, given.pubend, given.rows)

    def _observe(self, group: _Group, pubend: int, rows: Batch) -> None:
        record = self._records.here.get(group.name)
        if self._context.config.observed and record is not None and record.subscription is not None:
            self._context.orders.append(Delivered(pubend, rows, (record.subscription,), (np.arange(len(rows)),)))

    def _pass_on(self, group: _Group) -> None:
        """Tell the inner subscription what is finished, and whether there is room for more."""
        floors = group.rows.floors()
        news = {pubend: tick for pubend, tick in floors.items() if tick > group.told.get(pubend, 0)}
        if news:
            group.told.update(news)
            self._requests.append(InnerRequest(group.link, Acknowledge(INNER_HANDLE, news)))
        if group.open and group.rows.is_full:
            group.open = False
            self._requests.append(InnerRequest(group.link, Flow(INNER_HANDLE, open=False)))
        elif not group.open and group.rows.is_half_empty:
            group.open = True
            self._requests.append(InnerRequest(group.link, Flow(INNER_HANDLE, open=True)))

    def _keep_unfinished(self, group: _Group) -> None:
        """Put what is finished above the cursors into the record."""
        record = self._records.here.get(group.name)
        if record is not None and group.active:
            other = {pubend: ticks for pubend, ticks in record.unfinished.items() if pubend not in group.starts}
            record.unfinished = still_unfinished(other, record.cursors) | group.rows.unfinished(record.cursors)

    def _write(self, group: _Group) -> None:
        self._keep_unfinished(group)
        group.storing, group.finished = group.finished, []
        self._writes[group.name] = self._writes.get(group.name, 0) + 1
        self._records.mark(group.name)
        self._context.store(self._records.changes(), RowsStored(group.name, group.link))

    def stored(self, done: RowsStored) -> None:
        """Confirm what is on disk now; the next rows with the same keys may be given."""
        left = self._writes.pop(done.name) - 1
        if left:
            self._writes[done.name] = left
        self._changed[done.name] = None
        group = self._groups.get(done.name)
        if group is None or group.link != done.group:
            return
        finished, group.storing = group.storing, []
        for each in finished:
            for pubend, ticks in each.ticks.items():
                group.rows.stored(pubend, ticks)
            member = group.members.get(each.member)
            if member is not None:
                self._context.send(member.link, RowsAcknowledged(member.handle, each.ticks))
