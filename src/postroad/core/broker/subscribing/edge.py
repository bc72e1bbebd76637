"""The edge: the subscriptions of this broker's own clients.

For each pubend a subscription is *waiting* (for the activation of its interest), *live* (it has everything up to `delivered`,
the doubt horizon of the stream) or *catching up* (it gets its own stretch, piece by piece, until it has reached `delivered`).

Live delivery reads the cache from `delivered` on and stops at the first tick that is missing or whose label is below what is
*required* there. Nothing waits in the edge itself: undelivered rows stand in the cache, which is bounded; what it had to drop
is asked for again.

Invariants: a subscription's `position` only rises, and it has been sent exactly the matching rows in (start, position];
`delivered` only rises while anyone is engaged in the stream.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.selection import Rows, select
from postroad.core.broker.knowledge import Segment, rows_within
from postroad.core.broker.subscribing.filter_load import FilterLoad
from postroad.core.broker.subscribing.waiting import Waiting
from postroad.core.broker.views import RelayedStream, RelayedStreams
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.core.protocol.observations import Attached, Delivered, Detached, GapTold, Output
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import Advance, Deliver, Gap, Started, Unsubscribed

CATCH_UP_RETRY_S: Final = 1.0
NACK_DELAY_S: Final = 0.05
NACK_BACKOFF_MAX_S: Final = 2.0
NACK_TRIES_MAX: Final = 6  # about three seconds
NACK_RANGES: Final = 64
TOLD_AT_ONCE: Final = 100
FOREVER: Final = (1 << 64) - 1


class Phase(Enum):
    WAITING = "waiting"
    CATCHING_UP = "catching up"
    LIVE = "live"


@dataclass(slots=True)
class Progress:
    """One subscription in one pubend's stream."""

    phase: Phase = Phase.WAITING
    included_in: int = 0
    start: int = 0
    position: int = 0  # the client was sent all that matches up to here
    told: int = 0  # and knows that; at most `position`
    acknowledged: int = 0
    live_from: int = 0  # live delivery is complete for it from here on
    hold: int = 0  # the version of our hold on the log that must be confirmed before the client hears of the start
    storing: bool = False  # and what must be remembered of it is being stored,
    stored: bool = False  # or was
    announced: bool = False  # the client knows the start: it takes rows
    missed_from: int = FOREVER  # what was released before it was announced begins here
    request: int = 0  # the catch-up under way, 0 for none
    tries: int = 0  # how often it was asked for
    retry_at: float = 0.0
    question: int = 0  # the question that decides whether the position can be; 0: not asked yet


@dataclass(slots=True)
class Subscription:
    number: int
    link: LinkId
    handle: int
    filter: Filter
    name: str | None
    positions: dict[int, int]  # what the client or the home said
    done: dict[int, int]  # and what the client has acknowledged of it
    earliest: bool
    progress: dict[int, Progress] = field(default_factory=dict)
    unproven: dict[int, None] = field(default_factory=dict)  # pubends whose position may lie beyond them; see `positions`
    lost_cursors: dict[int, None] = field(default_factory=dict)  # pubends it was in before, nobody knows where: it is told a gap
    answered: bool = False
    open: bool = True  # the client takes rows; see `Flow`


@dataclass(slots=True)
class EdgeStream:
    """The live side of one pubend at this broker."""

    stream: RelayedStream
    delivered: int = 0
    required: list[tuple[int, int]] = field(default_factory=list)  # (from tick, label), both ascending
    engaged: int = 0  # subscriptions that are live or catching up
    nack_at: float = float("inf")
    nack_backoff: float = NACK_DELAY_S
    nack_tries: int = 0  # without progress

    def need_at(self, tick: int) -> tuple[int, int]:
        """Return the label needed just after a tick, and up to where."""
        label, until = 0, FOREVER
        for start, needed in self.required:
            if start <= tick:
                label = needed
            else:
                until = start
                break
        return label, until

    def require(self, tick: int, label: int) -> None:
        while self.required and self.required[-1][0] >= tick and self.required[-1][1] <= label:
            self.required.pop()
        if not self.required or self.required[-1][1] < label:
            self.required.append((max(tick, self.required[-1][0] if self.required else 0), label))

    def forget_required(self) -> None:
        while len(self.required) > 1 and self.required[1][0] <= self.delivered:
            self.required.pop(0)


class EdgeStreams(dict[int, EdgeStream]):
    """The live sides of all pubends, each made when it is used first."""

    def __init__(self, relayed: RelayedStreams) -> None:
        super().__init__()
        self._relayed = relayed

    def __missing__(self, pubend: int) -> EdgeStream:
        made = self[pubend] = EdgeStream(self._relayed[pubend])
        return made


class LowestPosition:
    """The lowest acknowledged position in one pubend.

    A heap of positions as they were when they were looked at last. One that is lowered is added again; otherwise they only
    rise, so the first that is still true is the lowest.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Progress]] = []  # (position, number of the entry, subscription, progress)
        self._entries = 0

    def add(self, number: int, progress: Progress, subscriptions: Mapping[int, object]) -> None:
        self._entries += 1
        heapq.heappush(self._heap, (progress.acknowledged, self._entries, number, progress))
        if len(self._heap) > 4 * len(subscriptions) + 64:
            newest = {entry[2]: entry for entry in sorted(self._heap, key=_entry_number) if entry[2] in subscriptions}
            self._heap = list(newest.values())
            heapq.heapify(self._heap)

    def find(self, subscriptions: Mapping[int, Subscription], pubend: int) -> int | None:
        """Return the lowest position of those that still exist; one that began again has a new place."""
        heap = self._heap
        while heap:
            tick, entry, number, progress = heap[0]
            subscription = subscriptions.get(number)
            if subscription is None or subscription.progress.get(pubend) is not progress:
                heapq.heappop(heap)
            elif progress.acknowledged > tick:
                heapq.heapreplace(heap, (progress.acknowledged, entry, number, progress))
            else:
                return tick
        return None


def _entry_number(entry: tuple[int, int, int, Progress]) -> int:
    return entry[1]


class Edge:
    """All subscriptions of one broker."""

    def __init__(self, streams: RelayedStreams, orders: list[Output], *, observed: bool = False) -> None:
        self._orders = orders
        self._observed = observed
        self.subscriptions: dict[int, Subscription] = {}
        self.streams = EdgeStreams(streams)
        self._by_link: dict[LinkId, dict[int, Subscription]] = {}  # link -> handle -> subscription
        self._index: FilterIndex[int] = FilterIndex()
        self._congested: dict[LinkId, None] = {}
        self._waiting: dict[int, Waiting[Subscription]] = {}  # by pubend
        self._behind: dict[int, dict[int, Subscription]] = {}  # pubend -> number; those whose clients know the start
        self._lowest: dict[int, LowestPosition] = {}  # by pubend
        self.filter_load = FilterLoad()
        self._telling: list[int] = []  # whom `tell_positions` has still to visit
        self._told_at_once = TOLD_AT_ONCE
        self._number = 0

    # --- subscriptions ---

    def find(self, link: LinkId, handle: int) -> Subscription | None:
        return self._by_link.get(link, {}).get(handle)

    def of_link(self, link: LinkId) -> list[Subscription]:
        return list(self._by_link.get(link, {}).values())

    def add(
        self,
        link: LinkId,
        handle: int,
        filter_: Filter,
        name: str | None,
        positions: dict[int, int],
        *,
        done: dict[int, int],
        earliest: bool,
    ) -> Subscription:
        self._number += 1
        subscription = Subscription(self._number, link, handle, filter_, name, positions, done, earliest)
        self.subscriptions[subscription.number] = subscription
        self._by_link.setdefault(link, {})[handle] = subscription
        self._index.add(subscription.number, filter_)
        self.filter_load.add(link, filter_)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription.number]
        handles = self._by_link[subscription.link]
        del handles[subscription.handle]
        if not handles:
            del self._by_link[subscription.link]
        self._index.remove(subscription.number)
        self.filter_load.remove(subscription.link, subscription.filter)
        for pubend, progress in subscription.progress.items():
            if progress.phase is Phase.WAITING:
                self._waiting[pubend].discard(subscription.number)
            self._behind.get(pubend, {}).pop(subscription.number, None)
            if self._observed and progress.announced:
                self._orders.append(Detached(subscription.number, pubend, self.reached(progress, pubend)))
            if progress.phase is not Phase.WAITING:
                self.streams[pubend].engaged -= 1

    def wait_for(self, subscription: Subscription, pubend: int) -> None:
        """Note that a subscription has asked for a pubend and waits for the activation.

        Until then it holds what we know of the stream: the activation cannot lie before that.
        """
        progress = subscription.progress.setdefault(pubend, Progress())  # one that waits again keeps it: it counts in `_lowest`
        stream = self.streams[pubend].stream
        if pubend in subscription.positions:
            self.reposition(subscription, pubend)
            return
        if not subscription.earliest:
            progress.acknowledged = stream.cache.frontier
        self._wait(subscription, pubend)

    def hold(self, subscription: Subscription, pubend: int) -> None:
        """Take into account where a subscription needs the log from. To be called when that is new or has been lowered."""
        lowest = self._lowest.setdefault(pubend, LowestPosition())
        lowest.add(subscription.number, subscription.progress[pubend], self.subscriptions)

    def _wait(self, subscription: Subscription, pubend: int) -> None:
        progress = subscription.progress[pubend]
        label = self.streams[pubend].stream.included_in(subscription.filter)
        progress.included_in = label or 0
        self._waiting.setdefault(pubend, Waiting()).add(subscription.number, subscription, label)

    def reposition(self, subscription: Subscription, pubend: int) -> None:
        """Take the position of a subscription that waits for a pubend as it is now."""
        self._wait(subscription, pubend)
        progress = subscription.progress[pubend]
        progress.start = progress.position = progress.told = subscription.positions[pubend]
        progress.acknowledged = subscription.done.get(pubend, progress.start)

    def activate(self, subscription: Subscription, pubend: int, tick: int) -> None:
        """Begin to deliver a pubend to a subscription whose interest the whole path applies from `tick` on."""
        progress, edge = subscription.progress[pubend], self.streams[pubend]
        frontier = max(edge.stream.cache.frontier, edge.delivered)
        progress.live_from = max(tick, frontier)
        if pubend not in subscription.positions:
            progress.start = 0 if subscription.earliest else max(tick, progress.acknowledged)
            progress.position = progress.told = progress.acknowledged = progress.start
        if pubend in subscription.lost_cursors:
            progress.start = progress.missed_from = 0
        if progress.included_in:
            edge.require(progress.live_from, progress.included_in)
        if edge.engaged == 0:
            edge.delivered = max(edge.delivered, progress.live_from)
            edge.forget_required()
        edge.engaged += 1
        progress.phase = Phase.CATCHING_UP

    def begin_after(self, subscription: Subscription, pubend: int, released: int) -> None:
        """Let a new start lie after what was gone when the log was held for it: what comes before was never promised."""
        progress = subscription.progress[pubend]
        if pubend in subscription.lost_cursors:
            progress.position = max(progress.position, released)
        elif pubend not in subscription.positions and progress.start < released:
            progress.start = progress.position = progress.told = progress.acknowledged = released

    def announce(self, subscription: Subscription, pubend: int) -> None:
        """Tell the client where it starts in a pubend, unless `Subscribed` just did; from here on it takes rows."""
        progress = subscription.progress[pubend]
        progress.announced = True
        if self._observed:
            number, text = subscription.number, str(subscription.filter)
            self._orders.append(Attached(number, subscription.link, subscription.name, text, pubend, progress.start))
        if subscription.answered:
            self._orders.append(Send(subscription.link, Started(subscription.handle, pubend, progress.start)))
        if progress.missed_from < progress.position:
            self._tell_gap(subscription, pubend, progress.missed_from, progress.position)
        if not self._join_if_level(subscription, pubend):
            self._fall_behind(subscription, pubend)

    def waiting(self, pubend: int, label_active: int) -> Iterator[Subscription]:
        """Yield the subscriptions whose interest in a pubend has become active: they wait no longer.

        Those whose position is unproven are passed over. They wait again when it is proven or given up; see `reposition`.
        """
        waiting, stream = self._waiting.get(pubend), self.streams[pubend].stream
        if not waiting or (stream.parent is None and not stream.hosted_here):
            return
        for number, subscription in waiting.unlabelled():  # they came while there was no parent
            label = stream.included_in(subscription.filter)
            if label is not None:
                subscription.progress[pubend].included_in = label
                waiting.add(number, subscription, label)
        for subscription in waiting.take(label_active):
            if pubend not in subscription.unproven:
                yield subscription

    def acknowledge(self, subscription: Subscription, positions: dict[int, int]) -> None:
        for pubend, tick in positions.items():
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.phase is not Phase.WAITING:
                progress.acknowledged = max(progress.acknowledged, min(tick, self.reached(progress, pubend)))
            elif (
                pubend in subscription.done and pubend not in subscription.unproven
            ):  # it waits for a pubend, or that is out of reach
                at_most = min(tick, subscription.positions.get(pubend, 0))
                subscription.done[pubend] = max(subscription.done[pubend], at_most)

    def holds(self) -> dict[int, int]:
        """Return for each pubend the lowest position that a subscription still needs the log from."""
        lowest = {pubend: positions.find(self.subscriptions, pubend) for pubend, positions in self._lowest.items()}
        return {pubend: tick for pubend, tick in lowest.items() if tick is not None}

    def cursors(self, subscription: Subscription) -> dict[int, int]:
        """Return where a subscription would go on after a crash of its client; unproven positions do not count."""
        brought = {**subscription.positions, **subscription.done}
        known = {pubend: tick for pubend, tick in brought.items() if pubend not in subscription.unproven}
        known.update({p: s.acknowledged for p, s in subscription.progress.items() if s.phase is not Phase.WAITING})
        return known

    def reached(self, progress: Progress, pubend: int) -> int:
        """Return up to where a subscription has everything that matches."""
        live = progress.phase is Phase.LIVE
        return max(progress.position, self.streams[pubend].delivered) if live else progress.position

    def reached_by(self, number: int, pubend: int) -> int:
        """Return up to where a subscription has everything that matches; 0 for one that has ended."""
        subscription = self.subscriptions.get(number)
        progress = subscription.progress.get(pubend) if subscription is not None else None
        return 0 if progress is None else self.reached(progress, pubend)

    # --- live delivery ---

    def advance(self, pubend: int, now: float) -> None:
        """Deliver what has become contiguous; note a gap to ask for."""
        edge = self.streams[pubend]
        if edge.engaged == 0:
            return
        before = edge.delivered
        while True:
            part = self._next_part(edge)
            if part is None:
                break
            self.deliver(pubend, part)
            edge.delivered = part.hi
        edge.forget_required()
        if edge.delivered > before:
            edge.nack_backoff, edge.nack_at, edge.nack_tries = NACK_DELAY_S, float("inf"), 0
        if edge.stream.cache.frontier > edge.delivered and edge.nack_at == float("inf"):
            edge.nack_at = now + edge.nack_backoff

    def _next_part(self, edge: EdgeStream) -> Segment | None:
        segment = next(iter(edge.stream.cache.read(edge.delivered, FOREVER)), None)
        if segment is None or segment.lo > edge.delivered:
            return None
        need, until = edge.need_at(edge.delivered)
        if segment.label < need:
            return None
        return segment.cut(segment.lo, until)

    def deliver(self, pubend: int, part: Segment) -> None:
        """Send the live subscriptions the rows of one stretch that match."""
        if part.rows is None:
            return
        live: list[tuple[Subscription, Progress]] = []
        wanted: list[Rows] = []
        for number, matching in self._index.match(part.rows).items():
            subscription = self.subscriptions[number]
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.phase is Phase.LIVE:
                live.append((subscription, progress))
                wanted.append(matching)
        whole: list[int] = []  # the subscriptions that get all that matches, and which rows those are
        rows_of: list[Rows] = []
        for (subscription, progress), matching, selected in zip(live, wanted, select(part.rows, wanted), strict=True):
            rows = selected
            if progress.position > part.lo:
                within = rows_within(selected, progress.position, part.hi)
                if within is None:
                    continue
                rows = within
            self._send_rows(subscription, progress, pubend, part.hi, rows)
            if rows is selected:
                whole.append(subscription.number)
                rows_of.append(matching)
            elif self._observed:
                self._orders.append(Delivered(pubend, rows, (subscription.number,), (np.arange(len(rows)),)))
        if self._observed and whole:
            self._orders.append(Delivered(pubend, part.rows, whole, rows_of))

    def curious(self, pubend: int, now: float) -> None:
        """Ask for the gaps behind `delivered` when their time has come."""
        edge = self.streams[pubend]
        if now < edge.nack_at or edge.engaged == 0:
            return
        gaps = self._gaps(edge)
        if not gaps:
            edge.nack_at = float("inf")
            return
        if edge.nack_tries >= NACK_TRIES_MAX or edge.stream.cache.evicted > edge.delivered:
            self._go_on_at_frontier(pubend)
            return
        edge.nack_tries += edge.stream.parent is not None or edge.stream.hosted_here
        edge.stream.ask(gaps, edge.need_at(edge.delivered)[0], now)
        edge.nack_backoff = min(edge.nack_backoff * 2, NACK_BACKOFF_MAX_S)
        edge.nack_at = now + edge.nack_backoff

    def _go_on_at_frontier(self, pubend: int) -> None:
        """Give up to fill a gap for all. Each subscription gets its own past instead.

        That is so at once when the cache has dropped something behind the gap: then the gap with what follows is larger than
        the cache, and answers to a NACK would only push out each other. Otherwise it is after some tries.
        """
        edge = self.streams[pubend]
        for subscription in self.subscriptions.values():
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.phase is Phase.LIVE:
                progress.position = self.reached(progress, pubend)
                self._fall_behind(subscription, pubend)
        edge.delivered = edge.stream.cache.frontier
        edge.forget_required()
        edge.nack_backoff, edge.nack_at, edge.nack_tries = NACK_DELAY_S, float("inf"), 0

    def _gaps(self, edge: EdgeStream) -> list[tuple[int, int]]:
        gaps: list[tuple[int, int]] = []
        position = edge.delivered
        for segment in edge.stream.cache.read(edge.delivered, FOREVER):
            need, _ = edge.need_at(segment.lo)
            if segment.label < need:
                continue
            if segment.lo > position:
                gaps.append((position, segment.lo))
            position = segment.hi
        if position < edge.stream.cache.frontier:
            gaps.append((position, edge.stream.cache.frontier))
        return gaps[:NACK_RANGES]

    # --- catching up ---

    def anyone_is_behind(self, pubend: int) -> bool:
        return bool(self._behind.get(pubend))

    def catching_up(self, pubend: int) -> Iterator[tuple[Subscription, Progress]]:
        """Yield who wants a piece now: behind, with a link that takes rows, and no answer outstanding."""
        for subscription in list(self._behind.get(pubend, {}).values()):
            takes_rows = subscription.progress[pubend].announced and self._takes_rows(subscription)
            if takes_rows and not self._join_if_level(subscription, pubend):
                yield subscription, subscription.progress[pubend]

    def wants_more(self, subscription: Subscription, pubend: int) -> bool:
        progress = subscription.progress[pubend]
        return progress.phase is Phase.CATCHING_UP and progress.announced and self._takes_rows(subscription)

    def target(self, progress: Progress, pubend: int) -> int:
        return max(self.streams[pubend].delivered, progress.live_from)

    def caught_up(self, subscription: Subscription, pubend: int, hi: int, rows: list[Batch]) -> None:
        """Send a piece of the past; the subscription joins the live ones when it is level."""
        progress = subscription.progress[pubend]
        for batch in rows:
            within = rows_within(batch, progress.position, hi)
            if within is not None:
                self._send_rows(subscription, progress, pubend, int(within.ticks()[-1]), within)
                if self._observed:
                    self._orders.append(Delivered(pubend, within, (subscription.number,), (np.arange(len(within)),)))
        progress.position = max(progress.position, hi)
        progress.request = progress.tries = 0
        self._join_if_level(subscription, pubend)

    def released(self, pubend: int, tick: int) -> None:
        """Everything up to a tick is gone for good: tell those who had not got it."""
        edge = self.streams[pubend]
        for subscription in list(self.subscriptions.values()):
            progress = subscription.progress.get(pubend)
            if progress is None or progress.phase is Phase.WAITING or self.reached(progress, pubend) >= tick:
                continue
            self.gap(subscription, pubend, tick)
        if edge.engaged and edge.delivered < tick:
            edge.delivered = tick

    def gap(self, subscription: Subscription, pubend: int, tick: int) -> None:
        """Move a subscription over what was released, and say so."""
        progress = subscription.progress[pubend]
        if tick <= progress.position:
            return
        if progress.announced:
            self._tell_gap(subscription, pubend, progress.position, tick)
        else:
            progress.missed_from = min(progress.missed_from, progress.position)
        progress.position = tick
        progress.request = 0

    # --- links ---

    def congested(self, link: LinkId) -> None:
        """A slow reader catches up later, from the cache or the log; nothing waits for it here."""
        self._congested[link] = None
        for subscription in self.of_link(link):
            self._leave_live(subscription)

    def drained(self, link: LinkId) -> None:
        self._congested.pop(link, None)

    def flow(self, subscription: Subscription, *, is_open: bool) -> None:
        """Do for one subscription what `congested` and `drained` do for all of a link."""
        subscription.open = is_open
        if not is_open:
            self._leave_live(subscription)

    def _takes_rows(self, subscription: Subscription) -> bool:
        return subscription.open and subscription.link not in self._congested

    def _leave_live(self, subscription: Subscription) -> None:
        for pubend, progress in subscription.progress.items():
            if progress.phase is Phase.LIVE:
                progress.position = self.reached(progress, pubend)
                self._fall_behind(subscription, pubend)

    def link_lost(self, link: LinkId) -> list[Subscription]:
        """Take out the subscriptions of a link and return them."""
        self._congested.pop(link, None)
        gone = self.of_link(link)
        for subscription in gone:
            self.remove(subscription)
        return gone

    def end(self, subscription: Subscription, request: int = 0) -> None:
        """End a subscription and tell its client, in answer to a request if there is one."""
        self._orders.append(Send(subscription.link, Unsubscribed(subscription.handle), packet=request))
        self.remove(subscription)

    def begin_telling(self, steps: int) -> None:
        """Begin a round of telling every client its positions, in so many steps, unless one is under way."""
        if not self._telling:
            self._telling = list(self.subscriptions)
            self._told_at_once = min(-(-len(self._telling) // steps), TOLD_AT_ONCE)

    def tell_positions(self) -> None:
        """Tell some clients how far their subscriptions are without data, so that positions follow the stream."""
        now, self._telling = self._telling[: self._told_at_once], self._telling[self._told_at_once :]
        for number in now:
            subscription = self.subscriptions.get(number)
            if subscription is None or not self._takes_rows(subscription) or not subscription.answered:
                continue
            ahead = {}
            for pubend, progress in subscription.progress.items():
                reached = self.reached(progress, pubend)
                if progress.phase is Phase.LIVE and reached > progress.told:
                    ahead[pubend] = progress.position = progress.told = reached
            if ahead:
                self._orders.append(Send(subscription.link, Advance(subscription.handle, ahead)))

    # --- inside ---

    def _tell_gap(self, subscription: Subscription, pubend: int, lo: int, hi: int) -> None:
        progress = subscription.progress[pubend]
        self._orders.append(Send(subscription.link, Gap(subscription.handle, pubend, lo, hi)))
        if self._observed:
            self._orders.append(GapTold(subscription.number, pubend, lo, hi))
        progress.told = max(progress.told, hi)

    def _join_if_level(self, subscription: Subscription, pubend: int) -> bool:
        progress = subscription.progress[pubend]
        if not progress.announced or not self._takes_rows(subscription):
            return False
        if progress.position < self.target(progress, pubend):
            return False
        progress.phase = Phase.LIVE
        progress.request = 0
        self._behind.get(pubend, {}).pop(subscription.number, None)
        return True

    def _fall_behind(self, subscription: Subscription, pubend: int) -> None:
        subscription.progress[pubend].phase = Phase.CATCHING_UP
        self._behind.setdefault(pubend, {})[subscription.number] = subscription

    def _send_rows(self, subscription: Subscription, progress: Progress, pubend: int, hi: int, rows: Batch) -> None:
        message = Deliver(subscription.handle, pubend, progress.told, hi)
        self._orders.append(Send(subscription.link, message, rows, data=True))
        progress.position = max(progress.position, hi)
        progress.told = max(progress.told, hi)
