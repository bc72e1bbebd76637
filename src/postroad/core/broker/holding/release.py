"""Sends this broker's holds, handles those of other brokers, and releases the logs that nobody holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from postroad.core.broker.context import FULL_HOPS, Changes, Context
from postroad.core.broker.holding.keeper import HoldKeeper
from postroad.core.broker.holding.table import HoldTable
from postroad.core.broker.views import DurableHomes, HostedPubends, Positioned, RelayedStreams
from postroad.core.protocol.orders import ReleaseLog
from postroad.core.protocol.packets import Hold, HoldConfirmed, Positions, pubend_broker

FLOOR_KEY: Final = "hold-floor"
LAZY_STORE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class HoldStored:
    """Work after a write: confirm a hold."""

    hold: Hold


class Releasing:
    """Sends and receives holds, and releases what nobody holds."""

    def __init__(
        self,
        context: Context,
        table: HoldTable,
        keeper: HoldKeeper,
        pubends: HostedPubends,
        streams: RelayedStreams,
        connected: Positioned,
        durables: DurableHomes,
        floor: Positions,
    ) -> None:
        self._context = context
        self._table = table
        self._keeper = keeper
        self._pubends = pubends
        self._streams = streams
        self._connected = connected  # the subscriptions of connected clients
        self._durables = durables
        self._observed: Positions = {}  # how far an observer has recorded our pubends
        self._floor = dict(floor)  # what we need, as stored: the holds of this broker after a restart
        self._store_at = 0.0
        self._ordered: dict[int, int] = {}  # pubend -> the tick up to which the release was ordered
        self._storing: dict[int, Hold | None] = {}  # broker whose hold is being stored -> its newest hold that came meanwhile

    # --- our holds ---

    def needed(self) -> Positions:
        return self._keeper.lowest(self._connected.holds(), self._durables.holds())

    def tell(self, *, again: bool = False) -> None:
        """Send each broker our hold on its pubends if it changed; with `again`, also if it was not confirmed.

        After a start every broker is sent one hold, even an empty one: the former life may have crashed before it sent that.
        """
        needed = self.needed()
        by_broker: dict[int, Positions] = {pubend_broker(pubend): {} for pubend in self._streams}
        for pubend, tick in needed.items():
            by_broker.setdefault(pubend_broker(pubend), {})[pubend] = tick
        for broker, ticks in by_broker.items():
            if not self._context.routes.reachable(broker):
                continue
            version = self._keeper.to_send(broker, ticks, again=again)
            if version is not None:
                hold = Hold(broker, self._context.broker, FULL_HOPS, self._context.incarnation, version, ticks)
                if broker == self._context.broker:
                    self.take(hold)
                else:
                    self._context.unicast(hold)

    def tell_for(self, positions: Positions) -> None:
        """Send holds if a new subscription needs more than is held."""
        for pubend, tick in positions.items():
            if not self._keeper.holds_already(pubend_broker(pubend), {pubend: tick}):
                self.tell()
                return

    def floor_changes(self, positions: Positions) -> Changes:
        """Return what must be stored before a new subscription may rely on our holds: a floor that is new or lower."""
        if all(pubend in self._floor and self._floor[pubend] <= tick for pubend, tick in positions.items()):
            return ()
        for pubend, tick in positions.items():
            self._floor[pubend] = min(tick, self._floor.get(pubend, tick))
        return ((FLOOR_KEY, msgspec.msgpack.encode(self._floor)),)

    def confirmed(self, packet: HoldConfirmed) -> None:
        """Handle the answer to one of our holds."""
        self._keeper.confirmed(packet.source, packet.incarnation, packet.version, packet.released)

    # --- others' holds ---

    def take(self, hold: Hold) -> None:
        """Handle a hold and confirm it. One that is new or lower than before is stored first."""
        here = self._pubends
        ticks = {pubend: min(tick, here[pubend].horizon) for pubend, tick in hold.ticks.items() if pubend in here}
        taken = self._table.take(msgspec.structs.replace(hold, ticks=ticks))
        if not taken.accepted:
            if taken.newer is not None and hold.source != self._context.broker:
                newest = taken.newer.incarnation, taken.newer.version
                self._context.unicast(HoldConfirmed(hold.source, self._context.broker, FULL_HOPS, *newest, {}, refused=True))
            return
        if hold.source in self._storing:
            self._storing[hold.source] = hold
        elif taken.store:
            self._store(hold)
        else:
            self._confirm(hold)

    def _store(self, hold: Hold) -> None:
        """Store a hold. Only the newest one that comes during the write follows, so a slow disk has one write per broker."""
        self._storing[hold.source] = None
        self._context.store(self._table.changes(), HoldStored(hold))

    def hold_stored(self, hold: Hold) -> None:
        """Confirm a hold that is on disk, and store the newest one that came meanwhile."""
        newest = self._storing.pop(hold.source)
        self._confirm(hold)
        if newest is not None and newest != hold:
            self._store(newest)

    def _confirm(self, hold: Hold) -> None:
        here = [p for p in hold.ticks if p in self._pubends]
        released = {p: max(self._pubends[p].released, self._ordered.get(p, 0)) for p in here}
        me, them = self._context.broker, hold.source
        packet = HoldConfirmed(them, me, FULL_HOPS, hold.incarnation, hold.version, released)
        if them == me:
            self.confirmed(packet)
        else:
            self._context.unicast(packet)

    def observed(self, ticks: Iterable[tuple[int, int]]) -> None:
        """Record how far an observer has recorded our pubends; the logs beyond that are held for it."""
        self._observed.update(ticks)

    def release(self, now: float) -> None:
        """Release what nobody holds and what is older than `keep_s`; store holds that rose from time to time."""
        homes = self._durables.home_brokers() - set(self._context.config.retired)
        for pubend_id, pubend in self._pubends.items() if now >= self._context.keep_all_until else ():
            if not self._table.is_held_by(homes, pubend_id):
                continue  # a durable subscription there may not know this pubend yet, but needs it from its first tick
            held = self._table.lowest(pubend_id)
            kept = (self._context.wall_ms - int(self._context.config.keep_s * 1000)) << 16
            tick = min(pubend.last if held is None else held, kept, pubend.last)  # not beyond the last message
            if self._context.config.observed:  # messages that are not recorded yet must be in the log after a crash
                tick = min(tick, self._observed.get(pubend_id, 0))
            if tick > max(pubend.released, self._ordered.get(pubend_id, 0)):
                self._ordered[pubend_id] = tick
                self._context.orders.append(ReleaseLog(pubend_id, tick))
        if now >= self._store_at:
            self._store_at = now + LAZY_STORE_S
            changes = self._table.changes()
            needed = self.needed()
            if needed != self._floor:
                self._floor = needed
                changes += ((FLOOR_KEY, msgspec.msgpack.encode(needed)),)
            if changes:
                self._context.store(changes)
