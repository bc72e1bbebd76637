"""The console over HTTP: who may enter, what pages are told, and what actions do."""

import asyncio
import base64
import gzip
import hashlib
import json
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.console.site import Site, site

import postroad
from postroad.client.connection import Client
from postroad.console.access import KEY_NAME
from postroad.console.action_log import ACTION_LOG_NAME
from postroad.console.app import PAGES, Console
from postroad.console.messages import show_payload, show_value, show_whole
from postroad.console.picture import ASKED_PER_ROUND, Picture
from postroad.console.queue_actions import QueueActions
from postroad.console.service import ConsoleService
from postroad.console.topics import describe_topics
from postroad.core.filters.filter import Filter
from postroad.core.protocol.rights import NOTHING, OPEN, Grant, Rights
from postroad.errors import ConfigError, PermissionDeniedError
from postroad.queues.broker_service import BrokerQueues
from postroad.runtime.config import Admission, NodeConfig
from postroad.runtime.config import Console as ConsoleSettings
from postroad.storage.queues.base import Lease, NewMessage, QueueSettings, TakeRequest
from postroad.topics.inquiry import ServiceReports
from postroad.wire.packets.telesto import ClientMode


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("console")) as running:
        running.enter()
        yield running


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until a condition holds, and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


# --- who may enter ---


def test_every_route_but_the_open_ones_answers_401_without_a_session(shared: Site) -> None:
    """The list of open routes is short, and stands here."""
    opened = {"/healthz", "/readyz", "/static/{path:path}", "/message/{id}", *(f"/{page}" for page in PAGES)}
    app = cast("Any", Console(cast("Any", SimpleNamespace(hosts=frozenset())))).app()._app
    closed = 0
    anonymous = Site(shared.loop, shared.nodes, shared.console, shared.directory)
    for route in app.routes:
        path = route.path
        for name, value in {"{broker:int}": "1", "{id}": "0" * 32, "{name}": "q", "{action}": "purge", "{page}": "books"}.items():
            path = path.replace(name, value)
        for method in sorted(route.methods - {"HEAD"}):
            if route.path in opened or (route.path, method) == ("/api/session", "POST"):
                continue
            status, _, answer = anonymous.ask(method, path, {} if method == "POST" else None)
            assert (status, answer["error"]) == (401, "log in first"), (method, path)
            closed += 1
    assert closed == 15
    assert anonymous.ask("GET", "/api/unknown")[0] == anonymous.ask("GET", "/unknown")[0] == 401


def test_another_name_or_another_site_is_refused(shared: Site) -> None:
    """A name that somebody pointed at this machine, and pages of other sites, get nothing."""
    assert shared.ask("GET", "/api/session", Host="evil.example")[0] == 421
    assert shared.ask("GET", "/", Host=f"evil.example:{shared.console.port}")[0] == 421
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{shared.console.port + 1}"):
        assert shared.ask("GET", "/api/session", Origin=origin)[0] == 403
        assert shared.ask("POST", "/api/queues/x/purge", {}, Origin=origin)[0] == 403
    assert shared.ask("POST", "/api/queues/x/purge", {}, Sec_Fetch_Site="cross-site")[0] == 403
    assert shared.ask("GET", "/api/session", Origin=f"http://{shared.host}")[0] == 200


def test_the_session_cookie_and_the_key_are_kept_from_others(shared: Site) -> None:
    """Scripts, other sites and other users of the machine read neither."""
    _, headers, _ = shared.ask("POST", "/api/session", {"key": shared.key})
    cookie = headers["set-cookie"].lower()
    assert cookie.startswith("__host-postroad=")
    assert all(word in cookie for word in ("httponly", "secure", "samesite=strict", "path=/"))
    assert "domain" not in cookie
    for name in (KEY_NAME, "console.address"):
        assert stat.S_IMODE((shared.directory / name).stat().st_mode) == 0o600


def test_a_session_ends_when_it_is_left(tmp_path: Path) -> None:
    """The cookie is worth nothing afterwards, and a wrong key opens nothing."""
    with site(tmp_path, 1) as own:
        own.enter()
        assert own.ask("GET", "/api/session")[0] == 200
        assert own.ask("DELETE", "/api/session", Origin=f"http://{own.host}")[0] == 200
        assert own.ask("GET", "/api/session")[0] == 401
        for wrong in ("", "wrong", own.key[:-1], own.key + "x", "ü" * 1000):
            assert own.ask("POST", "/api/session", {"key": wrong})[0] == 401


def test_answers_carry_a_strict_policy(shared: Site) -> None:
    """Only own files run; the one inline script is the import map, named by its hash."""
    status, headers, page = shared.ask("GET", "/message/abc")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = page.decode().split('<script type="importmap">')[1].split("</script>")[0]
    assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    for path in json.loads(text)["imports"].values():
        assert shared.ask("GET", path)[0] == 200, path
    assert shared.ask("GET", "/static/../service.py")[0] == 404
    assert shared.ask("GET", "/static/vendor/manifest.json")[0] == 404


def test_files_are_sent_packed_and_once(shared: Site) -> None:
    """A browser that has a file is told so; text comes packed to whoever can read that."""
    status, headers, plain = shared.ask("GET", "/static/map.js")
    assert (status, "content-encoding" in headers) == (200, False)
    _, packed_headers, packed = shared.ask("GET", "/static/map.js", Accept_Encoding="gzip")
    assert packed_headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 2
    assert shared.ask("GET", "/static/map.js", If_None_Match=headers["etag"])[0] == 304
    assert shared.ask("GET", "/static/vendor/inter-latin.woff2")[1]["content-type"] == "font/woff2"


def test_hostile_requests_are_refused_and_the_console_goes_on(shared: Site) -> None:
    """Large bodies, wrong types, absurd numbers: an error each, and the next request is served."""
    origin = f"http://{shared.host}"
    assert shared.ask("POST", "/api/session", b"x" * (2 << 20), Origin=origin)[0] == 400
    assert shared.ask("POST", "/api/session", b"[1]", Origin=origin)[0] == 400
    assert shared.ask("POST", "/api/session", b"{", Origin=origin)[0] == 400
    assert shared.ask("POST", "/api/session", b"{}", Origin=origin, Content_Type="text/plain")[0] == 400
    assert shared.ask("GET", "/api/brokers/1?after=99999999999999999999999")[0] == 400
    assert shared.ask("GET", "/api/brokers/1?after=-1")[0] == 400
    assert shared.ask("GET", "/api/brokers/99999999999999999999")[0] in (400, 409, 503)
    assert shared.ask("GET", "/api/messages/not-an-id")[0] == 400
    assert shared.ask("GET", "/api/queues/missing/messages")[0] == 404
    assert shared.ask("GET", "/api/filter?text=" + "(" * 30_000)[0] in (200, 400)
    assert shared.ask("GET", "/nothing")[0] == 404
    assert shared.get("/healthz") == b"ok\n"


def test_the_console_listens_on_loopback_only(tmp_path: Path) -> None:
    """It serves plain HTTP, so another address is refused with the way out."""
    config = NodeConfig(id=1, data_dir=str(tmp_path), console=ConsoleSettings(listen="0.0.0.0:7480"))
    with pytest.raises(ConfigError, match="loopback only"):
        ConsoleService(config, None)


# --- what pages are told ---


def test_the_picture_shows_brokers_links_and_streams(shared: Site) -> None:
    """A page gets a picture at once and then each new one."""
    pictures = shared.events("/api/events")
    picture = until(lambda: next(p for p in pictures if len(p["brokers"]) == 2 and all(b["up"] for b in p["brokers"])))
    pictures.close()  # type: ignore[attr-defined]
    assert [each["name"] for each in picture["brokers"]] == ["site-1", "site-2"]
    assert [(each["a"], each["b"], each["up"]) for each in picture["links"]] == [(1, 2, True)]
    assert {each["broker"] for each in picture["pubends"]} == {1, 2}
    assert shared.get("/readyz") == b"ready\n"
    report = shared.get("/api/brokers/2?page=10")
    assert (report["broker"], report["name"]) == (2, "site-2")


def test_a_broker_that_is_down_is_shown_down_and_comes_back(tmp_path: Path) -> None:
    """The page says who is down and why, without being loaded again."""
    with site(tmp_path) as own:
        own.enter()
        pictures = own.events("/api/events")

        def is_up(broker: int) -> bool:
            return any(each["id"] == broker and each["up"] for each in next(pictures)["brokers"])

        until(lambda: is_up(2))
        own.kill(2)
        until(lambda: not is_up(2))
        down = next(each for each in next(pictures)["brokers"] if each["id"] == 2)
        assert down["reason"]
        own.revive(2)
        until(lambda: is_up(2))


def test_nobody_is_asked_while_nobody_looks() -> None:
    """With many brokers, a round asks a bounded number of them, and all have their turn."""
    asked: list[int] = []

    class Overlay:
        async def brokers(self) -> dict[int, list[int]]:
            return {number: [] for number in range(1, 1001)}

        async def status(self, broker: int) -> Any:
            asked.append(broker)
            raise postroad.errors.UnfinishedError("no answer")

    async def scenario() -> None:
        picture = Picture(cast("Client", Overlay()), 1)
        await asyncio.sleep(0)
        assert not asked
        for _ in range(-(-1000 // ASKED_PER_ROUND)):
            before = len(asked)
            await picture._ask()
            assert len(asked) - before <= ASKED_PER_ROUND
        assert len(set(asked)) == 1000
        assert len(picture.describe()["brokers"]) == 1000

    asyncio.run(scenario())


def test_a_message_is_traced_shown_and_explained(shared: Site) -> None:
    """The path, the receipts and the content come from the brokers; explain tells why another did not get it."""

    async def publish() -> str:
        async with postroad.connect(shared.url(1)) as writer, postroad.connect(shared.url(2)) as reader:
            wanted = await reader.subscribe("price > 10", name="dear")
            await reader.subscribe("price < 10", name="cheap")
            publisher = writer.publisher()
            sent = await publisher.publish({"price": 50, "big": 1 << 60, "raw": b"\xff"}, "grüße".encode())
            await publisher.flush()
            async for _ in wanted:
                break
            return str(sent)

    name = asyncio.run(publish())

    def traced() -> Any:
        found = shared.get(f"/api/messages/{name}")
        return found if found["trace"]["subscribers"] else None

    found = until(traced)
    assert [(each["broker"], each["upstream"]) for each in found["trace"]["brokers"]] == [(1, None), (2, 1)]
    assert [each["subscriber"] for each in found["trace"]["subscribers"]] == ["dear"]
    assert found["message"]["attributes"] == {"big": {"integer": str(1 << 60)}, "price": 50, "raw": {"base64": "/w=="}}
    assert found["message"]["payload"]["text"] == "grüße"
    assert shared.get(f"/api/messages/{name}/explain?subscriber=dear")["verdict"] == "delivered"
    explained = shared.get(f"/api/messages/{name}/explain?subscriber=cheap")
    assert (explained["verdict"], explained["filter"]) == ("filtered", "price < 10")
    others = shared.get(f"/api/messages/{name}/others")
    assert {(each["subscriber"], each["verdict"]) for each in others["others"]} >= {("cheap", "filtered")}
    assert "dear" not in {each["subscriber"] for each in others["others"]}
    until(lambda: {each["name"] for each in shared.get("/api/durables")["durables"]} >= {"dear", "cheap"})


def test_a_message_is_shown_only_to_those_who_may_subscribe_to_it(shared: Site) -> None:
    """The path needs the right to trace, the content the right to subscribe to it."""

    async def scenario() -> None:
        async with postroad.connect(shared.url(1)) as client:
            publisher = client.publisher()
            sent = await publisher.publish({"region": "EU"}, b"secret")
            await publisher.flush()
            there = Rights("x", subscribe=Filter("region = 'US'"))
            here = Rights("x", subscribe=Filter("region = 'EU'"))
            assert (await show_whole(client, there, sent))["message"] is None
            assert (await show_whole(client, here, sent))["message"]["payload"]["text"] == "secret"
            with pytest.raises(PermissionDeniedError):
                await show_whole(client, NOTHING, sent)

    asyncio.run(scenario())


def test_a_filter_is_checked_while_it_is_typed(shared: Site) -> None:
    """An error has a position."""
    assert shared.get("/api/filter?text=price%20%3E%201") == {"filter": "price > 1"}
    assert shared.get("/api/filter?text=price%20%3E")["position"] == 7


def test_the_tail_shows_matching_messages_and_counts_the_rest(shared: Site) -> None:
    """Only what matches comes; of a flood, the newest, with the number of those left out."""
    turns = shared.events("/api/tail?filter=kind%20%3D%20%27tail%27")
    assert next(turns)["messages"] == []

    async def publish() -> None:
        async with postroad.connect(shared.url(2)) as client:
            publisher = client.publisher()
            for number in range(500):
                await publisher.publish({"kind": "tail" if number % 2 else "other", "n": number}, b"")
            await publisher.flush()

    asyncio.run(publish())
    seen: list[int] = []
    turn: dict[str, Any] = {"received": 0}
    while turn["received"] < 250:
        turn = next(turns)
        seen += [each["attributes"]["n"] for each in turn["messages"]]
    turns.close()  # type: ignore[attr-defined]
    assert seen
    assert all(n % 2 for n in seen)
    assert turn["left_out"] == 250 - len(seen)
    assert shared.ask("GET", "/api/tail?filter=price%20%3E")[0] == 400


def test_payloads_and_values_reach_the_browser_without_loss() -> None:
    """Long integers, infinities and bytes are named as what they are; a long payload is cut between characters."""
    assert show_value((1 << 53) - 1) == (1 << 53) - 1
    assert show_value(1 << 53) == {"integer": str(1 << 53)}
    assert show_value(float("inf")) == {"float": "inf"}
    assert show_value(True) is True
    cut = show_payload("ä".encode() * 5000 + b"x")
    assert cut["cut"]
    assert set(cut["text"]) == {"ä"}
    assert show_payload(b"\xff\xfe")["base64"] == "//4="
    assert show_payload(b"") == {"bytes": 0, "cut": False, "text": ""}


# --- queues ---


def on_queues(shared: Site, act: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do something with the storage of the broker's queues, on its own loop."""
    queues = next(each for each in shared.nodes[0]._services if isinstance(each, BrokerQueues))
    return shared.loop.call(act(queues.service.storage))  # type: ignore[arg-type]


def test_queue_actions_do_what_they_say_and_are_recorded(shared: Site) -> None:
    """Put, peek and purge; each action is a line of the audit log."""
    origin = f"http://{shared.host}"
    on_queues(shared, lambda storage: storage.create_queue("jobs", QueueSettings()))
    for priority in (5, 9):
        body = {"payload": f"job {priority}", "priority": priority}
        assert shared.ask("POST", "/api/queues/jobs/put", body, Origin=origin)[2] == {"put": 1}
    peeked = shared.get("/api/queues/jobs/messages")
    assert {each["payload"]["text"] for each in peeked["messages"]} == {"job 5", "job 9"}
    listed = next(each for each in shared.get("/api/queues")["queues"] if each["name"] == "jobs")
    assert (listed["waiting"], listed["leased"]) == (2, 0)
    assert shared.ask("POST", "/api/queues/jobs/put", {"payload": "x", "priority": 99}, Origin=origin)[0] == 400
    assert shared.ask("POST", "/api/queues/jobs/purge", {}, Origin=origin)[2] == {"deleted": 2}
    assert shared.get("/api/queues/jobs/messages")["messages"] == []
    lines = [json.loads(line) for line in (shared.directory / ACTION_LOG_NAME).read_text().splitlines()]
    assert [(each["action"], each["queue"]) for each in lines][-4:] == [
        ("put", "jobs"),
        ("put", "jobs"),
        ("put", "jobs"),
        ("purge", "jobs"),
    ]
    assert lines[-2]["outcome"].startswith("refused")


def test_a_queue_shows_and_allows_what_its_viewer_may(shared: Site) -> None:
    """Whoever may only take sees the queue and cannot put, redrive or purge; whoever may do nothing does not see it."""
    taker, nobody = Rights("taker", queues=(Grant("take", "watched"),)), Rights("nobody", queues=())

    async def look(storage: Any) -> None:
        queue = await storage.create_queue("watched", QueueSettings())
        await storage.put([NewMessage(queue.queue_id, 1, b"x", priority=6)])
        actions = QueueActions(next(each for each in shared.nodes[0]._services if isinstance(each, BrokerQueues)))
        assert [(each["name"], each["allowed"]) for each in await actions.describe(taker)] == [("watched", ["take"])]
        assert await actions.describe(nobody) == []
        assert len((await actions.peek(taker, "watched", 0))["messages"]) == 1
        assert (await actions.peek(OPEN, "watched", 0))["by_priority"] == [(6, 1)]
        for refused in (
            actions.put(taker, "watched", b"", 5),
            actions.redrive(taker, "watched"),
            actions.purge(taker, "watched"),
            actions.peek(nobody, "watched", 0),
        ):
            with pytest.raises(PermissionDeniedError):
                await refused

    on_queues(shared, look)


def test_dead_letters_go_back_to_the_queue_they_came_from(shared: Site) -> None:
    """Only those of this queue are put back, each once, with their priority."""

    async def fill(storage: Any) -> None:
        dead = await storage.create_queue("dead", QueueSettings())
        client = await storage.request_id("worker", ClientMode.READ_AND_PUT)
        for name in ("left", "right"):
            queue = await storage.create_queue(name, QueueSettings(max_deliveries=1, dead_letter_id=dead.queue_id))
            await storage.put([NewMessage(queue.queue_id, client.client_id, name.encode(), priority=7)])
            (taken,) = await storage.take(TakeRequest(queue.queue_id, client.client_id))
            await storage.release([Lease(queue.queue_id, taken.message_id, taken.delivery, client.client_id)])

    on_queues(shared, fill)
    assert len(shared.get("/api/queues/dead/messages")["messages"]) == 2
    origin = f"http://{shared.host}"
    assert shared.ask("POST", "/api/queues/left/redrive", {}, Origin=origin)[2] == {"moved": 1}
    (back,) = shared.get("/api/queues/left/messages")["messages"]
    assert (back["payload"]["text"], back["priority"]) == ("left", 7)
    assert [each["payload"]["text"] for each in shared.get("/api/queues/dead/messages")["messages"]] == ["right"]
    assert shared.ask("POST", "/api/queues/left/redrive", {}, Origin=origin)[2] == {"moved": 0}
    assert shared.ask("POST", "/api/queues/dead/redrive", {}, Origin=origin)[0] == 400


# --- admission, topics, books ---


def test_admission_is_shown_with_what_would_fit(tmp_path: Path) -> None:
    """Capacity, advertisements and reservations; and for a filter that does not fit, who refuses it and why."""

    async def use(own: Site) -> None:
        async with postroad.connect(own.url(1)) as client:
            await client.advertise("price > 100", max_rate=80)
            await client.advertise("price < 50", max_rate=60)
            await client.subscribe("price > 150")
            shown = await asyncio.to_thread(own.get, "/api/more/admission")
            assert next((each["name"], each["used"], each["limit"]) for each in shown["resources"]) == ("cpu", 80, 100)
            advertised = [(each["filter"], each["per_s"], each["brokers"]) for each in shown["advertised"]]
            assert advertised == [("price > 100", 80, [1]), ("price < 50", 60, [1])]
            assert [(each["filter"], each["decided"]) for each in shown["reservations"]] == [("price > 150", True)]
            fits = await asyncio.to_thread(own.get, "/api/admission?filter=price%20%3E%20160")
            assert (fits["admitted"], fits["refusals"]) == (True, [])
            refused = await asyncio.to_thread(own.get, "/api/admission?filter=price%20%3C%2040")
            assert not refused["admitted"]
            assert "CPU" in refused["refusals"][0]

    with site(tmp_path, 1, admission=Admission(policy="full", cpu_rate=100)) as own:
        own.enter()
        until(lambda: own.ask("GET", "/readyz")[0] == 200)
        asyncio.run(use(own))


def test_topics_are_shown_with_their_owners() -> None:
    """A server that does not answer is named as down; its topics are not invented."""
    topic = {"topic": "news", "state": "served", "subscribers": 2, "unread": 3, "messages": 5, "bytes": 70}
    found = ServiceReports(
        [("127.0.0.1:7101", {"proxy": "p", "servers": [], "topics": []}), ("127.0.0.1:7102", None)],
        {"left": ("127.0.0.1:1", {"count": 1, "topics": [topic]}), "right": ("127.0.0.1:2", None)},
    )
    shown = describe_topics(found)
    assert [(each["topic"], each["owner"], each["unread"]) for each in shown["topics"]] == [("news", "left", 3)]
    assert [(each["address"], each["up"]) for each in shown["proxies"]] == [("127.0.0.1:7101", True), ("127.0.0.1:7102", False)]
    assert [(each["name"], each["up"]) for each in shown["servers"]] == [("left", True), ("right", False)]


def test_the_last_audit_is_shown(shared: Site) -> None:
    """Before the first audit the page says how to make one; a damaged file is an error, not an empty page."""
    assert shared.get("/api/more/books") == {"served": True}
    books = {
        "verdict": "closes",
        "told": "All is there.",
        "at_ms": 1,
        "published": 3,
        "expected": 2,
        "delivered": 2,
        "missing": 0,
    }
    rows = [
        {"subscriber": "a", "expected": 2, "delivered": 2, "missing": 0},
        {"subscriber": "b", "expected": 1, "delivered": 0, "missing": 1},
    ]
    (shared.directory / "books.json").write_text(json.dumps({**books, "subscribers": rows}))
    shown = shared.get("/api/more/books")
    assert (shown["verdict"], [row["subscriber"] for row in shown["subscribers"]]) == ("closes", ["b", "a"])
    (shared.directory / "books.json").write_text("{}")
    assert shared.ask("GET", "/api/more/books")[0] == 409
    assert shared.get("/api/more/admission") == {"served": False}
