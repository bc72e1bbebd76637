"""`postroad queue ...` against a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from click.testing import CliRunner, Result

from postroad.cli import main
from postroad.queues.server import QueueServer
from postroad.queues.service import QueueService
from postroad.storage.queues.memory import MemoryQueueStorage

Postroad = Callable[..., Result]


def with_server(body: Callable[[Postroad], None]) -> None:
    """Run the commands in a thread, as the loop of the server is in this one."""

    async def run() -> None:
        async with QueueServer(QueueService(MemoryQueueStorage())) as server:

            def postroad(*arguments: str, stdin: str | None = None) -> Result:
                return CliRunner().invoke(main, ["queue", "--broker", f"127.0.0.1:{server.port}", *arguments], input=stdin)

            await asyncio.to_thread(body, postroad)

    asyncio.run(run())


def test_a_queue_from_creation_to_deletion() -> None:
    """Every command once, with what it prints."""

    def body(postroad: Postroad) -> None:
        assert "id 1" in postroad("create", "dead").output
        assert "id 2" in postroad("create", "jobs", "--lease", "5", "--max-deliveries", "3", "--dead-letter", "dead").output
        assert "put 1 message " in postroad("put", "jobs", "low", "--priority", "1").output
        assert "put 2 messages" in postroad("put", "jobs", "--priority", "9", stdin="first\nsecond\n").output
        assert "put 1 message " in postroad("put", "jobs", "later", "--delay", "60").output
        listed = postroad("list").output
        assert "jobs" in listed
        assert "dead" in listed
        assert "dead" not in postroad("list", "--active").output
        assert "scheduled" in postroad("peek", "jobs").output
        shown = [json.loads(line) for line in postroad("peek", "jobs", "--json", "--limit", "0").output.splitlines()]
        assert [m["payload"] for m in shown] == ["low", "first", "second", "later"]
        assert postroad("take", "jobs").output == "first\n"
        assert postroad("take", "jobs", "--count", "0").output == "second\nlow\n"
        assert postroad("take", "jobs", "--by", "arrival", "--wait", "0.05").exit_code == 1
        assert "scheduled" in postroad("stats", "jobs").output
        assert "binding 1" in postroad("bind", "jobs", "price > 10", "--priority", "7").output
        assert postroad("bind", "jobs").output == "1\t7\tprice > 10\n"
        assert "removed" in postroad("bind", "jobs", "--remove", "1").output
        assert postroad("delete", "jobs").exit_code == 1
        assert postroad("delete", "jobs", "--yes").exit_code == 0
        assert postroad("delete", "dead").exit_code == 0

    with_server(body)


def test_errors_name_what_is_wrong_and_their_code() -> None:
    """An unknown queue, a taken name, no broker."""

    def body(postroad: Postroad) -> None:
        assert "[error 603]" in postroad("take", "none").output
        postroad("create", "jobs")
        assert "[error 604]" in postroad("create", "jobs").output
        assert "[error 601]" not in postroad("put", "jobs", "x").output
        assert CliRunner().invoke(main, ["queue", "--broker", "127.0.0.1:1", "list"]).exit_code == 1
        assert "host:port" in CliRunner().invoke(main, ["queue", "--broker", "nowhere", "list"]).output

    with_server(body)
