"""Lakes in table formats that others know: Delta Lake (`deltalake`) and Apache Iceberg (`pyiceberg`). Neither needs Java.

Tasks write Parquet files with the columns of `message_table` and tell the driver their names; the driver commits them, in one
step of the format. In the same step the table notes up to which tick each pubend was taken, so a batch is there once, whoever
repeats it: as application transactions in Delta, as table properties in Iceberg. Of two ingests at once the format refuses one.
Files of tasks that failed are in no commit; Delta's `vacuum` removes them.

What a table says of itself beside (attributes and their columns, where pubends begin, holes) is a property. It is written before
the commit in Delta: it may then know of columns that no row has yet, which does no harm.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import pyarrow as pa

from postroad.core.batch.schema import KIND_TYPES
from postroad.errors import LakeError, SparkUnavailableError
from postroad.spark.jobs.message_table import AttributeColumn, Taken
from postroad.storage.remote import ENDPOINT_VARIABLES, RemotePath, path_of

TableFormat: TypeAlias = Literal["delta", "iceberg"]

STATE: Final = "postroad.lake"
REACHED: Final = "postroad.reached."
CATALOG_NAME: Final = "catalog.sqlite"
IDENTIFIER: Final = ("postroad", "messages")
PARTITIONED_BY: Final = ("day", "pubend")
NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
"""Iceberg would add the files of a refused commit to a newer version of the table: rows that another ingest has added as well."""

SMALL_FILES_MIN: Final = 4  # in a partition, before they are made one
TARGET_BYTES: Final = 128 << 20
REWRITTEN_BYTES_MAX: Final = 1 << 30  # of a partition that is rewritten in memory
_SYSTEM_FIELDS: Final = (
    ("id", pa.binary()),
    ("tick", pa.int64()),
    ("publisher", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("payload", pa.binary()),
)
_PARTITION_FIELDS: Final = (("day", pa.string()), ("pubend", pa.int64()))


class TableState(msgspec.Struct, frozen=True):
    """What a table says of itself: columns of attributes, the tick behind which each pubend begins, and holes."""

    attributes: tuple[AttributeColumn, ...] = ()
    begins: dict[int, int] = {}
    holes: tuple[Taken, ...] = ()


class NewFile(NamedTuple):
    """A file that a task wrote."""

    path: str
    size: int
    rows: int
    day: str
    pubend: int


class LakeTable(Protocol):
    """A table, at one version of it."""

    form: TableFormat

    @property
    def state(self) -> TableState: ...

    def reached(self, pubend: int) -> int | None: ...

    def files(self) -> list[str]:
        """Return the paths or URIs of the files of this version."""
        ...

    def commit(self, files: Sequence[NewFile], reached: Mapping[int, int], state: TableState) -> None: ...

    def optimise(self) -> tuple[int, int]:
        """Make small files of a partition one; return how many files there were and are."""
        ...


def row_fields(attributes: Iterable[AttributeColumn], *, partitions: bool) -> pa.Schema:
    fields = [*_SYSTEM_FIELDS, *(_PARTITION_FIELDS if partitions else ())]
    return pa.schema([*fields, *((each.column, KIND_TYPES[each.kind]) for each in attributes)])


def format_of(root: str) -> TableFormat | None:
    """Say whether a Delta or an Iceberg table lies there; None for plain Parquet, or nothing."""
    path = path_of(root)
    if (path / "_delta_log").is_dir():
        return "delta"
    return "iceberg" if not isinstance(path, RemotePath) and (path / CATALOG_NAME).is_file() else None


def open_table(root: str, form: TableFormat, version: int | None = None) -> LakeTable:
    """Open a table, which need not be there yet; `version` of Delta, or snapshot of Iceberg, looks back in time."""
    try:
        return DeltaTable(root, version) if form == "delta" else IcebergTable(root, version)
    except ImportError as error:
        raise SparkUnavailableError(f"{form} tables need more packages; pip install 'postroad[lake]' ({error})") from error


class DeltaTable:
    """A Delta table. Pubend p is taken up to the version of the application transaction `postroad.reached.p`."""

    form: TableFormat = "delta"

    def __init__(self, root: str, version: int | None) -> None:
        import deltalake  # noqa: PLC0415  # an extra
        from deltalake import exceptions  # noqa: PLC0415

        self._lib, self._errors = deltalake, exceptions
        path = path_of(root).absolute()
        self._root = str(path).replace("s3a://", "s3://")
        self._options = _delta_options()
        self._table: Any = None
        if deltalake.DeltaTable.is_deltatable(self._root, storage_options=self._options):
            try:
                self._table = deltalake.DeltaTable(self._root, version=version, storage_options=self._options)
            except (exceptions.DeltaError, ValueError) as error:
                raise LakeError(root, f"version {version} cannot be read ({error})") from error
        elif version is not None:
            raise LakeError(root, "there is no Delta table")

    @property
    def state(self) -> TableState:
        text = None if self._table is None else self._table.metadata().configuration.get(STATE)
        return TableState() if text is None else msgspec.json.decode(text, type=TableState)

    def reached(self, pubend: int) -> int | None:
        found: int | None = None if self._table is None else self._table.transaction_version(f"{REACHED}{pubend}")
        return found

    def files(self) -> list[str]:
        return [] if self._table is None else sorted(self._table.file_uris())

    def commit(self, files: Sequence[NewFile], reached: Mapping[int, int], state: TableState) -> None:
        schema = row_fields(state.attributes, partitions=True)
        text = msgspec.json.encode(state).decode()
        transactions = [self._lib.Transaction(f"{REACHED}{pubend}", tick) for pubend, tick in sorted(reached.items())]
        properties = self._lib.CommitProperties(app_transactions=transactions, max_commit_retries=0)
        try:
            if self._table is None:
                self._table = self._lib.DeltaTable.create(
                    self._root,
                    schema,
                    mode="error",
                    partition_by=list(PARTITIONED_BY),
                    configuration={STATE: text},
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
            elif state != self.state:
                self._evolve(schema, text)
            self._table.create_write_transaction(
                [self._action(file) for file in files], "append", schema, list(PARTITIONED_BY), commit_properties=properties
            )
            self._table.update_incremental()
        except self._errors.DeltaError as error:
            raise LakeError(self._root, f"another ingest ran at the same time; run this one again ({error})") from error

    def _evolve(self, schema: pa.Schema, text: str) -> None:
        known = {field.name for field in self._table.schema().fields}
        new = [field for field in self._lib.Schema.from_arrow(schema).fields if field.name not in known]
        if new:
            self._table.alter.add_columns(new)
        self._table.alter.set_table_properties({STATE: text}, raise_if_not_exists=False)

    def _action(self, file: NewFile) -> Any:
        from deltalake.transaction import AddAction  # noqa: PLC0415  # an extra

        values = {"day": file.day, "pubend": str(file.pubend)}
        name = file.path.replace("s3a://", "s3://").removeprefix(f"{self._root}/")
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(name, file.size, values, int(time.time() * 1000), True, stats)

    def optimise(self) -> tuple[int, int]:
        before = len(self.files())
        self._table.optimize.compact(target_size=TARGET_BYTES)
        return before, len(self.files())


class IcebergTable:
    """An Iceberg table with its catalog beside it, or in a catalog of the user's configuration (`catalog:namespace.table`)."""

    form: TableFormat = "iceberg"

    def __init__(self, root: str, version: int | None) -> None:
        from pyiceberg import exceptions  # noqa: PLC0415  # an extra
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

        self._errors, self._root, self._version = exceptions, root, version
        path = path_of(root).absolute()
        if isinstance(path, RemotePath):
            raise LakeError(root, "an Iceberg table has its catalog beside it, so it must be in a local directory; use delta")
        path.mkdir(parents=True, exist_ok=True)
        self._catalog = SqlCatalog("postroad", uri=f"sqlite:///{path / CATALOG_NAME}", warehouse=path.as_uri())
        self._location = path
        self._table: Any = self._catalog.load_table(IDENTIFIER) if self._catalog.table_exists(IDENTIFIER) else None
        if version is not None and (self._table is None or self._table.snapshot_by_id(version) is None):
            raise LakeError(root, f"there is no snapshot {version}")

    @property
    def state(self) -> TableState:
        text = None if self._table is None else self._table.properties.get(STATE)
        return TableState() if text is None else msgspec.json.decode(text, type=TableState)

    def reached(self, pubend: int) -> int | None:
        text = None if self._table is None else self._table.properties.get(f"{REACHED}{pubend}")
        return None if text is None else int(text)

    def files(self) -> list[str]:
        if self._table is None:
            return []
        return sorted(task.file.file_path for task in self._table.scan(snapshot_id=self._version).plan_files())

    def commit(self, files: Sequence[NewFile], reached: Mapping[int, int], state: TableState) -> None:
        schema = row_fields(state.attributes, partitions=True)
        said = {STATE: msgspec.json.encode(state).decode(), **NO_RETRIES}
        said |= {f"{REACHED}{pubend}": str(tick) for pubend, tick in sorted(reached.items())}
        try:
            if self._table is None:
                self._create(schema)
            with self._table.transaction() as transaction:
                if not state.attributes or state != self.state:
                    with transaction.update_schema() as update:
                        update.union_by_name(schema)
                if files:
                    transaction.add_files([_uri(file.path) for file in files], check_duplicate_files=False)
                transaction.set_properties(said)
        except (self._errors.CommitFailedException, self._errors.TableAlreadyExistsError) as error:
            raise LakeError(self._root, f"another ingest ran at the same time; run this one again ({error})") from error

    def _create(self, schema: pa.Schema) -> None:
        from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415  # an extra

        self._catalog.create_namespace_if_not_exists(IDENTIFIER[0])
        location = (self._location / IDENTIFIER[1]).as_uri()
        creation = self._catalog.create_table_transaction(IDENTIFIER, schema, location=location)
        with creation as transaction, transaction.update_spec() as update:
            for name in PARTITIONED_BY:
                update.add_field(name, IdentityTransform(), name)
        self._table = self._catalog.load_table(IDENTIFIER)

    def optimise(self) -> tuple[int, int]:
        tasks = list(self._table.scan().plan_files())
        by_partition: dict[tuple[str, int], list[int]] = {}
        for task in tasks:
            day, pubend = task.file.partition[0], task.file.partition[1]
            by_partition.setdefault((day, pubend), []).append(task.file.file_size_in_bytes)
        for (day, pubend), sizes in sorted(by_partition.items()):
            if len(sizes) < SMALL_FILES_MIN or sum(sizes) > REWRITTEN_BYTES_MAX:
                continue
            rows = f"day = '{day}' and pubend = {pubend}"
            merged = self._table.scan(row_filter=rows).to_arrow().sort_by("tick")
            self._table.overwrite(merged, overwrite_filter=rows)
        return len(tasks), len(list(self._table.scan().plan_files()))


def _uri(path: str) -> str:
    return path if "://" in path else f"file://{path}"  # as it is: Iceberg does not decode what `as_uri` encodes


def _delta_options() -> dict[str, str]:
    """Return what the environment says of a store that Arrow is told in the same way."""
    endpoint = next((found for name in ENDPOINT_VARIABLES if (found := os.environ.get(name))), "")
    if not endpoint:
        return {}
    options = {"AWS_ENDPOINT_URL": endpoint}
    return options | ({"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http:") else {})
