"""Packets about tracks: questions of clients and of other brokers, and their answers."""

from __future__ import annotations

from typing import ClassVar

from postroad.core.protocol.packets import U32, U64, Packet, Unicast
from postroad.tracking.queries.questions import Answer, Question, Reason, Status


class AskTracks(Packet, frozen=True, array_like=True):
    """Ask any broker of the overlay about its tracks, by way of the one the client is connected to."""

    target: U32
    question: Question


class TracksAnswered(Packet, frozen=True, array_like=True):
    """What became of the question, and the answer if there is one."""

    is_answer: ClassVar[bool] = True

    broker: U32
    status: Status
    reason: Reason = ""
    answer: Answer | None = None


class TrackQuery(Unicast, frozen=True, array_like=True):
    """A client of the source asks this."""

    request: U64
    question: Question


class TrackReply(Unicast, frozen=True, array_like=True):
    """The answer to a query."""

    is_data: ClassVar[bool] = True

    request: U64
    status: Status
    reason: Reason = ""
    answer: Answer | None = None
