"""What is found in tracks: by a driver for the machine, which makes packets of it.

Beside what was found stands where the tracks have holes: a broker that says "not here" means it only outside of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from postroad.tracking.histories.elements import Crash, Lost, Span
from postroad.tracking.queries.search import Hits

STILL: Final = (1 << 63) - 1  # in place of the moment when something ended


class HoleKind(StrEnum):
    CRASH = "crash"  # an incarnation ended without a farewell: deliveries and routings may be missing, publications are not
    DROPPED = "dropped"  # older than what is kept
    DAMAGED = "damaged"  # a file cannot be read


@dataclass(frozen=True, slots=True)
class Hole:
    """Messages with timestamps in [from_ms, to_ms] may be missing here though the broker saw them."""

    kind: HoleKind
    from_ms: int
    to_ms: int
    reason: str

    def concerns(self, milliseconds: int) -> bool:
        return self.from_ms <= milliseconds <= self.to_ms


@dataclass(frozen=True, slots=True)
class Searched:
    """The answer to `TracksQuestion`. `neighbours` says of each until when it was one, by the broker's clock."""

    hits: Hits
    holes: tuple[Hole, ...]
    neighbours: Mapping[int, int]
    kept_from_ms: int


@dataclass(frozen=True, slots=True)
class Covered:
    """The answer to `CoverageQuestion`: spans and losses that contain the tick, and the nearest spans on both sides."""

    spans: tuple[Span, ...]
    lost: tuple[Lost, ...]
    before: Span | None
    after: Span | None
    holes: tuple[Hole, ...]


Findings: TypeAlias = Searched | Covered


def ended(spans: Mapping[tuple[int, int], Span], incarnation: int, crashes: Iterable[Crash]) -> list[Span]:
    """Return spans by (incarnation, number) so that those which ended with their incarnation are not attached still."""
    fell_ms = {crash.incarnation: crash.from_ms for crash in crashes}

    def end(of: int, span: Span) -> Span:
        if of == incarnation or span.detached_ms:
            return span
        return msgspec.structs.replace(span, detached_ms=max(fell_ms.get(of, span.attached_ms), 1))

    return [end(of, span) for (of, _), span in spans.items()]


def covered(spans: Iterable[Span], lost: Iterable[Lost], tick: int, holes: tuple[Hole, ...]) -> Covered:
    """Choose what matters for a tick from the newest records of all spans of a subscriber in a pubend."""
    listed = list(spans)
    before = max((span for span in listed if span.to_tick < tick), key=lambda span: span.to_tick, default=None)
    after = min((span for span in listed if span.from_tick >= tick), key=lambda span: span.from_tick, default=None)
    return Covered(tuple(span for span in listed if span.from_tick < tick <= span.to_tick), tuple(lost), before, after, holes)
