"""`postroad top` on a picture of an overlay, in a terminal that textual pretends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from postroad.core.protocol.packets import DurableEntry

pytest.importorskip("textual", reason="textual is not installed: the extra `top`")
from textual.widgets import DataTable, Static

from postroad.cli.operate.top_screen import Top

PICTURE: dict[str, Any] = {
    "at_ms": 100_000,
    "home": 1,
    "brokers": [
        {
            "id": 1,
            "name": "north",
            "up": True,
            "lag_ms": 0,
            "disk_full": False,
            "published_per_s": 40.0,
            "subscriptions": 3,
            "clients": 2,
            "backlog_bytes": 2000,
        },
        {"id": 2, "name": "evil\x1b[2J[bold]\u202e", "up": False, "reason": "no answer"},
    ],
    "links": [{"a": 1, "b": 2, "up": False, "to": {}}],
    "pubends": [
        {
            "pubend": 256,
            "broker": 1,
            "published_per_s": 40.0,
            "published": 900,
            "waiting": 0,
            "rate_limit": 25.0,
            "throttled_since_ms": 90_000,
            "throttled_by": 2,
            "lag_ms": 3000,
            "lag_broker": 2,
            "recovering": [],
        }
    ],
    "history": [[99_000, 38.0, 1500, 0], [100_000, 40.0, 2500, 0]],
}


class Silent:
    """A picture of which nothing comes, and a client that knows no durable subscription."""

    async def watch(self) -> Any:
        await asyncio.Event().wait()
        yield b""

    async def durables(self) -> list[DurableEntry]:
        return []


def rows_of(app: Top, name: str) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def test_top_shows_who_is_down_and_who_is_throttled_because_of_whom() -> None:
    """Brokers, links, streams and durable subscriptions; names change nothing in the terminal; q leaves."""

    async def scenario() -> None:
        app = Top(cast("Any", Silent()), cast("Any", Silent()))
        async with app.run_test(size=(120, 40)) as pilot:
            app.show(PICTURE)
            app.show_durables([DurableEntry("orders", 1, "price > 5", False, 90_000), DurableEntry("lost", 2)])
            await pilot.pause()
            assert "1 of 2 brokers up" in str(app.query_one("#head", Static).render())
            assert rows_of(app, "brokers")[0] == ["1", "north", "up", "40.0", "3", "2", "0.0 s", "2.0 kB"]
            assert rows_of(app, "brokers")[1][:3] == ["2", "evil?[2J[bold]?", "down"]
            assert rows_of(app, "links")[0][:2] == ["1 - 2", "down"]
            assert rows_of(app, "streams")[0][3:] == ["25/s for 10.0 s", "broker 2", "broker 2, 3.0 s"]
            assert rows_of(app, "durables")[0][:3] == ["orders", "1", "away"]
            assert "cannot be asked" in rows_of(app, "durables")[1][2]
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(scenario())
