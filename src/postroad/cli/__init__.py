"""The `postroad` command. Subcommands are imported when used, so `--help` is quick and optional parts stay optional."""

from __future__ import annotations

import importlib
from typing import Final

import click

from postroad import __version__
from postroad.errors import PostroadError

# name -> (module, attribute, one line for --help)
COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "queue": ("postroad.cli.queue", "queue", "Create, fill, look into and empty queues."),
    "demo": ("postroad.cli.demo", "demo", "A short tour of what Postroad does, on embedded defaults."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PostroadError as error:
            raise click.ClickException(f"{error}  [error {error.code}]") from error


@click.group(cls=_LazyGroup)
@click.version_option(__version__, prog_name="postroad")
def main() -> None:
    """Postroad: messaging you can audit."""
