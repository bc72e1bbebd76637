"""The commands of the overlay, as processes: broker, overlay, publish, subscribe."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

import postroad.sync
from postroad.testing import broker, free_ports

SOURCE = Path(__file__).parents[2] / "src"


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "postroad.cli", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, text=True, env=environment, **pipes)  # type: ignore[call-overload, no-any-return]


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    with start(*arguments) as process:
        output, errors = process.communicate(text, timeout=30)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


@pytest.fixture
def url() -> Iterator[str]:
    with broker() as address:
        yield address


def test_lines_published_come_out_of_subscribe_and_may_go_in_again(url: str) -> None:
    """JSON lines in, JSON lines out; what one command writes the other reads."""
    lines: list[dict[str, Any]] = [
        {"attributes": {"n": 1, "symbol": "IBM", "price": 1.5, "up": True, "blob": {"base64": "AP8="}}, "payload": "first"},
        {"attributes": {"n": 2}, "payload_base64": "/w=="},
        {"attributes": {"n": 3}},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    with start("subscribe", "--url", url, "--filter", "n > 0", "--count", "6") as subscriber:
        assert subscriber.stderr is not None
        assert "subscribed" in subscriber.stderr.readline()
        published = run("publish", "--url", url, "--ids", text=text)
        assert published.returncode == 0, published.stderr
        assert "3 messages published" in published.stderr
        first = [subscriber.stdout.readline() for _ in range(3)] if subscriber.stdout is not None else []
        again = run("publish", "--url", url, text="".join(first))
        assert again.returncode == 0, again.stderr
        rest, _ = subscriber.communicate(timeout=30)
        assert subscriber.returncode == 0
    received = [json.loads(line) for line in first + rest.splitlines()]
    assert [line["id"] for line in received[:3]] == published.stdout.split()
    for line, got in zip(lines * 2, received, strict=True):
        assert got["attributes"] == line["attributes"]
        assert got.get("payload_base64") == line.get("payload_base64")
        assert got.get("payload") == line.get("payload", "" if "payload_base64" not in line else None)


def test_one_message_from_options(url: str) -> None:
    """Values that look like numbers are numbers, quotes make them strings."""
    with start("subscribe", "--url", url, "--count", "1") as subscriber:
        assert subscriber.stderr is not None
        subscriber.stderr.readline()
        done = run("publish", "--url", url, "-a", "n=5", "-a", "x=1.5", "-a", "s='5'", "-a", "t=true", "-a", "w=word", "-p", "hi")
        assert done.returncode == 0
        output, _ = subscriber.communicate(timeout=30)
    received = json.loads(output)
    assert received["attributes"] == {"n": 5, "x": 1.5, "s": "5", "t": True, "w": "word"}
    assert received["payload"] == "hi"


def test_a_position_file_makes_subscribe_go_on(url: str, tmp_path: Path) -> None:
    """Each run gets the next messages."""
    file = str(tmp_path / "positions")
    options = ("subscribe", "--url", url, "--filter", "n > 0", "--position-file", file)
    assert run(*options, "--timeout", "0.2").returncode == 0
    lines = "".join(json.dumps({"attributes": {"n": number}}) + "\n" for number in range(1, 5))
    assert run("publish", "--url", url, text=lines).returncode == 0
    seen = [json.loads(run(*options, "--count", "2").stdout.splitlines()[0])["attributes"]["n"] for _ in range(2)]
    assert seen == [1, 3]


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (("publish",), "not json\n", "line 1"),
        (("publish",), '{"attributes": {"x": 1}}\n{"attributes": {"x": [1]}}\n', "line 2: attribute 'x'"),
        (("publish", "-a", "novalue"), "", "NAME=VALUE"),
        (("subscribe", "--filter", "price >"), "", "position 7"),
    ],
)
def test_a_mistake_is_told_and_the_exit_code_is_not_zero(url: str, arguments: tuple[str, ...], text: str, said: str) -> None:
    """The text says what was wrong and where; no traceback."""
    done = run(arguments[0], "--url", url, *arguments[1:], text=text)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broker_process_stops_in_good_order(tmp_path: Path) -> None:
    """SIGTERM ends it with code 0, and what was acknowledged is there at the next start."""
    for expected in ("1", "2"):
        with start("broker", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--log-level", "error") as process:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert run("publish", "--url", url, "-a", f"n={expected}").returncode == 0
            received = run("subscribe", "--url", url, "--earliest", "--count", expected)
            assert len(received.stdout.splitlines()) == int(expected)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [("id = 1", "missing key `data_dir`"), ("id = 1\ndata_dir = 'x'\nlistn = 'y:1'", "did you mean `listen`?")],
)
def test_a_broker_says_what_is_wrong_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    """The file, the key and a suggestion."""
    file = tmp_path / "broker.toml"
    file.write_text(text, encoding="utf-8")
    done = run("broker", "--config", str(file))
    assert done.returncode == 1
    assert said in done.stderr
    assert "broker.toml" in done.stderr


def test_a_broker_says_that_its_port_or_its_data_is_taken(tmp_path: Path) -> None:
    """Two brokers cannot share an address or a directory."""
    data = str(tmp_path / "data")
    with start("broker", "--data-dir", data, "--listen", "127.0.0.1:0", "--log-level", "error") as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].removeprefix("postroad://")
        assert "cannot listen" in run("broker", "--data-dir", str(tmp_path / "other"), "--listen", address).stderr
        assert "in use by another process" in run("broker", "--data-dir", data, "--listen", "127.0.0.1:0").stderr
        process.terminate()
        process.communicate(timeout=30)


def test_an_overlay_runs_all_its_brokers_and_reports_one_that_ends(tmp_path: Path) -> None:
    """One command starts them, linked; a broker that dies is reported and the others go on; Ctrl-C ends all."""
    first, second = free_ports(2)
    file = tmp_path / "overlay.toml"
    file.write_text(
        f"""
        [[brokers]]
        name = "north"
        id = 1
        listen = "127.0.0.1:{first}"
        neighbours = ["south"]
        [[brokers]]
        name = "south"
        id = 2
        listen = "127.0.0.1:{second}"
        """,
        encoding="utf-8",
    )
    with start("overlay", str(file), "--logs", str(tmp_path / "logs")) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        pids = [int(line.split("process ")[1].split(",")[0]) for line in lines]
        with postroad.sync.connect(f"postroad://127.0.0.1:{second}", timeout=30) as client:
            asyncio.run(until(lambda: len(client.pubends()) == 2, 30.0))  # linked: a subscription reaches both
        with start("subscribe", "--url", f"postroad://127.0.0.1:{second}", "--count", "1") as subscriber:
            assert subscriber.stderr is not None
            while "subscribed" not in (line := subscriber.stderr.readline()):
                assert line, "the subscriber ended"
            assert run("publish", "--url", f"postroad://127.0.0.1:{first}", "-p", "hello").returncode == 0
            output, _ = subscriber.communicate(timeout=30)
            assert json.loads(output)["payload"] == "hello"
        os.kill(pids[1], signal.SIGKILL)
        assert run("publish", "--url", f"postroad://127.0.0.1:{first}", "-p", "still here").returncode == 0
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "south" in errors
    assert "killed by signal 9" in output
    assert {each.name for each in (tmp_path / "logs").iterdir()} == {"north.log", "south.log"}
