"""Answers of bounded size, put together again by whoever asks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracking.ids import make_ids

from postroad.errors import InvalidValueError
from postroad.tracking.histories.elements import Crash, HistoryKey, Kind, Span
from postroad.tracking.queries import answering
from postroad.tracking.queries.answering import coverage_answer, tracks_answer
from postroad.tracking.queries.answers import Covered, Hole, HoleKind, Searched, covered, ended
from postroad.tracking.queries.packets import TracksAnswered
from postroad.tracking.queries.questions import Status, TracksAnswer, TracksQuestion
from postroad.tracking.queries.search import Hits
from postroad.wire.codec import validate

Pairs = list[tuple[int, HistoryKey]]


def searched(pairs: Pairs) -> Searched:
    """Make what a driver finds of these (row, key), as a search orders it."""
    ordered = sorted(pairs)
    rows = np.array([row for row, _ in ordered], np.intp)
    hits = Hits(rows, tuple(key for _, key in ordered), np.zeros(len(ordered)), (None,) * len(ordered))
    return Searched(hits, (), {}, 0)


def ask_all(ids: bytes, find: dict[bytes, list[HistoryKey]]) -> tuple[Pairs, int]:
    """Ask until everything is answered, as a client does; return all hits with rows of the whole question."""
    waiting, after, offset, questions = ids, "", 0, 0
    found: Pairs = []
    while waiting:
        questions += 1
        question = TracksQuestion(waiting, after)
        parts = [waiting[start : start + 16] for start in range(0, len(waiting), 16)]
        known = searched([(row, key) for row, part in enumerate(parts) for key in find.get(part, ())])
        answer = tracks_answer(question, known, (), wall_ms=1, per_neighbour=False)
        keys = [HistoryKey(Kind(key.kind), 1, key.peer, key.subscriber) for key in answer.keys]
        found += [(offset + hit.row, keys[hit.key]) for hit in answer.hits]
        assert answer.answered or answer.after > after, "it does not come to an end"
        waiting, after, offset = waiting[16 * answer.answered :], answer.after, offset + answer.answered
    return found, questions


@given(seed=st.integers(0, 1 << 32), rows=st.integers(1, 20), room=st.integers(2, 30), text=st.integers(20, 400))
def test_many_small_answers_say_the_same_as_one(seed: int, rows: int, room: int, text: int) -> None:
    """Nothing is told twice and nothing is left out, however little fits into one answer."""
    chance = random.Random(seed)
    ids = make_ids(rows).tobytes()
    find: dict[bytes, list[HistoryKey]] = {}
    for start in range(0, len(ids), 16):
        keys = [HistoryKey(Kind.PUBLISHER, 1)] if chance.random() < 0.5 else [HistoryKey(Kind.ROUTING, 1, 7)]
        keys += [HistoryKey(Kind.SUBSCRIBER, 1, subscriber=f"s{n:03d}") for n in chance.sample(range(40), chance.randint(0, 40))]
        find[ids[start : start + 16]] = keys
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answering, "HITS_MAX", room)
        patch.setattr(answering, "TEXT_MAX", text)
        found, _ = ask_all(ids, find)
    expected = [(start // 16, key) for start in range(0, len(ids), 16) for key in find[ids[start : start + 16]]]
    assert sorted(found) == sorted(expected)
    assert len(found) == len(set(found))


def test_a_hundred_thousand_subscribers_of_one_message_fit_into_bounded_answers() -> None:
    """Each answer is a packet that any receiver takes."""
    ids = make_ids(1).tobytes()
    everyone = [HistoryKey(Kind.SUBSCRIBER, 1, subscriber=f"subscriber-{n:06d}") for n in range(100_000)]
    answer = tracks_answer(
        TracksQuestion(ids), searched([(0, key) for key in everyone]), range(5), wall_ms=1, per_neighbour=False
    )
    assert (answer.answered, bool(answer.after)) == (0, True)
    validate(TracksAnswered(1, Status.ANSWERED, "", answer))


def test_a_name_with_a_terminal_surrogate_is_refused_by_the_wire_and_not_by_us() -> None:
    """What cannot be encoded was never a subscriber's name."""
    with pytest.raises(InvalidValueError):
        validate(TracksAnswered(1, Status.ANSWERED, "\ud800"))


def test_holes_and_neighbours_are_told_within_the_bounds_of_the_packet() -> None:
    """Times before the epoch are cut, present neighbours are neighbours still."""
    holes = tuple(Hole(HoleKind.CRASH, -5, 10, "x" * 5000) for _ in range(1000))
    found = Searched(searched([]).hits, holes, {n: n for n in range(9000)}, -1)
    answer = tracks_answer(TracksQuestion(make_ids(1).tobytes()), found, [3], wall_ms=1, per_neighbour=True)
    assert isinstance(answer, TracksAnswer)
    assert dict(answer.neighbours)[3] > 1 << 60
    assert answer.per_neighbour
    validate(TracksAnswered(1, Status.ANSWERED, "", answer))


def test_coverage_is_the_spans_around_a_tick() -> None:
    """Those that contain it, and the nearest on each side."""
    spans = [Span("s", n, 1, "f", n * 10, n * 10 + 5, 1, 2) for n in range(5)]
    found = covered(spans, [], 23, ())
    assert (found.spans, found.before, found.after) == ((spans[2],), spans[1], spans[3])
    found = covered(spans, [], 27, ())
    assert (found.spans, found.before, found.after) == ((), spans[2], spans[3])
    answer = coverage_answer(Covered(tuple(spans) * 10, (), None, None, ()))
    validate(TracksAnswered(1, Status.ANSWERED, "", answer))


def test_a_span_of_a_dead_incarnation_is_not_attached_still() -> None:
    """Nobody was left to say when it ended, but the crash says it."""
    spans = {(1, 1): Span("s", 1, 1, "f", 0, 5, 100), (2, 1): Span("s", 1, 1, "f", 9, 12, 300)}
    assert [span.detached_ms for span in ended(spans, 2, [Crash(1, 200, 250)])] == [200, 0]
    assert [span.detached_ms for span in ended(spans, 2, [])] == [100, 0]
