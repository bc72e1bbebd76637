"""The load of section 2: four pubends with 125 messages per second each, and readers that count what they get.

Writers and readers are the simulator's clients around the shipped session. They publish and count batches, since an object per
message would make a run of 500 messages per second for ten minutes slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from postroad.core.batch.batch import Batch, Ids
from postroad.core.batch.build import build_batches
from postroad.core.session.events import RowsDelivered
from postroad.sim.clients import ClientNode, Publishing
from postroad.sim.history import Event, History
from postroad.sim.overlay import Overlay

PAYLOAD: Final = bytes(100)
GROUPS: Final = 100  # messages belong to these in turn, so that filters can select a share of them
ROWS: Final = 25
PERIOD_S: Final = 0.2
JITTER_S: Final = 0.02
UNACKNOWLEDGED_MAX: Final = 2 * ROWS  # then a publisher waits: it is held back


class NoHistory(History):
    """Keeps nothing: what happened is counted here instead."""

    def add(self, event: Event) -> None:
        pass


class Writer(ClientNode):
    """Publishes `ROWS` messages each `PERIOD_S`, unless it waits for acknowledgements; what it skips it never sends."""

    stopped = False
    offset = 0

    def begin(self) -> None:
        assert self.session is not None
        self.publishing = Publishing(key=self.session.open_publisher())
        self._chance = self.world.chance(f"writer/{self.name}")
        self._act()
        self.world.after(self._chance.uniform(0, PERIOD_S), self._offer, self.world.now)

    def _offer(self, due: float) -> None:
        if self.stopped:
            return
        due = max(due + PERIOD_S, self.world.now)
        self.world.at(due + self._chance.uniform(0, JITTER_S), self._offer, due)
        session, publishing = self.session, self.publishing
        if session is None or publishing is None or publishing.key is None:
            return
        registration = session.registration(publishing.key)
        if registration is None or registration.messages >= UNACKNOWLEDGED_MAX:
            return
        session.clock(self._clock_ms())
        ids = registration.ids_for(ROWS, self._clock_ms())
        for piece in batches_of(ids, self.offset):
            registration.add_batch(piece, piece.size)
        self.offset = (self.offset + ROWS) % GROUPS
        self._act()

    @property
    def idle(self) -> bool:
        """Tell whether everything it published is acknowledged."""
        assert self.session is not None
        assert self.publishing is not None
        assert self.publishing.key is not None
        return not self.session.outstanding(self.publishing.key)

    def _settle_publishing(self) -> None:
        """Nothing to note: the logs of the brokers are counted."""


class Reader(ClientNode):
    """Counts what one subscription gets."""

    def __init__(self, *args: object, **others: object) -> None:
        super().__init__(*args, **others)  # type: ignore[arg-type]
        self.delivered = 0
        self.ticks: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)  # by (subscription, pubend), as they came
        self.ids: list[Ids] = []

    def positions(self, pubends: Iterable[int]) -> list[int]:
        """Return how far each subscription is in each pubend."""
        assert self.session is not None
        reached = [self.session.positions(following.key) for following in self.following if following.key is not None]
        return [each.get(pubend, 0) for each in reached for pubend in pubends]

    def _take_rows(self, event: RowsDelivered) -> None:
        ticks = event.batch.ticks()
        self.delivered += len(ticks)
        self.ticks[event.subscription, event.pubend].append(ticks)
        self.ids.append(event.batch.ids())
        assert self.session is not None
        self.session.acknowledge(event.subscription, event.pubend, int(ticks[-1]))


def batches_of(ids: Ids, offset: int = 0) -> list[Batch]:
    """Return messages with these ids as the writers make them."""
    return list(build_batches([(each.tobytes(), {"group": (offset + n) % GROUPS}, PAYLOAD) for n, each in enumerate(ids)]))


def client(overlay: Overlay, kind: type[ClientNode], name: str, broker: int) -> ClientNode:
    """Add a client of this kind at a broker."""
    node = kind(overlay.world, overlay.network, overlay.history, name, [overlay.nodes[broker]])
    node.directory = overlay.nodes
    overlay.clients[name] = node
    node.start()
    return node
