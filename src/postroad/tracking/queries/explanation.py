"""Why did a subscriber get a message, or not: from a trace, the log, and what brokers say the subscriber was promised.

A span says that everything of a stretch that matches a filter was sent. So outside of holes, a tick in a span without a
delivery means that the filter did not match; the log, if it still has the message, shows that it did not. A tick in no span was
never promised: the subscriber was not there then, or is not that far yet, or the broker that knows is gone or has a hole there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from postroad.core.batch.row_codec import join_rows
from postroad.core.filters.filter import Filter
from postroad.errors import PostroadError
from postroad.tracking.queries.questions import CoverageAnswer, MapAnswer, MessageAnswer, SpanFound
from postroad.tracking.queries.reconstruction import Receipt, Trace, Unasked
from postroad.types import AttributeValue, format_tick


class Verdict(StrEnum):
    DELIVERED = "delivered"
    FILTERED = "filtered"  # its filter did not match
    IN_DOUBT = "in doubt"  # it will get the message if it matches, but has not got so far
    NOT_SUBSCRIBED = "not subscribed"  # at that time
    GAP = "gap"  # it was told that the message is lost to it
    CRASHED = "lost in a crash"  # what happened is not known: a broker went down before it could write it
    MISSING = "missing"  # it was promised, and no delivery is recorded
    NOT_PUBLISHED = "not published"  # there is no such message
    UNKNOWN = "unknown"  # whoever would know could not be asked


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a subscriber got a message or not: the verdict with its reason. `Client.explain` gives it.

    `broker` is where it was decided, `filter` the version of the filter that counted then.

    ```python
    message_id = await client.publish({"symbol": "ACME", "price": 101.5})
    explanation = await client.explain(message_id, "my-ticker")
    print(explanation.verdict, explanation.reason)
    ```
    """

    verdict: Verdict
    reason: str
    subscriber: str
    trace: Trace
    broker: int | None = None
    filter: str | None = None
    probability: float = 0.0
    attributes: Mapping[str, AttributeValue] | None = None
    tick: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was asked for. `message` is None when the origin could not be asked for it."""

    trace: Trace
    subscriber: str
    overlay: MapAnswer
    message: MessageAnswer | None
    coverage: Mapping[int, CoverageAnswer]  # by broker
    unasked: Sequence[Unasked] = ()  # about coverage


def approximate_tick(trace: Trace, message: MessageAnswer | None) -> int:
    """Return the message's tick, or what comes nearest to it: its id's."""
    return message.tick if message is not None and message.tick else trace.id.tick


def explain(evidence: Evidence) -> Explanation:
    """Weigh the evidence, strongest first."""
    receipts = [each for each in evidence.trace.subscribers if each.subscriber == evidence.subscriber and not each.isolated]
    if receipts:
        return _explain_delivered(evidence, min(receipts, key=lambda receipt: receipt.probability))
    if _is_not_there(evidence):
        return _explanation(evidence, Verdict.NOT_PUBLISHED, "neither the log nor the tracks of its origin contain the message")
    lost = [(broker, each.lost[0]) for broker, each in evidence.coverage.items() if each.lost]
    if lost:
        broker, loss = lost[0]
        since, until = format_tick(loss.from_tick), format_tick(loss.to_tick)
        reason = f"broker {broker} reported to the subscriber that the messages from {since} to {until} are lost"
        return _explanation(evidence, Verdict.GAP, reason, broker)
    spans = [(broker, span) for broker, each in evidence.coverage.items() for span in each.spans]
    if spans:
        return _explain_promised(evidence, *spans[0])
    return _not_promised(evidence)


def _explain_delivered(evidence: Evidence, receipt: Receipt) -> Explanation:
    reason = f"broker {receipt.broker} sent the message to the subscriber"
    span = next(iter(evidence.coverage[receipt.broker].spans), None) if receipt.broker in evidence.coverage else None
    text = None if span is None else span.filter
    return _explanation(evidence, Verdict.DELIVERED, reason, receipt.broker, text, receipt.probability)


def _is_not_there(evidence: Evidence) -> bool:
    """Say whether the message surely does not exist: its origin's tracks and log were asked and have no hole there."""
    message, trace = evidence.message, evidence.trace
    if trace.published is not None or message is None or message.row is not None:
        return False
    asked = all(each.broker != trace.origin for each in trace.unasked)
    whole = all(hole.broker != trace.origin or hole.kind == "crash" for hole in trace.holes)
    return asked and whole


def _explain_promised(evidence: Evidence, broker: int, span: SpanFound) -> Explanation:
    """Explain why a message in a span was not delivered."""
    matches = _matches(evidence, span)
    if matches is False:
        return _explain_filtered(evidence, broker, span)
    stopped = _find_last_broker(evidence, broker)
    if matches is None:
        reason = (
            f"broker {broker} sent the subscriber everything that matched its filter, and did not send this message;"
            " the log no longer contains the message, so the filter cannot be checked"
        )
        return _explanation(evidence, Verdict.FILTERED, reason, stopped, span.filter)
    if any(hole.kind in {"crash", "damaged"} for hole in evidence.coverage[broker].holes):
        reason = f"the filter matches, but broker {broker} lost its tracks of that time"
        return _explanation(evidence, Verdict.CRASHED, reason, broker, span.filter)
    reason = f"the filter matches; broker {broker} recorded that all matches were sent, but not this one"
    return _explanation(evidence, Verdict.MISSING, reason, broker, span.filter)


def _explain_filtered(evidence: Evidence, broker: int, span: SpanFound) -> Explanation:
    stopped = _find_last_broker(evidence, broker)
    reason = f"the filter did not match; the message reached broker {stopped}"
    return _explanation(evidence, Verdict.FILTERED, reason, stopped, span.filter)


def _not_promised(evidence: Evidence) -> Explanation:
    for broker, each in evidence.coverage.items():
        if each.before is not None and not each.before.detached_ms:
            if _matches(evidence, each.before) is False:
                return _explain_filtered(evidence, broker, each.before)
            until = format_tick(each.before.to_tick)
            reason = f"the subscriber is at broker {broker}, which has sent everything up to {until} so far"
            return _explanation(evidence, Verdict.IN_DOUBT, reason, broker, each.before.filter)
    holed = [(broker, hole) for broker, each in evidence.coverage.items() for hole in each.holes if _knew(each)]
    if holed:
        broker, hole = holed[0]
        verdict = Verdict.CRASHED if hole.kind == "crash" else Verdict.UNKNOWN
        return _explanation(evidence, verdict, f"broker {broker} lost its tracks of that time: {hole.reason}", broker)
    if evidence.unasked:
        names = ", ".join(str(each.broker) for each in evidence.unasked)
        reason = f"no broker that answered had this subscription; these brokers did not answer: {names}"
        return _explanation(evidence, Verdict.UNKNOWN, reason)
    before = [(each.before.to_tick, broker, each.before) for broker, each in evidence.coverage.items() if each.before]
    after = [(each.after.from_tick, broker, each.after) for broker, each in evidence.coverage.items() if each.after]
    if before:
        return _explain_left(evidence, *max(before, key=lambda entry: entry[:2])[1:], later=bool(after))
    if after:
        tick, broker, span = min(after, key=lambda entry: entry[:2])
        reason = f"the subscription at broker {broker} begins later, after {format_tick(tick)}"
        return _explanation(evidence, Verdict.NOT_SUBSCRIBED, reason, broker, span.filter)
    holes = [(broker, hole) for broker, each in evidence.coverage.items() for hole in each.holes]
    if holes:
        broker, hole = holes[0]
        reason = f"no broker knows a subscriber with this name, but broker {broker} has a hole: {hole.reason}"
        return _explanation(evidence, Verdict.UNKNOWN, reason, broker)
    return _explanation(evidence, Verdict.NOT_SUBSCRIBED, "no broker knows a subscriber with this name")


def _explain_left(evidence: Evidence, broker: int, span: SpanFound, *, later: bool) -> Explanation:
    durable = not is_ephemeral(evidence.subscriber)
    if durable and not later:
        if _matches(evidence, span) is False:
            return _explain_filtered(evidence, broker, span)
        reason = f"the subscriber left broker {broker} after {format_tick(span.to_tick)}; later matches wait for its return"
        return _explanation(evidence, Verdict.IN_DOUBT, reason, broker, span.filter)
    reason = f"the subscription at broker {broker} ended earlier, at {format_tick(span.to_tick)}"
    return _explanation(evidence, Verdict.NOT_SUBSCRIBED, reason, broker, span.filter)


def is_ephemeral(subscriber: str) -> bool:
    """Say whether a subscriber's name is one that a broker gave to a subscription without a name."""
    return len(subscriber) > 1 and subscriber[0] == "~" and subscriber[1].isdigit()


def _knew(answer: CoverageAnswer) -> bool:
    return answer.before is not None or answer.after is not None


def _matches(evidence: Evidence, span: SpanFound) -> bool | None:
    attributes = _attributes(evidence)
    if attributes is None:
        return None
    try:
        return Filter(span.filter).matches(attributes) is True
    except PostroadError:
        return None  # a filter of a language this version does not know


def _attributes(evidence: Evidence) -> Mapping[str, AttributeValue] | None:
    message = evidence.message
    if message is None or message.row is None:
        return None
    try:
        return join_rows([message.row], message.binary)[0][1]
    except PostroadError:
        return None


def _find_last_broker(evidence: Evidence, broker: int) -> int:
    """Return the last broker that saw the message on the shortest way from its origin to the subscriber's broker."""
    saw = {visit.broker for visit in evidence.trace.brokers if not visit.isolated}
    stopped = evidence.trace.origin
    for each in _path(evidence.overlay, evidence.trace.origin, broker):
        if each in saw:
            stopped = each
    return stopped


def _path(overlay: MapAnswer, origin: int, target: int) -> list[int]:
    came: dict[int, int | None] = {origin: None}
    waiting = deque([origin])
    while waiting and target not in came:
        broker = waiting.popleft()
        for other in overlay.brokers.get(broker) or ():
            if other not in came:
                came[other] = broker
                waiting.append(other)
    path: list[int] = []
    step: int | None = target if target in came else None
    while step is not None:
        path.append(step)
        step = came[step]
    return path[::-1]


def _explanation(
    evidence: Evidence,
    verdict: Verdict,
    reason: str,
    broker: int | None = None,
    filter_text: str | None = None,
    probability: float = 0.0,
) -> Explanation:
    message = evidence.message
    return Explanation(
        verdict=verdict,
        reason=reason,
        subscriber=evidence.subscriber,
        trace=evidence.trace,
        broker=broker,
        filter=filter_text,
        probability=probability,
        attributes=_attributes(evidence),
        tick=message.tick if message is not None and message.tick else None,
    )
