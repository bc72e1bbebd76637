"""The covering graph of advertisements, against a model that keeps a list and compares everything with everything."""

from __future__ import annotations

from random import Random

import pytest

from postroad.core.broker.admission.advertisements import AdvertisementGraph, Interval, ancestors, descendants
from postroad.core.filters.filter import Filter

WORDS = ("'DEU'", "'IBM'", "'SAP'")


def any_filter(random: Random) -> Filter:
    """Make a conjunction of up to three conditions on few values, so that many filters are related."""
    parts = []
    if random.random() < 0.6:
        parts.append(f"name = {random.choice(WORDS)}" if random.random() < 0.8 else f"name IN ({WORDS[0]}, {WORDS[1]})")
    for attribute in ("price", "volume"):
        match random.randrange(4):
            case 0:
                parts.append(f"{attribute} > {random.randrange(6)}")
            case 1:
                low = random.randrange(6)
                parts.append(f"{attribute} BETWEEN {low} AND {low + random.randrange(6)}")
            case _:
                pass
    return Filter(" AND ".join(parts))


def odd_filter(random: Random) -> Filter:
    """Make a filter whose covering is only partly known: a union, a LIKE, arithmetic."""
    return Filter(
        random.choice(
            (
                "price < 2 OR price > 4",
                "price < 3 OR volume > 3",
                "name LIKE 'S%P'",
                "name LIKE '%A%'",
                "price + volume > 3",
                "price <> 3",
                "price IN (1, 3, 5)",
                "price > 0 AND price + volume > 3",
                "NOT (price > 3)",
            )
        )
    )


class Model:
    """The same advertisements as a list."""

    def __init__(self) -> None:
        self.advertised: list[tuple[Filter, int, int]] = []

    def related(self, filter_: Filter) -> list[tuple[Filter, int, int]]:
        return [each for each in self.advertised if filter_.covers(each[0])]

    def overlapping(self, filter_: Filter) -> list[tuple[Filter, int, int]]:
        return [each for each in self.advertised if each[0].overlaps(filter_) is not False]


def change(random: Random, graph: AdvertisementGraph, model: Model, filter_: Filter) -> None:
    if model.advertised and random.random() < 0.45:
        gone = model.advertised.pop(random.randrange(len(model.advertised)))
        graph.withdraw(*gone)
    else:
        come = (filter_, random.randrange(3), random.randrange(1, 30) * 1000)
        model.advertised.append(come)
        graph.advertise(*come)


def check_shape(graph: AdvertisementGraph) -> None:
    """Sums are those of the sets below, edges go both ways, form no circle, and lead past no node in between."""
    for node in graph.nodes():
        below = [node, *descendants(node)]
        assert node not in descendants(node)
        assert node.count == sum(each.own.count for each in below)
        assert node.millirate == sum(each.own.millirate for each in below)
        assert node.own.count == sum(share.count for share in node.shares.values()) > 0
        for lower in node.successors:
            assert node in lower.predecessors
            assert not any(lower in descendants(other) for other in node.successors if other is not lower)
        assert all(node in upper.successors for upper in node.predecessors)


@pytest.mark.parametrize("seed", range(25))
def test_graph_equals_a_list_that_compares_everything(seed: int) -> None:
    """Conjunctions are compared exactly, so graph and list agree in every count, rate, edge and demand."""
    random = Random(seed)
    graph, model = AdvertisementGraph(), Model()
    for _ in range(120):
        change(random, graph, model, any_filter(random))
        check_shape(graph)
        for node in graph.nodes():
            related = model.related(node.filter)
            assert (node.count, node.millirate) == (len(related), sum(rate for _, _, rate in related)), node
            above = {str(each[0]) for each in model.advertised if each[0] != node.filter and each[0].covers(node.filter)}
            assert {str(each.filter) for each in ancestors(node)} == above
        wanted = any_filter(random)
        related, near = model.related(wanted), model.overlapping(wanted)
        demand = graph.demand(wanted)
        assert demand.millirate == Interval(sum(rate for _, _, rate in related), sum(rate for _, _, rate in near))
        assert demand.count == Interval(len(related), len(near))
    for gone in model.advertised:
        graph.withdraw(*gone)
    assert not len(graph)


@pytest.mark.parametrize("seed", range(25))
def test_graph_keeps_its_shape_where_covering_is_not_always_known(seed: int) -> None:
    """What is counted below a node is surely covered by it, and what overlaps is never missed."""
    random = Random(seed)
    graph, model = AdvertisementGraph(), Model()
    for _ in range(100):
        change(random, graph, model, odd_filter(random) if random.random() < 0.5 else any_filter(random))
        check_shape(graph)
        wanted = odd_filter(random)
        demand, near = graph.demand(wanted), model.overlapping(wanted)
        assert demand.count.high is not None
        assert demand.count.low <= len(near) <= demand.count.high
        assert demand.millirate.low <= sum(rate for _, _, rate in near) == demand.millirate.high
    for gone in model.advertised:
        graph.withdraw(*gone)
    assert not len(graph)


def test_filters_proven_equal_share_a_node() -> None:
    """Filters that cover each other are one node, so no edges form a circle."""
    graph = AdvertisementGraph()
    first = graph.advertise(Filter("price < 3 OR price > 1"), 1, 5000)
    second = graph.advertise(Filter("price < 4 OR price > 2"), 2, 7000)
    if first is second:
        assert (first.count, first.millirate) == (2, 12000)
    check_shape(graph)
    graph.withdraw(Filter("price < 3 OR price > 1"), 1, 5000)
    graph.withdraw(Filter("price < 4 OR price > 2"), 2, 7000)
    assert not len(graph)
