"""The checkers: separate objects, each of which reads a history and says what was broken.

A checker knows nothing of brokers, links or faults. To add one, write a class with `check(history, matches)` and put it into
`CHECKERS`; `tests/sim/test_checkers.py` must then show a history on which it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from postroad.sim.checkers.delivery import Completeness, ExactlyOnce, NoPhantom, Order, StartExactness
from postroad.sim.checkers.liveness import BoundedMemory, Converges, ReservationsAgree, ThrottlesEnd
from postroad.sim.checkers.publishing import AcknowledgedIsDurable, OnePubend, PublishersConverge
from postroad.sim.checkers.release import GapsAreEarned, LogsAreReleased, ReleaseSafety
from postroad.sim.checkers.sharing import SharedCompleteness, SharedExactlyOnce, SharedOrder
from postroad.sim.checkers.tracking import TracksAreTrue
from postroad.sim.checkers.violations import KINDS, Kind, Matches, Violation
from postroad.sim.history import History

__all__ = ["CHECKERS", "KINDS", "Checker", "Kind", "Matches", "Violation", "check"]


class Checker(Protocol):
    """Reads a history and yields what was broken."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]: ...


Factory: TypeAlias = Callable[[], Checker]

CHECKERS: Final[tuple[Factory, ...]] = (
    ExactlyOnce,
    Order,
    NoPhantom,
    Completeness,
    StartExactness,
    SharedExactlyOnce,
    SharedOrder,
    SharedCompleteness,
    OnePubend,
    AcknowledgedIsDurable,
    PublishersConverge,
    Converges,
    ReleaseSafety,
    GapsAreEarned,
    LogsAreReleased,
    BoundedMemory,
    ReservationsAgree,
    ThrottlesEnd,
    TracksAreTrue,
)


@dataclass(frozen=True, slots=True)
class _Always:
    """Matches everything: for histories without filters."""

    def __call__(self, filter_text: str, attributes: object) -> bool:  # noqa: ARG002
        return True


def check(history: History, matches: Matches | None = None) -> list[Violation]:
    """Run every checker; the violations come in the order of time."""
    judge = matches if matches is not None else _Always()
    found: list[Violation] = []
    for factory in CHECKERS:
        checker = factory()
        found += [replace(violation, checker=type(checker).__name__) for violation in checker.check(history, judge)]
    return sorted(found, key=lambda violation: violation.at)
