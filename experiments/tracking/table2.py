"""Table 2: all configurations under the paper's load; whether buffers are full when stored, and what is stored.

A broker's tracker runs over the load in virtual time. What counts as stored is what the paper counts: the buffer of each
history element, 16 bytes per id for `async` and the bits for `bloom`, forced when it is full or T_p is over; for `exact` it
is a track file per flush, as a broker writes it. gzip is applied to each buffer. Bytes per message are all bytes over the
messages routed.

The paper's totals fit one buffer for the deliveries of all subscribers (section 3.4 allows it) and not one per subscriber: a
bloom of 8 KB per subscriber and second would be 800 bytes per message. So both are here: `aggregate`, which Figs. 4 and 5 are
made of, and `each`, with a history per subscriber as section 3.2 has it, for blooms as they are and for ours, where a bloom
that ended with few ids is written as ids.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from experiments.outcome import Finding, Outcome, Row, Values, as_number
from experiments.tracking.configurations import ALL, Configuration
from experiments.tracking.load import PUBEND, WALL_MS, Load
from postroad.tracking.files.schema import WRITE_OPTIONS, Stamp, to_table
from postroad.tracking.histories.elements import Element, Kind
from postroad.tracking.histories.events import Delivered, Published, TrackEvent
from postroad.tracking.histories.settings import Strategy, TrackingSettings
from postroad.tracking.histories.tracker import Tracker

TITLE = "All test configurations, and what they store"
EVERYBODY = "everybody"


def run(values: Values, seed: int) -> Outcome:
    rows = list(_rows(int(values["seconds"]), int(values["subscribers"]), seed))
    agree = [row for row in rows if row["paper_full"] is not None]
    same = sum(row["full"] == row["paper_full"] for row in agree)
    findings = [Finding("rows that store full buffers as the table says", f"{same} of {len(agree)}", "all")]
    findings += [_finding(rows, name, column, paper) for name, column, paper in QUOTED]
    return Outcome(rows, findings, NOTES)


QUOTED = [
    ("async 10K 1s", "forces_per_s", "approximately eight"),
    ("bloom 99.999% 10K 1s", "forces_per_s", "slightly less than two"),
    ("bloom 99.999% 10K 1s", "publisher_bytes", "3.25 (26 bits)"),
    ("bloom 99.999% 135K 8s", "publisher_bytes", "3.375 (27 bits)"),
    ("bloom 99.999% 135K 1s", "publisher_bytes", "partly full: significant disadvantage"),
    ("async 10K 1s", "publisher_bytes", "16"),
    ("async 10K 1s", "publisher_gzip_bytes", "significant compression"),
    ("exact 10K 1s", "publisher_bytes", "-"),
    ("exact 1048K 10s", "publisher_bytes", "-"),
    ("exact 1048K 10s", "each_bytes", "-"),
    ("bloom 99.999% 10K 1s", "each_bytes", "-"),
    ("bloom 99.999% 10K 1s", "each_few_bytes", "-"),
]
NOTES = [
    """Columns `*_bytes` are bytes per message: of the publisher history, of one aggregate history of all deliveries, of one
history per subscriber (`each`), and of those with few ids written as ids (`each_few`, what a broker does by default)."""
]


def _finding(rows: list[Row], name: str, column: str, paper: str) -> Finding:
    row = next(row for row in rows if row["name"] == name)
    what = "disk forces per second, publisher history" if column == "forces_per_s" else column.replace("_", " ") + " per message"
    return Finding(f"{name}: {what}", as_number(row[column]), paper)


@cache
def _rows(seconds: int, subscribers: int, seed: int) -> tuple[Row, ...]:
    """Return a row per configuration; Figs. 4 and 5 are made of the same."""
    return tuple(_row(configuration, seconds, subscribers, seed) for configuration in ALL)


def _row(configuration: Configuration, seconds: int, subscribers: int, seed: int) -> Row:
    row: Row = {
        "name": configuration.name,
        "strategy": str(configuration.strategy),
        "limit_bytes": configuration.limit_bytes,
        "accuracy": configuration.accuracy,
        "t_p_s": configuration.seconds,
        "capacity": configuration.capacity,
        "paper_full": configuration.full,
    }
    if configuration.strategy is Strategy.NULL:
        return row
    periods = -(-seconds // configuration.seconds)
    load = Load(max(periods, 2) * configuration.seconds, seed=seed)
    whole = Stored(configuration.settings(), _aggregate(load))
    publisher = whole.of(Kind.PUBLISHER)
    row["forces_per_s"] = load.rate * len(publisher) / sum(element.count for element in publisher)
    row["full"] = any(element.count == element.n for element in publisher)
    row["fill"] = sum(element.count for element in publisher) / len(publisher) / configuration.capacity
    for name, kind in (("publisher", Kind.PUBLISHER), ("aggregate", Kind.SUBSCRIBER)):
        row[f"{name}_bytes"], row[f"{name}_gzip_bytes"] = whole.size(kind)
    for name, few in (("each", False), ("each_few", True)):
        in_files = few or configuration.strategy is Strategy.EXACT
        some = load.subscribers if in_files else subscribers
        each = Stored(replace(configuration.settings(), few_as_ids=few), _each(load, some))
        row[f"{name}_bytes"], row[f"{name}_gzip_bytes"] = each.size(Kind.SUBSCRIBER)
    return row


class Stored:
    """What a tracker stores of a run, flush by flush; neither copies that a later one replaces nor the end of the run count."""

    def __init__(self, settings: TrackingSettings, turns: Iterable[tuple[int, list[TrackEvent]]]) -> None:
        tracker = Tracker(1, 1, settings, wall_ms=WALL_MS)
        self.files: list[tuple[Element, ...]] = []
        for wall_ms, events in turns:
            tracker.take(events, wall_ms)
            if tracker.wants_flush(wall_ms):
                self.files.append(tracker.flush(wall_ms).closed)

    def of(self, kind: Kind) -> list[Element]:
        return [element for file in self.files for element in file if element.key.kind is kind]

    def size(self, kind: Kind) -> tuple[float, float]:
        """Return the bytes per message, as they are and after gzip."""
        plain = packed = 0
        for file in self.files:
            for part in _buffers([element for element in file if element.key.kind is kind]):
                plain += len(part)
                packed += len(gzip.compress(part, 6))
        messages = sum(element.count for element in self.of(kind))
        return plain / messages, packed / messages


def _buffers(elements: list[Element]) -> Iterator[bytes]:
    """Return what is forced to disk: a buffer per element, or for `exact` a file with all of a flush."""
    exact = [element for element in elements if element.strategy is Strategy.EXACT]
    for element in elements:
        if element.strategy is Strategy.ASYNC and element.ids is not None:
            yield element.ids.tobytes()
        elif element.bits is not None:
            yield bytes(element.bits)
    if exact:
        sink: Any = pa.BufferOutputStream()
        pq.write_table(to_table(Stamp(1, 1, 1), exact, ()), sink, **WRITE_OPTIONS)
        yield sink.getvalue().to_pybytes()


def _aggregate(load: Load) -> Iterator[tuple[int, list[TrackEvent]]]:
    """Return publications, and each message as delivered once: 5,000 in, 5,000 out."""
    for turn in load.turns():
        yield turn.wall_ms, [Published(PUBEND, turn.ids), Delivered(EVERYBODY, PUBEND, turn.ids)]


def _each(load: Load, some: int) -> Iterator[tuple[int, list[TrackEvent]]]:
    """Return the deliveries to some of the subscribers; the others are like them."""
    names = {f"subscriber-{number:03}" for number in range(some)}
    for wall_ms, events in load.events():
        yield wall_ms, [event for event in events if isinstance(event, Delivered) and event.subscriber in names]


def draw(outcome: Outcome) -> Figure:
    return bars(outcome.rows, "fill", "share of a buffer that is in use when it is stored")


def bars(rows: list[Row], column: str, label: str, second: str | None = None) -> Figure:
    """Draw a bar per configuration, on a logarithmic scale when values differ much."""
    shown = [row for row in rows if row.get(column) is not None]
    figure = Figure((7, 0.22 * len(shown) + 0.8))
    axes = figure.subplots()
    places = range(len(shown))
    colours = {"async": "tab:red", "bloom": "tab:blue", "exact": "tab:green", "null": "tab:gray"}
    axes.barh(
        places, [row[column] for row in shown], color=[colours[row["strategy"]] for row in shown], alpha=0.5 if second else 0.9
    )
    if second:
        axes.barh(places, [row[second] for row in shown], color=[colours[row["strategy"]] for row in shown], height=0.4)
    axes.set_yticks(list(places), [row["name"] for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    if max(row[column] for row in shown) > 20 * min(row[second or column] for row in shown):
        axes.set_xscale("log")
    axes.grid(visible=True, axis="x", alpha=0.3)
    return figure
