"""The vendored front-end files are what the manifest says: nothing changed by hand, nothing without a licence."""

import hashlib
import json

from postroad.console.app import STATIC

VENDOR = STATIC / "vendor"
FREE = {"MIT", "ISC", "Apache-2.0", "BSD-3-Clause", "OFL-1.1"}


def test_vendored_files_match_their_manifest() -> None:
    """Every file is listed with its hash, has a free licence, and is loaded from here and nowhere else."""
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    listed = {name: digest for each in manifest for name, digest in each["sha256"].items()}
    present = {path.name for path in VENDOR.iterdir()} - {"manifest.json"}
    assert present == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert {each["licence"] for each in manifest} <= FREE


def test_pages_load_nothing_from_elsewhere() -> None:
    """No page, script or style of ours names another address."""
    for path in STATIC.iterdir():
        if path.suffix in {".js", ".html", ".css"}:
            text = path.read_text()
            assert "http://" not in text, path
            assert "https://" not in text, path
