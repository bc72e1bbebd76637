"""Decides for each connection of a broker who is at the other end, and what it may do.

- Without TLS and identities everybody may do everything. Such a broker listens on loopback only (`check_exposure`).
- With a file of identities, a client proves who it is by a token or by a certificate that names it.
- With TLS, another broker has a certificate that names it. A broker's own certificate is also taken for its own client, which
  feeds bound queues.

The file of identities is read again when it has changed (`refresh`), and the certificates on SIGHUP (`reload`). A file that
cannot be read changes nothing: the last good one stays in force.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from postroad.core.protocol.rights import OPEN, Rights
from postroad.errors import CertificateError, ExposedError, IdentitiesError, PlainTokenError, UnauthenticatedError
from postroad.security.identities import Identities, Identity, read_identities
from postroad.security.tls import PeerName, TlsFiles, check_broker, client_context, dialling_context, listening_context

BROKER_OWNER: Final = "$broker"
"""Who owns what the brokers themselves create. No identity can have this name."""
LINK_TLS: Final = "TLSv1.3"


@dataclass(frozen=True, slots=True)
class Trust:
    """What an operator configured: `tls` and `identities` guard a port, `insecure` leaves it open on purpose."""

    tls: TlsFiles | None = None
    identities: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A client that may connect. `identity` is None where nobody has to prove who he is."""

    rights: Rights
    identity: Identity | None = None


class Gate:
    """The door of one broker. Raises `SecurityError` for whoever may not come in."""

    def __init__(self, trust: Trust, broker: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        if trust.identities is not None and trust.tls is None:
            raise ExposedError("identities need TLS: a token must not travel in the clear; set `certificate`, `key`, `authority`")
        self.trust: Final = trust
        self.broker: Final = broker
        self.refusals = 0  # connections that could not prove who they are
        self.listening: ssl.SSLContext | None = None  # for those who connect to us
        self.dialling: ssl.SSLContext | None = None  # for links to other brokers
        self.own: ssl.SSLContext | None = None  # for our own client
        self.identities = Identities()
        self._now: Final = now
        self._seen: tuple[int, ...] = ()
        self.reload()
        if trust.identities is not None:
            self.identities = read_identities(trust.identities)
            self._seen = _version_of(trust.identities)

    @property
    def guarded(self) -> bool:
        """Tell whether clients must prove who they are."""
        return self.trust.identities is not None

    def check_exposure(self, addresses: dict[str, str]) -> None:
        """Refuse addresses (by what listens there) that others can reach, unless this broker is guarded."""
        if self.trust.insecure or (self.guarded and len(self.identities)):
            return
        for what, address in addresses.items():
            check_exposure(what, address, guarded=False, insecure=False)

    # --- who is there ----------------------------------------------------------------------------------------------------

    def admit_client(self, name: PeerName, token: str, *, encrypted: bool) -> Admitted:
        """Return what a client may do: its token counts, else its certificate."""
        try:
            return self._admit_client(name, token, encrypted=encrypted)
        except Exception:
            self.refusals += 1
            raise

    def _admit_client(self, name: PeerName, token: str, *, encrypted: bool) -> Admitted:
        if token and not encrypted:
            raise PlainTokenError("a token came over a connection without TLS; revoke it, and use a postroads:// address")
        if not self.guarded:
            return Admitted(OPEN)
        now = self._now()
        if token:
            return self._admit(self.identities.of_token(token, now))
        if name.broker == self.broker:
            return Admitted(Rights(BROKER_OWNER))
        identity = self.identities.of_name(name.client, now) if name.client else None
        if identity is None:
            raise UnauthenticatedError("this broker serves only clients with a valid token, or a certificate of a known identity")
        return self._admit(identity)

    def _admit(self, identity: Identity) -> Admitted:
        return Admitted(self.identities.rights_of(identity.name), identity)

    def admit_broker(self, name: PeerName, broker: int, version: str) -> None:
        """Refuse a peer that says it is a broker and has no certificate for that, or a TLS that is too old."""
        if self.trust.tls is None:
            return
        self.refusals += 1
        check_broker(name, broker)
        if version != LINK_TLS:
            raise CertificateError(f"links between brokers use {LINK_TLS}, and this one uses {version or 'no TLS'}")
        self.refusals -= 1

    def still_holds(self, identity: Identity) -> bool:
        """Tell whether an identity was neither revoked nor changed, and has not expired."""
        return self.identities.by_name.get(identity.name) == identity and not identity.expired(self._now())

    # --- files -----------------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Read the certificates; connections that exist keep theirs."""
        tls = self.trust.tls
        if tls is not None:
            made = listening_context(tls), dialling_context(tls), client_context(tls.authority, tls.certificate, tls.key)
            self.listening, self.dialling, renewed = made
            if self.own is None:
                self.own = renewed
            else:  # our own clients keep their context for ever, and connect again with what is in it
                self.own.load_verify_locations(tls.authority)
                self.own.load_cert_chain(tls.certificate, tls.key)

    def refresh(self) -> bool:
        """Read the file of identities again if it has changed; tell whether it has. Raise what is wrong with it, once."""
        path = self.trust.identities
        if path is None:
            return False
        version = _version_of(path)
        if version == self._seen:
            return False
        self._seen = version
        self.identities = read_identities(path)
        return True


def check_exposure(what: str, address: str, *, guarded: bool, insecure: bool) -> None:
    """Refuse an address that others can reach, unless it is guarded, or the operator wants it open."""
    if not guarded and not insecure and not is_loopback(host_of(address)):
        raise ExposedError(
            f"{what} would listen on {address}, where others can reach it, without TLS and identities: set `certificate`, "
            "`key`, `authority` and `identities` with at least one identity (docs/howto/secure.md), listen on 127.0.0.1, or "
            "write `insecure = true` under [security]"
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host: each of its addresses is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None) if host else []
    except OSError:
        return False
    addresses = [str(each[4][0]).partition("%")[0] for each in found]
    return bool(addresses) and all(ipaddress.ip_address(each).is_loopback for each in addresses)


def host_of(address: str) -> str:
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _version_of(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116  # one call
    except OSError as error:
        raise IdentitiesError(f"{path} cannot be read: {error.strerror or error}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size
