"""The page of the API reference: every public name, from the packages' own lists. mkdocstrings fills in docstrings and types."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Final

import postroad
import postroad.sync
import postroad.testing
from postroad import pytest_plugin, topics

# What the broker uses of the core's classes. Programs have no use for it.
INTERNAL: Final = {
    "Batch": {"is_view", "layout", "remember", "remembered", "rows", "forget", "views", "complete_values", "values", "id_pieces"},
    "Filter": {"condition"},
}
MODULES: Final[dict[ModuleType, tuple[str, ...]]] = {
    postroad: tuple(name for name in postroad.__all__ if name != "__version__"),
    postroad.sync: tuple(postroad.sync.__all__),
    postroad.testing: ("broker", "overlay"),
    pytest_plugin: ("postroad_url", "postroad_client"),
    topics: ("connect", "TopicClient", "TopicMessage"),
    topics.sync: ("connect", "TopicClient"),
}
INTRODUCTIONS: Final = {
    postroad: "The asyncio client. Every name is imported from `postroad`.",
    postroad.sync: "The same names for programs without an event loop.",
    postroad.testing: "Brokers for [tests](../howto/test-your-code.md).",
    pytest_plugin: "Fixtures for pytest.",
    topics: "The client of [topics](../howto/topics.md).",
    topics.sync: "The same, blocking.",
}
HEAD: Final = """# API reference

This page lists every public name. The site that `make docs-site` builds shows each with its documentation;
so does `help()` in Python. All errors are in [the list of errors](errors.md).
"""


def members_of(cls: type[Any]) -> list[str]:
    """Return the names of a class that its users may use, in alphabetical order."""
    internal = INTERNAL.get(cls.__name__, set())
    found = []
    for name in dir(cls):
        owner = next((each for each in cls.__mro__ if name in vars(each)), object)
        if not name.startswith("_") and name not in internal and owner.__module__.startswith("postroad."):
            found.append(name)
    return found


def api_page() -> str:
    """List all public names with the directives that mkdocstrings replaces by their documentation."""
    parts = [HEAD]
    for module, names in MODULES.items():
        parts.append(f"## {module.__name__}\n\n{INTRODUCTIONS[module]}\n")
        for name in names:
            parts.append(f"::: {module.__name__}.{name}\n")
            value = getattr(module, name)
            if inspect.isclass(value):
                members = ", ".join(members_of(value))
                parts[-1] += f"    options:\n      members: [{members}]\n"
    return "\n".join(parts)
