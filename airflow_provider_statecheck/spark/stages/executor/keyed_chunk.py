"""A table of whole key groups, ordered by key, and where each key begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.columns import KEY_GROUP
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


@dataclass(frozen=True, slots=True)
class KeyedChunk:
    """Rows of some keys."""

    table: Any
    """The user's columns, ordered by key group and key."""
    keys: KeyBatch
    """Each key once, in the order of the table."""
    starts: Sequence[int]
    """Where the rows of each key begin, and last the number of rows."""

    @classmethod
    def of(cls, table: Any, serializer: KeySerializer) -> KeyedChunk:
        """
        Find the keys of a table.

        :param table: Ordered by key group and key; the key group is one of its columns.
        :raises UnsupportedStateError: for a key that is null or has a part that is.
        """
        import pyarrow as pa

        columns = [single(table.column(KEY_GROUP)), *key_columns_of(table, serializer)]
        starts = _starts(columns)
        positions = pa.array(starts[:-1])
        distinct = [column.take(positions) for column in columns]
        return cls(table.drop_columns([KEY_GROUP]), KeyBatch(distinct[0], tuple(distinct[1:])), starts.tolist())

    @property
    def last_key_group(self) -> int:
        """Return the key group of the last row."""
        return int(self.keys.key_groups[-1].as_py())

    def spans(self, serializer: KeySerializer) -> Iterator[tuple[Any, int, int, int]]:
        """Return each key, its group, and where its rows begin and end."""
        keys = serializer.from_columns(self.keys.columns)
        groups = self.keys.key_groups.to_pylist()
        return zip(keys, groups, self.starts[:-1], self.starts[1:], strict=True)


def _starts(columns: Sequence[Any]) -> Any:
    import numpy as np

    rows = len(columns[0])
    differs = np.zeros(max(rows - 1, 0), dtype=bool)
    for column in columns:
        differs |= _differ(column.slice(1), column.slice(0, max(rows - 1, 0))).to_numpy(zero_copy_only=False)
    inner = np.flatnonzero(differs) + 1
    return np.concatenate(([0], inner, [rows]))


def _differ(column: Any, other: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    differs = pc.not_equal(column, other)
    if pa.types.is_floating(column.type):
        # NaN is one key.
        return pc.and_not(differs, pc.and_(pc.is_nan(column), pc.is_nan(other)))
    return differs


def key_columns_of(table: Any, serializer: KeySerializer) -> tuple[Any, ...]:
    """
    Return the columns of the key in the form in which keys are stored.

    :raises UnsupportedStateError: for a key that is null or has a part that is.
    """
    columns = [single(table.column(field.name)) for field in serializer.fields]
    _require_keys(serializer, columns)
    return serializer.normalized_columns(columns)


def single(column: Any) -> Any:
    """Return a column as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if hasattr(combined, "num_chunks") and combined.num_chunks == 1 else combined


def _require_keys(serializer: KeySerializer, columns: Sequence[Any]) -> None:
    for field, column in zip(serializer.fields, columns, strict=True):
        if column.null_count:
            raise UnsupportedStateError(
                f"Expected a key in the column {field.name!r} of every row, found null in {column.null_count}; filter these rows out "
                f"or give them a key of their own."
            )
