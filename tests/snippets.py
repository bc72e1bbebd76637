"""Runs the code of Markdown pages and docstrings, as a reader would: block after block, in one notebook per page.

A ```python block may use `await` at its top level, names of the blocks before it, and `client`, which is connected. A block that
says `until it is cancelled` is cancelled after a moment. A ```console block is one shell session; its commands begin with `$ `.

A block that cannot run here has a comment on the line above it that says why, as `<!-- not run: it needs three machines -->`. A
block that shows a whole example says `<!-- examples/NAME.py -->`; it must be that file, which has tests of its own.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import postroad

ROOT: Final = Path(__file__).parents[1]
MOMENT_S: Final = 0.3
SNIPPET_S_MAX: Final = 60.0
ENDLESS: Final = "until it is cancelled"
FENCE: Final = re.compile(
    r"(?:^[ ]*<!-- (?P<note>[^\n]*?) -->\n+)?^(?P<indent>[ ]*)```(?P<kind>python|console)\n(?P<code>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
SHELL: Final = r"""
set -euo pipefail
mkdir .bin
printf '#!/bin/sh\nexec "%s" -m postroad "$@"\n' "$PYTHON" > .bin/postroad
chmod +x .bin/postroad
PATH="$PWD/.bin:$PATH"
trap 'ended=$?; kill $(jobs -p) 2>/dev/null || true; wait; exit $ended' EXIT
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One block of code, and where it is."""

    where: str
    kind: Literal["python", "console"]
    code: str
    note: str = ""  # why it does not run, or the example that it shows

    @property
    def example(self) -> Path | None:
        return ROOT / self.note if self.note.startswith("examples/") else None

    @property
    def runs(self) -> bool:
        return not self.note


def snippets_of(text: str, where: str) -> Iterator[Snippet]:
    """Find the blocks of a text, in their order."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("code")) + 1
        kind: Literal["python", "console"] = "python" if found["kind"] == "python" else "console"
        yield Snippet(f"{where}:{line}", kind, textwrap.dedent(found["code"]), found["note"] or "")


def code_of(example: Path) -> str:
    """Return a file without its docstring."""
    text = example.read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    assert first.end_lineno is not None
    return "".join(text.splitlines(keepends=True)[first.end_lineno :]).strip()


async def run_python(snippets: list[Snippet], names: dict[str, Any], url: str) -> None:
    """Run blocks one after the other, with the same names."""
    async with postroad.connect(url, name="documentation") as client:
        names = {"postroad": postroad, "asyncio": asyncio, **names, "client": client}
        for snippet in snippets:
            try:
                async with asyncio.timeout(SNIPPET_S_MAX):
                    await _run_block(snippet, names)
            except Exception as error:
                raise AssertionError(f"{snippet.where}: {type(error).__name__}: {error}") from error


async def _run_block(snippet: Snippet, names: dict[str, Any]) -> None:
    tree = ast.parse(snippet.code)
    code = compile(tree, snippet.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not code.co_flags & inspect.CO_COROUTINE:
        await asyncio.to_thread(exec, code, names)
        return
    running = asyncio.ensure_future(eval(code, names))
    if ENDLESS not in snippet.code:
        await running
        return
    await asyncio.wait([running], timeout=MOMENT_S)
    running.cancel()
    try:
        await running
    except asyncio.CancelledError:
        assert running.cancelled()


def run_console(snippets: list[Snippet], url: str, folder: Path) -> None:
    """Run the commands of a page in one shell, in an empty folder, against a broker."""
    commands = [line for snippet in snippets for line in commands_of(snippet)]
    environment = {**os.environ, "POSTROAD_URL": url, "PYTHON": sys.executable, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    script = SHELL + "\n".join(commands) + "\n"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=folder, check=False, timeout=SNIPPET_S_MAX
    )
    assert done.returncode == 0, f"{snippets[0].where}: {commands}\n{done.stdout}\n{done.stderr}"


def commands_of(snippet: Snippet) -> list[str]:
    """Return what a reader types: the lines after `$ `; a line that ends with a backslash goes on."""
    joined = re.sub(r"\\\n\s*", "", snippet.code)
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]
