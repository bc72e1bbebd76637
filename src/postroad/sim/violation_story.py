"""What led to a violation: the few events of a run that concern it, in order, beside the faults of that time.

A violation names a message, a subscription, a pubend, ticks. From the history come the message's way (published, durable,
relayed, sent, delivered), what the subscription was told about that place in the stream, and when a log let go of it; from the
story come the faults around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from postroad.sim import history as seen
from postroad.sim.checkers import Violation
from postroad.sim.world import Line

AROUND: Final = frozenset({"fault", "start", "stop", "crash", "client", "phase", "unsubscribe"})
BEFORE_S: Final = 1.0  # faults this long before the first event that matters are told as well
LINES_MAX: Final = 60
_NUMBER = re.compile(r"\b\d+\b")
_ID = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(slots=True)
class Subject:
    """What a violation is about."""

    ids: set[bytes] = field(default_factory=set)
    subscriptions: set[str] = field(default_factory=set)
    pubends: set[int] = field(default_factory=set)
    ticks: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, violation: Violation, history: seen.History) -> Subject:
        """Read it from the text of a violation."""
        known = {event.subscription for event in history if isinstance(event, seen.Asked)}
        logged = {event.id: event for event in history if isinstance(event, seen.Logged)}
        pubends = {event.pubend for event in logged.values()}
        numbers = [int(each) for each in _NUMBER.findall(violation.text)]
        found = cls({bytes.fromhex(each) for each in _ID.findall(violation.text)})
        found.subscriptions = {word for word in re.split(r"[\s,:;]+", violation.text) if word in known}
        found.pubends = {number for number in numbers if number in pubends}
        found.ticks = [number for number in numbers if number > 1 << 40]
        for message_id in found.ids & logged.keys():
            found.pubends.add(logged[message_id].pubend)
            found.ticks.append(logged[message_id].tick)
        return found

    @property
    def tick(self) -> int:
        return self.ticks[-1] if self.ticks else 0


def explain(violation: Violation, history: seen.History, story: Iterable[Line]) -> list[Line]:
    """Return the lines that lead to a violation; the violation is the last."""
    subject = Subject.of(violation, history)
    lines = [*_way(subject, history), *_tell(subject, history)]
    begin = min((line.at for line in lines), default=violation.at) - BEFORE_S
    lines += [line for line in story if line.kind in AROUND and begin <= line.at <= violation.at]
    lines.sort(key=lambda line: line.at)
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], Line(lines[LINES_MAX // 2].at, "...", "and so on"), *lines[-LINES_MAX // 2 :]]
    return [*lines, *_verdict(subject, history, violation), Line(violation.at, violation.kind, violation.text)]


def _way(subject: Subject, history: seen.History) -> Iterator[Line]:
    """Tell where the message was seen."""
    for event in history:
        match event:
            case seen.Published(at, message_id, attributes) if message_id in subject.ids:
                yield Line(at, "published", f"with {dict(attributes)}")
            case seen.Logged(at, pubend, tick, message_id) if message_id in subject.ids:
                yield Line(at, "durable", f"in pubend {pubend} at tick {tick}")
            case seen.Acknowledged(at, message_id) if message_id in subject.ids:
                yield Line(at, "acknowledged", "its publisher knows that it is durable")
            case seen.Refused(at, message_id) | seen.Abandoned(at, message_id) if message_id in subject.ids:
                yield Line(
                    at, type(event).__name__.lower(), "by its broker" if isinstance(event, seen.Refused) else "by its client"
                )
            case seen.Relayed(at, broker, incarnation, upstream, ids) if not subject.ids.isdisjoint(ids):
                yield Line(at, "relayed", f"broker {broker} (incarnation {incarnation}) had it from broker {upstream}")
            case seen.Sent(at, broker, incarnation, subscriber, ids) if not subject.ids.isdisjoint(ids):
                yield Line(at, "sent", f"broker {broker} (incarnation {incarnation}) sent it to {subscriber}")
            case seen.Delivered(at, subscription, pubend, tick, message_id) if message_id in subject.ids:
                yield Line(at, "delivered", f"{subscription} got it, tick {tick} of pubend {pubend}")
            case _:
                pass


def _tell(subject: Subject, history: seen.History) -> Iterator[Line]:
    """Tell what the subscription heard about the place in the stream, and what happened to the log there."""
    reached: dict[tuple[str, int], int] = {}
    gone: set[int] = set()
    for event in history:
        if isinstance(event, seen.Freed) and event.pubend in subject.pubends and 0 < subject.tick <= event.tick:
            if event.pubend not in gone:
                why = "retention was over its bound" if event.retention else "nobody was thought to need it"
                yield Line(event.at, "released", f"pubend {event.pubend} let go of everything up to {event.tick}: {why}")
            gone.add(event.pubend)
        if getattr(event, "subscription", None) not in subject.subscriptions:
            continue
        match event:
            case seen.Asked(at, subscription, text, durable):
                yield Line(at, "asked", f"{subscription} wants {text}" + (", durably" if durable else ""))
            case seen.Began(at, subscription, pubend, tick, broker) if pubend in subject.pubends:
                yield Line(at, "began", f"{subscription} is active at broker {broker} after tick {tick} of pubend {pubend}")
            case seen.Gapped(at, subscription, pubend, lo, hi) if pubend in subject.pubends:
                yield Line(at, "gap", f"{subscription} was told that ({lo}, {hi}] of pubend {pubend} is gone")
            case seen.Delivered(at, subscription, pubend, tick) | seen.Passed(at, subscription, pubend, tick) if (
                pubend in subject.pubends
            ):
                before = reached.get((subscription, pubend), 0)
                reached[subscription, pubend] = max(before, tick)
                if before < subject.tick <= tick:
                    yield Line(at, "reached", f"{subscription} went from {before} to {tick} of pubend {pubend}")
            case seen.Committed(at, subscription, pubend, tick) | seen.Confirmed(at, subscription, pubend, tick):
                if pubend in subject.pubends and tick == subject.tick:
                    yield Line(at, type(event).__name__.lower(), f"{subscription} up to {tick} of pubend {pubend}")
            case seen.Disconnected(at, subscription):
                yield Line(at, "disconnected", subscription)
            case seen.Forgot(at, subscription, positions):
                yield Line(
                    at, "forgot", f"the client of {subscription} crashed" + (" without its file" if positions is None else "")
                )
            case seen.Ended(at, subscription) | seen.Discarded(at, subscription):
                yield Line(at, type(event).__name__.lower(), subscription)
            case _:
                pass


def _verdict(subject: Subject, history: seen.History, violation: Violation) -> Iterator[Line]:
    """Say how far the message came, and where the subscription was."""
    for message_id in sorted(subject.ids):
        had = sorted({event.broker for event in history if isinstance(event, seen.Relayed) and message_id in event.ids})
        sent = sorted({event.broker for event in history if isinstance(event, seen.Sent) and message_id in event.ids})
        origin = int.from_bytes(message_id[4:8])
        yield Line(
            violation.at,
            "so",
            f"{message_id.hex()} began at broker {origin}, came to brokers {had}, was sent to clients by {sent}",
        )
    for name in sorted(subject.subscriptions):
        places = [
            e.broker for e in history if isinstance(e, seen.Began) and e.subscription == name and e.pubend in subject.pubends
        ]
        if places:
            yield Line(violation.at, "so", f"{name} was at brokers {list(dict.fromkeys(places))}, at {places[-1]} in the end")
