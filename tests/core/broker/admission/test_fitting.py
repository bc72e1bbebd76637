"""What a rejection offers instead: the largest rate and the widest range, against a search that tries everything."""

from __future__ import annotations

import re
from itertools import combinations
from random import Random

import pytest

from postroad.core.broker.admission.advertisements import AdvertisementGraph
from postroad.core.broker.admission.fitting import decisive_refusals, fitting_filter, fitting_ranges
from postroad.core.broker.admission.ledger import CPU, Capacities, Holder, Ledger, Shortage
from postroad.core.broker.admission_settings import Criterion, Policy
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import CPU as CPU_NAME
from postroad.core.protocol.admission import MEMORY, NO_ANSWER, FittingRange, Refusal

PUBEND, BROKER, LINK = 1, 4, 7
HOLDER = Holder(LINK, 1)
LOW, HIGH = 0, 40  # of the range that is asked for
WANTED = f"price >= {LOW} AND price < {HIGH}"


def random_range(random: Random) -> str:
    """Return a range of prices: closed, open, unbounded, or of several parts; perhaps with another attribute."""
    low = random.randrange(-5, 45)
    high = low + random.randrange(1, 20)
    texts = (f"price BETWEEN {low} AND {high}", f"price > {low} AND price < {high}", f"price <= {low}", f"price > {low}")
    text = random.choice(texts)
    return f"{text} AND name = 'DEU'" if random.random() < 0.3 else text


def random_ledger(random: Random, *, in_parts: bool = False) -> tuple[AdvertisementGraph, Ledger]:
    """Return a ledger with advertisements, some reservations, and little room."""
    graph = AdvertisementGraph()
    ledger = Ledger(graph, Capacities())
    ledger.set_scope(HOLDER, [PUBEND])
    for _ in range(random.randrange(2, 12)):
        text = f"{random_range(random)} OR {random_range(random)}" if in_parts else random_range(random)
        rate = random.randrange(1, 20) * 1000
        ledger.advertised(graph.advertise(Filter(text), PUBEND, rate), PUBEND, rate)
    for _ in range(random.randrange(3)):
        ledger.reserve(Filter(random_range(random)), HOLDER)
    used = ledger.brought(CPU)
    ledger.capacities.cpu_millirate = used + random.randrange(40) * 1000
    ledger.capacities.link_millirate = used + random.randrange(40) * 1000
    return graph, ledger


def refusals_of(ledger: Ledger, wanted: Filter, missing: list[Shortage], broker: int = BROKER) -> list[Refusal]:
    """Return what a broker with this ledger says."""
    shortages = [
        (
            [(node.filter, rate) for node, rate in ledger.added(wanted, HOLDER, CPU if each.resource == "cpu" else LINK)],
            each.available,
        )
        for each in missing
    ]
    ranges = fitting_ranges(wanted, shortages)
    return [Refusal(broker, each.resource, 0, each.demanded, each.available, ranges) for each in missing]


def width(filter_: Filter) -> float:
    (box,) = filter_.normal.boxes
    (cuts,) = (constraint.numbers for key, constraint in box.items() if "price" in key)
    return float(cuts[-1][0]) - float(cuts[0][0])


def every_window(graph: AdvertisementGraph) -> list[Filter]:
    """Return every range within the wanted one whose ends are those of what is advertised."""
    ends = {(LOW, 0), (HIGH, 0)}  # (number, whether the end lies above it)
    for node in graph.nodes():
        for number in map(int, re.findall(r"-?\d+", str(node.filter))):
            if LOW <= number < HIGH:
                ends |= {(number, 0), (number, 1)}
    return [
        Filter(f"price {'>' if above else '>='} {low} AND price {'<=' if beyond else '<'} {high}")
        for (low, above), (high, beyond) in combinations(sorted(ends), 2)
    ]


@pytest.mark.parametrize("seed", range(60))
def test_the_offered_range_fits_and_no_wider_one_does(seed: int) -> None:
    random = Random(seed)
    graph, ledger = random_ledger(random)
    wanted = Filter(WANTED)
    missing = ledger.check(wanted, HOLDER)
    offered = fitting_filter(wanted, refusals_of(ledger, wanted, missing))
    fitting = [each for each in every_window(graph) if not ledger.check(each, HOLDER)]
    if not missing:
        assert offered is None
        return
    assert (offered is None) == (not fitting)
    if offered is not None:
        assert wanted.covers(offered)
        assert ledger.check(offered, HOLDER) == []
        assert width(offered) == max(map(width, fitting))


@pytest.mark.parametrize("seed", range(30))
def test_the_offered_range_fits_at_every_broker(seed: int) -> None:
    """Two brokers refuse, whatever is advertised and however the wanted filter is written."""
    random = Random(seed)
    wanted = Filter(random.choice((WANTED, "price > 3", "price BETWEEN -2 AND 30 AND name = 'DEU'", "price <= 20.5")))
    ledgers = [random_ledger(random, in_parts=random.random() < 0.5)[1] for _ in range(2)]
    refusals = [
        refusal
        for broker, ledger in enumerate(ledgers)
        for refusal in refusals_of(ledger, wanted, ledger.check(wanted, HOLDER), broker)
    ]
    offered = fitting_filter(wanted, refusals)
    if offered is not None:
        assert wanted.covers(offered)
        assert [ledger.check(offered, HOLDER) for ledger in ledgers] == [[], []]


@pytest.mark.parametrize("seed", range(30))
def test_the_largest_rate_fits_and_one_more_does_not(seed: int) -> None:
    """Something new of that rate is admitted in place of the wanted filter, and of a thousandth more it is not."""
    random = Random(seed)
    graph, ledger = random_ledger(random)
    missing = ledger.check(Filter(WANTED), HOLDER)
    if not missing:
        return
    largest = min(each.available for each in missing)
    for more, fits in ((0, True), (1, False)):
        new = Filter(f"volume = {more} AND price IS NULL")
        if largest + more:
            ledger.advertised(graph.advertise(new, PUBEND, largest + more), PUBEND, largest + more)
            assert (ledger.check(new, HOLDER) == []) is fits


def test_a_condition_that_the_new_range_implies_is_left_out() -> None:
    """The offered filter reads as somebody would have written it."""
    wanted = Filter("name = 'DEU' AND price > 2 AND price < 90")
    refusal = Refusal(BROKER, CPU_NAME, 0, 20, 10, [FittingRange("price", 50.0, 90.0, low_open=False, high_open=True)])
    assert str(fitting_filter(wanted, [refusal])) == "name = 'DEU' AND price < 90 AND price >= 50"


def refusal_of(broker: int, available: int, resource: str = CPU_NAME) -> Refusal:
    return Refusal(broker, resource, 0, 100, available)


@pytest.mark.parametrize(
    ("criterion", "largest"),
    [
        (Criterion(Policy.FULL), 10),
        (Criterion(Policy.PERCENTAGE, 20), 20),  # of five brokers, one may refuse
        (Criterion(Policy.PERCENTAGE, 40), 30),
    ],
)
def test_only_as_many_brokers_have_to_give_in_as_the_criterion_asks(criterion: Criterion, largest: int) -> None:
    refusals = [refusal_of(1, 20), refusal_of(2, 10), refusal_of(3, 30), refusal_of(2, 50, "bandwidth")]
    decisive = decisive_refusals(refusals, criterion.refusals_allowed(5))
    assert min(each.available for each in decisive) == largest


@pytest.mark.parametrize("resource", [NO_ANSWER, MEMORY])
def test_a_smaller_subscription_does_not_help_where_no_rate_is_the_reason(resource: str) -> None:
    refusals = [refusal_of(1, 20), refusal_of(2, 0, resource)]
    assert decisive_refusals(refusals, 0) == []
    assert [each.broker for each in decisive_refusals(refusals, 1)] == [1]
