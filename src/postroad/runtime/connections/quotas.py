"""What one address and one identity may use of a broker: connections, connections not yet identified, published bytes.

An address counts from the moment its connection is accepted, so it cannot take the room of others before it says who it is. An
identity counts over all its connections, also one after the other. What each one published fills a bucket of one second of its
rate: who fills it is not read until it has room again, and everybody else goes on.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from postroad.errors import TooManyConnectionsError
from postroad.runtime.config import Limits


def address_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the network of 64 bits, since one machine may use all of it."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


@dataclass(slots=True)
class AddressUse:
    connections: int = 0
    handshakes: int = 0  # connections that have not said who they are


@dataclass(slots=True)
class IdentityUse:
    connections: int = 0
    published_bytes: int = 0
    held_to_rate: int = 0  # times that a connection was not read because of the rate
    level: float = 0.0  # bytes in the bucket that were published and not yet passed
    level_at: float = 0.0


class Quotas:
    """Counts; every `take` is undone by its counterpart."""

    def __init__(self, limits: Limits) -> None:
        self._limits: Final = limits
        self.addresses: Final[dict[str, AddressUse]] = {}
        self.identities: Final[dict[str, IdentityUse]] = {}
        self.refused_by_address = 0
        self.refused_by_identity = 0

    # --- addresses -------------------------------------------------------------------------------------------------------

    def check_address(self, host: str) -> None:
        """Refuse one more connection of an address that has as many as it may."""
        use, limits = self.addresses.get(host, AddressUse()), self._limits
        if use.connections >= limits.connections_per_address_max or use.handshakes >= limits.handshakes_per_address_max:
            self.refused_by_address += 1
            raise TooManyConnectionsError(
                f"{use.connections} connections from this address, {use.handshakes} of them unidentified"
            )

    def connected(self, host: str) -> None:
        use = self.addresses.setdefault(host, AddressUse())
        use.connections += 1
        use.handshakes += 1

    def known(self, host: str) -> None:
        """Note that a connection of this address has said who it is."""
        self.addresses[host].handshakes -= 1

    def disconnected(self, host: str, *, known: bool) -> None:
        use = self.addresses[host]
        use.connections -= 1
        use.handshakes -= not known
        if not use.connections:
            del self.addresses[host]

    # --- identities ------------------------------------------------------------------------------------------------------

    def entered(self, identity: str) -> None:
        """Count a connection of an identity, or refuse it."""
        use = self.identities.setdefault(identity, IdentityUse())
        if use.connections >= self._limits.connections_per_identity_max:
            self.refused_by_identity += 1
            raise TooManyConnectionsError(f"identity {identity!r} has {use.connections} connections")
        use.connections += 1

    def left(self, identity: str) -> None:
        use = self.identities[identity]
        use.connections -= 1  # its bucket stays: who connects again has no new one

    def published(self, identity: str, size: int, now: float) -> float:
        """Count what an identity publishes; return for how many seconds the connection it came by is not to be read."""
        use, rate = self.identities[identity], self._limits.publish_bytes_per_s_per_identity
        use.published_bytes += size
        use.level = max(0.0, use.level - (now - use.level_at) * rate) + size
        use.level_at = now
        wait_s = use.level / rate - 1.0
        if wait_s <= 0.0:
            return 0.0
        use.held_to_rate += 1
        return wait_s

    def stats(self) -> dict[str, object]:
        return {
            "addresses": len(self.addresses),
            "connections_refused_by_address": self.refused_by_address,
            "connections_refused_by_identity": self.refused_by_identity,
            "limits": {name: getattr(self._limits, name) for name in self._limits.__struct_fields__},
        }

    def by_identity(self) -> dict[str, dict[str, int]]:
        return {
            name: {"connections": use.connections, "published_bytes": use.published_bytes, "held_to_rate": use.held_to_rate}
            for name, use in self.identities.items()
        }
