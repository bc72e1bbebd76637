"""The ledger against a model that works everything out anew each time."""

from __future__ import annotations

from random import Random

import pytest

from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.ledger import CPU, LOCAL, Capacities, Holder, Ledger, Shortage, size_of
from postroad.core.broker.admission.measured_capacity import CpuCapacity
from postroad.core.broker.admission_settings import Criterion, Policy
from postroad.core.filters.filter import Filter
from postroad.errors import InvalidValueError

TEXTS = (
    "",
    "name = 'DEU'",
    "name = 'IBM'",
    "name = 'DEU' AND price > 2",
    "name = 'DEU' AND price > 4",
    "price > 1",
    "price < 3",
    "price BETWEEN 2 AND 4",
    "price < 2 OR price > 4",
    "name LIKE '%E%'",
    "price + volume > 3",
)
FILTERS = [Filter(text) for text in TEXTS]
HERE, LEFT, FAR_LEFT, RIGHT = Holder(LOCAL, 1), Holder(7, 2), Holder(7, 3), Holder(8, 4)
HOLDERS = (HERE, LEFT, FAR_LEFT, RIGHT)


class World:
    """A graph with its ledger, and beside them lists of what is in force."""

    def __init__(self, capacities: Capacities | None = None) -> None:
        self.graph = AdvertisementGraph()
        self.ledger = Ledger(self.graph, capacities or Capacities())
        self.advertised: list[tuple[Filter, int, int]] = []
        self.reserved: list[tuple[Filter, Holder]] = []
        self.scopes: dict[Holder, list[int]] = {}

    def scope(self, holder: Holder, *pubends: int) -> None:
        self.ledger.set_scope(holder, pubends)
        self.scopes[holder] = list(pubends)

    def advertise(self, filter_: Filter, pubend: int, millirate: int) -> None:
        self.ledger.advertised(self.graph.advertise(filter_, pubend, millirate), pubend, millirate)
        self.advertised.append((filter_, pubend, millirate))

    def withdraw(self, at: int) -> None:
        filter_, pubend, millirate = self.advertised.pop(at)
        self.ledger.withdrawn(self.graph.withdraw(filter_, pubend, millirate), pubend, millirate)

    def reserve(self, filter_: Filter, holder: Holder) -> None:
        self.ledger.reserve(filter_, holder)
        self.reserved.append((filter_, holder))

    def release(self, at: int) -> None:
        self.ledger.release(*self.reserved.pop(at))

    def model(self, reserved: list[tuple[Filter, Holder]]) -> dict[int, int]:
        """Work out what is brought to each resource: each advertisement once."""
        brought: dict[int, int] = {}
        for filter_, pubend, millirate in self.advertised:
            users = [
                holder
                for wanted, holder in reserved
                if pubend in self.scopes.get(holder, ()) and wanted.overlaps(filter_) is not False
            ]
            for resource in {CPU for _ in users} | {holder.link for holder in users if holder != HERE}:
                brought[resource] = brought.get(resource, 0) + millirate
        return brought

    def memory(self) -> int:
        """Work out what reservations and advertisements take; one of an equal filter takes what its node takes."""
        advertised = [self.graph.find(filter_) for filter_, _, _ in self.advertised]
        return sum(size_of(node.filter) for node in advertised if node) + sum(size_of(each) for each, _ in self.reserved)

    def leave(self) -> None:
        while self.reserved:
            self.release(0)
        while self.advertised:
            self.withdraw(0)


@pytest.mark.parametrize("seed", range(25))
def test_ledger_equals_what_a_list_works_out(seed: int) -> None:
    """Every sum is that of the list after any change, each cost is the difference, and in the end nothing is left."""
    random = Random(seed)
    world = World()
    for _ in range(150):
        match random.randrange(7):
            case 0 if world.advertised:
                world.withdraw(random.randrange(len(world.advertised)))
            case 1 if world.reserved:
                world.release(random.randrange(len(world.reserved)))
            case 2 | 3:
                world.advertise(random.choice(FILTERS), random.randrange(3), random.randrange(1, 30) * 1000)
            case 4:
                world.scope(random.choice(HOLDERS), *(each for each in range(3) if random.random() < 0.6))
            case _:
                world.reserve(random.choice(FILTERS), random.choice(HOLDERS))
        now = world.model(world.reserved)
        assert dict(world.ledger.resources()) == now
        assert world.ledger.memory_used == world.memory()
        wanted, holder = random.choice(FILTERS), random.choice(HOLDERS)
        then = world.model([*world.reserved, (wanted, holder)])
        cost = world.ledger.cost(wanted, holder)
        assert cost == {resource: then.get(resource, 0) - now.get(resource, 0) for resource in cost}
    world.leave()
    assert world.ledger.is_empty
    assert not world.ledger.memory_used


def test_a_covered_filter_costs_nothing_more() -> None:
    """What a reserved filter brings already is not charged to one that it covers, not even over a link that is full."""
    world = World(Capacities(link_millirate=25_000))
    world.scope(LEFT, 1)
    world.advertise(Filter("price > 0"), 1, 25_000)
    world.reserve(Filter("price > 2"), LEFT)
    assert world.ledger.check(Filter("price > 5"), LEFT) == []
    assert world.ledger.cost(Filter("price > 5"), LEFT) == {CPU: 0, 7: 0}


def test_a_shortage_says_what_is_missing() -> None:
    """Each resource that does not suffice is named, with what is demanded and what is left."""
    world = World(Capacities(cpu_millirate=30_000, link_millirate=20_000, memory_bytes=2_000))
    world.scope(LEFT, 1)
    world.advertise(Filter("price > 0"), 1, 25_000)
    wanted = Filter("price > 2")
    assert world.ledger.check(wanted, LEFT) == [
        Shortage("bandwidth", 7, 25_000, 20_000),
        Shortage("memory", 0, size_of(wanted), 2_000 - size_of(Filter("price > 0"))),
    ]
    world.scope(HERE, 1)
    assert [each.resource for each in world.ledger.check(wanted, HERE)] == ["memory"]


def test_messages_that_do_not_come_by_here_cost_nothing() -> None:
    """Only the pubends whose messages go to the holder count."""
    world = World(Capacities(cpu_millirate=1))
    world.scope(LEFT, 1)
    world.advertise(Filter(""), 2, 25_000)
    assert world.ledger.check(Filter(""), LEFT) == []


def test_criteria_decide_by_the_share_of_refusals() -> None:
    """Full admits without a refusal only; a percentage up to its share; off always."""
    assert Criterion(Policy.FULL).admits(5, 0)
    assert not Criterion(Policy.FULL).admits(5, 1)
    assert Criterion(Policy.PERCENTAGE, 20).admits(5, 1)
    assert not Criterion(Policy.PERCENTAGE, 20).admits(5, 2)
    assert Criterion(Policy.OFF).admits(5, 5)
    with pytest.raises(InvalidValueError, match="between 0 and 100"):
        Criterion(Policy.PERCENTAGE, 101)


def test_cpu_capacity_is_the_highest_rate_at_the_limit() -> None:
    """Samples below the limit of utilisation say nothing; of those at it the highest rate counts."""
    cpu = CpuCapacity(limit=0.9)
    cpu.sample(0.5, 900_000)
    assert cpu.millirate is None
    for utilisation, millirate in ((0.95, 100_000), (0.9, 150_000), (1.0, 120_000)):
        cpu.sample(utilisation, millirate)
    assert cpu.millirate == 150_000
