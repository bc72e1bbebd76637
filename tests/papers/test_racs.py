"""RacsCBPS, "A rate-based admission control scheme for content-based publish/subscribe systems": claim by claim."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from experiments.admission.runs import simulate
from tests.core.broker.overlay import Overlay

from postroad.core.broker.admission.advertisements import AdvertisementGraph, Interval, Node, ancestors, descendants
from postroad.core.broker.admission.ledger import CPU, LOCAL, Capacities, Holder, Ledger
from postroad.core.broker.admission.measured_capacity import CpuCapacity
from postroad.core.broker.admission_settings import AdmissionSettings, Criterion, Policy
from postroad.core.broker.context import BrokerConfig
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import Advertisements, Decision, Reserve, Verdict

PUBEND = 1
LEFT, HERE = Holder(7, 2), Holder(LOCAL, 1)


def advertise(graph: AdvertisementGraph, *advertised: tuple[str, int]) -> None:
    for text, rate in advertised:
        graph.advertise(Filter(text), PUBEND, rate * 1000)


def node_of(graph: AdvertisementGraph, text: str) -> Node:
    node = graph.find(Filter(text))
    assert node is not None
    return node


def summary(graph: AdvertisementGraph, text: str) -> tuple[int, int]:
    """Return rate and count of a node, as the figures write them."""
    node = node_of(graph, text)
    return node.millirate // 1000, node.count


# Section 2.1


def test_covering_is_a_partial_order() -> None:
    """Definition 5: covering is reflexive, antisymmetric and transitive, so the graph has no circle."""
    wide, middle, narrow = Filter("price > 1"), Filter("price > 2"), Filter("price > 2 AND name = 'DEU'")
    assert wide.covers(wide)
    assert wide.covers(middle) and middle.covers(narrow) and wide.covers(narrow)  # noqa: PT018
    assert not middle.covers(wide)
    assert not narrow.covers(middle)


def test_edges_are_those_of_direct_covering() -> None:
    """Definition 6: predecessors and successors have no filter in between."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 1", 1), ("price > 3", 1), ("price > 2", 1))
    assert list(node_of(graph, "price > 1").successors) == [node_of(graph, "price > 2")]
    assert list(node_of(graph, "price > 3").predecessors) == [node_of(graph, "price > 2")]


# Section 3.2


def test_case_a_adds_to_the_node_and_once_to_each_ancestor() -> None:
    """An equal filter counts at its node, and at an ancestor once, though two ways lead there."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 0", 2), ("price > 0 AND name = 'DEU'", 3), ("price > 2", 4), ("price > 2 AND name = 'DEU'", 5))
    advertise(graph, ("price > 2 AND name = 'DEU'", 6))
    assert summary(graph, "price > 2 AND name = 'DEU'") == (11, 2)
    assert summary(graph, "price > 2") == (15, 3)
    assert summary(graph, "price > 0 AND name = 'DEU'") == (14, 3)
    assert summary(graph, "price > 0") == (20, 5)


def test_case_b_corrects_the_double_counting() -> None:
    """A new node counts what two of its successors share once: d_rate and d_count are taken off."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 2", 4), ("volume > 2", 5), ("price > 3 AND volume > 3", 7))
    advertise(graph, ("price > 1 OR volume > 1", 1))
    assert summary(graph, "price > 2") == (11, 2)
    assert summary(graph, "volume > 2") == (12, 2)
    assert summary(graph, "price > 1 OR volume > 1") == (1 + 11 + 12 - 7, 4)


def test_correction_by_the_direct_successors_alone_is_not_enough() -> None:
    """A slip of the paper: what successors of successors share is counted twice, if W holds direct successors and their rates.

    T = {A, B}, W = {{a}, {b}}, and x lies below a and b: then d_rate = a + b - (a + b) = 0, and x counts twice.
    """
    graph = AdvertisementGraph()
    below = {"A": "price > 2", "B": "volume > 2", "a": "price > 3", "b": "volume > 3", "x": "price > 4 AND volume > 4"}
    advertise(graph, *((text, 10) for text in below.values()))
    new = Filter("price > 1 OR volume > 1")
    successors = [node_of(graph, below["A"]), node_of(graph, below["B"])]
    families = [list(each.successors) for each in successors]
    once = dict.fromkeys(node for family in families for node in family)
    d_rate = sum(node.millirate for family in families for node in family) - sum(node.millirate for node in once)
    by_the_paper = 10_000 + sum(each.millirate for each in successors) - d_rate
    graph.advertise(new, PUBEND, 10_000)
    assert list(node_of(graph, str(new)).successors) == successors
    assert by_the_paper == 70_000
    assert node_of(graph, str(new)).millirate == 60_000  # six advertisements of 10 a second


def test_a_new_node_adds_to_every_ancestor() -> None:
    """Case (b), Fig. 4(c): L.rate += v_pmax and L.count += 1 for each ancestor L."""
    graph = AdvertisementGraph()
    advertise(graph, ("", 1), ("price > 0", 2), ("price > 5", 3))
    before = summary(graph, ""), summary(graph, "price > 0")
    advertise(graph, ("price > 3", 10))
    assert [summary(graph, ""), summary(graph, "price > 0")] == [(rate + 10, count + 1) for rate, count in before]


# Section 3.3


def test_withdrawing_one_of_several_keeps_the_node() -> None:
    """Case (a): with count > 1 the node stays, and its ancestors follow."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 0", 2), ("price > 2", 4), ("price > 2", 5))
    graph.withdraw(Filter("price > 2"), PUBEND, 4000)
    assert summary(graph, "price > 2") == (5, 1)
    assert summary(graph, "price > 0") == (7, 2)


def test_withdrawing_the_last_connects_predecessors_and_successors() -> None:
    """Case (b): the node goes, and its predecessors cover its successors directly; also where it stands above others."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 0", 2), ("price > 2", 4), ("price > 5", 6))
    graph.withdraw(Filter("price > 2"), PUBEND, 4000)
    assert graph.find(Filter("price > 2")) is None
    assert list(node_of(graph, "price > 5").predecessors) == [node_of(graph, "price > 0")]
    assert summary(graph, "price > 0") == (8, 2)


# Section 3.4


def figure_4c() -> AdvertisementGraph:
    """Return a graph like Fig. 4(c): the figure is not in the text, so it is made such that the numbers of the text hold."""
    graph = AdvertisementGraph()
    advertise(
        graph,
        ("price > 0", 9),
        ("name = 'DEU'", 5),
        ("price < 1 AND name = 'DEU'", 4),
        ("price < 2 AND name = 'DEU'", 4),
        ("price > 3", 11),
        ("price > 7", 2),
        ("price > 3 AND name = 'DEU'", 5),
        ("price > 4 AND name = 'DEU'", 6),
        ("price > 5 AND name = 'DEU'", 7),
    )
    return graph


def test_the_worked_example() -> None:
    """`price > 2 AND name = 'DEU'` demands between 18 and 31 messages a second, from 3 to 6 publishers."""
    graph = figure_4c()
    assert summary(graph, "name = 'DEU'") == (31, 6)
    demand = graph.formula(Filter("price > 2 AND name = 'DEU'"))
    assert demand.millirate == (18_000, 31_000)
    assert demand.count == (3, 6)


def test_a_filter_that_is_advertised_has_an_exact_demand() -> None:
    """Case (a): the demand is the node's rate, from as many publishers as it counts."""
    demand = figure_4c().formula(Filter("name = 'DEU'"))
    assert demand.millirate.is_exact
    assert (demand.millirate.low, demand.count.low) == (31_000, 6)


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_against_generated_events(seed: int) -> None:
    """The rate at which matching messages arrive lies within formula (1), where nothing from outside reaches into the filter.

    All publishers send at their full rate for a second. What a subscription gets is counted by evaluating its filter.
    """
    random = Random(seed)
    graph = AdvertisementGraph()
    edges = sorted(random.sample(range(1, 60), 6))
    spans = [(0, 60), *((low, high) for low in edges for high in edges if low < high)]
    sent: list[int] = []
    for low, high in [spans[0], *random.sample(spans[1:], 7)]:
        rate = random.randrange(1, 20)
        graph.advertise(Filter(f"price >= {low} AND price < {high}"), PUBEND, rate * 1000)
        sent += [random.randrange(low, high) for _ in range(rate)]
    for low, high in spans:
        wanted = Filter(f"price >= {low} AND price < {high}")
        arrived = sum(bool(wanted.matches({"price": price})) for price in sent) * 1000
        formula, demand = graph.formula(wanted), graph.demand(wanted)
        assert demand.millirate.high is not None
        assert formula.millirate.high is not None
        assert formula.millirate.low <= demand.millirate.low <= arrived <= demand.millirate.high
        above = graph.find(wanted) or min(
            (node for node in graph.nodes() if node.filter.covers(wanted)), key=lambda node: node.millirate
        )
        within = {above, *descendants(above)}
        if all(node in within for node in graph.overlapping(wanted)):
            assert arrived <= formula.millirate.high


def test_theorem_1_does_not_hold_for_advertisements_that_reach_in_from_outside() -> None:
    """A gap of the proof: the rate of E_s is not s.rate when something overlaps s that s does not cover. `demand` counts it."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 3", 5), ("price < 9", 100))
    wanted = Filter("price > 5")
    arriving = [6] * 100 + [7] * 5  # both publishers are within their advertisements
    arrived = sum(bool(wanted.matches({"price": price})) for price in arriving) * 1000
    assert graph.formula(wanted).millirate == (0, 5_000)
    assert arrived == 105_000
    assert graph.demand(wanted).millirate == (0, 105_000)


def test_without_a_node_above_formula_1_has_no_upper_bound() -> None:
    """The minimum over an empty S; the broker then counts what overlaps."""
    graph = AdvertisementGraph()
    advertise(graph, ("price > 5", 7))
    assert graph.formula(Filter("price > 2")).millirate == Interval(7_000, None)
    assert graph.demand(Filter("price > 2")).millirate == Interval(7_000, 7_000)


# Section 3.5


def test_an_operation_does_not_look_at_every_node() -> None:
    """The paper needs O(N) comparisons; the index compares with related filters only, however many others there are."""
    compared: list[int] = []
    for size in (100, 1_000):
        graph = AdvertisementGraph()
        advertise(graph, *((f"name = 'N{number}' AND price > {place}", 1) for number in range(size) for place in (1, 3)))
        compared.append(len(list(graph.overlapping(Filter("name = 'N7' AND price > 2")))))
        assert len(ancestors(node_of(graph, "name = 'N7' AND price > 3"))) == 1
    assert compared == [2, 2]


# Section 4.1


def test_cpu_capacity_is_the_highest_rate_seen_at_the_limit() -> None:
    """R'max = max(Rnew, Rmax), sampled when the CPU is at its limit."""
    cpu = CpuCapacity(limit=0.9)
    for utilisation, millirate in ((0.3, 500_000), (0.92, 180_000), (0.97, 150_000)):
        cpu.sample(utilisation, millirate)
    assert cpu.millirate == 180_000


# Section 4.2


def test_a_broker_refuses_if_any_resource_is_short() -> None:
    """Bandwidth of the path, CPU and memory are checked, at the peak of the demand."""
    wanted = Filter("price > 2 AND name = 'DEU'")
    for capacities, resource in (
        (Capacities(link_millirate=1_000), "bandwidth"),
        (Capacities(cpu_millirate=1_000), "cpu"),
        (Capacities(memory_bytes=1), "memory"),
    ):
        ledger = Ledger(figure_4c(), capacities)
        ledger.set_scope(LEFT, [PUBEND])
        assert [shortage.resource for shortage in ledger.check(wanted, LEFT)] == [resource]
    ledger = Ledger(figure_4c(), Capacities(cpu_millirate=100_000, link_millirate=100_000, memory_bytes=1 << 20))
    ledger.set_scope(LEFT, [PUBEND])
    assert ledger.check(wanted, LEFT) == []


def test_the_peak_counts_and_not_the_mean() -> None:
    """What is compared with the capacity is the most that may arrive."""
    graph = figure_4c()
    ledger = Ledger(graph, Capacities())
    ledger.set_scope(HERE, [PUBEND])
    wanted = Filter("price > 2 AND name = 'DEU'")
    assert ledger.cost(wanted, HERE)[CPU] == graph.demand(wanted).millirate.high


# Section 4.3


def test_full_rejects_with_one_refusal() -> None:
    """(a), Fig. 8: one broker that refuses is enough."""
    assert not Criterion(Policy.FULL).admits(verdicts=5, refusals=1)
    assert Criterion(Policy.FULL).admits(verdicts=5, refusals=0)


def test_a_percentage_rejects_only_beyond_its_share() -> None:
    """(b): rejected when the refusals exceed the share of all verdicts."""
    assert Criterion(Policy.PERCENTAGE, 20).admits(verdicts=5, refusals=1)
    assert not Criterion(Policy.PERCENTAGE, 20).admits(verdicts=4, refusals=1)
    assert Criterion(Policy.PERCENTAGE, 40).admits(verdicts=5, refusals=2)


# Sections 3.1, 3.2 and 4.3 between brokers: a publisher at the first of three brokers in a line, a subscriber at the last

FIRST, MIDDLE, LAST = 1, 2, 3


def line(policy: Criterion, **limits: float) -> Overlay:
    """Join three brokers in a line; the limits are those of the middle one."""
    settings = AdmissionSettings(policy, default_rate=7.0)
    narrow = BrokerConfig(admission=replace(settings, **limits))  # type: ignore[arg-type]
    return Overlay.line(FIRST, MIDDLE, LAST, config=BrokerConfig(admission=settings), configs={MIDDLE: narrow})


def test_a_publisher_cannot_exceed_the_rate_it_declared() -> None:
    """Section 3.1: the system holds a publisher to v_pmax; a second's worth may come at once, and nothing is lost."""
    overlay = line(Criterion(Policy.FULL))
    overlay.subscriber(LAST, name="keeps the log")
    publisher = overlay.publisher(at=FIRST)
    publisher.advertise("", 5.0)
    names = [f"m{number:02}" for number in range(15)]
    publisher.publish(*names)
    overlay.run(1.0)
    assert len(overlay.logged(FIRST)) <= 10
    overlay.run(2.0)
    assert overlay.logged(FIRST) == names


def test_a_publisher_that_declares_no_rate_gets_a_default() -> None:
    """Section 3.1: without v_pmax the system chooses one."""
    overlay = line(Criterion(Policy.FULL))
    publisher = overlay.publisher(at=FIRST)
    handle = publisher.advertise("price > 2")
    assert publisher.advertised[handle] == 7_000


def test_an_advertisement_reaches_every_broker_down_a_tree() -> None:
    """Section 3.2: over each link of the tree once, and every broker has the node."""
    overlay = line(Criterion(Policy.FULL))
    publisher = overlay.publisher(at=FIRST)
    publisher.advertise("price > 2", 10.0)
    overlay.run(0.2)
    ways = [
        (each.source, each.target)
        for each in overlay.travels
        if isinstance(each.packet, Advertisements) and any(entry.filter == "price > 2" for entry in each.packet.add)
    ]
    assert ways == [(FIRST, MIDDLE), (MIDDLE, LAST)]
    for number in (FIRST, MIDDLE, LAST):
        assert summary(overlay.nodes[number].broker.admission.graph, "price > 2") == (10, 1)


@pytest.mark.parametrize(
    ("policy", "admitted"),
    [(Criterion(Policy.FULL), False), (Criterion(Policy.PERCENTAGE, 20.0), False), (Criterion(Policy.PERCENTAGE, 40.0), True)],
)
def test_verdicts_return_on_the_way_of_the_request_and_the_last_broker_decides(policy: Criterion, admitted: bool) -> None:
    """Section 4.3, Fig. 8: one of three brokers refuses; the request goes on behind it, and the subscriber's broker decides."""
    overlay = line(policy, cpu_rate=5.0)
    publisher = overlay.publisher(at=FIRST)
    publisher.advertise("price > 2", 10.0)
    overlay.run(0.2)
    overlay.travels.clear()
    subscriber = overlay.subscriber(LAST, "price > 5")
    asked = [(each.source, each.target) for each in overlay.travels if isinstance(each.packet, Reserve)]
    answered = [(each.source, each.target) for each in overlay.travels if isinstance(each.packet, Verdict)]
    assert asked == [(LAST, MIDDLE), (MIDDLE, FIRST)]
    assert answered == [(FIRST, MIDDLE), (MIDDLE, LAST)]
    assert (subscriber.rejected is None) is admitted
    if subscriber.rejected is not None:
        assert sorted(subscriber.rejected.brokers) == [FIRST, MIDDLE, LAST]
        assert [each.broker for each in subscriber.rejected.refusals] == [MIDDLE]


def test_a_broker_sends_a_request_on_though_it_refuses() -> None:
    """Section 4.3, step 1: under a percentage all brokers are heard, and those that admit keep what they reserved."""
    overlay = line(Criterion(Policy.PERCENTAGE, 40.0), cpu_rate=5.0)
    overlay.publisher(at=FIRST).advertise("price > 2", 10.0)
    overlay.run(0.2)
    overlay.subscriber(LAST, "price > 5")
    reserved = {number: node.broker.admission.ledger.brought(CPU) for number, node in overlay.nodes.items()}
    assert reserved == {FIRST: 10_000, MIDDLE: 10_000, LAST: 10_000}, "the middle one has more than its 5 a second"


# Section 4.4


@pytest.mark.parametrize("brokers", [3, 6])
def test_a_request_costs_a_few_packets_for_each_broker_of_its_path(brokers: int) -> None:
    """O(m): over each link one request, one verdict and one decision, however many brokers there are."""
    settings = AdmissionSettings(Criterion(Policy.FULL), cpu_rate=100.0)
    overlay = Overlay.line(*range(1, brokers + 1), config=BrokerConfig(admission=settings))
    overlay.publisher(at=1).advertise("price > 2", 10.0)
    overlay.run(0.2)
    overlay.travels.clear()
    assert overlay.subscriber(brokers, "price > 5").is_subscribed
    overlay.run(0.2)
    for kind in (Reserve, Verdict, Decision):
        assert len(overlay.sent(kind)) == brokers - 1


# Section 5.2


def test_control_trades_discarded_messages_for_rejected_subscriptions() -> None:
    """The shapes of Figs. 9 and 10, in a small overlay; `experiments/admission` has the paper's."""
    values = {
        "brokers": 12,
        "more_links": 0,
        "publishers": 12,
        "messages": 200,
        "round_messages": 100,
        "stay_s": [5.0, 10.0],
        "again_s": [0.5, 1.5],
        "before_s": 9,
        "measured_s": 6,
    }
    none, full = (simulate(policy, 30, 3, values) for policy in ("none", "full"))
    assert full.discard_per_s == 0 < none.discard_per_s
    assert none.rejection_rate == 0 < full.rejection_rate
    assert full.cpu_utilisation < none.cpu_utilisation
    assert full.bandwidth_utilisation < none.bandwidth_utilisation
