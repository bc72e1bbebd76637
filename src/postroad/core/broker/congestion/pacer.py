"""How many messages of a pubend may be published now: a token bucket (the shaping of section 4).

What is beyond the rate waits at the broker, and is acknowledged when it was published. So a publisher whose window is full of
such messages stops, which is the paper's "holding back acknowledgements"; its credit keeps that window small.

Messages are let go in groups of up to `GROUP_MAX`. Each append becomes a frame on every link, and the head of a frame weighs as
much as five small messages: released one by one, throttled messages would take several times their share of the bottleneck.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.5  # what may be saved up
GROUP_MAX: Final = 16


class Pacer:
    """The bucket of one pubend; without a rate there is no limit."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._tokens = 0.0
        self._filled_at = 0.0

    def set_rate(self, rate: float | None, now: float) -> None:
        """Hold the pubend to a rate from now on, or let it go."""
        if rate is not None and self.rate is None:
            self._tokens, self._filled_at = 0.0, now
        elif rate is not None:
            self.allowed(now)
        self.rate = rate

    def allowed(self, now: float) -> int | None:
        """Return how many messages may be published now; None: any number."""
        if self.rate is None:
            return None
        saved = max(self.rate * BURST_S, 1.0)
        self._tokens = min(self._tokens + self.rate * (now - self._filled_at), saved)
        self._filled_at = now
        return int(self._tokens) if self._tokens >= min(saved, GROUP_MAX) else 0

    def took(self, messages: int) -> None:
        if self.rate is not None:
            self._tokens -= messages
