"""Services beside the overlay, on the broker's own port.

The broker's listener takes the frames of every connection; those whose method ids a service claims go to that service, which
answers through `send`. The runtime knows services only by these protocols: they sit above it and are handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from postroad.core.protocol.rights import Rights
from postroad.security.credentials import Credentials
from postroad.security.gate import Gate

Answer: TypeAlias = Callable[[msgspec.Struct, int], bool]
"""Send an answer with its packet id; False when the connection is gone."""


class ServiceConnection(Protocol):
    """The requests of one connection to a service."""

    @property
    def bytes(self) -> int:
        """Bytes of the requests under way."""

    @property
    def full(self) -> bool:
        """As many requests are under way as one connection may have: it is not read until `on_room` is called."""

    @property
    def identified(self) -> bool:
        """The service knows who is at the other end."""

    def receive(self, packet: msgspec.Struct, packet_id: int, size: int) -> None:
        """Take a request of so many bytes; it is answered in its own time."""

    def set_congested(self, congested: bool) -> None:
        """The connection does not take its output, or takes it again: meanwhile nothing large should be made ready for it."""

    def lost(self) -> None:
        """The connection is gone."""


class ServiceHost(Protocol):
    """What a service may know of the broker it runs in."""

    @property
    def url(self) -> str:
        """Where this broker listens."""

    @property
    def credentials(self) -> Credentials:
        """What a client of the broker's own uses to connect to it."""

    @property
    def gate(self) -> Gate:
        """Who decides who may do what, for services with a port of their own."""

    def stats(self) -> dict[str, object]:
        """How the broker is."""


class Service(Protocol):
    """Something a broker serves beside publish and subscribe."""

    @property
    def methods(self) -> frozenset[int]:
        """The method ids it answers, whoever sends them and whether they may or not."""

    async def start(self, host: ServiceHost) -> None:
        """Begin to serve, once the broker listens."""

    async def stop(self) -> None:
        """Give up what is under way and close what is open."""

    def open(self, send: Answer, on_room: Callable[[], None], rights: Rights) -> ServiceConnection:
        """Begin to serve a connection whose other end has these permissions."""
