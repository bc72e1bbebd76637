"""The console in a real browser: what a person sees, and the screenshots of the docs.

`make browser` installs what is needed. Where there is no Chromium, the tests are skipped with a line that says so.
"""

import asyncio
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.console.site import Site, site
from tests.console.test_console import on_queues, until

import postroad
from postroad.storage.queues.base import Lease, NewMessage, QueueSettings, TakeRequest
from postroad.wire.packets.telesto import ClientMode

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
if not CHROMIUM:
    pytest.skip("no Chromium: install Debian's package chromium, or set CHROMIUM to its path", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: run `make browser`")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing: run `make browser`")

IMAGES = Path(__file__).parents[2] / "docs" / "images"
FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
HOSTILE = "<script>document.title='owned'</script>\u202e" + "x" * 180


class Traffic:
    """A publisher and two subscribers of the site, in a thread of their own."""

    def __init__(self, running: Site) -> None:
        self.newest = ""
        self._running = running
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        until(lambda: self.newest)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(20)

    async def _run(self) -> None:
        chance = random.Random(1)
        async with postroad.connect(self._running.url(1)) as writer, postroad.connect(self._running.url(3)) as reader:
            reading = [
                asyncio.create_task(self._read(await reader.subscribe("price > 50", name="dear"))),
                asyncio.create_task(self._read(await reader.subscribe("price < 20", name=HOSTILE))),
            ]
            publisher = writer.publisher()
            while not self._stop.is_set():
                attributes = {"symbol": chance.choice(("IBM", "ACME", "KO")), "price": chance.randint(1, 100)}
                self.newest = str(await publisher.publish({**attributes, HOSTILE[:60]: HOSTILE}, b'{"note": "hello"}'))
                await asyncio.sleep(0.02)
            await publisher.flush()
            for task in reading:
                task.cancel()

    async def _read(self, subscription: Any) -> None:
        async for _ in subscription:
            await subscription.ack(wait=False)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("browser"), 3) as found:
        traffic = Traffic(found)
        yield found
        traffic.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    root = ["--no-sandbox"] if sys.platform == "linux" and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *root])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, running: Site) -> Iterator[Any]:
    """A page that has entered; at the end, the browser must have had nothing to complain about."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light")
    opened = context.new_page()
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


def goto(page: Any, running: Site, path: str) -> None:
    page.goto(f"http://{running.host}{path}")
    page.wait_for_selector("h1")


def test_the_key_leaves_the_address_and_wrong_keys_stay_out(page: Any, running: Site, browser: Any) -> None:
    """The address with the key opens the map; without it, the entrance asks."""
    assert "#" not in page.url
    stranger = browser.new_context().new_page()
    stranger.goto(f"http://{running.host}/queues")
    stranger.fill("#key", "wrong")
    stranger.click("button:has-text('Enter')")
    stranger.wait_for_selector("text=This key is not valid.")
    stranger.fill("#key", running.key)
    stranger.click("button:has-text('Enter')")
    stranger.wait_for_selector("h1:has-text('Queues')")
    stranger.context.close()


def test_first_paint_takes_less_than_a_second(page: Any, running: Site) -> None:
    """Nothing is loaded from elsewhere, and little from here."""
    goto(page, running, "/")
    paint = page.evaluate("performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime")
    assert paint < 1000


def test_the_map_shows_a_broker_killed_and_coming_back(page: Any, running: Site) -> None:
    """A broker that goes down turns red by itself, and green again."""
    page.wait_for_selector(".node[data-broker='2'][data-state='up']")
    before = page.evaluate("[...document.querySelectorAll('.node')].map(n => n.getAttribute('transform'))")
    running.kill(2)
    try:
        page.wait_for_selector(".node[data-broker='2'][data-state='down']", timeout=20_000)
        page.wait_for_selector(".note.error:has-text('is down')")
        page.screenshot(path=IMAGES / "console-down.png")
    finally:
        running.revive(2)
    page.wait_for_selector(".node[data-broker='2'][data-state='up']", timeout=30_000)
    assert page.evaluate("[...document.querySelectorAll('.node')].map(n => n.getAttribute('transform'))") == before
    page.click(".node[data-broker='3']")
    page.wait_for_selector("aside h2:has-text('site-3')")


def test_a_published_message_appears_in_the_tail_and_its_path_is_drawn(page: Any, running: Site) -> None:
    """From the tail to the path, and why a subscriber did not get it."""
    goto(page, running, "/tail")
    page.fill("#filter", "price > 50 AND")
    page.wait_for_selector(".problem pre")
    assert page.is_disabled("button:has-text('Follow')")
    page.fill("#filter", "price > 50")
    page.wait_for_selector("button:has-text('Follow'):enabled")
    page.click("button:has-text('Follow')")
    page.wait_for_selector(".messages li")
    page.screenshot(path=IMAGES / "console-tail.png")
    page.click("button:has-text('Pause')")
    page.wait_for_selector("text=Paused.")
    shown = page.locator(".messages li").count()
    page.wait_for_function("() => !document.querySelector('[data-tail]').textContent.startsWith('Following')")
    assert page.locator(".messages li").count() == shown
    page.click(".messages li:first-child a")
    page.wait_for_selector(".path li")
    deadline = time.monotonic() + 20
    while page.locator(".link.taken").count() < 2 or not page.locator(".receipts li").count():
        assert time.monotonic() < deadline, "the path is not drawn"
        page.reload()
        page.wait_for_selector(".path li")
        page.wait_for_timeout(300)
    assert "/message/" in page.url
    assert "dear" in page.inner_text(".receipts")
    page.fill("#subscriber", HOSTILE)
    page.click("button:has-text('Explain')")
    page.wait_for_selector(".verdict.filtered")
    assert "price < 20" in page.inner_text(".verdict")
    page.set_viewport_size({"width": 1280, "height": 1250})
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=IMAGES / "console-message.png")


def test_a_put_shows_up_and_a_dead_letter_is_redriven(page: Any, running: Site) -> None:
    """Queues can be used with the mouse alone."""

    async def fill(storage: Any) -> None:
        dead = await storage.create_queue("jobs-dead", QueueSettings())
        queue = await storage.create_queue("jobs", QueueSettings(max_deliveries=1, dead_letter_id=dead.queue_id))
        client = await storage.request_id("worker", ClientMode.READ_AND_PUT)
        await storage.put([NewMessage(queue.queue_id, client.client_id, b"failed once")])
        (taken,) = await storage.take(TakeRequest(queue.queue_id, client.client_id))
        await storage.release([Lease(queue.queue_id, taken.message_id, taken.delivery, client.client_id)])

    on_queues(running, fill)
    goto(page, running, "/queues")
    page.click("tr[data-queue='jobs'] button")
    page.fill("#put-text", "from the console")
    page.click("button:text-is('Put')")
    page.wait_for_selector("text=One message was put.")
    page.wait_for_selector(".messages li:has-text('#')")
    page.click("button:has-text('Redrive')")
    page.wait_for_selector("text=One message was put back.")
    page.wait_for_function("() => document.querySelectorAll('.messages li').length === 2")
    page.screenshot(path=IMAGES / "console-queues.png")


@pytest.mark.parametrize(
    "path", ["/", "/tail", "/message", "/subscriptions", "/publishers", "/queues", "/topics", "/admission", "/books"]
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_hostile_names_are_text(page: Any, running: Site, path: str, scheme: str) -> None:
    """Axe finds no serious problem, on desktop and phone; markup in names stays text."""
    page.emulate_media(color_scheme=scheme)
    goto(page, running, path)
    page.wait_for_timeout(1200)
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        found = axe.Axe().run(page).response["violations"]
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
    assert "Postroad" in page.title()
    assert page.locator("main script").count() == 0
    if path == "/subscriptions":
        assert "<script>" in page.inner_text("main")


def test_the_console_works_with_the_keyboard(page: Any, running: Site) -> None:
    """A broker is chosen with Tab and Enter."""
    goto(page, running, "/")
    page.wait_for_selector(".node")
    page.focus(".node[data-broker='1']")
    page.keyboard.press("Enter")
    page.wait_for_selector("aside h2:has-text('site-1')")


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_of_the_map(page: Any, running: Site, name: str, size: dict[str, int], scheme: str) -> None:
    """The pictures of the docs come from here."""
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    goto(page, running, "/")
    page.wait_for_selector(".node[data-state='up']")
    page.wait_for_timeout(6000)
    path = IMAGES / f"console-map-{name}-{scheme}.png"
    page.screenshot(path=path)
    assert path.stat().st_size > 10_000
