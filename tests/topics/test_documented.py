"""What the docs do not mention does not exist: options, commands, status words, extension fields."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from docs.api import MODULES
from tests.snippets import snippets_of
from tests.topics.live_service import Service

import postroad
from postroad import topics
from postroad.cli.simulator import topics as sim_topics
from postroad.cli.use import topics as commands
from postroad.topics.client import parse_proxies
from postroad.topics.machines import messages

DOCS = Path(__file__).parents[2] / "docs"
HOWTO = (DOCS / "howto" / "topics.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "topics-protocol.md").read_text(encoding="utf-8")
COMMANDS = [*commands.topics.commands.values(), *commands.topic.commands.values(), sim_topics.topics]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_and_option_is_in_the_how_to(command: click.Command) -> None:
    """With its own help text, too."""
    assert command.name is not None
    assert re.search(rf"postroad (topics|topic|sim) {command.name}\b", HOWTO)
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help
            assert f"`{parameter.opts[0]}`" in HOWTO, f"{command.name} {parameter.opts[0]}"


def test_every_status_word_and_extension_field_is_in_the_reference() -> None:
    """A program on the other side needs them all."""
    words = [v for k, v in vars(messages).items() if k.isupper() and isinstance(v, bytes) and re.fullmatch(rb"[A-Z_]+", v)]
    assert len(words) == 16
    for word in words:
        assert f"`{word.decode()}`" in REFERENCE
    source = Path(messages.__file__).parent
    used = set()
    for name in ("server.py", "proxy.py", "client.py"):
        text = (source / name).read_text(encoding="utf-8")
        for call in re.findall(r"m\.extend\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text):
            used |= set(re.findall(r"\b([a-z])=", call))
    assert used == set("thnwamliocxped")
    for key in used:
        assert f"| `{key}` |" in REFERENCE


def test_the_programs_of_the_how_to_and_of_the_client_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same proxy and server: the page's program, and the examples of both clients."""
    monkeypatch.chdir(tmp_path)
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in (topics, topics.sync) for name in MODULES[module]}
    texts = {"topics.md": HOWTO, **{where: inspect.getdoc(each) or "" for where, each in public.items()}}
    found = [snippet for where, text in texts.items() for snippet in snippets_of(text, where) if snippet.kind == "python"]
    assert len(found) == 1 + len(public)
    with Service(tmp_path, proxies=1, servers=1, period_s=0.2) as service:
        (address,) = service.addresses
        for _ in range(2):
            for snippet in found:
                text = snippet.code.replace(",127.0.0.1:7102", "").replace("127.0.0.1:7101", address)
                text = text.replace("data=", "timeout=60, data=")
                code = compile(ast.parse(text), snippet.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, {"postroad": postroad})
                if inspect.iscoroutine(result):
                    asyncio.run(result)


def test_the_addresses_of_proxies_are_given_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_PROXIES", raising=False)
    assert parse_proxies(None) == ["127.0.0.1:7101"]
    assert parse_proxies("tcp://a:1,b:2") == parse_proxies(["a:1", "tcp://b:2"]) == ["a:1", "b:2"]
    assert parse_proxies(Path("proxies.txt")) == Path("proxies.txt")
    monkeypatch.setenv("POSTROAD_PROXIES", "c:3 tcp://d:4")
    assert parse_proxies(None) == ["c:3", "d:4"]


def test_the_modules_that_dir_shows_are_there() -> None:
    """Without an import of their own; in another process, because here they are imported already."""
    code = "import postroad; [getattr(postroad, name) for name in dir(postroad)]; postroad.topics.connect, postroad.topics.sync"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
