"""TLS by the standard `ssl` module: one context for what connects to us, one for what we dial, and the names in certificates.

A certificate names its peer by one URI in its subject alternative name, compared as a whole: `postroad://broker/7` or
`postroad://client/shop`. Host names are not compared for brokers: an address may change, an id may not.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from postroad.errors import CertificateError

BROKER_URI: Final = "postroad://broker/"
CLIENT_URI: Final = "postroad://client/"
HANDSHAKE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PeerName:
    """Whom a verified certificate names; both are empty if it names nobody we know how to read."""

    broker: int = 0
    client: str = ""


def broker_uri(broker: int) -> str:
    return f"{BROKER_URI}{broker}"


def client_uri(name: str) -> str:
    return f"{CLIENT_URI}{quote(name, safe='@')}"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a broker's TLS is made of. `authority` signs the certificates of brokers and of clients that have one."""

    certificate: Path
    key: Path
    authority: Path


def listening_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context of a broker's port. A client needs no certificate; a broker is refused later without one."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.certificate, files.key, files.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def dialling_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context for links that we dial: TLS 1.3, both sides with certificates, the name checked by `check_broker`."""
    context = _load(_dialling(), files.certificate, files.key, files.authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def client_context(authority: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Make the context of a client: it trusts the given authority, or those of the operating system."""
    if authority is not None:  # a private authority names brokers, not hosts
        return _load(_dialling(), certificate, key, authority)
    # Reading the authorities of the operating system takes tens of milliseconds: only for those who need them.
    return _load(ssl.create_default_context(ssl.Purpose.SERVER_AUTH), certificate, key, None)


def _dialling() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(context: ssl.SSLContext, certificate: Path | None, key: Path | None, authority: Path | None) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    for path in (certificate, key, authority):
        if path is not None and not path.is_file():
            raise CertificateError(f"there is no file {path}")
    try:
        if authority is not None:
            context.load_verify_locations(authority)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        names = ", ".join(str(path) for path in (certificate, key, authority) if path is not None)
        raise CertificateError(f"cannot use {names}: {error}") from error
    return context


def _no_password() -> bytes:
    """Keep OpenSSL from asking at the terminal for the password of an encrypted key; such a key is refused."""
    return b""


def name_in(tls: ssl.SSLObject | None) -> PeerName:
    """Return whom the certificate at the other end of a connection names; it was verified by the handshake."""
    certificate: Any = None if tls is None else tls.getpeercert()
    if not certificate:
        return PeerName()
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    if len(uris) != 1:
        return PeerName()
    uri = uris[0]
    if uri.startswith(BROKER_URI):
        number = uri.removeprefix(BROKER_URI)
        return (
            PeerName(broker=int(number))
            if number.isascii() and number.isdigit() and uri == broker_uri(int(number))
            else PeerName()
        )
    name = unquote(uri.removeprefix(CLIENT_URI)) if uri.startswith(CLIENT_URI) else ""
    return PeerName(client=name) if name and uri == client_uri(name) else PeerName()


def check_broker(name: PeerName, broker: int) -> None:
    """Refuse a peer whose certificate does not name the broker it says it is."""
    if name.broker != broker:
        held = (
            f"names broker {name.broker}"
            if name.broker
            else f"names client {name.client!r}"
            if name.client
            else "names no broker"
        )
        raise CertificateError(f"a peer says it is broker {broker}, but its certificate {held}")
