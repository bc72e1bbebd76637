"""The rows of Table 2, and ours beside them: what a buffer holds, and when it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.types import MESSAGE_ID_BYTES

RATE: Final = 5_000
NEVER_MS: Final = 10**9


@dataclass(frozen=True)
class Configuration:
    """One row. `full` is what the paper says of it: buffers are filled before T_p."""

    strategy: Strategy
    limit_bytes: int = 0
    accuracy: str = "100%"
    seconds: int = 0  # T_p
    m: int = 65_536
    k: int = 16
    n: int = 2_521
    full: bool | None = None

    @property
    def capacity(self) -> int:
        return self.n if self.strategy is Strategy.BLOOM else self.limit_bytes // MESSAGE_ID_BYTES

    @property
    def name(self) -> str:
        if self.strategy is Strategy.NULL:
            return "null"
        accuracy = f" {self.accuracy}" if self.strategy is Strategy.BLOOM else ""
        return f"{self.strategy}{accuracy} {self.limit_bytes // 1000}K {self.seconds}s"

    def settings(self, **more: int | bool) -> TrackingSettings:
        """Return the configuration as a broker has it: always blooms, as the paper's."""
        return TrackingSettings(
            strategy=self.strategy,
            m=self.m,
            k=self.k,
            n=self.n,
            ids_max=max(self.capacity, 1),
            persistence_ms=1_000 * self.seconds or NEVER_MS,
            few_as_ids=False,
            **more,  # type: ignore[arg-type]
        )


def _bloom(limit_bytes: int, accuracy: str, seconds: int, *, full: bool) -> Configuration:
    m, k, n = BLOOMS[limit_bytes, accuracy]
    return Configuration(Strategy.BLOOM, limit_bytes, accuracy, seconds, m, k, n, full)


BLOOMS: Final = {
    (10_000, "99.999%"): (1 << 16, 16, 2_521),
    (10_000, "99%"): (1 << 16, 8, 5_461),
    (10_000, "95%"): (1 << 16, 8, 7_281),
    (135_000, "99.999%"): (1 << 20, 12, 38_836),
    (135_000, "99%"): (1 << 20, 6, 87_381),
    (135_000, "95%"): (1 << 20, 6, 131_072),
}
EFPP: Final = {"99.999%": 1e-5, "99%": 0.01, "95%": 0.05}

PAPER: Final = (
    Configuration(Strategy.NULL),
    Configuration(Strategy.ASYNC, 10_000, seconds=1, full=True),
    Configuration(Strategy.ASYNC, 135_000, seconds=1, full=False),
    Configuration(Strategy.ASYNC, 135_000, seconds=2, full=True),
    _bloom(10_000, "99.999%", 1, full=True),
    _bloom(10_000, "99%", 1, full=False),
    _bloom(10_000, "95%", 1, full=False),
    _bloom(10_000, "99%", 2, full=True),
    _bloom(10_000, "95%", 2, full=True),
    _bloom(135_000, "99.999%", 1, full=False),
    _bloom(135_000, "99%", 1, full=False),
    _bloom(135_000, "95%", 1, full=False),
    _bloom(135_000, "99.999%", 2, full=False),
    _bloom(135_000, "99%", 2, full=False),
    _bloom(135_000, "95%", 2, full=False),
    _bloom(135_000, "99.999%", 8, full=True),
    _bloom(135_000, "99%", 8, full=False),
    _bloom(135_000, "95%", 8, full=False),
    _bloom(135_000, "99%", 18, full=True),
    _bloom(135_000, "95%", 18, full=False),
    _bloom(135_000, "95%", 27, full=True),
)

# `exact` holds as many ids in a buffer as `async`; the last has the buffer and the interval that a broker has by default.
OURS: Final = (
    Configuration(Strategy.EXACT, 10_000, seconds=1),
    Configuration(Strategy.EXACT, 135_000, seconds=1),
    Configuration(Strategy.EXACT, 135_000, seconds=2),
    Configuration(Strategy.EXACT, 65_536 * MESSAGE_ID_BYTES, seconds=10),
)
ALL: Final = PAPER + OURS
