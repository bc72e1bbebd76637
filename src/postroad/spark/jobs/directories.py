"""What data directories say beside logs and tracks: whose they are, and which durable subscriptions are at home there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from postroad.core.broker.subscribing.durable import DURABLE_KEY, Durables
from postroad.core.protocol.packets import pubend_broker
from postroad.errors import PostroadError
from postroad.storage.directory import METADATA_NAME, broker_of, logs_in
from postroad.storage.remote import path_of
from postroad.storage.sqlite.external_reader import copied_metadata
from postroad.storage.sqlite.metadata import UNREADABLE
from postroad.tracking.tap.recorder import name_subscriber


@dataclass(frozen=True, slots=True)
class DurableName:
    """A durable subscription as its home stores it, by its name in tracks; `cursors` and `starts` are ticks by pubend."""

    subscriber: str
    filter: str
    cursors: Mapping[int, int]
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A broker's data directory. `problem` says why its metadata cannot be read."""

    path: Path
    broker: int
    durables: tuple[DurableName, ...]
    problem: str = ""


def data_directories(sources: Sequence[str]) -> tuple[DataDirectory, ...]:
    """Look into the data directories that sources name: each itself, or those in it."""
    found: dict[Path, DataDirectory] = {}
    for source in sources:
        root = path_of(source).absolute()
        if not root.is_dir():
            continue
        for path in (root, *sorted(each for each in root.iterdir() if each.is_dir())):
            broker = _broker(path)
            if broker is not None and path not in found:
                found[path] = _look(path, broker)
    return tuple(found.values())


def _broker(path: Path) -> int | None:
    """Return whose directory it is: its file `format` says so, or else its logs."""
    try:
        broker = broker_of(path)
    except PostroadError:
        broker = None
    return broker if broker is not None else next((pubend_broker(pubend) for pubend in logs_in(path)), None)


def _look(path: Path, broker: int) -> DataDirectory:
    durables, problem = Durables(broker), ""
    try:
        with copied_metadata(path / METADATA_NAME) as metadata:
            for key, value in metadata.load():
                if key.startswith(DURABLE_KEY):
                    durables.load(key, value)
            damaged = [key for key in metadata.damaged() if key.startswith(DURABLE_KEY) or key == UNREADABLE]
            problem = f"{len(damaged)} records are damaged" if damaged else ""
    except (PostroadError, msgspec.MsgspecError) as error:
        problem = str(error)
    names = tuple(
        DurableName(name_subscriber(durable.name, broker, 0, 0), durable.filter, dict(durable.cursors), dict(durable.starts))
        for durable in durables.here.values()
        if durable.settled
    )
    return DataDirectory(path, broker, names, problem)
