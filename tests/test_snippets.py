"""The code of README, tutorial, how-tos, reference and docstrings runs, twice in a row against the same broker."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
from docs.api import MODULES, members_of
from tests.snippets import ROOT, Snippet, code_of, commands_of, run_console, run_python, snippets_of

import postroad
import postroad.testing
from postroad import topics
from postroad.core.batch.batch import Batch
from postroad.errors import QueueSettingsError
from postroad.types import MessageId

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
ELSEWHERE = {  # page -> the test that runs its programs
    "docs/howto/secure.md": "tests/security/test_howto.py",
    "docs/howto/spark.md": "tests/spark/test_documented.py",
    "docs/howto/topics.md": "tests/topics/test_documented.py",
}


def blocks(page: Path) -> list[Snippet]:
    where = str(page.relative_to(ROOT))
    return [] if where in ELSEWHERE else list(snippets_of(page.read_text(encoding="utf-8"), where))


WITH_PYTHON = [page for page in PAGES if any(each.runs and each.kind == "python" for each in blocks(page))]
WITH_CONSOLE = [page for page in PAGES if any(each.runs and each.kind == "console" for each in blocks(page))]
EXAMPLES = [each for page in PAGES for each in blocks(page) if each.example]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postroad.testing.broker() as address:
        yield address


def prepared(url: str) -> dict[str, Any]:
    """Return what a page takes for granted: the work of the reader's own program, and its data."""
    parts = urlsplit(url)

    async def handle(_message: object) -> None:
        pass

    ids = [bytes(MessageId.make(1, 1, 1_790_000_000_000 + number, 0)) for number in range(2)]
    columns = {"price": [9.5, 12.5], "symbol": ["A", "B"]}
    return {
        "work_on": lambda *_: None,
        "update_cache": handle,
        "handle": handle,
        "order_id": 17,
        "host": parts.hostname,
        "port": parts.port,
        "ids": ids,
        "payloads": [b"", b""],
        "batch": Batch.from_columns(ids, [b"", b""], columns),
        "other": postroad.Filter("price > 20 AND symbol = 'A'"),
    }


def at(url: str, snippets: list[Snippet]) -> list[Snippet]:
    """Put the address of the broker of the tests in place of the usual one."""
    parts = urlsplit(url)
    return [replace(each, code=each.code.replace("127.0.0.1:7400", parts.netloc)) for each in snippets]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: page.stem)
def test_the_programs_of_a_page_run_twice(page: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that exist already are no obstacle at the second run."""
    if page.stem == "fastapi":
        pytest.importorskip("fastapi")
    monkeypatch.setenv("POSTROAD_URL", url)
    monkeypatch.chdir(tmp_path)
    found = at(url, [each for each in blocks(page) if each.runs and each.kind == "python"])
    for _ in range(2):
        asyncio.run(run_python(found, prepared(url), url))


@pytest.mark.parametrize("page", WITH_CONSOLE, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_twice(page: Path, url: str, tmp_path: Path) -> None:
    """Each run in an empty folder, against the same broker."""
    found = at(url, [each for each in blocks(page) if each.runs and each.kind == "console"])
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_console(found, url, folder)


@pytest.mark.parametrize("snippet", EXAMPLES, ids=lambda snippet: snippet.where)
def test_a_program_that_a_page_shows_is_the_example(snippet: Snippet) -> None:
    """The examples have tests of their own."""
    assert snippet.example is not None
    assert snippet.code.strip() == code_of(snippet.example)
    assert snippet.example.stem in (ROOT / "tests" / "integration" / "test_examples.py").read_text(encoding="utf-8")


PUBLIC = [(module, name) for module, names in MODULES.items() for name in names]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[f"{module.__name__}.{name}" for module, name in PUBLIC])
def test_every_public_name_has_a_docstring_with_an_example(module: ModuleType, name: str) -> None:
    """And everything that its users may call or read has a docstring."""
    value = getattr(module, name)
    assert any(snippets_of(inspect.getdoc(value) or "", name)), f"{name} has no example"
    if inspect.isclass(value):
        for member in members_of(value):
            found = inspect.getattr_static(value, member)
            if isinstance(found, property | staticmethod | classmethod) or callable(found):
                assert (inspect.getdoc(getattr(value, member)) or "").strip(), f"{name}.{member} has no docstring"


def test_the_examples_of_docstrings_run_twice(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the names and of their methods, each with a client of its own."""
    monkeypatch.setenv("POSTROAD_URL", url)
    monkeypatch.chdir(tmp_path)
    found: dict[str, list[Snippet]] = {}
    for module, name in PUBLIC:
        value = getattr(module, name)
        texts = {f"{module.__name__}.{name}": inspect.getdoc(value)}
        if inspect.isclass(value):
            texts |= {
                f"{module.__name__}.{name}.{member}": inspect.getdoc(getattr(value, member)) for member in members_of(value)
            }
        if module not in {topics, topics.sync}:  # run with a service of their own by tests/topics/test_documented.py
            found |= {where: list(snippets_of(text or "", where)) for where, text in texts.items()}
    elsewhere = [name for module, name in PUBLIC if module in {topics, topics.sync}]
    assert len([where for where, snippets in found.items() if snippets]) >= len(PUBLIC) - len(elsewhere)

    async def run_all() -> None:
        for snippets in found.values():
            if snippets:
                await run_python(at(url, snippets), prepared(url), url)

    for _ in range(2):
        asyncio.run(run_all())


def test_what_does_not_run_says_why() -> None:
    """Nothing is left out by accident: each block runs, is an example, or has a reason."""
    for page in PAGES:
        where = str(page.relative_to(ROOT))
        text = page.read_text(encoding="utf-8")
        if where in ELSEWHERE:
            assert (ROOT / ELSEWHERE[where]).exists()
            continue
        assert len(re.findall(r"^ *```(?:python|console)$", text, re.MULTILINE)) == len(blocks(page)), where
        for each in blocks(page):
            assert each.runs or each.example or re.fullmatch(r"not run: \S.*", each.note), each.where
            assert each.kind == "python" or commands_of(each), each.where


def test_a_program_that_fails_is_found(url: str) -> None:
    """The error names the page and the line."""
    first = "Text.\n\n```python\nqueue = client.queue('strict', lease=5)\nawait queue.put(b'')\n```\n\n"
    page = first + "```python\nassert queue is None\n```\n"
    with pytest.raises(AssertionError, match="page:9: AssertionError"):
        asyncio.run(run_python(list(snippets_of(page, "page")), {}, url))
    other = "```python\nawait client.queue('strict', lease=6).put(b'')\n```\n"
    with pytest.raises(AssertionError, match="QueueSettingsError") as failed:
        asyncio.run(run_python(list(snippets_of(other, "page")), {}, url))
    assert isinstance(failed.value.__cause__, QueueSettingsError)


def test_a_command_that_fails_is_found(url: str, tmp_path: Path) -> None:
    """Also one in the middle of a session, and of a pipe."""
    for number, command in enumerate(("false", "false | cat", "postroad subscriptions show nobody")):
        folder = tmp_path / str(number)
        folder.mkdir()
        page = f"```console\n$ true\n$ {command}\n$ true\n```\n"
        with pytest.raises(AssertionError, match="page:2"):
            run_console(list(snippets_of(page, "page")), url, folder)
