"""The profiling log: one line for each call of a method, written by clients and by brokers alike.

The Telesto report (chapter 4) has a package for "profiling and benchmark logging", used by the client and the middleware. It does
not give the format; this is ours. A line is one JSON object:

    {"at": 1763462400.123, "side": "broker", "method": "PutMessages", "client": 7, "us": 412, "outcome": "ok"}

`at` is when the call began (seconds since 1970), `us` how long it took in microseconds: at a broker from the decoded request to
its answer, at a client from the call to its answer, waiting included. `outcome` is `ok` or the code of the error.

Lines are written by a thread of their own, so that calls do not wait for a disk. The file has a maximum; when it is reached the
file is renamed to `NAME.1` and a new one begun, so at most two of them exist. When the disk does not keep up lines are left
out, and a line says how many: {"at": ..., "left_out": 12}.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from postroad.errors import InvalidValueError

FILE_BYTES_MAX: Final = 64 << 20
CALLS_WAITING_MAX: Final = 100_000
FLUSH_S: Final = 0.5

Side = Literal["client", "broker"]


class Call(msgspec.Struct, frozen=True):
    """One line of the log."""

    at: float
    side: Side
    method: str
    client: int
    us: int
    outcome: str


class ProfileLog:
    """`note` calls from one thread; `close` writes what is left."""

    def __init__(self, path: str | Path, side: Side, *, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = Path(path)
        self._side: Side = side
        self._file_bytes_max = file_bytes_max
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._left_out = 0
        try:
            self._file = self._path.open("ab")
        except OSError as error:
            raise InvalidValueError(f"the profiling log cannot be written: {error}") from error
        self._thread = threading.Thread(target=self._write, name="postroad-profile", daemon=True)
        self._thread.start()

    def note(self, method: str, client: int, took_s: float, outcome: str) -> None:
        """Add a call that has just ended."""
        if self._calls.qsize() >= CALLS_WAITING_MAX:
            self._left_out += 1
            return
        self._calls.put(Call(round(time.time() - took_s, 6), self._side, method, client, round(took_s * 1e6), outcome))

    def close(self) -> None:
        self._calls.put(None)
        self._thread.join()

    # in the thread

    def _write(self) -> None:
        encode = msgspec.json.Encoder().encode_lines
        more = True
        while more:
            calls: list[Any] = [self._calls.get()]
            with suppress(queue.Empty):
                while len(calls) < 10_000:
                    calls.append(self._calls.get(timeout=FLUSH_S) if None not in calls else self._calls.get_nowait())
            more = None not in calls
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                calls.append({"at": time.time(), "left_out": left_out})
            with suppress(OSError):  # a full disk stops the log, not the calls
                self._append(encode([call for call in calls if call is not None]))
        with suppress(OSError):
            self._file.close()

    def _append(self, lines: bytes) -> None:
        if self._file.tell() and self._file.tell() + len(lines) > self._file_bytes_max:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab")
        self._file.write(lines)
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Summary:
    """The calls of one method on one side."""

    side: str
    method: str
    calls: int
    errors: int
    per_s: float
    p50_us: int
    p99_us: int
    max_us: int


def read_calls(path: str | Path) -> Iterator[Call]:
    """Read a log; what is no call (lines left out, a line cut by a crash) is passed over."""
    decoder = msgspec.json.Decoder(Call)
    try:
        with Path(path).open("rb") as file:
            for line in file:
                with suppress(msgspec.MsgspecError):
                    yield decoder.decode(line)
    except OSError as error:
        raise InvalidValueError(f"the profiling log cannot be read: {error}") from error


def summarise(calls: Iterable[Call]) -> list[Summary]:
    """Count the calls of each method, with times; by side, then the most called first."""
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.side, call.method), []).append(call)
    found = []
    for (side, method), group in groups.items():
        times = sorted(call.us for call in group)
        span_s = max(call.at for call in group) - min(call.at for call in group)
        errors = sum(call.outcome != "ok" for call in group)
        rate = len(group) / span_s if span_s else 0.0
        p50, p99 = times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]
        found.append(Summary(side, method, len(group), errors, rate, p50, p99, times[-1]))
    return sorted(found, key=lambda each: (each.side, -each.calls, each.method))
