"""The screen of `postroad top`: tables that are filled anew with each picture, the same that the web console shows."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Footer, Sparkline, Static

from postroad.cli.shared import age
from postroad.client.connection import Client
from postroad.console.picture import Picture
from postroad.core.protocol.packets import DurableEntry
from postroad.errors import PostroadError

BEHIND_MS = 2000  # who is further behind is marked
ROWS_MAX = 200
DURABLES_S = 3.0
NAME_SHOWN = 40
GOOD, WARN, BAD = "green", "yellow", "bold red"


class Top(App[None]):
    """The application. A table keeps its cursor and its place when it is filled."""

    CSS = """
    Screen { background: $background; }
    #head { height: 3; padding: 1 1 0 1; }
    #rates { height: 4; padding: 0 1; }
    #rates Vertical { width: 1fr; height: 4; padding: 0 1 0 0; }
    Sparkline { height: 2; }
    DataTable { height: auto; max-height: 40%; margin: 0 1; }
    .title { padding: 1 1 0 1; text-style: bold; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit"),
        Binding("space", "pause", "Pause"),
        Binding("tab", "focus_next", "Next table", show=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, client: Client, picture: Picture) -> None:
        super().__init__()
        self._client = client
        self._picture = picture
        self._paused = False

    def compose(self) -> ComposeResult:
        yield Static("asking the brokers", id="head")
        with Horizontal(id="rates"):
            for name in ("published", "carried"):
                with Vertical():
                    yield Static("", id=f"{name}-title")
                    yield Sparkline([0.0], id=name)
        for name, title in (
            ("brokers", "Brokers"),
            ("links", "Links"),
            ("streams", "Streams"),
            ("durables", "Durable subscriptions"),
        ):
            yield Static(title, classes="title", id=f"{name}-head")
            yield DataTable(id=name, cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self._table("brokers").add_columns("broker", "name", "state", "msg/s", "subscriptions", "clients", "behind", "waiting")
        self._table("links").add_columns("link", "state", "cost", "traffic", "waiting", "dropped")
        self._table("streams").add_columns("stream", "msg/s", "published", "throttled to", "because of", "furthest behind")
        self._table("durables").add_columns("name", "home", "state", "behind", "filter")
        self.run_worker(self._follow(), exclusive=False)
        self.run_worker(self._follow_durables(), exclusive=False)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.sub_title = "paused" if self._paused else ""

    async def _follow(self) -> None:
        async for encoded in self._picture.watch():
            if not self._paused:
                self.show(msgspec.json.decode(encoded))

    async def _follow_durables(self) -> None:
        while True:
            if not self._paused:
                try:
                    self.show_durables(await self._client.durables())
                except PostroadError as error:
                    self._head("durables-head", f"Durable subscriptions: {error}")
            await asyncio.sleep(DURABLES_S)

    # --- what is shown ---

    def show(self, data: dict[str, Any]) -> None:
        """Fill the screen from a picture, as `Picture.describe` makes it."""
        brokers, up = data["brokers"], [each for each in data["brokers"] if each["up"]]
        rate = sum(each["published_per_s"] for each in data["pubends"])
        behind = max((each["lag_ms"] for each in up), default=0)
        throttled = sum(1 for each in data["pubends"] if each["throttled_since_ms"])
        head = Text.assemble(
            ("postroad top", "bold"),
            "   ",
            (f"{len(up)} of {len(brokers)} brokers up", GOOD if len(up) == len(brokers) else BAD),
            f"   {rate:,.0f} msg/s   {sum(each.get('subscriptions', 0) for each in up):,} subscriptions   ",
            (f"{age(behind)} behind at most", WARN if behind > BEHIND_MS else ""),
            "   ",
            (f"{throttled} throttled", BAD if throttled else ""),
        )
        self._head("head", head)
        history = data["history"]
        self._chart("published", f"published: {rate:,.1f} msg/s", [point[1] for point in history])
        self._chart("carried", f"on links: {_size(history[-1][2] if history else 0)}/s", [point[2] for point in history])
        self._fill("brokers", [_broker_row(each) for each in brokers])
        self._fill("links", [_link_row(each) for each in data["links"]])
        self._fill("streams", [_stream_row(each, data["at_ms"]) for each in data["pubends"]])

    def show_durables(self, entries: list[DurableEntry]) -> None:
        ordered = sorted(entries, key=lambda entry: (-entry.behind_ms, entry.name))
        self._fill("durables", [_durable_row(each) for each in ordered])

    def _fill(self, name: str, rows: list[tuple[Text | str, ...]]) -> None:
        table = self._table(name)
        row, place = table.cursor_row, table.scroll_y
        table.clear()
        for each in rows[:ROWS_MAX]:
            table.add_row(*each)
        table.move_cursor(row=min(row, max(0, len(rows) - 1)), scroll=False)
        table.scroll_y = place

    def _chart(self, name: str, title: str, values: list[float]) -> None:
        self._head(f"{name}-title", title)
        self.query_one(f"#{name}", Sparkline).data = values[-60:] or [0.0]

    def _head(self, name: str, text: Text | str) -> None:
        self.query_one(f"#{name}", Static).update(text if isinstance(text, Text) else Text(text))

    def _table(self, name: str) -> DataTable[Text | str]:
        return self.query_one(f"#{name}", DataTable)


def _broker_row(each: dict[str, Any]) -> tuple[Text | str, ...]:
    if not each["up"]:
        return (str(each["id"]), _name(each["name"]), Text("down", BAD), "", "", "", "", "")
    behind = each["lag_ms"]
    state = Text("disk full", BAD) if each["disk_full"] else Text("behind", WARN) if behind > BEHIND_MS else Text("up", GOOD)
    figures = (f"{each['published_per_s']:,.1f}", f"{each['subscriptions']:,}", f"{each['clients']:,}")
    return (str(each["id"]), _name(each["name"]), state, *figures, age(behind), _size(each["backlog_bytes"]))


def _link_row(each: dict[str, Any]) -> tuple[Text | str, ...]:
    ways = each["to"].values()
    sums = [sum(way[name] for way in ways) for name in ("bytes_per_s", "backlog_bytes", "dropped_frames")]
    state = Text("up", GOOD) if each["up"] else Text("down", BAD)
    return (
        f"{each['a']} - {each['b']}",
        state,
        str(each.get("cost", "-")),
        f"{_size(sums[0])}/s",
        _size(sums[1]),
        f"{sums[2]:,}",
    )


def _stream_row(each: dict[str, Any], now_ms: int) -> tuple[Text | str, ...]:
    limit = reason = Text("-")
    if each["throttled_since_ms"]:
        limit = Text(f"{each['rate_limit']:,.0f}/s for {age(now_ms - each['throttled_since_ms'])}", BAD)
        reason = Text(f"broker {each['throttled_by']}", BAD)
    behind = f"broker {each['lag_broker']}, {age(each['lag_ms'])}" if each["lag_broker"] else "-"
    stream = f"{each['broker']}/{each['pubend'] & 0xFF}"
    return (stream, f"{each['published_per_s']:,.1f}", f"{each['published']:,}", limit, reason, behind)


def _durable_row(each: DurableEntry) -> tuple[Text | str, ...]:
    if each.filter is None:
        return (_name(each.name), str(each.home), Text("its home cannot be asked", BAD), "", "")
    state = Text("connected", GOOD) if each.connected else Text("away", WARN)
    return (_name(each.name), str(each.home), state, age(each.behind_ms), _name(each.filter or "everything"))


def _name(text: str) -> Text:
    """Show a name that somebody else chose: one line, without marks that would change the terminal."""
    shown = "".join(each if each.isprintable() else "?" for each in text[: NAME_SHOWN + 1])
    return Text(shown if len(text) <= NAME_SHOWN else shown[:NAME_SHOWN] + "…")


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
