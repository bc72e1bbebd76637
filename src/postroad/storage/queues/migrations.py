"""Versioned migrations: the numbered .sql files are applied once each, in order, under a lock.

A file that was applied and then changed is refused: changes go into a new file. A database from a newer version is refused too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import asyncpg

from postroad.errors import StorageSchemaError

_LOCK: Final = 0x706F7374  # any constant shared by all brokers

_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS migrations (
    version integer PRIMARY KEY, name text NOT NULL, digest text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())
"""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations() -> list[Migration]:
    files = [f for f in resources.files("postroad.storage.queues").joinpath("sql").iterdir() if f.name.endswith(".sql")]
    return sorted(
        (Migration(int(f.name[:4]), f.name, f.read_text(encoding="utf-8")) for f in files),
        key=lambda m: m.version,
    )


async def migrate(connection: asyncpg.Connection[Any], schema: str) -> int:
    """Bring the schema up to date and return how many files were applied. `schema` is a checked identifier."""
    wanted = load_migrations()
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        await connection.execute(f"SET LOCAL search_path TO {schema}")
        await connection.execute(_LEDGER)
        applied = {r["version"]: r for r in await connection.fetch("SELECT version, name, digest FROM migrations")}
        _check(wanted, applied, schema)
        fresh = [m for m in wanted if m.version not in applied]
        for migration in fresh:
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO migrations (version, name, digest) VALUES ($1, $2, $3)",
                migration.version,
                migration.name,
                migration.digest,
            )
    return len(fresh)


def _check(wanted: list[Migration], applied: dict[int, Any], schema: str) -> None:
    known = {m.version: m for m in wanted}
    for version, row in applied.items():
        if version not in known:
            raise StorageSchemaError(
                f"schema {schema!r} has migration {row['name']!r}, which this version of Postroad does not know"
            )
        if known[version].digest != row["digest"]:
            raise StorageSchemaError(f"migration {row['name']!r} was changed after it was applied to schema {schema!r}")
