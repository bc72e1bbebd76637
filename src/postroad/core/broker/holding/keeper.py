"""The holds of this broker on the logs of other brokers' pubends.

A hold is the lowest position in a pubend that a subscription, a durable subscription without a client, or a client that may still
return needs. It is sent to each pubend's broker with a rising version. A hold that is new or lower than before counts when that
broker has confirmed it.
"""

from __future__ import annotations

from typing import Final

from postroad.core.protocol.packets import Positions

AWAY_MAX: Final = 4096


class HoldKeeper:
    """The holds of this broker on pubends, its own included."""

    def __init__(self, incarnation: int, floor: Positions, grace_until: float) -> None:
        self.incarnation = incarnation
        self.version = 0
        self._sent: dict[int, Positions] = {}  # broker -> ticks
        self._sent_version: dict[int, int] = {}
        self._confirmed: dict[int, int] = {}  # broker -> version
        self._released: Positions = {}
        self._news: dict[int, None] = {}  # brokers that have confirmed something since `take_news`
        self._away: list[tuple[float, Positions]] = []
        if floor:
            self._away.append((grace_until, dict(floor)))

    def keep_until(self, expiry: float, positions: Positions) -> None:
        """Hold the logs for a client that may return."""
        if not positions:
            return
        self._away.append((expiry, dict(positions)))
        if len(self._away) > AWAY_MAX:
            self._away = [(max(until for until, _ in self._away), self.lowest())]

    def expire(self, now: float) -> None:
        self._away = [entry for entry in self._away if entry[0] > now]

    def lowest(self, *holders: Positions) -> Positions:
        """Return the lowest positions of all holders, and of the clients that may return."""
        ticks: Positions = {}
        for positions in (*holders, *(p for _, p in self._away)):
            for pubend, tick in positions.items():
                ticks[pubend] = min(tick, ticks.get(pubend, tick))
        return ticks

    def to_send(self, broker: int, ticks: Positions, *, again: bool = False) -> int | None:
        """Return the version of a hold to send to a broker, or None if it has these ticks already."""
        unconfirmed = self._confirmed.get(broker, 0) < self._sent_version.get(broker, 0)
        if self._sent.get(broker) == ticks and not (again and unconfirmed):
            return None
        self.version += 1
        self._sent[broker] = dict(ticks)
        self._sent_version[broker] = self.version
        return self.version

    def holds_already(self, broker: int, positions: Positions) -> bool:
        """Tell whether the last hold sent to a broker includes these positions."""
        sent = self._sent.get(broker, {})
        return all(pubend in sent and sent[pubend] <= tick for pubend, tick in positions.items())

    def sent_version(self, broker: int) -> int:
        return self._sent_version.get(broker, 0)

    def adopt(self, incarnation: int, version: int) -> None:
        """Continue with higher numbers, and send every hold again."""
        self.incarnation = incarnation
        self.version = max(self.version, version)
        for broker in list(self._sent):
            self.tell_again(broker)

    def tell_again(self, broker: int) -> None:
        """Send our hold to a broker again, because it may have restarted with an older one.

        A hold that rose is confirmed before it is stored, so after a crash the lower one counts again. This applies also when we
        no longer hold anything there.
        """
        self._sent.pop(broker, None)

    def confirmed(self, broker: int, incarnation: int, version: int, released: Positions) -> None:
        if incarnation == self.incarnation and version <= self._sent_version.get(broker, 0):
            self._released.update(released)
            self._confirmed[broker] = max(version, self._confirmed.get(broker, 0))
            self._news[broker] = None

    def take_news(self) -> list[tuple[int, int]]:
        """Return the brokers that have confirmed a hold since the last call, with the version that each has confirmed."""
        news, self._news = self._news, {}
        return [(broker, self._confirmed[broker]) for broker in news]

    def released(self, pubend: int) -> int:
        """Return how far a pubend was released when its broker last confirmed a hold."""
        return self._released.get(pubend, 0)

    def is_confirmed(self, broker: int, version: int) -> bool:
        return self._confirmed.get(broker, 0) >= version
