"""What an open page of the web console costs the broker, in CPU seconds, while shape (b) of `benchmarks.overlay` runs.

Turns without a page, with the map, and with the list of subscriptions follow each other in random order on one broker, so that
other work on the machine meets all alike. A page is what a browser asks for: the stream of pictures, and the list every three
seconds. Printed are the median CPU seconds per second, and the median of the differences between a turn and its neighbours.

    python -m benchmarks.console --rate 2000 --turns 10
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


def measure(rate: float, turns: int, turn_s: float) -> dict[str, list[float]]:
    """Return for each page the CPU seconds per second of the broker, turn by turn; those of one place belong together."""
    order = [random.Random(turn).sample(list(PAGES), len(PAGES)) for turn in range(turns)]
    seconds = turns * len(PAGES) * turn_s + 15.0
    found: dict[str, list[float]] = {name: [] for name in PAGES}
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


def _take_turn(process: BrokerProcess, page: Page, name: str, turn_s: float) -> float:
    if name == "none":
        time.sleep(1.5)  # the picture of a page that was closed is taken once more
        before, began = cpu_s(process.pid), time.monotonic()
        time.sleep(turn_s)
    else:
        with page.open(PAGES[name]):
            before, began = cpu_s(process.pid), time.monotonic()
            time.sleep(turn_s)
    return (cpu_s(process.pid) - before) / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=2000.0, help="messages per second; 0 for none")
    parser.add_argument("--turns", type=int, default=10, help="turns with each page")
    parser.add_argument("--turn-s", type=float, default=5.0, help="seconds of a turn")
    options = parser.parse_args()
    found = measure(options.rate, options.turns, options.turn_s)
    base = statistics.median(found["none"])
    for name, values in found.items():
        differences = [value - without for value, without in zip(values, found["none"], strict=True)]
        more = statistics.median(differences)
        print(
            f"{name:14} {statistics.median(values):.4f} CPU s/s   {more * 1000:+.1f} ms/s   {more / base:+.1%}"
            f"   (turns: {' '.join(f'{each:.3f}' for each in values)})"
        )


if __name__ == "__main__":
    main()
