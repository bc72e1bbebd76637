"""A browser, an overlay with traffic, and a page that has entered its console.

`make browser` installs what is needed. Where there is no Chromium, the tests are skipped with a line that says so.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.console.site import Site, site
from tests.console.test_console import on_queues, until
from tests.topics.live_service import Service

import postroad
from postroad.console.books import BooksFile, BooksRow, NamedMessage
from postroad.runtime.config import Admission, Congestion
from postroad.storage.queues.base import NewMessage, QueueSettings
from postroad.topics.sync import connect
from postroad.wire.packets.telesto import ClientMode

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1360, "height": 860}
NAMES = ("frankfurt", "dublin", "virginia", "tokyo")
RATE_S = 0.02


class Traffic:
    """A publisher and subscribers of the site, in a thread of their own; more can be run there."""

    def __init__(self, running: Site) -> None:
        self.newest = ""
        self._running = running
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stop = asyncio.Event()
        self._main = self.start(self._run())
        until(lambda: self.newest or self._main.done())

    def start(self, work: Coroutine[Any, Any, None]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_soon(self, act: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(act)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._main.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    async def _run(self) -> None:
        chance = random.Random(1)
        own = self._running
        async with (
            postroad.connect(own.url(1)) as writer,
            postroad.connect(own.url(4)) as tokyo,
            postroad.connect(own.url(2)) as dublin,
        ):
            await writer.advertise("price > 0", max_rate=400)
            reading = [
                asyncio.create_task(read(await tokyo.subscribe("price > 50", name="risk-desk"))),
                asyncio.create_task(read(await tokyo.subscribe("price < 20", name="bargains"))),
                asyncio.create_task(read(await dublin.subscribe("symbol = 'IBM'"))),
            ]
            away = await dublin.subscribe("symbol IN ('IBM', 'ACME') AND price > 90", name="night-batch")
            await away.close()
            publisher = writer.publisher()
            while not self._stop.is_set():
                attributes = {"symbol": chance.choice(("IBM", "ACME", "KO", "GE")), "price": chance.randint(1, 100)}
                order = b'{"order": %d, "side": "buy"}' % chance.randint(1000, 9999)
                self.newest = str(await publisher.publish(attributes, order))
                await asyncio.sleep(RATE_S)
            await publisher.flush()
            for task in reading:
                task.cancel()


async def read(subscription: Any) -> None:
    async for _ in subscription:
        if subscription.name:
            await subscription.ack(wait=False)


def write_books(path: Path) -> None:
    """Leave the result of an audit, as `postroad pipeline audit --books` writes it."""
    rows = [
        BooksRow("risk-desk", 81_204, 81_203, 1),
        BooksRow("bargains", 19_011, 19_011, 0),
        BooksRow("night-batch", 4_870, 4_870, 0),
    ]
    named = [NamedMessage("missing", "00000000-00000001-01a1f29ef87c-0000", "risk-desk")]
    told = "4,120 intervals were compared, 1 differs."
    books = BooksFile("does not close", told, 1_795_000_000_000, 160_000, 105_085, 105_084, 1, 312, rows, named)
    path.write_bytes(msgspec.json.encode(books))


def fill_topics(service: Service) -> None:
    """Give the topics service some topics with subscribers and unread messages."""
    with connect(service.addresses, name="desk", data=service.root / "clients", timeout=20) as client:
        for topic in ("news", "weather", "rates/eur"):
            client.subscribe(topic)
    with connect(service.addresses, name="press", data=service.root / "clients", timeout=20) as client:
        for number in range(3):
            client.put("news", b"headline %d" % number)
        client.put("weather", b"rain")


async def fill_queues(storage: Any) -> None:
    dead = await storage.create_queue("jobs-dead", QueueSettings())
    jobs = await storage.create_queue("jobs", QueueSettings(max_deliveries=1, dead_letter_id=dead.queue_id))
    mails = await storage.create_queue("mails", QueueSettings())
    sender = (await storage.request_id("shop", ClientMode.READ_AND_PUT)).client_id
    await storage.bind(mails.queue_id, "kind = 'mail'")
    for number in range(6):
        await storage.put(
            [NewMessage(jobs.queue_id, sender, b'{"invoice": %d}' % (100 + number), priority=(5, 9, 3)[number % 3])]
        )


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four brokers with two ways from the first to the last, and all that the pages can show."""
    root = tmp_path_factory.mktemp("browser")
    (root / "topics").mkdir()
    with Service(root / "topics", proxies=1, servers=2) as service:
        settings = {
            "congestion": Congestion(rule="improved", query_s=0.3, no_alert_s=0.6, margin_live=0.6, lag_ms_max=5000),
            "admission": Admission(policy="full", cpu_rate=2000, link_rate=1000),
        }
        ways = {2: (1,), 3: (1,), 4: (2, 3)}
        with site(root, 4, names=NAMES, neighbours=ways, topics=service.addresses, **settings) as found:
            fill_topics(service)
            write_books(found.directory / "books.json")
            on_queues(found, fill_queues)
            found.enter()
            until(lambda: found.ask("GET", "/readyz")[0] == 200)
            found.traffic = Traffic(found)
            yield found
            found.traffic.stop()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("no Chromium: install Debian's package chromium, or set CHROMIUM to its path")
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: run `make browser`")
    root = ["--no-sandbox"] if sys.platform == "linux" and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *root])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, running: Site) -> Iterator[Any]:
    """A page that has entered; at the end, the browser must have had nothing to complain about."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    problems: list[str] = []
    opened.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    elsewhere: list[str] = []
    opened.on("request", lambda sent: elsewhere.append(sent.url) if running.host not in sent.url else None)
    opened.goto(running.console.address)
    opened.wait_for_selector("svg.graph .node")
    yield opened
    context.close()
    assert problems == []
    assert elsewhere == []


@pytest.fixture
def goto(page: Any, running: Site) -> Callable[[str], None]:
    """Open a page of the console by its path, and wait until it has its content."""

    def open_path(path: str) -> None:
        page.goto(f"http://{running.host}{path}")
        page.wait_for_selector("h1")
        page.wait_for_selector(".waiting", state="detached", timeout=20_000)

    return open_path
