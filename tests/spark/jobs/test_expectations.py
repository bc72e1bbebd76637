"""What spans promise, cut into claims, and which messages fall under them. No Spark in here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from postroad.core.batch.batch import Batch
from postroad.spark.jobs.expectations import (
    STANDINGS,
    TICK_END,
    Claims,
    CountKernel,
    Intervals,
    SpanRow,
    Standing,
    WantedKernel,
    claim_stream,
    claim_unstarted,
)
from postroad.tracking.histories.elements import ID_DTYPE

PUBEND = 7 << 8
ALL = "value >= 0"


def span(
    lo: int, hi: int, *, broker: int = 2, incarnation: int = 1, attached: bool = False, since: int = 0, text: str = ALL
) -> SpanRow:
    return SpanRow(broker, incarnation, text, lo, hi, since or lo, attached)


def claimed(
    spans: list[SpanRow],
    crashed: dict[tuple[int, int], int] | None = None,
    lost: list[tuple[int, int]] | None = None,
    subscriber: str = "orders",
) -> Claims:
    claims = Claims()
    claim_stream(claims, subscriber, PUBEND, spans, crashed or {}, lost or [])
    return claims


def standings(claims: Claims) -> list[tuple[int, int, str]]:
    return [(claim.lo, claim.hi, Standing(claim.standing).name.lower()) for claim in claims.claims]


def test_spans_that_follow_each_other_leave_nothing_between() -> None:
    """A durable subscriber that comes back where it left; behind its last span messages wait for it."""
    found = standings(claimed([span(10, 20), span(20, 30, broker=3)]))
    assert found == [(10, 20, "expected"), (20, 30, "expected"), (30, TICK_END, "waiting")]


def test_a_gap_between_spans_needs_an_explanation() -> None:
    """After a crash of the broker it is explained; without one, something was skipped."""
    spans = [span(10, 20), span(25, 30, incarnation=2)]
    assert (20, 25, "skipped") in standings(claimed(spans))
    assert (20, 25, "explained") in standings(claimed(spans, crashed={(2, 1): 99}))


def test_a_gap_is_measured_from_the_furthest_span() -> None:
    """Spans overlap when messages were sent again; what an earlier span covers is no gap."""
    found = standings(claimed([span(10, 40), span(15, 20), span(45, 50)]))
    assert [each for each in found if each[2] == "skipped"] == [(40, 45, "skipped")]


def test_another_filter_is_another_subscription() -> None:
    """A durable name that was forgotten and taken again owes nothing for the time between."""
    found = standings(claimed([span(10, 20), span(50, 60, text="value > 3")]))
    assert [each[2] for each in found] == ["expected", "expected", "waiting"]


@pytest.mark.parametrize(
    ("subscriber", "attached", "crashed", "tail"),
    [
        ("orders", True, False, (20, TICK_END, "doubtful")),
        ("orders", False, False, (20, TICK_END, "waiting")),
        ("orders", True, True, (20, TICK_END, "doubtful")),
        ("~2.1.5", True, False, (20, TICK_END, "doubtful")),
        ("~2.1.5", True, True, (20, 99 << 16, "explained")),
        ("~2.1.5", False, False, None),
    ],
)
def test_what_lies_behind_the_last_span(
    subscriber: str, attached: bool, crashed: bool, tail: tuple[int, int, str] | None
) -> None:
    """It depends on whether the subscriber is attached, comes back under its name, or ended with its broker."""
    found = standings(claimed([span(10, 20, attached=attached)], {(2, 1): 99} if crashed else {}, subscriber=subscriber))
    assert (found[-1] if len(found) > 1 else None) == tail


def unstarted(
    streams: dict[int, list[SpanRow]],
    crashed: dict[tuple[int, int], int] | None = None,
    subscriber: str = "orders",
    starts: dict[int, int] | None = None,
    kept_from: dict[int, int] | None = None,
) -> list[tuple[int, int, int, str]]:
    claims = Claims()
    by_stream = {(subscriber, pubend): spans for pubend, spans in streams.items()}
    begun = {(subscriber, pubend): tick for pubend, tick in (starts or {}).items()}
    claim_unstarted(claims, by_stream, [PUBEND, LATER], crashed or {}, begun, kept_from or {})
    return [(claim.pubend, claim.lo >> 16, claim.hi >> 16, Standing(claim.standing).name) for claim in claims.claims]


LATER = 8 << 8


def at(ms: int) -> int:
    return ms << 16


def test_a_pubend_that_came_later_is_owed_from_the_creation_on() -> None:
    """A durable subscription exists from its creation: what it did not get of a new pubend before it began there was skipped."""
    first, second = span(at(500), at(900), since=1_000), span(at(9_000), at(9_500), since=9_000, incarnation=2)
    assert unstarted({PUBEND: [first], LATER: [second]}) == [(LATER, 1_000, 9_000, "SKIPPED")]
    assert unstarted({PUBEND: [first], LATER: [second]}, {(2, 1): 8_000}) == [(LATER, 1_000, 9_000, "EXPLAINED")]
    assert unstarted({PUBEND: [first], LATER: [second]}, {(2, 1): 9_900}) == [(LATER, 1_000, 9_000, "SKIPPED")]


def test_pubends_that_were_there_at_the_creation_owe_nothing_before_their_start() -> None:
    """Attachments that begin together are the creation; temporary subscriptions have no claims before their start."""
    first, together = span(at(500), at(900), since=1_000), span(at(1_700), at(2_000), since=1_800)
    assert unstarted({PUBEND: [first], LATER: [together]}) == []
    late = span(at(9_000), at(9_500), since=9_000)
    assert unstarted({PUBEND: [first], LATER: [late]}, subscriber="~2.1.5") == []


def test_where_a_durable_subscription_began_is_what_its_home_says() -> None:
    """Spans that begin later than that left something out, and no others do."""
    first, second = span(at(500), at(900), since=1_000), span(at(9_000), at(9_500), since=9_000, incarnation=2)
    streams = {PUBEND: [first], LATER: [second]}
    assert unstarted(streams, starts={PUBEND: at(500), LATER: at(9_000)}) == []
    assert unstarted(streams, starts={PUBEND: at(300), LATER: at(700)}) == [
        (PUBEND, 300, 500, "SKIPPED"),
        (LATER, 700, 9_000, "SKIPPED"),
    ]
    assert unstarted(streams, starts={LATER: at(700)}, kept_from={2: 8_000}) == [(LATER, 8_000, 9_000, "SKIPPED")]


@pytest.mark.parametrize(("attached", "standing"), [(False, "WAITING"), (True, "DOUBTFUL")])
def test_a_pubend_without_a_span_waits_for_its_durable_subscriptions(attached: bool, standing: str) -> None:
    """What a new pubend publishes belongs to a durable subscription that is away."""
    found = unstarted({PUBEND: [span(at(500), at(900), since=1_000, attached=attached)]})
    assert found == [(LATER, 1_000, TICK_END >> 16, standing)]


def messages(ticks: list[int], values: list[int]) -> Batch:
    ids = np.empty(len(ticks), ID_DTYPE)
    ids["publisher"], ids["broker"] = 1, 7
    ids["tick"] = [tick * 1000 << 16 for tick in ticks]
    return Batch.from_columns(ids.tobytes(), [b""] * len(ticks), {"value": values}, ticks)


def counted(claims: Claims, batch: Batch) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for rows in CountKernel(claims)(iter([(PUBEND, batch)])):
        for row in rows.to_pylist():
            name = "all" if row["target"] < 0 else claims.targets[row["target"]].kind
            key = (name, Standing(row["standing"]).name.lower())
            totals[key] = totals.get(key, 0) + row["count"]
    return totals


def test_messages_are_counted_by_standing_and_filter() -> None:
    """Half open stretches, filters, and what was told lost, which nobody expects any more."""
    claims = claimed([span(10, 20, text="value > 0", attached=True)], lost=[(10, 12)])
    batch = messages([10, 11, 12, 13, 20, 21], [1, 1, 0, 1, 1, 1])
    assert counted(claims, batch) == {
        ("all", "expected"): 6,
        ("subscriber", "expected"): 2,
        ("subscriber", "lost"): 1,
        ("subscriber", "doubtful"): 1,
        ("routing", "expected"): 2,
    }


def test_a_message_sent_twice_is_expected_twice_in_counts_and_once_by_name() -> None:
    """Overlapping spans count each sending; the names of messages do not repeat."""
    claims = claimed([span(10, 20), span(15, 25)])
    batch = messages([16, 22], [1, 1])
    assert counted(claims, batch)["subscriber", "expected"] == 3
    assert wanted(claims, batch, None) == {16: {"expected"}, 22: {"expected"}}


def wanted(claims: Claims, batch: Batch, intervals: Intervals | None) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for rows in WantedKernel(claims, intervals)(iter([(PUBEND, batch)])):
        for row in rows.to_pylist():
            codes: list[Any] = [code for code in row["wanted"] if claims.targets[code // STANDINGS].kind == "subscriber"]
            assert len({code // STANDINGS for code in codes}) == len(codes)
            found[row["tick"]] = {Standing(code % STANDINGS).name.lower() for code in codes}
    return found


def test_of_several_claims_on_a_message_the_strongest_counts() -> None:
    """What was told lost is lost whatever a span says; a span wins over the gap that another span leaves."""
    claims = claimed([span(10, 20), span(30, 40), span(12, 25)], lost=[(13, 14)])
    batch = messages([11, 14, 24, 28, 35, 50], [1] * 6)
    assert wanted(claims, batch, None) == {
        11: {"expected"},
        14: {"lost"},
        24: {"expected"},
        28: {"skipped"},
        35: {"expected"},
        50: {"waiting"},
    }


def test_only_messages_of_the_intervals_are_looked_at() -> None:
    """Intervals are timestamps of ids, ends included, by origin."""
    claims = claimed([span(10, 60)])
    batch = messages([11, 20, 30, 40, 50], [1] * 5)
    intervals = Intervals({7: (np.array([11_000, 39_000]), np.array([20_000, 45_000]))})
    assert sorted(wanted(claims, batch, intervals)) == [11, 20, 40]
    assert wanted(claims, batch, Intervals({8: (np.array([0]), np.array([1 << 40]))})) == {}
