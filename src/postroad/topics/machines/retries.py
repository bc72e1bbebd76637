"""Requests a machine waits an answer for: 100 ms, three tries, then given up (section 3 of the seed)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Generic, TypeVar

from postroad.topics.machines.options import CallOptions
from postroad.topics.machines.orders import Ask, Parcel

TagT = TypeVar("TagT")


@dataclass(slots=True)
class _Call(Generic[TagT]):
    ask: Ask
    tag: TagT
    tries: int
    due: float
    timeout_s: float


class Calls(Generic[TagT]):
    """`tag` is whatever the machine needs when the answer comes, or does not."""

    def __init__(self, options: CallOptions) -> None:
        self._options = options
        self._open: dict[int, _Call[TagT]] = {}
        self._due: list[tuple[float, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def start(
        self, address: bytes, payload: bytes, tag: TagT, *, now: float, parcel: Parcel | None = None, factor: float = 1.0
    ) -> Ask:
        """Begin a call; the returned order is its first try. `factor` stretches the time-out of a repeated round."""
        self._last += 1
        ask = Ask(address, self._last, payload, parcel)
        timeout = self._options.timeout_s(ask.size) * factor
        self._open[self._last] = _Call(ask, tag, 1, now + timeout, timeout)
        heapq.heappush(self._due, (now + timeout, self._last))
        return ask

    def resolve(self, request: int) -> TagT | None:
        """Take note of an answer: give the tag once; None for an answer nobody waits for."""
        call = self._open.pop(request, None)
        return None if call is None else call.tag

    def cancel_all(self) -> None:
        self._open.clear()
        self._due.clear()

    def wake(self, now: float) -> tuple[list[Ask], list[TagT]]:
        """Return what must be sent again and what is given up."""
        again: list[Ask] = []
        given_up: list[TagT] = []
        while self._due and self._due[0][0] <= now:
            due, request = heapq.heappop(self._due)
            call = self._open.get(request)
            if call is None or call.due != due:
                continue
            if call.tries >= self._options.tries:
                del self._open[request]
                given_up.append(call.tag)
                continue
            call.tries += 1
            call.due = now + call.timeout_s
            heapq.heappush(self._due, (call.due, request))
            again.append(call.ask)
        return again, given_up

    def delayed(self, seconds: float) -> None:
        """Give every open call that much longer: the disk held its request back, not the peer."""
        for call in self._open.values():
            call.due += seconds
        self._due = [(call.due, request) for request, call in self._open.items()]
        heapq.heapify(self._due)

    def deadline(self) -> float | None:
        while self._due:
            due, request = self._due[0]
            call = self._open.get(request)
            if call is not None and call.due == due:
                return due
            heapq.heappop(self._due)
        return None
