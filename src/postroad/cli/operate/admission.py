"""`postroad admission status`, and what `postroad subscribe --explain` prints."""

from __future__ import annotations

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from postroad.cli.shared import connected, console, json_option, print_json, url_option
from postroad.core.protocol.admission import MEMORY, MILLI, AdmissionExplained, AdmissionState, ResourceUse
from postroad.transport.loops import run

NODES_SHOWN: int = 1_000


@click.group()
def admission() -> None:
    """Show what is advertised and reserved, and what is free."""


@admission.command(short_help="Show advertisements, reservations and free capacity.")
@url_option
@json_option
def status(urls: tuple[str, ...], as_json: bool) -> None:
    """Show a broker's advertisements as a covering graph, its reservations, and the free capacity of its resources."""
    state = run(_state(urls))
    if as_json:
        print_json(msgspec.to_builtins(_name_fields(state)))
        return
    _show(console(), state)


async def _state(urls: tuple[str, ...]) -> AdmissionState:
    async with connected(urls, name="postroad admission") as client:
        return await client.admission_state(NODES_SHOWN)


async def explain_admission(urls: tuple[str, ...], filter_text: str, criterion: str) -> bool:
    """Print whether a subscription would be admitted, and why not; return whether it would."""
    async with connected(urls, name="postroad subscribe") as client:
        told = await client.explain_subscription(filter_text, admission=criterion)
    print_explanation(told)
    return told.admitted


def print_explanation(told: AdmissionExplained) -> None:
    demand = (
        f"{told.highest / MILLI:g}" if told.lowest == told.highest else f"{told.lowest / MILLI:g} to {told.highest / MILLI:g}"
    )
    fewest, most = told.publishers
    click.echo(f"{demand} messages/s are advertised for it ({_count(fewest, most, 'advertisement')})")
    count = len(told.brokers)
    click.echo(f"it would {'' if told.admitted else 'not '}be admitted ({_count(count, count, 'broker')} asked)")
    for refusal in told.refusals:
        click.echo(f"  {refusal}")
    if told.largest is not None and not told.admitted:
        click.echo(f"  at most {told.largest / MILLI:g} messages/s more would fit")
    if told.fitting is not None and not told.admitted:
        click.echo(f"  this would fit: {told.fitting}")


def _count(fewest: int, most: int, noun: str) -> str:
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{number} {noun}{'' if most == 1 else 's'}"


def _name_fields(state: AdmissionState) -> dict[str, object]:
    """Return the state with the names of its fields."""
    plain = msgspec.structs.asdict(state)
    for name in ("nodes", "resources", "reservations"):
        plain[name] = [msgspec.structs.asdict(each) for each in plain[name]]
    return plain


def _show(target: Console, state: AdmissionState) -> None:
    target.print(f"broker {state.broker}, criterion {state.criterion}")
    resources = Table("resource", "used", "limit", "free", title="Resources")
    for use in state.resources:
        limit = _limit(use)
        free = "-" if use.limit is None else _amount(use, max(0, use.limit - use.used))
        name = f"link to broker {use.neighbour}" if use.neighbour else use.resource
        resources.add_row(name, _amount(use, use.used), limit, free)
    target.print(resources)
    target.print(_graph(state))
    reservations = Table("for", "by", "filter", "subscriptions", "state", title=f"Reservations ({state.reservation_count:,})")
    for each in state.reservations:
        way = f"link to broker {each.neighbour}" if each.neighbour else "clients here"
        state_text = "reserved" if each.decided else "waits for a decision"
        reservations.add_row(f"broker {each.origin}", way, escape(each.filter), str(each.subscriptions), state_text)
    target.print(reservations)


def _limit(use: ResourceUse) -> str:
    if use.limit is None:
        return "not measured yet" if use.measured else "none"
    return f"{_amount(use, use.limit)} (measured)" if use.measured else _amount(use, use.limit)


def _amount(use: ResourceUse, amount: int) -> str:
    if use.resource == MEMORY:
        return f"{amount / 1e6:,.1f} MB" if amount >= 1e6 else f"{amount:,} bytes"
    return f"{amount / MILLI:g}/s"


def _graph(state: AdmissionState) -> Tree:
    """Draw the covering graph: each filter below those that directly cover it. What stands below two is drawn in full once."""
    tree = Tree(f"Advertisements ({state.advertisements:,}, of {state.node_count:,} filters)")
    below = {place for node in state.nodes for place in node.successors}
    drawn: set[int] = set()
    waiting = [(tree, place) for place in range(len(state.nodes)) if place not in below]
    while waiting:
        parent, place = waiting.pop(0)
        node = state.nodes[place]
        brokers = ", ".join(map(str, node.brokers))
        text = f"{escape(node.filter)}  count {node.count}, {node.millirate / MILLI:g}/s, broker {brokers}"
        if place in drawn:
            parent.add(f"{text} (see above)")
            continue
        drawn.add(place)
        branch = parent.add(text)
        waiting += [(branch, each) for each in node.successors]
    return tree
