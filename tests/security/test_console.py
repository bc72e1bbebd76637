"""The console of a guarded broker: each session has the rights of its identity, on every route and for as long as it lasts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.console.site import Site
from tests.security.guarded import Guard, guarded_node

from postroad.console.service import ConsoleService
from postroad.queues.broker_service import queues_of
from postroad.runtime.config import Console, NodeConfig
from postroad.security.gate import Gate, Trust
from postroad.security.http_sessions import SESSIONS_OF_IDENTITY_MAX, HttpSessions
from postroad.security.identities import Identities, Identity, revoke_identity
from postroad.security.tokens import digest_of
from postroad.transport.background import BackgroundLoop


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    guard = Guard(tmp_path)
    guard.identity("ops", publish=True, subscribe=True, queues=("put:*", "take:*", "manage:*"), trace=True, admin=True)
    guard.identity("eu", subscribe="region = 'EU'", queues=("take:jobs",), trace=True)
    guard.identity("nobody")
    return guard


@pytest.fixture
def guarded_site(guard: Guard) -> Iterator[Site]:
    loop = BackgroundLoop("postroad-console")
    settings = Console(listen="127.0.0.1:0")
    config = NodeConfig(id=1, data_dir=str(guard.directory / "data"), console=settings)
    queues = queues_of(config)
    assert queues is not None
    console = ConsoleService(config, queues)
    node = guarded_node(guard, guard.directory, services=(queues, console), console=settings)
    loop.call(node.start())
    try:
        yield Site(loop, [node], console, guard.directory / "data")
    finally:
        loop.call(node.stop())
        loop.stop()


def enter(site: Site, guard: Guard, name: str) -> Site:
    """Log in with the token of an identity."""
    session = Site(site.loop, site.nodes, site.console, site.directory)
    status, headers, answer = session.ask("POST", "/api/session", {"key": guard.tokens[name]})
    assert status == 200, answer
    session.cookie = headers["set-cookie"].split(";")[0].split("=", 1)[1]
    return session


def first(site: Site, path: str) -> Any:
    events = site.events(path)
    try:
        return next(events)
    finally:
        events.close()  # type: ignore[attr-defined]  # it is a generator


def test_each_route_asks_for_the_right_that_the_client_needs(guarded_site: Site, guard: Guard) -> None:
    nobody, ops = enter(guarded_site, guard, "nobody"), enter(guarded_site, guard, "ops")
    id_ = "0" * 32
    for path in (
        "/api/brokers/1",
        "/api/durables",
        "/api/more/books",
        f"/api/messages/{id_}",
        f"/api/messages/{id_}/explain?subscriber=x",
        "/api/filter?text=n",
        "/api/tail?filter=n%20%3E%200",
        "/api/queues/jobs/messages",
    ):
        assert nobody.ask("GET", path)[0] == 403, path
    for action in ("put", "redrive", "purge"):
        assert nobody.ask("POST", f"/api/queues/jobs/{action}", {})[0] == 403, action
    assert nobody.get("/api/queues") == {"served": True, "queues": []}
    seen = first(nobody, "/api/events")
    assert (seen["brokers"], seen["links"], seen["pubends"]) == ([], [], [])
    assert any(each["brokers"] for each in ops.events("/api/events"))  # once the console has reached its broker


def test_a_stream_ends_with_its_identity(guarded_site: Site, guard: Guard) -> None:
    """Whoever follows the tail or the map gets nothing more once the token is revoked."""
    eu, ops = enter(guarded_site, guard, "eu"), enter(guarded_site, guard, "ops")
    tail, others = eu.events("/api/tail?filter="), ops.events("/api/tail?filter=")
    pictures = eu.events("/api/events")
    for each in (tail, others, pictures):
        next(each)
    revoke_identity(guard.identities, "eu")
    for stream in (tail, pictures):
        for count, _ in enumerate(stream):
            assert count < 200, "the stream goes on"
    assert next(others)["messages"] == []
    assert eu.ask("GET", "/api/session")[0] == 401


def test_peeking_shows_no_messages_that_are_addressed_to_a_client(guarded_site: Site, guard: Guard) -> None:
    async def put() -> None:
        async with guard.connect(guarded_site.nodes[0], "ops") as client:
            jobs = client.queue("jobs")
            await jobs.put(b"open")
            found = await client.queues.get_queue_by_name("jobs")
            await client.queues.put(found.queue_id, b"private", receiver=client.queues.client_id)

    asyncio.run(put())
    eu, ops = enter(guarded_site, guard, "eu"), enter(guarded_site, guard, "ops")
    assert "private" not in json.dumps(eu.get("/api/queues/jobs/messages"))
    assert "private" in json.dumps(ops.get("/api/queues/jobs/messages"))


def test_who_logs_in_again_and_again_ends_his_own_sessions() -> None:
    gate = Gate(Trust(), 1)
    gate.identities = Identities([Identity(name=each, token_sha256=digest_of(each)) for each in ("shop", "ops")])
    sessions = HttpSessions(_Guarded(gate))
    kept, _ = sessions.login("ops", encrypted=True)
    logins = [sessions.login("shop", encrypted=True)[0] for _ in range(SESSIONS_OF_IDENTITY_MAX + 5)]
    assert sessions.holds(kept)
    assert [sessions.holds(each) for each in logins] == [False] * 5 + [True] * SESSIONS_OF_IDENTITY_MAX


class _Guarded(Gate):
    """A gate with identities and without files."""

    guarded = True

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate.trust, gate.broker)
        self.identities = gate.identities
