"""The options of the Spark source and sink, checked before anything is done.

Spark hands options over as text, with names in any case. An option nobody knows is refused, with the one that was probably meant.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from glob import has_magic
from pathlib import Path
from typing import Final, Literal, TypeVar

from postroad.core.filters.filter import Filter
from postroad.errors import SparkOptionError
from postroad.storage.directory import FORMAT_NAME
from postroad.storage.remote import matching, path_of
from postroad.types import COUNTER_BITS

ValueT = TypeVar("ValueT")

READ_OPTIONS: Final = (
    "path",
    "paths",
    "url",
    "pubends",
    "filter",
    "pushdown",
    "onGap",
    "onMismatch",
    "inferRecords",
    "partitionBytes",
    "rowsPerPartition",
    "partitionSeconds",
    "timeoutSeconds",
    "startingTicks",
    "startingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "subscription",
    "onNewAttribute",
)
WRITE_OPTIONS: Final = ("url", "name", "batch", "timeoutSeconds")
OF_SPARK: Final = ("checkpointLocation", "queryName")
"""Options of Spark itself that it hands on to the source or sink."""

OF_A_TABLE: Final = "owner"
"""What Spark adds when a table is created."""

INFER_RECORDS: Final = 1000
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read and how. Either `directories` or `urls` is empty."""

    directories: tuple[Path, ...]
    urls: tuple[str, ...]
    pubends: tuple[int, ...] | None  # None: all there are
    filter: str
    pushdown: bool
    skip_gaps: bool
    null_mismatches: bool
    infer_records: int | None  # None: all
    partition_bytes: int | None  # None: as suits the machine and the log
    rows_per_partition: int | None
    partition_s: float | None
    timeout_s: float
    starting: Literal["earliest", "latest"] | dict[int, int]
    rows_per_trigger: int | None
    from_ms: int | None  # timestamps of the messages wanted: from_ms <= timestamp < until_ms
    until_ms: int | None
    partitions_min: int | None
    bytes_per_trigger: int | None
    subscription: str | None  # a durable one that keeps messages for a stream
    ignore_new: bool  # attributes that an inferred schema lacks

    def cut(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the part of ticks in (lo, hi] that the timestamps wanted leave."""
        if self.from_ms is not None:
            lo = max(lo, (self.from_ms << COUNTER_BITS) - 1)
        if self.until_ms is not None:
            hi = min(hi, (self.until_ms << COUNTER_BITS) - 1)
        return lo, max(lo, hi)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to publish, and under which name and batch a write is known when it is repeated."""

    urls: tuple[str, ...]
    name: str | None
    batch: int | None
    timeout_s: float


def read_options(given: Mapping[str, str]) -> ReadOptions:
    options = _check_known(given, READ_OPTIONS)
    directories, urls = _directories(options), _urls(options)
    if bool(directories) == bool(urls):
        raise SparkOptionError("give either path (data directories of brokers) or url (a running broker)")
    _one_of(options, "maxRowsPerTrigger", "maxBytesPerTrigger")
    if "subscription" in options and not urls:
        raise SparkOptionError("the option subscription needs url: files are not kept for anybody")
    return ReadOptions(
        directories=directories,
        urls=urls,
        pubends=_take(options, "pubends", _pubends, None),
        filter=_take(options, "filter", _filter, ""),
        pushdown=_choice(options, "pushdown", ("false", "true")) == "true",
        skip_gaps=_choice(options, "onGap", ("fail", "skip")) == "skip",
        null_mismatches=_choice(options, "onMismatch", ("fail", "null")) == "null",
        infer_records=_infer_records(options),
        partition_bytes=_take(options, "partitionBytes", _positive, None),
        rows_per_partition=_take(options, "rowsPerPartition", _positive, None),
        partition_s=_take(options, "partitionSeconds", _seconds, None),
        timeout_s=_take(options, "timeoutSeconds", _seconds, TIMEOUT_S),
        starting=_take(options, _one_of(options, "startingTicks", "startingOffsets"), starting_ticks, "earliest"),
        rows_per_trigger=_take(options, "maxRowsPerTrigger", _positive, None),
        from_ms=_take(options, "startingTimestamp", moment_of, None),
        until_ms=_take(options, "endingTimestamp", moment_of, None),
        partitions_min=_take(options, "minPartitions", _positive, None),
        bytes_per_trigger=_take(options, "maxBytesPerTrigger", _positive, None),
        subscription=options.get("subscription"),
        ignore_new=_choice(options, "onNewAttribute", ("fail", "ignore")) == "ignore",
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = _check_known(given, WRITE_OPTIONS)
    urls = _urls(options)
    if not urls:
        raise SparkOptionError(
            "give url with the broker to publish at; several brokers, separated by commas, share the partitions"
        )
    name = options.get("name")
    batch = _take(options, "batch", _number, None)
    if batch is not None and not name:
        raise SparkOptionError("the option batch needs the option name")
    if name is not None and not 1 <= len(name) <= 128:
        raise SparkOptionError("a name has 1 to 128 characters")
    return WriteOptions(urls, name, batch, _take(options, "timeoutSeconds", _seconds, TIMEOUT_S))


def _check_known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in (*names, *OF_SPARK)}
    known: dict[str, str] = {}
    for key, value in given.items():
        name = by_lower.get(key.lower())
        if name is None and key.lower() == OF_A_TABLE:
            raise SparkOptionError(
                "Spark reads tables of Python sources without their options; use CREATE TEMPORARY VIEW instead"
            )
        if name is None:
            near = difflib.get_close_matches(key.lower(), by_lower, 1)
            meant = f"; did you mean {by_lower[near[0]]}?" if near else f"; the options are {', '.join(names)}"
            raise SparkOptionError(f"there is no option {key!r}{meant}")
        known[name] = value
    return known


def _take(options: Mapping[str, str], name: str, parse: Callable[[str], ValueT], default: ValueT) -> ValueT:
    if name not in options:
        return default
    try:
        return parse(options[name])
    except ValueError as error:
        raise SparkOptionError(f"option {name}: {error}") from error


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = options.get(name, choices[0]).lower()
    if value not in choices:
        raise SparkOptionError(f"option {name} is one of {', '.join(choices)}, not {options[name]!r}")
    return value


def _positive(text: str) -> int:
    value = _number(text)
    if value == 0:
        raise ValueError("the value must not be 0")
    return value


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"a whole number of at least 0 is expected, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise ValueError(f"a number of seconds above 0 is expected, not {text!r}")
    return value


def _infer_records(options: Mapping[str, str]) -> int | None:
    if options.get("inferRecords", "").strip().lower() == "all":
        return None
    return _take(options, "inferRecords", _positive, INFER_RECORDS)


def _filter(text: str) -> str:
    Filter(text)  # a FilterSyntaxError is a ValueError
    return text


def _pubends(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(pubend_of(each) for each in text.split(",")))


def pubend_of(text: str) -> int:
    """Read a pubend's number, decimal or with 0x."""
    try:
        pubend = int(text.strip(), 0)
    except ValueError:
        raise ValueError(f"a pubend is a number such as 256 or 0x100, not {text!r}") from None
    if not 0 <= pubend < 1 << 64:
        raise ValueError(f"{text} is not a pubend")
    return pubend


def moment_of(text: str) -> int:
    """Read a moment: milliseconds since 1970, or a date and time, in UTC where it names no zone; return milliseconds."""
    if text.strip().isdecimal():
        milliseconds = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(f"milliseconds or a time such as 2026-11-19T12:00:00Z is expected, not {text!r}") from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        milliseconds = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    if not 0 <= milliseconds < 1 << 47:
        raise ValueError(f"{text} is not a moment between 1970 and the year 6429")
    return milliseconds


def _one_of(options: Mapping[str, str], name: str, other: str) -> str:
    """Return which of two options that exclude each other is given."""
    if name in options and other in options:
        raise SparkOptionError(f"give either {name} or {other}")
    return other if other in options else name


def starting_ticks(text: str) -> Literal["earliest", "latest"] | dict[int, int]:
    """Read where a stream begins: `earliest`, `latest`, or JSON with a tick per pubend."""
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    try:
        given = json.loads(text)
        return {pubend_of(pubend): int(tick) for pubend, tick in given.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f'earliest, latest or JSON such as {{"256": 117}} is expected, not {text!r} ({error})') from error


def _urls(options: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(each.strip() for each in options.get("url", "").split(",") if each.strip())


def _directories(options: Mapping[str, str]) -> tuple[Path, ...]:
    given = [each.strip() for each in options.get("path", "").split(",") if each.strip()]
    if "paths" in options:  # how Spark hands on the list of load([...])
        given += json.loads(options["paths"])
    found: list[Path] = []
    for each in given:
        path = path_of(each)
        places = sorted(matching(path)) if has_magic(each) else [path]
        directories = [place for place in places if not has_magic(each) or (place / FORMAT_NAME).is_file()]
        if not directories:
            raise SparkOptionError(f"no data directory of a broker matches {each}")
        found += directories
    return tuple(dict.fromkeys(found))
