"""What a broker does when it finds that its disk is behind what it once said.

Brokers remember of each other which life they heard of last, an incarnation and the time of its start, and how far they heard of
each pubend. They store that now and then, and tell it (`Remembered`) on every new link and whenever they hear of a new life.

**Incarnations.** An incarnation counts the starts of a broker, on its disk. When that is lost, or an old copy of it comes back,
the count falls, and others refuse what the broker says as older than what they know. A neighbour then sends the newer link
state, a pubend's broker answers an older hold with the newer number. The broker *outbids* them: it stores an incarnation above
all it heard of and goes on under that. Until it is stored, nothing is said under it, so that no two lives ever use the same one.
The disk's own count goes on below: what is stored is the difference.

**Ticks.** A pubend that was never used *begins*: it chooses its first tick, above the clock and above all that is remembered
of it, and stores it; only then interests become active, and messages are taken. A broker that has neighbours waits for one of
them to tell what it remembers, for a while. If there was a former life, everything up to the first tick is lost. If the files
are an old copy, the lost range begins where they end, and ends where somebody heard of the pubend last. A lost range is stored,
told to the operator, and answered as a gap from then on (see `lost_ranges`).

Invariants: a life that was outbid never speaks again; no tick that was announced in a life anybody remembers is used again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from postroad.core.broker.context import FULL_HOPS, Context
from postroad.core.broker.lost_ranges import Loss, Losses
from postroad.core.broker.trust import COUNT_MAX, INCARNATION_MAX, believable
from postroad.core.broker.views import ConfirmedHolds, HostedPubends, RelayedStreams
from postroad.core.protocol.observations import RangeLost
from postroad.core.protocol.orders import LinkId, Notice
from postroad.core.protocol.packets import HoldConfirmed, LinkState, Positions, Released, Remembered, pubend_broker
from postroad.types import COUNTER_BITS

INCARNATION_KEY: Final = "incarnation-base"
BORN_KEY: Final = "born/"
HEARD_KEY: Final = "heard"
UNHEARD_MS: Final = 15_000  # what a former life may have decided beyond what anybody heard of, where its ticks were ahead of time
LIVES_MAX: Final = 8  # of one broker that are remembered
HEARD_STORE_S: Final = 10.0  # how often it is stored how far pubends were heard of


class Lives(msgspec.Struct, array_like=True):
    """The highest incarnation of another broker, and when its last lives began."""

    incarnation: int
    starts: list[int]


class Heard(msgspec.Struct, array_like=True):
    """What is remembered of other brokers: their lives, and how far each pubend was heard of."""

    lives: dict[int, Lives] = {}
    horizons: dict[int, int] = {}
    rows: dict[int, int] = {}


@dataclass(slots=True)
class Stored:
    """What a broker has on disk of its own lives and of others'."""

    base: int = 0  # of incarnations
    born: Positions = field(default_factory=dict)  # the first tick of each pubend
    heard: Heard = field(default_factory=Heard)
    used: list[int] = field(default_factory=list)  # pubends that have begun, though their records are damaged


def started_incarnation(count: int, metadata: Mapping[str, bytes]) -> int:
    """Return the incarnation of a broker whose disk counts so many starts."""
    return min(count + _base(metadata), INCARNATION_MAX - 1)


def assumed_base(damaged: Sequence[str], now_s: int) -> tuple[tuple[str, bytes], ...]:
    """Return what stands in for a damaged base: the clock, which is above any count of starts."""
    return ((INCARNATION_KEY, now_s.to_bytes(8, "big")),) if INCARNATION_KEY in damaged else ()


@dataclass(frozen=True, slots=True)
class FirstTicksStored:
    """Work after a write: pubends begin at these ticks."""

    ticks: Positions


@dataclass(frozen=True, slots=True)
class IncarnationStored:
    """Work after a write: go on under this incarnation."""

    incarnation: int


class FormerLives:
    """Recognises that a former life of this broker said more than its disk knows, and remembers the lives of others."""

    def __init__(
        self,
        context: Context,
        pubends: HostedPubends,
        streams: RelayedStreams,
        losses: Losses,
        keeper: ConfirmedHolds,
        stored: Stored,
        now: float,
    ) -> None:
        self._context = context
        self._pubends = pubends
        self._streams = streams
        self._losses = losses
        self._keeper = keeper
        self._count = context.incarnation - stored.base
        self._adopting = context.incarnation  # what is being stored, or was
        self._hold_version = 0
        self._born = dict(stored.born)
        self._found = {p: max(pubend.horizon, self._born.get(p, 0)) for p, pubend in pubends.items()}
        self._last = {p: max(pubend.last, pubend.released) for p, pubend in pubends.items()}  # message there, or gone
        self._new = [pubend for pubend, tick in self._found.items() if not tick and pubend not in stored.used]
        self._remembered: Positions = {}  # the ticks of our pubends in former lives
        self._former = context.config.replaces  # there was one
        self._begin_at = now + context.config.newcomer_wait_s
        self._begun: list[int] = []  # pubends that have begun, until `take_begun`
        self._lost: list[tuple[int, int]] = []  # pubends that are gone up to a tick, until `take_lost`
        if self._new and context.config.newcomer_wait_s:
            context.keep_all_until = now + context.config.subscriber_grace_s  # who holds the log has to say so first
        self._heard = stored.heard
        self._untold: dict[int, Remembered] = {}  # broker -> what it is to be told once there is a way to it
        self._store_at = now + HEARD_STORE_S
        for pubend, tick in self._found.items():
            stream = streams[pubend]
            if pubend not in self._new:
                pubends[pubend].begin(tick)
                stream.active_tick = pubends[pubend].horizon
            else:
                pubends[pubend].is_open = False
                stream.close()
        for pubend, loss in losses:
            if not loss.lo and pubend in pubends:
                pubends[pubend].released = max(pubends[pubend].released, loss.hi)

    def restarted_above(self, pubend: int, tick: int) -> None:
        """Take note that it is not known how far a pubend was, and that it goes on above a tick: only rows tell a loss then."""
        self._found[pubend] = max(tick, self._found[pubend])

    # --- a pubend's first tick ---

    @property
    def waits(self) -> bool:
        """Whether there are pubends that have not begun: until then nobody knows what this broker once was."""
        return bool(self._new)

    def wake(self, now: float) -> None:
        if self._new and now >= self._begin_at and self._context.wall_ms:
            self._begin(now)

    @property
    def anew_ms(self) -> int:
        """When this life began in place of a former one whose files are lost, 0 if it did not."""
        return self._context.wall_ms if self._former else 0

    def first_tick(self, pubend: int) -> int:
        """Return where a pubend of ours began, 0 when that is not known."""
        return self._born.get(pubend, 0)

    def take_begun(self) -> list[int]:
        """Return the pubends that have begun since the last time."""
        begun, self._begun = self._begun, []
        return begun

    def take_lost(self) -> list[tuple[int, int]]:
        """Return the pubends found since the last time to be gone up to a tick: their subscribers get a gap."""
        lost, self._lost = self._lost, []
        return lost

    def _begin(self, now: float) -> None:
        """Choose and store the first tick of pubends that were never used, with what is lost before it."""
        self._begin_at = float("inf")
        wall, ahead = self._context.wall_ms << COUNTER_BITS, UNHEARD_MS << COUNTER_BITS if self._former else 0
        born = {pubend: max(wall, self._remembered.get(pubend, 0)) + ahead for pubend in self._new}
        changes: list[tuple[str, bytes | None]] = [(f"{BORN_KEY}{p}", tick.to_bytes(8, "big")) for p, tick in born.items()]
        if self._former:
            changes += [self._note(pubend, 0, tick, now) for pubend, tick in born.items()]
        self._context.store(tuple(changes), FirstTicksStored(born))

    def first_ticks_stored(self, born: Positions, now: float) -> None:
        """Open the pubends whose first ticks are durable."""
        self._born.update(born)
        self._new = []
        for pubend_id, tick in born.items():
            pubend = self._pubends[pubend_id]
            pubend.begin(tick)
            pubend.released = max(pubend.released, self._losses.end_after(pubend_id, 0))
            if self._former:  # also where that was heard of only while the first tick was being stored
                self._lose(pubend_id, 0, max(tick, self._beyond(pubend_id)), now)
            self._streams[pubend_id].begin(pubend.horizon, now)
            self._begun.append(pubend_id)

    # --- what others remember of us ---

    def told(self, packet: Remembered, now: float, *, is_neighbour: bool) -> None:
        """Take what another broker remembers of our former lives."""
        knows_this_life = self._context.routes.started_ms in packet.starts  # then there is nothing to learn from it
        if packet.incarnation and not knows_this_life:
            wall_ms = self._context.wall_ms
            horizons, rows = believable(packet.horizons, wall_ms), believable(packet.rows, wall_ms)
            self._former_life(packet.incarnation, horizons, rows, now)
        if self._new and is_neighbour:
            self._begin_at = min(self._begin_at, now)

    def _former_life(self, incarnation: int, horizons: Positions, rows: Positions, now: float) -> None:
        fallen = incarnation >= self._context.incarnation
        if fallen:
            self._outbid(min(incarnation + 1, INCARNATION_MAX - 1))
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
        """Return where the lost range of a pubend ends that has begun at `first`, without the messages of this life.

        What was heard may be what this life has said, if it came by another way than word of the life; then the clock decides.
        """
        if heard > self._pubends[pubend].horizon:
            return max(first, self._beyond(pubend))
        return max(first, min(heard, self._context.routes.started_ms << COUNTER_BITS))

    def _beyond(self, pubend: int) -> int:
        """Return a tick above all that former lives gave out, of which somebody may not have heard the last."""
        heard = self._remembered.get(pubend, 0)
        return heard + (UNHEARD_MS << COUNTER_BITS) if heard else 0

    def _lose(self, pubend_id: int, lo: int, hi: int, now: float) -> None:
        """Note a range that turned out to be lost after the pubend had begun, and tell those who are behind it."""
        pubend, stream = self._pubends[pubend_id], self._streams[pubend_id]
        if self._losses.contains(pubend_id, Loss(lo, hi, 0, 0)):
            return
        self._context.store((self._note(pubend_id, lo, hi, now),))
        pubend.horizon = max(pubend.horizon, hi)
        stream.cache.drop_through(hi)
        if lo:
            return  # what is before it can be read: who is behind is told when it comes to it
        pubend.released = max(pubend.released, hi)
        self._lost.append((pubend_id, hi))
        stream.pass_on(Released(pubend_id, hi))

    def _note(self, pubend: int, lo: int, hi: int, now: float) -> tuple[str, bytes]:
        context = self._context
        context.keep_all_until = max(context.keep_all_until, now + context.config.subscriber_grace_s)
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
        """Note a new life of another broker; what we knew of the one before is told to it as soon as there is a way."""
        incarnation, started_ms = life
        known = self._heard.lives.setdefault(broker, Lives(0, []))
        if not started_ms or (started_ms in known.starts and incarnation <= known.incarnation):
            return
        if known.starts and started_ms not in known.starts:
            self._untold[broker] = self._memory_of(broker)
        known.incarnation = max(incarnation, known.incarnation)
        if started_ms not in known.starts:
            known.starts = [*known.starts, started_ms][-LIVES_MAX:]
        self._context.store(((HEARD_KEY, msgspec.msgpack.encode(self._heard)),))

    def tell_neighbour(self, link: LinkId, broker: int) -> None:
        """Tell a new neighbour what we remember of it; with nothing to remember, just that."""
        self._context.send(link, self._memory_of(broker))

    def tell_others(self) -> None:
        """Tell brokers that began a new life, where there is a way to them now."""
        for broker, memory in list(self._untold.items()):
            if self._context.unicast(memory):
                del self._untold[broker]

    def _memory_of(self, broker: int) -> Remembered:
        self._hear()
        horizons = {p: tick for p, tick in self._heard.horizons.items() if pubend_broker(p) == broker}
        rows = {p: tick for p, tick in self._heard.rows.items() if pubend_broker(p) == broker}
        lives = self._heard.lives.get(broker, Lives(0, []))
        return Remembered(broker, self._context.broker, FULL_HOPS, lives.incarnation, list(lives.starts), horizons, rows)

    def store_heard(self, now: float) -> None:
        """Store how far the pubends of others were heard of, if some moved on since the last time."""
        if now < self._store_at:
            return
        self._store_at = now + HEARD_STORE_S
        if self._hear():
            self._context.store(((HEARD_KEY, msgspec.msgpack.encode(self._heard)),))

    def _hear(self) -> bool:
        """Note how far the streams of others are; tell whether one moved on."""
        heard, moved = self._heard, False
        for pubend, stream in self._streams.items():
            if not stream.hosted_here and stream.cache.frontier > heard.horizons.get(pubend, 0):
                heard.horizons[pubend], moved = stream.cache.frontier, True
                heard.rows[pubend] = max(stream.last_row, heard.rows.get(pubend, 0))
        return moved

    # --- incarnations ---

    def heard_of_self(self, record: LinkState) -> None:
        """Take a link state that names us as its origin."""
        incarnation = self._context.routes.outbid(record)
        if incarnation is not None:
            self._outbid(incarnation)

    def hold_refused(self, packet: HoldConfirmed) -> None:
        """Take word that a hold of ours is older than one that is known."""
        ours = (self._context.incarnation, self._keeper.version)
        if (packet.incarnation, packet.version) <= ours:
            return  # it overtook the one that was refused
        if packet.incarnation == self._context.incarnation and packet.version + 1 < COUNT_MAX:
            self._keeper.adopt(packet.incarnation, packet.version)
            return
        self._hold_version = packet.version if packet.incarnation + 1 >= INCARNATION_MAX else 0
        self._outbid(min(packet.incarnation + 1, INCARNATION_MAX - 1))

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
        """Go on under a higher incarnation."""
        if incarnation <= self._context.incarnation:
            return
        self._context.incarnation = incarnation
        self._context.routes.adopt(incarnation)
        self._keeper.adopt(incarnation, self._hold_version)


def _base(metadata: Mapping[str, bytes]) -> int:
    return int.from_bytes(metadata.get(INCARNATION_KEY, b"\0"), "big")
