"""One pubend's stream at one broker: what was asked for, what was learned, who below wants which part of it.

Upstream: the interest sent to the parent under numbered epochs. Downstream: for each child the interest it has, active or
pending. In between: the cache of labelled segments. The pubend's own broker is the same thing without a parent: its
knowledge has the label `COMPLETE` and every interest is active at once.

A child's epoch is *included* in our epoch `included_in`: knowledge with at least that label is complete for it. While our
epoch is pending we go on serving the child's previous one. A filter the child gives up stays in our own interest until the
child's new epoch is active, so a label never promises silence for a filter we no longer asked for.

Silence for a child is not sent row by row: it is put in front of the next data, or sent by `flush` at the latest.

A neighbour may be child and parent at once while routing views differ: then its interest is not sent back to it, and it is
served nothing until it is no longer the parent.

Invariants: `included_in <= label` for everything sent to a child; labels are never above `epoch_active`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from postroad.core.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.filters.index import FilterIndex
from postroad.core.guards import ALL_ON, Guards
from postroad.core.orders import LinkId, Order, Send
from postroad.core.packets import Interest, InterestActive, Knowledge, Nack, Released
from postroad.core.ranges import RangeSet
from postroad.core.streams.cache import COMPLETE, Segment, StreamCache
from postroad.core.streams.interest import ReducedSet, all_covered, covered
from postroad.core.streams.selection import Rows

HISTORY_MAX: Final = 64  # interests remembered to compare labels with
NACK_RANGES_MAX: Final = 256
REPLY_BYTES_MAX: Final = 4 << 20
NOT_BEGUN: Final = -1  # below every label
ASKED_FOR_S: Final = 0.3  # what was passed on this short a while ago is not passed on again


@dataclass(slots=True)
class _Child:
    link: LinkId
    active: dict[Filter, None] = field(default_factory=dict)
    epoch: int = 0  # of `active`; 0: nothing is active yet
    included_in: int = 0
    latest: dict[Filter, None] = field(default_factory=dict)
    pending: list[tuple[int, dict[Filter, None]]] = field(default_factory=list)  # (epoch, filters)
    told: int = 0  # the child knows everything we do up to here
    quiet: int = 0  # and nothing for it came up to here

    def snapshots(self) -> list[dict[Filter, None]]:
        return [self.active, *(filters for _, filters in self.pending)]


class Stream:
    """The stream of one pubend, relayed."""

    def __init__(
        self,
        pubend: int,
        *,
        hosted_here: bool,
        cache_bytes: int,
        next_epoch: Callable[[], int],
        orders: list[Order],
        guards: Guards = ALL_ON,
    ) -> None:
        self.pubend = pubend
        self.hosted_here = hosted_here
        self.cache = StreamCache(cache_bytes)
        self.parent: LinkId | None = None
        self.epoch_sent = COMPLETE if hosted_here else 0
        self.epoch_active = COMPLETE if hosted_here else 0
        self.active_tick = 0
        self.last_row = 0  # the tick of the last message that was heard of
        self._next_epoch = next_epoch
        self._orders = orders
        self._guards = guards
        self._children: dict[LinkId, _Child] = {}
        self._local: tuple[Filter, ...] = ()
        self._wanted = ReducedSet()
        self._sent: dict[Filter, None] = {}
        self._history: dict[int, dict[Filter, None]] = {}
        self._index: FilterIndex[tuple[LinkId, Filter]] = FilterIndex()
        self._asked = RangeSet()
        self._asked_until = 0.0
        self._resend_at = float("inf")

    # --- a pubend that is hosted here ---

    def close(self) -> None:
        """Let every interest wait until the pubend begins."""
        self.epoch_active = NOT_BEGUN

    def begin(self, tick: int, now: float) -> None:
        """Apply what was asked for meanwhile: the stream is complete from this tick on."""
        self.epoch_active, self.active_tick = COMPLETE, tick
        self._activate(now)

    # --- interest ---

    def set_local(self, filters: tuple[Filter, ...], now: float) -> None:
        """Set what the broker's own subscribers want."""
        for filter_ in filters:
            self._wanted.add(filter_)
        for filter_ in self._local:
            self._wanted.remove(filter_)
        self._local = filters
        self.refresh(now)

    def set_parent(self, link: LinkId | None, now: float) -> None:
        """Ask another neighbour from now on; the former one, if it is still there, is told."""
        if link == self.parent:
            return
        if self.parent is not None:
            if self._sent:
                self._orders.append(Send(self.parent, Interest(self.pubend, self._next_epoch(), full=True, add=[], remove=[])))
            self._contribute(self.parent, present=True)
        self.parent = link
        self._sent = {}
        self._asked = RangeSet()
        if link is not None:
            self._contribute(link, present=False)
            self._suspend(link)
        self.refresh(now, anew=True)
        self._activate(now)

    def child_interest(self, link: LinkId, interest: Interest, filters: Callable[[str], Filter], now: float) -> None:
        """Take a neighbour's interest; an empty one ends it."""
        child = self._children.get(link)
        if child is None:
            if not interest.add:
                return
            child = self._children[link] = _Child(link)
        latest = {} if interest.full else dict(child.latest)
        for text in interest.remove:
            latest.pop(filters(text), None)
        for text in interest.add:
            latest[filters(text)] = None
        child.latest = latest
        if not latest:
            self.link_lost(link, now)
            return
        if link != self.parent:
            for filter_ in latest:
                self._wanted.add(filter_)
        self.refresh(now)
        child.pending.append((interest.epoch, latest))
        self._activate(now)

    def link_lost(self, link: LinkId, now: float) -> None:
        """Forget a child; a lost parent is replaced by `set_parent`."""
        child = self._children.get(link)
        if child is None:
            return
        if link != self.parent:
            self._contribute(link, present=False)
        for filter_ in child.active:
            self._index.remove((link, filter_))
        del self._children[link]
        self.refresh(now)

    def interest_active(self, link: LinkId, epoch: int, tick: int, now: float) -> bool:
        """The parent's answer; tell whether it was news."""
        if link != self.parent or not self.epoch_active < epoch <= self.epoch_sent:
            return False
        self.epoch_active, self.active_tick = epoch, tick
        self.cache.frontier = max(self.cache.frontier, tick)
        if epoch == self.epoch_sent:
            self._resend_at = float("inf")
        self._activate(now, tick)
        return True

    def refresh(self, now: float, *, anew: bool = False) -> None:
        """Send the parent what changed in our interest, under a new epoch; everything, when it is new or silent too long."""
        if self.hosted_here or self.parent is None:
            return
        wanted = dict.fromkeys(self._wanted.maximal())
        if not anew and wanted.keys() == self._sent.keys():
            return
        if not wanted and not self._sent:
            return
        anew = anew or not self._sent
        add = [str(f) for f in wanted if anew or f not in self._sent]
        remove = [] if anew else [str(f) for f in self._sent if f not in wanted]
        self.epoch_sent = self._next_epoch()
        self._sent = wanted
        self._remember(self.epoch_sent, wanted)
        self._resend_at = now + 2.0 if wanted else float("inf")
        self._orders.append(Send(self.parent, Interest(self.pubend, self.epoch_sent, full=anew, add=add, remove=remove)))

    def included_in(self, filters: Iterable[Filter]) -> int | None:
        """Return the label that is complete for filters: the oldest one from which on every interest we sent covers them.

        None while what we sent last does not cover them.
        """
        if self.hosted_here:
            return 0
        if self.parent is None:
            return None
        label = None
        for epoch in reversed(self._history):
            if not all_covered(self._history[epoch], filters):
                break
            label = epoch
        return label

    # --- knowledge ---

    def learn(self, segment: Segment, note: Callable[[Batch, dict[LinkId, Rows]], None] | None = None) -> list[Segment]:
        """Take knowledge in, pass what is new on to the children, and return it.

        `note` is told of new rows and of those that each child was sent.
        """
        if segment.label > self.epoch_active:
            return []  # its activation has not come: the stretch will be asked for again
        if segment.lo == segment.hi:  # no knowledge, but word of how far there is any: what was lost last is missed now
            self.cache.frontier = max(self.cache.frontier, segment.hi)
            return []
        if segment.rows is not None:
            self.last_row = max(self.last_row, segment.rows.last_tick)
        news = self.cache.add(segment)
        for part in news:
            sent = self._forward(part)
            if note is not None and part.rows is not None:
                note(part.rows, sent)
        return news

    def nack(self, link: LinkId, nack: Nack, now: float) -> list[tuple[int, int]]:
        """Answer a child from the cache; pass on what is missing, or return it where the log is here."""
        child = self._children.get(link)
        if child is None or child.epoch == 0 or nack.epoch > child.epoch:
            return []
        missing: list[tuple[int, int]] = []
        budget = REPLY_BYTES_MAX
        for lo, hi in nack.ranges[:NACK_RANGES_MAX]:
            position = lo
            for segment in self.cache.read(lo, hi):
                if not self._suffices(segment.label, child):
                    continue
                if position < segment.lo:
                    missing.append((position, segment.lo))
                position = segment.hi
                budget -= segment.size
                if budget > 0:
                    self._send_part(child, segment)
            if position < hi:
                missing.append((position, hi))
        if self.hosted_here:
            return missing
        self.ask(missing, child.included_in, now)
        return []

    def reply(self, link: LinkId, segment: Segment) -> None:
        """Send a child a stretch that was read from the log."""
        child = self._children.get(link)
        if child is not None and child.epoch:
            self._send_part(child, segment)

    def ask(self, ranges: Iterable[tuple[int, int]], label: int, now: float) -> None:
        """NACK ranges to the parent, but not what was asked a moment ago."""
        if self.parent is None:
            return
        if now >= self._asked_until:
            self._asked = RangeSet()
            self._asked_until = now + ASKED_FOR_S
        fresh: list[tuple[int, int]] = []
        for lo, hi in ranges:
            fresh.extend((part.lo, part.hi) for part in self._asked.missing(lo, hi))
            self._asked.add(lo, hi)
        if fresh:
            self._orders.append(Send(self.parent, Nack(self.pubend, label, fresh[:NACK_RANGES_MAX])))

    def from_cache(self, wanted: Filter, lo: int, hi: int, bytes_max: int) -> tuple[int, list[Batch]]:
        """Return how far (lo, hi] can be told without a gap for one filter, and the rows up to there that match it."""
        rows: list[Batch] = []
        known: dict[int, bool] = {}
        position = lo
        for segment in self.cache.read(lo, hi):
            if segment.lo > position or bytes_max <= 0:
                break
            if segment.label not in known:
                known[segment.label] = self._complete_for(segment.label, wanted)
            if not known[segment.label]:
                break
            if segment.rows is not None:
                matching = segment.rows.filter(wanted.evaluate(segment.rows))
                if len(matching):
                    rows.append(matching)
                    bytes_max -= matching.size
            position = segment.hi
        return position, rows

    def pass_on(self, released: Released) -> None:
        """Tell the children what the parent said is gone."""
        for link in self._children:
            self._orders.append(Send(link, released))

    def flush(self, now: float) -> None:
        """Send the children the silence that no data carried, and the parent an interest it has not answered."""
        for child in self._children.values():
            if child.epoch and child.quiet == child.told:  # nothing to tell: tell how far there is anything
                self._send(child, max(child.told, self.cache.frontier), max(child.told, self.cache.frontier), None)
            self._flush_child(child)
        if now >= self._resend_at:
            self.refresh(now, anew=True)

    def stats(self) -> dict[str, int]:
        return {"children": len(self._children), "cache_bytes": self.cache.size, "cache_segments": len(self.cache)}

    # --- inside ---

    def _contribute(self, link: LinkId, *, present: bool) -> None:
        """Count a child's filters in our interest, or not: the parent's own are not sent back to it."""
        child = self._children.get(link)
        if child is None:
            return
        for snapshot in child.snapshots():
            for filter_ in snapshot:
                if present:
                    self._wanted.add(filter_)
                else:
                    self._wanted.remove(filter_)

    def _activate(self, now: float, tick: int | None = None) -> None:
        """Make the pending epochs of children active that our own active epoch includes."""
        for child in list(self._children.values()):
            while child.pending and child.link != self.parent:
                epoch, filters = child.pending[0]
                included_in = self.included_in(filters)
                if included_in is None or included_in > self.epoch_active:
                    break
                del child.pending[0]
                self._flush_child(child)
                self._replace(child, filters)
                child.epoch, child.included_in = epoch, included_in
                start = max(self.cache.frontier, self.active_tick) if tick is None else tick
                child.told = child.quiet = max(start, child.told)
                self._orders.append(Send(child.link, InterestActive(self.pubend, epoch, start)))
        self.refresh(now)

    def _suspend(self, link: LinkId) -> None:
        """A child that has become our parent: we no longer ask for its filters, so we may promise it nothing."""
        child = self._children.get(link)
        if child is None or not child.epoch:
            return
        for filter_ in child.active:
            self._index.remove((link, filter_))
        child.pending.insert(0, (child.epoch, child.active))
        child.active, child.epoch = {}, 0

    def _replace(self, child: _Child, filters: dict[Filter, None]) -> None:
        for filter_ in child.active:
            if filter_ not in filters:
                self._index.remove((child.link, filter_))
            if child.link != self.parent:
                self._wanted.remove(filter_)
        for filter_ in filters:
            if filter_ not in child.active:
                self._index.add((child.link, filter_), filter_)
        child.active = filters

    def _suffices(self, label: int, child: _Child) -> bool:
        return label >= child.included_in or not self._guards.silence_is_labelled

    def _complete_for(self, label: int, wanted: Filter) -> bool:
        if label == COMPLETE or not self._guards.silence_is_labelled:
            return True
        return label in self._history and covered(self._history[label], wanted)

    def _remember(self, epoch: int, filters: dict[Filter, None]) -> None:
        self._history[epoch] = filters
        while len(self._history) > HISTORY_MAX:
            del self._history[next(iter(self._history))]

    def _forward(self, part: Segment) -> dict[LinkId, Rows]:
        """Send each child what it wants of new knowledge; return the rows that each was sent."""
        matched = self._match(part.rows)
        sent: dict[LinkId, Rows] = {}
        for child in self._children.values():
            if not child.epoch or not self._suffices(part.label, child):
                continue
            rows = _selected(part.rows, matched.get(child.link))
            if rows is not None:
                sent[child.link] = matched[child.link]
            if not child.told <= part.lo <= child.quiet:  # an old stretch, or one behind a gap
                self._flush_child(child)
                self._send(child, part.lo, part.hi, rows)
                child.told = child.quiet = max(child.told, part.hi)
                continue
            child.quiet = max(child.quiet, part.hi)
            if rows is not None:
                self._send(child, child.told, child.quiet, rows)
                child.told = child.quiet
        return sent

    def _send_part(self, child: _Child, part: Segment) -> None:
        matched = self._match(part.rows)
        self._send(child, part.lo, part.hi, _selected(part.rows, matched.get(child.link)))

    def _flush_child(self, child: _Child) -> None:
        if child.epoch and child.quiet > child.told:
            self._send(child, child.told, child.quiet, None)
            child.told = child.quiet

    def _send(self, child: _Child, lo: int, hi: int, rows: Batch | None) -> None:
        self._orders.append(Send(child.link, Knowledge(self.pubend, lo, hi, child.epoch), rows, data=True))

    def _match(self, rows: Batch | None) -> dict[LinkId, Rows]:
        """Return for each child the rows that match any of its filters."""
        if rows is None or not self._children:
            return {}
        found: dict[LinkId, list[Rows]] = {}
        for (link, _), indices in self._index.match(rows).items():
            found.setdefault(link, []).append(indices)
        return {link: parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts)) for link, parts in found.items()}


def _selected(rows: Batch | None, indices: Rows | None) -> Batch | None:
    if rows is None or indices is None or len(indices) == 0:
        return None
    return rows if len(indices) == len(rows) else rows.take(indices)
