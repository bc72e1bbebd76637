"""The screenshots of the docs: light and dark, desktop and phone. The map is last: by then its charts have points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.console.site import Site
from tests.console.test_console import until

pytestmark = pytest.mark.browser
Goto = Callable[[str], None]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 844}
IMAGE_BYTES_MIN = 10_000  # an empty page is smaller


def take(page: Any, name: str) -> None:
    path = IMAGES / f"console-{name}.png"
    page.screenshot(path=path)
    assert path.stat().st_size > IMAGE_BYTES_MIN


def test_screenshot_of_a_broker_that_is_down(page: Any, running: Site, goto: Goto) -> None:
    goto("/")
    page.wait_for_selector(".node[data-broker='3'][data-state='up']")
    running.kill(3)
    try:
        page.wait_for_selector(".note.error:has-text('is down')", timeout=20_000)
        page.wait_for_timeout(1500)
        take(page, "down")
    finally:
        running.revive(3)
    page.wait_for_selector(".node[data-broker='3'][data-state='up']", timeout=30_000)


@pytest.mark.parametrize(("name", "size", "scheme"), [("", DESKTOP, "light"), ("-phone", PHONE, "dark")])
def test_screenshots_of_a_message(page: Any, running: Site, goto: Goto, name: str, size: dict[str, int], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({**size, "height": 1180})

    def traced() -> bool:
        found = running.get(f"/api/messages/{wanted}")["trace"]
        return "risk-desk" in [each["subscriber"] for each in found["subscribers"]]

    newest = running.events("/api/tail?filter=price%20%3E%2090")
    wanted = until(lambda: next((each["id"] for each in next(newest)["messages"]), ""))
    newest.close()  # type: ignore[attr-defined]
    until(traced)
    goto(f"/message/{wanted}")
    page.wait_for_selector(".link.taken")
    page.wait_for_selector(".others tr[data-verdict]")
    take(page, f"message{name}")


@pytest.mark.parametrize("page_name", ["subscriptions", "publishers", "topics", "admission", "books"])
def test_screenshots_of_lists(page: Any, goto: Goto, page_name: str) -> None:
    goto(f"/{page_name}")
    page.wait_for_timeout(3000)
    if page_name == "admission":
        page.fill("#fits", "price > 10 AND symbol = 'IBM'")
        page.click("button:has-text('Ask the brokers')")
        page.wait_for_selector(".verdict")
    take(page, page_name)


def test_screenshots_of_tail_and_queues(page: Any, goto: Goto) -> None:
    goto("/tail")
    page.fill("#filter", "price > 50 AND symbol = ")
    page.wait_for_function("() => document.querySelector('.problem').textContent.includes('^')")
    take(page, "tail-mistake")
    page.fill("#filter", "price > 50")
    page.wait_for_selector("button:has-text('Follow'):enabled")
    page.click("button:has-text('Follow')")
    page.wait_for_selector(".messages li:nth-child(16)")
    page.click(".messages li:nth-child(2) summary")
    take(page, "tail")
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    take(page, "tail-phone")
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")
    goto("/queues")
    page.click("tr[data-queue='jobs'] button")
    page.wait_for_selector(".messages li")
    take(page, "queues")


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_of_the_map(page: Any, goto: Goto, name: str, size: dict[str, int], scheme: str) -> None:
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    goto("/")
    page.wait_for_selector(".node[data-state='up']")
    page.wait_for_timeout(2500)
    take(page, f"map-{name}-{scheme}")
