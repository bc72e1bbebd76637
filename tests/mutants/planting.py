"""What a mutant is: one small protocol bug, planted into the running code from outside and taken out again.

A mutant is a function that takes a `Planter` and replaces a method, a function or a field through it. The product's sources know
nothing of mutants. A target that does not exist any more makes planting fail, so a mutant cannot become a no-op unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

AREAS: Final = (
    "publishing",
    "relaying",
    "subscribing",
    "holding",
    "durable names",
    "session",
    "storage",
    "routing",
    "admission",
    "congestion",
    "queues",
    "sharing",
)
Plant: TypeAlias = Callable[["Planter"], None]


class Planter:
    """Replaces parts of the running code and remembers what stood there."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace an attribute of a class or a module by `make(what is there)`."""
        before = owner.__dict__[name]  # a KeyError says that the target of a mutant is gone: adapt the mutant
        after = make(before.fget) if isinstance(before, property) else make(before)
        assert after is not before
        self._before.append((owner, name, before))
        setattr(owner, name, property(after) if isinstance(before, property) else after)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a class or a module by a value."""
        self.wrap(owner, name, lambda _before: value)

    def take_out(self) -> None:
        for owner, name, before in reversed(self._before):
            setattr(owner, name, before)
        self._before.clear()


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    name: str
    area: str
    what: str  # the bug, in one line
    plant: Plant
    needs: tuple[str, ...] = ()  # kinds of faults without which it does no harm: seeds that have most of them are tried first

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the body with the bug in place."""
        planter = Planter()
        try:
            self.plant(planter)
            yield
        finally:
            planter.take_out()


MUTANTS: Final[dict[str, Mutant]] = {}


def mutant(area: str, *needs: str) -> Callable[[Plant], Plant]:
    """Register a function as a mutant of an area; its docstring says what the bug is."""
    assert area in AREAS, area

    def register(plant: Plant) -> Plant:
        name = plant.__name__
        assert name not in MUTANTS, name
        assert plant.__doc__ is not None, name
        MUTANTS[name] = Mutant(name, area, plant.__doc__.strip().rstrip("."), plant, needs)
        return plant

    return register
