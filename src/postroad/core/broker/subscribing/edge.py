"""The edge: the subscriptions of this broker's own clients.

For each pubend a subscription begins, step by step (`subscription`), until its client knows the start. Then it is either

- *catching up*: it is behind `delivered` and receives its own ranges, piece by piece, until it reaches `delivered`;
- *live*: it has received everything up to `delivered`, the doubt horizon of the stream at this broker.

All live subscriptions of a pubend are served together: the edge reads the cache once from `delivered` on and matches each part
against one index. It stops at the first tick that is missing, or whose label is lower than the one *required* there. The edge
has no buffer of its own. Rows that cannot be delivered yet stay in the cache, which is bounded. If the cache drops them, they
are requested again.

Invariants:

- A subscription's `position` only rises, and the client was sent exactly the matching rows in (start, position].
- `told <= position`. The next `Deliver` or `Advance` begins at `told`, so the ranges that a client receives have no holes.
- `delivered` only rises while a subscription is live or catching up.
- A live subscription has received everything up to `delivered`, or up to `position` where that is higher.
- No row is sent before the client knows the start (`Progress.is_announced`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.selection import Rows, select
from postroad.core.broker.congestion.nack_window import NackWindow, divide_windows, make_nack_window
from postroad.core.broker.congestion.settings import CongestionSettings, Rule
from postroad.core.broker.knowledge import KnowledgeRange, rows_within
from postroad.core.broker.subscribing.filter_load import FilterLoad
from postroad.core.broker.subscribing.subscription import Event, Progress, State, Subscription
from postroad.core.broker.subscribing.waiting import Waiting
from postroad.core.broker.views import RelayedStream, RelayedStreams
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.core.protocol.observations import Attached, Delivered, Detached, GapTold, Output
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import Advance, Deliver, Gap, Started, Unsubscribed
from postroad.types import tick_milliseconds

CATCH_UP_RETRY_S: Final = 1.0
NACK_DELAY_S: Final = 0.05
NACK_BACKOFF_MAX_S: Final = 2.0
NACK_TRIES_MAX: Final = 6  # about three seconds
NACK_RANGES: Final = 64
GAPS_MAX: Final = 256  # that a NACK window looks at
TOLD_AT_ONCE: Final = 100  # at most so many clients receive their positions in one step
FOREVER: Final = (1 << 64) - 1


@dataclass(slots=True)
class EdgeStream:
    """The live delivery of one pubend's stream at this broker.

    `required` lists (from tick, label). A new subscription raises the label from its `live_from` on. Older subscriptions need
    lower labels, so ticks before that may be delivered with knowledge that was requested without the new filter.
    """

    stream: RelayedStream
    delivered: int = 0
    required: list[tuple[int, int]] = field(default_factory=list)  # both ascending; entries below `delivered` are dropped
    engaged: int = 0  # subscriptions that are live or catching up
    window: NackWindow | None = None  # how gaps are recovered; None: by the timer below, as without congestion control
    recovering: bool = False  # further behind than the receive window, and not within `lag_ms_max` again since
    asked_parent: LinkId | None = None  # whom the window asked
    epoch_awaited: int = 0  # that parent answers from this epoch on
    nack_at: float = float("inf")
    nack_backoff: float = NACK_DELAY_S
    nack_tries: int = 0  # without progress

    @property
    def lag_ms(self) -> int:
        """How far the doubt horizon is behind what is known of the stream."""
        return self.lag_from(self.delivered)

    def lag_from(self, tick: int) -> int:
        """Return how far a tick is behind what is known of the stream."""
        return max(tick_milliseconds(self.stream.cache.frontier) - tick_milliseconds(tick), 0)

    def stats(self) -> dict[str, int]:
        window_ms = self.window.size_ms if self.window is not None else 0
        return {"delivered": self.delivered, "recovering": int(self.recovering), "nack_window_ms": window_ms}

    def need_at(self, tick: int) -> tuple[int, int]:
        """Return the label required for the ticks after `tick`, and the tick up to which that label applies."""
        label, until = 0, FOREVER
        for start, needed in self.required:
            if start <= tick:
                label = needed
            else:
                until = start
                break
        return label, until

    def require(self, tick: int, label: int) -> None:
        """Require at least `label` from `tick` on. A higher label that is required already stays in force."""
        while self.required and self.required[-1][0] >= tick and self.required[-1][1] <= label:
            self.required.pop()
        if not self.required or self.required[-1][1] < label:
            self.required.append((max(tick, self.required[-1][0] if self.required else 0), label))

    def forget_required(self) -> None:
        while len(self.required) > 1 and self.required[1][0] <= self.delivered:
            self.required.pop(0)


class EdgeStreams(dict[int, EdgeStream]):
    """The live delivery of all pubends; an entry is created when it is first used."""

    def __init__(self, relayed: RelayedStreams, settings: CongestionSettings) -> None:
        super().__init__()
        self._relayed = relayed
        self._settings = settings

    def __missing__(self, pubend: int) -> EdgeStream:
        stream = self._relayed[pubend]
        controlled = self._settings.rule is not Rule.NONE and not stream.hosted_here
        made = self[pubend] = EdgeStream(stream, window=make_nack_window(self._settings) if controlled else None)
        return made


class LowestPosition:
    """The lowest acknowledged position in one pubend.

    A heap whose entries may be out of date. Positions only rise, so an entry is never above the true position, and the first
    entry that is still correct is the lowest. A position that is lowered must be added again.
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
        """Return the lowest position; drop entries of subscriptions that ended or began again."""
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

    def __init__(
        self,
        streams: RelayedStreams,
        orders: list[Output],
        *,
        observed: bool = False,
        settings: CongestionSettings | None = None,
    ) -> None:
        self._orders = orders
        self._settings = settings or CongestionSettings()
        self._observed = observed
        self.subscriptions: dict[int, Subscription] = {}
        self.streams = EdgeStreams(streams, self._settings)
        self._by_link: dict[LinkId, dict[int, Subscription]] = {}  # link -> handle -> subscription
        self._index: FilterIndex[int] = FilterIndex()
        self._congested: dict[LinkId, None] = {}
        self._waiting: dict[int, Waiting[Subscription]] = {}  # by pubend
        self._behind: dict[int, dict[int, Subscription]] = {}  # pubend -> number: announced and catching up
        self._lowest: dict[int, LowestPosition] = {}  # by pubend
        self.filter_load = FilterLoad()
        self._telling: list[int] = []  # the subscriptions that `tell_positions` has not visited in this round
        self._told_at_once = TOLD_AT_ONCE  # how many it visits in one step
        self._number = 0

    # --- subscriptions ---

    def find(self, link: LinkId, handle: int) -> Subscription | None:
        return self._by_link.get(link, {}).get(handle)

    def count_of_link(self, link: LinkId) -> int:
        return len(self._by_link.get(link, {}))

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
            if progress.state is State.WAITING:
                self._waiting[pubend].discard(subscription.number)
            else:
                self.streams[pubend].engaged -= 1
            self._behind.get(pubend, {}).pop(subscription.number, None)
            if self._observed and progress.is_announced:
                self._orders.append(Detached(subscription.number, pubend, self._sent(subscription, pubend)))
            progress.apply(Event.ENDED)

    def wait_for(self, subscription: Subscription, pubend: int) -> None:
        """Let a subscription wait for the activation of its interest in a pubend.

        Until then it holds the log from our frontier on: the activation tick cannot be lower.
        """
        progress = subscription.progress.setdefault(pubend, Progress())  # a second wait keeps the object that `_lowest` refers to
        stream = self.streams[pubend].stream
        if pubend in subscription.positions:
            self.reposition(subscription, pubend)
            return
        if not subscription.earliest:
            progress.acknowledged = stream.cache.frontier
        self._wait(subscription, pubend)

    def hold(self, subscription: Subscription, pubend: int) -> None:
        """Include a subscription in the hold on a pubend's log. Call this when its position is new or was lowered."""
        lowest = self._lowest.setdefault(pubend, LowestPosition())
        lowest.add(subscription.number, subscription.progress[pubend], self.subscriptions)

    def _wait(self, subscription: Subscription, pubend: int) -> None:
        progress = subscription.progress[pubend]
        progress.apply(Event.ASKED)
        label = self.streams[pubend].stream.included_in(subscription.filter)
        progress.included_in = label or 0
        self._waiting.setdefault(pubend, Waiting()).add(subscription.number, subscription, label)

    def reposition(self, subscription: Subscription, pubend: int) -> None:
        """Let a waiting subscription begin at the position that is set for it now."""
        self._wait(subscription, pubend)
        progress = subscription.progress[pubend]
        progress.start = progress.position = progress.told = subscription.positions[pubend]
        progress.acknowledged = subscription.done.get(pubend, progress.start)

    def activate(self, subscription: Subscription, pubend: int, tick: int) -> None:
        """Begin to deliver a pubend to a subscription. Its interest is active on the whole path from `tick` on."""
        progress, edge = subscription.progress[pubend], self.streams[pubend]
        # What the cache has up to its frontier was perhaps requested without this filter. Live delivery serves the
        # subscription only from there on; it catches up on what comes before.
        frontier = max(edge.stream.cache.frontier, edge.delivered)
        progress.live_from = max(tick, frontier)
        if pubend not in subscription.positions:
            # `acknowledged` is our frontier when the subscription came (see `wait_for`): it never begins before that.
            progress.start = 0 if subscription.earliest else max(tick, progress.acknowledged)
            progress.position = progress.told = progress.acknowledged = progress.start
        if pubend in subscription.lost_cursors:
            # Nobody knows where it was, so it may have missed anything since the first tick.
            progress.start = progress.missed_from = 0
        if progress.included_in:
            edge.require(progress.live_from, progress.included_in)
        if edge.engaged == 0:
            # Nobody received anything of this stream: `delivered` did not follow it, and may jump.
            edge.delivered = max(edge.delivered, progress.live_from)
            edge.forget_required()
        edge.engaged += 1
        progress.apply(Event.ACTIVATED)

    def begin_after(self, subscription: Subscription, pubend: int, released: int) -> None:
        """Move a new start behind what was already released when our hold was confirmed; that part was never promised.

        A subscription that brought a position keeps it: for it, what was released is a gap.
        """
        progress = subscription.progress[pubend]
        if pubend in subscription.lost_cursors:
            progress.position = max(progress.position, released)  # `announce` reports (missed_from, position] as a gap
        elif pubend not in subscription.positions and progress.start < released:
            progress.start = progress.position = progress.told = progress.acknowledged = released

    def announce(self, subscription: Subscription, pubend: int) -> None:
        """Tell the client where it starts in a pubend, unless `Subscribed` just did. From now on it receives rows."""
        progress = subscription.progress[pubend]
        progress.apply(Event.ANNOUNCED)
        if self._observed:
            number, text = subscription.number, str(subscription.filter)
            self._orders.append(Attached(number, subscription.link, subscription.name, text, pubend, progress.start))
        if subscription.answered:
            self._orders.append(Send(subscription.link, Started(subscription.handle, pubend, progress.start)))
        if progress.missed_from is not None and progress.missed_from < progress.position:
            self._tell_gap(subscription, pubend, progress.missed_from, progress.position)
        self._behind.setdefault(pubend, {})[subscription.number] = subscription
        self._join_if_level(subscription, pubend)

    def waiting(self, pubend: int, label_active: int) -> Iterator[Subscription]:
        """Yield the subscriptions whose interest in a pubend has become active, and remove them from the waiting list.

        Those whose position is unproven are removed without being yielded. `reposition` adds them again when their position
        is proven or replaced.
        """
        waiting, stream = self._waiting.get(pubend), self.streams[pubend].stream
        if not waiting or (stream.parent is None and not stream.hosted_here):
            return
        for number, subscription in waiting.unlabelled():  # there was no parent when they were added
            label = stream.included_in(subscription.filter)
            if label is not None:
                subscription.progress[pubend].included_in = label
                waiting.add(number, subscription, label)
        for subscription in waiting.take(label_active):
            if pubend not in subscription.unproven:
                yield subscription

    def acknowledge(self, subscription: Subscription, positions: dict[int, int]) -> None:
        """Record what a client has processed, bounded by what it was sent: a client cannot release what it never got."""
        for pubend, tick in positions.items():
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.state is not State.WAITING:
                progress.acknowledged = max(progress.acknowledged, min(tick, self.reached(progress, pubend)))
            elif (
                pubend in subscription.done and pubend not in subscription.unproven
            ):  # it still waits for this pubend, or the pubend is unreachable
                at_most = min(tick, subscription.positions.get(pubend, 0))
                subscription.done[pubend] = max(subscription.done[pubend], at_most)

    def holds(self) -> dict[int, int]:
        """Return for each pubend the lowest position that a subscription still needs the log from."""
        lowest = {pubend: positions.find(self.subscriptions, pubend) for pubend, positions in self._lowest.items()}
        return {pubend: tick for pubend, tick in lowest.items() if tick is not None}

    def cursors(self, subscription: Subscription) -> dict[int, int]:
        """Return the positions from which a subscription would continue after its client crashed, without unproven ones."""
        brought = {**subscription.positions, **subscription.done}
        known = {pubend: tick for pubend, tick in brought.items() if pubend not in subscription.unproven}
        known.update({p: s.acknowledged for p, s in subscription.progress.items() if s.state is not State.WAITING})
        return known

    def reached(self, progress: Progress, pubend: int) -> int:
        """Return the tick up to which every matching row was sent.

        Live subscriptions share `delivered`. Their own `position` is written only when a row is sent, which keeps the cost of
        a stream without matching rows independent of the number of subscriptions.
        """
        live = progress.state is State.LIVE
        return max(progress.position, self.streams[pubend].delivered) if live else progress.position

    def reached_by(self, number: int, pubend: int) -> int:
        """Return the tick up to which every matching row was sent; 0 for a subscription that has ended."""
        subscription = self.subscriptions.get(number)
        progress = subscription.progress.get(pubend) if subscription is not None else None
        return 0 if subscription is None or progress is None else self._sent(subscription, pubend)

    def _sent(self, subscription: Subscription, pubend: int) -> int:
        """Return the tick up to which clients were sent every matching row. Of a shared one that is what they have finished."""
        progress = subscription.progress[pubend]
        return progress.acknowledged if subscription.is_shared else self.reached(progress, pubend)

    # --- live delivery ---

    def advance(self, pubend: int, now: float) -> None:
        """Deliver everything up to the first missing tick. If the stream goes on behind it, schedule a NACK."""
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
        if edge.window is not None:
            self._watch_gap(edge, before, now)
            return
        if edge.delivered > before:  # progress: a NACK that is scheduled concerns a gap that has closed
            edge.nack_backoff, edge.nack_at, edge.nack_tries = NACK_DELAY_S, float("inf"), 0
        if edge.stream.cache.frontier > edge.delivered and edge.nack_at == float("inf"):
            edge.nack_at = now + edge.nack_backoff

    def _next_part(self, edge: EdgeStream) -> KnowledgeRange | None:
        """Return what can be delivered next: knowledge right after `delivered`, with a sufficient label for all of it."""
        known = next(iter(edge.stream.cache.read(edge.delivered, FOREVER)), None)
        if known is None or known.lo > edge.delivered:
            return None
        need, until = edge.need_at(edge.delivered)
        if known.label < need:
            return None  # its silence was stated for an older interest: rows that a newer subscription wants may be missing
        return known.cut(known.lo, until)

    def deliver(self, pubend: int, part: KnowledgeRange) -> None:
        """Send each live subscription the matching rows of one range."""
        if part.rows is None:
            return
        live: list[tuple[Subscription, Progress]] = []
        wanted: list[Rows] = []
        for number, matching in self._index.match(part.rows).items():
            subscription = self.subscriptions[number]
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.state is State.LIVE:
                live.append((subscription, progress))
                wanted.append(matching)
        whole: list[int] = []  # the subscriptions that receive all their matching rows; `rows_of` has the row numbers
        rows_of: list[Rows] = []
        for (subscription, progress), matching, selected in zip(live, wanted, select(part.rows, wanted), strict=True):
            rows = selected
            if progress.position > part.lo:  # it became live beyond `delivered`: it has the first rows already
                within = rows_within(selected, progress.position, part.hi)
                if within is None:
                    continue
                rows = within
            self._send_rows(subscription, progress, pubend, part.hi, rows)
            if subscription.is_shared:
                continue
            if rows is selected:
                whole.append(subscription.number)
                rows_of.append(matching)
            elif self._observed:
                self._orders.append(Delivered(pubend, rows, (subscription.number,), (np.arange(len(rows)),)))
        if self._observed and whole:
            self._orders.append(Delivered(pubend, part.rows, whole, rows_of))

    def curious(self, pubend: int, now: float) -> None:
        """Send a NACK for the gaps after `delivered` when it is due."""
        edge = self.streams[pubend]
        if edge.window is not None:
            self._recover(pubend, edge, edge.window, now)
            return
        if now < edge.nack_at or edge.engaged == 0:
            return
        gaps = self._gaps(edge, FOREVER)[:NACK_RANGES]
        if not gaps:
            edge.nack_at = float("inf")
            return
        if edge.nack_tries >= NACK_TRIES_MAX or edge.stream.cache.evicted > edge.delivered:
            self._go_on_at_frontier(pubend)
            return
        edge.nack_tries += edge.stream.parent is not None or edge.stream.hosted_here  # without a parent nobody was asked
        edge.stream.ask(gaps, edge.need_at(edge.delivered)[0], now)
        edge.nack_backoff = min(edge.nack_backoff * 2, NACK_BACKOFF_MAX_S)
        edge.nack_at = now + edge.nack_backoff

    def _watch_gap(self, edge: EdgeStream, before: int, now: float) -> None:
        """Begin to recover when the stream goes on behind a gap, after a moment in which the gap may close by itself."""
        window, cache = edge.window, edge.stream.cache
        assert window is not None
        if cache.frontier <= edge.delivered:
            edge.nack_at, edge.recovering, cache.keep_from = float("inf"), False, None
            if window.asked:
                window.reset()
            return
        cache.keep_from = edge.delivered
        if edge.nack_at == float("inf") or (edge.delivered > before and not window.asked):
            edge.nack_at = now + NACK_DELAY_S

    def _recover(self, pubend: int, edge: EdgeStream, window: NackWindow, now: float) -> None:
        """Ask for what is missing within the NACK window (SDCC)."""
        cache = edge.stream.cache
        if edge.engaged == 0 or cache.frontier <= edge.delivered:
            if edge.nack_at != float("inf"):
                edge.nack_at, edge.recovering, cache.keep_from = float("inf"), False, None
                window.reset()
            return
        if now < edge.nack_at:
            return
        edge.recovering = edge.lag_ms > (self._settings.lag_ms_max if edge.recovering else self._settings.receive_window_ms)
        cache.keep_from = edge.delivered
        cache.trim_beyond(edge.delivered, self._settings.receive_window_bytes)
        dropped = cache.take_dropped()
        if dropped is not None and dropped < window.end(edge.delivered) and window.overflowed(dropped):
            self._stop_recovering(pubend, window)
            return
        if not self._is_answered(edge, window):
            return
        until = window.reach(edge.delivered)
        gaps = self._gaps(edge, until)
        if len(gaps) > GAPS_MAX:
            until, gaps = gaps[GAPS_MAX][0], gaps[:GAPS_MAX]
        window.known(edge.delivered, gaps, now, until=until)
        if window.gave_up:
            self._stop_recovering(pubend, window)
            return
        self._share_windows(edge, window)
        wanted = window.ask(edge.delivered, gaps, now)
        if wanted:
            edge.stream.ask(wanted, edge.need_at(edge.delivered)[0], now)

    def _stop_recovering(self, pubend: int, window: NackWindow) -> None:
        window.reset()
        self.streams[pubend].stream.cache.keep_from = None
        self._go_on_at_frontier(pubend)

    def _share_windows(self, edge: EdgeStream, window: NackWindow) -> None:
        """Divide what all recovering streams of one parent ask for: more to those that are further behind.

        They share the way, and all have the same queue before them, so no window by itself would ever become equal to another.
        """
        if not window.take_resized() or self._settings.rule is not Rule.IMPROVED:
            return
        sharing = [each for each in self.streams.values() if each.recovering and each.asked_parent == edge.asked_parent]
        divide_windows([(each.window, each.lag_ms) for each in sharing if each.window is not None])

    @staticmethod
    def _is_answered(edge: EdgeStream, window: NackWindow) -> bool:
        """Tell whether the parent answers NACKs: there is one, and our interest is active there."""
        stream = edge.stream
        if stream.parent != edge.asked_parent:
            edge.asked_parent, edge.epoch_awaited = stream.parent, stream.epoch_sent
            window.forget_asked()
        return stream.parent is not None and stream.epoch_active >= edge.epoch_awaited

    def damaged(self, pubend: int, lo: int, hi: int, now: float) -> None:
        """Handle the loss of a part of the log: if it is what is missing next, live subscriptions get a gap."""
        edge = self.streams[pubend]
        if not edge.engaged or not lo <= edge.delivered < hi:
            return
        for subscription in list(self.subscriptions.values()):
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.state is State.LIVE:
                progress.position = self.reached(progress, pubend)
                self.gap(subscription, pubend, hi)
        edge.delivered = hi
        self.advance(pubend, now)

    def _go_on_at_frontier(self, pubend: int) -> None:
        """Stop trying to close a gap for all live subscriptions together; each one catches up separately.

        This happens after some tries, or immediately when the cache has dropped something behind the gap: the gap and what
        follows do not fit into the cache, and the answers to NACKs would only evict each other.
        """
        edge = self.streams[pubend]
        for subscription in self.subscriptions.values():
            progress = subscription.progress.get(pubend)
            if progress is not None and progress.state is State.LIVE:
                progress.position = self.reached(progress, pubend)
                self._fall_behind(subscription, pubend)
        edge.delivered = edge.stream.cache.frontier
        edge.forget_required()
        edge.nack_backoff, edge.nack_at, edge.nack_tries = NACK_DELAY_S, float("inf"), 0

    def _gaps(self, edge: EdgeStream, until: int) -> list[tuple[int, int]]:
        """Return the ranges between `delivered` and the frontier, or `until`, that are missing or whose label is too low."""
        gaps: list[tuple[int, int]] = []
        position = edge.delivered
        end = min(edge.stream.cache.frontier, until)
        for known in edge.stream.cache.read(edge.delivered, end):
            need, _ = edge.need_at(known.lo)
            if known.label < need:
                continue
            if known.lo > position:
                gaps.append((position, known.lo))
            position = known.hi
        if position < end:
            gaps.append((position, end))
        return gaps

    # --- catching up ---

    def anyone_is_behind(self, pubend: int) -> bool:
        return bool(self._behind.get(pubend))

    def catching_up(self, pubend: int) -> Iterator[tuple[Subscription, Progress]]:
        """Yield each subscription that can take a piece now: behind, announced, and its link not congested."""
        for subscription in list(self._behind.get(pubend, {}).values()):
            if self._takes_rows(subscription) and not self._join_if_level(subscription, pubend):
                yield subscription, subscription.progress[pubend]

    def behind(self, pubend: int) -> Iterator[tuple[Subscription, Progress]]:
        """Yield the subscriptions that are behind and can take rows now."""
        for subscription in self._behind.get(pubend, {}).values():
            if self._takes_rows(subscription):
                yield subscription, subscription.progress[pubend]

    def is_behind(self, subscription: Subscription, pubend: int) -> bool:
        """Tell whether a subscription catches up in this pubend and can take rows now."""
        progress = subscription.progress.get(pubend)
        return progress is not None and progress.state is State.CATCHING_UP and self._takes_rows(subscription)

    def wants_more(self, subscription: Subscription, pubend: int) -> bool:
        progress = subscription.progress[pubend]
        return progress.state is State.CATCHING_UP and self._takes_rows(subscription)

    def target(self, progress: Progress, pubend: int) -> int:
        """Return the tick at which a subscription that catches up becomes live."""
        return max(self.streams[pubend].delivered, progress.live_from)

    def caught_up(self, subscription: Subscription, pubend: int, hi: int, rows: list[Batch]) -> None:
        """Send the rows up to `hi` to a subscription that catches up. It becomes live when it reaches the target."""
        progress = subscription.progress[pubend]
        for batch in rows:
            within = rows_within(batch, progress.position, hi)
            if within is not None:
                self._send_rows(subscription, progress, pubend, int(within.ticks()[-1]), within)
                if self._observed and not subscription.is_shared:
                    self._orders.append(Delivered(pubend, within, (subscription.number,), (np.arange(len(within)),)))
        progress.position = max(progress.position, hi)
        progress.piece = None
        self._join_if_level(subscription, pubend)

    def released(self, pubend: int, tick: int) -> None:
        """Handle the release of the log up to a tick: report a gap to each subscription that is not so far yet."""
        edge = self.streams[pubend]
        for subscription in list(self.subscriptions.values()):
            progress = subscription.progress.get(pubend)
            if progress is None or progress.state is State.WAITING or self.reached(progress, pubend) >= tick:
                continue
            self.gap(subscription, pubend, tick)
        if edge.engaged and edge.delivered < tick:
            edge.delivered = tick

    def gap(self, subscription: Subscription, pubend: int, tick: int) -> None:
        """Move a subscription past released messages, and report the gap now or when it is announced."""
        progress = subscription.progress[pubend]
        if tick <= progress.position:
            return
        if progress.is_announced:
            self._tell_gap(subscription, pubend, progress.position, tick)
        elif progress.missed_from is None:
            progress.missed_from = progress.position
        progress.position = tick
        progress.piece = None

    # --- links ---

    def congested(self, link: LinkId) -> None:
        """Stop live delivery to a link that is full. Its subscriptions catch up later, so no rows are buffered for them."""
        self._congested[link] = None
        for subscription in self.of_link(link):
            self._leave_live(subscription)

    def drained(self, link: LinkId) -> None:
        self._congested.pop(link, None)

    def flow(self, subscription: Subscription, *, is_open: bool) -> None:
        """Stop or resume delivery to one subscription, as `congested` and `drained` do for all subscriptions of a link."""
        subscription.open = is_open
        if not is_open:
            self._leave_live(subscription)

    def _takes_rows(self, subscription: Subscription) -> bool:
        return subscription.open and subscription.link not in self._congested

    def _leave_live(self, subscription: Subscription) -> None:
        for pubend, progress in subscription.progress.items():
            if progress.state is State.LIVE:
                progress.position = self.reached(progress, pubend)
                self._fall_behind(subscription, pubend)

    def link_lost(self, link: LinkId) -> list[Subscription]:
        """Remove the subscriptions of a link and return them."""
        self._congested.pop(link, None)
        gone = self.of_link(link)
        for subscription in gone:
            self.remove(subscription)
        return gone

    def end(self, subscription: Subscription, request: int = 0) -> None:
        """Remove a subscription and send `Unsubscribed` to its client, as the answer to `request` if there is one."""
        self._orders.append(Send(subscription.link, Unsubscribed(subscription.handle), packet=request))
        self.remove(subscription)

    def begin_telling(self, steps: int) -> None:
        """Begin to send every client its positions, spread over `steps` calls of `tell_positions`, unless a round runs."""
        if not self._telling:
            self._telling = list(self.subscriptions)
            self._told_at_once = min(-(-len(self._telling) // steps), TOLD_AT_ONCE)

    def tell_positions(self) -> None:
        """Send some clients how far their subscriptions are, so that positions (and holds) rise where nothing matches."""
        now, self._telling = self._telling[: self._told_at_once], self._telling[self._told_at_once :]
        for number in now:
            subscription = self.subscriptions.get(number)
            if subscription is None or not self._takes_rows(subscription) or not subscription.answered:
                continue
            ahead = {}
            for pubend, progress in subscription.progress.items():
                reached = self.reached(progress, pubend)
                if progress.state is State.LIVE and reached > progress.told:
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
        """Make a subscription live if it has reached the target and may receive rows; return whether it is live now."""
        progress = subscription.progress[pubend]
        if not self._takes_rows(subscription) or progress.position < self.target(progress, pubend):
            return False
        progress.apply(Event.CAUGHT_UP)
        progress.piece = None
        self._behind.get(pubend, {}).pop(subscription.number, None)
        return True

    def _fall_behind(self, subscription: Subscription, pubend: int) -> None:
        subscription.progress[pubend].apply(Event.FELL_BEHIND)
        self._behind.setdefault(pubend, {})[subscription.number] = subscription

    def _send_rows(self, subscription: Subscription, progress: Progress, pubend: int, hi: int, rows: Batch) -> None:
        message = Deliver(subscription.handle, pubend, progress.told, hi)  # the range goes on where the last one ended
        self._orders.append(Send(subscription.link, message, rows, data=True))
        progress.position = max(progress.position, hi)
        progress.told = max(progress.told, hi)
