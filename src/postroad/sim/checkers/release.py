"""What the logs may let go of, when a gap is earned, and how much brokers may hold."""

from __future__ import annotations

from collections.abc import Iterator

from postroad.sim.checkers.follower import Follower, Followers
from postroad.sim.checkers.violations import Matches, Violation
from postroad.sim.history import Freed, Gapped, History, Logged, Measured, Published


class ReleaseSafety:
    """A pubend lets go of nothing that a durable subscription has not acknowledged, unless retention is over its bound."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:
        followers = Followers()
        published: dict[bytes, Published] = {}
        logged: dict[int, list[Logged]] = {}
        for event in history:
            match event:
                case Published():
                    published[event.id] = event
                case Logged():
                    logged.setdefault(event.pubend, []).append(event)
                case Freed(retention=False):
                    for follower in followers:
                        row = self._needed(follower, event, logged.get(event.pubend, []), published, matches)
                        if row is not None:
                            text = (
                                f"pubend {event.pubend} let go of everything up to {event.tick}; {follower.name} needs {row.tick}"
                            )
                            yield Violation("released", event.at, text)
                case _:
                    pass
            followers.take(event)

    @staticmethod
    def _needed(
        follower: Follower, event: Freed, rows: list[Logged], published: dict[bytes, Published], matches: Matches
    ) -> Logged | None:
        """Return the first message the subscription still needs of what was let go."""
        stream = follower.streams.get(event.pubend)
        if stream is None or follower.ended or not follower.durable or event.tick <= stream.committed:
            return None
        for row in rows:
            if not max(stream.committed, stream.floor) < row.tick <= event.tick or follower.has_told(event.pubend, row.tick):
                continue
            known = published.get(row.id)
            if known is not None and matches(follower.filter, known.attributes):
                return row
        return None


class GapsAreEarned:
    """A gap is only told where the log let go; to a durable subscription only where retention was over its bound.

    A live subscription holds no log while it is disconnected, so after that a gap may be told to it as well. One that wants
    all there is may get early messages from a cache before it meets what the log let go before it began.
    """

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        followers = Followers()
        freed: dict[int, int] = {}
        forced: dict[int, int] = {}
        for event in history:
            if isinstance(event, Freed):
                freed[event.pubend] = max(event.tick, freed.get(event.pubend, 0))
                if event.retention:
                    forced[event.pubend] = max(event.tick, forced.get(event.pubend, 0))
            follower = followers.take(event)
            if isinstance(event, Gapped) and follower is not None:
                earned = forced if follower.durable or not follower.was_disconnected else freed
                stream = follower.streams.get(event.pubend)
                if event.hi > max(earned.get(event.pubend, 0), stream.floor if stream is not None else 0):
                    text = f"{follower.name} was told that {event.lo}..{event.hi} of {event.pubend} is gone without need"
                    yield Violation("released", event.at, text)


class BoundedMemory:
    """No broker holds more of anything than its configuration allows."""

    def check(self, history: History, matches: Matches) -> Iterator[Violation]:  # noqa: ARG002
        worst: dict[tuple[int, str], Violation] = {}
        for event in history:
            if not isinstance(event, Measured):
                continue
            for name, (value, bound) in event.figures.items():
                if bound is not None and value > bound and (event.broker, name) not in worst:
                    text = f"broker {event.broker} has {name} at {value}, its bound is {bound}"
                    worst[event.broker, name] = Violation("unbounded", event.at, text)
        yield from worst.values()
