"""Traces and explanations for people and for programs: drawn as trees, or as JSON."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from postroad.cli.shared import console
from postroad.tracking.queries.explanation import Explanation, Verdict
from postroad.tracking.queries.reconstruction import Receipt, Trace, TrackHole, Visit
from postroad.types import AttributeValue, format_time

_GOOD = frozenset({Verdict.DELIVERED, Verdict.FILTERED, Verdict.NOT_SUBSCRIBED})


def draw(trace: Trace) -> RenderableType:
    """Draw one trace: the publisher at the top, brokers below those the message came from, subscribers at theirs."""
    parts: list[RenderableType] = [_tree(trace)]
    parts += [Text(f"  {trace.problem}", "bold red")] if trace.problem else []
    parts += [Text(f"  broker {each.broker} did not answer: {printable(each.reason)}", "yellow") for each in trace.unasked]
    parts += [Text(f"  {_hole_text(hole)}", "yellow") for hole in trace.holes]
    if not trace.found and not trace.problem:
        where = "no broker that was asked" if trace.complete else "none of the brokers that answered"
        parts.append(Text(f"  {where} knows this message", "bold red"))
    return Group(*parts)


def _tree(trace: Trace) -> Tree:
    tree = Tree(
        Text.assemble(
            ("message ", "dim"),
            (str(trace.id), "bold"),
            (f"  {format_time(trace.id.milliseconds)}", "dim"),
            "\n",
            *_publisher(trace),
        )
    )
    below: dict[int | None, list[Visit]] = {}
    for visit in trace.brokers:
        below.setdefault(visit.upstream, []).append(visit)
    drawn: set[int] = set()
    roots = [visit for visit in trace.brokers if visit.broker == trace.origin]
    if not roots and (trace.origin in below or trace.unasked):
        roots = [Visit(trace.origin, None, 0.0)]
    for visit in roots:
        _grow(tree, visit, trace, below, drawn)
    for visit in trace.brokers:  # behind brokers that could not be asked, or in the air
        if visit.broker not in drawn and visit.upstream not in {other.broker for other in trace.brokers}:
            above = tree
            if visit.upstream is not None:
                above = tree.add(Text(f"broker {visit.upstream}, which did not answer", "yellow"))
            _grow(above, visit, trace, below, drawn)
    for visit in trace.brokers:
        if visit.broker not in drawn:
            _grow(tree, visit, trace, below, drawn)
    _loose_ends(tree, trace, drawn)
    return tree


def _publisher(trace: Trace) -> list[tuple[str, str]]:
    known = trace.published is not None
    return [
        (f"publisher {trace.publisher} at broker {trace.origin}", "green" if known else "yellow"),
        (_doubt(trace.published) if trace.published else "" if known else "  (not in its publisher history)", "dim"),
    ]


def _grow(tree: Tree, visit: Visit, trace: Trace, below: dict[int | None, list[Visit]], drawn: set[int]) -> None:
    """Add a broker with its subscribers and all behind it."""
    drawn.add(visit.broker)
    style = "dim" if visit.isolated else "cyan"
    name = f"broker {visit.broker}" + (" (origin)" if visit.broker == trace.origin else "")
    if any(each.broker == visit.broker for each in trace.unasked):
        name, style = f"{name}, which did not answer", "yellow"
    branch = tree.add(Text.assemble((name, style), (_doubt(visit.probability), "dim"), _isolate(visit.isolated)))
    for receipt in trace.subscribers:
        if receipt.broker == visit.broker:
            branch.add(_receipt(receipt))
    for following in below.get(visit.broker, ()):
        if following.broker not in drawn:
            _grow(branch, following, trace, below, drawn)


def _loose_ends(tree: Tree, trace: Trace, drawn: set[int]) -> None:
    """Add the subscribers of brokers that did not route the message, as they say."""
    for receipt in trace.subscribers:
        if receipt.broker not in drawn:
            tree.add(Text.assemble((f"broker {receipt.broker}: ", "dim"), _receipt(receipt)))


def _receipt(receipt: Receipt) -> Text:
    style = "dim" if receipt.isolated else "bold green"
    name = printable(receipt.subscriber)
    return Text.assemble((f"subscriber {name}", style), (_doubt(receipt.probability), "dim"), _isolate(receipt.isolated))


def _doubt(probability: float | None) -> str:
    return f"  (false with probability {probability:.2g})" if probability else ""


def _isolate(isolated: bool) -> tuple[str, str]:
    return ("  isolated: likely a false positive", "yellow") if isolated else ("", "")


def _hole_text(hole: TrackHole) -> str:
    return printable(f"tracks of broker {hole.broker} may be incomplete ({hole.kind}): {hole.reason}")


def printable(text: str) -> str:
    """Return text from others without what a terminal would take as an order."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def draw_explanation(explanation: Explanation) -> RenderableType:
    trace = explanation.trace
    style = "bold green" if explanation.verdict is Verdict.DELIVERED else "bold" if explanation.verdict in _GOOD else "bold red"
    head = Text.assemble(
        (f"{explanation.verdict.value}", style), f": {printable(explanation.reason)}", (_doubt(explanation.probability), "dim")
    )
    parts: list[RenderableType] = [head]
    if explanation.filter is not None:
        parts.append(Text(f"  filter      {printable(explanation.filter) or '(everything)'}"))
    if explanation.attributes is not None:
        parts.append(Text(f"  attributes  {_show(explanation.attributes)}"))
    parts += [Text(f"  broker {each.broker} did not answer: {printable(each.reason)}", "yellow") for each in trace.unasked]
    parts += [Text(f"  {trace.problem}", "bold red")] if trace.problem else []
    return Group(*parts)


def _show(attributes: Any) -> str:
    return ", ".join(f"{name} = {value!r}" for name, value in sorted(attributes.items()))


def print_trace(trace: Trace) -> None:
    console().print(draw(trace))


# --- JSON -----------------------------------------------------------------------------------------------------------------


def trace_json(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain values."""
    return {
        "id": str(trace.id),
        "timestamp_ms": trace.id.milliseconds,
        "origin": trace.origin,
        "publisher": trace.publisher,
        "found": trace.found,
        "published": trace.published is not None,
        "published_probability": trace.published,
        "brokers": [
            {"broker": v.broker, "upstream": v.upstream, "probability": v.probability, "isolated": v.isolated}
            for v in trace.brokers
        ],
        "subscribers": [
            {"subscriber": r.subscriber, "broker": r.broker, "probability": r.probability, "isolated": r.isolated}
            for r in trace.subscribers
        ],
        "unasked": [{"broker": u.broker, "status": u.status.name.lower(), "reason": u.reason} for u in trace.unasked],
        "holes": list(_holes_json(trace)),
        "problem": trace.problem,
    }


def _holes_json(trace: Trace) -> Iterator[dict[str, Any]]:
    for hole in trace.holes:
        yield {
            "broker": hole.broker,
            "kind": hole.kind,
            "from_ms": hole.from_ms,
            "to_ms": hole.to_ms,
            "reason": hole.reason,
        }


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain values."""
    attributes = explanation.attributes
    return {
        "verdict": explanation.verdict.value,
        "reason": explanation.reason,
        "subscriber": explanation.subscriber,
        "broker": explanation.broker,
        "filter": explanation.filter,
        "probability": explanation.probability,
        "attributes": None if attributes is None else {name: _plain(value) for name, value in sorted(attributes.items())},
        "tick": None if explanation.tick is None else str(explanation.tick),
        "trace": trace_json(explanation.trace),
    }


def _plain(value: AttributeValue) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
