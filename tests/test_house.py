"""The rules of the house that a tool can check: names say what things are, and ARCHITECTURE.md names files that exist."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import postroad

SOURCE: Final = Path(postroad.__file__).parent
ARCHITECTURE: Final = SOURCE.parents[1] / "ARCHITECTURE.md"
QUESTION: Final = re.compile(r"^\| ([^|`]+\?) \| `([\w/]+\.py)` \| `([\w.]+)` \|$", re.MULTILINE)

# Blocking twins have the names of their asyncio classes, so that a user learns one set of names.
TWINS: Final = {"client/sync.py", "topics/sync.py"}
# The name is that of an interface of Java, and must be that.
FOREIGN: Final = {("spark/frames.py", "Java")}

IRREGULAR: Final = frozenset(
    [
        "begun",
        "built",
        "drawn",
        "found",
        "given",
        "gone",
        "held",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "met",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
        "written",
    ]
)
# There were none on 19 November 2026. A few may come, so that a name holds up no work; then they are renamed together.
TWICE_MAX: Final = 3
BARE_MAX: Final = 20
VERBS_IN_ED: Final = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _find(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """Return the definition of `name`, which may be `Class.method`, in a module or class."""
    first, _, rest = name.partition(".")
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == first:
            return _find(node.body, rest) if rest else node
    return None


def test_a_class_name_means_one_thing_within_a_layer() -> None:
    """No two classes of a top package have the same name; a private one is known in its module alone."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, module in _modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if path not in TWINS and (path, node.name) not in FOREIGN:
                found[path.partition("/")[0], node.name].append(path)
    assert len(found) > 500
    twice = {name: paths for (_, name), paths in found.items() if len(paths) > 1}
    assert len(twice) <= TWICE_MAX, twice


def test_a_newcomer_opens_the_right_file_first() -> None:
    """Each question of ARCHITECTURE.md shares a word with the name of the file that answers it, and the symbol is there."""
    questions = QUESTION.findall(ARCHITECTURE.read_text(encoding="utf-8"))
    assert len(questions) == 10
    for question, path, symbol in questions:
        module = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
        assert _find(module.body, symbol) is not None, f"{path} has no {symbol}"
        said = [word[:5] for word in re.findall(r"[a-z]+", question.lower())]
        named = [word[:5] for word in Path(path).stem.split("_")]
        assert set(said) & set(named), f"{path} has no word of {question!r} in its name"


def test_the_places_to_change_exist() -> None:
    """Each module that ARCHITECTURE.md names is there."""
    paths = re.findall(r"`((?:[\w.]+/)+[\w]+\.py)`", ARCHITECTURE.read_text(encoding="utf-8"))
    missing = [path for path in paths if not path.startswith(("docs/", "tests/")) and not (SOURCE / path).exists()]
    assert len(paths) > 30
    assert missing == []


def test_private_functions_are_named_after_what_they_do() -> None:
    """A function is a verb: `_join_rows`, not `_joined`. Callbacks of others and properties may state what happened or is so."""
    bare = [
        f"{path}: {node.name}"
        for path, module in _modules()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_bare_participle(node)
    ]
    assert len(bare) <= BARE_MAX, bare


def _is_bare_participle(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    if not node.name.startswith("_") or node.name.startswith("__") or "property" in decorators:
        return False
    first = node.name.removeprefix("_").split("_")[0]
    return first in IRREGULAR or (first.endswith("ed") and first not in VERBS_IN_ED)
