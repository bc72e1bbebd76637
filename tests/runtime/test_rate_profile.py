"""The rate profile of `postroad pipeline rates`, as a broker reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.errors import ConfigError
from postroad.runtime.rate_profile import publisher_rates
from postroad.spark.jobs.rates import Entry, Profile, encode


def entry(broker: int, publisher: int, peak: float, value: str | None = None) -> Entry:
    return Entry(broker, publisher, value, 100, 1000, 0, 1000, 1.0, peak, peak, peak, 1.0, 1.0, 1.0, 0.0, 0.0)


def test_the_peaks_of_a_brokers_own_publishers_are_read(tmp_path: Path) -> None:
    """With `--by`, a publisher has an entry for each value; its rate is their sum."""
    path = tmp_path / "rates.json"
    path.write_bytes(encode(Profile(1, "topic", 0, 1, (entry(1, 5, 20.0, "a"), entry(1, 5, 10.0, "b"), entry(2, 5, 99.0)))))
    assert publisher_rates(path, 1) == ((5, 30.0),)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "entries": []}'])
def test_another_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"rates\.json"):
        publisher_rates(path, 1)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        publisher_rates(tmp_path / "none.json", 1)
