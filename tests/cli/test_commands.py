"""The commands that talk to a broker: one address for all, JSON with strings for ids, hints, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import postroad.sync
from postroad.cli import COMMANDS, main
from postroad.cli.shared import SinceType
from postroad.testing import broker, free_ports, overlay

Command = Callable[..., Result]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker for the module."""
    with broker(data_dir=tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.fixture
def command(url: str) -> Command:
    """The command line, with the address in the environment."""

    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin, env={"POSTROAD_URL": url.removeprefix("postroad://")})

    return call


def test_every_command_that_has_an_address_has_the_same_option() -> None:
    """`--url`, with the same variable behind it, and no other spelling."""
    found = 0
    pending = [(name, main.get_command(click.Context(main), name)) for name in COMMANDS]
    while pending:
        name, each = pending.pop()
        assert each is not None
        if isinstance(each, click.Group):
            context = click.Context(each)
            pending += [(f"{name} {inner}", each.get_command(context, inner)) for inner in each.list_commands(context)]
        for option in each.params:
            assert "--broker" not in option.opts or option.type.name == "integer range", name
            if "--url" in option.opts:
                found += 1
                assert (option.opts, option.envvar) == (["--url"], "POSTROAD_URL"), name
    assert found >= 15


def until_waiting(name: str, count: int, url: str) -> None:
    """Ask until so many messages wait for a durable subscription: its broker's position in the stream moves a moment later."""
    deadline = time.monotonic() + 30
    while True:
        shown = json.loads(CliRunner().invoke(main, ["subscriptions", "show", name, "--json", "--url", url]).stdout)
        assert isinstance(shown["waiting_max"], int)
        if shown["waiting_max"] == count:
            return
        assert time.monotonic() < deadline, shown


def test_status_shows_brokers_links_and_what_is_behind() -> None:
    """As a table and as JSON; ticks are strings; one broker with its streams and clients."""
    with overlay([("a", "b")]) as urls, postroad.sync.connect(urls["a"], name="counted") as client:
        subscription = client.subscribe("t = 'status'", name="status")
        client.publish({"t": "status"})
        found = json.loads(CliRunner().invoke(main, ["status", "--json", "--url", urls["b"]]).stdout)
        assert [(each["broker"], [link["broker"] for link in each["links"]]) for each in found["brokers"]] == [(1, [2]), (2, [1])]
        assert "counted" in [each["name"] for each in found["brokers"][0]["clients"]]
        published_at, other = (each["figures"]["log_bytes"] for each in found["brokers"])
        assert published_at > other > 0
        assert all(isinstance(each["known"], str) for each in found["brokers"][0]["streams"])
        (durable,) = found["durable_subscriptions"]
        assert (durable["name"], durable["home"], durable["connected"]) == ("status", 1, True)
        assert durable["behind_s"] >= 0
        assert found["unreachable"] == {}
        subscription.close()
        client.publish({"t": "status"})
        client.publish({"t": "other"})
        until_waiting("status", 2, urls["b"])  # neither was acknowledged
        shown = CliRunner().invoke(main, ["status", "--url", urls["a"]])
        assert shown.exit_code == 0
        assert "t = 'status'" in shown.stdout
        details = CliRunner().invoke(main, ["status", "--url", urls["a"], "--broker", "1"]).stdout
        assert "counted" in details
        subscription.close(forget=True)


def test_a_broker_that_does_not_answer_is_named_and_the_exit_code_says_so(url: str) -> None:
    """Asked for by its number, since no map knows it."""
    result = CliRunner().invoke(main, ["status", "--url", url, "--broker", "77", "--json"])
    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["unreachable"]) == ["77"]


def test_durable_subscriptions_are_listed_shown_and_deleted(command: Command, url: str) -> None:
    """A long filter is not wrapped in a pipe; an unknown name is an error with its code."""
    long = " OR ".join(f"symbol = 'S{n}'" for n in range(100))
    with postroad.sync.connect(url) as client:
        client.subscribe(long, name="listed").close()
    assert long in command("subscriptions").output
    assert long in command("subscriptions", "list").output
    (entry,) = [json.loads(line) for line in command("subscriptions", "list", "--json").output.splitlines()]
    assert entry == json.loads(command("subscriptions", "show", "listed", "--json").output)
    assert (entry["name"], entry["filter"], entry["connected"]) == ("listed", long, False)
    assert command("subscriptions", "forget", "listed").exit_code == 0
    missing = command("subscriptions", "show", "listed")
    assert missing.exit_code == 1
    assert "[error 510]" in missing.output


def test_subscribe_shares_a_durable_subscription(command: Command, url: str) -> None:
    """What one member acknowledged does not come to the next; the list says how many members there are, and by which key."""
    options = ("subscribe", "--filter", "t = 'shared'", "--name", "shared", "--shared", "--key", "k")
    with postroad.sync.connect(url) as client:
        with client.subscribe("t = 'shared'", name="shared", shared=True, key="k", prefetch=0):
            for n in range(4):
                client.publish({"t": "shared", "k": n % 2, "n": n})
            assert "1 member, by k" in command("subscriptions", "list").output
            lines = command(*options, "--count", "4").stdout.splitlines()
        assert sorted(json.loads(line)["attributes"]["n"] for line in lines) == [0, 1, 2, 3]
        assert command(*options, "--timeout", "0.5").stdout == ""
    assert "[error 513]" in command(*options[:-2]).output
    assert command("subscriptions", "forget", "shared").exit_code == 0


def test_subscribe_since_begins_in_the_past(command: Command) -> None:
    """What was published before the command started; ids and ticks are strings."""
    for n in (1, 2):
        assert command("publish", "-a", "t=since", "-a", f"n={n}").exit_code == 0
    output = command("subscribe", "--filter", "t = 'since'", "--since", "5m", "--count", "2").stdout
    lines = [json.loads(line) for line in output.splitlines()]
    assert [each["attributes"]["n"] for each in lines] == [1, 2]
    assert all(isinstance(each[name], str) for each in lines for name in ("id", "tick", "pubend"))
    again = command("publish", stdin=output)
    assert "2 messages published" in again.output
    assert command("subscribe", "--since", "5m", "--earliest").exit_code == 2


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("2h", 7200), ("1.5d", 129600), ("500ms", 0.5), ("1w", 604800)])
def test_a_time_in_the_past_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    """Or a date."""
    assert SinceType().convert(text, None, None) == timedelta(seconds=seconds)
    assert SinceType().convert("2026-11-19T08:00:00+00:00", None, None) == datetime(2026, 11, 19, 8, tzinfo=UTC)
    for wrong in ("", "m", "10 minutes", "-5m", "1e9999d", "9" * 400 + "d"):
        with pytest.raises(click.BadParameter):
            SinceType().convert(wrong, None, None)


def test_a_request_is_answered_on_the_command_line(command: Command, url: str) -> None:
    """The answer is printed; nobody there is an error."""
    with postroad.sync.connect(url) as client:
        calls = client.queue("cli calls")

        def answer_one() -> None:
            with calls.take(timeout=30) as delivery:  # type: ignore[union-attr]
                delivery.reply(json={"sum": sum(delivery.json(list[int]))})

        thread = threading.Thread(target=answer_one)
        thread.start()
        assert command("request", "cli calls", "[1, 2]").output == '{"sum":3}\n'
        thread.join()
    nobody = command("request", "cli calls", "[1]", "--timeout", "0.1")
    assert nobody.exit_code == 1
    assert "[error 609]" in nobody.output


def test_queue_listings_have_json_and_dead_letters_are_redriven(command: Command, url: str) -> None:
    """Ids are strings; attributes go in and come out."""
    with postroad.sync.connect(url) as client:
        client.queue("cli jobs.dead").put("again", attributes={"from_queue": "cli jobs", "error": "x", "n": 1})
    assert command("queue", "create", "cli jobs").exit_code == 0
    assert "put 1 message back" in command("queue", "redrive", "cli jobs").output
    assert command("queue", "put", "cli jobs", "two", "-a", "n=2").exit_code == 0
    taken = [json.loads(line) for line in command("queue", "take", "cli jobs", "--count", "2", "--json").output.splitlines()]
    assert [each["attributes"] for each in taken] == [{"n": 1}, {"n": 2}]
    assert all(isinstance(each["id"], str) for each in taken)
    listed = [json.loads(line) for line in command("queue", "list", "--json").output.splitlines()]
    assert all(isinstance(each["id"], str) for each in listed)
    assert json.loads(command("queue", "stats", "cli jobs", "--json").output)["waiting"] == 0


def test_bench_measures_and_leaves_nothing_behind(command: Command) -> None:
    """Quickly: every figure is positive."""
    found = json.loads(command("bench", "--seconds", "0.2", "--json").stdout)
    assert all(value > 0 for value in found.values())
    assert command("subscriptions").output.count("postroad") == 0


def test_without_a_broker_there_is_a_hint_and_ctrl_c_ends_cleanly() -> None:
    """The hint comes after a second and names the address; Ctrl-C gives 130 and no traceback."""
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "postroad", "status"],
        env={**os.environ, "POSTROAD_URL": f"127.0.0.1:{port}", "PYTHONPATH": str(Path(postroad.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    hint = process.stderr.readline()
    assert f"waiting for a broker at 127.0.0.1:{port}" in hint
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in rest
