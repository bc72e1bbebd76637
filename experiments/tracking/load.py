"""The load of section 5.2: 200 publishers, 500 topics, 500 subscribers, 5,000 messages per second in and as many out.

Each publisher sends every 40 ms, not quite regularly, to one of its ten topics at random; a topic has four publishers. Each
subscriber has one topic; one topic in twenty has no subscriber ("a small portion"), so as many have a second one. The
publishers' clocks differ from the broker's by up to `skew_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from postroad.core.batch.batch import Ids
from postroad.core.protocol.packets import pubend_id
from postroad.tracking.histories.elements import ID_DTYPE
from postroad.tracking.histories.events import Delivered, Published, TrackEvent

WALL_MS: Final = 1_780_000_000_000
BROKER: Final = 1
PUBEND: Final = pubend_id(BROKER)
PERIOD_MS: Final = 40

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Turn(NamedTuple):
    """What a broker handles at one moment."""

    wall_ms: int
    ids: Ids
    topics: Numbers


@dataclass(frozen=True)
class Load:
    """Deterministic by its seed. `turn_ms` is how often the broker's events are taken by its tracker."""

    seconds: int
    publishers: int = 200
    topics: int = 500
    subscribers: int = 500
    topics_per_publisher: int = 10
    skew_ms: int = 0
    turn_ms: int = 100
    seed: int = 1

    @property
    def rate(self) -> int:
        return self.publishers * 1000 // PERIOD_MS

    def subscriptions(self) -> dict[int, list[str]]:
        """Return who subscribes to which topic."""
        random = np.random.default_rng(self.seed)
        order = random.permutation(self.topics)
        served = order[: self.topics - self.topics // 20]
        spread = np.concatenate([served, random.choice(served, max(self.subscribers - len(served), 0))])[: self.subscribers]
        found: dict[int, list[str]] = {}
        for number, topic in enumerate(spread.tolist()):
            found.setdefault(topic, []).append(f"subscriber-{number:03}")
        return found

    def turns(self) -> Iterator[Turn]:
        """Return what is published, turn by turn."""
        random = np.random.default_rng(self.seed + 1)
        skews = random.integers(-self.skew_ms, self.skew_ms + 1, self.publishers)
        phases = random.integers(0, PERIOD_MS // 2, self.publishers)
        rounds = np.arange(1000 // PERIOD_MS) * PERIOD_MS
        for second in range(self.seconds):
            jitter = random.integers(0, PERIOD_MS // 2, (self.publishers, len(rounds)))
            sent = (second * 1000 + rounds + phases[:, None] + jitter).reshape(-1)
            publisher = np.repeat(np.arange(self.publishers), len(rounds))
            choice = random.integers(0, self.topics_per_publisher, len(sent))
            topic = (publisher * self.topics_per_publisher + choice) % self.topics
            order = np.argsort(sent, kind="stable")
            sent, publisher, topic = sent[order], publisher[order], topic[order]
            ids = np.zeros(len(sent), ID_DTYPE)
            ids["publisher"], ids["broker"] = publisher + 1, BROKER
            ids["tick"] = (WALL_MS + sent + skews[publisher]).astype(np.uint64) << np.uint64(16)
            yield from self._cut(second, sent, ids.view("V16"), topic)

    def _cut(self, second: int, sent: Numbers, ids: Ids, topics: Numbers) -> Iterator[Turn]:
        ends = np.arange(second * 1000 + self.turn_ms, second * 1000 + 1001, self.turn_ms)
        start = 0
        for end, stop in zip(ends.tolist(), np.searchsorted(sent, ends).tolist(), strict=True):
            yield Turn(WALL_MS + end, ids[start:stop], topics[start:stop])
            start = stop

    def events(self) -> Iterator[tuple[int, list[TrackEvent]]]:
        """Return what a broker tells its tracker, turn by turn: a publication, and deliveries to those who got something."""
        subscriptions = self.subscriptions()
        for turn in self.turns():
            events: list[TrackEvent] = [Published(PUBEND, turn.ids)]
            order = np.argsort(turn.topics, kind="stable")
            bounds = np.searchsorted(turn.topics[order], np.arange(self.topics + 1)).tolist()
            ids = turn.ids[order]
            for topic, names in subscriptions.items():
                if bounds[topic] < bounds[topic + 1]:
                    part = ids[bounds[topic] : bounds[topic + 1]]
                    events += [Delivered(name, PUBEND, part) for name in names]
            yield turn.wall_ms, events


def published(count: int, seed: int = 1) -> Ids:
    """Return the first ids of the load."""
    return np.concatenate([turn.ids for turn in Load(count // 5_000 + 1, seed=seed).turns()])[:count]


def strangers(count: int, span_ms: int, random: np.random.Generator, from_ms: int = WALL_MS) -> Ids:
    """Return ids that nobody published, of the same broker, at times within the span."""
    ids = np.zeros(count, ID_DTYPE)
    ids["publisher"] = random.integers(1_001, 100_001, count)
    ids["broker"] = BROKER
    times = (from_ms + random.integers(0, max(span_ms, 1), count)).astype(np.uint64)
    ids["tick"] = (times << np.uint64(16)) | random.integers(0, 4, count).astype(np.uint64)
    return ids.view("V16")
