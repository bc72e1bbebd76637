"""The interest that a broker sends to the parent of a stream, and since which epoch it covers each filter.

The interest is the reduced set of the filters of the broker's own subscribers and of its children. It is sent as changes, each
under a new epoch. It is sent in full to a new parent, or when the parent has not answered for too long.

For each filter the epoch is kept *since* which every interest we sent covers it: knowledge with that label or a higher one is
complete for the filter. A filter that is covered when it is added takes over the epoch of the member that covers it. Any other
filter gets the epoch under which it is first sent. It stays covered until it is removed, because every interest that is sent
covers all filters of the set. So covering is decided once per filter, not again for every change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from postroad.core.broker.relaying.interest import ReducedSet, interest_packets
from postroad.core.broker.views import Epochs
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import LinkId, Send

RESEND_S: Final = 2.0
RESEND_DOUBLINGS_MAX: Final = 5


class UpstreamInterest:
    """The interest of one broker in one pubend of another."""

    def __init__(self, pubend: int, epochs: Epochs, orders: list[Output]) -> None:
        self.pubend = pubend
        self.epoch_sent = 0
        self._epochs = epochs
        self._orders = orders
        self._wanted = ReducedSet()
        self._since: dict[Filter, int] = {}
        self._unsent: dict[Filter, None] = {}  # members that the last interest we sent does not cover
        self._wide_since = 0  # since this epoch we request everything; 0: we do not
        self._sending = False  # the last interest sent to the parent is not empty
        self._resend_at = float("inf")
        self._resends = 0

    # --- members ---

    def add(self, filters: Iterable[Filter]) -> None:
        for filter_ in filters:
            if not self._wanted.add(filter_):
                continue
            above = self._wanted.above(filter_)
            since = self._wide_since or (self._since.get(above) if above is not None else None)
            if since is None:
                self._unsent[filter_] = None
            else:
                self._since[filter_] = since

    def remove(self, filters: Iterable[Filter]) -> None:
        for filter_ in filters:
            if self._wanted.remove(filter_) and self._since.pop(filter_, None) is None:
                del self._unsent[filter_]

    def since(self, filter_: Filter) -> int | None:
        """Return the epoch since which every interest we sent covers a filter; None if the last one does not cover it."""
        known = self._since.get(filter_)
        if known is not None or filter_ in self._wanted:
            return known
        if self._wide_since:
            return self._wide_since
        member = self._wanted.covering(filter_)
        return None if member is None else self._since.get(member)

    # --- the parent ---

    def end(self, parent: LinkId) -> None:
        """Withdraw the interest from a former parent."""
        if self._sending:
            self._orders.append(Send(parent, next(interest_packets(self.pubend, self._epochs.next_epoch(), [], [], full=True))))

    def forget_parent(self) -> None:
        self._sending = False
        self._resend_at, self._resends = float("inf"), 0

    def refresh(self, parent: LinkId, now: float, *, anew: bool = False) -> None:
        """Send the changes to the parent under a new epoch, or (`anew`) the interest in full."""
        changes = self._wanted.take_changes()
        if not len(self._wanted) and not self._sending:
            return
        if changes is None or anew or not self._sending:
            add, remove, full = list(self._wanted.maximal()), [], True
        elif changes[0] or changes[1]:
            add, remove, full = *changes, False
        else:
            self._date(self.epoch_sent)  # the new filters are covered by the interest that was sent last
            return
        epoch = self.epoch_sent = self._epochs.next_epoch()
        if not self._wanted.is_wide:
            self._wide_since = 0
        elif not self._wide_since:
            self._wide_since = epoch
        self._date(epoch)
        self._sending = len(self._wanted) > 0
        self._resend_at = now + RESEND_S * (1 << self._resends) if self._sending else float("inf")
        self._orders.extend(Send(parent, packet) for packet in interest_packets(self.pubend, epoch, add, remove, full=full))

    def answered(self, epoch: int, now: float) -> None:
        """Handle an answer of the parent: wait again only for later epochs."""
        self._resends = 0
        self._resend_at = float("inf") if epoch == self.epoch_sent else now + RESEND_S

    def send_again(self, parent: LinkId, now: float) -> None:
        """Send the interest in full if the parent has not answered; the wait doubles each time."""
        if now >= self._resend_at:
            self._resends = min(self._resends + 1, RESEND_DOUBLINGS_MAX)
            self.refresh(parent, now, anew=True)

    def _date(self, epoch: int) -> None:
        for filter_ in self._unsent:
            self._since[filter_] = epoch
        self._unsent.clear()
