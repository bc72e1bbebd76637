"""What a broker asks the parent of a stream for, and since when.

The interest is the reduced set of the filters of its own subscribers and of its children. It is sent as changes, each under a new
epoch, and in full to a new parent, or when the parent has said nothing for too long.

For each filter the epoch is kept *since* which every interest we sent has covered it: knowledge with that label or a later one is
complete for the filter. A filter that is covered when it comes takes over the epoch of the one that covers it; any other gets the
epoch under which it is sent first. It stays covered until it is taken out, whatever comes and goes beside it, because each
interest that is sent covers all filters of the set. So nothing has to be proved again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from postroad.core.broker.relaying.interest import ReducedSet, interest_packets
from postroad.core.filters.filter import Filter
from postroad.core.protocol.observations import Output
from postroad.core.protocol.orders import LinkId, Send

RESEND_S: Final = 2.0
RESEND_DOUBLINGS_MAX: Final = 5


class Asking:
    """The interest of one broker in one pubend of another."""

    def __init__(self, pubend: int, next_epoch: Callable[[], int], orders: list[Output]) -> None:
        self.pubend = pubend
        self.epoch_sent = 0
        self._next_epoch = next_epoch
        self._orders = orders
        self._wanted = ReducedSet()
        self._since: dict[Filter, int] = {}
        self._unsent: dict[Filter, None] = {}  # members that no interest we sent covers
        self._wide_since = 0  # we ask for everything since this epoch; 0: we do not
        self._sending = False  # the parent was sent an interest that is not empty
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
        """Return the epoch since which every interest we sent covers a filter; None if what was sent last does not."""
        known = self._since.get(filter_)
        if known is not None or filter_ in self._wanted:
            return known
        if self._wide_since:
            return self._wide_since
        member = self._wanted.covering(filter_)
        return None if member is None else self._since.get(member)

    # --- the parent ---

    def end(self, parent: LinkId) -> None:
        """Take the interest back from a parent that is one no longer."""
        if self._sending:
            self._orders.append(Send(parent, next(interest_packets(self.pubend, self._next_epoch(), [], [], full=True))))

    def forget_parent(self) -> None:
        self._sending = False
        self._resend_at, self._resends = float("inf"), 0

    def refresh(self, parent: LinkId, now: float, *, anew: bool = False) -> None:
        """Send the parent what changed, under a new epoch; everything, when it is new or was silent too long."""
        changes = self._wanted.take_changes()
        if not len(self._wanted) and not self._sending:
            return
        if changes is None or anew or not self._sending:
            add, remove, full = list(self._wanted.maximal()), [], True
        elif changes[0] or changes[1]:
            add, remove, full = *changes, False
        else:
            self._date(self.epoch_sent)  # what is new came below something that is asked for already
            return
        epoch = self.epoch_sent = self._next_epoch()
        if not self._wanted.is_wide:
            self._wide_since = 0
        elif not self._wide_since:
            self._wide_since = epoch
        self._date(epoch)
        self._sending = len(self._wanted) > 0
        self._resend_at = now + RESEND_S * (1 << self._resends) if self._sending else float("inf")
        self._orders.extend(Send(parent, packet) for packet in interest_packets(self.pubend, epoch, add, remove, full=full))

    def answered(self, epoch: int, now: float) -> None:
        """The parent answered: it is at work, and has only to answer what came later."""
        self._resends = 0
        self._resend_at = float("inf") if epoch == self.epoch_sent else now + RESEND_S

    def send_again(self, parent: LinkId, now: float) -> None:
        """Send everything again if the parent has answered nothing for long; each time it waits longer."""
        if now >= self._resend_at:
            self._resends = min(self._resends + 1, RESEND_DOUBLINGS_MAX)
            self.refresh(parent, now, anew=True)

    def _date(self, epoch: int) -> None:
        for filter_ in self._unsent:
            self._since[filter_] = epoch
        self._unsent.clear()
