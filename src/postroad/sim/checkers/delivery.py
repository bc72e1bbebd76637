"""What applications must see: every matching message once, in order, complete after the start, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from postroad.sim.checkers.follower import Follower, Followers, Stream, replay
from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import Asked, Delivered, DiskLost, History, Logged, Published, Retired
from postroad.types import AttributeValue


class ExactlyOnce:
    """No application gets a message twice, except what its own crash made it forget."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        followers = Followers()
        for event in history:
            if isinstance(event, Delivered):
                stream = followers.stream(event.subscription, event.pubend)
                # Rows are in order unless that is broken too, so look only at those not before the tick.
                if stream is not None and any(row[1] == event.id for row in reversed(stream.rows) if row[0] >= event.tick):
                    yield Violation("duplicated", event.at, f"{event.subscription} got {event.id.hex()} again")
            followers.take(event)


class Order:
    """Messages of one pubend come in tick order, and after the tick where the subscription began."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        followers = Followers()
        for event in history:
            if isinstance(event, Delivered):
                yield from self._check_deliveries(followers.stream(event.subscription, event.pubend), event)
            followers.take(event)

    @staticmethod
    def _check_deliveries(stream: Stream | None, event: Delivered) -> Iterator[Violation]:
        if stream is None:
            yield Violation(
                "misordered", event.at, f"{event.subscription} got tick {event.tick} before it began on {event.pubend}"
            )
        elif stream.rows and event.tick < stream.rows[-1][0]:
            yield Violation(
                "misordered", event.at, f"{event.subscription} got tick {event.tick} of {event.pubend} after {stream.rows[-1][0]}"
            )
        elif event.tick <= stream.start:
            text = f"{event.subscription} got tick {event.tick} of {event.pubend}, but began after {stream.start}"
            yield Violation("misordered", event.at, text)


class NoPhantom:
    """What is delivered was published, is durable, is equal to what was published, and matches."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        published: dict[bytes, Published] = {}
        logged: dict[bytes, list[tuple[int, int]]] = {}  # where it lies; after a disk was lost perhaps at two places
        filters: dict[str, str] = {}
        for event in history:
            match event:
                case Published(id=message_id):
                    published[message_id] = event
                case Logged(id=message_id, pubend=pubend, tick=tick):
                    logged.setdefault(message_id, []).append((pubend, tick))
                case Asked(subscription=subscription, filter=text):
                    filters[subscription] = text
                case Delivered():
                    fault = self._fault(event, published.get(event.id), logged.get(event.id, []), filters, matches)
                    if fault:
                        yield Violation("phantom", event.at, f"{event.subscription} got {event.id.hex()}: {fault}")
                case _:
                    pass

    @staticmethod
    def _fault(
        event: Delivered, published: Published | None, places: list[tuple[int, int]], filters: dict[str, str], matches: Matches
    ) -> str:
        if published is None:
            return "nobody published it"
        if not places:
            return "it is not durable anywhere"
        if (event.pubend, event.tick) not in places:
            return f"it lies at {places[0]}, not at {(event.pubend, event.tick)}"
        if dict(event.attributes) != dict(published.attributes) or event.payload != published.payload:
            return f"it was changed from {published.attributes} to {event.attributes}"
        if not matches(filters.get(event.subscription, ""), published.attributes):
            return f"{published.attributes} does not match {filters.get(event.subscription)!r}"
        return ""


class Completeness:
    """At the end every application has all that matches after its start; what it was told to be gone does not count.

    Nor do those messages of a retired broker that lie ahead of it: nobody has them. What was lost with a disk before it began was
    never due, whatever its tick.

    A message behind the application's position was skipped: lost. One ahead of it has not come yet: stuck, since the world was
    healed and had its time.
    """

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        attributes = {event.id: event.attributes for event in history if isinstance(event, Published)}
        logged: dict[int, list[Logged]] = {}
        retired: set[int] = set()
        lost_at: dict[int, float] = {}
        for event in history:
            if isinstance(event, DiskLost):
                lost_at |= dict.fromkeys(event.pubends, event.at)
            elif isinstance(event, Retired):
                retired.update(event.pubends)
            elif isinstance(event, Logged):
                logged.setdefault(event.pubend, []).append(event)
        end = history.events[-1].at if history.events else 0.0
        for follower in replay(history):
            for pubend, rows in logged.items():
                stream, lost = follower.streams.get(pubend), lost_at.get(pubend, -1.0)
                due = [row for row in rows if row.at > lost] if stream is not None and stream.began_at > lost else rows
                for violation in self._missing(follower, pubend, due, attributes, matches, end):
                    if violation.kind != "stuck" or pubend not in retired:
                        yield violation

    @staticmethod
    def _missing(
        follower: Follower,
        pubend: int,
        rows: list[Logged],
        attributes: Mapping[bytes, Mapping[str, AttributeValue]],
        matches: Matches,
        end: float,
    ) -> Iterator[Violation]:
        stream = follower.streams.get(pubend)
        if stream is None:
            if not follower.ended:
                yield Violation("stuck", end, f"{follower.name} never began on pubend {pubend}")
            return
        have = {row[1] for row in stream.rows}
        for row in rows:
            if row.tick <= max(stream.start, stream.floor) or row.id in have or (follower.ended and row.tick > stream.position):
                continue
            if not matches(follower.filter, attributes.get(row.id, {})) or follower.has_told(pubend, row.tick):
                continue
            if row.tick <= stream.position:
                text = f"{follower.name} skipped {row.id.hex()} at tick {row.tick} of {pubend}: its position is {stream.position}"
                yield Violation("lost", row.at, text)
            else:
                text = f"{follower.name} waits at {stream.position} of {pubend} for {row.id.hex()} at tick {row.tick}"
                yield Violation("stuck", end, text)


class StartExactness:
    """What is published after a subscription was reported active lies after its start tick, so that it will come."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        followers = Followers()
        born: dict[bytes, Published] = {}
        for event in history:
            match event:
                case Published(id=message_id):
                    born[message_id] = event
                case Logged(id=message_id):
                    published = born.get(message_id)
                    if published is not None:
                        yield from self._check_logged(followers, published, event, matches)
                case _:
                    pass
            followers.take(event)

    @staticmethod
    def _check_logged(followers: Followers, published: Published, event: Logged, matches: Matches) -> Iterator[Violation]:
        for follower in followers:
            stream = follower.streams.get(event.pubend)
            if stream is None or follower.ended or published.at < stream.began_at or event.tick > stream.start:
                continue
            if matches(follower.filter, published.attributes):
                text = f"{follower.name} began at {stream.start} of {event.pubend}, then {event.id.hex()} got tick {event.tick}"
                yield Violation("lost", event.at, text)
