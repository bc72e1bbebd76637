"""The page of the command line, from the commands themselves."""

from __future__ import annotations

import click

from postroad.cli import main as command_line

BEGINNING = """# The command line

Every command has `--help`. Errors end with their code (see [errors](errors.md)). `python -m postroad` is the same command.

**The broker.** Commands that talk to a broker have `--url`, as `postroad://host:port` or `host:port`. Without it, the environment
variable `POSTROAD_URL` counts, and without that the broker on this machine. After one second without a broker they say what they
wait for; after ten they give up.

**Exit codes.**

| code | meaning |
|---|---|
| 0 | done |
| 1 | an error, which standard error names; or what was asked for does not exist, or a broker did not answer |
| 2 | wrong usage: an unknown option, a value that cannot be read |
| 3 | `subscribe`: messages were deleted before they were received; `topic get`: no message; `pipeline audit`: no verdict |
| 4 | `pipeline audit`: the audit could not be made |
| 130 | ended by Ctrl-C; everything that was begun has been finished |

**JSON.** `--json` prints one object per line. Ids and ticks are strings, because they do not fit into the numbers of JavaScript.
Lines are never wrapped in a pipe.

**Completion.** For bash: `eval "$(_POSTROAD_COMPLETE=bash_source postroad)"` in `~/.bashrc`. For zsh the same with `zsh_source`
in `~/.zshrc`. For fish: `_POSTROAD_COMPLETE=fish_source postroad | source` in `~/.config/fish/config.fish`.
"""


def cli_page() -> str:
    """Show the help of every command."""
    parts = [BEGINNING]
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
