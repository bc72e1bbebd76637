"""Planted bugs in congestion control: rates, credit, the recovery of gaps by windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.mutants.planting import Planter, mutant

from postroad.core.broker.congestion.feedback import Feedback
from postroad.core.broker.congestion.nack_window import NackWindow
from postroad.core.broker.knowledge import KnowledgeRange
from postroad.core.broker.publishing.pubend import Pubend
from postroad.core.broker.relaying.cache import StreamCache
from postroad.core.broker.subscribing import catching_up
from postroad.core.broker.subscribing.catching_up import CatchingUp
from postroad.core.broker.subscribing.edge import Edge

NEEDED = "congestion control"


@mutant("congestion", NEEDED)
def drop_what_a_rate_holds_back(plant: Planter) -> None:
    """Messages above the rate of their pubend are dropped instead of held back."""

    def make(take: Any) -> Any:
        def lossy(self: Pubend, count: int) -> Any:
            taken = take(self, count)
            if taken:
                self._waiting.clear()
            return taken

        return lossy

    plant.wrap(Pubend, "_take", make)


@mutant("congestion", NEEDED)
def acknowledge_what_is_held_back(plant: Planter) -> None:
    """A publisher is told that its messages are durable while they wait for the rate."""

    def make(publish: Any) -> Any:
        def early(self: Pubend, publisher: int, rows: Any) -> None:
            publish(self, publisher, rows)
            entry = self._publishers[publisher]
            if self.throttle is not None and entry.link is not None:
                self._acknowledge(publisher, replace(entry, durable=entry.accepted), entry.link)

        return early

    plant.wrap(Pubend, "publish", make)


@mutant("congestion", NEEDED)
def let_later_messages_go_first(plant: Planter) -> None:
    """What is held back goes on from its end: a publisher's messages come into the log in another order."""

    def make(take: Any) -> Any:
        def turned(self: Pubend, count: int) -> Any:
            for queue in self._waiting.values():
                queue.reverse()
            return take(self, count)

        return turned

    plant.wrap(Pubend, "_take", make)


@mutant("congestion", NEEDED)
def hold_to_a_rate_for_ever(plant: Planter) -> None:
    """A pubend that was slowed down once is never let go."""

    def make(apply: Any) -> Any:
        def stubborn(self: Feedback, pubend: int, source: Any, *how: Any) -> None:
            if source.rule.rate is None and source.throttle is not None:
                source.rule.rate = source.throttle.rate
            apply(self, pubend, source, *how)

        return stubborn

    plant.wrap(Feedback, "_apply", make)


@mutant("congestion", NEEDED)
def ask_once(plant: Planter) -> None:
    """A recovering broker does not repeat a NACK whose answer is overdue, and does not give up either."""

    def make(ask: Any) -> Any:
        def patient(self: NackWindow, doubt_horizon: int, gaps: Any, now: float) -> Any:
            for asked in self._asked:
                asked.due = float("inf")
            return ask(self, doubt_horizon, gaps, now)

        return patient

    plant.wrap(NackWindow, "ask", make)


@mutant("congestion", NEEDED)
def take_what_had_no_room_for_silence(plant: Planter) -> None:
    """Rows that came and had no room in the receive window count as received."""

    def make(drop: Any) -> Any:
        def forgetful(self: StreamCache) -> None:
            lo, hi, label = self._los[-1], self._ranges[-1].hi, self._ranges[-1].label
            drop(self)
            if self._ranges and self._ranges[-1].hi == lo:
                known = KnowledgeRange(lo, hi, label, None)
                self._ranges.append(known)
                self._los.append(lo)
                self.size += known.size
                self._bytes_max = max(self._bytes_max, self.size)

        return forgetful

    plant.wrap(StreamCache, "_drop_last", make)


@mutant("congestion", NEEDED)
def end_a_recovery_without_catching_up(plant: Planter) -> None:
    """When a gap is given up under congestion control, nobody catches up with it."""

    def go_on(self: Edge, pubend: int, window: NackWindow) -> None:
        window.reset()
        edge = self.streams[pubend]
        edge.stream.cache.keep_from = None
        edge.delivered = edge.stream.cache.frontier
        edge.nack_at = float("inf")

    plant.set(Edge, "_stop_recovering", go_on)


@mutant("congestion", NEEDED)
def ask_within_the_first_window(plant: Planter) -> None:
    """The NACK window does not move with the doubt horizon."""

    def make(end: Any) -> Any:
        def fixed(self: NackWindow, doubt_horizon: int) -> int:
            first: int = vars(self).setdefault("first_end", end(self, doubt_horizon))
            return first

        return fixed

    plant.wrap(NackWindow, "end", make)


@mutant("congestion", NEEDED)
def answer_all_that_wait(plant: Planter) -> None:
    """What a cluster asked for its first members counts for those as well that came while the answer was on its way."""

    def make(take: Any) -> Any:
        def generous(self: CatchingUp, asked: Any, piece: Any, *how: Any) -> None:
            asked.takers = list(piece.members)
            take(self, asked, piece, *how)

        return generous

    plant.wrap(CatchingUp, "_take_together", make)


@mutant("congestion", NEEDED)
def ask_with_the_first_filter_only(plant: Planter) -> None:
    """A cluster asks for what its first member wants, and takes the answer for what all want."""
    plant.set(catching_up, "union", lambda filters, _parse: (filters[0], len(filters)))
