"""What a broker needs of its disk: one log per pubend, and a small store of metadata.

All calls block; a driver makes them from its own threads. One thread at a time appends to a log, releases, asks for its state and
closes it; `read` may run beside that in any other thread. What `append` and `store` were given is durable when they return, and
when they raise, nothing of it will be seen by a reader of the same open log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from postroad.core.batch.batch import Batch
from postroad.core.protocol.orders import Lost, PubendState


class LogSlice(NamedTuple):
    """A part of a log: all of its rows in (lo, hi], in tick order; ticks up to `released` are gone."""

    hi: int
    batches: tuple[Batch, ...]
    released: int


class SliceAround(NamedTuple):
    """Like `LogSlice`, around what is damaged: `lost` are its ticks, in order, between those of the rows."""

    hi: int
    batches: tuple[Batch, ...]
    released: int
    lost: tuple[Lost, ...]


class PubendLog(Protocol):
    """The rows of one pubend, in tick order."""

    def append(self, batches: Sequence[Batch]) -> None:
        """Make batches durable at the end. Ticks ascend strictly, in a batch and from one to the next.

        Raises `StorageFullError` (the log is as before and stays usable) or `StorageFailedError` (reopen it).
        """
        ...

    def read(self, lo: int, hi: int, bytes_max: int) -> LogSlice:
        """Read (lo, hi], at most about `bytes_max` but at least one batch.

        The slice's `hi` is where the reading stopped: the caller's when the log held no more up to there at the time of the
        call. A later append may add rows below a `hi` that lies beyond the last row, so ask only for ticks already decided.
        """
        ...

    def release(self, tick: int) -> int:
        """Forget rows at or before `tick`, as far as whole units of the storage allow; return the new `released` mark."""
        ...

    def retain(self, bytes_max: int) -> int:
        """Forget the oldest rows while the log is larger than `bytes_max`, as far as whole units allow; return the mark."""
        ...

    def state(self) -> PubendState: ...

    def close(self) -> None: ...


class Metadata(Protocol):
    """Durable key-value pairs of one broker."""

    def load(self) -> tuple[tuple[str, bytes], ...]:
        """Return every pair, sorted by key."""
        ...

    def damaged(self) -> tuple[str, ...]:
        """Return the keys of values that are damaged, "" for a record whose key is; `load` leaves them out."""
        ...

    def store(self, changes: Sequence[tuple[str, bytes | None]]) -> None:
        """Write the changes durably, all or nothing; a value of None deletes its key, and a later change of a key wins."""
        ...

    def next_incarnation(self) -> int:
        """Count this start of the broker, durably; the first is 1."""
        ...

    def close(self) -> None: ...
