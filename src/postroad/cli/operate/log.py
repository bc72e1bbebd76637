"""`postroad log`: damage in the logs of a broker's data directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from postroad.storage.directory import find_logs
from postroad.storage.segment.disk import Disk
from postroad.storage.segment.log import LOCK_NAME
from postroad.storage.segment.reader import Damage
from postroad.storage.segment.repair import repair_log, survey_log
from postroad.types import tick_milliseconds

DIRECTORY = click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def log() -> None:
    """Find damage in a broker's logs, and repair it."""


@log.command()
@DIRECTORY
@AS_JSON
def check(directory: Path, *, as_json: bool) -> None:
    """Read all logs in a data directory and list the damage.

    No file is changed, and the broker may be running. The exit code is 1 if damage is found.
    """
    surveys = [survey_log(path, pubend) for pubend, path in find_logs(directory).items()]
    if as_json:
        document = [
            {"pubend": each.pubend, "segments": each.segments, "bytes": each.bytes, "damage": _documents(each.damage)}
            for each in surveys
        ]
        click.echo(json.dumps(document, indent=2))
    else:
        for each in surveys:
            found = f"{len(each.damage)} damaged places" if each.damage else "no damage"
            click.echo(f"pubend {each.pubend:x}: {each.segments} segments, {each.bytes:,} bytes, {found}")
            _tell(each.damage)
    if any(each.damage for each in surveys):
        sys.exit(1)


@log.command()
@DIRECTORY
@AS_JSON
def repair(directory: Path, *, as_json: bool) -> None:
    """Rewrite damaged segments without the damaged records. Stop the broker first.

    Each damaged segment is kept beside the log under its name with `.damaged` appended. A new segment with all readable records
    replaces it. The lost ticks remain a hole: subscribers receive a gap for them, and the audit counts them.
    """
    disk = Disk()
    logs = find_logs(directory)
    lock = disk.lock(directory / LOCK_NAME)
    try:
        repairs = [repair_log(path, pubend) for pubend, path in logs.items()]
    finally:
        disk.close(lock)
    if as_json:
        document = [
            {"pubend": each.pubend, "moved_aside": [str(path) for path in each.moved_aside], "lost": _documents(each.lost)}
            for each in repairs
        ]
        click.echo(json.dumps(document, indent=2))
        return
    for each in repairs:
        click.echo(f"pubend {each.pubend:x}: {len(each.moved_aside)} segments rewritten")
        for path in each.moved_aside:
            click.echo(f"  the damaged file is kept as {path}")
        _tell(each.lost)


def _tell(damage: Sequence[Damage]) -> None:
    for each in damage:
        lost = "no message is lost"
        if each.hi > each.lo:
            lost = f"ticks {each.lo + 1} to {each.hi} are lost, from {_time(each.lo + 1)} to {_time(each.hi)}"
        click.echo(f"  {each.error.file} at offset {each.error.offset}: {each.error.reason}; {lost}")


def _time(tick: int) -> str:
    try:
        return datetime.fromtimestamp(tick_milliseconds(tick) / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return "an unknown time"


def _documents(damage: Sequence[Damage]) -> list[dict[str, Any]]:
    return [
        {"lo": each.lo, "hi": each.hi, "file": each.error.file, "offset": each.error.offset, "reason": each.error.reason}
        for each in damage
    ]
