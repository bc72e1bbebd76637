"""Costly filters are prepared in a thread, before the machine takes the packet that brings them.

A filter of thousands of conditions takes a hundred milliseconds to parse, to bring to normal form and to compile. On the event
loop that would hold up everybody. In a thread it only takes turns with the loop: both need the interpreter's lock, which changes
hands every `SWITCH_S` once the thread was started.

A connection has one packet at a time in the thread, first come, first served: one that sends many costly filters waits behind the
others', and not they behind its. Order: nothing of a client overtakes a packet that waits, and the client is not read meanwhile.
A link goes on: only its other packets with filters wait, since knowledge has no order among them. It is not read when more than
`WAITING_MAX` packets wait.

What a filter is does not depend on who prepared it: the machine finds the prepared one where it looks for parsed ones.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from postroad.core.batch.batch import Batch
from postroad.core.filters.filter import Filter
from postroad.core.protocol.admission import Advertise, Advertisements, Decision, Reserve, Verdict
from postroad.core.protocol.packets import CatchUp, Interest, Packet, ReadRange, Subscribe
from postroad.core.protocol.rights import EVERYTHING, OPEN, Rights
from postroad.errors import FilterError
from postroad.runtime.connections.peer import Peer
from postroad.runtime.worker import Worker
from postroad.transport.channel import FILTER
from postroad.wire.packets.session import Role

log = logging.getLogger("postroad.preparing")

COSTLY_CHARACTERS: Final = 512  # of the unknown filters in one packet: about a millisecond of work
WAITING_MAX: Final = 64  # packets of one link
AT_ONCE: Final = 8  # packets that are processed in one turn once their filters are there
SWITCH_S: Final = 0.0005
WORK_S: Final = 0.0003
PAUSE_S: Final = 0.001

_WAITS: Final = Interest | CatchUp | Reserve | Verdict | Decision | Advertisements  # behind filters of their link
ResultT = TypeVar("ResultT")
Prepared: TypeAlias = list[tuple[str, Filter | FilterError]]


class PreparationHost(Protocol):
    """Who takes the packets."""

    def knows_filter(self, text: str) -> bool:
        """Tell whether a filter is parsed already."""

    def remember_filter(self, text: str, known: Filter | FilterError) -> None:
        """Take over a filter that was prepared, or why it cannot be one."""

    def take_packet(self, peer: Peer, packet: Packet, batch: Batch | None, packet_id: int) -> None:
        """Process a packet now."""


class Waiting(NamedTuple):
    packet: Packet
    batch: Batch | None
    packet_id: int


class Preparation:
    """The packets that wait for their filters, by connection."""

    def __init__(self, host: PreparationHost, loop: asyncio.AbstractEventLoop) -> None:
        self.prepared = 0  # filters
        self._host: Final = host
        self._loop: Final = loop
        self._waiting: dict[int, deque[Waiting]] = {}
        self._worker: Worker | None = None
        self._switch_s = 0.0  # as it was before

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def keep(self, peer: Peer, packet: Packet, batch: Batch | None, packet_id: int) -> bool:
        """Keep a packet until its filters are prepared; False: it is to be processed now."""
        waiting = self._waiting.get(peer.link)
        if waiting is None:
            if not self._costly(packet, _rights(peer)):
                return False
            waiting = self._waiting[peer.link] = deque()
        elif peer.role is Role.BROKER and not isinstance(packet, _WAITS):
            return False
        waiting.append(Waiting(packet, batch, packet_id))
        if len(waiting) == 1:
            self._begin(peer, self._costly(packet, _rights(peer)))
        if peer.role is Role.CLIENT or len(waiting) >= WAITING_MAX:
            peer.channel.pause(FILTER)
        return True

    def forget(self, peer: Peer) -> None:
        """Drop what a connection that ended has sent."""
        self._waiting.pop(peer.link, None)

    async def stop(self) -> None:
        if self._worker is not None:
            self._waiting.clear()
            sys.setswitchinterval(self._switch_s)
            await asyncio.to_thread(self._worker.stop)
            self._worker = None

    def _costly(self, packet: Packet, rights: Rights) -> list[str]:
        """Return the filters of a packet that are to be prepared; none if that is quick."""
        texts, key = filters_of(packet), rights.filter_key if _narrows(rights) else str
        if sum(map(len, map(key, texts))) < COSTLY_CHARACTERS:
            return []
        unknown = [text for text in dict.fromkeys(texts) if not self._host.knows_filter(key(text))]
        return unknown if sum(map(len, map(key, unknown))) >= COSTLY_CHARACTERS else []

    def _begin(self, peer: Peer, texts: list[str]) -> None:
        if self._worker is None:
            self._worker = Worker(self._loop, "filters")
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(min(SWITCH_S, self._switch_s))

        def failed(error: Exception) -> None:
            log.error("filters of %r could not be prepared", peer, exc_info=error)
            self._go_on(peer)  # the machine meets the same error, and limits it to what it concerns

        def done(prepared: Prepared) -> None:
            for text, known in prepared:
                self._host.remember_filter(text, known)
            self.prepared += len(prepared)
            self._go_on(peer)

        rights = _rights(peer)
        self._worker.submit(lambda: prepare_all(texts, rights), done, failed)

    def _go_on(self, peer: Peer) -> None:
        """Process the packet whose filters are there, and those behind it up to the next costly one."""
        waiting = self._waiting.get(peer.link)
        if not waiting:
            return
        for _ in range(AT_ONCE):
            self._host.take_packet(peer, *waiting.popleft())
            if peer.link not in self._waiting:
                return  # it was closed for what it sent
            if not waiting:
                del self._waiting[peer.link]
                peer.channel.resume(FILTER)
                return
            texts = self._costly(waiting[0].packet, _rights(peer))
            if texts:
                self._begin(peer, texts)
                return
        self._loop.call_soon(self._go_on, peer)


def filters_of(packet: Packet) -> Sequence[str]:
    """Return the filters in a packet."""
    match packet:
        case Subscribe() | ReadRange() | CatchUp():
            return (packet.filter,)
        case Interest():
            return [*packet.remove, *packet.add]
        case Reserve() | Advertise():
            return (packet.filter,)
        case Advertisements():
            return [entry.filter for entry in packet.add]
        case _:
            return ()


def _rights(peer: Peer) -> Rights:
    return OPEN if peer.admitted is None else peer.admitted.rights


def _narrows(rights: Rights) -> bool:
    """Tell whether a client gets only a part of what its filters ask for."""
    return rights.subscribe is not None and rights.subscribe is not EVERYTHING


def prepare_all(texts: Sequence[str], rights: Rights = OPEN) -> Prepared:
    """Parse filters and work out all that comparing and evaluating them needs, with pauses."""
    return work_with_pauses(lambda: _prepare_each(texts, rights))


def work_with_pauses(work: Callable[[], ResultT]) -> ResultT:
    """Do some work in a thread, such that the event loop hardly notices."""
    sys.setprofile(_Pauses())
    try:
        return work()
    finally:
        sys.setprofile(None)


class _Pauses:
    """Called at each call and return in the thread: after `WORK_S` of work it pauses, so that the loop runs freely in between.

    Without, the loop waits `SWITCH_S` for the interpreter's lock each time it comes back from the operating system.
    """

    def __init__(self) -> None:
        self._until = monotonic() + WORK_S

    def __call__(self, frame: object, event: str, argument: object) -> None:
        del frame, event, argument
        if monotonic() >= self._until:
            sleep(PAUSE_S)
            self._until = monotonic() + WORK_S


def _prepare_each(texts: Sequence[str], rights: Rights) -> Prepared:
    prepared: Prepared = []
    for text in texts:
        key = text
        try:
            filter_ = Filter(text)
            filter_.prepare()
            prepared.append((key, filter_))
            if _narrows(rights):
                key = rights.filter_key(text)
                permitted = rights.subscribable(filter_)
                permitted.prepare()
                prepared += [(key, permitted), (str(permitted), permitted)]
        except FilterError as error:
            prepared.append((key, error.with_traceback(None)))
    return prepared
