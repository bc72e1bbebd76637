"""The books of a run, and what must hold of them: real-time rules, seen from the clients only.

Each rule cites the seed's section it checks. Times are the world's; `skew_s` is the bound within which two servers' clocks
may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

EPSILON_S: Final = 0.001
REPORTED_MAX: Final = 20


@dataclass(slots=True)
class PutBook:
    """`done` is when a success was returned; None when none ever was."""

    publisher: str
    topic: str
    number: int
    invoked: float
    done: float | None = None

    @property
    def body(self) -> bytes:
        return f"{self.publisher} {self.topic} {self.number}".encode()


@dataclass(slots=True)
class SubscriptionBook:
    joining: bool
    invoked: float
    done: float | None = None


@dataclass(slots=True)
class Books:
    puts: dict[bytes, PutBook] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], list[SubscriptionBook]] = field(default_factory=dict)
    received: dict[tuple[str, str], list[tuple[float, bytes]]] = field(default_factory=dict)

    def new_put(self, publisher: str, topic: str, number: int, now: float) -> PutBook:
        book = PutBook(publisher, topic, number, now)
        self.puts[book.body] = book
        return book

    def subscription(self, client: str, topic: str, *, joining: bool, now: float) -> SubscriptionBook:
        book = SubscriptionBook(joining, now)
        self.subscriptions.setdefault((client, topic), []).append(book)
        return book

    def receive(self, client: str, topic: str, body: bytes, now: float) -> None:
        self.received.setdefault((client, topic), []).append((now, body))


@dataclass(slots=True)
class Verdicts:
    lost: int = 0
    duplicated: int = 0
    misordered: int = 0
    unexpected: int = 0
    stuck: int = 0
    leaked: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str, count: int = 1) -> None:
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.examples) < REPORTED_MAX:
            self.examples.append(f"{kind}: {text}")

    @property
    def total(self) -> int:
        return self.lost + self.duplicated + self.misordered + self.unexpected + self.stuck + self.leaked


def check(books: Books, verdicts: Verdicts, *, skew_s: float) -> None:
    for (client, topic), received in books.received.items():
        _check_once(client, topic, received, verdicts)
        _check_order(client, topic, received, books, verdicts)
        _check_entitled(client, topic, received, books, verdicts, skew_s)
    for (client, topic), events in books.subscriptions.items():
        _check_complete(client, topic, events, books, verdicts)


def _check_once(client: str, topic: str, received: list[tuple[float, bytes]], verdicts: Verdicts) -> None:
    """Section 2.3: what was received "will not be received again in the future by the client with the given ID"."""
    seen: dict[bytes, None] = {}
    for now, body in received:
        if body in seen:
            verdicts.note("duplicated", f"{client} received {body!r} again at {now:.3f} on {topic}")
        seen[body] = None


def _check_order(client: str, topic: str, received: list[tuple[float, bytes]], books: Books, verdicts: Verdicts) -> None:
    """Check that a publisher's messages arrive in the order it put them."""
    last: dict[str, int] = {}
    for now, body in received:
        put = books.puts.get(body)
        if put is None:
            continue
        if put.number < last.get(put.publisher, -1):
            verdicts.note("misordered", f"{client} received {body!r} after number {last[put.publisher]} at {now:.3f}")
        last[put.publisher] = max(put.number, last.get(put.publisher, -1))
    del topic


def _check_entitled(
    client: str, topic: str, received: list[tuple[float, bytes]], books: Books, verdicts: Verdicts, skew_s: float
) -> None:
    """Sections 2.1 and 2.2: only messages processed after the subscription, and none after a successful unsubscribe."""
    events = books.subscriptions.get((client, topic), [])
    for now, body in received:
        put = books.puts.get(body)
        if put is None or put.topic != topic:
            verdicts.note("unexpected", f"{client} received {body!r}, which nobody put on {topic}")
            continue
        ended = max((e.invoked for e in events if not e.joining and e.done is not None and e.done < now), default=-1.0)
        live = [e for e in events if e.joining and e.invoked <= now and (e.done or now) >= ended]
        if not live:
            verdicts.note("unexpected", f"{client} received {body!r} at {now:.3f} although it is not subscribed to {topic}")
        elif put.done is not None and put.done + skew_s < min(e.invoked for e in live):
            verdicts.note("unexpected", f"{client} received {body!r} put before its subscription to {topic}")


def _check_complete(client: str, topic: str, events: list[SubscriptionBook], books: Books, verdicts: Verdicts) -> None:
    """Section 2.4: all subscribers whose subscription came first "will eventually receive the message"."""
    got = [body for _, body in books.received.get((client, topic), [])]
    have = set(got)
    for start, end in _sessions(events):
        owed: dict[str, list[PutBook]] = {}
        for put in books.puts.values():
            in_time = put.done is not None and put.invoked > start + EPSILON_S and (end is None or put.done < end)
            if put.topic == topic and in_time:
                owed.setdefault(put.publisher, []).append(put)
        for puts in owed.values():
            if end is not None:  # it left early: owed is what lies before the last one it did receive
                last = max((i for i, put in enumerate(puts) if put.body in have), default=-1)
                del puts[last + 1 :]
            for put in puts:
                if put.body not in have:
                    verdicts.note(
                        "lost", f"{client} never received {put.body!r} (put at {put.invoked:.3f}, subscribed at {start:.3f})"
                    )


def _sessions(events: list[SubscriptionBook]) -> list[tuple[float, float | None]]:
    """Give the spans from a subscription's success to the next unsubscribe's invocation, or to the end."""
    spans: list[tuple[float, float | None]] = []
    start: float | None = None
    for event in events:
        if event.joining and event.done is not None and start is None:
            start = event.done
        elif not event.joining and start is not None:
            spans.append((start, event.invoked))
            start = None
    if start is not None:
        spans.append((start, None))
    return spans
