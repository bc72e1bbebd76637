"""Shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes an example slow, not wrong; a failure prints the line that repeats it.
settings.register_profile("house", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

# A shell that starts the suite in the background lets it ignore SIGINT; processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tests.postgres",)

ROOT = Path(__file__).resolve().parents[1]


def find_vectors(name: str) -> Path | None:
    """Find a file of outside test vectors: in the directory POSTROAD_VECTORS names, else in ../shared/vectors."""
    directory = os.environ.get("POSTROAD_VECTORS")
    path = (Path(directory) if directory else ROOT.parent / "shared" / "vectors") / name
    return path if path.is_file() else None


@pytest.fixture(scope="session")
def vectors_path() -> Callable[[str], Path]:
    """Return the path of a file of outside test vectors, or skip the test where they are not installed."""

    def path(name: str) -> Path:
        found = find_vectors(name)
        if found is None:
            pytest.skip(f"outside test vectors {name} not found; name their directory in POSTROAD_VECTORS")
        return found

    return path
