"""What a client proves who it is with, and which brokers it trusts.

A program passes `tls` and `token` to `connect`. Where it passes none, the environment counts, so that no secret stands on a
command line: `POSTROAD_CA`, `POSTROAD_CERTIFICATE`, `POSTROAD_KEY` name files, `POSTROAD_TOKEN` is a token and
`POSTROAD_TOKEN_FILE` a file with one.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from postroad.errors import CertificateError, PlainTokenError, TokenError
from postroad.security.tls import PeerName, client_context
from postroad.security.tokens import CHARACTERS_MAX

CA: Final = "POSTROAD_CA"
CERTIFICATE: Final = "POSTROAD_CERTIFICATE"
KEY: Final = "POSTROAD_KEY"
TOKEN: Final = "POSTROAD_TOKEN"  # noqa: S105  # the name of a variable
TOKEN_FILE: Final = "POSTROAD_TOKEN_FILE"  # noqa: S105  # the same


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files for TLS. Without an `authority`, those of the operating system count, and the host name is compared.

    With one, the broker must have a certificate that the authority issued to a broker (`postroad ca issue broker`).

    ```python
    tls = postroad.ClientTls(authority="ca.pem", certificate="billing.pem", key="billing.key")
    ```

    Give it to `connect` as `tls=`.
    """

    authority: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files. Return a context of the `ssl` module."""
        return client_context(_path(self.authority), _path(self.certificate), _path(self.key))


Tls: TypeAlias = ClientTls | ssl.SSLContext | str | Path | None
"""How a program says which brokers it trusts: files, a context of its own, or the path of an authority's certificate."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a connection uses. `context` is None for connections without TLS; neither field is ever shown."""

    context: ssl.SSLContext | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)

    def check_server(self, name: PeerName, broker: int | None = None) -> None:
        """Refuse the other end if its certificate does not name a broker, or not this one, where no host name is compared."""
        if self.context is None or self.context.check_hostname:
            return
        if not name.broker or broker not in (None, name.broker):
            wanted = "a broker" if broker is None else f"broker {broker}"
            held = f"broker {name.broker}" if name.broker else f"client {name.client!r}" if name.client else "nobody"
            raise CertificateError(f"the certificate of the other end names {held}, not {wanted}")


OPEN: Final = Credentials()


def credentials(*, encrypted: bool, tls: Tls = None, token: str | None = None) -> Credentials:
    """Return what a client was given, or else what the environment says. `encrypted`: the address begins with postroads://."""
    if not encrypted:
        if token or tls is not None:
            raise PlainTokenError(
                "a token or TLS was given for an address without TLS; write postroads:// instead of postroad://"
            )
        return OPEN
    found = _token(os.environ) if token is None else token
    if len(found) > CHARACTERS_MAX or not found.isascii() or not found.isprintable():
        raise TokenError
    return Credentials(_context(tls), found)


def _context(tls: Tls) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    if isinstance(tls, str | Path):
        return ClientTls(tls).context()
    return (tls or ClientTls(*(os.environ.get(each) or None for each in (CA, CERTIFICATE, KEY)))).context()


def _token(environment: Mapping[str, str]) -> str:
    text = environment.get(TOKEN, "")
    path = environment.get(TOKEN_FILE, "")
    if text or not path:
        return text.strip()
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CertificateError(f"the file of the token, {path}, cannot be read: {type(error).__name__}") from error


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
