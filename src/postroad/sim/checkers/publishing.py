"""What publishers must be able to rely on."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import Abandoned, Acknowledged, DiskLost, History, Logged, Published, Refused


class OnePubend:
    """A message lies in one log, once; logs grow at their end, and each publisher's messages keep their order there.

    One that was lost with a disk may lie there again: its publisher had not heard that it was taken.

    In a simulated world no two messages have the same payload, so one that was published again under another id is found too.
    """

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        place: dict[bytes, int] = {}
        contents: dict[bytes, bytes] = {}
        last_tick: dict[int, int] = {}
        last_of: dict[tuple[int, bytes], bytes] = {}
        for event in history:
            if isinstance(event, DiskLost):
                place = {message_id: pubend for message_id, pubend in place.items() if pubend not in event.pubends}
                last_of = {of: last for of, last in last_of.items() if of[0] not in event.pubends}
            if not isinstance(event, Logged):
                continue
            name = event.id.hex()
            if event.id in place:
                where = "twice in" if place[event.id] == event.pubend else f"in {place[event.id]} and in"
                yield Violation("duplicated", event.at, f"{name} lies {where} pubend {event.pubend}")
                continue
            place[event.id] = event.pubend
            twin = contents.setdefault(event.payload, event.id)
            if twin != event.id:
                where = f"{twin.hex()} of {place[twin]} and {name} of {event.pubend}"
                yield Violation("duplicated", event.at, f"one message lies in the logs under two ids: {where}")
            if event.tick <= last_tick.get(event.pubend, -1):
                yield Violation(
                    "misordered", event.at, f"tick {event.tick} of {event.pubend} was written after {last_tick[event.pubend]}"
                )
            last_tick[event.pubend] = event.tick
            publisher = (event.pubend, event.id[:8])
            if event.id < last_of.get(publisher, b""):
                yield Violation("misordered", event.at, f"{name} was written after the later {last_of[publisher].hex()}")
            last_of[publisher] = event.id


class AcknowledgedIsDurable:
    """An acknowledged message was durable before its publisher heard of it; a refused one never is, unless it was lost again."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        logged: dict[bytes, int] = {}  # id -> pubend
        lost: set[bytes] = set()
        refused: set[bytes] = set()
        for event in history:
            match event:
                case DiskLost(pubends=pubends):
                    lost |= {message_id for message_id, pubend in logged.items() if pubend in pubends}
                case Logged(id=message_id, pubend=pubend):
                    logged[message_id] = pubend
                    lost.discard(message_id)
                    if message_id in refused:
                        yield Violation("phantom", event.at, f"{message_id.hex()} was refused and then taken")
                case Acknowledged(id=message_id) if message_id not in logged:
                    yield Violation("lost", event.at, f"{message_id.hex()} was acknowledged but is not durable")
                case Refused(id=message_id):
                    refused.add(message_id)
                    if message_id in logged and message_id not in lost:
                        yield Violation("phantom", event.at, f"{message_id.hex()} was taken and then refused")
                case _:
                    pass


class PublishersConverge:
    """At the end every publisher knows what became of each of its messages."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        open_since: dict[bytes, float] = {}
        for event in history:
            match event:
                case Published(id=message_id):
                    open_since[message_id] = event.at
                case Acknowledged(id=message_id) | Refused(id=message_id) | Abandoned(id=message_id):
                    open_since.pop(message_id, None)
                case _:
                    pass
        for message_id, at in open_since.items():
            yield Violation("stuck", at, f"{message_id.hex()} was published, and its publisher never heard of it again")
