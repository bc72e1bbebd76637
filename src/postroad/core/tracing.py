"""The broker's part in traces: questions of clients, of other brokers' clients, and the answers.

A client asks any broker by way of its own. Its broker answers itself or sends the question on as unicast, and tells the client
at once when there is no way, and after a while when no answer comes: a question always gets an answer while the client is
connected. What another broker asks us is searched by the driver (`SearchTracks`), or read from the log, and answered to the
source.

Bounds: questions that wait, per client and in all; searches and log readings under way; the size of an answer. What is beyond
them is answered `BUSY`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import split_rows
from postroad.core.broker.context import FULL_HOPS, Parts
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog, SearchTracks
from postroad.core.protocol.packets import AskTracks, TrackQuery, TrackReply, TracksAnswered
from postroad.core.tracking.answering import coverage_answer, tracks_answer
from postroad.core.tracking.answers import Covered, Findings, Searched
from postroad.core.tracking.questions import (
    BROKERS_MAX,
    Answer,
    CoverageQuestion,
    MapAnswer,
    MapQuestion,
    MessageAnswer,
    MessageQuestion,
    Question,
    Status,
    TracksQuestion,
)
from postroad.errors import PostroadError
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES, MessageId

ASKED_MAX: Final = 1024  # questions of our clients that wait for other brokers
ASKED_BY_ONE_MAX: Final = 64
SEARCHES_MAX: Final = 256  # searches and readings under way for anybody
PATIENCE_S: Final = 5.0
READ_BYTES: Final = 4 << 20  # of the log, at a time
READ_BYTES_MAX: Final = 256 << 20  # of the log, for one message

Done: TypeAlias = Callable[[Status, str, Answer | None], None]
ReadDone: TypeAlias = Callable[[LogRead, float], None]
Read: TypeAlias = Callable[[ReadLog, ReadDone], bool]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that we sent on for a client."""

    link: LinkId
    packet: int
    target: int
    give_up_at: float


@dataclass(frozen=True, slots=True)
class _Search:
    question: TracksQuestion | CoverageQuestion
    done: Done


class Tracing:
    """Questions about tracks that pass through one broker."""

    def __init__(self, parts: Parts, read: Read) -> None:
        self._parts = parts
        self._read = read
        self._asked: dict[int, _Asked] = {}  # by request
        self._searches: dict[int, _Search] = {}  # by token
        self._wanted: list[SearchTracks] = []
        self._readings = 0

    # --- our clients ---

    def ask(self, link: LinkId, packet: AskTracks, request: int, now: float) -> None:
        """Take a question of a client for any broker."""
        target = packet.target

        def done(status: Status, reason: str, answer: Answer | None) -> None:
            if link in self._parts.clients:
                self._parts.send(link, TracksAnswered(target, status, reason[:2000], answer), request)

        if target == self._parts.broker:
            self._answer(packet.question, done)
        elif not self._parts.router.reachable(target):
            done(*self._no_way(target), None)
        elif len(self._asked) >= ASKED_MAX or sum(each.link == link for each in self._asked.values()) >= ASKED_BY_ONE_MAX:
            done(Status.BUSY, "the client's broker has too many questions under way", None)
        else:
            number = self._parts.next_request()
            self._asked[number] = _Asked(link, request, target, now + PATIENCE_S)
            self._parts.unicast(TrackQuery(target, self._parts.broker, FULL_HOPS, number, packet.question))

    def replied(self, reply: TrackReply) -> None:
        """Give a broker's answer to the client who asked."""
        asked = self._asked.get(reply.request)
        if asked is not None and asked.target == reply.source:
            del self._asked[reply.request]
            self._tell(asked, reply.status, reply.reason, reply.answer)

    def link_lost(self, link: LinkId) -> None:
        self._asked = {number: asked for number, asked in self._asked.items() if asked.link != link}

    def routes_changed(self) -> None:
        """Give up questions to brokers that cannot be reached any more."""
        for number, asked in list(self._asked.items()):
            if not self._parts.router.reachable(asked.target):
                del self._asked[number]
                self._tell(asked, *self._no_way(asked.target), None)

    def expire(self, now: float) -> None:
        """Give up questions that were not answered in time."""
        for number, asked in list(self._asked.items()):
            if asked.give_up_at <= now:
                del self._asked[number]
                self._tell(asked, Status.SILENT, f"no answer within {PATIENCE_S:g} s", None)

    @property
    def waiting(self) -> int:
        return len(self._asked) + len(self._searches) + self._readings

    def _tell(self, asked: _Asked, status: Status, reason: str, answer: Answer | None) -> None:
        self._parts.send(asked.link, TracksAnswered(asked.target, status, reason, answer), asked.packet)

    def _no_way(self, target: int) -> tuple[Status, str]:
        if target in self._parts.known:
            return Status.UNREACHABLE, "there is no way to it now"
        return Status.UNKNOWN, "no such broker was ever heard of"

    # --- other brokers ---

    def asked(self, query: TrackQuery) -> None:
        """Take another broker's question."""

        def done(status: Status, reason: str, answer: Answer | None) -> None:
            me = self._parts.broker
            self._parts.unicast(TrackReply(query.source, me, FULL_HOPS, query.request, status, reason[:2000], answer), data=True)

        self._answer(query.question, done)

    # --- answers ---

    @property
    def searching(self) -> bool:
        """Whether there is something to be searched."""
        return bool(self._wanted)

    def take_orders(self) -> list[SearchTracks]:
        """Return what is to be searched: after all that was noted has been ordered to be tracked."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def _answer(self, question: Question, done: Done) -> None:
        match question:
            case TracksQuestion() | CoverageQuestion():
                self._search(question, done)
            case MessageQuestion():
                _Reading(self, question, done).begin()
            case MapQuestion():
                done(Status.ANSWERED, "", self._map())

    def _search(self, question: TracksQuestion | CoverageQuestion, done: Done) -> None:
        if self._parts.notes is None:
            done(Status.OFF, "it keeps no tracks: tracking is switched off there", None)
        elif isinstance(question, TracksQuestion) and len(question.ids) % MESSAGE_ID_BYTES:
            done(Status.FAILED, f"ids have {MESSAGE_ID_BYTES} bytes each", None)
        elif self.waiting >= SEARCHES_MAX:
            done(Status.BUSY, "it has too many questions under way", None)
        else:
            if isinstance(question, CoverageQuestion):
                self._parts.notes.note_spans(question.subscriber)
            token = self._parts.next_token()
            self._searches[token] = _Search(question, done)
            self._wanted.append(SearchTracks(token, question))

    def searched(self, token: int, found: Findings | PostroadError) -> None:
        """Take what the driver found."""
        search = self._searches.pop(token, None)
        if search is None:
            return
        match found:
            case Searched():
                assert isinstance(search.question, TracksQuestion)
                search.done(Status.ANSWERED, "", self._tracks_answer(search.question, found))
            case Covered():
                search.done(Status.ANSWERED, "", coverage_answer(found))
            case PostroadError():
                search.done(Status.FAILED, str(found), None)

    def _tracks_answer(self, question: TracksQuestion, found: Searched) -> Answer:
        parts = self._parts
        assert parts.notes is not None
        present = parts.brokers.values()
        return tracks_answer(question, found, present, wall_ms=parts.wall_ms, per_neighbour=parts.notes.per_neighbour)

    def _map(self) -> MapAnswer:
        links = {record.origin: [broker for broker, _ in record.neighbours] for record in self._parts.router.records()}
        everyone = sorted({self._parts.broker, *self._parts.known, *links})[:BROKERS_MAX]
        return MapAnswer({broker: links.get(broker) for broker in everyone}, self._parts.wall_ms)

    # --- the log ---

    def begin_reading(self) -> bool:
        if self.waiting >= SEARCHES_MAX:
            return False
        self._readings += 1
        return True

    def end_reading(self) -> None:
        self._readings -= 1

    def pubend_of(self, wanted: MessageId) -> int | None:
        """Return the pubend whose log would have this message, if it is one of ours."""
        ids = sorted(self._parts.pubends)
        return ids[wanted.publisher % len(ids)] if wanted.broker == self._parts.broker and ids else None

    def horizon(self, pubend: int) -> int:
        return self._parts.pubends[pubend].horizon

    @property
    def late_ms(self) -> int:
        return self._parts.config.tracking.late_ms

    def read(self, order: ReadLog, done: ReadDone) -> bool:
        return self._read(order, done)


class _Reading:
    """Looks for one message in a log, from a little before its timestamp on, piece by piece."""

    def __init__(self, tracing: Tracing, question: MessageQuestion, done: Done) -> None:
        self._tracing = tracing
        self._wanted = question.id
        self._id = MessageId.from_bytes(question.id)
        self._done = done
        self._pubend = 0
        self._lo = self._position = self._hi = self._released = self._bytes = 0

    def begin(self) -> None:
        pubend = self._tracing.pubend_of(self._id)
        if pubend is None:
            self._done(Status.FAILED, "messages with this id were not published there", None)
        elif not self._tracing.begin_reading():
            self._done(Status.BUSY, "it has too many questions under way", None)
        else:
            self._pubend = pubend
            early_ms = max(self._id.milliseconds - self._tracing.late_ms, 0)
            self._lo = self._position = early_ms << COUNTER_BITS
            self._hi = max(self._tracing.horizon(pubend), self._lo)
            self._next()

    def _next(self) -> None:
        if self._position >= self._hi or self._bytes >= READ_BYTES_MAX:
            self._finish(None)
        elif not self._tracing.read(ReadLog(self._pubend, 0, self._position, self._hi, READ_BYTES), self._take):
            self._tracing.end_reading()
            self._done(Status.BUSY, "its log is being read by too many", None)

    def _take(self, result: LogRead, now: float) -> None:
        del now
        self._released = max(self._released, result.released, *(lost.hi for lost in result.lost))
        self._position = max(result.hi, self._position + 1)
        for batch in result.batches:
            self._bytes += batch.size
            row, passed = _find(batch, self._id)
            if row is not None:
                self._finish(batch.slice(row, row + 1))
                return
            if passed:
                self._hi = self._position  # a publisher's ids ascend in the log: it is not there
        self._next()

    def _finish(self, found: Batch | None) -> None:
        self._tracing.end_reading()
        answer = MessageAnswer(self._lo, self._position, self._released, self._pubend)
        if found is not None:
            message = found.message(0)
            rows, binary = split_rows([(self._wanted, dict(message.attributes), message.payload)])
            answer = MessageAnswer(self._lo, self._position, self._released, self._pubend, message.tick, rows[0], binary)
        self._done(Status.ANSWERED, "", answer)


def _find(batch: Batch, wanted: MessageId) -> tuple[int | None, bool]:
    """Return the row of an id, or None and whether the log is beyond it."""
    words = batch.ids().view(">u8").reshape(-1, 2)
    of_publisher = words[:, 0] == np.uint64(wanted.publisher << 32 | wanted.broker)
    ticks = words[:, 1]
    rows = np.flatnonzero(of_publisher & (ticks == np.uint64(wanted.tick)))
    if len(rows):
        return int(rows[0]), False
    return None, bool((of_publisher & (ticks > np.uint64(wanted.tick))).any())
