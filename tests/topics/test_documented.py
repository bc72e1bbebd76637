"""What the docs do not mention does not exist: options, commands, status words, extension fields."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from postroad.cli import sim_topics
from postroad.cli import topics as commands
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
    assert len(words) == 15
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
