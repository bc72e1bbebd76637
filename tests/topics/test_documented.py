"""What the docs do not mention does not exist: options, commands, status words, extension fields."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import click
import pytest
from tests.snippets import snippets_of
from tests.topics.live_service import Service

from postroad.cli.simulator import topics as sim_topics
from postroad.cli.use import topics as commands
from postroad.topics import client as asyncio_client
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
    """Against the same proxy and server: the page's program blocks, the docstring's awaits."""
    monkeypatch.chdir(tmp_path)
    texts = {"topics.md": HOWTO, "TopicClient": inspect.getdoc(asyncio_client.TopicClient) or ""}
    found = [snippet for where, text in texts.items() for snippet in snippets_of(text, where) if snippet.kind == "python"]
    assert len(found) == 2
    with Service(tmp_path, proxies=1, servers=1, period_s=0.2) as service:
        (address,) = service.addresses
        for _ in range(2):
            for snippet in found:
                text = re.sub(r"127\.0\.0\.1:710\d", address, snippet.code).replace("patience_s=5", "patience_s=30")
                code = compile(ast.parse(text), snippet.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                names = {"TopicClient": asyncio_client.TopicClient}
                result = eval(code, names)
                if inspect.iscoroutine(result):
                    asyncio.run(result)
                else:
                    assert names["message"] is None
