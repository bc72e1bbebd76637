"""The pages of an overlay of 1,000 brokers with 100,000 subscriptions, in a real browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from tests.browser.conftest import DESKTOP
from tests.console.large_overlay import BROKERS, LargeOverlay
from tests.console.test_console import until

from postroad.client.connection import Client
from postroad.console.access import allowed_hosts
from postroad.console.action_log import ActionLog
from postroad.console.app import Console, ConsoleParts
from postroad.console.picture import Picture
from postroad.security.gate import Gate
from postroad.security.http_sessions import HttpSessions
from postroad.testing import free_ports

pytestmark = pytest.mark.browser
KEY = "large"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A console over the large overlay."""
    (port,) = free_ports(1)
    client = cast("Client", LargeOverlay())
    sessions = HttpSessions(cast("Gate", SimpleNamespace(guarded=False)), key=KEY)
    hosts = allowed_hosts("127.0.0.1", port)
    parts = ConsoleParts(client, Picture(client, 1), sessions, None, ActionLog(tmp_path), hosts, lambda: True, {})
    server = uvicorn.Server(
        uvicorn.Config(Console(parts).app(), port=port, log_config=None, lifespan="off", http="h11", ws="none")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = server.force_exit = True
    thread.join(20)


def test_a_thousand_brokers_are_drawn_and_a_hundred_thousand_subscriptions_come_in_pages(browser: Any, address: str) -> None:
    """The map keeps its places, the list shows 100 rows at a time, and a search finds the last one."""
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(f"{address}#key={KEY}")
    page.wait_for_selector(f".node[data-broker='{BROKERS}']", timeout=60_000)
    assert page.locator(".node").count() == BROKERS
    places = "[...document.querySelectorAll('.node')].map(n => n.getAttribute('transform'))"
    before = page.evaluate(places)
    page.wait_for_selector(f".node[data-broker='{BROKERS}'][data-state='up']", timeout=120_000)
    assert page.evaluate(places) == before
    page.goto(f"{address}subscriptions")
    page.wait_for_selector("tr:has-text('desk-100') >> nth=0", timeout=60_000)
    page.wait_for_selector("text=100,000 at this broker", timeout=60_000)
    rows = "[aria-label='Subscriptions of connected clients'] tbody tr"
    assert page.locator(rows).count() == 100
    page.click("button:has-text('Next')")
    page.wait_for_selector(f"{rows}:has-text('desk-200')", timeout=30_000)
    assert page.locator(rows).count() == 100
    page.fill("#wanted", "desk-99999")
    page.wait_for_function(f'() => document.querySelectorAll("{rows}").length === 1', timeout=30_000)
    assert page.locator("tbody tr").count() < 1000
    context.close()
