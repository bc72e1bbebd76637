"""The client's advertisements: said on every connection, again after each reconnect.

An advertisement is made on every link of the client, because what it publishes may go over any. The answer of the main
link counts for the application. A retryable refusal is repeated after a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postroad.core.protocol.admission import Advertise, AdvertiseAccepted, Unadvertise
from postroad.core.protocol.orders import LinkId
from postroad.core.protocol.packets import Packet
from postroad.core.session.events import AdvertisementAccepted, AdvertisementEnded, AdvertisementFailed, Event
from postroad.errors import PostroadError

Ask = Callable[[LinkId, Packet], int]


@dataclass(slots=True)
class _Advertised:
    """One advertisement of the application; its handle on the wire is its key."""

    packet: Advertise
    refusals: int = 0
    retry_at: float | None = None


class SessionAdvertisements:
    """All advertisements of a session. `ask` sends a request over a link and returns its packet id."""

    def __init__(self, ask: Ask, tell: Callable[[Event], None], delay: Callable[[int], float]) -> None:
        self._ask: Final = ask
        self._tell: Final = tell
        self._delay: Final = delay
        self._links: dict[LinkId, bool] = {}  # -> whether it is the main one
        self._made: dict[int, _Advertised] = {}
        self._asked: dict[int, int] = {}  # packet id on the main link -> key
        self._ending: dict[int, int] = {}  # the same, of withdrawals

    def begin(self, key: int, filter_text: str, millirate: int, name: str | None) -> None:
        """Advertise; `AdvertisementAccepted` or `AdvertisementFailed` follows."""
        self._made[key] = made = _Advertised(Advertise(key, filter_text, millirate, name))
        for link in self._links:
            self._send(link, key, made)

    def end(self, key: int, name: str | None = None) -> None:
        """Withdraw an advertisement, or a durable one by its name; `AdvertisementEnded` follows."""
        made = self._made.pop(key, None)
        if made is not None and name is None:
            name = made.packet.name
        main = next((link for link, is_main in self._links.items() if is_main), None)
        for link in self._links:
            if link != main:
                self._ask(link, Unadvertise(key))
        if main is None:
            self._tell(AdvertisementEnded(key))  # without a connection nothing is advertised, but a durable one
            return
        self._ending[self._ask(main, Unadvertise(key, name))] = key

    # --- links and answers ---

    def connected(self, link: LinkId, *, main: bool) -> None:
        self._links[link] = main
        for key, made in self._made.items():
            self._send(link, key, made)

    def disconnected(self, link: LinkId) -> None:
        if self._links.pop(link, False):
            self._asked.clear()
            for key in self._ending.values():
                self._tell(AdvertisementEnded(key))
            self._ending.clear()

    def accepted(self, message: AdvertiseAccepted, packet: int) -> None:
        key = self._asked.pop(packet, None)
        if key in self._made and key is not None:
            self._made[key].refusals = 0
            self._tell(AdvertisementAccepted(key, message.millirate))

    def withdrawn(self, packet: int) -> None:
        key = self._ending.pop(packet, None)
        if key is not None:
            self._tell(AdvertisementEnded(key))

    def refused(self, packet: int, error: PostroadError, now: float) -> None:
        ending = self._ending.pop(packet, None)
        if ending is not None:
            self._tell(AdvertisementEnded(ending, error))
        key = self._asked.pop(packet, None)
        made = self._made.get(key) if key is not None else None
        if key is None or made is None:
            return
        if error.retryable:
            made.retry_at = now + self._delay(made.refusals)
            made.refusals += 1
        else:
            del self._made[key]
            self._tell(AdvertisementFailed(key, error))

    def wake(self, now: float) -> None:
        for key, made in self._made.items():
            if made.retry_at is not None and made.retry_at <= now:
                for link, main in self._links.items():
                    if main:
                        self._send(link, key, made)

    def deadlines(self) -> list[float | None]:
        return [each.retry_at for each in self._made.values()]

    def _send(self, link: LinkId, key: int, made: _Advertised) -> None:
        made.retry_at = None
        packet = self._ask(link, made.packet)
        if self._links[link]:
            self._asked[packet] = key
