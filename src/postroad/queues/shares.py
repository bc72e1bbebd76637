"""How much of the queue service one identity may keep: queues, clients and bindings.

The storage does not record who made something, so only what was made since this broker started counts. Where nobody has to prove
who he is there are no identities, and nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from postroad.errors import QueueLimitError
from postroad.queues.limits import QueueLimits

Kind = Literal["queues", "clients", "bindings"]


class Shares:
    """Counts what each identity made and did not delete."""

    def __init__(self, limits: QueueLimits) -> None:
        self._most: Final[dict[Kind, int]] = {
            "queues": limits.queues_per_identity_max,
            "clients": limits.clients_per_identity_max,
            "bindings": limits.bindings_per_identity_max,
        }
        self._owners: Final[dict[tuple[Kind, int], str]] = {}  # by kind and id
        self._counts: Final[Counter[tuple[Kind, str]]] = Counter()

    def check(self, kind: Kind, owner: str) -> None:
        """Refuse one more of an identity that has as many as it may."""
        most = self._most[kind]
        if owner and self._counts[kind, owner] >= most:
            raise QueueLimitError(f"identity {owner!r} has made {most:,} {kind} since this broker started; delete some")

    def add(self, kind: Kind, id_: int, owner: str) -> None:
        if owner and (kind, id_) not in self._owners:
            self._owners[kind, id_] = owner
            self._counts[kind, owner] += 1

    def remove(self, kind: Kind, id_: int) -> None:
        owner = self._owners.pop((kind, id_), None)
        if owner is not None:
            self._counts[kind, owner] -= 1
