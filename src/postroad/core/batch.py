"""The unit of the data path: a batch of messages as Arrow columns.

Columns, in this order: `tick` (uint64), `id` (16 bytes), `payload` (binary), then one column per attribute, named `@` followed
by the attribute's name, sorted by name. The prefix keeps an attribute called `tick` apart from the system column. A missing
attribute is a null; a column has one type (bool, int64, float64, string, binary), and messages whose types clash stand in
different batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

ATTRIBUTE_PREFIX: Final = "@"


@dataclass(frozen=True, slots=True)
class Batch:
    """Immutable. Slices and takes share the columns of the batch they come from."""

    columns: pa.RecordBatch

    def __len__(self) -> int:
        return self.columns.num_rows

    def attribute(self, name: str) -> pa.Array[Any] | None:
        """Return the column of an attribute, or None when no message of the batch has it."""
        index = self.columns.schema.get_field_index(ATTRIBUTE_PREFIX + name)
        return None if index < 0 else self.columns.column(index)
