"""Watching: audits one after the other, each behind the last, and alarms about what is new.

A round reads what came since the last verdict in the table. A verdict is written only every ten minutes, or with an alarm, so
that a watch of a year does not fill the table. After an alarm about missing messages the watch goes on behind them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from postroad.errors import PostroadError
from postroad.spark.jobs.evidence import Scope, Verdict
from postroad.spark.jobs.running import plain_errors
from postroad.spark.jobs.verdicts.continuing import Wish, audit_behind, keep
from postroad.spark.jobs.verdicts.table import AuditRecord, VerdictTable

KEPT_EVERY_MS: Final = 600_000
ERROR: Final = 4
_NUMBERS: Final = re.compile(r"[\d,:-]+")  # of a doubt that grows with the time


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found: alarms that were not raised before, and the code that an audit would end with."""

    alarms: tuple[str, ...]
    code: int
    record: AuditRecord | None  # None if the audit failed


def watch(spark: SparkSession, table: VerdictTable, wish: Wish, scope: Callable[[], Scope]) -> Iterator[Round]:
    """Audit each time the next round is asked for."""
    wish = replace(wish, accept=True)
    standing: dict[str, str] = {}  # what was raised and has not gone away
    while True:
        try:
            with plain_errors():
                found, raised = _audit(spark, table, wish, scope())
        except PostroadError as error:
            found, raised = None, {str(error.code): f"the audit failed: {error}"}
        code = ERROR if found is None else int(_code(found))
        yield Round(tuple(text for key, text in raised.items() if key not in standing), code, found)
        standing = raised


def _audit(spark: SparkSession, table: VerdictTable, wish: Wish, scope: Scope) -> tuple[AuditRecord, dict[str, str]]:
    made = audit_behind(spark, table, wish, scope)
    found = made.record
    raised = {text: text for text in found.named} | {_NUMBERS.sub("", text): text for text in found.doubts}
    if found.verdict == "does not close" and not found.named:
        text = f"{found.unexplained:,} intervals and {found.unexpected:,} unexpected messages that nothing explains"
        raised[_NUMBERS.sub("", text)] = text
    base = table.base(scope, wish.lake)
    if base is None or found.verdict == "does not close" or scope.now_ms - base.at_ms >= KEPT_EVERY_MS:
        keep(table, wish, made)
    made.audit.close()
    return found, raised


def _code(found: AuditRecord) -> Verdict:
    return {"closes": Verdict.CLOSES, "cannot tell": Verdict.CANNOT_TELL}.get(found.verdict, Verdict.DOES_NOT_CLOSE)
