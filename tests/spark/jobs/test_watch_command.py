"""What an operator sees of a watch: alarms, the command that is run for them, and one exit code; and how periods are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

pytest.importorskip("pyspark")

from click.testing import CliRunner

from postroad.cli import main
from postroad.cli.pipeline import audit
from postroad.spark.jobs.verdicts.watching import Round

MISSING = "missing: 000003eb-00000001-018bcfe58c54-0e49, orders"


def rounds(*codes: int) -> Iterator[Round]:
    for code in codes:
        yield Round((MISSING,) if code == 1 else (), code, None)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("codes", "ended_with"), [((0, 0), 0), ((0, 3, 0), 3), ((0, 1, 0), 1), ((1, 3), 1), ((1, 4, 0), 4), ((3, 1), 1)]
)
def test_a_watch_ends_with_the_worst_code(codes: tuple[int, ...], ended_with: int) -> None:
    """An error is worse than missing messages, these are worse than doubts; Ctrl-C ends it."""
    assert audit._watch(rounds(*codes), 0.0, None, None) == ended_with


def test_rounds_bound_a_watch() -> None:
    """The third audit, which would miss something, does not take place."""
    assert audit._watch(rounds(0, 0, 1), 0.0, 2, None) == 0


def test_an_alarm_is_printed_and_handed_to_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It gets JSON; that it fails is said, and ends nothing."""
    told = tmp_path / "told"
    assert audit._watch(rounds(0, 1), 0.0, 2, f"cat > {told}") == 1
    assert json.loads(told.read_text()) == {"verdict": "failed", "alarms": [MISSING]}
    assert f"ALARM: {MISSING}" in capsys.readouterr().err
    assert audit._watch(rounds(1, 0), 0.0, 2, "exit 3") == 1
    assert "the alarm command failed" in capsys.readouterr().err


def test_periods_are_in_utc_unless_they_say_otherwise() -> None:
    """Either end may be left out."""
    assert audit._window("1970-01-02", "1970-01-02T02:00+01:00") == (86_400_000, 90_000_000)
    assert audit._window("1970-01-02", None) is not None
    assert audit._window(None, None) is None
    with pytest.raises(click.UsageError, match="not after"):
        audit._window("2026-03-02", "2026-03-01")
    with pytest.raises(click.UsageError, match="tomorrow is not a time"):
        audit._window("tomorrow", None)


@pytest.mark.parametrize("options", [["--watch"], ["--anew"], ["--accept"], ["--verdicts", "v", "--since", "2026-03-01"]])
def test_options_that_do_not_go_together_are_refused(options: list[str]) -> None:
    """Before Spark starts."""
    assert CliRunner().invoke(main, ["pipeline", "audit", "--data", "/nowhere", *options]).exit_code == 2
