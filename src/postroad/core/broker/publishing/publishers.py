"""The broker's side of publishing: who may publish, what is accepted, and when it is announced.

Skew: the newest timestamp of a frame, plus the age that its client states, must be near the broker's clock. Otherwise the frame
is refused, and so is everything from that publisher until it opens again: if a later message were accepted, the refused ones
would look like repetitions. The refusal and the answer to the opening tell the client our clock. What it then sends again may be
old, because it was created before. So a publisher that was behind once may send old messages until one of its frames is in time.
A repetition of an accepted message is never refused.

Refusals: a refusal is not stored, and may be lost with its connection. If a later message became durable before the client has
read it, the refused one would look durable, too. So after a refusal everything of that publisher is ignored until it opens again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import Row, join_rows
from postroad.core.batch.schema import DEFAULT_LIMITS, check_message
from postroad.core.broker.context import Changes, Context, SendWhenStored
from postroad.core.broker.knowledge import COMPLETE, KnowledgeRange
from postroad.core.broker.publishing.pubend import PUBLISHERS_MAX, Pubend
from postroad.core.broker.views import PublishedMessages
from postroad.core.filters.filter import Filter
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import OpenPublisher, Publish, PublishColumns, PublisherOpened, PublishRefused
from postroad.core.protocol.rights import EVERYTHING
from postroad.errors import InvalidValueError, PostroadError, SkewError, StaleEpochError, UnknownHandleError
from postroad.types import MESSAGE_ID_BYTES, tick_milliseconds

PUBLISHER_KEY: Final = "publisher-next"
PUBLISHERS_OF_IDENTITY_MAX: Final = PUBLISHERS_MAX // 16  # of which it is remembered whose they are
OWNER_KEY: Final = "publisher-owner/"
HORIZON_KEY: Final = "horizon/"
PUBLISHER_BLOCK: Final = 1 << 16
FIRST_BLOCKS: Final = 1 << 15  # the lower half: room is left above the last


class _Skew(Enum):
    """The state of a publisher whose clock was found to be wrong, until one of its frames is in time."""

    REFUSED = "nothing is accepted until it opens again"
    REFUSED_OLD = "the same, and old messages are accepted after that"
    OLD = "old messages are accepted"


@dataclass(frozen=True, slots=True)
class HorizonsStored:
    """Work after a write: silence may be announced up to these ticks."""

    horizons: dict[int, int]


@dataclass(frozen=True, slots=True)
class PublisherIdsStored:
    """Work after a write: publisher ids below this may be assigned."""

    bound: int


class Publishing:
    """The publishers of this broker, and its pubends."""

    def __init__(
        self,
        context: Context,
        pubends: Mapping[int, Pubend],
        publisher_next: int,
        identities: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._context = context
        self._identities = dict(identities)  # publisher -> the identity whose it is, where clients have one; stored
        self._of_identity: dict[str, dict[int, None]] = {}  # the publishers of each, the oldest first
        for publisher, identity in identities.items():
            self._of_identity.setdefault(identity, {})[publisher] = None
        self.pubends = pubends
        shared = sorted(pubends)[: context.config.pubends or len(pubends)]
        self._shared = [pubends[each] for each in shared]  # new publishers are spread over them
        self._next = publisher_next
        self._reserved = publisher_next  # ids below this are reserved on disk
        self._reserving = False
        self._begun = all(pubend.is_open for pubend in pubends.values())
        self._waiting: list[tuple[LinkId, OpenPublisher, int]] = []
        self._links: dict[int, LinkId] = {}  # publisher -> link
        self._storing_horizons = False
        self._skews: dict[int, _Skew] = {}  # of open publishers
        self._homes: dict[int, Pubend] = {}  # of open publishers
        self._reopening: dict[int, bool] = {}  # open publishers that open again after a refusal -> whether they have to
        self.gate: PublishedMessages | None = None  # holds publishers to what they advertised
        self.now = 0.0
        self._named: dict[int, None] = {}  # the open publishers of named writers
        self.clients: Mapping[LinkId, str] = {}  # the names of the clients by link
        self._owners: dict[int, str] = {}  # publisher -> the name of the client that opened it last, in this life

    # --- publishers ---

    def open(self, link: LinkId, packet: OpenPublisher, request: int) -> None:
        if packet.resume is not None:
            if packet.resume >= self._reserved and (self._reserving or not self._begun):
                self._waiting.append((link, packet, request))  # what a former life assigned is not known yet
                return
            if packet.resume >= self._reserved:
                error = UnknownHandleError(f"this broker never assigned publisher number {packet.resume}")
                self._context.refuse(link, request, error)
                return
            identity = self._context.rights_of(link).owner
            is_anothers = identity and self._identities.get(packet.resume) != identity
            if is_anothers or self._owners.get(packet.resume, self._name_of(link)) != self._name_of(link):
                error = UnknownHandleError(f"publisher number {packet.resume} was given to another client")
                self._context.refuse(link, request, error)
                return
            self._tell_opened(link, packet.resume, request, reopens=packet.reopens)
        elif self._next < self._reserved:
            self._next += 1
            self._tell_opened(link, self._next - 1, request, reopens=packet.reopens)
        else:
            self._waiting.append((link, packet, request))
            self._reserve()

    def store_next(self, *changes: tuple[str, bytes | None]) -> None:
        """Store how far publisher ids are reserved, together with other changes."""
        self._context.store(((PUBLISHER_KEY, self._reserved.to_bytes(8, "big")), *changes))

    def begin(self, *, anew_ms: int) -> None:
        """Assign ids from now on. After a lost disk they come from a block chosen by the clock, to avoid ids used before.

        The block is stored before a publisher of a former life may continue: else the next start would deny its id, and assign
        it again.
        """
        self._begun = True
        if anew_ms:
            self._next = max(self._next, (anew_ms >> 10) % FIRST_BLOCKS * PUBLISHER_BLOCK)
        if self._waiting or self._next > self._reserved:
            self._reserve()

    def new_publisher(self) -> int | None:
        """Return a new publisher id; None while more are being reserved: try again later."""
        if self._next >= self._reserved:
            self._reserve()
            return None
        self._next += 1
        return self._next - 1

    def spread(self, publisher: int) -> Pubend:
        """Return the pubend for a publisher that has not published yet."""
        return self._shared[publisher % len(self._shared)]

    def adopt(self, publisher: int, link: LinkId, pubend: int) -> int:
        """Let a link publish as this publisher. A link that did so before is refused. Return the tick of the last durable id."""
        before = self._links.get(publisher)
        if before is not None and before != link:
            error = StaleEpochError("another attempt has replaced this one")
            self._context.send(before, PublishRefused(publisher, b"", b"", error.code, str(error)))
        self._own(publisher, link)
        self._reopening.pop(publisher, None)
        self._homes[publisher] = self.pubends[pubend]
        self._named[publisher] = None
        self._skews.pop(publisher, None)
        if self.gate is not None:
            self.gate.publisher_opened(link, publisher, pubend, self.now)
        return self.pubends[pubend].open(publisher, link)

    def publish(self, link: LinkId, packet: Publish) -> None:
        """Accept rows. Invalid rows are refused one by one; the others are accepted, but not after a refusal if it `reopens`."""
        pubend = self._pubend_of(link, packet.publisher)
        if self._reopening.get(packet.publisher):
            return
        rows = join_rows(packet.rows, packet.binary)
        prefix = packet.publisher.to_bytes(4, "big") + self._context.broker.to_bytes(4, "big")
        allowed = self._context.rights_of(link).publishable()
        acceptable = (row for row in rows if self._acceptable(link, packet.publisher, prefix, row, allowed))
        good = [row for row in acceptable if not self._reopening.get(packet.publisher)]
        if good and self._is_timely(link, pubend, packet.publisher, good[0][0], good[-1][0], packet.age_ms):
            rows = good if self.gate is None else self.gate.rows(link, packet.publisher, good, self.now)
            if rows:
                pubend.publish(packet.publisher, rows)

    def publish_columns(self, link: LinkId, packet: PublishColumns, batch: Batch | None) -> None:
        pubend = self._pubend_of(link, packet.publisher)
        if batch is None or len(batch) == 0 or self._reopening.get(packet.publisher):
            return
        ids = batch.ids()
        parts = ids.view(">u4").reshape(-1, 4)
        if bool((parts[:, 0] != packet.publisher).any()) or bool((parts[:, 1] != self._context.broker).any()):
            raise InvalidValueError("a message id does not name this publisher and broker")
        batch = self._refuse_forbidden(link, packet.publisher, batch)
        if len(batch) == 0:
            return
        if self._is_timely(link, pubend, packet.publisher, bytes(ids[0]), bytes(ids[-1]), packet.age_ms):
            columns = batch if self.gate is None else self.gate.columns(link, packet.publisher, batch, self.now)
            if columns is not None:
                pubend.publish_columns(packet.publisher, columns)

    def _refuse_forbidden(self, link: LinkId, publisher: int, batch: Batch) -> Batch:
        """Return the messages of a batch that the client may publish, and refuse the others, one packet for each run of them."""
        rights = self._context.rights_of(link)
        allowed = rights.publishable()
        if allowed is EVERYTHING:
            return batch
        mask = allowed.evaluate(batch)
        if mask.all():
            return batch
        ids, error = batch.ids(), rights.denied(f"publish messages that do not match {allowed}")
        refused = np.flatnonzero(~mask)
        for run in np.split(refused, np.flatnonzero(np.diff(refused) > 1) + 1):
            first, last = bytes(ids[run[0]]), bytes(ids[run[-1]])
            self._context.send(link, PublishRefused(publisher, first, last, error.code, str(error)[:4096]))
        return batch.slice(0, int(refused[0])) if self.refused(publisher) else batch.filter(mask)

    def refused(self, publisher: int) -> bool:
        """Note that a message of a publisher was refused; tell whether what came after it has to be ignored."""
        if publisher not in self._reopening:
            return False
        self._reopening[publisher] = True
        return True

    def publish_held(self) -> None:
        """Accept what exceeded the rate of its publisher before, as far as the rate allows now."""
        if self.gate is None:
            return
        for link, publisher, rows, columns in self.gate.due(self.now):
            if self._reopening.get(publisher):
                continue  # it comes again
            try:
                pubend = self._pubend_of(link, publisher)
                if columns is not None:
                    pubend.publish_columns(publisher, columns)
                else:
                    pubend.publish(publisher, rows)
            except PostroadError as error:
                self._context.refuse(link, 0, error)

    def link_lost(self, link: LinkId) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0] != link]
        self._links = {publisher: held for publisher, held in self._links.items() if held != link}
        self._skews = {publisher: skew for publisher, skew in self._skews.items() if publisher in self._links}
        self._homes = {publisher: pubend for publisher, pubend in self._homes.items() if publisher in self._links}
        self._named = {publisher: None for publisher in self._named if publisher in self._links}
        self._reopening = {publisher: has_to for publisher, has_to in self._reopening.items() if publisher in self._links}
        for pubend in self.pubends.values():
            pubend.link_lost(link)

    # --- the stream ---

    def commit(self, now: float) -> None:
        for pubend in self.pubends.values():
            pubend.commit(self._context.wall_ms, now)

    def appended(self, pubend_id: int, token: int) -> list[KnowledgeRange]:
        """Return the rows that are on disk now, as knowledge that is complete for every interest."""
        lo, hi, batches = self.pubends[pubend_id].appended(token)
        ranges = []
        for batch in batches:
            end = int(batch.ticks()[-1])
            ranges.append(KnowledgeRange(lo, end, COMPLETE, batch))
            lo = end
        assert lo == hi
        return ranges

    def append_failed(self, pubend_id: int, token: int, error: PostroadError) -> None:
        """Refuse the rows that could not be written. Named writers must open again before they repeat them."""
        for publisher in self.pubends[pubend_id].append_failed(token, error):
            self.refused(publisher)
        for publisher in self._named:
            if self._homes[publisher].pubend == pubend_id:
                self._links.pop(publisher, None)

    def silence(self) -> list[tuple[int, KnowledgeRange]]:
        """Announce silence up to the clock in pubends without an append in progress."""
        decided = []
        for pubend_id, pubend in self.pubends.items():
            span = pubend.silence(self._context.wall_ms)
            if span is not None:
                decided.append((pubend_id, KnowledgeRange(span[0], span[1], COMPLETE, None)))
        return decided

    def reserve_horizons(self) -> None:
        """Store horizons ahead of the clock, up to which silence may be announced; one write at a time."""
        if self._storing_horizons:
            return
        wanted = {}
        for pubend in self.pubends.values():
            horizon = pubend.reserve(self._context.wall_ms) if pubend.is_open else None
            if horizon is not None:
                wanted[pubend.pubend] = horizon
        if wanted:
            self._store_horizons(wanted)

    @property
    def backlog_rows(self) -> int:
        return sum(pubend.backlog_rows for pubend in self.pubends.values())

    @property
    def backlog_bytes(self) -> int:
        return sum(pubend.backlog_bytes for pubend in self.pubends.values())

    def held_back_bytes(self) -> dict[LinkId, int]:
        """Return for each link how many bytes of its publishers wait for the rate of a pubend."""
        found: dict[LinkId, int] = {}
        for pubend in self.pubends.values():
            for link, size in pubend.held_back_bytes().items():
                found[link] = found.get(link, 0) + size
        return found

    # --- inside ---

    def _store_horizons(self, wanted: dict[int, int]) -> None:
        self._storing_horizons = True
        changes = tuple((f"{HORIZON_KEY}{each}", tick.to_bytes(8, "big")) for each, tick in wanted.items())
        self._context.store(changes, HorizonsStored(wanted))

    def horizons_stored(self, horizons: dict[int, int]) -> None:
        self._storing_horizons = False
        for pubend_id, horizon in horizons.items():
            pubend = self.pubends[pubend_id]
            pubend.reserved = max(pubend.reserved, horizon)

    def _reserve(self) -> None:
        if self._reserving or not self._begun:
            return
        self._reserving = True
        bound = max(self._reserved, self._next) + PUBLISHER_BLOCK
        self._context.store(((PUBLISHER_KEY, bound.to_bytes(8, "big")),), PublisherIdsStored(bound))

    def publisher_ids_stored(self, bound: int) -> None:
        """Continue with the clients that waited for a publisher id."""
        self._reserved, self._reserving = bound, False
        waiting, self._waiting = self._waiting, []
        for link, packet, request in waiting:
            self.open(link, packet, request)

    def _tell_opened(self, link: LinkId, publisher: int, request: int, *, reopens: bool) -> None:
        pubend = self._homes[publisher] = self._home_of(publisher)
        before = self._links.get(publisher, link)
        if before != link:  # if its client is still there, it opens the publisher again
            error = UnknownHandleError(f"another connection has opened publisher {publisher}")
            self._context.send(before, PublishRefused(publisher, b"", b"", error.code, str(error)))
        self._own(publisher, link)
        self._reopening.pop(publisher, None)
        if reopens:
            self._reopening[publisher] = False
        if self._skews.pop(publisher, None) in {_Skew.REFUSED_OLD, _Skew.OLD}:
            self._skews[publisher] = _Skew.OLD
        if self.gate is not None:
            self.gate.publisher_opened(link, publisher, pubend.pubend, self.now)
        last = pubend.open(publisher, link)
        window, tolerance = self._context.config.publish_window_bytes, self._context.config.skew_tolerance_ms
        me, wall_ms = self._context.broker, self._context.wall_ms
        packet = PublisherOpened(publisher, me, pubend.pubend, wall_ms, window, last, tolerance, pubend.credit)
        identity = self._context.rights_of(link).owner
        if not identity or self._identities.get(publisher) == identity:
            self._context.send(link, packet, request)
        else:  # a restart must not let another identity resume it
            self._context.store(self._assign(publisher, identity), SendWhenStored(link, packet, request))

    def _assign(self, publisher: int, identity: str) -> Changes:
        """Note whose publisher it is; return the change to store.

        Who opens very many loses the oldest of his own: otherwise he could keep others from resuming theirs.
        """
        own = self._of_identity.setdefault(identity, {})
        before = self._identities.get(publisher)
        if before is not None:
            self._of_identity[before].pop(publisher, None)
        self._identities[publisher] = identity
        own[publisher] = None
        changes: Changes = ((f"{OWNER_KEY}{publisher}", identity.encode()),)
        if len(own) > PUBLISHERS_OF_IDENTITY_MAX or len(self._identities) > PUBLISHERS_MAX:
            oldest = next(iter(own if len(own) > PUBLISHERS_OF_IDENTITY_MAX else self._identities))
            del self._of_identity[self._identities.pop(oldest)][oldest]
            changes += ((f"{OWNER_KEY}{oldest}", None),)
        return changes

    def _own(self, publisher: int, link: LinkId) -> None:
        """Let a link publish as this publisher. Only a client of the same name may resume it later."""
        self._links[publisher] = link
        self._owners.pop(publisher, None)
        self._owners[publisher] = self._name_of(link)
        while len(self._owners) > PUBLISHERS_MAX:
            del self._owners[next(iter(self._owners))]

    def _name_of(self, link: LinkId) -> str:
        return self.clients.get(link, "")

    def _pubend_of(self, link: LinkId, publisher: int) -> Pubend:
        if self._links.get(publisher) != link:
            raise UnknownHandleError(f"publisher {publisher} is not open on this connection")
        return self._homes[publisher]

    def _home_of(self, publisher: int) -> Pubend:
        """Return the pubend that remembers a publisher, also after their number was changed."""
        known = (pubend for pubend in self.pubends.values() if pubend.remembered(publisher) is not None)
        return next(known, self.spread(publisher))

    def _is_timely(self, link: LinkId, pubend: Pubend, publisher: int, first: bytes, last: bytes, age_ms: int) -> bool:
        """Tell whether a frame's timestamps agree with our clock; send a refusal if they do not."""
        newest, accepted = int.from_bytes(last[8:], "big"), pubend.accepted(publisher)
        if newest <= accepted:
            return True  # a repetition: all of it was accepted before
        known, tolerance = self._skews.get(publisher), self._context.config.skew_tolerance_ms
        skew = self._context.wall_ms - tick_milliseconds(newest) - age_ms
        refused = known is _Skew.REFUSED or known is _Skew.REFUSED_OLD
        if -tolerance <= skew <= tolerance and not refused:
            self._skews.pop(publisher, None)
            return True
        if skew > tolerance and known is _Skew.OLD:
            return True
        if not refused:
            self._skews[publisher] = _Skew.REFUSED_OLD if skew > 0 else _Skew.REFUSED
        oldest = max(int.from_bytes(first[8:], "big"), accepted + 1)
        error = SkewError(skew, tolerance)
        wall_ms = self._context.wall_ms
        packet = PublishRefused(publisher, first[:8] + oldest.to_bytes(8, "big"), last, error.code, str(error), wall_ms)
        self._context.send(link, packet)
        return False

    def _acceptable(self, link: LinkId, publisher: int, prefix: bytes, row: Row, allowed: Filter) -> bool:
        try:
            _check_id(row[0], prefix)
            check_message(row[1], row[2], DEFAULT_LIMITS)
            if allowed is not EVERYTHING and allowed.matches(row[1]) is not True:
                raise self._context.rights_of(link).denied(f"publish messages that do not match {allowed}")
        except PostroadError as error:
            self._context.send(link, PublishRefused(publisher, row[0][:64], row[0][:64], error.code, str(error)[:4096]))
            self.refused(publisher)
            return False
        return True


def _check_id(message_id: bytes, prefix: bytes) -> None:
    if len(message_id) != MESSAGE_ID_BYTES:
        raise InvalidValueError(f"a message id has {MESSAGE_ID_BYTES} bytes, not {len(message_id)}")
    if not message_id.startswith(prefix):
        raise InvalidValueError("the message id does not name this publisher and broker")
