"""The broker's part in traces: questions of clients, of other brokers' clients, and the answers.

A client asks any broker by way of its own. Its broker answers itself or sends the question on as unicast, and tells the client
at once when there is no way, and after a while when no answer comes: a question always gets an answer while the client is
connected. What another broker asks us is searched by the driver (`SearchTracks`), or read from the log, and answered to the
source.

Bounds: questions that wait, per client and in all; searches and log readings under way; the size of an answer. What is beyond
them is answered `BUSY`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from msgspec.structs import replace as replace_fields

from postroad.core.batch.batch import Batch
from postroad.core.batch.row_codec import join_rows, split_rows
from postroad.core.broker.context import FULL_HOPS
from postroad.core.broker.machine import Broker
from postroad.core.protocol.orders import LinkId, LogRead, ReadLog
from postroad.core.protocol.rights import OPEN, Rights
from postroad.core.protocol.status import BrokerReport
from postroad.errors import PostroadError
from postroad.tracking.queries.answering import coverage_answer, tracks_answer
from postroad.tracking.queries.answers import Covered, Findings, Searched
from postroad.tracking.queries.packets import AskTracks, TrackQuery, TrackReply, TracksAnswered
from postroad.tracking.queries.questions import (
    BROKERS_MAX,
    Answer,
    CoverageQuestion,
    MapAnswer,
    MapQuestion,
    MessageAnswer,
    MessageQuestion,
    Question,
    Status,
    StatusAnswer,
    StatusQuestion,
    TracksQuestion,
)
from postroad.tracking.tap.orders import ReportStatus, SearchTracks
from postroad.tracking.tap.recorder import Recorder
from postroad.types import COUNTER_BITS, MESSAGE_ID_BYTES, MessageId

ASKED_MAX: Final = 1024  # questions of our clients that wait for other brokers
ASKED_BY_ONE_MAX: Final = 64
SEARCHES_MAX: Final = 256  # searches and readings under way for anybody
REPORTS_MAX: Final = 64
PATIENCE_S: Final = 5.0
READ_BYTES: Final = 4 << 20  # of the log, at a time
READ_BYTES_MAX: Final = 256 << 20  # of the log, for one message


@dataclass(frozen=True, slots=True)
class _Client:
    """A client of ours that asked this broker."""

    link: LinkId
    request: int
    target: int


@dataclass(frozen=True, slots=True)
class _Broker:
    """Another broker that asked, for a client of its own."""

    broker: int
    request: int


_Asker: TypeAlias = _Client | _Broker


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that we sent on for a client."""

    link: LinkId
    packet: int
    target: int
    give_up_at: float


@dataclass(frozen=True, slots=True)
class _SearchOrder:
    question: TracksQuestion | CoverageQuestion
    asker: _Asker


@dataclass(frozen=True, slots=True)
class MessageFromLog:
    """A search for one message in a log of ours."""

    asker: _Asker
    id: bytes
    pubend: int
    lo: int
    position: int
    hi: int
    released: int = 0
    bytes_read: int = 0


class Tracing:
    """Questions about tracks that pass through one broker."""

    def __init__(self, machine: Broker, recorder: Recorder | None, late_ms: int) -> None:
        self._machine = machine
        self._context = machine.context
        self._recorder = recorder
        self._late_ms = late_ms
        self._asked: dict[int, _Asked] = {}  # by request
        self._searches: dict[int, _SearchOrder] = {}  # by token
        self._wanted: list[SearchTracks] = []
        self._reports: dict[int, _Asker] = {}  # by token
        self._report_orders: list[ReportStatus] = []
        self._readings = 0

    # --- our clients ---

    def ask(self, link: LinkId, packet: AskTracks, request: int, now: float) -> None:
        """Take a question of a client for any broker."""
        check_question(packet.question, self._context.rights_of(link))
        target = packet.target
        asker = _Client(link, request, target)
        if target == self._context.broker:
            self._answer(packet.question, asker)
        elif not self._context.routes.reachable(target):
            self._reply(asker, *self._no_way(target), None)
        elif len(self._asked) >= ASKED_MAX or sum(each.link == link for each in self._asked.values()) >= ASKED_BY_ONE_MAX:
            self._reply(asker, Status.BUSY, "the client's broker has too many questions in progress", None)
        else:
            number = self._context.next_request()
            self._asked[number] = _Asked(link, request, target, now + PATIENCE_S)
            self._context.unicast(TrackQuery(target, self._context.broker, FULL_HOPS, number, packet.question))

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
            if not self._context.routes.reachable(asked.target):
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
        answer = _hide_forbidden(answer, self._context.rights_of(asked.link))
        self._context.send(asked.link, TracksAnswered(asked.target, status, reason, answer), asked.packet)

    def _no_way(self, target: int) -> tuple[Status, str]:
        if target in self._context.known:
            return Status.UNREACHABLE, "no path leads to it now"
        return Status.UNKNOWN, "no broker with this id is known"

    # --- other brokers ---

    def asked(self, query: TrackQuery) -> None:
        """Take another broker's question."""
        self._answer(query.question, _Broker(query.source, query.request))

    # --- answers ---

    @property
    def searching(self) -> bool:
        """Whether there is something to be searched."""
        return bool(self._wanted)

    def take_orders(self) -> list[SearchTracks | ReportStatus]:
        """Return what is to be searched: after all that was noted has been ordered to be tracked. Reports come first."""
        orders: list[SearchTracks | ReportStatus] = [*self._report_orders, *self._wanted]
        self._wanted, self._report_orders = [], []
        return orders

    def _reply(self, asker: _Asker, status: Status, reason: str, answer: Answer | None) -> None:
        """Send an answer to the one who asked."""
        match asker:
            case _Client(link, request, target):
                if link in self._machine.clients:
                    answer = _hide_forbidden(answer, self._context.rights_of(link))
                    self._context.send(link, TracksAnswered(target, status, reason[:2000], answer), request)
            case _Broker(broker, request):
                me = self._context.broker
                self._context.unicast(TrackReply(broker, me, FULL_HOPS, request, status, reason[:2000], answer), data=True)

    def _answer(self, question: Question, asker: _Asker) -> None:
        match question:
            case TracksQuestion() | CoverageQuestion():
                self._search(question, asker)
            case MessageQuestion():
                self._begin_reading(question, asker)
            case MapQuestion():
                self._reply(asker, Status.ANSWERED, "", self._map())
            case StatusQuestion():
                self._ask_for_report(question, asker)

    def _ask_for_report(self, question: StatusQuestion, asker: _Asker) -> None:
        if len(self._reports) >= REPORTS_MAX:
            self._reply(asker, Status.BUSY, "it has too many questions in progress", None)
            return
        token = self._context.next_token()
        self._reports[token] = asker
        self._report_orders.append(ReportStatus(token, question))

    def reported(self, token: int, report: BrokerReport) -> None:
        """Pass on what the driver reported of this broker."""
        asker = self._reports.pop(token, None)
        if asker is not None:
            self._reply(asker, Status.ANSWERED, "", StatusAnswer(report))

    def _search(self, question: TracksQuestion | CoverageQuestion, asker: _Asker) -> None:
        if self._recorder is None:
            self._reply(asker, Status.OFF, "it has no tracks: tracking is switched off", None)
        elif isinstance(question, TracksQuestion) and len(question.ids) % MESSAGE_ID_BYTES:
            self._reply(asker, Status.FAILED, f"ids have {MESSAGE_ID_BYTES} bytes each", None)
        elif self.waiting >= SEARCHES_MAX:
            self._reply(asker, Status.BUSY, "it has too many questions in progress", None)
        else:
            if isinstance(question, CoverageQuestion):
                self._recorder.note_spans(question.subscriber)
            token = self._context.next_token()
            self._searches[token] = _SearchOrder(question, asker)
            self._wanted.append(SearchTracks(token, question))

    def searched(self, token: int, found: Findings | PostroadError) -> None:
        """Take what the driver found."""
        search = self._searches.pop(token, None)
        if search is None:
            return
        match found:
            case Searched():
                assert isinstance(search.question, TracksQuestion)
                self._reply(search.asker, Status.ANSWERED, "", self._tracks_answer(search.question, found))
            case Covered():
                self._reply(search.asker, Status.ANSWERED, "", coverage_answer(found))
            case PostroadError():
                self._reply(search.asker, Status.FAILED, str(found), None)

    def _tracks_answer(self, question: TracksQuestion, found: Searched) -> Answer:
        context = self._context
        assert self._recorder is not None
        present = self._machine.neighbours.values()
        return tracks_answer(question, found, present, wall_ms=context.wall_ms, per_neighbour=self._recorder.per_neighbour)

    def _map(self) -> MapAnswer:
        links = {record.origin: [broker for broker, _ in record.neighbours] for record in self._context.routes.records()}
        everyone = sorted({self._context.broker, *self._context.known, *links})[:BROKERS_MAX]
        return MapAnswer({broker: links.get(broker) for broker in everyone}, self._context.wall_ms)

    # --- the log ---

    def _begin_reading(self, question: MessageQuestion, asker: _Asker) -> None:
        """Look for one message in the log, from a little before its timestamp on, piece by piece."""
        wanted = MessageId.from_bytes(question.id)
        pubend = self._pubend_of(wanted)
        if pubend is None:
            self._reply(asker, Status.FAILED, "no message with this id was published there", None)
        elif self.waiting >= SEARCHES_MAX:
            self._reply(asker, Status.BUSY, "it has too many questions in progress", None)
        else:
            self._readings += 1
            lo = max(wanted.milliseconds - self._late_ms, 0) << COUNTER_BITS
            self._read_on(MessageFromLog(asker, question.id, pubend, lo, lo, max(self._machine.horizons()[pubend], lo)))

    def _pubend_of(self, wanted: MessageId) -> int | None:
        """Return the pubend whose log would have this message, if it is one of ours."""
        ids = sorted(self._machine.horizons())
        return ids[wanted.publisher % len(ids)] if wanted.broker == self._context.broker and ids else None

    def _read_on(self, reading: MessageFromLog) -> None:
        if reading.position >= reading.hi or reading.bytes_read >= READ_BYTES_MAX:
            self._end_reading(reading, None)
        elif not self._machine.log_reads.ask(ReadLog(reading.pubend, 0, reading.position, reading.hi, READ_BYTES), reading):
            self._readings -= 1
            self._reply(reading.asker, Status.BUSY, "too many readers use its log", None)

    def take_log(self, reading: MessageFromLog, result: LogRead) -> None:
        """Look through a piece of the log that was read."""
        wanted = MessageId.from_bytes(reading.id)
        released = max(reading.released, result.released, *(lost.hi for lost in result.lost))
        position, hi, size = max(result.hi, reading.position + 1), reading.hi, reading.bytes_read
        for batch in result.batches:
            size += batch.size
            row, passed = _find(batch, wanted)
            if row is not None:
                read = replace(reading, position=position, released=released, bytes_read=size)
                self._end_reading(read, batch.slice(row, row + 1))
                return
            if passed:
                hi = position  # a publisher's ids ascend in the log: it is not there
        self._read_on(replace(reading, position=position, hi=hi, released=released, bytes_read=size))

    def _end_reading(self, reading: MessageFromLog, found: Batch | None) -> None:
        self._readings -= 1
        answer = MessageAnswer(reading.lo, reading.position, reading.released, reading.pubend)
        if found is not None:
            message = found.message(0)
            rows, binary = split_rows([(reading.id, dict(message.attributes), message.payload)])
            answer = MessageAnswer(reading.lo, reading.position, reading.released, reading.pubend, message.tick, rows[0], binary)
        self._reply(reading.asker, Status.ANSWERED, "", answer)


def check_question(question: Question, rights: Rights) -> None:
    """Refuse a question of a client that may not ask it."""
    match question:
        case StatusQuestion():
            rights.administer()
        case MessageQuestion() if rights.subscribe is not None:
            pass  # it gets only a message that it may see
        case _:
            rights.traceable()


def _hide_forbidden(answer: Answer | None, rights: Rights) -> Answer | None:
    """Leave out of an answer the message that a client may not see; who may trace learns that it is there."""
    if not isinstance(answer, MessageAnswer) or answer.row is None or rights is OPEN:
        return answer
    (_, attributes, _), *_ = join_rows([answer.row], answer.binary)
    if rights.may_see(attributes):
        return answer
    return replace_fields(answer, tick=answer.tick if rights.trace else 0, row=None, binary={})


def _find(batch: Batch, wanted: MessageId) -> tuple[int | None, bool]:
    """Return the row of an id, or None and whether the log is beyond it."""
    words = batch.ids().view(">u8").reshape(-1, 2)
    of_publisher = words[:, 0] == np.uint64(wanted.publisher << 32 | wanted.broker)
    ticks = words[:, 1]
    rows = np.flatnonzero(of_publisher & (ticks == np.uint64(wanted.tick)))
    if len(rows):
        return int(rows[0]), False
    return None, bool((of_publisher & (ticks > np.uint64(wanted.tick))).any())
