"""One Spark session for all tests of a worker: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from postroad.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the session of this worker; its Java process ends with the worker."""
    with session.running("local[2]", app="tests", quick=True) as running:
        yield running


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all Spark tests on one worker (with --dist loadgroup), so that one Java process serves them."""
    for item in items:
        if "spark" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group("spark"))
