"""A limit on the bytes per second that a link sends: a token bucket.

Data leaves while there are tokens, one frame at a time, and a frame may leave the bucket in debt. So the average is kept whatever
the size of frames. Control frames are never delayed: they take tokens, and data waits for them. A limited link so behaves as a
slow one does, but its heartbeats, queries and alerts pass.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 0.02  # of the rate, after a pause


class BandwidthLimit:
    """The bucket of one connection."""

    def __init__(self, bytes_per_s: int, now: float) -> None:
        self.bytes_per_s: Final = bytes_per_s
        self._tokens = 0.0
        self._filled_at = now

    def wait_s(self, now: float) -> float:
        """Return how long data has to wait; 0: a frame may leave now."""
        rate = self.bytes_per_s
        self._tokens = min(self._tokens + rate * (now - self._filled_at), max(rate * BURST_S, 1.0))
        self._filled_at = now
        return 0.0 if self._tokens > 0 else (1.0 - self._tokens) / rate

    def take(self, size: int) -> None:
        """Count bytes that have left."""
        self._tokens -= size
