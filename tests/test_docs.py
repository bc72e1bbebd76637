"""What the docs say of settings and commands is there, and nothing is missing."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec

from postroad.cli import COMMANDS
from postroad.runtime import config

DOCS = Path(__file__).parents[1] / "docs"


def test_every_key_of_the_configuration_is_described() -> None:
    """A key without a description would leave an empty cell."""
    page = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    for section in (config.NodeConfig, config.Neighbour, config.Limits, config.Links, config.Storage, config.Overlay):
        for field in msgspec.structs.fields(section):
            assert re.search(rf"^\| `{field.name}` \| .*\| .*\| \S.* \|$", page, re.MULTILINE), field.name


def test_every_command_is_on_the_page_of_commands() -> None:
    """`postroad --help` and the page agree."""
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## postroad {name}\n" in page


def test_the_toml_of_the_docs_is_accepted() -> None:
    """Examples in the how-to and the reference are configurations that load."""
    for name in ("howto/run-an-overlay.md", "reference/config.md"):
        for text in re.findall(r"```toml\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL):
            if "brokers" in tomllib.loads(text):
                assert config.parse_config(text, config.TopologyConfig, name).brokers
            else:
                assert config.parse_config(text, config.NodeConfig, name).id
