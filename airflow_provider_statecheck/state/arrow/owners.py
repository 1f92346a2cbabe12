"""Which keys and namespaces rows in order belong to; a map has several rows for one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, USER_KEY, VALUE, position_columns
from airflow_provider_statecheck.state.arrow.order import row_tuples

_NO_HEAD = (USER_KEY, VALUE, DELETED)


def count_owners(tables: Iterable[Any]) -> int:
    """Return to how many keys and namespaces rows belong."""
    return sum(heads.num_rows for heads in distinct_heads(tables))


def distinct_heads(tables: Iterable[Any]) -> Iterator[Any]:
    """Return the columns of the key and the namespace, of rows in order, each once."""
    last = None
    for table in tables:
        if table.num_rows:
            heads = table.select([name for name in table.schema.names if name not in _NO_HEAD])
            columns = position_columns(heads)
            yield heads.filter(_starts(columns, last))
            last = row_tuples([column.slice(len(column) - 1) for column in columns])[0]


def _starts(columns: list[Any], last: tuple[Any, ...] | None) -> Any:
    """Return which rows differ from the row before; ``last`` is the one before the first."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    length = len(columns[0])
    starts = np.zeros(length, bool)
    for column in columns:
        differs = pc.not_equal(column.slice(1), column.slice(0, length - 1))
        starts[1:] |= differs.to_numpy(zero_copy_only=False)
    starts[0] = row_tuples([column.slice(0, 1) for column in columns])[0] != last
    return pa.array(starts)
