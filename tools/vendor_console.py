"""`make vendor`: take the console's front-end libraries from the package registry, with versions, licences and hashes.

The files are committed, so users need neither npm nor a network. `manifest.json` beside them says what they are;
`tests/console/test_vendored.py` compares. To renew one, change its version here and run `make vendor`.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).parent.parent / "src" / "postroad" / "console" / "static" / "vendor"
PACKAGES: Final = {  # package -> version, files in it -> names here
    "preact": ("11.2.0", {"dist/preact.mjs": "preact.mjs", "hooks/dist/hooks.mjs": "preact-hooks.mjs"}),
    "htm": ("3.1.1", {"dist/htm.mjs": "htm.mjs"}),
    "@preact/signals": ("2.11.4", {"dist/signals.mjs": "signals.mjs"}),
    "@preact/signals-core": ("1.14.5", {"dist/signals-core.mjs": "signals-core.mjs"}),
    "d3-force": ("3.0.1", {"dist/d3-force.min.mjs": "d3-force.mjs"}),
    "d3-quadtree": ("3.0.2", {"dist/d3-quadtree.min.mjs": "d3-quadtree.mjs"}),
    "d3-dispatch": ("3.0.2", {"dist/d3-dispatch.min.mjs": "d3-dispatch.mjs"}),
    "d3-timer": ("3.0.2", {"dist/d3-timer.min.mjs": "d3-timer.mjs"}),
    "@fontsource-variable/inter": ("5.3.0", {"files/inter-latin-wght-normal.woff2": "inter-latin.woff2"}),
}


def vendor() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    manifest = []
    for package, (version, files) in PACKAGES.items():
        contents = _fetch(package, version)
        described = json.loads(contents["package.json"])
        licence = next((name for name in contents if name.lower().startswith(("license", "licence"))), None)
        kept = dict(files)
        if licence is not None:
            kept[licence] = f"LICENSE.{package.replace('/', '-').lstrip('@')}.txt"
        hashes = {}
        for inside, name in kept.items():
            (TARGET / name).write_bytes(contents[inside])
            hashes[name] = hashlib.sha256(contents[inside]).hexdigest()
        manifest.append({"package": package, "version": version, "licence": described["license"], "sha256": hashes})
        print(f"{package} {version}: {', '.join(hashes)}")
    (TARGET / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _fetch(package: str, version: str) -> dict[str, bytes]:
    """Return the files of a package by name."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(directory).glob("*.tgz")
        with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
            files = {}
            for member in tar.getmembers():
                opened = tar.extractfile(member) if member.isfile() else None
                if opened is not None:
                    files[member.name.split("/", 1)[1]] = opened.read()
            return files


if __name__ == "__main__":
    vendor()
