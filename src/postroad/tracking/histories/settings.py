"""How a broker tracks: the paper's parameters under the paper's names, with our bounds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from postroad.errors import InvalidValueError


class Strategy(StrEnum):
    """What a history is made of. `null` keeps nothing."""

    NULL = "null"
    ASYNC = "async"  # the ids one after the other: the paper's naive log
    BLOOM = "bloom"  # the paper's: m bits, k hash functions, n ids at most
    EXACT = "exact"  # the ids in order of time, so that columns compress them


BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "m": (8, 1 << 32),
    "k": (1, 64),
    "n": (1, 1 << 32),
    "ids_max": (1, 1 << 24),
    "persistence_ms": (1, 1 << 40),
    "lifetime_min_ms": (0, 1 << 40),
    "skew_tolerance_ms": (0, 1 << 40),
    "jitter_ms": (0, 1 << 40),
    "singletons_max": (0, 1 << 20),
    "memory_bytes_max": (1, 1 << 50),
    "omit_one_in": (0, 1 << 32),
}


@dataclass(frozen=True, slots=True)
class TrackingSettings:
    """One broker's tracking. Durations are milliseconds of the broker's wall clock."""

    strategy: Strategy = Strategy.EXACT
    m: int = 65_536  # bits of a bloom
    k: int = 16  # hash functions
    n: int = 2_521  # ids that a bloom takes
    ids_max: int = 65_536  # ids that an element of `exact` or `async` takes
    persistence_ms: int = 10_000  # T_p: how much a crash may lose
    lifetime_min_ms: int = 0  # T_n of the overlay; above T_p, elements live that long and their copies on disk are replaced
    skew_tolerance_ms: int = 4_000  # T_s
    jitter_ms: int = 1_000  # T_j
    singletons_max: int = 256  # late timestamps an element lists one by one; more late ids get an element of their own
    memory_bytes_max: int = 256 << 20  # all histories together; beyond it the fullest are stored early
    per_neighbour: bool = False  # H_{b,d}: one more history per neighbour that messages were forwarded to
    few_as_ids: bool = True  # a bloom that ends with so few ids that they are shorter than its bits is written as `exact`
    routing_sets: bool = False  # the set of neighbours in the key of routing histories (bloom only; not at a message's origin)
    omit_one_in: int = 0  # for tests of audits: leave out deliveries whose hash divides by this

    def __post_init__(self) -> None:
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidValueError(f"tracking: {name} must be from {low:,} to {high:,}, not {value:,}")
        if self.m % 8:
            raise InvalidValueError(f"tracking: m must be a multiple of 8, not {self.m:,}")

    @property
    def late_ms(self) -> int:
        """How much older than the broker's clock a message may be and still be on time: 2 T_s + T_j."""
        return 2 * self.skew_tolerance_ms + self.jitter_ms

    @property
    def behind_ms(self) -> int:
        """How much older than its element's beginning a message may be and still count in the range: T_s + T_j."""
        return self.skew_tolerance_ms + self.jitter_ms

    @property
    def lifetime_ms(self) -> int:
        """How long an element that does not fill up is in use, at least."""
        return max(self.persistence_ms, self.lifetime_min_ms)


OFF: Final = TrackingSettings(strategy=Strategy.NULL)
