"""Acknowledgements: how far the clients of durable subscriptions are, and when that is on disk.

A client can ask for a confirmation that its acknowledgement is stored. After the confirmation it never receives those messages
again. All acknowledgements that arrive during one write are stored together by the next write.
"""

from __future__ import annotations

from dataclasses import dataclass

from postroad.core.broker.context import Context
from postroad.core.broker.subscribing.durable import Durables
from postroad.core.broker.subscribing.edge import Edge
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Acknowledge, AcknowledgementStored, Positions


@dataclass(frozen=True, slots=True)
class AcknowledgementsStored:
    """Work after a write: confirm to clients what they acknowledged, by number of subscription."""

    positions: dict[int, Positions]


class Acknowledgements:
    """The acknowledgements that clients wait to be stored."""

    def __init__(self, context: Context, edge: Edge, durables: Durables) -> None:
        self._context = context
        self._edge = edge
        self._durables = durables
        self._asked: dict[int, Positions] = {}  # number of subscription -> cursors to be confirmed
        self._early: dict[int, Positions] = {}  # the same for subscriptions that have not settled at this broker
        self._storing = False

    def take(self, link: LinkId, packet: Acknowledge) -> None:
        """Record what a client has processed; with `confirm`, tell it when that is on disk."""
        subscription = self._edge.find(link, packet.handle)
        if subscription is None:
            return  # it ended before the acknowledgement arrived
        self._edge.acknowledge(subscription, packet.positions)
        if subscription.name is None:
            return
        cursors = self._edge.cursors(subscription)
        self._durables.moved_on(subscription.name, cursors)
        if packet.confirm:
            asked = self._asked.setdefault(subscription.number, {})
            asked.update({pubend: cursors[pubend] for pubend in packet.positions if pubend in cursors})
            self._store()

    def _store(self) -> None:
        """Write the cursors that clients wait for, unless a write is in progress; `stored` is called when it is done."""
        if self._storing or not self._asked:
            return
        asked, self._asked = self._asked, {}
        subscriptions, durables = self._edge.subscriptions, self._durables
        for number, positions in asked.items():
            name = subscriptions[number].name if number in subscriptions else None
            if name in durables.here and not durables.is_kept(name, positions):
                durables.mark(name)
        if durables.dirty:
            self._storing = True
            self._context.store(durables.changes(), AcknowledgementsStored(asked))
        else:
            self.stored(asked)

    def stored(self, asked: dict[int, Positions]) -> None:
        """Confirm what is on disk now, and store what was acknowledged meanwhile."""
        self._storing = False
        for number, positions in asked.items():
            self._confirm(number, positions)
        self._store()

    def _confirm(self, number: int, positions: Positions) -> None:
        subscription = self._edge.subscriptions.get(number)
        if subscription is None or subscription.name is None:
            return  # it ended; the client repeats the request at the broker where it continues
        durable = self._durables.here.get(subscription.name)
        if durable is not None and not durable.settled:  # the client could return to the former home, whose cursors are older
            self._early.setdefault(number, {}).update(positions)
            return
        if self._durables.is_kept(subscription.name, positions):
            self._context.send(subscription.link, AcknowledgementStored(subscription.handle, positions))

    def settled(self, subscription: int) -> None:
        """Continue with the confirmations that were requested before this broker was the home."""
        early = self._early.pop(subscription, None)
        if early is not None:
            self._asked.setdefault(subscription, {}).update(early)
            self._store()

    def forget(self, subscription: int) -> None:
        """Forget the confirmations that a subscription which ends had requested before it settled."""
        self._early.pop(subscription, None)
