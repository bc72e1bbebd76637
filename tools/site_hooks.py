"""Hooks of mkdocs: pages of the repository's root are part of the site, and links that leave the site become plain text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]
ROOT_PAGES: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE: Final = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    """Put every page about a mechanism into the navigation."""
    pages = sorted(f"internals/{page.name}" for page in (ROOT / "docs" / "internals").glob("*.md"))
    for section in config["nav"]:
        for entries in section.values():
            if "internals" in entries:
                place = entries.index("internals")
                entries[place : place + 1] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository's root."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001
    """Point links at the pages of the site; what is not part of it becomes its text."""
    place = page.file.src_uri
    known = {file.src_uri for file in files}
    return "".join(part if part.startswith("```") else _links(part, place, known) for part in FENCE.split(markdown))


def _links(text: str, place: str, known: set[str]) -> str:
    def replaced(found: re.Match[str]) -> str:
        picture, label, target, anchor = found[1], found[2], found[3], found[4] or ""
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        for candidate in _candidates(place, target):
            if candidate in known:
                return f"{picture}[{label}]({posixpath.relpath(candidate, posixpath.dirname(place) or '.')}{anchor})"
        return label

    return LINK.sub(replaced, text)


def _candidates(place: str, target: str) -> Iterator[str]:
    """Give where a link may lead within the site, by its place in the repository."""
    folder = "" if place in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(place))
    path = posixpath.normpath(posixpath.join(folder, target))
    yield path.removeprefix("docs/")
    yield posixpath.join(path.removeprefix("docs/"), "README.md")
