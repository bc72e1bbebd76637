"""What a tracked broker orders beside the orders of the machine, and the facts its driver reports back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from postroad.core.protocol.orders import Fact, Order
from postroad.core.protocol.status import BrokerReport
from postroad.errors import PostroadError
from postroad.tracking.histories.elements import Horizon
from postroad.tracking.histories.events import TrackEvent
from postroad.tracking.queries.answers import Findings
from postroad.tracking.queries.questions import CoverageQuestion, StatusQuestion, TracksQuestion


class Track(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Hand events to the tracker, in order. With `flush`, make durable what it holds, then report `Tracked`.

    Nothing waits for it: a tracker that fails or lags costs traces, never messages. `farewell` ends the incarnation.
    """

    wall_ms: int
    events: tuple[TrackEvent, ...]
    entries: int = 0  # ids that the events add to histories
    size: int = 0  # bytes that the events take while they wait, about
    flush: bool = False
    farewell: bool = False


@dataclass(frozen=True, slots=True)
class SearchTracks:
    """Look something up in the tracks, with all that was ordered to be tracked before, then report `TracksSearched`."""

    token: int
    question: TracksQuestion | CoverageQuestion


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Report how the broker is, and answer with `StatusReported`."""

    token: int
    question: StatusQuestion


@dataclass(frozen=True, slots=True)
class StatusReported:
    """The answer to `ReportStatus`."""

    token: int
    report: BrokerReport


@dataclass(frozen=True, slots=True)
class Tracked:
    """Publisher histories are durable up to these horizons: after a crash the log is needed only beyond them.

    `forgotten`: something that was ordered to be tracked was dropped, so what lasts has to be recorded again.
    """

    horizons: tuple[Horizon, ...]
    forgotten: bool = False


@dataclass(frozen=True, slots=True)
class TracksSearched:
    """The answer to `SearchTracks`, or why there is none."""

    token: int
    found: Findings | PostroadError


TrackedOrder: TypeAlias = Order | Track | SearchTracks | ReportStatus
TrackedFact: TypeAlias = Fact | Tracked | TracksSearched | StatusReported
