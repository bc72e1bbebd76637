"""A click group whose commands are imported when they are used, and whose errors are shown as a person reads them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from postroad.errors import PostroadError

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy: Final = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.lazy:
            return None
        module, attribute, _ = self.lazy[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.lazy.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except PostroadError as error:
            raise click.ClickException(f"{error}  [error {error.code}]") from error
