"""The columns of one state, on storage and in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.arrow.order import order_columns

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

KEY_GROUP = "key_group"
NAMESPACE = "namespace"
USER_KEY = "user_key"
VALUE = "value"
DELETED = "deleted"
KEY_PREFIX = "k_"
"""Before the name of a key's column, so that it cannot be that of another column."""


@dataclass(frozen=True)
class StateLayout:
    """
    Which columns the rows of a state have: one row for each key and namespace, of maps for each entry.

    ``namespace`` and ``deleted`` are left out where no row needs them.
    """

    key_fields: tuple[tuple[str, Any], ...]
    """Name and Arrow type of each column of the key."""
    value_type: Any
    user_key_type: Any = None
    """The Arrow type of the keys of a map; of others ``None``."""

    @classmethod
    def of(cls, keys: KeySerializer, value_type: Any, user_key_type: Any = None) -> StateLayout:
        """Return the layout of a state with keys of a serializer."""
        names = (KEY_PREFIX + field.name for field in keys.fields)
        return cls(tuple(zip(names, keys.arrow_types, strict=True)), value_type, user_key_type)

    def schema(self, *, namespace: bool, deleted: bool) -> Any:
        """Return the Arrow schema of rows."""
        import pyarrow as pa

        fields = [(KEY_GROUP, pa.int32()), *self.key_fields]
        fields += [(NAMESPACE, pa.string())] if namespace else []
        fields += [] if self.user_key_type is None else [(USER_KEY, self.user_key_type)]
        fields += [(VALUE, self.value_type)]
        fields += [(DELETED, pa.bool_())] if deleted else []
        return pa.schema(fields)

    def conform(self, table: Any, *, namespace: bool, deleted: bool) -> Any:
        """Return rows with these columns; those that they lack say that there is no namespace and that nothing is deleted."""
        import pyarrow as pa

        wanted = self.schema(namespace=namespace, deleted=deleted)
        if table.schema.names == wanted.names:
            return table
        have = dict(zip(table.schema.names, table.columns, strict=True))
        if namespace and NAMESPACE not in have:
            have[NAMESPACE] = pa.repeat(pa.scalar("", pa.string()), table.num_rows)
        if deleted and DELETED not in have:
            have[DELETED] = pa.repeat(pa.scalar(False), table.num_rows)
        return pa.table([have[name] for name in wanted.names], schema=wanted)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Return the names of the key's columns."""
        return tuple(name for name, _ in self.key_fields)


def position_names(names: list[str]) -> list[str]:
    """Return the names of those columns that say where a row lies in the order, as many as there are."""
    return [name for name in names if name not in {VALUE, DELETED}]


def position_columns(table: Any) -> list[Any]:
    """Return the columns by which rows are ordered, as :func:`order_columns` gives them."""
    columns = []
    for name in position_names(table.schema.names):
        columns += order_columns(single(table.column(name)), nullable=name == USER_KEY)
    return columns


def single(column: Any) -> Any:
    """Return a column as one array."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else pa.concat_arrays(column.chunks)
        if column.num_chunks
        else pa.array([], column.type)
    )
