"""Where a new subscription begins: with what is published from now on, with the oldest message, or at a time.

Brokers know ticks, which contain the time of their broker's clock. A start at a time becomes a position for each stream in reach;
streams that are out of reach begin with their oldest message, and what is older than the time is left out when it comes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from postroad.core.protocol.packets import PubendSpan
from postroad.errors import InvalidValueError
from postroad.types import MILLISECONDS_MAX, make_tick

Start: TypeAlias = Literal["new", "earliest"] | datetime | timedelta


def start_tick(start: Start) -> int | None:
    """Return the tick before the first message of a start at a time; None for the others. Raise `InvalidValueError`."""
    if isinstance(start, timedelta):
        start = datetime.now(UTC) - abs(start)
    if isinstance(start, datetime):
        milliseconds = int(start.timestamp() * 1000)  # a time without a zone is local, as everywhere in Python
        return max(0, make_tick(min(max(milliseconds, 0), MILLISECONDS_MAX)) - 1)
    if start not in {"new", "earliest"}:
        raise InvalidValueError(f"start is 'new', 'earliest', a datetime or a timedelta, not {start!r}")
    return None


def positions_at(tick: int, spans: dict[int, PubendSpan]) -> dict[int, int]:
    """Return where each stream is to begin: at the tick, or at the nearest one that it has."""
    return {pubend: min(max(tick, span.released), span.horizon) for pubend, span in spans.items()}
