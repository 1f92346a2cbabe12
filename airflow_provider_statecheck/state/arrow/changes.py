"""Changed cells as rows in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    position_columns,
)
from airflow_provider_statecheck.state.arrow.order import order_codes
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


class Gone:
    """What stands in place of a value that was removed."""


GONE: Final = Gone()


def key_columns(keys: KeySerializer, values: Sequence[Any]) -> list[Any]:
    """Return keys that are in form as Arrow columns."""
    import pyarrow as pa

    types = keys.arrow_types
    if len(types) == 1:
        return [pa.array(values, type=types[0])]
    columns = zip(*values, strict=True) if values else ((),) * len(types)
    return [pa.array(column, type=wanted) for column, wanted in zip(columns, types, strict=True)]


def changed_rows(
    layout: StateLayout,
    key_groups: Any,
    columns: Sequence[Any],
    namespace: str,
    values: Any,
    deleted: Any,
    user_keys: Any = None,
) -> Any:
    """
    Return changes of one namespace as a table in order.

    :param key_groups: An Arrow array of int32.
    :param columns: The columns of the keys.
    :param deleted: An Arrow array of booleans, or ``None`` if nothing is deleted.
    """
    import numpy as np
    import pyarrow as pa

    have = dict(zip(layout.key_names, columns, strict=True))
    have |= {KEY_GROUP: key_groups, USER_KEY: user_keys, VALUE: values, DELETED: deleted}
    has_namespace = namespace != VOID_NAMESPACE
    if has_namespace:
        have[NAMESPACE] = pa.repeat(pa.scalar(namespace, pa.string()), len(key_groups))
    schema = layout.schema(namespace=has_namespace, deleted=deleted is not None)
    table = pa.table([have[name] for name in schema.names], schema=schema)
    return table.take(pa.array(np.argsort(order_codes(position_columns(table)), kind="stable")))


def joined_rows(layout: StateLayout, tables: Sequence[Any]) -> Any:
    """Return changes of several namespaces as one table in order."""
    import numpy as np
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0]
    deleted = any(DELETED in table.schema.names for table in tables)
    joined = pa.concat_tables([layout.conform(table, namespace=True, deleted=deleted) for table in tables])
    return joined.take(pa.array(np.argsort(order_codes(position_columns(joined)), kind="stable")))


def marks(values: Iterable[Any]) -> Any:
    """Return which of some values are gone as an Arrow array, ``None`` if none is."""
    import pyarrow as pa

    gone = [value is GONE for value in values]
    return pa.array(gone, pa.bool_()) if any(gone) else None


def groups_of(keys: Sequence[Any], key_groups: Mapping[Any, int]) -> Any:
    """Return the key groups of keys as an Arrow array."""
    import pyarrow as pa

    return pa.array([key_groups[key] for key in keys], pa.int32())
