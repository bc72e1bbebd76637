"""The filters of this broker's own subscribers, each once; every stream includes them in its interest."""

from __future__ import annotations

from collections.abc import Iterable

from postroad.core.broker.views import RelayedStreams
from postroad.core.filters.filter import Filter


class LocalFilters:
    """The filters of this broker's subscriptions, with reference counts. Every stream asks its parent for all of them."""

    def __init__(self, streams: RelayedStreams) -> None:
        self._streams = streams
        self._counts: dict[Filter, int] = {}  # how many subscriptions have a filter
        self._told: dict[int, None] = {}  # the streams that were given the filters

    def add(self, filter_: Filter, now: float) -> None:
        """Add the filter of a new subscription to the interest of every stream."""
        self.tell_new_streams(now)
        count = self._counts.get(filter_, 0)
        self._counts[filter_] = count + 1
        if count == 0:
            for pubend in self._told:
                self._streams[pubend].want((filter_,), (), now)

    def tell_new_streams(self, now: float) -> None:
        """Give the filters to streams that appeared since the last call."""
        if len(self._told) == len(self._streams):
            return
        for pubend, stream in self._streams.items():
            if pubend not in self._told:
                self._told[pubend] = None
                stream.want(tuple(self._counts), (), now)

    def remove(self, filters: Iterable[Filter], now: float) -> None:
        """Remove the filters of subscriptions that end from every interest, unless another subscription has the same filter."""
        went: list[Filter] = []
        for filter_ in filters:
            count = self._counts.pop(filter_)
            if count > 1:
                self._counts[filter_] = count - 1
            else:
                went.append(filter_)
        if went:
            for pubend in self._told:
                self._streams[pubend].want((), went, now)
