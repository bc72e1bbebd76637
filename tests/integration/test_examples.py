"""The examples run as the docs say, again and again against the same broker, and end without a traceback."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroad.sync
from postroad.testing import broker

ROOT = Path(__file__).parents[2]
SIX = ("order_events", "worker_pool", "request_response", "web_app", "test_checkout", "notebook")
LINES_MAX = 15


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with broker() as address:
        yield address


@contextmanager
def start(url: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program that uses the broker; one that still runs at the end of a failed test is killed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "POSTROAD_URL": url}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    )
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def run(url: str, *command: str) -> str:
    """Run a program to its end; it succeeds. Return what it printed."""
    with start(url, *command) as process:
        shown, errors = process.communicate(timeout=60)
    assert process.returncode == 0, shown + errors
    return shown


def read_until(process: subprocess.Popen[str], count: int, pattern: str) -> list[str]:
    """Read the output of a program until `count` lines match."""
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < count:
        line = process.stdout.readline()
        assert line, "the program ended"
        found += re.findall(pattern, line)
    return found


def end(process: subprocess.Popen[str], sent: signal.Signals) -> None:
    """Send a signal: the program ends with the exit code that says so, and shows no traceback."""
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + sent
    assert "KeyboardInterrupt" not in errors
    assert "CancelledError" not in errors


@pytest.mark.parametrize("name", [*SIX, "bound_queue", "shared_subscription"])
def test_a_program_is_at_most_fifteen_lines_of_code(name: str) -> None:
    """Neither docstrings nor comments nor blank lines count; long lines are no way around it."""
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if number not in strings and line.strip() and not line.lstrip().startswith("#")
    ]
    assert len(code) <= LINES_MAX
    assert all(";" not in line.split("#")[0] for line in code)


def test_a_durable_consumer_gets_each_order_once(url: str) -> None:
    """The second run gets its own orders only: those of the first are acknowledged."""
    for _ in range(2):
        shown = run(url, "examples/order_events.py").splitlines()
        assert shown == ["invoice for order 2 of 250.0", "invoice for order 3 of 120.5"]


def test_a_worker_pool_retries_and_moves_to_the_dead_letters(url: str) -> None:
    """Ctrl-C and SIGTERM end it in order; what failed three times is a dead letter, which can be put back."""
    for sent in (signal.SIGINT, signal.SIGTERM):
        with start(url, "examples/worker_pool.py") as pool:
            assert sorted(read_until(pool, 2, r"resized (\S+)")) == ["cat.png", "dog.png"]
            with postroad.sync.connect(url) as client:
                dead = client.queue("resize").dead
                letter = dead.take(timeout=30)
                assert letter is not None
                assert letter.json() == {"image": "notes.txt"}
                assert letter.attributes["error"] == "ValueError: notes.txt is not an image"
                assert letter.attributes["from_queue"] == "resize"
                letter.release()
            end(pool, sent)
        with postroad.sync.connect(url) as client:
            jobs = client.queue("resize")
            assert (jobs.stats().waiting, jobs.stats().leased) == (0, 0)
            assert jobs.redrive() == 1
            put_back = jobs.take(timeout=30)
            assert put_back is not None
            assert put_back.delivery == 1
            put_back.done()


def test_a_request_is_answered(url: str) -> None:
    for _ in range(2):
        assert run(url, "examples/request_response.py") == "2 + 2 = 4\n"


def test_a_web_handler_publishes(url: str) -> None:
    """The application starts with its server, publishes what is posted, and ends with the server."""
    with postroad.sync.connect(url) as client:
        orders = client.subscribe("type = 'order' AND content_type = 'application/json'")
        with start(url, "-m", "uvicorn", "examples.web_app:app", "--port", "0") as server:
            assert server.stderr is not None
            port = None
            while port is None:
                line = server.stderr.readline()
                assert line, "the server ended"
                port = re.search(r"running on http://127\.0\.0\.1:(\d+)", line)
            for number in range(2):
                body = f'{{"book": {number}}}'.encode()
                with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/orders", data=body, timeout=30) as answer:
                    assert answer.status == 201
                    shown = answer.read().decode()
                message = orders.get(timeout=30)
                assert message is not None
                assert message.json() == {"book": number}
                assert str(message.id) in shown
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=30)
            assert "Traceback" not in errors


def test_the_unit_test_passes(url: str) -> None:
    """With the fixtures of the plugin, which is named here because this checkout may not be installed."""
    command = ("-m", "pytest", "-q", "-p", "postroad.pytest_plugin", "-p", "no:cacheprovider", "examples/test_checkout.py")
    assert "1 passed" in run(url, *command)


def test_the_notebook_shows_its_table(url: str) -> None:
    for _ in range(2):
        shown = run(url, "examples/notebook.py")
        assert "celsius: double" in shown
        assert "31.5" in shown
        assert "cellar" not in shown


def test_a_bound_queue_works_on_what_is_published(url: str) -> None:
    """Published until the binding has begun; a second worker finds the binding there."""
    ended = threading.Event()

    def publish() -> None:
        with postroad.sync.connect(url) as client:
            while not ended.wait(0.05):
                client.publish({"type": "invoice", "total": 99.5})

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        for _ in range(2):
            with start(url, "examples/bound_queue.py") as worker:
                read_until(worker, 3, "paid 99.5")
                end(worker, signal.SIGINT)
    finally:
        ended.set()
        publishing.join()


def test_workers_share_a_stream(url: str) -> None:
    """A worker bills each order once, in order; one that is started later gets only what is new."""
    for first in (0, 6):
        with start(url, "examples/shared_subscription.py") as worker:
            with postroad.sync.connect(url) as client:
                for number in range(first, first + 6):
                    client.publish({"type": "bill", "account": number % 2, "total": number})
            shown = read_until(worker, 6, r"billed (\d+ \d+)")
            assert sorted(shown) == sorted(f"{number % 2} {number}" for number in range(first, first + 6))
            for account in "01":
                totals = [int(line.split()[1]) for line in shown if line.startswith(account)]
                assert totals == sorted(totals)
            end(worker, signal.SIGINT)


def test_the_quotes_ticker_shows_what_matches(url: str) -> None:
    """A newcomer's two terminals: a publisher, and a subscriber that gets the matching quotes."""
    script = "examples/quotes_subscriber.py"
    with start(url, script, "--url", url, "--filter", "price > 0", "--count", "5") as subscriber:
        read_until(subscriber, 1, r"subscribed")
        published = run(url, "examples/quotes_publisher.py", "--url", url, "--count", "5", "--pause", "0")
        shown, _ = subscriber.communicate(timeout=30)
        assert subscriber.returncode == 0
    assert len(shown.splitlines()) == 5
    prices = [line.split()[-1] for line in published.splitlines()]
    assert [line.split()[1] for line in shown.splitlines()] == prices
