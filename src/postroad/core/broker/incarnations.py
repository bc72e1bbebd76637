"""Recognises that this broker's files are older than what it has announced, and continues without contradicting that.

A *life* of a broker is the time between a start and a stop of its process. Its *former lives* are those before this start.
Brokers remember about each other which life they saw last (its incarnation and start time), and how far they have seen each
pubend. They store that from time to time, and send it (`Remembered`) on every new link, and whenever they see a new life. A
broker also tells its neighbours how far it may announce its pubends (`HorizonsReserved`), and they store that at once: they may
have no stream of a pubend, and the clock of the next life may be far behind.

**Incarnations.** The incarnation counts the starts of a broker, on its disk. If the disk is lost or replaced by an old copy, the
count falls, and other brokers ignore this broker's packets as outdated. A neighbour then sends it the newer link state, and a
pubend's broker answers an older hold with the newer number. The broker *outbids* them: it stores an incarnation above all that it
received, and then continues with that one. It is not used before it is on disk, so no two lives ever use the same incarnation.
The file with the count is not changed; the difference is stored.

**Ticks.** A pubend that was never used chooses its first tick, above the clock and above everything that is remembered of it, and
stores it. Only then do interests become active and messages are accepted. A broker with neighbours first waits for a while until
one of them sends what it remembers. If there was a former life, everything up to the first tick is lost. If the files are an old
copy, the lost range begins where they end, and ends where another broker has last seen the pubend. A lost range is stored,
reported to the operator, and answered as a gap from then on (see `lost_ranges`).

Invariants: packets of a life that was outbid are never accepted again; no tick that was announced in a remembered life is used
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.lost_ranges import Loss, Losses
from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX, believable, leaves_room
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, RelayedStreams
from postroad.core.protocol.observations import RangeLost
from postroad.core.protocol.orders import LinkId, Notice
from postroad.core.protocol.packets import (
    HoldConfirmed,
    HorizonsReserved,
    LinkState,
    Positions,
    Released,
    Remembered,
    pubend_broker,
)
from postroad.types import COUNTER_BITS

INCARNATION_KEY: Final = "incarnation-base"
BORN_KEY: Final = "born/"
HEARD_KEY: Final = "heard"
UNHEARD_MS: Final = 15_000  # how far a former life may have announced ticks beyond what other brokers have seen
LIVES_MAX: Final = 8  # remembered per broker
BEYOND_RESERVED_MS: Final = 1_000  # room for the rows of a stream that is ahead of its clock: one tick each
HEARD_STORE_S: Final = 10.0  # how often the seen ends of pubends are stored


class Lives(msgspec.Struct, array_like=True):
    """The highest incarnation of another broker, and when its last lives began."""

    incarnation: int
    starts: list[int]


class Heard(msgspec.Struct, array_like=True):
    """What is remembered of other brokers: their lives, and for each pubend the horizon and the last row that were seen."""

    lives: dict[int, Lives] = {}
    horizons: dict[int, int] = {}
    rows: dict[int, int] = {}
    reserved: dict[int, int] = {}  # how far our neighbours may announce their pubends, as they told us


@dataclass(slots=True)
class StoredLives:
    """What a broker has on disk about its own lives and those of others."""

    base: int = 0  # added to the count of starts to get the incarnation
    born: Positions = field(default_factory=dict)  # the first tick of each pubend
    heard: Heard = field(default_factory=Heard)
    used: list[int] = field(default_factory=list)  # pubends that have begun, though their records are damaged


def started_incarnation(count: int, metadata: Mapping[str, bytes]) -> int:
    """Return the incarnation of a broker from the count of starts on its disk."""
    return min(count + _base(metadata), INCARNATION_MAX - 1)


def assumed_base(damaged: Sequence[str], now_s: int) -> tuple[tuple[str, bytes], ...]:
    """Return a replacement for a damaged base: the clock, which is above any count of starts."""
    return ((INCARNATION_KEY, now_s.to_bytes(8, "big")),) if INCARNATION_KEY in damaged else ()


@dataclass(frozen=True, slots=True)
class FirstTicksStored:
    """Work after a write: pubends begin at these ticks."""

    ticks: Positions


@dataclass(frozen=True, slots=True)
class IncarnationStored:
    """Work after a write: continue with this incarnation."""

    incarnation: int


class Incarnations:
    """Recognises lost or outdated files of this broker, and remembers the lives of other brokers."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        losses: Losses,
        keeper: ConfirmedHolds,
        stored: StoredLives,
        now: float,
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._losses = losses
        self._keeper = keeper
        self._count = context.incarnation - stored.base
        self._adopting = context.incarnation  # the highest incarnation that is stored or being stored
        self._born = dict(stored.born)
        self._found = {p: max(pubend.horizon, self._born.get(p, 0)) for p, pubend in pubends.items()}
        self._last = {p: max(pubend.last, pubend.released) for p, pubend in pubends.items()}  # of messages
        self._new = [pubend for pubend, tick in self._found.items() if not tick and pubend not in stored.used]
        self._remembered: Positions = {}  # the highest ticks of our pubends in former lives, as other brokers report them
        self._reserved: Positions = {}  # how far former lives may have announced them
        self._former = context.config.replaces  # there was a former life
        self._begin_at = now + context.config.newcomer_wait_s
        self._begun: list[int] = []  # pubends that have begun, until `take_begun`
        self._lost: list[tuple[int, int]] = []  # pubends that are lost up to a tick, until `take_lost`
        if self._new and context.config.newcomer_wait_s:
            context.keep_all_until = now + context.config.subscriber_grace_s  # other brokers must send their holds first
        self._heard = stored.heard
        self._untold: dict[int, Remembered] = {}  # broker -> what to send to it once there is a route
        self._store_at = now + HEARD_STORE_S
        self._lives_changed = False  # since they were stored
        for pubend, tick in self._found.items():
            stream = streams[pubend]
            if pubend not in self._new:
                pubends[pubend].begin(tick)
                stream.active_tick = pubends[pubend].horizon
            else:
                pubends[pubend].is_open = False
                stream.close()
        context.files_lost = self.anew_ms != 0
        for pubend, loss in losses:
            if not loss.lo and pubend in pubends:
                pubends[pubend].released = max(pubends[pubend].released, loss.hi)

    def restarted_above(self, pubend: int, tick: int) -> None:
        """Record that a pubend's horizon was unknown and that it continues above `tick`; then only rows can prove a loss."""
        self._found[pubend] = max(tick, self._found[pubend])

    # --- a pubend's first tick ---

    @property
    def waits(self) -> bool:
        """Whether some pubends have not begun: until then it is not known whether this broker had a former life."""
        return bool(self._new)

    def wake(self, now: float) -> None:
        if self._new and now >= self._begin_at and self._context.wall_ms:
            self._begin(now)

    @property
    def anew_ms(self) -> int:
        """When it was found that the files of a former life are lost; 0 if they never were."""
        return max((loss.wall_ms for _, loss in self._losses if not loss.lo), default=0)

    def first_tick(self, pubend: int) -> int:
        """Return the first tick of a hosted pubend, 0 when it is not known."""
        return self._born.get(pubend, 0)

    def take_begun(self) -> list[int]:
        """Return the pubends that have begun since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def take_lost(self) -> list[tuple[int, int]]:
        """Return (pubend, tick) for losses found since the last call; subscribers get a gap up to the tick."""
        lost, self._lost = self._lost, []
        return lost

    def _begin(self, now: float) -> None:
        """Choose and store the first tick of unused pubends, with the range that is lost before it."""
        self._begin_at = float("inf")
        wall, ahead = self._context.wall_ms << COUNTER_BITS, UNHEARD_MS << COUNTER_BITS if self._former else 0
        born = {pubend: max(wall, self._remembered.get(pubend, 0)) + ahead for pubend in self._new}
        for pubend, tick in self._reserved.items():
            if pubend in born:
                born[pubend] = max(tick + (BEYOND_RESERVED_MS << COUNTER_BITS), born[pubend])
        changes: list[tuple[str, bytes | None]] = [(f"{BORN_KEY}{p}", tick.to_bytes(8, "big")) for p, tick in born.items()]
        if self._former:
            changes += [self._note(pubend, 0, tick, now) for pubend, tick in born.items()]
        self._context.store(tuple(changes), FirstTicksStored(born))

    def first_ticks_stored(self, born: Positions, now: float) -> None:
        """Open the pubends whose first ticks are on disk."""
        self._born.update(born)
        self._new = []
        for pubend_id, tick in born.items():
            pubend = self._pubends[pubend_id]
            pubend.begin(tick)
            pubend.released = max(pubend.released, self._losses.end_after(pubend_id, 0))
            if self._former:  # also if that became known only while the first tick was being stored
                self._lose(pubend_id, 0, max(tick, self._beyond(pubend_id)), now)
            self._streams[pubend_id].begin(pubend.horizon, now)
            self._begun.append(pubend_id)

    # --- what others remember of us ---

    def told(self, packet: Remembered, now: float, *, is_neighbour: bool) -> None:
        """Handle what another broker remembers of our former lives."""
        if not leaves_room(packet.incarnation, self._context.incarnation, INCARNATION_MAX):
            return
        knows_this_life = self._context.routes.started_ms in packet.starts  # then it describes this life, not a former one
        if packet.incarnation:
            wall_ms = self._context.wall_ms
            horizons, reserved = believable(packet.horizons, wall_ms), believable(packet.reserved, wall_ms)
            if knows_this_life:
                self._former_life_before(horizons, reserved)
            else:
                self._note_reserved(reserved)
                self._former_life(packet.incarnation, horizons, believable(packet.rows, wall_ms), now)
        if self._new and is_neighbour:
            self._begin_at = min(self._begin_at, now)

    def _note_reserved(self, reserved: Positions) -> None:
        for pubend, tick in reserved.items():
            self._reserved[pubend] = max(tick, self._reserved.get(pubend, 0))

    def _former_life_before(self, horizons: Positions, reserved: Positions) -> None:
        """Handle what a broker remembers that heard of this life first, and could tell us of the former one only after a restart.

        This life has announced nothing of pubends that have not begun. So what is known of them is of a former life.
        """
        of_new = [pubend for pubend in self._new if pubend in horizons or pubend in reserved]
        for pubend in of_new:
            self._remembered[pubend] = max(horizons.get(pubend, 0), self._remembered.get(pubend, 0))
        self._note_reserved({pubend: reserved[pubend] for pubend in of_new if pubend in reserved})
        self._former = self._former or bool(of_new)

    def _former_life(self, incarnation: int, horizons: Positions, rows: Positions, now: float) -> None:
        fallen = incarnation >= self._context.incarnation
        if fallen:
            self._outbid(incarnation + 1)
        for pubend in self._pubends:
            heard = horizons.get(pubend, 0)
            self._remembered[pubend] = max(heard, self._remembered.get(pubend, 0))
            if pubend in self._new:
                self._former = True
            elif not self._found[pubend]:
                self._former = True
                self._lose(pubend, 0, self._end_of_loss(pubend, heard, self._born[pubend]), now)
            elif fallen or heard > self._found[pubend] or rows.get(pubend, 0) > self._last[pubend]:
                self._lose(pubend, self._last[pubend], self._end_of_loss(pubend, heard, self._found[pubend]), now)

    def _end_of_loss(self, pubend: int, heard: int, first: int) -> int:
        """Return the end of the lost range of a pubend that has begun at `first`, excluding the messages of this life.

        The reported horizon may come from this life, if the other broker saw the pubend before it saw the new life. Then the
        start time of this life is the limit.
        """
        if heard > self._pubends[pubend].horizon:
            return max(first, self._beyond(pubend))
        return max(first, min(heard, self._context.routes.started_ms << COUNTER_BITS))

    def _beyond(self, pubend: int) -> int:
        """Return a tick above all that former lives used, including the last ones, which no other broker may have seen."""
        heard = self._remembered.get(pubend, 0)
        return heard + (UNHEARD_MS << COUNTER_BITS) if heard else 0

    def _lose(self, pubend_id: int, lo: int, hi: int, now: float) -> None:
        """Record a range that was found to be lost after the pubend had begun, and report it to subscribers behind it."""
        pubend, stream = self._pubends[pubend_id], self._streams[pubend_id]
        if self._losses.contains(pubend_id, Loss(lo, hi, 0, 0)):
            return
        self._context.store((self._note(pubend_id, lo, hi, now),))
        pubend.horizon = max(pubend.horizon, hi)
        stream.cache.drop_through(hi)
        if lo:
            return  # the ticks before it can be read: a subscription gets the gap when it reaches `lo`
        pubend.released = max(pubend.released, hi)
        self._lost.append((pubend_id, hi))
        stream.pass_on(Released(pubend_id, hi))

    def _note(self, pubend: int, lo: int, hi: int, now: float) -> tuple[str, bytes]:
        context = self._context
        context.keep_all_until = max(context.keep_all_until, now + context.config.subscriber_grace_s)
        context.files_lost = context.files_lost or not lo
        text = f"the messages of pubend {pubend:x} in ({lo}, {hi}] were lost with this broker's former files"
        if context.config.replaces:
            context.orders.append(Notice(f"{text}; subscribers that did not receive them get a gap"))
        else:
            hint = "if this is intended, use --replace next time; otherwise check that the right disk is mounted"
            context.orders.append(Notice(f"{text}; subscribers that did not receive them get a gap; {hint}", error=True))
        if context.config.observed:
            context.orders.append(RangeLost(pubend, lo, hi))
        return self._losses.add(pubend, Loss(lo, hi, context.incarnation, context.wall_ms))

    # --- what we remember of others ---

    def remember_life(self, broker: int, life: tuple[int, int]) -> None:
        """Record a new life of another broker; what we remember of the one before is sent to it when there is a route."""
        incarnation, started_ms = life
        known = self._heard.lives.setdefault(broker, Lives(0, []))
        if not started_ms or (started_ms in known.starts and incarnation <= known.incarnation):
            return
        if known.starts and started_ms not in known.starts:
            self._untold[broker] = self._memory_of(broker)
        known.incarnation = max(incarnation, known.incarnation)
        if started_ms not in known.starts:
            known.starts = [*known.starts, started_ms][-LIVES_MAX:]
        self._lives_changed = True

    def tell_neighbour(self, link: LinkId, broker: int) -> None:
        """Send a new neighbour what we remember of it, even if that is nothing: it may wait for this packet.

        It also gets our horizons, to remember them for us.
        """
        self._context.send(link, self._memory_of(broker))
        reserved = self._list_reserved()
        if reserved:
            self._context.send(link, HorizonsReserved(reserved))

    def tell_reserved(self) -> None:
        """Tell all neighbours how far we may announce our pubends, because that has risen."""
        self._context.flood(HorizonsReserved(self._list_reserved()))

    def _list_reserved(self) -> Positions:
        soon = self._context.wall_ms + UNHEARD_MS << COUNTER_BITS  # rows follow the clock, also beyond what is reserved
        return {p: max(pubend.reserved, pubend.horizon, soon) for p, pubend in self._pubends.items() if pubend.is_open}

    def horizons_told(self, broker: int, packet: HorizonsReserved) -> None:
        """Remember how far a neighbour may announce its pubends."""
        for pubend, tick in believable(packet.horizons, self._context.wall_ms).items():
            if pubend_broker(pubend) == broker and tick > self._heard.reserved.get(pubend, 0):
                self._heard.reserved[pubend], self._lives_changed = tick, True

    def tell_others(self) -> None:
        """Send what we remember to brokers with a new life, if there is a route now."""
        for broker, memory in list(self._untold.items()):
            if self._context.unicast(memory):
                del self._untold[broker]

    def _memory_of(self, broker: int) -> Remembered:
        self._hear()
        horizons = {p: tick for p, tick in self._heard.horizons.items() if pubend_broker(p) == broker}
        rows = {p: tick for p, tick in self._heard.rows.items() if pubend_broker(p) == broker}
        lives = self._heard.lives.get(broker, Lives(0, []))
        reserved = {p: tick for p, tick in self._heard.reserved.items() if pubend_broker(p) == broker}
        return Remembered(
            broker, self._context.broker, FULL_HOPS, lives.incarnation, list(lives.starts), horizons, rows, reserved
        )

    def store_heard(self, now: float) -> None:
        """Store how far other brokers' pubends were seen, if that changed since the last time."""
        if now < self._store_at:
            return
        self._store_at = now + HEARD_STORE_S
        self._lives_changed = self._hear() or self._lives_changed

    def store_lives(self) -> None:
        """Store new lives of other brokers; one write for all of a turn."""
        if self._lives_changed:
            self._lives_changed = False
            self._context.store_newest(HEARD_KEY, msgspec.msgpack.encode(self._heard))

    def _hear(self) -> bool:
        """Record how far other brokers' streams are; tell whether one advanced."""
        heard, moved = self._heard, False
        for pubend, stream in self._streams.items():
            if not stream.hosted_here and stream.cache.frontier > heard.horizons.get(pubend, 0):
                heard.horizons[pubend], moved = stream.cache.frontier, True
                heard.rows[pubend] = max(stream.last_row, heard.rows.get(pubend, 0))
        return moved

    # --- incarnations ---

    def heard_of_self(self, record: LinkState) -> None:
        """Handle a link state that names us as its origin."""
        incarnation = self._context.routes.outbid(record)
        if incarnation is not None:
            self._outbid(incarnation)

    def hold_refused(self, packet: HoldConfirmed) -> None:
        """Handle the refusal of a hold of ours that is older than a known one."""
        ours = (self._context.incarnation, self._keeper.version)
        if (packet.incarnation, packet.version) <= ours:
            return  # we have sent a newer hold since the one that was refused
        incarnation, version = ours
        if not leaves_room(packet.incarnation, incarnation, INCARNATION_MAX) or not leaves_room(
            packet.version, version, COUNT_MAX
        ):
            return  # no broker has accepted such a hold
        if packet.incarnation == incarnation:
            self._keeper.adopt(packet.incarnation, packet.version)
        else:
            self._outbid(packet.incarnation + 1)

    def _outbid(self, incarnation: int) -> None:
        if incarnation <= self._adopting:
            return
        self._adopting = incarnation
        text = (
            f"other brokers know a newer incarnation of broker {self._context.broker}; it continues as {incarnation}. "
            "Its files were lost or replaced by an old copy, or two brokers have this id"
        )
        self._context.orders.append(Notice(text, error=not self._context.config.replaces))
        base = (incarnation - self._count).to_bytes(8, "big")
        self._context.store(((INCARNATION_KEY, base),), IncarnationStored(incarnation))

    def incarnation_stored(self, incarnation: int) -> None:
        """Continue with a higher incarnation."""
        if incarnation <= self._context.incarnation:
            return
        self._context.incarnation = incarnation
        self._context.routes.adopt(incarnation)
        self._keeper.adopt(incarnation, 0)


def _base(metadata: Mapping[str, bytes]) -> int:
    return int.from_bytes(metadata.get(INCARNATION_KEY, b"\0"), "big")
