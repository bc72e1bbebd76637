"""What the docs say of settings and commands is there, and nothing is missing."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from postroad.cli import COMMANDS
from postroad.runtime import config

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "benchmarks", "experiments", "examples") for page in (ROOT / folder).rglob("*.md")),
]


def kept_in(annotation: object) -> Iterator[type[msgspec.Struct]]:
    """Find the structs in an annotation, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for part in typing.get_args(annotation):
        yield from kept_in(part)


def sections_below(kind: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Find the sections of a configuration, with the names of their keys in the file, from the structs alone."""
    for field in msgspec.structs.fields(kind):
        for inner in kept_in(field.type):
            yield field.name, inner
            yield from sections_below(inner)


@pytest.mark.parametrize("kind", [config.NodeConfig, config.TopologyConfig])
def test_every_key_of_the_configuration_is_described_in_its_section(kind: type[msgspec.Struct]) -> None:
    """A section of its own for each table a file may have; a key without a description would leave an empty cell."""
    page = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    titles = {kind: r"The top of the file|A topology file"}
    titles |= {section: rf"`\[+{name}\]+`" for name, section in sections_below(kind)}
    assert len(titles) > 1
    for section, title in titles.items():
        found = re.search(rf"^## ({title})[^\n]*\n(.*?)(?=^##? |\Z)", page, re.MULTILINE | re.DOTALL)
        assert found, f"no section {title}"
        table = found[2] if kind is config.NodeConfig or section is not kind else page
        for field in msgspec.structs.fields(section):
            assert re.search(rf"^\| `{field.name}` \| \S.* \|.*\| \S.* \|$", table, re.MULTILINE), f"{title} {field.name}"


def test_every_setting_of_the_configuration_is_in_the_sections_of_the_page() -> None:
    """The page is generated from the same walk over the structs: nothing is listed by hand."""
    below = {section for _, section in sections_below(config.NodeConfig)}
    assert set(config.sections(config.NodeConfig)) == below | {config.NodeConfig}
    assert {config.Tracking, config.Queues, config.Metrics} <= below


def test_every_command_is_on_the_page_of_commands() -> None:
    """`postroad --help` and the page agree."""
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## postroad {name}\n" in page


def test_the_toml_of_the_docs_is_accepted() -> None:
    """Examples in the how-to and the reference are configurations that load."""
    for name in ("howto/run-an-overlay.md", "howto/operate.md", "howto/queues.md", "reference/config.md"):
        for text in re.findall(r"```toml\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL):
            if "brokers" in tomllib.loads(text):
                assert config.parse_config(text, config.TopologyConfig, name).brokers
            else:
                assert config.parse_config(text, config.NodeConfig, name).id


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made on the web."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_heading_that_exist(page: Path) -> None:
    """Links within the repository: the file is there, and so is the heading after `#`."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(found), f"{page}: {target}"


def test_every_error_is_one_row_of_its_page() -> None:
    """A docstring with paragraphs must not break the table."""
    lines = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index("|---|---|---|---|") + 1 :]
    assert len(rows) > 50
    assert all(re.fullmatch(r"\| \d+ \| `\w+` \| (yes|no) \| \S.* \|", row) for row in rows)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Pages that somebody may look for; those about mechanisms are added when the site is built."""
    named = set(re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    for folder in ("tutorial", "howto", "reference"):
        for page in (DOCS / folder).glob("*.md"):
            assert f"{folder}/{page.name}" in named
    assert all((DOCS / page).exists() or (ROOT / page).exists() for page in named)


def test_the_lock_files_name_no_index() -> None:
    """What is installed is known by its hashes; where it comes from is the installer's affair."""
    locks = list((ROOT / "requirements").glob("*.txt"))
    assert len(locks) >= 4
    for lock in locks:
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        assert "--index" not in text
        assert text.count("--hash=") >= len(re.findall(r"^[\w.-]+==", text, re.MULTILINE))


def test_the_files_for_deployment_are_accepted() -> None:
    """The configurations load, and the unit and the image start what exists."""
    folder = ROOT / "deploy"
    brokers = [
        config.parse_config(page.read_text(encoding="utf-8"), config.NodeConfig, page.name)
        for page in sorted((folder / "brokers").glob("*.toml"))
    ]
    assert sorted(each.id for each in brokers) == [1, 2, 3]
    compose = (folder / "compose.yaml").read_text(encoding="utf-8")
    for each in brokers:
        assert f"/etc/postroad/{each.name}.toml" in compose
        assert {neighbour.address.removesuffix(":7400") for neighbour in each.neighbours} <= {other.name for other in brokers}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for text in (
        (folder / "Dockerfile").read_text(encoding="utf-8"),
        (DOCS / "howto" / "operate.md").read_text(encoding="utf-8"),
    ):
        for names in re.findall(r"\[(\w+(?:,\w+)+)\]'", text):
            assert set(names.split(",")) <= set(extras)
    assert "broker --config" in (folder / "postroad.service").read_text(encoding="utf-8")
