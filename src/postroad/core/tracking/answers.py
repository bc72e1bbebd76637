"""What a broker says about its tracks beside what it found: where they have holes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HoleKind(StrEnum):
    CRASH = "crash"  # an incarnation ended without a farewell: deliveries and routings may be missing, publications are not
    DROPPED = "dropped"  # older than what is kept
    DAMAGED = "damaged"  # a file cannot be read
    OFF = "off"  # nothing is tracked here


@dataclass(frozen=True, slots=True)
class Hole:
    """Messages with timestamps in [from_ms, to_ms] may be missing here though the broker saw them."""

    kind: HoleKind
    from_ms: int
    to_ms: int
    reason: str

    def concerns(self, milliseconds: int) -> bool:
        return self.from_ms <= milliseconds <= self.to_ms
