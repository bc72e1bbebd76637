"""What was promised, by account, standing and second, as audits keep it: it outlives the messages.

A *balance* says how many messages an account was claimed in a second, and the digest of their ids (`digests`). Each audit keeps
those of the messages that it looked at. Added up they say what an audit of all messages would say, also when the logs are gone.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from postroad.spark.jobs.expectations import EVERYTHING, Claims, Standing, Target

MESSAGES: Final = "messages"  # the kind of account under which all messages are counted
ACCOUNT: Final = ("kind", "origin", "broker", "subscriber")
BALANCES: Final = (
    "kind string, origin long, broker long, subscriber string, standing int, grain long, count long, low long, high long"
)
_SCHEMA: Final = "target int, kind string, origin long, broker long, subscriber string"


def named(counts: DataFrame, claims: Claims) -> DataFrame:
    """Return counts with the names of accounts; what is waiting or in doubt is left to the next audit."""
    accounts = [(number, *target) for number, target in enumerate(claims.targets)]
    accounts.append((EVERYTHING, *Target(MESSAGES, 0, 0, "")))
    decided = ~F.col("standing").isin(int(Standing.DOUBTFUL), int(Standing.WAITING))
    names = F.broadcast(counts.sparkSession.createDataFrame(accounts, _SCHEMA))
    return counts.filter(decided).join(names, "target").select(*ACCOUNT, "standing", "grain", "count", "low", "high")


def numbered(kept: DataFrame, claims: Claims) -> DataFrame:
    """Return kept balances as counts, with accounts by the numbers that they have here."""
    accounts = [
        (EVERYTHING if row["kind"] == MESSAGES else claims.target(Target(*row)), *row)
        for row in kept.select(*ACCOUNT).distinct().collect()
    ]
    names = F.broadcast(kept.sparkSession.createDataFrame(accounts, _SCHEMA))
    return kept.join(names, list(ACCOUNT)).select("target", "standing", "grain", "count", "low", "high")
