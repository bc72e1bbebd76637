"""Compiles `src/postroad/compiled/blooms.c` when the package is installed. Without a compiler the package works as well."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).parent / "src/postroad/compiled/blooms.c"


def compiler() -> list[str]:
    """Return the command of a C compiler, or nothing."""
    candidates = [os.environ.get("CC", ""), sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"]
    commands = [shlex.split(candidate) for candidate in candidates if candidate]
    return next((command for command in commands if shutil.which(command[0])), [])


def build(library: Path) -> str:
    """Make the library anew; return what prevents it, or nothing."""
    library.unlink(missing_ok=True)
    command = compiler()
    if os.name != "posix" or not command:
        return "there is no C compiler"
    made = library.with_suffix(".new")
    done = subprocess.run(
        [*command, "-std=c99", "-O3", "-fPIC", "-shared", "-o", str(made), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        made.unlink(missing_ok=True)
        return f"{shlex.join(command)} failed: {done.stderr.strip()}"
    made.replace(library)
    return ""


class CompiledHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # the interface's
        library = SOURCE.with_suffix(".so")
        problem = build(library)
        if problem:
            self.app.display_warning(f"blooms are not compiled, so they cost three times as much: {problem}")
            return
        build_data["force_include"][str(library)] = "postroad/compiled/blooms.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
