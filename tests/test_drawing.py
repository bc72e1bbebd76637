"""Graphs are drawn within the picture, the same way each time, and edges are as wide as their weight."""

from __future__ import annotations

import re

import pytest

from postroad.drawing import HEIGHT, LABELS_MAX, LINE_MAX, WIDTH, Edge, Graph, drawing


def graph(brokers: int, edges: list[tuple[int, int, float]]) -> Graph:
    nodes = tuple((str(number), f"broker <{number}>") for number in range(brokers))
    return Graph("links", nodes, tuple(Edge(str(one), str(two), weight, f"{weight:g}") for one, two, weight in edges))


@pytest.mark.parametrize("brokers", [1, 2, 3, 30])
def test_every_node_is_in_the_picture(brokers: int) -> None:
    """Also when there is only one, or none has a link."""
    drawn = drawing(graph(brokers, [(number, number + 1, 1.0) for number in range(0, brokers - 1, 2)]))
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', drawn)]
    assert len(set(places)) == brokers
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    assert "broker &lt;0&gt;" in drawn


def test_edges_are_as_wide_as_what_flows() -> None:
    """The heaviest has the greatest width, and each direction of a link its own arrow and text."""
    drawn = drawing(graph(2, [(0, 1, 4_000.0), (1, 0, 40.0)]))
    widths = [float(width) for width in re.findall(r"<line[^>]* stroke-width=\"([\d.]+)\"", drawn)]
    assert widths[0] == LINE_MAX > 2 * widths[1]
    assert ">4000</text>" in drawn
    assert ">40</text>" in drawn
    assert drawn == drawing(graph(2, [(0, 1, 4_000.0), (1, 0, 40.0)]))


def test_a_dense_graph_has_no_texts_on_its_edges() -> None:
    """Nobody could read them; the pointer shows them."""
    edges = [(0, number, 7.5) for number in range(1, LABELS_MAX + 2)]
    drawn = drawing(graph(LABELS_MAX + 2, edges))
    assert ">7.5</text>" not in drawn
    assert drawn.count("<line") == LABELS_MAX + 1
