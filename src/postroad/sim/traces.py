"""Traces in a simulated overlay: the client's rounds of questions, with virtual time passing between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from postroad.sim.clients import ClientNode
from postroad.sim.overlay import Overlay
from postroad.tracking.queries.packets import TracksAnswered
from postroad.tracking.queries.questions import IDS_MAX, MapAnswer, MapQuestion, Question, Status, TracksAnswer, TracksQuestion
from postroad.tracking.queries.reconstruction import Reconstruction, Trace
from postroad.types import MessageId

ROUND_S_MAX: Final = 20.0
STEP_S: Final = 0.01


def trace_many(overlay: Overlay, client: ClientNode, home: int, ids: Sequence[MessageId]) -> list[Trace]:
    """Trace messages by way of the broker `home`, which the client must be connected to."""
    first = ask_all(overlay, client, {home: MapQuestion()})[home]
    assert isinstance(first.answer, MapAnswer), first
    search = Reconstruction(ids, first.answer)
    while asks := search.asks():
        _round(overlay, client, search, asks)
        search.finish_round()
    return search.traces()


def _round(overlay: Overlay, client: ClientNode, search: Reconstruction, asks: Mapping[int, Sequence[MessageId]]) -> None:
    waiting = {broker: (list(ids), "") for broker, ids in asks.items()}
    while waiting:
        questions = {b: TracksQuestion(b"".join(map(bytes, ids[:IDS_MAX])), after) for b, (ids, after) in waiting.items()}
        for broker, answered in ask_all(overlay, client, questions).items():
            ids, _ = waiting.pop(broker)
            answer = answered.answer
            if isinstance(answer, TracksAnswer):
                search.answered(broker, ids[:IDS_MAX], answer)
                if answer.answered < len(ids):
                    waiting[broker] = (ids[answer.answered :], answer.after)
            else:
                search.failed(broker, answered.status, answered.reason)


def ask_all(overlay: Overlay, client: ClientNode, questions: Mapping[int, Question]) -> dict[int, TracksAnswered]:
    """Ask brokers and let time pass until all have answered, or the client's broker did for them."""
    numbers = {broker: client.ask(broker, question) for broker, question in questions.items()}
    until = overlay.world.now + ROUND_S_MAX
    while overlay.world.now < until and any(number not in client.answers for number in numbers.values() if number is not None):
        overlay.run(overlay.world.now + STEP_S)
    answers = {}
    for broker, number in numbers.items():
        answer = client.answers.pop(number, None) if number is not None else None
        if not isinstance(answer, TracksAnswered):
            answer = TracksAnswered(broker, Status.SILENT, f"the client got no answer: {answer}")
        answers[broker] = answer
    return answers
