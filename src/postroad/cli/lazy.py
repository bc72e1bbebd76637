"""A click group whose subcommands are imported when used."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """`commands_by_name`: name -> (module, attribute, one line for --help)."""

    def __init__(self, *args: object, lazy: dict[str, tuple[str, str, str]], **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = self.lazy[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's shape
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.lazy.items()])
