"""Reads the rate profile that `postroad pipeline rates` writes: what the publishers of a broker have published at most."""

from __future__ import annotations

from pathlib import Path

import msgspec

from postroad.errors import ConfigError


class _Entry(msgspec.Struct, frozen=True):
    """The part of an entry that admission control needs; `docs/reference/pipeline.md` has the whole schema."""

    broker: int
    publisher: int
    peak_1s: float


class _Profile(msgspec.Struct, frozen=True):
    version: int
    entries: tuple[_Entry, ...]


def publisher_rates(path: Path, broker: int) -> tuple[tuple[int, float], ...]:
    """Return the highest rate of each publisher of a broker, in messages per second."""
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=_Profile)
    except OSError as error:
        raise ConfigError(f"the rate profile {path} cannot be read: {error.strerror or error}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a rate profile: {error}") from error
    if profile.version != 1:
        raise ConfigError(f"{path} is a rate profile of version {profile.version}; this release reads version 1")
    rates: dict[int, float] = {}
    for entry in profile.entries:  # one entry for each value of an attribute, if the profile was made with --by
        if entry.broker == broker:
            rates[entry.publisher] = rates.get(entry.publisher, 0.0) + entry.peak_1s
    return tuple(sorted(rates.items()))
