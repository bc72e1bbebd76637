"""What Spark is doing, for the person who waits: the stages under way with their counts of tasks.

On a terminal one line that renews itself; elsewhere nothing, unless it is asked for: then a line whenever something changed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from pyspark.sql import SparkSession

from postroad.spark.cluster import has_context

POLL_S: Final = 0.3
STAGES_SHOWN_MAX: Final = 3
NAME_SHOWN_MAX: Final = 40
_CLEAR_LINE: Final = "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class StageCount:
    """A stage under way."""

    stage: int
    name: str
    done: int
    tasks: int
    failed: int

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"stage {self.stage} ({self.name[:NAME_SHOWN_MAX]}): {self.done} of {self.tasks} tasks{failed}"


def stages_under_way(spark: SparkSession) -> list[StageCount]:
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in sorted(tracker.getActiveStageIds())]
    return [StageCount(i.stageId, i.name, i.numCompletedTasks, i.numTasks, i.numFailedTasks) for i in infos if i is not None]


@contextmanager
def shown(spark: SparkSession, title: str, *, always: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """Show the progress of the jobs that run inside the `with` block, on stderr; `always` also when that is no terminal."""
    output = stream or sys.stderr
    terminal = output.isatty()
    if (not terminal and not always) or not has_context(spark):
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(spark, title, output, terminal, done), name="postroad-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(spark: SparkSession, title: str, output: TextIO, terminal: bool, done: threading.Event) -> None:
    last = ""
    while not done.wait(POLL_S):
        line = _line(spark, title)
        if line and line != last:
            print(_CLEAR_LINE + line if terminal else line, end="" if terminal else "\n", file=output, flush=True)
            last = line
    if terminal and last:
        print(_CLEAR_LINE, end="", file=output, flush=True)


def _line(spark: SparkSession, title: str) -> str:
    try:
        stages = stages_under_way(spark)
    except Exception:  # noqa: BLE001  # the session ended meanwhile; whoever runs the job is told by Spark
        return ""
    shown_stages = "; ".join(str(stage) for stage in stages[:STAGES_SHOWN_MAX])
    more = f"; {len(stages) - STAGES_SHOWN_MAX} more" if len(stages) > STAGES_SHOWN_MAX else ""
    return f"{title}: {shown_stages}{more}" if stages else ""
