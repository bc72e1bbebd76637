"""Where brokers are: `postroad://host:port,host2:port2` or `host:port`, or several such; `postroads://host:port` for TLS.

Without an address, the environment variable `POSTROAD_URL` counts, and without that the broker on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

from postroad.errors import InvalidValueError

SCHEME: Final = "postroad://"
SCHEME_TLS: Final = "postroads://"
DEFAULT_PORT: Final = 7400
DEFAULT_URL: Final = f"{SCHEME}127.0.0.1:{DEFAULT_PORT}"
URL_VARIABLE: Final = "POSTROAD_URL"


class Address(NamedTuple):
    host: str
    port: int
    encrypted: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def default_url() -> str:
    """Return the address to use when none is given."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def parse_addresses(urls: str | Iterable[str] | None) -> list[Address]:
    """Return the addresses in the order they should be tried."""
    if urls is None:
        urls = default_url()
    texts = [urls] if isinstance(urls, str) else list(urls)
    addresses = [address for text in texts for address in _parse(text)]
    if not addresses:
        raise InvalidValueError("give the address of at least one broker")
    return addresses


def _parse(url: str) -> Iterable[Address]:
    encrypted = url.startswith(SCHEME_TLS)
    if "://" in url and not encrypted and not url.startswith(SCHEME):
        raise InvalidValueError(
            f"the address of a broker has the form postroad://host:port, or postroads://host:port with TLS, not {url[:200]!r}"
        )
    for part in url.removeprefix(SCHEME_TLS if encrypted else SCHEME).rstrip("/").split(","):
        yield _address(part, url, encrypted=encrypted)


def _address(part: str, url: str, *, encrypted: bool) -> Address:
    if part.startswith("[") and "]" in part:
        host, _, rest = part[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = part.partition(":")
    if not host or (port and (not port.isdigit() or not 0 < int(port) <= 0xFFFF)):
        raise InvalidValueError(f"{part!r} in {url[:200]!r} is not host:port")
    return Address(host, int(port) if port else DEFAULT_PORT, encrypted)
