"""Putting a message's path together from what brokers answer: the paper's section 3.3, for many messages at once.

The search is breadth first. In a round, every broker at the same distance is asked, each once, with all the ids that concern it;
then the neighbours of those that saw a message are next for that message. When a broker could not be asked, or its tracks have a
hole where the message belongs, it may have seen the message, and the search goes on behind it. Neighbours are those of then and
later, not only those of today; and whoever a broker says it got the message from is asked too.

False positives: a hit counts when the message was there before it could come: published at its origin, then at each broker the
one it came from. What hangs in the air, because that neighbour answered and did not see the message, is *isolated* (section
5.3), with all behind it. A broker that could not be asked, or has a hole, isolates nobody.

Pure: `asks` says whom to ask, `answered` and `failed` take what came of it; when `asks` is empty, `traces` has the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from postroad.tracking.histories.elements import Kind
from postroad.tracking.queries.questions import HoleFound, KeyFound, MapAnswer, Status, TracksAnswer
from postroad.types import MessageId

FUTURE_MS: Final = 10_000  # a clock may be wrong by as much, and not more


@dataclass(frozen=True, slots=True)
class Visit:
    """A broker that saw the message; `upstream` is where it came from, None at its origin and where nobody knows.

    `probability` is that of a false positive: that the broker would say the same of a message it never saw.
    """

    broker: int
    upstream: int | None
    probability: float
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """A subscriber that the message was sent to."""

    subscriber: str
    broker: int
    probability: float
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class Unasked:
    """A broker that may have seen the message and could not be asked."""

    broker: int
    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class TrackHole:
    """A broker whose tracks may lack the message."""

    broker: int
    kind: str
    from_ms: int
    to_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a message came from, which way it went, and who got it, as far as could be found out.

    `published` is the probability that the origin's answer is a false positive; None when it does not know the message, or could
    not be asked. `problem` says what is wrong with the id, if anything is. `Client.trace` gives it.

    ```python
    message_id = await client.publish({"symbol": "ACME", "price": 101.5})
    trace = await client.trace(message_id)
    print([visit.broker for visit in trace.brokers], [receipt.subscriber for receipt in trace.subscribers])
    ```
    """

    id: MessageId
    published: float | None
    brokers: tuple[Visit, ...]
    subscribers: tuple[Receipt, ...]
    unasked: tuple[Unasked, ...]
    holes: tuple[TrackHole, ...]
    problem: str = ""

    @property
    def origin(self) -> int:
        """The broker where it was published, by its id."""
        return self.id.broker

    @property
    def publisher(self) -> int:
        """The publisher, by its id."""
        return self.id.publisher

    @property
    def found(self) -> bool:
        """Whether any broker knows the message."""
        return self.published is not None or any(not visit.isolated for visit in self.brokers)

    @property
    def complete(self) -> bool:
        """Whether nobody that may know more was out of reach or has a hole."""
        return not self.unasked and not self.holes


@dataclass(slots=True)
class _View:
    """What one broker says of one message."""

    published: float | None = None
    routed: dict[int, float] = field(default_factory=dict)  # upstream neighbour -> probability
    subscribers: dict[str, float] = field(default_factory=dict)
    forwarded: dict[int, None] | None = None  # None: not known, so perhaps to every neighbour
    holes: list[HoleFound] = field(default_factory=list)

    @property
    def saw(self) -> bool:
        return self.published is not None or bool(self.routed) or bool(self.subscribers)


@dataclass(slots=True)
class _MessageSearch:
    """One message on its way to being found."""

    id: MessageId
    frontier: dict[int, None]
    views: dict[int, _View] = field(default_factory=dict)
    unasked: dict[int, Unasked] = field(default_factory=dict)
    asked: dict[int, None] = field(default_factory=dict)


class Reconstruction:
    """The traces of many messages. `overlay` is the map of the client's own broker."""

    def __init__(self, ids: Sequence[MessageId], overlay: MapAnswer) -> None:
        self._overlay: Final = {broker: tuple(links) if links is not None else None for broker, links in overlay.brokers.items()}
        self._wall_ms: Final = overlay.wall_ms
        self._searches: Final = {each: _MessageSearch(each, {each.broker: None}) for each in ids}
        self._order: Final = tuple(ids)
        self._neighbours: dict[int, dict[int, int]] = {}  # broker -> neighbour -> until when
        self._round: dict[int, list[MessageId]] = {}

    # --- asking ---

    def asks(self) -> dict[int, list[MessageId]]:
        """Begin the next round: return whom to ask about which messages. Every one must be answered or failed before the next."""
        assert not self._round, "the round is not over"
        for search in self._searches.values():
            for broker in search.frontier:
                search.asked[broker] = None
                self._round.setdefault(broker, []).append(search.id)
            search.frontier = {}
        return {broker: list(ids) for broker, ids in self._round.items()}

    def answered(self, broker: int, asked: Sequence[MessageId], answer: TracksAnswer) -> None:
        """Take one answer: about the first `answered` of the messages that were asked for, and perhaps a part of the next."""
        self._neighbours.setdefault(broker, {}).update(answer.neighbours)
        told = answer.answered + bool(answer.after)
        views = [self._searches[each].views.setdefault(broker, _View()) for each in asked[:told]]
        for each, view in zip(asked, views, strict=False):
            view.holes = [hole for hole in answer.holes if hole.from_ms <= each.milliseconds <= hole.to_ms]
            if answer.per_neighbour and view.forwarded is None:
                view.forwarded = {}
        for hit in answer.hits:
            if hit.row < len(views) and hit.key < len(answer.keys):
                _note(views[hit.row], answer.keys[hit.key], hit.probability, hit.forwarded)

    def failed(self, broker: int, status: Status, reason: str) -> None:
        """Take note that a broker of this round could not be asked."""
        for each in self._round.get(broker, ()):
            search = self._searches[each]
            if broker not in search.views:
                search.unasked[broker] = Unasked(broker, status, reason)

    def finish_round(self) -> None:
        """Decide where to look next."""
        asked, self._round = self._round, {}
        for broker, ids in asked.items():
            for each in ids:
                self._go_on(self._searches[each], broker)

    def _go_on(self, search: _MessageSearch, broker: int) -> None:
        view = search.views.get(broker)
        following: Iterable[int]
        if view is None:
            following = self._links_of(broker)
        elif view.holes:
            following = (*self._near(broker, search.id.milliseconds), *view.routed)
        elif view.saw:
            near = self._near(broker, search.id.milliseconds) if view.forwarded is None else view.forwarded
            following = (*near, *view.routed)
        else:
            following = ()
        search.frontier.update(dict.fromkeys(other for other in following if other not in search.asked))

    def _near(self, broker: int, milliseconds: int) -> Iterator[int]:
        """Yield the neighbours that a broker had when the message may have passed, or later."""
        return (other for other, until in self._neighbours.get(broker, {}).items() if until >= milliseconds - FUTURE_MS)

    def _links_of(self, broker: int) -> Iterable[int]:
        """Return who may be behind a broker that does not answer: its last known links, else everybody."""
        links = self._overlay.get(broker)
        others = [other for other, near in self._neighbours.items() if broker in near]
        return tuple(self._overlay) if links is None else (*links, *others)

    # --- the result ---

    def traces(self) -> list[Trace]:
        """Return the traces, in the order of the ids."""
        return [self._trace(self._searches[each]) for each in self._order]

    def _trace(self, search: _MessageSearch) -> Trace:
        origin = search.views.get(search.id.broker)
        upstream = _settle(search)
        visits, receipts = [], []
        for broker, view in search.views.items():
            isolated = broker not in upstream
            if view.published is not None or view.routed:
                source = upstream.get(broker)
                probability = _probability(view, source)
                visits.append(Visit(broker, source, probability, isolated))
            receipts += [Receipt(name, broker, chance, isolated) for name, chance in sorted(view.subscribers.items())]
        return Trace(
            id=search.id,
            published=None if origin is None else origin.published,
            brokers=tuple(visits),
            subscribers=tuple(receipts),
            unasked=tuple(search.unasked.values()),
            holes=tuple(_holes(search)),
            problem=self._problem(search),
        )

    def _problem(self, search: _MessageSearch) -> str:
        origin, ahead_ms = search.id.broker, search.id.milliseconds - self._wall_ms
        if origin not in self._overlay:
            return f"the id names broker {origin}, but no broker with this id is known"
        if ahead_ms > FUTURE_MS:
            return f"the id's timestamp lies {ahead_ms / 1000:,.0f} s in the future"
        view = search.views.get(origin)
        if view is not None and not view.saw and any(hole.kind == "dropped" for hole in view.holes):
            return f"the message is older than the tracks that broker {origin} keeps"
        return ""


def _note(view: _View, key: KeyFound, probability: float, forwarded: Iterable[int] | None) -> None:
    match key.kind:
        case Kind.PUBLISHER:
            view.published = probability
        case Kind.ROUTING:
            view.routed[key.peer] = probability
            if forwarded is not None:
                view.forwarded = {**(view.forwarded or {}), **dict.fromkeys(forwarded)}
        case Kind.NEIGHBOUR:
            view.forwarded = {**(view.forwarded or {}), key.peer: None}
        case Kind.SUBSCRIBER:
            view.subscribers[key.subscriber] = probability
        case _:
            pass  # of a later version


def _settle(search: _MessageSearch) -> dict[int, int | None]:
    """Return the brokers that the message really came to, as far as one can tell, each with the one it came from."""
    origin = search.id.broker
    view = search.views.get(origin)
    upstream: dict[int, int | None] = {}
    if view is None or view.published is not None or view.holes:
        upstream[origin] = None
    reached = dict.fromkeys([*upstream, *search.unasked, *(b for b, v in search.views.items() if v.holes)])
    waiting = {broker: each for broker, each in search.views.items() if broker not in upstream}
    while True:
        found = {broker: source for broker, each in waiting.items() if (source := _source(each, reached)) is not None}
        if not found:
            break
        upstream.update(found)
        reached.update(dict.fromkeys(found))
        waiting = {broker: each for broker, each in waiting.items() if broker not in found}
    for broker, each in waiting.items():
        if each.holes and each.saw:
            upstream[broker] = None
    return upstream


def _source(view: _View, reached: Mapping[int, None]) -> int | None:
    """Return from whom a broker got the message: of those that had it, the most certain."""
    known = [(probability, peer) for peer, probability in view.routed.items() if peer in reached]
    return min(known)[1] if known else None


def _probability(view: _View, source: int | None) -> float:
    if view.published is not None:
        return view.published
    return view.routed[source] if source in view.routed else min(view.routed.values())


def _holes(search: _MessageSearch) -> Iterator[TrackHole]:
    for broker, view in search.views.items():
        for hole in view.holes:
            yield TrackHole(broker, hole.kind, hole.from_ms, hole.to_ms, hole.reason)
