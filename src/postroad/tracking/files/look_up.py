"""Questions about tracks, answered from the files and what is not written yet."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.tracking.files.track_store import TrackStore
from postroad.tracking.histories.elements import Element, Record
from postroad.tracking.queries.answers import Findings
from postroad.tracking.queries.questions import CoverageQuestion, TracksQuestion
from postroad.types import MESSAGE_ID_BYTES


def look_up(
    store: TrackStore, question: TracksQuestion | CoverageQuestion, elements: Iterable[Element], records: Iterable[Record]
) -> Findings:
    """Answer a question; `elements` and `records` are what the tracker holds."""
    if isinstance(question, CoverageQuestion):
        return store.coverage(question.subscriber, question.pubend, question.tick, records)
    return store.search(ids_of(question), elements, records)


def ids_of(question: TracksQuestion) -> Ids:
    return np.frombuffer(question.ids, np.dtype((np.void, MESSAGE_ID_BYTES)))
