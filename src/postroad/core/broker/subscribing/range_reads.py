"""Reads without a subscription, on the broker's side: lists of pubends, and ranges of their ticks.

A range is answered piece by piece. The client sends the next request from where a piece ended, so the broker keeps no state
between pieces and a slow client costs nothing. A piece comes from the cache if its labels cover the filter. Otherwise it comes
from the log: this broker reads it, or asks the pubend's broker with `CatchUp`, as for a subscriber that is behind. Requests
without an answer are repeated until `ANSWER_S_MAX` have passed.

A read holds no log. Released ranges are reported as released; the client decides whether that is a gap.

Invariant: the pieces sent for one request are contiguous, from its `lo` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.batch.batch import Batch
from postroad.core.broker.answer_pieces import CATCH_UP_BYTES, bare, pieces
from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.log_reads import LogReads
from postroad.core.broker.subscribing.durable import Durable, Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.broker.views import HostedPubends, MemberCounts, RelayedStreams
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog, Send
from postroad.core.protocol.packets import (
    CatchUp,
    CatchUpReply,
    DurableEntry,
    ListPubends,
    Pubends,
    PubendSpan,
    PubendsQuery,
    PubendsReply,
    RangeRead,
    ReadRange,
    pubend_broker,
)
from postroad.errors import PubendUnreachableError, TooManyError, UnknownPubendError
from postroad.types import COUNTER_BITS

OF_A_READ: Final = 1 << 62  # set in the catch-up requests of reads, to tell them from those of subscriptions
AT_ONCE_MAX: Final = 1024
DURABLES_OF_A_PAGE: Final = 256
PAGE_CHARS: Final = 1 << 18
AT_ONCE_OF_A_CLIENT_MAX: Final = 16
RETRY_S: Final = 0.5
ANSWER_S_MAX: Final = 5.0


@dataclass(slots=True)
class _Read:
    link: LinkId
    packet: int
    pubend: int
    filter: Filter
    position: int
    hi: int
    bare: bool
    retry_at: float
    deadline: float


@dataclass(slots=True)
class _Listing:
    link: LinkId
    packet: int
    asked: dict[int, None]  # brokers that have not answered
    retry_at: float
    deadline: float
    query: ListPubends
    spans: list[PubendSpan] = field(default_factory=list)
    durables: dict[str, DurableEntry] = field(default_factory=dict)
    last: str | None = None  # the lowest name at which the page of a broker with more entries ends


@dataclass(frozen=True, slots=True)
class RangeFromLog:
    """The purpose of a log read: a range that a client reads."""

    number: int


class RangeReads:
    """The ranges and lists that clients wait for."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        edge: Edge,
        durables: Durables,
        log_reads: LogReads,
        sharing: MemberCounts,
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._edge = edge
        self._durables = durables
        self._log_reads = log_reads
        self._sharing = sharing
        self._reads: dict[int, _Read] = {}
        self._listings: dict[int, _Listing] = {}

    def __len__(self) -> int:
        return len(self._reads) + len(self._listings)

    # --- ranges ---

    def read(self, link: LinkId, packet: ReadRange, request: int, now: float) -> None:
        self._check_room(link)
        wanted = self._context.filter(packet.filter)
        self._check_reachable(packet.pubend)
        read = _Read(link, request, packet.pubend, wanted, packet.lo, packet.hi, packet.bare, 0.0, now + ANSWER_S_MAX)
        hosted = self._pubends.get(packet.pubend)
        if packet.hi <= packet.lo or (hosted is not None and packet.lo >= hosted.horizon):
            self._answer(read, packet.lo, [], 0)  # the range is empty, or lies beyond the horizon
            return
        number = OF_A_READ | self._context.next_request()
        self._reads[number] = read
        self._ask(number, read, now)

    def caught_up(self, reply: CatchUpReply, batch: Batch | None, now: float) -> None:
        """Use a piece that another broker sent."""
        read = self._reads.get(reply.request)
        if read is None or reply.pubend != read.pubend or reply.lo > read.position:
            return  # answered already, or the piece before it was lost: then the retry asks for both
        if reply.hi > read.position:
            rows = [batch.within(read.position, reply.hi)] if batch is not None else []
            self._answer(read, reply.hi, rows, reply.released, more=reply.more)
            read.retry_at, read.deadline = now + RETRY_S, now + ANSWER_S_MAX
        elif not reply.more:
            self._answer(read, read.position, [], reply.released)
        if not reply.more:
            del self._reads[reply.request]

    # --- pubends ---

    def list_pubends(self, link: LinkId, query: ListPubends, request: int, now: float) -> None:
        self._check_room(link)
        reachable = self._context.routes.reachable
        brokers = dict.fromkeys(pubend_broker(pubend) for pubend in self._context.routes.pubends())
        if query.durables:
            brokers |= dict.fromkeys(self._context.known)
        asked = {broker: None for broker in brokers if broker != self._context.broker and reachable(broker)}
        listing = _Listing(link, request, asked, now + RETRY_S, now + ANSWER_S_MAX, query, self._own_spans())
        if query.durables:
            self._add_known_names(listing)
            _add_page(listing, *self._own_durables(query.after))
        if not asked:
            self._answer_listing(listing)
            return
        number = self._context.next_request()
        self._listings[number] = listing
        self._ask_for_spans(number, listing)

    def asked(self, query: PubendsQuery) -> None:
        spans = self._own_spans()
        durables, more = self._own_durables(query.after) if query.durables else ([], False)
        self._context.unicast(PubendsReply(query.source, self._context.broker, FULL_HOPS, query.request, spans, durables, more))

    def told(self, reply: PubendsReply) -> None:
        listing = self._listings.get(reply.request)
        if listing is None or reply.source not in listing.asked:
            return
        del listing.asked[reply.source]
        listing.spans += [span for span in reply.spans if pubend_broker(span.pubend) == reply.source]
        if listing.query.durables:
            _add_page(listing, [entry for entry in reply.durables if entry.home == reply.source], reply.more)
        if not listing.asked:
            del self._listings[reply.request]
            self._answer_listing(listing)

    # --- links and time ---

    def link_lost(self, link: LinkId) -> None:
        self._reads = {number: read for number, read in self._reads.items() if read.link != link}
        self._listings = {number: listing for number, listing in self._listings.items() if listing.link != link}

    def wake(self, now: float) -> None:
        """Repeat requests without an answer, and refuse those that take too long."""
        for number, read in list(self._reads.items()):
            if now >= read.deadline:
                del self._reads[number]
                self._context.refuse(read.link, read.packet, _unreachable(read.pubend))
            elif now >= read.retry_at:
                self._ask(number, read, now)
        for number, listing in list(self._listings.items()):
            if now >= listing.deadline:
                del self._listings[number]
                self._answer_listing(listing)
            elif now >= listing.retry_at:
                listing.retry_at = now + RETRY_S
                self._ask_for_spans(number, listing)

    # --- inside ---

    def _check_room(self, link: LinkId) -> None:
        links = [read.link for read in self._reads.values()] + [listing.link for listing in self._listings.values()]
        ours = links.count(link)
        if len(self) >= AT_ONCE_MAX or ours >= AT_ONCE_OF_A_CLIENT_MAX:
            raise TooManyError(
                f"at most {AT_ONCE_OF_A_CLIENT_MAX} reads of one client are served at the same time; wait for answers"
            )

    def _check_reachable(self, pubend: int) -> None:
        broker = pubend_broker(pubend)
        if pubend in self._pubends:
            return
        known = pubend in self._context.routes.pubends() or pubend in self._context.known.get(broker, ())
        if not known:
            raise UnknownPubendError(f"no broker known here hosts pubend {pubend:x}")
        if not self._context.routes.reachable(broker):
            raise _unreachable(pubend)

    def _ask(self, number: int, read: _Read, now: float) -> None:
        read.retry_at = now + RETRY_S
        stream = self._streams.get(read.pubend)
        reached, rows = read.position, list[Batch]()
        if stream is not None:
            reached, rows = stream.from_cache(read.filter, read.position, read.hi, CATCH_UP_BYTES)
        if reached > read.position:
            del self._reads[number]
            self._answer(read, reached, rows, 0)
        elif read.pubend in self._pubends:
            self._ask_log(number, read)
        else:
            broker, me, text = pubend_broker(read.pubend), self._context.broker, str(read.filter)
            self._context.unicast(CatchUp(broker, me, FULL_HOPS, number, read.pubend, text, read.position, read.hi, read.bare))

    def _ask_log(self, number: int, read: _Read) -> None:
        horizon = self._pubends[read.pubend].horizon
        order = ReadLog(read.pubend, 0, read.position, min(read.hi, horizon), CATCH_UP_BYTES)
        self._log_reads.ask(order, RangeFromLog(number))

    def take_log(self, wanted: RangeFromLog, result: LogRead) -> None:
        """Answer a client with what was read in the log of this broker."""
        read = self._reads.pop(wanted.number, None)
        if read is None:
            return
        for _, hi, batches, released in result.stretches(read.position):
            matching = [found for b in batches if len(found := b.filter(read.filter.evaluate(b)))]
            self._answer(read, hi, matching, released, more=hi < result.hi)

    def _answer(self, read: _Read, reached: int, rows: list[Batch], released: int, *, more: bool = False) -> None:
        wanted = [bare(batch) for batch in rows] if read.bare else rows
        for batch, hi, follows in pieces(wanted, reached):
            packet = RangeRead(read.pubend, read.position, hi, released, follows or more)
            self._context.orders.append(Send(read.link, packet, batch, data=True, packet=read.packet))
            read.position = hi

    def _own_spans(self) -> list[PubendSpan]:
        return [PubendSpan(p.pubend, p.released, p.horizon, p.last) for p in self._pubends.values() if p.is_open]

    def _ask_for_spans(self, number: int, listing: _Listing) -> None:
        for broker in listing.asked:
            query = listing.query
            self._context.unicast(PubendsQuery(broker, self._context.broker, FULL_HOPS, number, query.durables, query.after))

    def _answer_listing(self, listing: _Listing) -> None:
        told = {span.pubend: None for span in listing.spans}
        known = [*self._context.routes.pubends(), *(pubend for pubends in self._context.known.values() for pubend in pubends)]
        missing = sorted({pubend for pubend in known if pubend not in told})
        durables, more = _page(list(listing.durables.values()), listing.query.after, listing.last)
        rights = self._context.rights_of(listing.link)
        if rights.owner:
            named = [(rights.shown_name(entry.name), entry) for entry in durables]
            shown = [msgspec.structs.replace(entry, name=name) for name, entry in named if name is not None]
            durables, more = shown, more and len(shown) == len(named)  # behind one of others come no more of one's own
        self._context.send(listing.link, Pubends(listing.spans, missing, durables, more), listing.packet)

    # --- durable subscriptions ---

    def _add_known_names(self, listing: _Listing) -> None:
        """Add the names whose homes are other brokers; the answers of those that are reachable replace these entries."""
        for name, home in self._durables.homes.items():
            if home.broker not in (0, self._context.broker):
                listing.durables[name] = DurableEntry(name, home.broker)

    def _own_durables(self, after: str) -> tuple[list[DurableEntry], bool]:
        return _page([self._entry(durable) for durable in self._durables.here.values() if not durable.moved], after, None)

    def _entry(self, durable: Durable) -> DurableEntry:
        subscription = None if durable.subscription is None else self._edge.subscriptions.get(durable.subscription)
        cursors = durable.cursors if subscription is None else self._edge.cursors(subscription)
        frontiers = {pubend: stream.cache.frontier for pubend, stream in self._streams.items()}
        behind = [frontiers[pubend] - tick for pubend, tick in cursors.items() if pubend in frontiers]
        behind_ms = max(0, *behind, 0) >> COUNTER_BITS
        members = self._sharing.members_of(durable.name)
        connected = subscription is not None
        home = self._context.broker
        return DurableEntry(durable.name, home, durable.filter, connected, behind_ms, durable.shared, durable.key, members)


def _add_page(listing: _Listing, entries: list[DurableEntry], more: bool) -> None:
    listing.durables.update({entry.name: entry for entry in entries})
    if more:
        last = entries[-1].name
        listing.last = last if listing.last is None else min(listing.last, last)


def _page(entries: list[DurableEntry], after: str, last: str | None) -> tuple[list[DurableEntry], bool]:
    """Return the entries with names in (after, last], at most one page of them, and whether there are more."""
    chosen: list[DurableEntry] = []
    size = 0
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.name <= after:
            continue
        size += len(entry.name) + len(entry.filter or "")
        full = len(chosen) == DURABLES_OF_A_PAGE or (chosen and size > PAGE_CHARS)
        if full or (last is not None and entry.name > last):
            return chosen, True
        chosen.append(entry)
    return chosen, last is not None


def _unreachable(pubend: int) -> PubendUnreachableError:
    return PubendUnreachableError(f"the broker of pubend {pubend:x} cannot be reached now")
