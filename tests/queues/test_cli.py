"""`postroad queue ...` against a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from postroad.cli import main
from postroad.testing import broker

Postroad = Callable[..., Result]


@pytest.fixture
def postroad() -> Iterator[Postroad]:
    """The commands against a broker of their own."""
    with broker() as url:

        def call(*arguments: str, stdin: str | None = None) -> Result:
            return CliRunner().invoke(main, ["queue", *arguments], input=stdin, env={"POSTROAD_URL": url})

        yield call


def test_a_queue_from_creation_to_deletion(postroad: Postroad) -> None:
    """Every command once, with what it prints."""
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


def test_errors_name_what_is_wrong_and_their_code(postroad: Postroad) -> None:
    """An unknown queue, a taken name, no broker."""
    assert "[error 603]" in postroad("take", "none").output
    postroad("create", "jobs")
    assert "found queue jobs" in postroad("create", "jobs").output
    assert "lease=30, not 60" in postroad("create", "jobs", "--lease", "60").output
    assert "[error 601]" not in postroad("put", "jobs", "x").output
    assert "host:port" in CliRunner().invoke(main, ["queue", "list", "--url", "no:where"]).output
