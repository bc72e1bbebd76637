"""`postroad demo`: the tour. It grows with each capability."""

from __future__ import annotations

import click
from rich.console import Console


@click.command()
def demo() -> None:
    """Take a short tour of what Postroad does, on embedded defaults."""
    Console().print("Postroad")
