"""What `--help` of a group says of its commands: whole sentences, none cut."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner

from postroad.cli import main


def _groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _groups(command, (*path, name))


def test_no_summary_of_a_command_is_cut() -> None:
    """In 80 columns each group lists its commands with what they do, to the full stop."""
    paths = list(_groups(main))
    assert len(paths) > 8
    for path in paths:
        shown = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output
        assert "..." not in shown.partition("Commands:")[2], f"postroad {' '.join(path)}"
