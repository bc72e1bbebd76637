"""The console in a real browser: what a person sees, on a screen and on a phone, with the mouse and with the keyboard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.browser.conftest import DESKTOP, read
from tests.console.site import Site
from tests.console.test_console import on_queues

import postroad
from postroad.storage.queues.base import Lease, QueueSettings, TakeRequest
from postroad.wire.packets.telesto import ClientMode

pytestmark = pytest.mark.browser
Goto = Callable[[str], None]

PHONE = {"width": 390, "height": 844}
PATHS = ["/", "/tail", "/message", "/subscriptions", "/publishers", "/queues", "/topics", "/admission", "/books"]
LOADED_BYTES_MAX = 150_000
FLOOD_BYTES_PER_S = 40_000  # a link with this limit cannot carry the flood
PAYLOAD = b"x" * 2000
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202e\u2066"
LONG = HOSTILE + "x" * (255 - len(HOSTILE))  # names have at most 255 characters; values of attributes may have 10 kB
HUGE = HOSTILE + "y" * 10_000
PLACES = "[...document.querySelectorAll('.node')].map(n => n.getAttribute('transform'))"


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


def test_first_paint_takes_less_than_a_second_and_little_is_loaded(page: Any, goto: Goto) -> None:
    """Nothing is loaded from elsewhere, and little from here."""
    goto("/")
    paint = page.evaluate("performance.getEntriesByType('paint').find(e => e.name === 'first-contentful-paint').startTime")
    loaded = page.evaluate("performance.getEntriesByType('resource').reduce((sum, e) => sum + e.encodedBodySize, 0)")
    assert paint < 1000
    assert 0 < loaded < LOADED_BYTES_MAX


def test_the_map_shows_a_broker_killed_and_coming_back(page: Any, running: Site) -> None:
    """A broker that goes down turns red by itself, and green again; nothing else moves."""
    page.wait_for_selector(".node[data-broker='3'][data-state='up']")
    before = page.evaluate(PLACES)
    top = page.evaluate("document.querySelector('svg.graph').getBoundingClientRect().top")
    running.kill(3)
    try:
        page.wait_for_selector(".node[data-broker='3'][data-state='down']", timeout=20_000)
        page.wait_for_selector(".note.error:has-text('is down')")
        assert page.evaluate("document.querySelector('svg.graph').getBoundingClientRect().top") == top
    finally:
        running.revive(3)
    page.wait_for_selector(".node[data-broker='3'][data-state='up']", timeout=30_000)
    assert page.evaluate(PLACES) == before
    page.click(".node[data-broker='4']")
    page.wait_for_selector("aside h2:has-text('tokyo')")


def test_a_published_message_appears_in_the_tail_and_its_path_is_drawn(page: Any, goto: Goto) -> None:
    """From the tail to the path, and why a subscriber did not get it."""
    goto("/tail")
    page.fill("#filter", "price > 50 AND")
    page.wait_for_function("() => document.querySelector('.problem').textContent.trimStart().startsWith('^')")
    assert page.inner_text(".problem").index("^") == len("price > 50 AND")
    assert page.is_disabled("button:has-text('Follow')")
    page.fill("#filter", "price > 50")
    page.wait_for_selector("button:has-text('Follow'):enabled")
    page.click("button:has-text('Follow')")
    page.wait_for_selector(".messages li")
    page.click("button:has-text('Pause')")
    page.wait_for_selector("text=Paused.")
    shown = page.locator(".messages li").count()
    page.wait_for_function("() => !document.querySelector('[data-tail]').textContent.startsWith('Following')")
    assert page.locator(".messages li").count() == shown
    page.click(".messages li:first-child a")
    page.wait_for_selector(".path li")
    deadline = time.monotonic() + 30
    while page.locator(".link.taken").count() < 2 or "risk-desk" not in page.inner_text("main"):
        assert time.monotonic() < deadline, "the path is not drawn"
        page.reload()
        page.wait_for_selector(".path li")
        page.wait_for_timeout(300)
    assert "/message/" in page.url
    page.wait_for_selector(".receipts tr:has-text('risk-desk')")
    page.wait_for_selector(".others tr[data-verdict='filtered']:has-text('bargains')")
    page.fill("#subscriber", "bargains")
    page.click("button:has-text('Explain')")
    page.wait_for_selector(".verdict[data-verdict='filtered']")
    assert "price < 20" in page.inner_text(".verdict")


def test_a_put_shows_up_and_a_dead_letter_is_redriven(page: Any, running: Site, goto: Goto) -> None:
    """Queues can be used with the mouse alone."""

    async def fail_one(storage: Any) -> None:
        queue = await storage.get_queue_id("jobs")
        client = (await storage.request_id("worker", ClientMode.READ_AND_PUT)).client_id
        (taken,) = await storage.take(TakeRequest(queue.queue_id, client))
        await storage.release([Lease(queue.queue_id, taken.message_id, taken.delivery, client)])

    on_queues(running, fail_one)
    goto("/queues")
    page.click("tr[data-queue='jobs'] button")
    page.wait_for_selector(".messages li")
    before = page.locator(".messages li").count()
    page.fill("#put-text", "from the console")
    page.fill("#put-priority", "9")
    page.click("button:text-is('Put')")
    page.wait_for_selector("text=One message was put.")
    page.wait_for_selector(".messages li:has-text('from the console')")
    page.wait_for_selector("tr[data-priority='9']")
    page.click("button:has-text('Redrive')")
    page.wait_for_selector("text=One message was put back.")
    page.wait_for_function(f"() => document.querySelectorAll('.messages li').length === {before + 2}")


def test_a_throttled_publisher_is_marked_with_the_reason(page: Any, running: Site, goto: Goto) -> None:
    """A link that cannot carry the flood slows the publisher; map and list say who is the reason, until it is over."""
    ready = asyncio.Event()

    async def flood() -> None:
        async with postroad.connect(running.url(1)) as writer, postroad.connect(running.url(2)) as reader:
            await writer.advertise("flood = 1", max_rate=300)
            reading = asyncio.create_task(read(await reader.subscribe("flood = 1")))
            await writer.limit_link(2, FLOOD_BYTES_PER_S)
            try:
                publisher = writer.publisher()
                while not ready.is_set():
                    publisher.try_publish({"flood": 1}, PAYLOAD)
                    await asyncio.sleep(0.005)
            finally:
                await writer.limit_link(2, 0)
                reading.cancel()

    flooding = running.traffic.start(flood())
    try:
        page.wait_for_selector(".node[data-broker='1'][data-mark='throttled']", timeout=60_000)
        page.wait_for_selector(".note.warning:has-text('Publishers at broker 1 are throttled')")
        goto("/publishers")
        page.wait_for_selector("tr[data-throttled='yes']:has-text('because of broker')", timeout=30_000)
    finally:
        running.traffic.call_soon(ready.set)
        flooding.result(30)
    goto("/")
    page.wait_for_selector(".node[data-broker='1']:not([data-mark])", timeout=60_000)


def test_topics_admission_and_books_show_what_is_there(page: Any, goto: Goto) -> None:
    """Owners of topics; capacity, and why a subscription would be refused; the last audit with what it names."""
    goto("/topics")
    page.wait_for_selector("tr[data-topic='news']:has-text('serving')")
    goto("/admission")
    page.wait_for_selector("tr:has-text('link to broker 2')")
    page.fill("#fits", "price > 10")
    page.click("button:has-text('Ask the brokers')")
    page.wait_for_selector(".verdict:has-text('It fits.')")
    goto("/books")
    page.wait_for_selector(".verdict:has-text('The books do not close.')")
    assert page.get_attribute("tr:has-text('missing') a", "href").startswith("/message/")


def test_the_console_works_with_the_keyboard(page: Any, goto: Goto) -> None:
    """From the top of the page: over the menu to the map, where a broker is chosen with Enter."""
    goto("/")
    page.wait_for_selector(".node[data-broker='1']")
    reached = ""
    for _ in range(40):
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.dataset.broker || ''")
        if reached:
            break
    assert reached
    page.keyboard.press("Enter")
    page.wait_for_selector("aside h2:not(.hidden) >> nth=1")
    page.keyboard.press("Tab")
    goto("/queues")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips the menu
    assert page.evaluate("document.activeElement.id") == "content"


def test_nothing_moves_while_figures_come_in(page: Any, goto: Goto) -> None:
    """The browser's own measure of moved content stays below what it calls good (0.1), by far."""
    for path in ("/", "/publishers", "/subscriptions"):
        goto(path)
        page.evaluate(
            """() => {
              window.moved = 0;
              const add = (list) => { for (const each of list.getEntries()) window.moved += each.value; };
              new PerformanceObserver(add).observe({type: 'layout-shift', buffered: true});
            }"""
        )
        page.wait_for_timeout(2500)
        moved = page.evaluate("window.moved")
        assert moved < 0.05, path


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit(page: Any, goto: Goto, path: str, scheme: str) -> None:
    """Axe finds no serious problem, on desktop and phone, and no page scrolls sideways."""
    check_page(page, goto, path, scheme)


def test_hostile_names_are_text_everywhere(page: Any, running: Site, goto: Goto) -> None:
    """Markup, right-to-left marks and 10 kB in names of clients, subscriptions, queues, attributes and payloads stay text."""

    async def fill(storage: Any) -> None:
        await storage.create_queue(LONG, QueueSettings())

    done = asyncio.Event()
    sent: list[str] = []

    async def act() -> None:
        async with postroad.connect(running.url(1), postroad.ClientConfig(name=LONG)) as client:
            await client.advertise(f"hostile = 1 OR note = '{HOSTILE.replace(chr(39), chr(39) * 2)}'", max_rate=10)
            reading = asyncio.create_task(read(await client.subscribe("hostile = 1", name=LONG)))
            other = await client.subscribe("hostile = 2", name="other " + LONG[:200])
            publisher = client.publisher()
            while not done.is_set():
                values: dict[str, int | str] = {"hostile": 1, HOSTILE: HUGE}
                sent.append(str(await publisher.publish(values, HUGE.encode())))
                await asyncio.sleep(0.5)
            reading.cancel()
            await other.close()

    on_queues(running, fill)
    acting = running.traffic.start(act())
    try:
        for path in PATHS:
            check_page(page, goto, path, "light")
            if path in ("/subscriptions", "/publishers", "/queues"):
                page.wait_for_selector("main :text(\"<script>document.title='owned'</script>\") >> nth=0")
        goto("/tail")
        page.fill("#filter", "hostile = 1")
        page.click("button:has-text('Follow')")
        page.wait_for_selector(".messages li")
        page.click(".messages summary")
        assert "<script>" in page.inner_text(".messages")
        goto(f"/message/{sent[0]}")
        page.wait_for_selector(".receipts tr:has-text('<script>')", timeout=20_000)
        page.wait_for_selector(".others tr:has-text('<script>')", timeout=20_000)
        assert "<script>" in page.inner_text("aside")
        assert_harmless(page)
    finally:
        running.traffic.call_soon(done.set)
        acting.result(30)


def check_page(page: Any, goto: Goto, path: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing: run `make browser`")
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(DESKTOP)
    goto(path)
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        page.wait_for_timeout(300)
        found = axe.Axe().run(page).response["violations"]
        serious = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page scrolls sideways"
    assert_harmless(page)


def assert_harmless(page: Any) -> None:
    assert "Postroad" in page.title()
    assert page.locator("main script, main img[src='x']").count() == 0
