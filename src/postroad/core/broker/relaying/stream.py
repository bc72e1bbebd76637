"""One pubend's stream at one broker: what was requested, what was received, and which child wants which part of it.

Upstream: the interest sent to the parent under numbered epochs (`upstream_interest`). Downstream: the interest of each child,
active or pending (`children`). In between: the cache of labelled knowledge. At the pubend's own broker there is no parent: its
knowledge has the label `COMPLETE`, and every interest is active immediately.

A child's epoch is *included* in our epoch `included_in`: knowledge with at least that label is complete for the child. While our
epoch is pending, we continue to serve the child's previous one.

Silence for a child is not sent for each range. It is merged into the next range with data, or sent by `flush` at the latest.

While routing views differ, a neighbour may be child and parent at the same time. Then its interest is not sent back to it, and it
is served nothing until it is no longer the parent.

Invariants: `included_in <= label` for everything sent to a child; labels are never above `epoch_active`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.selection import Rows
from postroad.core.broker.knowledge import COMPLETE, KnowledgeRange
from postroad.core.broker.relaying.cache import StreamCache
from postroad.core.broker.relaying.children import Change, Child
from postroad.core.broker.relaying.upstream_interest import UpstreamInterest
from postroad.core.broker.views import Epochs
from postroad.core.filters.filter import Filter
from postroad.core.filters.index.filter_index import FilterIndex
from postroad.core.protocol.observations import Output, Routed
from postroad.core.protocol.orders import LinkId, Send
from postroad.core.protocol.packets import Interest, InterestActive, Knowledge, LogDamaged, Nack, Released
from postroad.core.protocol.ranges import RangeSet

NACK_RANGES_MAX: Final = 256
REPLY_BYTES_MAX: Final = 4 << 20
NEVER: Final = 1 << 64  # above every tick
NOT_BEGUN: Final = -1  # below every label
ASKED_FOR_S: Final = 0.3  # a range is requested from the parent at most once in this time


class Stream:
    """The stream of one pubend, relayed."""

    def __init__(
        self,
        pubend: int,
        *,
        hosted_here: bool,
        cache_bytes: int,
        epochs: Epochs,
        orders: list[Output],
    ) -> None:
        self.pubend = pubend
        self.hosted_here = hosted_here
        self.cache = StreamCache(cache_bytes)
        self.parent: LinkId | None = None
        self.epoch_active = COMPLETE if hosted_here else 0
        self.active_tick = 0
        self.last_row = 0  # the highest tick of a message that was received
        self._orders = orders
        self._children: dict[LinkId, Child] = {}
        self._asking = UpstreamInterest(pubend, epochs, orders)
        self._index: FilterIndex[tuple[LinkId, Filter]] = FilterIndex()
        self._asked = RangeSet()
        self._asked_until = 0.0
        self._flush_at = NEVER  # when the stream has reached this tick, pending silence is sent

    @property
    def epoch_sent(self) -> int:
        return COMPLETE if self.hosted_here else self._asking.epoch_sent

    # --- a pubend that is hosted here ---

    def close(self) -> None:
        """Let every interest wait until the pubend begins."""
        self.epoch_active = NOT_BEGUN

    def begin(self, tick: int, now: float) -> None:
        """Activate the interests that came meanwhile: the stream is complete from this tick on."""
        self.epoch_active, self.active_tick = COMPLETE, tick
        self._activate(now)

    # --- interest ---

    def want(self, came: Iterable[Filter], went: Iterable[Filter], now: float) -> None:
        """Change the filters of the broker's own subscribers."""
        if self.hosted_here:
            return
        self._asking.add(came)
        self._asking.remove(went)
        self.refresh(now)

    def set_parent(self, link: LinkId | None, now: float) -> None:
        """Request the stream from another neighbour from now on; the interest is withdrawn from the former one."""
        if link == self.parent:
            return
        if self.parent is not None:
            self._asking.end(self.parent)
            child = self._children.get(self.parent)
            if child is not None:
                self._asking.add(child.counted())
        self.parent = link
        self._asking.forget_parent()
        self._asked = RangeSet()
        if link is not None:
            child = self._children.get(link)
            if child is not None:
                self._asking.remove(child.counted())
                self._suspend(child)
        self.refresh(now, anew=True)
        self._activate(now)

    def child_interest(self, link: LinkId, interest: Interest, filters: Callable[[str], Filter], now: float) -> None:
        """Handle a neighbour's interest; an empty one ends it."""
        child = self._children.get(link)
        if child is None:
            if not interest.add:
                return
            child = self._children[link] = Child(link)
        change = child.take(interest, filters)
        if change is None:
            return
        child.pending.append(change)
        if self._counts(child):
            self._asking.add(change.add)
        if not child.latest:
            self.link_lost(link, now)
            return
        self.refresh(now)
        self._activate(now)

    def link_lost(self, link: LinkId, now: float) -> None:
        """Forget a child; a lost parent is replaced by `set_parent`."""
        child = self._children.get(link)
        if child is None:
            return
        if self._counts(child):
            self._asking.remove(child.counted())
        for filter_ in child.active:
            self._index.remove((link, filter_))
        del self._children[link]
        self.refresh(now)

    def interest_active(self, link: LinkId, epoch: int, tick: int, now: float) -> bool:
        """Handle the parent's answer to an interest; tell whether it is new."""
        if link != self.parent or not self.epoch_active < epoch <= self.epoch_sent:
            return False
        self.epoch_active, self.active_tick = epoch, tick
        self.cache.frontier = max(self.cache.frontier, tick)
        self._asking.answered(epoch, now)
        self._activate(now, tick)
        return True

    def refresh(self, now: float, *, anew: bool = False) -> None:
        """Send the parent the changes of our interest, or (`anew`) the interest in full."""
        if not self.hosted_here and self.parent is not None:
            self._asking.refresh(self.parent, now, anew=anew)

    def included_in(self, filter_: Filter) -> int | None:
        """Return the lowest label that is complete for a filter; None while the last interest we sent does not cover it."""
        if self.hosted_here:
            return 0
        if self.parent is None:
            return None
        return self._asking.since(filter_)

    # --- knowledge ---

    def learn(self, known: KnowledgeRange, upstream: int = 0) -> list[KnowledgeRange]:
        """Add knowledge to the cache, forward its new parts to the children, and return them.

        What came from the neighbour `upstream` is observed.
        """
        if known.label > self.epoch_active:
            return []  # the answer to that interest was lost or is late: the range will be requested again
        if known.lo == known.hi:  # only states how far the stream goes, so that a loss at its end is noticed
            self.cache.frontier = max(self.cache.frontier, known.hi)
            return []
        if known.rows is not None:
            self.last_row = max(self.last_row, known.rows.last_tick)
        news = self.cache.add(known)
        for part in news:
            sent = self._forward(part)
            if upstream and part.rows is not None:
                self._orders.append(Routed(self.pubend, upstream, part.rows, sent))
        if known.hi >= self._flush_at:
            self.flush_through(self._flush_at)
        return news

    def nack(self, link: LinkId, nack: Nack, now: float) -> list[tuple[int, int]]:
        """Answer a child from the cache. Request the rest from the parent, or return it if the log is here."""
        child = self._children.get(link)
        if child is None or child.epoch == 0 or nack.epoch > child.epoch:
            return []
        missing = RangeSet()
        budget = REPLY_BYTES_MAX
        for lo, hi in nack.ranges[:NACK_RANGES_MAX]:
            position = lo
            for known in self.cache.read(lo, hi):
                if not self._suffices(known.label, child):
                    continue
                missing.add(position, known.lo)
                position = known.hi
                budget -= known.size
                if budget > 0:
                    child.unsent.remove(known.lo, known.hi)
                    self._send_part(child, known)
            missing.add(position, hi)
        if self.hosted_here:
            return list(missing)
        for lo, hi in missing:
            child.owe(lo, min(hi, child.told))
        self.ask(missing, child.included_in, now)
        return []

    def reply(self, link: LinkId, known: KnowledgeRange) -> None:
        """Send a child a range that was read from the log."""
        child = self._children.get(link)
        if child is not None and child.epoch:
            self._send_part(child, known)

    def ask(self, ranges: Iterable[tuple[int, int]], label: int, now: float) -> None:
        """Send a NACK for ranges to the parent, except those requested less than `ASKED_FOR_S` ago."""
        if self.parent is None:
            return
        if now >= self._asked_until:
            self._asked = RangeSet()
            self._asked_until = now + ASKED_FOR_S
        fresh = RangeSet(part for lo, hi in ranges for part in list(self._asked.missing(lo, hi)))
        for lo, hi in fresh:
            self._asked.add(lo, hi)
        if fresh:
            self._orders.append(Send(self.parent, Nack(self.pubend, label, [(lo, hi) for lo, hi in fresh][:NACK_RANGES_MAX])))

    def from_cache(self, wanted: Filter, lo: int, hi: int, bytes_max: int) -> tuple[int, list[Batch]]:
        """Return how far the cache is complete from `lo` on for one filter, and the matching rows up to there."""
        rows: list[Batch] = []
        complete_from: int | None = None  # the label that is complete for the filter
        position = lo
        for known in self.cache.read(lo, hi):
            if known.lo > position or bytes_max <= 0:
                break
            if known.label != COMPLETE:
                if complete_from is None:
                    complete_from = self._complete_from(wanted)
                if known.label < complete_from:
                    break
            if known.rows is not None:
                matching = known.rows.filter(wanted.evaluate(known.rows))
                if len(matching):
                    rows.append(matching)
                    bytes_max -= matching.size
            position = known.hi
        return position, rows

    @property
    def children(self) -> list[LinkId]:
        """The links to neighbours that take part in this stream."""
        return [child.link for child in self._children.values() if child.epoch]

    def pass_on(self, released: Released) -> None:
        """Forward to the children what the parent reported as released."""
        for link in self._children:
            self._orders.append(Send(link, released))

    def damaged(self, lost: LogDamaged) -> None:
        """Forward to the children that wait for a range that its log has lost it."""
        for child in self._children.values():
            if child.is_owed(lost.lo, lost.hi):
                self._orders.append(Send(child.link, lost))

    def flush(self, now: float) -> None:
        """Send pending silence to the children, and repeat an interest that the parent has not answered."""
        for child in self._children.values():
            if child.epoch and child.quiet == child.told:  # no silence pending: state how far the stream goes
                self._send(child, max(child.told, self.cache.frontier), max(child.told, self.cache.frontier), None)
            self._flush_child(child)
        if not self.hosted_here and self.parent is not None:
            self._asking.send_again(self.parent, now)

    def flush_through(self, tick: int) -> None:
        """Send the children the pending silence as soon as the stream has reached a tick."""
        self._flush_at = tick if self.cache.frontier < tick else NEVER
        if self._flush_at == NEVER:
            for child in self._children.values():
                self._flush_child(child)

    def stats(self) -> dict[str, int]:
        return {"children": len(self._children), "cache_bytes": self.cache.size, "cache_segments": len(self.cache)}

    # --- inside ---

    def _counts(self, child: Child) -> bool:
        """Tell whether a child's filters count in our interest; those of the parent are not sent back to it."""
        return not self.hosted_here and child.link != self.parent

    def _activate(self, now: float, tick: int | None = None) -> None:
        """Activate the pending epochs of children that our active epoch includes."""
        for child in self._children.values():
            if child.link == self.parent:
                continue
            flushed = False
            while child.pending and self._is_active(child, child.pending[0]):
                if not flushed:
                    flushed = True
                    self._flush_child(child)
                self._apply(child, child.pending.popleft())
            if flushed:
                start = max(self.cache.frontier, self.active_tick) if tick is None else tick
                if 0 < child.told < start:
                    child.owe(child.told, start)
                child.told = child.quiet = max(start, child.told)
                self._orders.append(Send(child.link, InterestActive(self.pubend, child.epoch, start)))
        self.refresh(now)

    def _is_active(self, child: Child, change: Change) -> bool:
        """Tell whether our active epoch includes the next pending epoch of a child."""
        if change.label is None:
            label = child.included_in
            for filter_ in change.add:
                since = self.included_in(filter_)
                if since is None:
                    return False
                label = max(label, since)
            change.label = label
        return (self.hosted_here or self.parent is not None) and change.label <= self.epoch_active

    def _apply(self, child: Child, change: Change) -> None:
        for filter_ in change.remove:
            del child.active[filter_]
            self._index.remove((child.link, filter_))
        if self._counts(child):
            self._asking.remove(change.remove)
        for filter_ in change.add:
            child.active[filter_] = None
            self._index.add((child.link, filter_), filter_)
        assert change.label is not None
        child.epoch, child.included_in = change.epoch, change.label

    def _suspend(self, child: Child) -> None:
        """Stop serving a child that has become our parent: its filters are no longer in our interest."""
        for filter_ in child.active:
            self._index.remove((child.link, filter_))
        child.suspend()

    def _suffices(self, label: int, child: Child) -> bool:
        return label >= child.included_in

    def _complete_from(self, wanted: Filter) -> int:
        since = self._asking.since(wanted)
        return COMPLETE if since is None else since

    def _forward(self, part: KnowledgeRange) -> dict[LinkId, Rows]:
        """Send each child the part of new knowledge that it wants; return the rows sent to each."""
        matched = self._match(part.rows)
        sent: dict[LinkId, Rows] = {}
        for child in self._children.values():
            if not child.epoch or not self._suffices(part.label, child):
                continue
            if part.hi <= child.told and not child.is_owed(part.lo, part.hi):
                continue  # it was sent before, and comes again because another child lacks it
            rows = _select(part.rows, matched.get(child.link))
            if rows is not None:
                sent[child.link] = matched[child.link]
            if not child.told <= part.lo <= child.quiet:  # an older range, or one after a gap: it cannot be merged
                self._flush_child(child)
                self._send(child, part.lo, part.hi, rows)
                if child.told < part.lo:
                    child.owe(child.told, part.lo)
                child.told = child.quiet = max(child.told, part.hi)
                continue
            child.quiet = max(child.quiet, part.hi)
            if rows is not None:
                self._send(child, child.told, child.quiet, rows)
                child.told = child.quiet
        return sent

    def _send_part(self, child: Child, part: KnowledgeRange) -> None:
        matched = self._match(part.rows)
        self._send(child, part.lo, part.hi, _select(part.rows, matched.get(child.link)))

    def _flush_child(self, child: Child) -> None:
        if child.epoch and child.quiet > child.told:
            self._send(child, child.told, child.quiet, None)
            child.told = child.quiet

    def _send(self, child: Child, lo: int, hi: int, rows: Batch | None) -> None:
        self._orders.append(Send(child.link, Knowledge(self.pubend, lo, hi, child.epoch), rows, data=True))

    def _match(self, rows: Batch | None) -> dict[LinkId, Rows]:
        """Return for each child the rows that match any of its filters."""
        if rows is None or not self._children:
            return {}
        found: dict[LinkId, list[Rows]] = {}
        for (link, _), indices in self._index.match(rows).items():
            found.setdefault(link, []).append(indices)
        return {link: parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts)) for link, parts in found.items()}


def _select(rows: Batch | None, indices: Rows | None) -> Batch | None:
    if rows is None or indices is None or len(indices) == 0:
        return None
    return rows if len(indices) == len(rows) else rows.take(indices)
