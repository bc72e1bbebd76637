"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import click

from postroad.cli import main as command_line


def cli_page() -> str:
    """Show the help of every command."""
    parts = ["# The command line\n", "Every command has `--help`. Errors end with their code (see [errors](errors.md)).\n"]
    parts += _commands(command_line, click.Context(command_line, info_name="postroad"), "postroad")
    return "\n".join(parts)


def _commands(group: click.Group, context: click.Context, path: str) -> list[str]:
    parts = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=f"{path} {name}", terminal_width=100, max_content_width=100)
        parts.append(f"## {path} {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n")
        if isinstance(command, click.Group):
            parts += _commands(command, inner, f"{path} {name}")
    return parts
