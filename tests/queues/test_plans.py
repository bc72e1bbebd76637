"""Taking touches a handful of rows, whatever waits: the plans use the indexes, also when they were made for empty tables."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from tests.private_postgres import PrivatePostgres

from postroad.storage.queues.migrations import migrate
from postroad.storage.queues.postgres import PLANNER_SETTINGS

ROWS = 30_000
BUSY_CLIENT, PLAIN_CLIENT, RARE_SENDER, LIMIT = 5, 200_000, 99_999, 3

VARIANTS = {
    "by priority": (PLAIN_CLIENT, 1, None, None),
    "by time": (PLAIN_CLIENT, 2, None, None),
    "by priority from a rare sender": (PLAIN_CLIENT, 1, RARE_SENDER, None),
    "by time from a rare sender": (PLAIN_CLIENT, 2, RARE_SENDER, None),
    "by priority, merged with messages for this client": (BUSY_CLIENT, 1, None, None),
    "by time, merged with messages for this client": (BUSY_CLIENT, 2, None, None),
    "by priority from a rare sender, merged": (BUSY_CLIENT, 1, RARE_SENDER, None),
    "by time from a rare sender, merged": (BUSY_CLIENT, 2, RARE_SENDER, None),
    "a response by context": (BUSY_CLIENT, 2, None, 42),
}

FILL = f"""
INSERT INTO messages (queue_id, sender_id, receiver_id, priority, message, context)
SELECT 1, i % 50 + 1, CASE WHEN i % 5 = 0 THEN i % 100 + 1 END, i % 10 + 1, 'x', CASE WHEN i % 7 = 0 THEN i + 1000 END
FROM generate_series(1, {ROWS}) i
"""
RARE = f"""
INSERT INTO messages (queue_id, sender_id, receiver_id, priority, message, context)
SELECT 1, {RARE_SENDER}, CASE WHEN i > 5 THEN {BUSY_CLIENT} END, 1, 'rare', 42 FROM generate_series(1, 10) i
"""
TAKE = "SELECT count(*) FROM take(1, 1, $1, $2::smallint, $3, $4, $5, 1000, 1000000)"
TOUCHED = (
    "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'messages' AND schemaname = current_schema()"
)


@pytest.mark.parametrize("plans_made_for_empty_tables", [False, True])
def test_a_take_touches_few_rows_of_many(
    postgres_cluster: PrivatePostgres, postgres_schema: str, plans_made_for_empty_tables: bool
) -> None:
    """No sequential scan, and rows read in proportion to rows taken."""

    async def body() -> None:
        connection = await asyncpg.connect(
            postgres_cluster.dsn, server_settings={"search_path": postgres_schema, **PLANNER_SETTINGS}
        )
        try:
            await migrate(connection, postgres_schema)
            await connection.fetch("SELECT * FROM create_queue('jobs')")
            if plans_made_for_empty_tables:
                for variant in VARIANTS.values():
                    for _ in range(8):
                        await connection.fetchval(TAKE, *variant, LIMIT)
            await connection.execute(FILL)
            await connection.execute(RARE)
            for name, variant in VARIANTS.items():
                await check(connection, name, variant)
        finally:
            await connection.close()

    asyncio.run(body())


async def check(connection: asyncpg.Connection[Any], name: str, variant: tuple[int, int, int | None, int | None]) -> None:
    transaction = connection.transaction()
    await transaction.start()
    before = await connection.fetchrow(TOUCHED)
    taken = await connection.fetchval(TAKE, *variant, LIMIT)
    after = await connection.fetchrow(TOUCHED)
    await transaction.rollback()
    assert before is not None
    assert after is not None
    assert taken == LIMIT, name
    assert after["seq_scan"] - before["seq_scan"] == 0, name
    assert after["idx_tup_fetch"] - before["idx_tup_fetch"] <= 10 * LIMIT, name
