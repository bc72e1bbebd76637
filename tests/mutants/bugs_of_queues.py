"""Planted bugs in bound queues: the feeder, and the database that it feeds."""

from __future__ import annotations

from typing import Any

from tests.mutants.planting import Planter, mutant

from postroad.queues.feeder import FedBatch
from postroad.sim.feeding import QueueDatabase

NEEDED = "bound queues"


@mutant("queues", NEEDED, "broker crash")
def move_the_cursor_before_the_rows(plant: Planter) -> None:
    """The cursor of a binding and its rows change one after the other: a crash between them loses the rows."""

    def make(put: Any) -> Any:
        def halves(self: QueueDatabase, binding: int, pubend: int, upto: int, rows: Any, messages: Any) -> int:
            before = self.cursors[binding].get(pubend, 0)
            if before < upto and self.chance.random() < 0.1:  # a crash in between
                self.cursors[binding][pubend] = upto
            return int(put(self, binding, pubend, upto, rows, messages))

        return halves

    plant.wrap(QueueDatabase, "put", make)


@mutant("queues", NEEDED)
def put_whatever_comes(plant: Planter) -> None:
    """Rows up to the cursor are put again when they come again."""

    def make(put: Any) -> Any:
        def careless(self: QueueDatabase, binding: int, pubend: int, upto: int, rows: Any, messages: Any) -> int:
            cursor = self.cursors[binding].pop(pubend, 0)
            fresh = int(put(self, binding, pubend, upto, rows, messages))
            self.cursors[binding][pubend] = max(cursor, upto)
            return fresh

        return careless

    plant.wrap(QueueDatabase, "put", make)
    plant.set(QueueDatabase, "cursors_of", lambda _self, _binding: {})


@mutant("queues", NEEDED)
def feed_all_but_the_last_row(plant: Planter) -> None:
    """Of several rows that come together, the last one is not put."""

    def make(init: Any) -> Any:
        def short(self: FedBatch, pubend: int, upto: int, rows: Any) -> None:
            init(self, pubend, upto, rows[:-1] if len(rows) > 1 else rows)

        return short

    plant.wrap(FedBatch, "__init__", make)
