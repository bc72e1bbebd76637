"""What was found in tracks, as answers of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from postroad.tracking.histories.elements import HistoryKey, Kind, Lost, Span
from postroad.tracking.queries.answers import STILL, Covered, Hole, Searched
from postroad.tracking.queries.questions import (
    BROKERS_MAX,
    HITS_MAX,
    HOLES_MAX,
    NAME_MAX,
    SPANS_MAX,
    TEXT_MAX,
    CoverageAnswer,
    HitFound,
    HoleFound,
    KeyFound,
    LossFound,
    SpanFound,
    TracksAnswer,
    TracksQuestion,
)
from postroad.types import MESSAGE_ID_BYTES

_Hit: TypeAlias = tuple[int, HistoryKey, float, tuple[int, ...] | None]


class _Room:
    """What an answer holds so far, and whether more fits."""

    def __init__(self) -> None:
        self.keys: dict[HistoryKey, int] = {}
        self.hits: list[HitFound] = []
        self._text = 0

    def add(self, hit: _Hit) -> bool:
        row, key, probability, forwarded = hit
        size = 0 if key in self.keys else len(key.subscriber.encode())
        if len(self.hits) >= HITS_MAX or self._text + size > TEXT_MAX:
            return False
        self._text += size
        number = self.keys.setdefault(key, len(self.keys))
        self.hits.append(HitFound(row, number, min(max(probability, 0.0), 1.0), None if forwarded is None else list(forwarded)))
        return True

    def cut(self, length: int) -> None:
        del self.hits[length:]


def tracks_answer(
    question: TracksQuestion, found: Searched, present: Iterable[int], *, wall_ms: int, per_neighbour: bool
) -> TracksAnswer:
    """Answer as many ids as fit; of a single one that does not, as many subscribers."""
    room = _Room()
    answered, after = _fill(room, question, list(found.hits))
    neighbours = {**found.neighbours, **dict.fromkeys(present, STILL)}
    return TracksAnswer(
        answered=answered,
        after=after,
        wall_ms=wall_ms,
        kept_from_ms=max(found.kept_from_ms, 0),
        neighbours=sorted(neighbours.items())[:BROKERS_MAX],
        holes=_holes(found.holes),
        keys=[KeyFound(key.kind.value, key.peer, key.subscriber[:NAME_MAX]) for key in room.keys],
        hits=room.hits,
        per_neighbour=per_neighbour,
    )


def _fill(room: _Room, question: TracksQuestion, hits: Sequence[_Hit]) -> tuple[int, str]:
    for row, of_one in groupby(hits, key=lambda hit: hit[0]):
        before = len(room.hits)
        last = ""
        for hit in of_one:
            if row == 0 and question.after and not _is_behind(hit[1], question.after):
                continue
            if not room.add(hit):
                if row > 0:
                    room.cut(before)
                return row, last if row == 0 else ""
            last = hit[1].subscriber
    return len(question.ids) // MESSAGE_ID_BYTES, ""


def _is_behind(key: HistoryKey, after: str) -> bool:
    return key.kind is Kind.SUBSCRIBER and key.subscriber > after


def coverage_answer(found: Covered) -> CoverageAnswer:
    return CoverageAnswer(
        spans=[_span(span) for span in found.spans[-SPANS_MAX:]],
        lost=[_loss(lost) for lost in found.lost[-SPANS_MAX:]],
        before=None if found.before is None else _span(found.before),
        after=None if found.after is None else _span(found.after),
        holes=_holes(found.holes),
    )


def _holes(holes: Sequence[Hole]) -> list[HoleFound]:
    return [HoleFound(hole.kind.value, max(hole.from_ms, 0), hole.to_ms, hole.reason[:2000]) for hole in holes[-HOLES_MAX:]]


def _span(span: Span) -> SpanFound:
    return SpanFound(span.filter, span.from_tick, span.to_tick, max(span.attached_ms, 0), max(span.detached_ms, 0))


def _loss(lost: Lost) -> LossFound:
    return LossFound(lost.from_tick, lost.to_tick, max(lost.told_ms, 0))
