"""The page of a subscription's life, from the table that the broker goes by."""

from __future__ import annotations

from collections import defaultdict

from postroad.core.broker.subscribing.subscription import TRANSITIONS, Event, State

HEAD = """# The life of a subscription in one pubend

A subscription takes these steps in each pubend by itself. The broker goes by the same table:
`TRANSITIONS` in `core/broker/subscribing/subscription.py`. An event that is not in the table for a
state raises `InvalidTransitionError`, which is a bug of Postroad.
[The overlay](overlay.md#live-and-catching-up) explains why there are these steps.

"""


def subscription_life_page() -> str:
    """Draw the states and list what the states and events mean."""
    states = "\n".join(f"| `{state.name}` | {state.value} | {_exits(state)} |" for state in State)
    events = "\n".join(f"| `{event.name}` | {event.value} |" for event in Event)
    return (
        f"{HEAD}```mermaid\n{_diagram()}\n```\n\n"
        f"| state | meaning | events it may see |\n|---|---|---|\n{states}\n\n"
        f"| event | meaning |\n|---|---|\n{events}\n"
    )


def _exits(state: State) -> str:
    return ", ".join(f"`{event.name}`" for event in TRANSITIONS[state]) or "-"


def _diagram() -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {State.WAITING.name}"]
    for state, exits in TRANSITIONS.items():
        events: dict[State, list[str]] = defaultdict(list)
        for event, after in exits.items():
            events[after].append(event.name)
        lines += [f"    {state.name} --> {after.name}: {', '.join(names)}" for after, names in events.items()]
    return "\n".join([*lines, f"    {State.ENDED.name} --> [*]"])
