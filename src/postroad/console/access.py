"""The way into the console: its key, and the names under which browsers may reach it.

A browser enters with a key: the console's own one, which is in a file that only the operator can read, or a token of an identity
where identities are configured. For the key it gets a session cookie (`security/http_sessions.py`). `HttpOnly` keeps that from
scripts, `SameSite=Strict` and the check of `Origin` keep it from other sites, the check of `Host` from names that somebody else
has pointed at this machine.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

COOKIE: Final = "__Host-postroad"
KEY_NAME: Final = "console.key"  # a file in the broker's directory
ADDRESS_NAME: Final = "console.address"
KEY_MODE: Final = 0o600


def allowed_hosts(address: str, port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the values of `Host` that name this console."""
    names = {"127.0.0.1", "localhost", "[::1]", *more}
    if address not in ("", "0.0.0.0", "::"):  # noqa: S104  # compared, not bound
        names.add(f"[{address}]" if ":" in address else address)
    return frozenset(f"{name}:{port}" for name in names) | frozenset(more)


def read_or_make_key(directory: Path) -> str:
    """Return the console's key, and make it the first time."""
    path = directory / KEY_NAME
    try:
        key = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        key = ""
    if not key:
        key = secrets.token_urlsafe(32)
        _write_secret(path, key)
    return key


def write_address(directory: Path, address: str) -> None:
    """Leave the address, with the key, where `postroad console` finds it."""
    _write_secret(directory / ADDRESS_NAME, address)


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # the mode counts for new files only
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, KEY_MODE)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text + "\n")
