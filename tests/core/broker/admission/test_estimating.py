"""The estimate of what filters bring: histograms, masks, and a ledger that follows them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.core.broker.overlay import Overlay

from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.estimating import (
    EVERY_POINT,
    POINTS,
    ROWS_NEEDED,
    Histograms,
    Profile,
    Sampler,
    expected,
    profile_of,
)
from postroad.core.broker.admission.estimating_ledger import EstimatingLedger
from postroad.core.broker.admission.ledger import CPU, LOCAL, Capacities, Holder
from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import AdmissionExplained, ExplainAdmission

PHB, SHB = 1, 2
UNIFORM: Profile = profile_of([{"price": float(price), "volume": float(price * 7 % 100)} for price in range(100)])
HERE, LEFT, RIGHT = Holder(LOCAL, 1), Holder(7, 2), Holder(8, 3)


def share_of(text: str) -> float:
    return Histograms(UNIFORM).mask(Filter(text)).bit_count() / POINTS


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("", 1.0),
        ("price >= 50", 0.5),
        ("price BETWEEN 20 AND 29", 0.1),
        ("price < 10 OR price >= 90", 0.2),
        ("price >= 50 AND volume >= 50", 0.25),
        ("NOT (price >= 50)", 0.5),
        ("price > 1000", 0.0),
    ],
)
def test_a_mask_holds_the_share_of_messages_that_match(text: str, share: float) -> None:
    assert share_of(text) == pytest.approx(share, abs=0.05)


def test_what_is_not_sampled_is_taken_to_match() -> None:
    """A condition on a string or on arithmetic does not lower the estimate."""
    assert share_of("symbol = 'IBM'") == 1.0
    assert share_of("symbol = 'IBM' AND price >= 50") == share_of("price >= 50")
    assert share_of("price + volume > 3") == 1.0


def test_nothing_that_overlaps_is_expected_to_bring_nothing() -> None:
    assert expected(64_000, 0) == 1_000
    assert expected(64_000, EVERY_POINT) == 64_000


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_is_near_what_arrives(seed: int) -> None:
    """Against generated messages of two independent attributes, one of them skewed."""
    random = Random(seed)
    rows = [{"price": random.uniform(0, 100), "volume": random.expovariate(0.1)} for _ in range(4_000)]
    histograms = Histograms(profile_of(rows[:256]))
    for _ in range(20):
        low, least = random.uniform(0, 90), random.uniform(0, 20)
        wanted = Filter(f"price BETWEEN {low} AND {low + random.uniform(10, 60)} AND volume > {least}")
        arrived = sum(bool(wanted.matches(row)) for row in rows) / len(rows)
        assert histograms.mask(wanted).bit_count() / POINTS == pytest.approx(arrived, abs=0.12)


def test_a_sampler_makes_a_profile_when_it_has_enough_and_again_when_values_change() -> None:
    sampler = Sampler()
    random = Random(1)
    for number in range(ROWS_NEEDED - 1):
        sampler.add({"price": random.random(), "name": "x", "flag": True}, number / 10)
    assert not sampler.renew(4.0)
    sampler.add({"price": 0.5, "name": "x"}, 4.0)
    assert sampler.renew(4.0)
    assert [name for name, _ in sampler.profile] == ["price"]
    for number in range(200):
        sampler.add({"price": random.random()}, 5.0 + number / 20)
    sampler.renew(15.0)
    steady = sampler.profile
    for number in range(200):
        sampler.add({"price": random.random()}, 20.0 + number / 20)
    assert not sampler.renew(30.0), "the distribution is the same"
    for number in range(200):
        sampler.add({"price": 5.0}, 40.0 + number / 20)
    assert sampler.renew(50.0)
    assert sampler.profile != steady


class World:
    """A graph with an estimating ledger, and beside them lists of what is in force."""

    def __init__(self) -> None:
        self.graph = AdvertisementGraph()
        self.ledger = EstimatingLedger(self.graph, Capacities())
        self.advertised: list[tuple[Filter, int, int, Histograms | None]] = []
        self.reserved: list[tuple[Filter, Holder]] = []
        self.scopes: dict[Holder, list[int]] = {}

    def scope(self, holder: Holder, *pubends: int) -> None:
        self.ledger.set_scope(holder, pubends)
        self.scopes[holder] = list(pubends)

    def advertise(self, filter_: Filter, pubend: int, millirate: int, histograms: Histograms | None) -> None:
        self.ledger.advertised(self.graph.advertise(filter_, pubend, millirate, histograms), pubend, millirate)
        self.advertised.append((filter_, pubend, millirate, histograms))

    def withdraw(self, at: int) -> None:
        filter_, pubend, millirate, histograms = self.advertised.pop(at)
        self.ledger.withdrawn(self.graph.withdraw(filter_, pubend, millirate, histograms), pubend, millirate)

    def reserve(self, filter_: Filter, holder: Holder) -> None:
        self.ledger.reserve(filter_, holder)
        self.reserved.append((filter_, holder))

    def model(self, reserved: list[tuple[Filter, Holder]]) -> dict[int, int]:
        """Work out what is brought to each resource: of each advertisement, what the filters match together."""
        brought: dict[int, int] = {}
        for filter_, pubend, millirate, histograms in self.advertised:
            users = [
                (wanted, holder)
                for wanted, holder in reserved
                if pubend in self.scopes.get(holder, ()) and wanted.overlaps(filter_) is not False
            ]
            for resource in {CPU for _ in users} | {holder.link for _, holder in users if holder != HERE}:
                mask = EVERY_POINT if histograms is None else 0
                for wanted, holder in users:
                    if histograms is not None and (resource in {CPU, holder.link}):
                        mask |= histograms.mask(wanted)
                brought[resource] = brought.get(resource, 0) + expected(millirate, mask)
        return brought


@pytest.mark.parametrize("seed", range(20))
def test_the_ledger_equals_what_a_list_works_out(seed: int) -> None:
    """Every sum is that of the list after any change, each cost is the difference, and in the end nothing is left."""
    random = Random(seed)
    world = World()
    filters = [Filter(text) for text in ("", "price > 50", "price < 30", "price BETWEEN 20 AND 60", "name = 'A'", "volume > 90")]
    profiles = [None, Histograms(UNIFORM), Histograms(profile_of([{"price": 10.0}, {"price": 55.0}]))]
    for _ in range(120):
        match random.randrange(7):
            case 0 if world.advertised:
                world.withdraw(random.randrange(len(world.advertised)))
            case 1 if world.reserved:
                world.ledger.release(*world.reserved.pop(random.randrange(len(world.reserved))))
            case 2 | 3:
                world.advertise(
                    random.choice(filters), random.randrange(3), random.randrange(1, 30) * 1000, random.choice(profiles)
                )
            case 4:
                world.scope(random.choice((HERE, LEFT, RIGHT)), *(each for each in range(3) if random.random() < 0.6))
            case _:
                world.reserve(random.choice(filters), random.choice((HERE, LEFT, RIGHT)))
        now = world.model(world.reserved)
        assert dict(world.ledger.resources()) == now
        wanted, holder = random.choice(filters), random.choice((HERE, LEFT, RIGHT))
        then = world.model([*world.reserved, (wanted, holder)])
        cost = world.ledger.cost(wanted, holder)
        assert cost == {resource: then.get(resource, 0) - now.get(resource, 0) for resource in cost}
    while world.reserved:
        world.ledger.release(*world.reserved.pop())
    while world.advertised:
        world.withdraw(0)
    assert world.ledger.is_empty


@pytest.mark.parametrize(("estimate", "fits"), [(False, False), (True, True)])
def test_with_estimates_more_is_admitted(estimate: bool, fits: bool) -> None:
    """The publisher sends prices from 0 to 99 at 40 a second, and the link has room for 25: half of the prices fit."""
    settings = AdmissionSettings(Criterion(Policy.FULL), link_rate=25.0, estimate=estimate)
    overlay = Overlay.line(PHB, SHB, config=replace(BrokerConfig(), admission=settings))
    publisher = overlay.publisher(at=PHB)
    publisher.advertise("price >= 0", 40.0)
    for number in range(40):
        publisher.publish(f"m{number}", price=number * 37 % 100)
    overlay.run(1.0)
    subscriber = overlay.subscriber(SHB, "price >= 50")
    assert (subscriber.rejected is None) is fits
    assert overlay.subscriber(SHB, "price >= 10").rejected is not None
    subscriber.send(ExplainAdmission("price >= 50"))
    overlay.run(0.5)
    (told,) = overlay.nodes[SHB].told(AdmissionExplained)
    assert isinstance(told, AdmissionExplained)
    assert (told.lowest, told.highest < 25_000) == (0, fits)
