"""Graphs as SVG: nodes placed by springs, edges as wide as what flows over them. Nothing but numpy is needed."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

STEPS: Final = 300  # of the springs
WIDTH, HEIGHT, MARGIN = 940.0, 580.0, 48.0
NODE_RADIUS: Final = 15.0
LINE_MIN, LINE_MAX = 1.0, 9.0
LABELS_MAX: Final = 60  # edges with a text beside them; with more nobody can read them
APART: Final = 7.0  # the two directions of a link

Points = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    weight: float  # how wide
    label: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, each with a text for the pointer, and directed edges between them. `unit` says what the labels count."""

    title: str
    nodes: tuple[tuple[str, str], ...]
    edges: tuple[Edge, ...]
    unit: str = ""
    note: str = ""


def drawing(graph: Graph) -> str:
    """Draw a graph as an SVG element. The same graph is drawn the same way each time."""
    names = [name for name, _ in graph.nodes]
    number = {name: index for index, name in enumerate(names)}
    pairs = [(number[edge.source], number[edge.target]) for edge in graph.edges]
    places = _fit(_settle(len(names), pairs))
    most = max((edge.weight for edge in graph.edges), default=0) or 1
    parts = [f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}" role="img" font-size="11">']
    parts.append(f"<title>{html.escape(graph.title)}</title>")
    is_labelled = len(graph.edges) <= LABELS_MAX
    drawn = [
        _edge(edge, places[one], places[other], most, is_labelled=is_labelled)
        for edge, (one, other) in zip(graph.edges, pairs, strict=True)
    ]
    parts += [line for line, _ in drawn] + [label for _, label in drawn]  # no line is drawn over a label
    for (name, text), (x, y) in zip(graph.nodes, places.tolist(), strict=True):
        parts.append(
            f'<g><circle cx="{x:.1f}" cy="{y:.1f}" r="{NODE_RADIUS:g}" fill="#fff" stroke="#1a4f8b" stroke-width="2"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" font-weight="bold">{html.escape(name)}</text>'
            f"<title>{html.escape(text)}</title></g>"
        )
    return "".join([*parts, "</svg>"])


def _edge(edge: Edge, begin: Points, end: Points, most: float, *, is_labelled: bool) -> tuple[str, str]:
    """Draw an arrow; it lies to the right of the line between the nodes, so that the way back has its own place."""
    along = end - begin
    length = float(np.hypot(*along)) or 1.0
    along = along / length
    aside = np.array([-along[1], along[0]]) * APART
    start, stop = begin + along * NODE_RADIUS + aside, end - along * (NODE_RADIUS + 4) + aside
    width = LINE_MIN + (LINE_MAX - LINE_MIN) * edge.weight / most
    tip = stop + along * 4
    wing = np.array([-along[1], along[0]]) * (width / 2 + 3)
    back = stop - along * 6
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (tip, back + wing, back - wing))
    text = ""
    if is_labelled and edge.label:
        middle = begin + (end - begin) * 0.5 + aside * (2.2 + width / APART)
        text = (
            f'<text x="{middle[0]:.1f}" y="{middle[1] + 4:.1f}" fill="#333" text-anchor="middle" stroke="#fff" stroke-width="4" '
            f'paint-order="stroke">{html.escape(edge.label)}</text>'
        )
    told = html.escape(f"{edge.source} to {edge.target}: {edge.label}")
    line = (
        f'<g stroke="#5b8fc7" fill="#5b8fc7"><line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{back[0]:.1f}" y2="{back[1]:.1f}" '
        f'stroke-width="{width:.1f}"/><polygon points="{corners}" stroke="none"/><title>{told}</title></g>'
    )
    return line, text


def _settle(count: int, pairs: Sequence[tuple[int, int]]) -> Points:
    """Place nodes by springs (Fruchterman and Reingold), starting from a circle."""
    angle = np.linspace(0, 2 * np.pi, count, endpoint=False)
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if count < 3:
        return places
    near = np.zeros((count, count), np.bool_)
    for one, other in pairs:
        near[one, other] = near[other, one] = one != other
    wished = np.sqrt(4 / count)
    for step in range(STEPS):
        apart = places[:, None, :] - places[None, :, :]
        distance = np.maximum(np.hypot(apart[..., 0], apart[..., 1]), 1e-3)
        force = wished**2 / distance**2 - np.where(near, distance / wished, 0.0)
        np.fill_diagonal(force, 0.0)
        moved = (apart * force[..., None]).sum(axis=1)
        reach = np.maximum(np.hypot(moved[:, 0], moved[:, 1]), 1e-9)[:, None]
        places = places + moved / reach * np.minimum(reach, 0.2 * (1 - step / STEPS))
    return places


def _fit(places: Points) -> Points:
    """Stretch places over the picture, the longer side across."""
    if not len(places):
        return places
    centred = places - places.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    turned = centred @ axes.T if len(places) > 2 else centred  # two nodes lie on a line anyway
    low, high = turned.min(axis=0), turned.max(axis=0)
    size = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    span = np.where(high - low > 1e-6, high - low, np.inf)
    offset = np.where(np.isinf(span), size / 2, 0.0)
    found: Points = MARGIN + offset + (turned - low) / span * size
    return found
