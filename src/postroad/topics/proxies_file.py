"""The configuration file of the topics service: the address of each proxy, one per line (section 5.1 of the seed).

    # our proxies, in the order to try them
    127.0.0.1:7101
    127.0.0.1:7102

Servers read every address of the file, clients try them in its order. Empty lines and what follows a `#` do not count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from postroad.errors import ConfigError, InvalidValueError
from postroad.topics.sockets import endpoint

PROXIES_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 1 << 20


def load_proxies(path: str | Path) -> tuple[str, ...]:
    """Return the addresses in a file, or raise `ConfigError` with the line that is wrong."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB; the file must have one address per line")
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        if len(address.split()) > 1:
            raise ConfigError(f"{path}: line {number}: {address!r}; the file must have one address per line")
        try:
            endpoint(address)
        except InvalidValueError as error:
            raise ConfigError(f"{path}: line {number}: {error}") from error
        if address in found:
            raise ConfigError(f"{path}: line {number}: {address} is already in line {found[address]}")
        found[address] = number
    if not found:
        raise ConfigError(f"{path}: the file names no proxy; write one address per line, for example 127.0.0.1:7101")
    if len(found) > PROXIES_MAX:
        raise ConfigError(f"{path}: {len(found)} proxies; at most {PROXIES_MAX} are allowed")
    return tuple(found)
