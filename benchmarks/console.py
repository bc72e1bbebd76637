"""What an open page of the web console costs the broker, in CPU seconds, while shape (b) of `benchmarks.overlay` runs.

Turns without a page, with the map, and with the list of subscriptions follow each other in random order on one broker, so that
other work on the machine meets all alike. A page is what a browser asks for: the stream of pictures, and the list every three
seconds. What a turn used above the CPU time of as many messages without a page is what the page costs.

    python -m benchmarks.console --rate 5000 --turns 10
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.overlay import Worker, cpu_s, publish_paced, receive_paced
from postroad.console.access import ADDRESS_NAME
from postroad.runtime.config import Console, NodeConfig
from postroad.runtime.process import BrokerProcess
from postroad.testing import free_ports

PAGES: Final = {"none": (), "map": (), "subscriptions": ("/api/durables", "/api/brokers/1?page=100&after=0&wanted=")}
LIST_EVERY_S: Final = 3.0
PAUSE_S: Final = 1.5  # the picture of a page that was closed is taken once more


@dataclass(frozen=True)
class Turn:
    cpu_s: float
    messages: int
    seconds: float


class Page:
    """A browser with one page open, as far as the broker notices."""

    def __init__(self, address: str) -> None:
        self._host = urlsplit(address).netloc
        body = json.dumps({"key": address.split("#key=")[1]})
        answer = self._ask("POST", "/api/session", body, {"Content-Type": "application/json"})
        self._cookie = answer.getheader("set-cookie", "").split(";")[0]

    def _ask(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request(method, path, body, headers or {"Cookie": self._cookie})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer

    def rows(self) -> int:
        """Return how many messages the broker has written."""
        return int(json.loads(self._ask("GET", "/api/brokers/1?page=0").read())["figures"]["appended_rows"])

    @contextmanager
    def open(self, lists: tuple[str, ...]) -> Iterator[None]:
        """Keep the page open for as long as the context lasts."""
        closing = threading.Event()
        stream = self._ask("GET", "/api/events")

        def look() -> None:
            due = 0.0
            while not closing.is_set() and stream.readline():
                if time.monotonic() >= due:
                    due = time.monotonic() + LIST_EVERY_S
                    for path in lists:
                        self._ask("GET", path).read()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            closing.set()
            thread.join()
            stream.close()


def measure(rate: float, turns: int, turn_s: float) -> dict[str, list[Turn]]:
    """Return the turns with each page; those of one place belong together."""
    order = [random.Random(turn).sample(list(PAGES), len(PAGES)) for turn in range(turns)]
    seconds = turns * (len(PAGES) * turn_s + PAUSE_S) + 30.0
    found: dict[str, list[Turn]] = {name: [] for name in PAGES}
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        listen, pages = (f"127.0.0.1:{port}" for port in free_ports(2))
        config = NodeConfig(
            id=1, data_dir=str(Path(directory) / "1"), listen=listen, console=Console(listen=pages), log_level="warning"
        )
        with BrokerProcess(config, Path(directory)) as process:
            receiver = Worker.start(receive_paced, [process.url], seconds)
            receiver.ready()
            sender = Worker.start(publish_paced, [process.url], rate, seconds)
            sender.ready()
            page = Page((Path(config.data_dir) / ADDRESS_NAME).read_text(encoding="utf-8").strip())
            receiver.go()
            sender.go()
            time.sleep(5.0)  # connections warm up
            for names in order:
                for name in names:
                    found[name].append(_take_turn(process, page, name, turn_s))
            sender.result(seconds)
            receiver.result(seconds)
    return found


def _take_turn(process: BrokerProcess, page: Page, name: str, turn_s: float) -> Turn:
    if name == "none":
        time.sleep(PAUSE_S)
        return _count(process, page, turn_s)
    with page.open(PAGES[name]):
        return _count(process, page, turn_s)


def _count(process: BrokerProcess, page: Page, turn_s: float) -> Turn:
    rows, cpu, began = page.rows(), cpu_s(process.pid), time.monotonic()
    time.sleep(turn_s)
    return Turn(cpu_s(process.pid) - cpu, page.rows() - rows, time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000.0, help="messages per second; 0 for none")
    parser.add_argument("--turns", type=int, default=10, help="turns with each page")
    parser.add_argument("--turn-s", type=float, default=5.0, help="seconds of a turn")
    options = parser.parse_args()
    found = measure(options.rate, options.turns, options.turn_s)
    base = statistics.median(turn.cpu_s / turn.seconds for turn in found["none"])
    each = statistics.median(turn.cpu_s / max(1, turn.messages) for turn in found["none"])
    print(f"without a page: {base:.3f} CPU s/s, {each * 1e6:.0f} CPU us a message")
    for name, turns in found.items():
        expected = [turn.messages * each if options.rate else base * turn.seconds for turn in turns]
        more = statistics.median((turn.cpu_s - due) / turn.seconds for turn, due in zip(turns, expected, strict=True))
        rate = statistics.median(turn.messages / turn.seconds for turn in turns)
        used = " ".join(f"{turn.cpu_s / turn.seconds:.3f}" for turn in turns)
        print(f"{name:14} {rate:,.0f} msg/s   {more * 1000:+.1f} CPU ms/s   {more / base:+.1%}   (CPU s/s by turn: {used})")


if __name__ == "__main__":
    main()
