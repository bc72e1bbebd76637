"""Fixtures for a private PostgreSQL: one cluster per test process, one schema per test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.private_postgres import PrivatePostgres

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PrivatePostgres]:
    """Run a server for this test process; it is gone afterwards, also when the run is killed."""
    with PrivatePostgres() as cluster:
        yield cluster


@pytest.fixture
def postgres_schema() -> str:
    """Return a schema name no other test uses."""
    return f"test_{next(_numbers)}"
