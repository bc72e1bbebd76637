"""Memory for what waits in connections: one budget for a process, one account for each connection.

An account counts what a connection makes the process keep: bytes of a frame that is not whole yet, bytes received and not yet
processed, frames the peer has not read, and requests a service works on. Each of these has a bound of its own; the budget bounds
their sum over all connections:

- A quarter is reserved for links between brokers. Clients together get the rest and never more.
- A frame of more than `FREE_BYTES` needs a grant for its whole length. Without room for it the connection is not read until there
  is. Grants take at most half of the clients' part. A peer that is slow to fill its grant loses the connection when others wait.
- When the clients' part is used to more than a half, `share` lowers the mark at which a slow reader gets no more rows.
- When it is used up, the connection that holds the most is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from postroad.errors import BufferLimitError

FREE_BYTES: Final = 256 << 10
"""A frame up to this length needs no grant."""
SHARE_BYTES_MIN: Final = 64 << 10
SLOW_S: Final = 5.0
SLOW_BYTES_PER_S: Final = 256 << 10


class Account:
    """What one connection holds. `exceeded` closes it; `granted` lets it read on."""

    __slots__ = ("_budget", "_exceeded", "_granted", "grant", "granted_at", "input", "of_link", "output", "requests")

    def __init__(self, budget: Budget, exceeded: Callable[[BufferLimitError], None], granted: Callable[[], None]) -> None:
        self.input = 0  # bytes received and not yet processed
        self.output = 0  # bytes the peer has not read
        self.requests = 0  # bytes of requests that a service works on
        self.grant = 0  # length of the frame that may be received, 0 for none
        self.granted_at = 0.0
        self.of_link = False
        self._budget: Budget | None = budget
        self._exceeded = exceeded
        self._granted = granted

    @property
    def held(self) -> int:
        return max(self.input, self.grant) + self.output + self.requests

    def note_input(self, size: int) -> None:
        before = max(self.input, self.grant)
        self.input = size
        self._tell_change(max(size, self.grant) - before)

    def note_output(self, size: int) -> None:
        change, self.output = size - self.output, size
        self._tell_change(change)

    def note_requests(self, size: int) -> None:
        change, self.requests = size - self.requests, size
        self._tell_change(change)

    def ask(self, length: int) -> bool:
        """Ask to receive a frame of this length; when there is no room, `granted` is called once there is."""
        return self._budget is None or self.of_link or self._budget.ask(self, length)

    def release(self) -> None:
        """Give a grant back: the frame is whole."""
        if self.grant and self._budget is not None:
            self._budget.granted_bytes -= self.grant
            before, self.grant = max(self.input, self.grant), 0
            self._tell_change(self.input - before)
            self._budget.serve_waiting()

    def serve_link(self) -> None:
        """Count as a link between brokers from now on."""
        assert self._budget is not None
        self.release()
        budget, held = self._budget, self.held
        self.of_link = True
        budget.clients_bytes -= held
        budget.links_bytes += held

    def share(self, high_bytes: int) -> int:
        """Return the mark above which the peer gets no more rows: lower than `high_bytes` when memory is short."""
        return high_bytes if self._budget is None else min(high_bytes, self._budget.share())

    def close(self) -> None:
        """Forget the connection."""
        budget = self._budget
        if budget is not None:
            budget.granted_bytes -= self.grant
            self._tell_change(-self.held)
            self._budget = None
            budget.forget(self)

    def exceed(self, error: BufferLimitError) -> None:
        """Close the connection for what it holds."""
        self.close()
        self._exceeded(error)

    def let_read(self) -> None:
        self._granted()

    def _tell_change(self, change: int) -> None:
        if change and self._budget is not None:
            self._budget.changed(self, change)


class Budget:
    """What all connections together hold."""

    def __init__(self, bytes_max: int, clock: Callable[[], float]) -> None:
        self.bytes_max: Final = bytes_max
        self.clients_bytes_max: Final = bytes_max - bytes_max // 4
        self.clients_bytes = 0
        self.links_bytes = 0
        self.granted_bytes = 0
        self.closed = 0  # connections that were closed for what they held
        self._clock: Final = clock
        self._accounts: dict[Account, None] = {}
        self._waiting: deque[tuple[Account, int]] = deque()

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def held(self) -> int:
        return self.clients_bytes + self.links_bytes

    @property
    def waiting(self) -> int:
        """Connections that wait for a grant."""
        return len(self._waiting)

    def open(self, exceeded: Callable[[BufferLimitError], None], granted: Callable[[], None]) -> Account:
        account = Account(self, exceeded, granted)
        self._accounts[account] = None
        return account

    def forget(self, account: Account) -> None:
        self._accounts.pop(account, None)
        if self._waiting:
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not account)
            self.serve_waiting()

    def changed(self, account: Account, change: int) -> None:
        if account.of_link:
            self.links_bytes += change
            return
        self.clients_bytes += change
        if change > 0 and self.clients_bytes > self.clients_bytes_max:
            self._relieve()

    def share(self) -> int:
        """Return how much one client may hold unread before it gets no more rows."""
        if self.clients_bytes <= self.clients_bytes_max // 2:
            return self.clients_bytes_max
        return max(SHARE_BYTES_MIN, self.clients_bytes_max // (2 * max(1, len(self._accounts))))

    # --- large frames ----------------------------------------------------------------------------------------------------

    def ask(self, account: Account, length: int) -> bool:
        if not self._waiting and self._has_room(length):
            self._give(account, length)
            return True
        self._waiting.append((account, length))
        return False

    def serve_waiting(self) -> None:
        """Give grants to those who have waited longest, while there is room."""
        while self._waiting and self._has_room(self._waiting[0][1]):
            account, length = self._waiting.popleft()
            self._give(account, length)
            account.let_read()

    def expire(self) -> None:
        """While others wait, close who holds a grant and is slow to fill it."""
        if self._waiting:
            now = self._clock()
            for account in [each for each in self._accounts if each.grant and _is_slow(each, now)]:
                self.closed += 1
                account.exceed(
                    BufferLimitError(f"only {account.input:,} of {account.grant:,} bytes of a frame arrived, and others wait")
                )

    def _has_room(self, length: int) -> bool:
        """Tell whether a grant fits: one always does when there is no other."""
        granted = self.granted_bytes + length
        fits = granted <= self.clients_bytes_max // 2 and self.clients_bytes + length <= self.clients_bytes_max
        return fits or not self.granted_bytes

    def _give(self, account: Account, length: int) -> None:
        before = max(account.input, account.grant)
        account.grant, account.granted_at = length, self._clock()
        self.granted_bytes += length
        self.changed(account, max(account.input, length) - before)

    # --- too much --------------------------------------------------------------------------------------------------------

    def _relieve(self) -> None:
        """Close the client that holds the most."""
        largest = max((each for each in self._accounts if not each.of_link), key=lambda each: each.held)
        self.closed += 1
        largest.exceed(
            BufferLimitError(f"the buffers of all clients use {self.clients_bytes:,} bytes, this connection {largest.held:,}")
        )


def _is_slow(account: Account, now: float) -> bool:
    """Tell whether a frame comes too slowly: a few seconds are free, then there is a least rate."""
    age = now - account.granted_at
    return age > SLOW_S and account.input < age * SLOW_BYTES_PER_S
