"""What must come to pass once everything is healed, and how much brokers may hold at any time."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import History, Measured, ReservationsCompared, Settled, StillThrottled


class Converges:
    """A healed overlay converges: everyone is active, has everything, and knows what became of what it asked for."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        for event in history:
            if isinstance(event, Settled):
                for reason in event.reasons:
                    yield Violation("stuck", event.at, f"the healed overlay did not converge: {reason}")


class ReservationsAgree:
    """What is reserved is what was admitted: nothing leaks, and no subscription is admitted on a part of its path."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        for event in history:
            if isinstance(event, ReservationsCompared):
                for fault in event.faults:
                    yield Violation("misreserved", event.at, fault)


class ThrottlesEnd:
    """A pubend that nobody publishes to is not held to a rate any more."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        for event in history:
            if isinstance(event, StillThrottled):
                text = f"pubend {event.pubend} is held to {event.rate:.1f} messages/s for broker {event.broker}"
                yield Violation("stuck", event.at, f"{text}, and nobody publishes")


class BoundedMemory:
    """No broker holds more of anything than its configuration and its clients allow."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        worst: dict[tuple[int, str], Violation] = {}
        for event in history:
            if not isinstance(event, Measured):
                continue
            for name, (value, bound) in event.figures.items():
                if bound is not None and value > bound and (event.broker, name) not in worst:
                    text = f"broker {event.broker} has {name} at {value}, its bound is {bound}"
                    worst[event.broker, name] = Violation("unbounded", event.at, text)
        yield from worst.values()
