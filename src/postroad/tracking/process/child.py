"""The tracking process of a broker: `python -m postroad.tracking.process.child` with the end of a socket as standard input.

It ends when the broker does. Signals that a terminal or a service manager sends to all processes of a broker are left to the
broker, whose farewell comes by the socket. A broker that died said none: what it had said is written, and the next start of it
waits for that (`writer_lock`) and reports what may be missing.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from postroad.errors import StorageError
from postroad.tracking.process.backlog import Missed
from postroad.tracking.process.messages import (
    Answer,
    Ask,
    Begin,
    Decoder,
    Durable,
    FromTracker,
    Problem,
    Progress,
    Read,
    ToTracker,
    Want,
    encode,
)
from postroad.tracking.process.recording import Figures, PublishedIds
from postroad.tracking.process.worker import Tracking, clock_ms
from postroad.tracking.queries.answers import Findings
from postroad.tracking.tap.orders import Track, Tracked

log = logging.getLogger("postroad.tracking")

END_S_MAX: Final = 60.0  # for the last flush; nobody waits for it this long
NO_BOUND: Final = 1 << 62  # the broker bounds what is under way


class Line:
    """The way to the broker, for all threads. When the broker is gone, nobody hears what is said."""

    def __init__(self, end: socket.socket) -> None:
        self._end: Final = end
        self._lock: Final = threading.Lock()

    def say(self, message: FromTracker) -> None:
        data = b"".join(encode(message))
        with self._lock, suppress(ConnectionError):
            self._end.sendall(data)


class RemoteLogs:
    """The broker's logs, read by the broker: it owns them, and it alone knows what is durable."""

    def __init__(self, line: Line) -> None:
        self._line: Final = line
        self._numbers: Final = count(1)
        self._wanted: dict[int, Future[Read]] = {}
        self._gone = False

    def read(self, pubend: int, lo: int, hi: int, bytes_max: int) -> Read:
        number = next(self._numbers)
        future = self._wanted[number] = Future()
        if self._gone:
            self.give_up()
        self._line.say(Want(number, pubend, lo, hi, bytes_max))
        return future.result()

    def answer(self, message: Read) -> None:
        self._wanted.pop(message.number).set_result(message)

    def give_up(self) -> None:
        """Nobody will answer any more."""
        self._gone = True
        while self._wanted:
            _, future = self._wanted.popitem()
            future.set_exception(StorageError("the broker has ended"))


class RemoteLog:
    def __init__(self, logs: RemoteLogs, pubend: int) -> None:
        self._logs: Final = logs
        self._pubend: Final = pubend

    def ids(self, lo: int, hi: int, bytes_max: int) -> PublishedIds:
        found = self._logs.read(self._pubend, lo, hi, bytes_max)
        if found.problem is not None:
            raise StorageError(found.problem.text)
        return PublishedIds(found.hi, tuple(np.frombuffer(data, np.dtype((np.void, 16))) for data in found.ids))


class Serving:
    """Carries what the broker says to the thread that tracks, and back what that has to say."""

    def __init__(self, line: Line, begin: Begin) -> None:
        self._line: Final = line
        self._logs: Final = RemoteLogs(line)
        self._ended = False
        self._tracking: Final = Tracking(
            Path(begin.path),
            begin.state,
            {pubend: RemoteLog(self._logs, pubend) for pubend in begin.pubends},
            begin.settings,
            begin.options,
            self._report,
            started_ms=begin.started_ms,
            progress=self._progress,
            backlog_bytes_max=NO_BOUND,
            alone=True,
        )

    def take(self, message: ToTracker) -> None:
        match message:
            case Track():
                self._ended |= message.farewell
                self._tracking.track(message)
            case Missed():
                self._tracking.missed(message)
            case Ask():
                number = message.number
                self._tracking.search(message.question).add_done_callback(lambda found: self._answer(number, found))
            case Read():
                self._logs.answer(message)
            case Begin():
                raise AssertionError("a second beginning")

    def end(self) -> None:
        """Finish. A broker that said no farewell died: what it did say is written."""
        self._logs.give_up()
        if not self._ended and not self._tracking.figures.failed:
            log.warning("the broker ended unexpectedly; the tracks it sent are written to disk")
            self._tracking.track(Track(clock_ms(), (), flush=True))
        if not self._tracking.close(END_S_MAX):
            log.error("the last tracks could not be written within %.0f s", END_S_MAX)

    def _report(self, fact: Tracked) -> None:
        self._line.say(Durable(fact.horizons))

    def _progress(self, taken: int, figures: Figures) -> None:
        self._line.say(Progress(taken, figures))

    def _answer(self, number: int, found: Future[Findings]) -> None:
        error = found.exception()
        self._line.say(Answer.of(number, found.result()) if error is None else Answer(number, problem=Problem.of(error)))


def serve(end: socket.socket) -> None:
    """Track until the broker closes its end."""
    decoder = Decoder(ToTracker)
    serving: Serving | None = None
    line = Line(end)
    for message in decoder.receive(end):
        if serving is None:
            assert isinstance(message, Begin)
            logging.basicConfig(
                level=message.log_level.upper(),
                format=f"%(asctime)s %(levelname)-7s {message.title} %(name)s: %(message)s",
                stream=sys.stderr,
            )
            serving = Serving(line, message)
        else:
            serving.take(message)
    if serving is not None:
        serving.end()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as end:
        serve(end)


if __name__ == "__main__":
    main()
